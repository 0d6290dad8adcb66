/*
 * Follows system calls that bypass the C library (events.h), so that the layout and the words are
 * true again. Room: uffd/space; see space_priv.h.
 *
 * If such a call unmapped pages, or mapped others over them, they are foreign from then on: the
 * kernel's alone. The next holder of the lock follows the call, so that no layout call works on a
 * false layout. Or the reclaim thread does, which must not wait for pages that it may own itself.
 */
#include "space_priv.h"

#include <errno.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "presence.h"
#include "clock.h"

#define TAKE_BACK_MIN 512u /* pages: smaller holes are not looked for */

static bool make_foreign(struct fp_space *space, uint32_t start, uint32_t end)
{
	const struct fp_piece piece = {.start = start, .end = end, .flags = FP_PIECE_FOREIGN, .lazy = true};
	uint64_t reserved;

	if (fp_layout_remove(&space->layout, start, end, &reserved) < 0)
		return false;
	fp_space_unback(space, reserved);
	fp_space_publish(space);
	return fp_layout_add(&space->layout, piece) == 0;
}

/* Repeated until it succeeds. If it fails (by a limit of the kernel), the pages stay noted and no
 * agent thread touches them. Waiters fault again, and the kernel serves them. */
static bool follow(struct fp_space *space, uint32_t start, uint32_t end, bool waits)
{
	struct fp_far *far = space->far;
	size_t len = (size_t)(end - start) << FP_PAGE_SHIFT;

	if (!make_foreign(space, start, end) || !fp_space_end_filled(space, start, end))
		return false;
	/* fails for unmapped pages; succeeds if kernel-filled memory ended there in the meantime */
	(void)fp_uffd_unregister(&far->uffd, fp_far_addr(far, start), len);
	if (!fp_space_forget(space, start, end, waits))
		return false;
	fp_uffd_wake(&far->uffd, fp_far_addr(far, start), len);
	return true;
}

static bool follow_all(struct fp_space *space, bool waits)
{
	struct fp_events *events = &space->far->events;
	uint32_t at = atomic_load(&events->out), start, end;
	bool all = true;

	while (fp_events_next(events, &at, &start, &end)) {
		bool followed = follow(space, start, end, waits);

		all &= followed;
		at += !followed || fp_events_drop(events, at, start, end);
	}
	return all;
}

bool fp_space_follow(struct fp_space *space)
{
	struct fp_events *events = &space->far->events;

	if (fp_events_seen(events))
		fp_events_sync(events);
	return !fp_events_any(events) || follow_all(space, true);
}

bool fp_space_try_follow(struct fp_space *space)
{
	bool done;

	if (pthread_mutex_trylock(&space->lock) != 0)
		return true;
	done = follow_all(space, false);
	pthread_mutex_unlock(&space->lock);
	return !done;
}

/* ---- holes ---- */

static bool has_hole(const struct fp_far *far, uint32_t start, uint32_t end)
{
	return fp_presence_has_hole(fp_far_addr(far, start), (size_t)(end - start) << FP_PAGE_SHIFT);
}

static bool far_has_hole(struct fp_space *space, uint32_t start, uint32_t end)
{
	const struct fp_piece *p;
	bool found = false;

	fp_space_lock_anyway(space);
	for (p = fp_layout_after(&space->layout, start); !found && p && p->start < end;
	     p = fp_layout_after(&space->layout, p->end))
		found = has_hole(space->far, FP_MAX(p->start, start), FP_MIN(p->end, end));
	fp_space_unlock(space);
	return found;
}

uint32_t fp_space_followed(const struct fp_space *space)
{
	return atomic_load(&space->far->events.n_noted);
}

bool fp_space_learn(struct fp_space *space, uint32_t start, uint32_t end, uint32_t followed)
{
	uint64_t until_ns = fp_clock_ns() + space->far->deadline_ns;

	if (!space->far->uffd.has_events)
		return false;
	while (far_has_hole(space, start, end)) {
		if (fp_clock_ns() > until_ns)
			return false;
		fp_space_pause();
	}
	return fp_space_followed(space) != followed;
}

static bool plug(struct fp_space *space, uint32_t start, uint32_t end)
{
	char *addr = fp_far_addr(space->far, start);
	size_t len = (size_t)(end - start) << FP_PAGE_SHIFT;
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
	void *p = mmap(addr, len, PROT_NONE, flags, -1, 0);
	uint64_t none;

	if (p == MAP_FAILED)
		return false;
	if (p != addr) /* a kernel before 4.17 */
		munmap(p, len);
	return p == addr && fp_space_close(space, start, end) == 0 &&
	       fp_layout_remove(&space->layout, start, end, &none) == 0;
}

/* Only the kernel knows which addresses are in use, so all are tried, and then halves. */
static bool plug_what_is_empty(struct fp_space *space, uint32_t start, uint32_t end)
{
	uint32_t middle = start + (end - start) / 2;

	if (plug(space, start, end))
		return true;
	if (end - start < 2 * TAKE_BACK_MIN)
		return false;
	return plug_what_is_empty(space, start, middle) | plug_what_is_empty(space, middle, end);
}

/* The last resort. A program that unmapped a place by a bare call may map there again in the same
 * way. We would not see that while the place is ours but not registered yet. */
bool fp_space_take_back(struct fp_space *space)
{
	const struct fp_piece *p;
	uint32_t page = 0;
	bool any = false;

	if (!fp_events_seen(&space->far->events))
		return false;
	while ((p = fp_layout_next(&space->layout, page))) {
		page = p->end;
		if (p->flags & FP_PIECE_FOREIGN)
			any |= plug_what_is_empty(space, p->start, p->end);
	}
	return any;
}
