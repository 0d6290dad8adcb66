/*
 * mremap of far memory. Room: uffd/space; see space.h.
 *
 * A mapping moves page by page: a resident page by UFFDIO_MOVE, a remote page by its slot. A page
 * that a device or a call holds can't move, and the whole request is undone: its holder would go on
 * with the page, and the program with a copy. The old pages stay CLAIMED until all have moved. A
 * thread that touches them waits, as in the kernel, and then finds nothing at the old place.
 */
#include "space_priv.h"

#include <errno.h>
#include <sys/mman.h>

#include "abi.h"
#include "capture.h"
#include "cleanup.h"
#include "clock.h"
#include "kernel_filled.h"
#include "presence.h"
#include "process_memory.h"
#include "unheld.h"

#define NEW_LEN_MAX (1ull << 47) /* no process has more addresses (with 4-level page tables) */
#define HELD_NS     100000000u   /* how long a page is tried that somebody holds */

/* A move under way: n pages, from one first page to another. */
struct move {
	struct fp_space *space;
	uint32_t from, to, n;
	int prot;       /* of the old mapping; the new one is readable and writable meanwhile */
	uint32_t moved; /* how many pages are done */
};

/* Installs a page whose only copy is bytes, as fp_far_put_back does. */
static void install(struct fp_far *far, uint32_t page, const void *bytes)
{
	ssize_t r;

	do {
		r = fp_uffd_copy(&far->uffd, fp_far_addr(far, page), bytes, FP_PAGE_SIZE, false);
	} while (r < 0 && fp_far_may_pass(far, r, UINT64_MAX));
}

/* Keeps a page that somebody holds: see fp_unheld_keep. */
static bool keep_page(const struct move *m, uint32_t page)
{
	struct fp_far *far = m->space->far;

	while (fp_far_unprotect(far, page) == -EAGAIN)
		; /* a bare call changes a mapping, and that ends the process */
	return fp_unheld_keep(fp_far_addr(far, page), m->prot);
}

static ssize_t copy_unless_held(const struct move *m, uint32_t from, uint32_t to)
{
	struct fp_far *far = m->space->far;
	char bytes[FP_PAGE_SIZE], *src = fp_far_addr(far, from);
	int r;

	if (fp_uffd_protect(&far->uffd, src, FP_PAGE_SIZE, true) < 0)
		return -ENOMEM;
	if (fp_presence_is_absent(far->pagemap_fd, src))
		return -ENOENT;
	r = fp_unheld_take(far->mem_fd, far->pagemap_fd, src, false, bytes);
	if (r == -EBUSY && !keep_page(m, from))
		r = 0;
	if (r < 0)
		return r;
	install(far, to, bytes);
	return FP_PAGE_SIZE;
}

/*
 * Where UFFDIO_MOVE is not there, or not enough; and for memory that the program can't read, which
 * must not be opened, as other threads go on meanwhile. A closed page that is held is opened to be
 * kept. So this first makes it a mapping of its own, by an advice that means nothing for such
 * memory: at the kernel's limit on mappings, it could not be kept.
 */
static ssize_t copy_unheld(const struct move *m, uint32_t from, uint32_t to)
{
	bool is_closed = (m->prot & (PROT_READ | PROT_WRITE)) != (PROT_READ | PROT_WRITE);
	char *src = fp_far_addr(m->space->far, from);
	ssize_t r;

	if (is_closed && madvise(src, FP_PAGE_SIZE, MADV_SEQUENTIAL) < 0)
		return -ENOMEM;
	r = copy_unless_held(m, from, to);
	if (is_closed)
		(void)madvise(src, FP_PAGE_SIZE, MADV_NORMAL);
	return r;
}

static ssize_t move_open(struct fp_far *far, uint32_t from, uint32_t to)
{
	return fp_uffd_move(&far->uffd, far->pagemap_fd, fp_far_addr(far, to), fp_far_addr(far, from),
	                    FP_PAGE_SIZE);
}

/*
 * UFFDIO_MOVE needs equal protections, and both places writable. So opens the old page for the
 * move. It is write-protected by userfaultfd before that: a write waits, and is then refused as
 * before.
 */
