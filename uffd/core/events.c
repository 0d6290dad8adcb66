/* See events.h. The reader's part is on the fault path: nothing here allocates but init (law 4). */
#include "events.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>

#include "cleanup.h"
#include "clock.h"
#include "end.h"
#include "far.h"
#include "lockedmem.h"

#define RING_BYTES (FP_EVENTS_MAX * sizeof(uint64_t))

static __thread bool is_reader __attribute__((tls_model("initial-exec")));

int fp_events_init(struct fp_far *far, uint32_t own_pages)
{
	far->events.own_pages = own_pages;
	if (!far->uffd.has_events)
		return 0;
	far->events.ring = fp_lockedmem_lazy(RING_BYTES);
	return far->events.ring ? 0 : -ENOMEM;
}

void fp_events_done(struct fp_far *far)
{
	fp_lockedmem_free((void *)far->events.ring, RING_BYTES);
	far->events.ring = NULL;
}

void fp_events_renew(struct fp_far *far)
{
	atomic_store(&far->events.seen, false);
	atomic_store(&far->events.closed, false);
	atomic_store(&far->events.passing, 0);
}

/* ---- shared sections ---- */

static void wait_until_open(const struct fp_events *ev)
{
	while (atomic_load(&ev->closed))
		sched_yield();
}

/* Sequentially consistent against close_sections: either it sees us inside, or we see it closed. */
void fp_events_enter(struct fp_events *ev)
{
	for (;;) {
		atomic_fetch_add(&ev->passing, 1);
		if (!atomic_load(&ev->closed))
			return;
		atomic_fetch_sub(&ev->passing, 1);
		wait_until_open(ev);
	}
}

void fp_events_leave(struct fp_events *ev)
{
	atomic_fetch_sub(&ev->passing, 1);
}

/* A thread inside waits for nothing but the kernel. */
static void close_sections(struct fp_events *ev)
{
	atomic_store(&ev->closed, true);
	while (atomic_load(&ev->passing))
		sched_yield();
}

static void open_sections(struct fp_events *ev)
{
	atomic_store(&ev->closed, false);
}

/* ---- notes ---- */

static uint64_t pack(uint32_t start, uint32_t end)
{
	return (uint64_t)start << 32 | end;
}

static uint32_t start_of(uint64_t note)
{
	return (uint32_t)(note >> 32);
}

static uint32_t end_of(uint64_t note)
{
	return (uint32_t)note;
}

static _Atomic uint64_t *note_at(const struct fp_events *ev, uint32_t at)
{
	return &ev->ring[at % FP_EVENTS_MAX];
}

bool fp_events_touch(const struct fp_events *ev, uint32_t start, uint32_t end)
{
	for (uint32_t i = atomic_load(&ev->out), in = atomic_load(&ev->in); i != in; i++) {
		uint64_t note = atomic_load(note_at(ev, i));

		if (start_of(note) < end && end_of(note) > start)
			return true;
	}
	return false;
}

bool fp_events_own_stretch(const struct fp_events *ev, uint32_t *start, uint32_t *end)
{
	uint32_t first = *start, last;

	do { /* a note may come between */
		while (first < *end && fp_events_touch(ev, first, first + 1))
			first++;
		if (first == *end)
			return false;
		last = *end;
		while (last > first + 1 && fp_events_touch(ev, first, last))
			last = first + (last - first + 1) / 2;
	} while (fp_events_touch(ev, first, last));
	*start = first;
	*end = last;
	return true;
}

void fp_events_sync(const struct fp_events *ev)
{
	wait_until_open(ev);
}

bool fp_events_next(const struct fp_events *ev, uint32_t *at, uint32_t *ret_start, uint32_t *ret_end)
{
	for (uint32_t in = atomic_load(&ev->in); *at != in; ++*at) {
		uint64_t note = atomic_load(note_at(ev, *at));

		if (!note)
			continue;
		*ret_start = start_of(note);
		*ret_end = end_of(note);
		return true;
	}
	return false;
}

bool fp_events_drop(struct fp_events *ev, uint32_t at, uint32_t start, uint32_t end)
{
	uint64_t note = pack(start, end);
	uint32_t out = atomic_load(&ev->out);

	if (!atomic_compare_exchange_strong(note_at(ev, at), &note, 0))
		return false;
	while (out != atomic_load(&ev->in) && !atomic_load(note_at(ev, out)))
		out++;
	atomic_store(&ev->out, out);
	return true;
}

/* ---- the reader ---- */

void fp_events_be_reader(void)
{
	is_reader = true;
}

static void note_first(struct fp_far *far)
{
	if (!atomic_exchange(&far->events.seen, true))
		(void)fp_uffd_set_nonblock(&far->uffd, true);
}

