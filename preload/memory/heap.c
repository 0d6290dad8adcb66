/*
 * See heap.h. Invariants:
 *   - jemalloc's own arenas (0 and its other automatic ones) are local, and so are all its records.
 *     The agent allocates from arena 0 without the thread caches, as these may hold far objects of
 *     the program.
 *   - Far arenas get their extents from the far space alone, and give them back to it.
 *   - jemalloc's locks are taken first, then the space's. So inside the space nothing here
 *     allocates, except in a bracket. See atfork.c for the consequences for fork.
 */
#include "heap.h"

#include <dlfcn.h>
#include <errno.h>
#include <jemalloc/jemalloc.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "calls.h"
#include "cleanup.h"
#include "libc_memory.h"
#include "local.h"
#include "local_stack.h"
#include "far_pieces.h"
#include "local_rules.h"
#include "lookup.h"
#include "space.h"

#define ARENAS_MAX 64

/* Unmapping a smaller extent would cost the kernel more memory for mappings than it frees. */
#define UNMAP_MIN_BYTES (4u << 20)

/*
 * jemalloc asks for larger and larger extents. This limits their size, and so the memory that
 * jemalloc leaves unused.
 */
#define GROW_LIMIT_BYTES (16u << 20)

static struct {
	struct fp_space *space;
	enum fp_heap_mode mode;
	size_t large_bytes;
	unsigned n_arenas, arena[ARENAS_MAX];
	_Atomic unsigned next_arena;
	uintptr_t allocator_start, allocator_end;
} heap;

struct fp_heap_calls fp_heap_calls;

/* The far arena that this thread allocates from. */
static __thread unsigned own_arena __attribute__((tls_model("initial-exec")));
static __thread bool is_set_up __attribute__((tls_model("initial-exec")));

/* ---- extents: jemalloc calls these, also when the program frees; so they keep errno ---- */

static void *extent_alloc(extent_hooks_t *hooks, void *new_addr, size_t size, size_t alignment, bool *zero,
                          bool *commit, unsigned arena)
{
	void *addr = NULL;
	int saved = errno;
	uint64_t mask;

	if (new_addr)
		return NULL;
	mask = fp_local_enter_masked();
	if ((int)FP_ON_LOCAL_STACK(fp_space_map, heap.space, size, alignment, PROT_READ | PROT_WRITE,
	                           FP_MAP_HEAP, &addr) == 0)
		*zero = *commit = true;
	fp_local_leave_masked(mask);
	errno = saved;
	return addr;
}

/* Returns true if the extent was not unmapped. jemalloc then keeps it for later, and purges it. */
static bool extent_dalloc(extent_hooks_t *hooks, void *addr, size_t size, bool committed, unsigned arena)
{
	int saved = errno, r;
	uint64_t mask;

	if (size < UNMAP_MIN_BYTES)
		return true;
	mask = fp_local_enter_masked();
	r = (int)FP_ON_LOCAL_STACK(fp_space_unmap, heap.space, addr, size, 0, 0, 0);
	fp_local_leave_masked(mask);
	errno = saved;
	return r < 0;
}

static bool extent_purge(extent_hooks_t *hooks, void *addr, size_t size, size_t offset, size_t length,
                         unsigned arena)
{
	int saved = errno, r;
	uint64_t mask;

	mask = fp_local_enter_masked();
	r = (int)FP_ON_LOCAL_STACK(fp_space_advise, heap.space, (char *)addr + offset, length, MADV_DONTNEED,
	                           0, 0);
	fp_local_leave_masked(mask);
	errno = saved;
	return r < 0;
}

/* The far space keeps no record of extents, so a split needs no work there. */
static bool extent_split(extent_hooks_t *hooks, void *addr, size_t size, size_t size_a, size_t size_b,
                         bool committed, unsigned arena)
{
	return false;
}

static bool extent_merge(extent_hooks_t *hooks, void *addr_a, size_t size_a, void *addr_b, size_t size_b,
                         bool committed, unsigned arena)
{
	return false;
}

