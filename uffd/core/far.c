/* See far.h. */
#include "far.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "abi.h"
#include "cleanup.h"
#include "clock.h"
#include "end.h"
#include "local_stack.h"
#include "lockedmem.h"
#include "log.h"
#include "lost.h"

#define RESERVE_BYTES (4ull << 40)
/*
 * The lowest address of the range. The 4 GiB below it belong to MAP_32BIT, to programs that are not
 * position-independent, and to emulators, which use all of these 4 GiB.
 */
#define LOW_START            (4ull << 30)
#define LOW_START_OVER_BREAK (32ull << 30)
#define CHUNKS(pages)        ((pages) >> FP_CHUNK_SHIFT)
/* Of the eviction queue's array: the items that begin a page of 4 KiB. */
#define QUEUE_PAGE_ITEMS       (FP_PAGE_SIZE / (uint32_t)sizeof(uint32_t))
#define QUEUE_PAGE_START(item) ((item) & ~(QUEUE_PAGE_ITEMS - 1))
#define QUEUE_PAGE_END(item)   QUEUE_PAGE_START((item) + QUEUE_PAGE_ITEMS - 1)
#define FOR_EVER               UINT64_MAX

/* This is newer than some headers that we build with. */
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

char fp_zeros[(FP_READAHEAD_MAX + 1) * FP_PAGE_SIZE] __attribute__((aligned(4096)));

static void *reserve(void *hint, uint64_t bytes, int prot)
{
	void *p = mmap(hint, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_NOHUGEPAGE);
	madvise(p, bytes, MADV_DONTDUMP); /* see set_dumped in space.c */
	return p;
}

static void release(void *p, uint64_t bytes)
{
	if (!p)
		return;
	munmap(p, bytes);
}

/*
 * Ends the merging of all memory, with which a process may be started (systemd's MemoryKSM). A page
 * that the kernel merges loses its write protection (mm/ksm.c, replace_page, Linux 6.18). If it is
 * written after that, we would drop it as clean. Memory that was given MADV_MERGEABLE is still
 * merged.
 */
static void end_merging(void)
{
	(void)prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0);
}

/*
 * Reserves the range low in the address space. Programs place their heaps there by a hint: a Java
 * VM below 32 GiB for short pointers; Go, GHC and SBCL below 1 TiB. So such a heap is far, and at
 * the address of its hint. In a program that is not position-independent, the break starts below
 * the range and has space to grow. NULL: the addresses are taken, or the limits allow less than the
 * whole range.
 */
static void *reserve_low(uint64_t bytes)
{
	uintptr_t low = (uintptr_t)sbrk(0) < LOW_START ? LOW_START_OVER_BREAK : LOW_START;
	void *p = bytes < RESERVE_BYTES
	              ? NULL
	              : reserve((void *)low, bytes, PROT_NONE); /* NOLINT(performance-no-int-to-ptr) */

	if ((uintptr_t)p == low)
		return p;
	release(p, bytes);
	return NULL;
}

/*
 * The page at which mappings without a hint begin. The address of a low range is fixed. So this
 * page is random instead, as random as the kernel's own addresses for large mappings. It lies in
 * the third quarter of the range, above the hints of programs.
 */
static uint32_t random_origin(uint64_t n_pages)
{
	uint64_t number = 0;

	(void)!getrandom(&number, sizeof(number), GRND_NONBLOCK);
	return (uint32_t)(n_pages / 2 + number % (CHUNKS(n_pages) / 4) * (1u << FP_CHUNK_SHIFT));
}

static void reserve_range(struct fp_far *far, uint64_t bytes)
{
	end_merging();
	far->base = far->low ? reserve_low(bytes) : NULL;
	far->origin = far->base ? random_origin(far->n_pages) : 0;
	if (!far->base)
		far->base = reserve(NULL, bytes, PROT_NONE);
}

