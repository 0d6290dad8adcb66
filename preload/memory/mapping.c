/*
 * mmap, munmap and mprotect, between the program and the far space. Room: preload/memory. Requests
 * that far memory can't serve are refused with a message (law 3). See also remap.c, advice.c,
 * locking.c.
 */
#undef _FILE_OFFSET_BITS /* otherwise mmap would become a second name of mmap64 */

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "heap.h"
#include "local.h"
#include "local_stack.h"
#include "local_rules.h"
#include "mapping.h"
#include "far_pieces.h"

#ifndef MAP_32BIT
#define MAP_32BIT 0 /* only x86-64 has it */
#endif

/* This is newer than some headers that we build with. */
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif

#define NEAR_BYTES ((ptrdiff_t)2 << 30)

/* ---- mmap ---- */

static void *raw_mmap(void *addr, size_t len, int prot, int flags, int fd, long offset)
{
	long r = FP_RAW(SYS_mmap, addr, len, prot, flags, fd, offset);

	return (void *)(intptr_t)fp_shim_return_long(r);
}

static void *map_failed(int r)
{
	errno = -r;
	return MAP_FAILED;
}

static bool is_private_anonymous(int flags)
{
	return (flags & (MAP_TYPE | MAP_ANONYMOUS)) == (MAP_PRIVATE | MAP_ANONYMOUS);
}

/* Never far: shared and file mappings, huge pages, locked memory and stacks. */
static bool may_be_far(int flags)
{
	return is_private_anonymous(flags) &&
	       !(flags & (MAP_GROWSDOWN | MAP_STACK | MAP_LOCKED | MAP_HUGETLB));
}

static bool can_be_far(int flags)
{
	const int placed = MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_32BIT;

	return may_be_far(flags) && !(flags & placed);
}

/*
 * False for hints that go to the kernel, such as those for huge pages and for stacks that grow
 * down.
 */
static bool follows_hint(int flags)
{
	return !(flags & (MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_32BIT | MAP_GROWSDOWN | MAP_HUGETLB));
}

static unsigned far_flags(int flags)
{
	bool populates = (flags & (MAP_POPULATE | MAP_NONBLOCK)) == MAP_POPULATE;

	return (flags & MAP_NORESERVE ? FP_MAP_LAZY : 0) | (populates ? FP_MAP_POPULATE : 0) |
	       (flags & MAP_FIXED_NOREPLACE ? FP_MAP_NOREPLACE : 0);
}

static void *map_far(struct fp_space *space, size_t len, int prot, int flags)
{
	void *addr = NULL;
	int saved = errno, r;
	uint64_t mask;

	if (fp_page_round(len) < len)
		return map_failed(-ENOMEM);
	mask = fp_local_enter_masked();
	r = (int)FP_ON_LOCAL_STACK(fp_space_map, space, fp_page_round(len), 0, prot, far_flags(flags), &addr);
	fp_local_leave_masked(mask);
	errno = saved;
	return r < 0 ? map_failed(r) : addr;
}

/*
 * True for a reservation of addresses, which takes no slots. So if it fails, the range itself is
 * too small.
 */
static bool is_reservation(int prot, int flags)
{
	return prot == PROT_NONE || flags & MAP_NORESERVE;
}

/* ---- mmap at a place in the range ---- */

static int refuse_stack(void *addr)
{
	static atomic_bool said;

	fp_shim_say_once(&said,
	                 "mmap: a stack that grows at %p, in far memory, was refused. Keep the mapping under "
	                 "it local: set FARPAGE_MIN_MAPPING above its size",
	                 addr);
	return -ENOMEM;
}

static int refuse_border(const struct fp_space_borders *at, void *addr, size_t len)
{
	static atomic_bool said;

	fp_shim_say_once(&said,
	                 "mmap: %zu bytes at %p were refused: they are partly outside of far memory, or "
	                 "touch the pages from %p to %p, which Farpage needs itself. Map another place",
	                 len, addr, (void *)at->own_start, (void *)at->own_end);
	return -ENOMEM;
}