static ssize_t move_opened(const struct move *m, uint32_t from, uint32_t to)
{
	struct fp_far *far = m->space->far;
	char *src = fp_far_addr(far, from);
	ssize_t r;

	if (fp_uffd_protect(&far->uffd, src, FP_PAGE_SIZE, true) < 0 ||
	    mprotect(src, FP_PAGE_SIZE, PROT_READ | PROT_WRITE) < 0)
		return -ENOMEM;
	r = move_open(far, from, to);
	fp_unheld_close(src, FP_PAGE_SIZE, m->prot);
	return r == -EBUSY && fp_presence_is_shared(far->pagemap_fd, src) ? copy_unheld(m, from, to) : r;
}

/*
 * Takes a page to its new place. Returns its length, or a negative errno: -EINVAL if it is locked,
 * or if a bare call has changed its protection.
 */
static ssize_t take_page(const struct move *m, uint32_t from, uint32_t to)
{
	if (!fp_far_moves(m->space->far) || !(m->prot & PROT_READ))
		return copy_unheld(m, from, to);
	return m->prot == (PROT_READ | PROT_WRITE) ? move_open(m->space->far, from, to)
	                                           : move_opened(m, from, to);
}

/* True if the kernel has locked the page's mapping: it refuses this advice then, and only then. */
static bool is_locked(void *addr)
{
	return madvise(addr, FP_PAGE_SIZE, MADV_COLD) < 0 && errno == EINVAL;
}

/*
 * If a bare call has locked the page, it must be unlocked to move. Then the lock moves with the
 * bytes, as in the kernel.
 */
static ssize_t take_locked(const struct move *m, uint32_t from, uint32_t to)
{
	char *src = fp_far_addr(m->space->far, from);
	ssize_t r;

	if (!is_locked(src) || munlock(src, FP_PAGE_SIZE) < 0)
		return -EBUSY;
	r = take_page(m, from, to);
	(void)mlock2(r > 0 ? fp_far_addr(m->space->far, to) : src, FP_PAGE_SIZE, MLOCK_ONFAULT);
	return r;
}

/*
 * Moves a claimed resident page. A call may hold the page for a short time, so it is tried for a
 * while. -EBUSY: somebody still holds it.
 */
static int move_resident(const struct move *m, uint32_t from, uint32_t to)
{
	struct fp_far *far = m->space->far;
	uint64_t until = fp_clock_ns() + HELD_NS;
	bool unshares = fp_far_moves(far) && m->prot == (PROT_READ | PROT_WRITE);
	ssize_t r;

	do {
		r = take_page(m, from, to);
		if (r == -EINVAL)
			r = take_locked(m, from, to);
		if (r >= 0 || r == -ENOENT || r == -ENOMEM)
			return r < 0 ? (int)r : 0;
		if (r != -EBUSY || !unshares || fp_capture_unshare(far, from) < 0)
			fp_space_pause();
	} while (fp_clock_ns() < until);
	return -EBUSY;
}

/*
 * Brings a claimed resident page back by a copy. Nobody can hold it at its new place, as the
 * program does not know that mapping yet. 0, -ENOENT or -EIO.
 */
static int copy_back(struct fp_far *far, uint32_t from, uint32_t to)
{
	char bytes[FP_PAGE_SIZE], *src = fp_far_addr(far, from);

	if (!fp_process_memory_read(far->mem_fd, src, bytes))
		return fp_presence_is_absent(far->pagemap_fd, src) ? -ENOENT : -EIO;
	install(far, to, bytes);
	if (!fp_far_drop(far, from, 1) && munlock(src, FP_PAGE_SIZE) == 0)
		(void)fp_far_drop(far, from, 1);
	return 0;
}

/*
 * Claims a page of a fresh mapping. If it was zero-filled ahead of a fault meanwhile, drops it
 * again.
 */