static bool reserve_all(struct fp_far *far, uint64_t bytes)
{
	uint32_t *next;

	far->n_pages = bytes >> FP_PAGE_SHIFT;
	far->first = 0;
	far->last = (uint32_t)far->n_pages;
	far->pin_first = 0;
	far->pin_last = (uint32_t)far->n_pages;
	reserve_range(far, bytes);
	far->words = reserve(NULL, far->n_pages * sizeof(*far->words), PROT_READ | PROT_WRITE);
	far->touched = reserve(NULL, CHUNKS(far->n_pages) / 8, PROT_READ | PROT_WRITE);
	far->filled_chunks =
	    reserve(NULL, CHUNKS(far->n_pages) * sizeof(*far->filled_chunks), PROT_READ | PROT_WRITE);
	next = reserve(NULL, far->n_pages * sizeof(*next), PROT_READ | PROT_WRITE);
	fp_evict_queue_init(&far->evict_queue, next);
	if (far->base && far->words && far->touched && far->filled_chunks && next)
		return true;
	fp_far_unreserve(far);
	return false;
}

static int found_family(struct fp_far *far)
{
	far->family = fp_lockedmem_new(FP_PAGE_SIZE);
	if (!far->family)
		return -ENOMEM;
	if (madvise(far->family, FP_PAGE_SIZE, MADV_WIPEONFORK) < 0)
		return -errno;
	fp_far_join_family(far);
	fp_far_inherit(far, 0, (uint32_t)far->n_pages, false);
	return 0;
}

/*
 * How large the range may be under a limit. RLIMIT_AS counts the whole range. So the range gets
 * half of that limit, and the other half is left to everything else. RLIMIT_DATA counts only the
 * mapped part of the range, and its tables. So the range may be 32 times as large as that limit:
 * its tables then use up a tenth of the limit.
 */
uint64_t fp_far_fitting_bytes(int kind, uint64_t limit)
{
	return kind == RLIMIT_AS ? limit / 2 : limit > UINT64_MAX / 32 ? UINT64_MAX : limit * 32;
}

static uint64_t range_bytes(void)
{
	struct rlimit space, data;
	uint64_t bytes = RESERVE_BYTES;

	if (getrlimit(RLIMIT_AS, &space) < 0 || getrlimit(RLIMIT_DATA, &data) < 0)
		return bytes;
	while (bytes > FP_FAR_MIN_BYTES && (bytes > fp_far_fitting_bytes(RLIMIT_AS, space.rlim_cur) ||
	                                    bytes > fp_far_fitting_bytes(RLIMIT_DATA, data.rlim_cur)))
		bytes /= 2;
	return bytes;
}

int fp_far_reserve(struct fp_far *far)
{
	uint64_t bytes = range_bytes();
	int r;

	while (!reserve_all(far, bytes)) {
		bytes /= 2;
		if (bytes < FP_FAR_MIN_BYTES)
			return -ENOMEM;
	}
	/*
	 * the fault threads write these tables, so their used parts are locked in memory, the
	 * smallest table first
	 */
	fp_lockedmem_lock(far->touched, CHUNKS(far->n_pages) / 8, true);
	fp_lockedmem_lock((void *)far->filled_chunks, CHUNKS(far->n_pages) * sizeof(*far->filled_chunks),
	                  true);
	fp_lockedmem_lock(far->words, far->n_pages * sizeof(*far->words), true);
	r = fp_uffd_register(&far->uffd, far->base, bytes);
	if (r == 0)
		r = fp_local_stack_open(far->base, bytes, far->uffd.sigbus);
	return r < 0 ? r : found_family(far);
}

static size_t locked_words_bytes(const struct fp_far *far)
{
	return (far->first ? FP_FAR_OWN_PAGES + far->last - far->first : far->n_pages) * sizeof(*far->words);
}

static void forget_locks(const struct fp_far *far)
{
	fp_lockedmem_forget(CHUNKS(far->n_pages) / 8);
	fp_lockedmem_forget(CHUNKS(far->n_pages) * sizeof(*far->filled_chunks));
	fp_lockedmem_forget(locked_words_bytes(far));
}

void fp_far_unreserve(struct fp_far *far)
{
	if (far->base)
		forget_locks(far);
	release(far->base, far->n_pages << FP_PAGE_SHIFT);
	release(far->words, far->n_pages * sizeof(*far->words));
	release(far->touched, CHUNKS(far->n_pages) / 8);
	release((void *)far->filled_chunks, CHUNKS(far->n_pages) * sizeof(*far->filled_chunks));
	release(far->evict_queue.next, far->n_pages * sizeof(*far->evict_queue.next));
	fp_evict_queue_done(&far->evict_queue);
	fp_lockedmem_free(far->family, FP_PAGE_SIZE);
	far->family = NULL;
	far->base = NULL;
	far->words = NULL;
	far->touched = NULL;
	far->filled_chunks = NULL;
}