/* Memory that is unmapped piece by piece becomes one note, until that note is followed. */
static bool join_newest(struct fp_events *ev, uint32_t start, uint32_t end)
{
	uint32_t in = atomic_load(&ev->in);
	uint64_t old, joined;

	if (in == atomic_load(&ev->out) || !(old = atomic_load(note_at(ev, in - 1))))
		return false;
	if (end_of(old) != start && start_of(old) != end)
		return false;
	joined = pack(FP_MIN(start, start_of(old)), FP_MAX(end, end_of(old)));
	return atomic_compare_exchange_strong(note_at(ev, in - 1), &old, joined);
}

static void add_note(struct fp_events *ev, uint32_t start, uint32_t end)
{
	uint32_t in = atomic_load(&ev->in);

	if (!join_newest(ev, start, end)) {
		atomic_store(note_at(ev, in), pack(start, end));
		atomic_store(&ev->in, in + 1);
	}
	atomic_fetch_add(&ev->n_noted, 1);
}

static void note_unmapped(struct fp_far *far, uint64_t start, uint64_t end)
{
	uint64_t base = (uintptr_t)far->base, limit = base + (far->n_pages << FP_PAGE_SHIFT);

	if (start >= limit || end <= base) /* moved out of the range, just before the process ends */
		return;
	if (start < base + ((uint64_t)far->events.own_pages << FP_PAGE_SHIFT))
		fp_end_refused("events",
		               "a bare system call (munmap, mmap) unmapped memory of the far memory's own "
		               "agent: this process can't go on. Unmap by the C library, and only what the "
		               "program has mapped itself");
	add_note(&far->events, fp_far_page(far, start), fp_far_page(far, FP_MIN(end, limit)));
}

bool fp_events_note(struct fp_far *far, const struct fp_uffd_fault *m)
{
	if (m->change == FP_UFFD_NONE)
		return false;
	if (m->change == FP_UFFD_MOVED)
		fp_end_refused("events",
		               "a bare system call (mremap) moved far memory, past the C library: what is "
		               "remote of it can't follow, and the process ends here rather than read wrong "
		               "bytes. Use the C library's mremap, or keep this program's memory local "
		               "(--heap none)");
	note_first(far);
	note_unmapped(far, m->addr, m->end);
	fp_budget_kick(&far->budget); /* the reclaim thread follows the note */
	return true;
}

bool fp_events_has_room(const struct fp_far *far)
{
	return atomic_load(&far->events.in) - atomic_load(&far->events.out) <=
	       FP_EVENTS_MAX - FP_UFFD_READ_MAX;
}

/* The threads that made the system calls wait meanwhile. Notes are followed within moments, unless
 * the kernel refuses what that takes. */
static void wait_for_room(struct fp_far *far)
{
	struct fp_events *ev = &far->events;

	if (ev->full_since_ns == 0)
		ev->full_since_ns = fp_clock_ns();
	if (fp_clock_ns() - ev->full_since_ns > far->deadline_ns)
		fp_end_refused("events",
		               "too many bare system calls (munmap, mmap) on far memory that can't be "
		               "followed, as the process has as many mappings as the kernel allows: it can't "
		               "go on. Raise vm.max_map_count (sysctl)");
	fp_budget_kick(&far->budget);
	sched_yield();
}

static bool may_note(struct fp_far *far)
{
	if (fp_events_has_room(far)) {
		far->events.full_since_ns = 0;
		return true;
	}
	wait_for_room(far);
	return false;
}

static bool is_readable(const struct fp_far *far)
{
	struct pollfd fd = {.fd = far->uffd.fd, .events = POLLIN};

	return poll(&fd, 1, 0) > 0;
}

static int read_and_note(struct fp_far *far, struct fp_uffd_fault *ret_messages, unsigned max)
{
	int n = fp_uffd_read(&far->uffd, ret_messages, max);

	/* first of all: the thread that made the system call runs already */
	for (int i = 0; i < n; i++)
		(void)fp_events_note(far, &ret_messages[i]);
	return n;
}

int fp_events_read(struct fp_far *far, struct fp_uffd_fault *ret_messages, unsigned max)
{
	int n;

	if (!fp_events_seen(&far->events))
		return read_and_note(far, ret_messages, max);
	if (!may_note(far) || !is_readable(far))
		return 0;
	close_sections(&far->events);
	n = read_and_note(far, ret_messages, max);
	open_sections(&far->events);
	return n;
}

void fp_events_pump(struct fp_far *far)
{
	struct fp_uffd_fault m[FP_UFFD_READ_MAX];
	int n;

	note_first(far);
	n = fp_events_read(far, m, FP_UFFD_READ_MAX);
	for (int i = 0; i < n; i++)
		if (m[i].change == FP_UFFD_NONE)
			fp_uffd_wake(&far->uffd, (void *)(uintptr_t)m[i].addr, FP_PAGE_SIZE);
	if (n <= 0) /* it was read, but its thread does not run yet */
		sched_yield();
}

void fp_events_wait(struct fp_far *far)
{
	if (is_reader && far->events.ring)
		fp_events_pump(far);
	else
		sched_yield();
}