static int claim_fresh(struct fp_far *far, uint32_t page)
{
	uint64_t old = fp_space_claim(far, page);
	int r = fp_kernel_filled_end(far, page);

	if (r == 0 && fp_page_state(old) != FP_PAGE_RESIDENT)
		return 0;
	if (r < 0 || madvise(fp_far_addr(far, page), FP_PAGE_SIZE, MADV_DONTNEED) < 0) {
		fp_space_release(far, page, old);
		return -ENOMEM;
	}
	fp_budget_leave(&far->budget, 1);
	return 0;
}

/*
 * Moves the bytes of a page; both its old and its new place are claimed. old is its former word.
 * *ret_settled: its word at the new place. A clean page counts as written there, as its protection
 * is lost.
 */
static int move_bytes(const struct move *m, uint32_t from, uint32_t to, uint64_t old, uint64_t *ret_settled)
{
	struct fp_far *far = m->space->far;
	uint64_t settled = old & ~(FP_PAGE_WAIT | FP_PAGE_QUEUED);
	int r = 0;

	if (fp_page_state(old) == FP_PAGE_RESIDENT) {
		r = from < m->from || from >= m->from + m->n ? copy_back(far, from, to)
		                                             : move_resident(m, from, to);
		settled |= FP_PAGE_DIRTY;
		if (r == -ENOENT) { /* a bare call dropped the page: it reads zeros */
			if (fp_page_slot(old))
				fp_store_slot_free(far->store, fp_page_slot(old));
			fp_budget_leave(&far->budget, 1);
			settled = FP_PAGE_ZERO;
			r = 0;
		}
	}
	if (fp_page_state(old) == FP_PAGE_LOST) {
		fp_lost_poison(far, to);
		madvise(fp_far_addr(far, from), FP_PAGE_SIZE, MADV_DONTNEED); /* removes the poison */
	}
	*ret_settled = settled;
	return r;
}

/* Moves one page. Its old place stays claimed, unless the move fails. */
static int move_page(const struct move *m, uint32_t from, uint32_t to)
{
	struct fp_far *far = m->space->far;
	uint64_t old = fp_space_claim(far, from), settled;
	int r = claim_fresh(far, to);

	if (r == 0) {
		r = fp_kernel_filled_end(far, from);
		if (r == 0)
			r = move_bytes(m, from, to, old, &settled);
		fp_space_release(far, to, r == 0 ? settled : FP_PAGE_ZERO);
	}
	if (r < 0) {
		/* an attempt to move it may have lifted its protection, so it counts as written */
		if (fp_page_state(old) == FP_PAGE_RESIDENT) {
			(void)fp_far_unprotect(far, from);
			old |= FP_PAGE_DIRTY;
		}
		fp_space_release(far, from, old);
	} else {
		atomic_fetch_or(&far->words[from], FP_PAGE_MOVED);
	}
	return r;
}

static int move_pages(struct move *m)
{
	struct fp_far *far = m->space->far;
	int r = 0;

	for (m->moved = 0; r == 0 && m->moved < m->n; m->moved += r == 0) {
		if (fp_space_untouched(far, m->from + m->moved))
			continue;
		fp_far_touch(far, m->to + m->moved);
		r = move_page(m, m->from + m->moved, m->to + m->moved);
	}
	return r;
}

/* True if the old page has moved: then we still own it. */
static bool is_moved(const struct fp_far *far, uint32_t page)
{
	return !fp_space_untouched(far, page) && (atomic_load(&far->words[page]) & FP_PAGE_MOVED);
}

/*
 * Moves all moved pages back. A page can't go back if memory is short or its bytes are gone: then
 * it is lost.
 */
static void move_back(struct move *m)
{
	struct fp_far *far = m->space->far;

	for (uint32_t i = 0; i < m->moved; i++) {
		uint64_t old, settled = FP_PAGE_ZERO;
		int r;

		if (!is_moved(far, m->from + i))
			continue;
		old = fp_space_claim(far, m->to + i);
		r = fp_kernel_filled_end(far, m->to + i);
		if (r == 0)
			r = move_bytes(m, m->to + i, m->from + i, old, &settled);
		if (r < 0) {
			if (fp_page_state(old) == FP_PAGE_RESIDENT)
				fp_budget_leave(&far->budget, 1);
			fp_lost_poison(far, m->from + i);
			settled = FP_PAGE_LOST | FP_PAGE_DIRTY;
		}
		fp_space_release(far, m->to + i, FP_PAGE_ZERO);
		fp_space_release(far, m->from + i, settled);
	}
}