static int place(struct fp_space *space, void *addr, size_t len, const struct fp_foreign *what)
{
	if (what->flags & MAP_GROWSDOWN)
		return refuse_stack(addr);
	if (may_be_far(what->flags))
		return fp_space_map_at(space, addr, len, what->prot, far_flags(what->flags));
	return fp_space_map_foreign(space, addr, len, what);
}

/*
 * Maps at a place in the range. Refuses a mapping that reaches beyond the range: outside, only the
 * kernel can map. Also refuses the agent's own pages.
 */
static void *map_at(struct fp_space *space, void *addr, size_t len, const struct fp_foreign *what)
{
	struct fp_space_borders at = fp_space_borders(space);
	char *start = addr;
	uint64_t mask;
	int r;

	if ((uintptr_t)addr % FP_PAGE_SIZE || len == 0)
		return map_failed(-EINVAL);
	len = fp_page_round(len);
	mask = fp_local_enter_masked();
	if (start >= at.start && start < at.end && len > 0 && len <= (size_t)(at.end - start))
		r = (int)FP_ON_LOCAL_STACK(place, space, addr, len, what, 0, 0);
	else if (what->flags & MAP_FIXED_NOREPLACE)
		r = -EEXIST;
	else
		r = refuse_border(&at, addr, len);
	fp_local_leave_masked(mask);
	return r < 0 ? map_failed(r) : addr;
}

/* ---- mmap ---- */

static void *map_local(void *addr, size_t len, const struct fp_foreign *what)
{
	void *p = raw_mmap(addr, len, what->prot, what->flags, what->fd, what->offset);

	if (p != MAP_FAILED && len >= fp_shim_min_mapping())
		atomic_fetch_add(&fp_agent_stats(fp_shim_agent())->not_far_bytes, fp_page_round(len));
	return p;
}

/* True if instructions at code can reach addr by a relative address. */
static bool is_near(const char *code, const char *addr)
{
	ptrdiff_t distance = addr - code;

	return code && distance > -NEAR_BYTES && distance < NEAR_BYTES;
}

/*
 * Follows a hint if the place is free. If the place is in the range, the mapping becomes far or
 * foreign, as with MAP_FIXED. If the place is near the calling code, the mapping becomes local,
 * because compilers place machine code there at run time. Other hints are not followed: V8, for
 * one, asks for random places. After a failure errno may have any value.
 */
static void *map_hinted(struct fp_space *space, void *hint, size_t len, const struct fp_foreign *asked,
                        const void *caller)
{
	char *addr = (char *)hint - (uintptr_t)hint % FP_PAGE_SIZE;
	struct fp_foreign what = *asked;

	what.flags |= MAP_FIXED_NOREPLACE;
	if (fp_space_owns(space, addr))
		return map_at(space, addr, len, &what);
	return is_near(caller, addr) ? map_local(addr, len, &what) : MAP_FAILED;
}

void *fp_mmap(void *addr, size_t len, int prot, int flags, int fd, long offset, const void *caller)
{
	const struct fp_foreign what = {.prot = prot, .flags = flags, .fd = fd, .offset = offset};
	struct fp_space *space = fp_shim_space();
	enum fp_place rule;
	bool is_far;
	void *p;

	if (!space || fp_heap_is_allocator(caller) || offset % (long)FP_PAGE_SIZE) /* EINVAL */
		return raw_mmap(addr, len, prot, flags, fd, offset);
	if ((flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) && fp_space_overlaps(space, addr, len))
		return map_at(space, addr, len, &what);
	rule = can_be_far(flags) ? fp_local_rules_of(FP_RULE_MAPPINGS, len, caller) : FP_PLACE_LOCAL;
	is_far = rule == FP_PLACE_FAR || (rule == FP_PLACE_UNSAID && len >= fp_shim_min_mapping());
	if (addr && follows_hint(flags) && (rule != FP_PLACE_LOCAL || !can_be_far(flags))) {
		p = map_hinted(space, addr, len, &what, caller);
		if (p != MAP_FAILED)
			return p;
	}
	if (is_far) {
		p = map_far(space, len, prot, flags);
		if (p != MAP_FAILED || errno != ENOMEM || !is_reservation(prot, flags))
			return p;
	}
	p = map_local(addr, len, &what);
	if (p != MAP_FAILED && rule == FP_PLACE_LOCAL && can_be_far(flags))
		fp_local_rules_kept(p, fp_page_round(len), fp_agent_stats(fp_shim_agent()));
	return p;
}