/*
 * Locks the words of the agent's own pages (the first chunk) and of the program's part of the
 * range.
 */
static void lock_words(struct fp_far *far)
{
	fp_lockedmem_lock(far->words, FP_FAR_OWN_PAGES * sizeof(*far->words), true);
	fp_lockedmem_lock(&far->words[far->first], (far->last - far->first) * sizeof(*far->words), true);
}

/* Unmaps this part. Unregisters it first, so that the kernel sends no event. */
static void cut(struct fp_far *far, uint32_t start, uint32_t end)
{
	size_t len = (size_t)(end - start) << FP_PAGE_SHIFT;

	if (start == end)
		return;
	(void)fp_uffd_unregister(&far->uffd, fp_far_addr(far, start), len);
	munmap(fp_far_addr(far, start), len);
	for (uint64_t chunk = CHUNKS((uint64_t)start); chunk < CHUNKS((uint64_t)end); chunk++)
		if (atomic_load(&far->touched[chunk / 64]) >> (chunk & 63) & 1)
			atomic_fetch_and(&far->touched[chunk / 64], ~(1ull << (chunk & 63)));
	munmap(&far->words[start], (size_t)(end - start) * sizeof(*far->words));
	start = QUEUE_PAGE_END(start);
	end = QUEUE_PAGE_START(end);
	if (start < end)
		munmap(&far->evict_queue.next[start], (end - start) * sizeof(*far->evict_queue.next));
}

int fp_far_renew_queue(struct fp_far *far)
{
	uint32_t start = QUEUE_PAGE_START(far->first), end = QUEUE_PAGE_END(far->last);
	uint32_t *next = &far->evict_queue.next[start];

	if (madvise(next, (end - start) * sizeof(*next), MADV_DONTNEED) < 0)
		return -errno;
	fp_evict_queue_renew(&far->evict_queue);
	return 0;
}

int fp_far_shrink(struct fp_far *far, uint32_t first, uint32_t last)
{
	uint32_t old_first = far->first, old_last = far->last;
	size_t locked_bytes = locked_words_bytes(far);

	/*
	 * sequentially consistent: a call that has pinned pages either sees the new bounds for
	 * pins, or is seen here. Then the range stays as it was, as a pin may last as long as a
	 * call. Nobody else may see a range that is refused: evictors throw entries away that lie
	 * outside of it
	 */
	far->pin_first = first;
	far->pin_last = last;
	if (fp_pin_any_outside(&far->pins, first, last)) {
		far->pin_first = old_first;
		far->pin_last = old_last;
		return -EBUSY;
	}
	/*
	 * in the same way, an evictor, or a thread that brings pages in, sees the new bounds of the
	 * range, or is seen here. Then we wait until it is done
	 */
	far->first = first;
	far->last = last;
	fp_lockedmem_forget(locked_bytes);
	while (atomic_load(&far->evicting) || atomic_load(&far->bringing))
		sched_yield();
	fp_evict_queue_cut(&far->evict_queue, first, last);
	cut(far, FP_MAX(old_first, FP_FAR_OWN_PAGES), first);
	cut(far, last, old_last);
	lock_words(far);
	return 0;
}

/* Sequentially consistent with an evictor that begins: it sees that we are wary, or is seen
 * here. */
void fp_far_be_wary(struct fp_far *far)
{
	atomic_store(&far->wary, true);
	while (atomic_load(&far->evicting) >= FP_FAR_TRUSTS)
		sched_yield();
}

bool fp_far_drop(struct fp_far *far, uint32_t page, uint32_t n)
{
	if (madvise(fp_far_addr(far, page), (size_t)n << FP_PAGE_SHIFT, MADV_DONTNEED) == 0)
		return true;
	if (errno == EPERM)
		atomic_store_explicit(&far->sealed, true, memory_order_relaxed);
	return false;
}

/* ---- family ---- */

void fp_far_inherit(struct fp_far *far, uint32_t page, uint32_t n, bool inherit)
{
	madvise(fp_far_addr(far, page), (size_t)n << FP_PAGE_SHIFT, inherit ? MADV_DOFORK : MADV_DONTFORK);
}

void fp_far_join_family(struct fp_far *far)
{
	atomic_store(far->family, 1);
}