static void release_old(struct move *m)
{
	struct fp_far *far = m->space->far;

	for (uint32_t i = 0; i < m->n; i++)
		if (is_moved(far, m->from + i))
			fp_space_release(far, m->from + i, FP_PAGE_ZERO);
}

/* ---- mappings ---- */

static bool free_behind(const struct fp_layout *layout, uint32_t end, uint32_t n)
{
	return (uint64_t)end + n <= layout->end && fp_layout_is_free(layout, end, end + n);
}

static int restore_prot(struct fp_space *space, const struct fp_piece *old, struct fp_piece fresh)
{
	int r = 0;

	fp_capture_pause(space->far);
	if (old->prot != fresh.prot)
		r = fp_space_open_range(space->far, fresh.start, fresh.end - fresh.start, old->prot);
	if (r == 0)
		r = fp_layout_protect(&space->layout, fresh.start, fresh.end, old->prot);
	fp_capture_resume(space->far);
	return r;
}

/* The old pages are inaccessible already. Releases and unmaps them. */
static int leave_old(struct move *m)
{
	/*
	 * how many slots were reserved for the part that is unmapped here: they move with the bytes
	 */
	uint64_t carried = 0;

	release_old(m);
	return fp_space_remove(m->space, m->from, m->from + m->n, &carried);
}

/* Undoes a move that failed half-way. */
static void undo(struct move *m, struct fp_piece fresh)
{
	uint64_t carried = 0;

	fp_space_restore(m->space, m->from, m->from + m->n);
	move_back(m);
	fp_space_remove(m->space, fresh.start, fresh.end, &carried);
}

/*
 * Moves the piece old to a new piece of new_n pages, which begins at page to. The pages of the new
 * piece are free. If old is longer, only its first new_n pages move. A failure half-way (no memory,
 * a page that somebody holds, too many mappings) undoes the move. So the old pages become
 * inaccessible before their claims end: otherwise a thread could read zeros at the old place after
 * such a failure.
 */
static int relocate(struct fp_space *space, struct fp_piece old, uint32_t to, uint32_t new_n)
{
	struct fp_piece fresh = {.start = to,
	                         .end = to + new_n,
	                         .prot = PROT_READ | PROT_WRITE, /* UFFDIO_MOVE needs it */
	                         .flags = old.flags,
	                         .lazy = old.lazy};
	struct move m = {.space = space,
	                 .from = old.start,
	                 .to = to,
	                 .prot = old.prot,
	                 .n = FP_MIN(old.end - old.start, new_n)};
	int r = fp_space_cut_out(space, m.from, m.from + m.n);

	if (r < 0)
		return r;
	r = fp_space_add(space, fresh);
	if (r < 0) {
		fp_space_restore(space, m.from, m.from + m.n);
		return r;
	}
	r = move_pages(&m);
	if (r == 0)
		r = restore_prot(space, &old, fresh);
	if (r == 0)
		r = fp_space_open_range(space->far, m.from, m.n, PROT_NONE);
	if (r == 0)
		return leave_old(&m);
	undo(&m, fresh);
	return r;
}

/* ---- the call ---- */

/* The request, in pages, and what we found about it. */
struct plan {
	uint32_t start, end, new_n;
	uint32_t to; /* the new place, with FP_REMAP_FIXED */
	unsigned flags;
	struct fp_piece old; /* the piece to be remapped, cut to the request */
	uint64_t more;       /* slots needed beyond the reserved ones */
	uint64_t given;      /* slots that became free */
};

/*
 * -EFAULT, as mremap(2) has it for pages of several mappings. -ENOTSUP if they may be one mapping
 * of the program's, of which a part was locked or lent.
 */
