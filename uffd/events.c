/* See events.h. The reader's part is on the fault path: nothing here allocates but init (law 4). */
#include "events.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "far.h"
#include "lockedmem.h"

#define EXIT_REFUSED 125
#define CLOSE_YIELDS 2000u
#define RING_BYTES   (FP_EVENTS_MAX * sizeof(struct fp_gone))

static __thread bool is_reader __attribute__((tls_model("initial-exec")));

int fp_events_init(struct fp_far *far, uint32_t own_pages)
{
	far->events.own_pages = own_pages;
	if (!far->uffd.has_events)
		return 0;
	far->events.ring = fp_lockedmem_new(RING_BYTES);
	return far->events.ring ? 0 : -ENOMEM;
}

void fp_events_done(struct fp_far *far)
{
	fp_lockedmem_free(far->events.ring, RING_BYTES);
	far->events.ring = NULL;
}

void fp_events_renew(struct fp_far *far)
{
	atomic_store(&far->events.careful, false);
	atomic_store(&far->events.closed, false);
	atomic_store(&far->events.passing, 0);
}

/* ---- passages ---- */

static void wait_until_open(const struct fp_events *ev)
{
	while (atomic_load(&ev->closed))
		sched_yield();
}

/* Sequentially consistent against close_passages: either it sees us inside, or we see that it is closed. */
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

/* False: somebody is inside for long, perhaps because a fault of his own waits for us (a stack in far
 * memory). */
static bool close_passages(struct fp_events *ev)
{
	atomic_store(&ev->closed, true);
	for (unsigned i = 0; i < CLOSE_YIELDS; i++) {
		if (!atomic_load(&ev->passing))
			return true;
		sched_yield();
	}
	atomic_store(&ev->closed, false);
	return false;
}

static void open_passages(struct fp_events *ev)
{
	atomic_store(&ev->closed, false);
}

/* ---- what is noted ---- */

bool fp_events_touch(const struct fp_events *ev, uint32_t start, uint32_t end)
{
	for (uint32_t i = atomic_load(&ev->out), in = atomic_load(&ev->in); i != in; i++) {
		const struct fp_gone *g = &ev->ring[i % FP_EVENTS_MAX];

		if (atomic_load(&g->start) < end && atomic_load(&g->end) > start)
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

bool fp_events_first(const struct fp_events *ev, uint32_t *ret_start, uint32_t *ret_end)
{
	uint32_t out = atomic_load(&ev->out);
	const struct fp_gone *g;

	if (out == atomic_load(&ev->in))
		return false;
	g = &ev->ring[out % FP_EVENTS_MAX];
	*ret_start = atomic_load(&g->start);
	*ret_end = atomic_load(&g->end);
	return true;
}

void fp_events_drop_first(struct fp_events *ev)
{
	atomic_fetch_add(&ev->out, 1);
}

/* ---- the reader ---- */

void fp_events_be_reader(void)
{
	is_reader = true;
}

static void be_careful(struct fp_far *far)
{
	if (!atomic_exchange(&far->events.careful, true))
		(void)fp_uffd_set_nonblock(&far->uffd, true);
}

static _Noreturn void stop(const char *text)
{
	(void)!write(STDERR_FILENO, text, strlen(text));
	_exit(EXIT_REFUSED);
}

static void note_unmapped(struct fp_far *far, uint64_t start, uint64_t end)
{
	uint64_t base = (uintptr_t)far->base, limit = base + (far->n_pages << FP_PAGE_SHIFT);
	uint32_t in = atomic_load(&far->events.in);
	struct fp_gone *g = &far->events.ring[in % FP_EVENTS_MAX];

	if (start >= limit || end <= base) /* what was moved out of the range before the process is stopped */
		return;
	if (start < base + ((uint64_t)far->events.own_pages << FP_PAGE_SHIFT))
		stop("farpage: a bare system call (munmap, mmap) unmapped memory of the far memory's own "
		     "agent: "
		     "this process can't go on\n");
	atomic_store(&g->start, fp_far_page(far, start));
	atomic_store(&g->end, fp_far_page(far, FP_MIN(end, limit)));
	atomic_store(&far->events.in, in + 1);
}

bool fp_events_note(struct fp_far *far, const struct fp_uffd_fault *m)
{
	if (m->change == FP_UFFD_NONE)
		return false;
	if (m->change == FP_UFFD_MOVED)
		stop("farpage: a bare system call (mremap) moved far memory, past the C library: what is "
		     "remote "
		     "of it can't follow, and the process ends here rather than read wrong bytes. Use the C "
		     "library's mremap, or keep this program's memory local (--heap none)\n");
	be_careful(far);
	note_unmapped(far, m->addr, m->end);
	fp_room_kick(&far->room); /* the reclaim thread follows */
	return true;
}

bool fp_events_has_room(const struct fp_far *far)
{
	return atomic_load(&far->events.in) - atomic_load(&far->events.out) <=
	       FP_EVENTS_MAX - FP_UFFD_READ_MAX;
}

static int read_pending(struct fp_far *far)
{
	struct fp_uffd_fault m[FP_UFFD_READ_MAX];
	int n = fp_uffd_read(&far->uffd, m, FP_UFFD_READ_MAX);

	for (int i = 0; i < n; i++)
		(void)fp_events_note(far, &m[i]);
	for (int i = 0; i < n; i++)
		if (m[i].change == FP_UFFD_NONE)
			fp_uffd_wake(&far->uffd, (void *)(uintptr_t)m[i].addr, FP_PAGE_SIZE);
	return n;
}

bool fp_events_pump(struct fp_far *far)
{
	bool has_room = fp_events_has_room(far);
	int n = 0;

	be_careful(far);
	if (has_room && !close_passages(&far->events))
		return false;
	if (has_room) {
		n = read_pending(far);
		open_passages(&far->events);
	}
	if (n <= 0) /* it was read, and the thread that waits has yet to go on */
		sched_yield();
	return true;
}

void fp_events_wait(struct fp_far *far)
{
	if (is_reader && far->events.ring)
		(void)fp_events_pump(far);
	else
		sched_yield();
}