static extent_hooks_t far_hooks = {
    .alloc = extent_alloc,
    .dalloc = extent_dalloc,
    .purge_forced = extent_purge,
    .split = extent_split,
    .merge = extent_merge,
};

/* ---- arenas ---- */

/* A copy from jemalloc 5.3's own sources, as its public header leaves it out. */
struct arena_config {
	extent_hooks_t *extent_hooks;
	bool metadata_use_hooks;
};

static int make_arena(unsigned *ret_arena)
{
	struct arena_config config = {.extent_hooks = &far_hooks, .metadata_use_hooks = false};
	size_t limit = GROW_LIMIT_BYTES, len = sizeof(*ret_arena);
	char name[64];
	int r = mallctl("experimental.arenas_create_ext", ret_arena, &len, &config, sizeof(config));

	if (r)
		return -r;
	snprintf(name, sizeof(name), "arena.%u.retain_grow_limit", *ret_arena);
	return -mallctl(name, NULL, NULL, &limit, sizeof(limit));
}

static int find_allocator(struct dl_phdr_info *info, size_t size, void *unused)
{
	uintptr_t known = (uintptr_t)mallocx, start = UINTPTR_MAX, end = 0;

	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *ph = &info->dlpi_phdr[i];

		if (ph->p_type != PT_LOAD)
			continue;
		start = FP_MIN(start, info->dlpi_addr + ph->p_vaddr);
		end = FP_MAX(end, info->dlpi_addr + ph->p_vaddr + ph->p_memsz);
	}
	if (known < start || known >= end)
		return 0;
	heap.allocator_start = start;
	heap.allocator_end = end;
	return 1;
}

bool fp_heap_is_allocator(const void *code)
{
	return (uintptr_t)code >= heap.allocator_start && (uintptr_t)code < heap.allocator_end;
}

static void *own_call(void *library, const char *name)
{
	void *call = fp_lookup_dlsym()(library, name);

	return fp_heap_is_allocator(call) ? call : NULL;
}

/*
 * Looks functions up in jemalloc itself: by name alone we would find our own, or those of the
 * program's allocator.
 */
static int find_calls(void)
{
	Dl_info info;
	void *library;

	if (!dladdr((void *)mallocx, &info) || !(library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)))
		return -ENOTSUP;
	fp_heap_calls.malloc = own_call(library, "malloc");
	fp_heap_calls.calloc = own_call(library, "calloc");
	fp_heap_calls.realloc = own_call(library, "realloc");
	fp_heap_calls.free = own_call(library, "free");
	dlclose(library);
	return fp_heap_calls.malloc && fp_heap_calls.calloc && fp_heap_calls.realloc && fp_heap_calls.free
	           ? 0
	           : -ENOTSUP;
}

int fp_heap_open(struct fp_space *space, const struct fp_settings *settings, struct fp_agent_error *error)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	bool never_far = settings->heap == FP_HEAP_NONE && fp_local_rules_heap_from() == SIZE_MAX;
	unsigned wanted = never_far ? 0 : (unsigned)FP_MIN(FP_MAX(cpus, 1), ARENAS_MAX);
	int r;

	dl_iterate_phdr(find_allocator, NULL);
	r = find_calls();
	heap.mode = settings->heap;
	heap.large_bytes = settings->large_bytes;
	heap.space = space;
	while (r == 0 && heap.n_arenas < wanted && (r = make_arena(&heap.arena[heap.n_arenas])) == 0)
		heap.n_arenas++;
	if (r < 0) {
		snprintf(
		    error->text, sizeof(error->text),
		    "heap: this libjemalloc can't keep its records local (%s): 5.3 is needed, or --heap none",
		    strerror(-r));
		return -ENOTSUP;
	}
	return 0;
}

/* ---- threads ---- */

/*
 * Gives the thread a far arena. If the heap mode is FP_HEAP_ALL, this arena becomes the thread's
 * default. Then jemalloc serves the thread from it, through the thread's cache.
 */