static int several_pieces(struct fp_space *space, const struct plan *plan)
{
	uint32_t page = plan->start;
	bool is_foreign = false;

	while (page < plan->end) {
		const struct fp_piece *p = fp_layout_next(&space->layout, page);

		if (!p || p->start > page)
			return -EFAULT;
		is_foreign |= (p->flags & FP_PIECE_FOREIGN) != 0;
		page = p->end;
	}
	return is_foreign ? -ENOTSUP : -EFAULT;
}

/*
 * To the program, pieces are one mapping if they differ only in whether slots are reserved for
 * them. Joins those from the start of the request to end: no slots are reserved for them then.
 */
static int join_pieces(struct fp_space *space, const struct plan *plan, uint32_t end)
{
	const struct fp_piece_change ease = {.prot = -1, .ease = true};
	const struct fp_piece *first = fp_layout_next(&space->layout, plan->start), *p = first;
	uint32_t start = first->start, page = plan->start;
	uint64_t reserved = 0;
	int r;

	for (; page < end; p = fp_layout_next(&space->layout, page)) {
		if (!p || p->start > page || p->prot != first->prot || p->flags != first->flags ||
		    p->flags & FP_PIECE_FOREIGN)
			return several_pieces(space, plan);
		reserved += p->lazy ? 0 : p->end - p->start;
		page = p->end;
	}
	r = fp_layout_change(&space->layout, start, page, &ease);
	if (r == 0)
		fp_space_unback(space, reserved);
	return r;
}

/* Finds the piece of the request. What is kept of it must lie in one piece. */
static int find_piece(struct fp_space *space, struct plan *plan)
{
	const struct fp_piece *p = fp_layout_next(&space->layout, plan->start);
	uint32_t n = plan->end - plan->start, end = plan->start + FP_MIN(n, plan->new_n);
	int r = 0;

	if (!p || p->start > plan->start)
		return several_pieces(space, plan);
	if (n == 0) /* a second mapping of the same pages: only shared memory allows it */
		return -EINVAL;
	if (p->end < end)
		r = join_pieces(space, plan, end);
	if (r < 0)
		return r;
	p = fp_layout_next(&space->layout, plan->start);
	if (p->flags & FP_PIECE_FOREIGN)
		return -ENOTSUP;
	plan->old = *p;
	plan->old.start = plan->start;
	plan->old.end = end;
	return 0;
}

static uint32_t grows_by(const struct plan *plan)
{
	uint32_t n = plan->end - plan->start;

	return plan->new_n > n ? plan->new_n - n : 0;
}

/* Looks at the layout and counts the slots needed. */
static int look(struct fp_space *space, struct plan *plan)
{
	int r = find_piece(space, plan);

	if (r == 0)
		plan->more = plan->old.lazy ? 0 : grows_by(plan);
	return r;
}

static int move_to(struct fp_space *space, struct plan *plan)
{
	uint64_t base_page = (uintptr_t)space->far->base >> FP_PAGE_SHIFT;
	int r;

	if (plan->flags & FP_REMAP_FIXED)
		r = fp_space_remove(space, plan->to, plan->to + plan->new_n, &plan->given);
	else
		r = fp_layout_find(&space->layout, plan->new_n, 1, base_page, &plan->to);
	if (r < 0)
		return r;
	return relocate(space, plan->old, plan->to, plan->new_n);
}

static int carry_out(struct fp_space *space, struct plan *plan)
{
	uint32_t n = plan->end - plan->start;
	struct fp_piece behind = plan->old;
	int r = 0;

	/* first unmaps the part beyond new_n, even if the rest then moves */
	if (plan->new_n < n)
		r = fp_space_remove(space, plan->start + plan->new_n, plan->end, &plan->given);
	if (r < 0)
		return r;
	if (plan->flags & FP_REMAP_FIXED)
		return move_to(space, plan);
	plan->to = plan->start;
	if (plan->new_n <= n)
		return 0;
	behind.start = plan->end;
	behind.end = plan->start + plan->new_n;
	if (free_behind(&space->layout, plan->end, plan->new_n - n))
		return fp_space_add(space, behind);
	return plan->flags & FP_REMAP_MAYMOVE ? move_to(space, plan) : -ENOMEM;
}