void fp_far_check_family(const struct fp_far *far)
{
	if (fp_far_is_stray(far))
		fp_end_refused("fork", "this process was made by a bare system call (clone, fork), not by "
		                       "the C library's fork: it has no far memory, and ends here rather "
		                       "than read wrong bytes. Use fork or posix_spawn, or keep this "
		                       "program's memory local (--heap none)");
}

/* ---- bare calls ---- */

void fp_far_refuse_bare_call(const char *call, const void *addr)
{
	fp_end_refused(
	    "pager",
	    "a bare system call (%s) changed far memory at %p, past the C library: what is remote "
	    "of it can't follow, and the process ends here rather than read wrong bytes. Use the C "
	    "library's call, or keep that memory local (--heap none, FARPAGE_MIN_MAPPING or a rule)",
	    call, addr);
}

int fp_far_read(struct fp_far *far, struct fp_uffd_fault *ret_faults, unsigned max)
{
	int n = fp_uffd_read(&far->uffd, ret_faults, max);

	for (int i = 0; i < n; i++)
		if (ret_faults[i].changed_by)
			/* NOLINTNEXTLINE(performance-no-int-to-ptr) */
			fp_far_refuse_bare_call(ret_faults[i].changed_by,
			                        (void *)(uintptr_t)ret_faults[i].addr);
	return n;
}

/*
 * If a bare call is changing a mapping, reads its event. The event names the call, and fp_far_read
 * ends the process. If another thread reads the event first, that thread ends the process.
 */
void fp_far_check_bare_calls(struct fp_far *far)
{
	struct fp_uffd_fault messages[FP_UFFD_READ_MAX];

	while (fp_uffd_is_changing(&far->uffd))
		if (fp_far_read(far, messages, FP_UFFD_READ_MAX) <= 0)
			sched_yield();
}

bool fp_far_may_pass(struct fp_far *far, ssize_t error, uint64_t until_ns)
{
	if (error != -EAGAIN && error != -ENOMEM)
		return false;
	fp_far_check_bare_calls(far);
	sched_yield();
	return fp_clock_ns() < until_ns;
}

bool fp_far_is_foreign(struct fp_far *far, uint32_t page)
{
	struct fp_piece piece;
	uint32_t changes;

	return page < FP_FAR_OWN_PAGES ||
	       (far->layout && fp_layout_peek(far->layout, page, &piece, &changes) &&
	        (piece.flags & FP_PIECE_FOREIGN) && fp_far_unprotect(far, page) < 0);
}

int fp_far_unprotect(struct fp_far *far, uint32_t page)
{
	int r = fp_uffd_protect(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE, false);
	uint64_t until_ns;

	if (r != -EAGAIN)
		return r;
	until_ns = fp_clock_ns() + far->deadline_ns;
	while (fp_far_may_pass(far, r, until_ns))
		r = fp_uffd_protect(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE, false);
	return r;
}

/* ---- ends of transitions ---- */