static void choose_arena(void)
{
	unsigned arena = heap.arena[atomic_fetch_add(&heap.next_arena, 1) % heap.n_arenas];

	own_arena = arena;
	if (heap.mode == FP_HEAP_ALL)
		mallctl("thread.arena", NULL, NULL, &arena, sizeof(arena));
}

/* Allocations smaller than this take the fast path. */
static size_t fast_below(void)
{
	size_t from = fp_local_rules_heap_from();

	if (heap.mode == FP_HEAP_LARGE)
		from = FP_MIN(from, heap.large_bytes);
	return from - (from > 0 && from < SIZE_MAX);
}

/*
 * Called at a thread's first allocation. Makes jemalloc and the C library allocate their records
 * for the new thread now, in local memory.
 */
static void set_up_thread(void)
{
	uint64_t mask;

	mask = fp_local_enter_masked();
	if (heap.n_arenas)
		choose_arena();
	if (!fp_calls_hold())
		fp_local.restore = fast_below();
	is_set_up = true;
	fp_local_leave_masked(mask);
}

static bool is_far(size_t size, const void *caller)
{
	switch (fp_local_rules_of(FP_RULE_HEAP, size, caller)) {
	case FP_PLACE_FAR:
		return true;
	case FP_PLACE_LOCAL:
		return false;
	default:
		return heap.mode == FP_HEAP_ALL || (heap.mode == FP_HEAP_LARGE && size >= heap.large_bytes);
	}
}

/*
 * A thread's cache holds objects of its default arena only, so other arenas are used without a
 * cache.
 */
int fp_heap_flags(size_t size, const void *caller)
{
	bool far;

	if (fp_local_is_agent())
		return MALLOCX_ARENA(0) | MALLOCX_TCACHE_NONE;
	if (!heap.space)
		return 0;
	if (!is_set_up)
		set_up_thread();
	if (fp_libc_memory_is_loader(caller) || (fp_calls_hold() && fp_libc_memory_wants_local(caller, size)))
		return MALLOCX_ARENA(0) | MALLOCX_TCACHE_NONE;
	far = is_far(size, caller);
	if (far == (heap.mode == FP_HEAP_ALL))
		return 0;
	return (int)(MALLOCX_ARENA(far ? own_arena : 0) | MALLOCX_TCACHE_NONE);
}

/*
 * Zeroes [p, p + size), which is fresh memory, by discarding its whole pages. False if they could
 * not be discarded.
 */
static bool discard_pages(char *p, size_t size)
{
	char *from = (char *)fp_page_round((size_t)p), *to = p + size - (uintptr_t)(p + size) % FP_PAGE_SIZE;
	int saved = errno, r;
	uint64_t mask;

	if (!fp_space_owns(heap.space, p))
		return false;
	mask = fp_local_enter_masked();
	r = (int)FP_ON_LOCAL_STACK(fp_space_advise, heap.space, from, to - from, MADV_DONTNEED, 0, 0);
	fp_local_leave_masked(mask);
	errno = saved;
	if (r < 0)
		return false;
	memset(p, 0, (size_t)(from - p));
	memset(to, 0, (size_t)(p + size - to));
	return true;
}

void *fp_heap_zeroed(size_t size)
{
	void *p;

	if (heap.mode != FP_HEAP_ALL) /* local memory: jemalloc knows which parts of it are zero already */
		return fp_heap_calls.calloc(1, size);
	p = fp_heap_calls.malloc(size);
	if (p && !discard_pages(p, size))
		memset(p, 0, size);
	return p;
}

int fp_heap_free_flags(void)
{
	return fp_local_is_agent() ? MALLOCX_TCACHE_NONE : 0;
}

bool fp_heap_must_move(const void *ptr, size_t new_size, const void *caller)
{
	if (!heap.space || fp_local_is_agent() ||
	    (heap.mode != FP_HEAP_LARGE && new_size < fp_local_rules_heap_from()))
		return false;
	return fp_space_owns(heap.space, ptr) != is_far(new_size, caller);
}