/* Reserves the slots without the lock. Takes the lock if there is work. */
static int prepare(struct fp_space *space, struct plan *plan)
{
	for (;;) {
		uint64_t more = plan->more;
		int r = fp_space_back(space, more);

		if (r < 0)
			return -ENOMEM;
		fp_space_lock(space);
		r = look(space, plan);
		if (r == 0 && plan->more == more)
			return 0;
		fp_space_unlock(space);
		fp_space_unback(space, more);
		if (r < 0)
			return r;
	}
}

static int remap_pages(struct fp_space *space, struct plan *plan)
{
	int r = prepare(space, plan);

	if (r < 0)
		return r;
	r = carry_out(space, plan);
	fp_space_unlock(space);
	fp_space_unback(space, plan->given + (r < 0 ? plan->more : 0));
	return r;
}

/*
 * mremap of a foreign piece that stays in its place: keeps its length, or unmaps its end. All other
 * requests give -ENOTSUP.
 */
static int cut_foreign(struct fp_space *space, const struct fp_remap *what, void **ret_addr)
{
	bool stays = !(what->flags & FP_REMAP_FIXED);
	int r = -ENOTSUP;

	if (stays && what->new_len == what->old_len)
		r = 0;
	else if (stays && what->new_len < what->old_len)
		r = fp_space_unmap(space, (char *)what->old_addr + what->new_len,
		                   what->old_len - what->new_len);
	if (r == 0)
		*ret_addr = what->old_addr;
	return r;
}

static size_t page_round(size_t len)
{
	return (len + FP_PAGE_SIZE - 1) & ~(size_t)(FP_PAGE_SIZE - 1);
}

/* Checks the arguments in the same way as the kernel, before any look at mappings. */
static int check(const struct fp_remap *what)
{
	uintptr_t old = (uintptr_t)what->old_addr, new = (uintptr_t)what->new_addr;
	size_t old_len = page_round(what->old_len), new_len = page_round(what->new_len);

	if ((what->flags & FP_REMAP_FIXED) && !(what->flags & FP_REMAP_MAYMOVE))
		return -EINVAL;
	if (old % FP_PAGE_SIZE || new_len == 0 || new_len < what->new_len || old_len < what->old_len ||
	    new_len > NEW_LEN_MAX)
		return -EINVAL;
	if (!(what->flags & FP_REMAP_FIXED))
		return 0;
	if (new % FP_PAGE_SIZE || new + new_len < new || (old < new + new_len &&new < old + old_len))
		return -EINVAL;
	return 0;
}

/* Cuts the request to the far range, as nothing beyond it can be far memory. */
static int make_plan(struct fp_space *space, const struct fp_remap *what, struct plan *plan)
{
	size_t old_len = page_round(what->old_len), new_len = page_round(what->new_len);
	uint32_t to_end;
	int r = fp_space_to_pages(space, what->old_addr, old_len, &plan->start, &plan->end);

	if (r < 0)
		return -EFAULT;
	if (new_len >> FP_PAGE_SHIFT > space->far->n_pages)
		return -ENOMEM;
	plan->new_n = (uint32_t)(new_len >> FP_PAGE_SHIFT);
	plan->flags = what->flags;
	if ((what->flags & FP_REMAP_FIXED) &&
	    fp_space_to_pages(space, what->new_addr, new_len, &plan->to, &to_end) < 0)
		return -ENOTSUP;
	return 0;
}

int fp_space_remap_to(struct fp_space *space, const struct fp_remap *what, void **ret_addr)
{
	struct fp_remap rounded = *what;
	struct plan plan = {.more = 0};
	int r = check(what);

	if (r < 0)
		return r;
	rounded.old_len = page_round(what->old_len);
	rounded.new_len = page_round(what->new_len);
	if (!fp_space_owns(space, what->old_addr))
		return -ENOTSUP;
	r = make_plan(space, &rounded, &plan);
	if (r < 0)
		return r;
	r = remap_pages(space, &plan);
	if (r == -ENOTSUP)
		return cut_foreign(space, &rounded, ret_addr);
	if (r == 0)
		*ret_addr = fp_far_addr(space->far, plan.to);
	return r;
}