void fp_far_settle(struct fp_far *far, uint32_t page, struct fp_page_step step)
{
	if (step.enqueue)
		fp_evict_queue_push(&far->evict_queue, page, step.past);
	if (step.action == FP_ACT_WAKE)
		fp_uffd_wake(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
}

void fp_far_end(struct fp_far *far, uint32_t page, enum fp_page_event event)
{
	fp_far_settle(far, page, fp_pager_apply(&far->words[page], event, NULL));
}

/*
 * Ends an install that the kernel refused: the page stays where it was. If its mapping ended during
 * the fault, the kernel sends the waiting threads SIGSEGV. If the kernel can't take the page now,
 * they fault again.
 */
static void end_gone(struct fp_far *far, uint32_t page)
{
	fp_far_end(far, page, FP_EV_NOT_INSTALLED);
	fp_uffd_wake(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
	fp_budget_leave(&far->budget, 1);
	fp_count(&far->stats->faults[FP_FAULT_DROPPED], 1);
}

/*
 * Ends a fault whose page is present although its word says otherwise. Its protection is unknown,
 * so it counts as written.
 */
static void end_present(struct fp_far *far, uint32_t page)
{
	/* the word will say DIRTY, and agent_pin.c then takes the page for writable */
	if (fp_uffd_needs_pins(&far->uffd))
		(void)fp_far_unprotect(far, page);
	fp_far_end(far, page, FP_EV_INSTALLED_RW);
	fp_uffd_wake(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
}

/* Reports an error that we do not expect. */
static void say_refused(const struct fp_far *far, uint32_t page, int error)
{
	static struct fp_log_limit limit;
	char why[64];

	if (fp_log_allowed(&limit, 10))
		fp_log(FP_LOG_ERROR, "pager",
		       "page %p is lost: the kernel refuses to install it: %s; SIGBUS follows. Please report "
		       "this",
		       (void *)fp_far_addr(far, page), fp_strerror(error, why, sizeof(why)));
}

/* patience_ns: how long to try again while the kernel can't take the page. */
static unsigned install(struct fp_far *far, uint32_t page, unsigned n, const char *from, bool writable,
                        uint64_t patience_ns)
{
	enum fp_page_event done = writable ? FP_EV_INSTALLED_RW : FP_EV_INSTALLED;
	unsigned resident = 0;
	uint64_t until_ns = 0;
	bool singly = false;

	while (n > 0) {
		size_t len = (singly ? 1 : n) * (size_t)FP_PAGE_SIZE;
		ssize_t r = fp_uffd_copy(&far->uffd, fp_far_addr(far, page), from, len, !writable);
		unsigned k = r > 0 ? (unsigned)(r >> FP_PAGE_SHIFT) : 1;

		if (r > 0) {
			for (unsigned i = 0; i < k; i++)
				fp_far_end(far, page + i, done);
			resident += k;
		} else if (r == -EEXIST) {
			end_present(far, page);
			resident++;
		} else if (r == -ENOENT && len > FP_PAGE_SIZE) {
			singly = true; /* install one by one: a kernel mapping ends among these pages */
			continue;
		} else if (r == -ENOENT || r == -ESRCH) {
			end_gone(far, page);
		} else if (r == -EAGAIN || r == -ENOMEM) {
			if (until_ns == 0)
				until_ns = patience_ns == FOR_EVER ? FOR_EVER : fp_clock_ns() + patience_ns;
			if (fp_far_may_pass(far, r, until_ns))
				continue;
			end_gone(far, page);
		} else {
			say_refused(far, page, (int)r);
			fp_lost_end(far, page, false);
			fp_budget_leave(&far->budget, 1);
		}
		page += k;
		from += k * (size_t)FP_PAGE_SIZE;
		n -= k;
	}
	return resident;
}

unsigned fp_far_install(struct fp_far *far, uint32_t page, unsigned n, const void *src, bool writable)
{
	return install(far, page, n, src, writable, far->deadline_ns);
}

void fp_far_put_back(struct fp_far *far, uint32_t page, const void *src)
{
	(void)install(far, page, 1, src, true, FOR_EVER);
}

uint64_t fp_far_patience_ns(const struct fp_far *far)
{
	uint64_t wait_ns = 0;
	struct fp_store_node info;

	for (unsigned i = 0; i < fp_store_n_nodes(far->store); i++) {
		fp_store_node_info(far->store, i, &info);
		if (info.adopting || (info.state != FP_BREAKER_CLOSED && info.state != FP_BREAKER_LOST))
			wait_ns = FP_MAX(wait_ns, info.patience_ns);
	}
	return wait_ns;
}

void fp_far_count_nodes(const struct fp_far *far, unsigned *ret_up, unsigned *ret_cut_off)
{
	struct fp_store_node info;

	*ret_up = *ret_cut_off = 0;
	for (unsigned i = 0; i < fp_store_n_nodes(far->store); i++) {
		fp_store_node_info(far->store, i, &info);
		*ret_up += info.state == FP_BREAKER_CLOSED;
		*ret_cut_off += info.state == FP_BREAKER_OPEN || info.state == FP_BREAKER_HALF_OPEN;
	}
}

int fp_far_why_stuck(const struct fp_far *far)
{
	unsigned up, cut_off;

	fp_far_count_nodes(far, &up, &cut_off);
	if (up == 0)
		return -EHOSTDOWN;
	if (atomic_load(&far->full))
		return -ENOSPC;
	/*
	 * a child can read an adopted node's pages without a session, so the node counts as up, but
	 * takes no pages yet
	 */
	return atomic_load(&far->wants_slots) && fp_store_lacks_sessions(far->store) ? -EHOSTDOWN : 0;
}