FP_INTERPOSE void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	return fp_mmap(addr, len, prot, flags, fd, offset, __builtin_return_address(0));
}

FP_INTERPOSE void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off64_t offset)
{
	return fp_mmap(addr, len, prot, flags, fd, offset, __builtin_return_address(0));
}

/* ---- munmap, mprotect ---- */

static int unmap_far(const struct fp_call *call, struct fp_space *space, void *addr, size_t len)
{
	return fp_space_unmap(space, addr, len);
}

static int unmap_plain(const struct fp_call *call, void *addr, size_t len)
{
	if (fp_shim_agent())
		fp_local_rules_gone(addr, fp_page_round(len), fp_agent_stats(fp_shim_agent()));
	return (int)FP_RAW(SYS_munmap, addr, len, 0, 0, 0, 0);
}

/* The kernel unmaps nothing then. A call that reaches above comes from a mistake in any case. */
static bool ends_beyond_task(const void *addr, size_t len)
{
#if defined(__x86_64__)
	const uintptr_t end = (1ul << 47) - FP_PAGE_SIZE;
#else
	const uintptr_t end = 1ul << 48;
#endif
	return (uintptr_t)addr > end || len > end - (uintptr_t)addr;
}

FP_INTERPOSE int munmap(void *addr, size_t len)
{
	const struct fp_call call = {.far = unmap_far, .plain = unmap_plain};
	struct fp_space *space = fp_touched(addr, len);

	if (space && ends_beyond_task(addr, len))
		return fp_shim_return(-EINVAL);
	return fp_shim_return(space ? fp_for_pieces(space, addr, len, &call) : unmap_plain(&call, addr, len));
}

static int protect_far(const struct fp_call *call, struct fp_space *space, void *addr, size_t len)
{
	return fp_space_protect(space, addr, len, call->arg);
}

static int protect_plain(const struct fp_call *call, void *addr, size_t len)
{
	return (int)FP_RAW(SYS_mprotect, addr, len, call->arg, 0, 0, 0);
}

FP_INTERPOSE int mprotect(void *addr, size_t len, int prot)
{
	const struct fp_call call = {.far = protect_far,
	                             .plain = protect_plain,
	                             .arg = prot,
	                             .overflow = -ENOMEM,
	                             .ends_at_hole = true};
	struct fp_space *space = fp_touched(addr, len);

	return fp_shim_return(space ? fp_for_pieces(space, addr, len, &call)
	                            : protect_plain(&call, addr, len));
}

/*
 * Far memory keeps protection key 0, the initial one. The agent itself moves far pages in and out,
 * and another key could forbid the agent the access.
 */
FP_INTERPOSE int pkey_mprotect(void *addr, size_t len, int prot, int key)
{
	static atomic_bool said;

	if (!fp_touched(addr, len))
		return fp_shim_return((int)FP_RAW(SYS_pkey_mprotect, addr, len, prot, key, 0, 0));
	if (key == -1)
		return mprotect(addr, len, prot);
	fp_shim_say_once(&said, "pkey_mprotect was refused for far memory. Set FARPAGE_MIN_MAPPING "
	                        "above the size of that mapping to keep it local");
	return fp_shim_return(-EINVAL);
}
