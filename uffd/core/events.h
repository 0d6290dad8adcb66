/*
 * Follows what bare calls do to the far range. userfaultfd reports a mapping that ended (munmap, or
 * mmap over it) and one that moved (mremap). Room: uffd/core.
 *
 * The caller waits in the kernel until its event is read. Right after, it may map something of its
 * own at the same place. From then on our code must not touch that place by address alone. So:
 *
 *   - The reader first notes an event where all agent threads see it. Another thread updates the
 *     layout and the words later (space_events.c).
 *   - The kernel does not check UFFDIO_MOVE out of a page, MADV_DONTNEED and UFFDIO_REGISTER
 *     against the registration. They are done in a *shared section*, and only to pages that are not
 *     noted.
 *   - After the first event, the reader reads only while no shared section is open. UFFDIO_COPY and
 *     its kin fail with EAGAIN as long as an event is pending.
 *   - Nobody waits for a fault in a shared section, as a fault may wait for the reader. So a thread
 *     enters one only on a local stack (local_stack.h).
 */
#ifndef FP_EVENTS_H
#define FP_EVENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * More than a process may have mappings, so a thread that holds the layout lock may take its time.
 */
#define FP_EVENTS_MAX (1u << 17)

struct fp_far;
struct fp_uffd_fault;

struct fp_events {
	/* Notes, as start << 32 | end: since then, pages [start, end) may be another's or unmapped.
	 * 0: followed already. NULL: the kernel reports no events. */
	_Atomic uint64_t *ring;
	_Atomic uint32_t in, out; /* in: the reader's; out: the layout lock's */
	_Atomic uint32_t n_noted; /* notes since the start */
	uint32_t own_pages;       /* the agent's own, at the range's start */
	uint64_t full_since_ns;   /* the reader's; 0: the ring is not full */
	_Atomic bool seen;        /* there was an event */
	_Atomic bool closed;      /* no shared section may begin */
	_Atomic unsigned passing;
};

/* Called before the threads start, with the userfaultfd open. 0 or -ENOMEM. */
int fp_events_init(struct fp_far *far, uint32_t own_pages);
void fp_events_done(struct fp_far *far);
/* Called in the child of a fork, which has a new userfaultfd. Notes stay. */
void fp_events_renew(struct fp_far *far);

/* ---- the reader ---- */

/* The calling thread is the one that reads the userfaultfd. */
void fp_events_be_reader(void);

/* Reads up to max messages and notes the events among them. After the first event it does not
 * block, and waits until no shared section is open. Their number; 0: none; negative errno. */
int fp_events_read(struct fp_far *far, struct fp_uffd_fault *ret_messages, unsigned max);

/* Notes an event that was read. False if it is none. Ends the process with a message if far memory
 * was moved: its bytes are not where the program expects them. */
bool fp_events_note(struct fp_far *far, const struct fp_uffd_fault *message);

/*
 * True if the ring has room for as many events as one read returns. Else the reader must not read.
 */
bool fp_events_has_room(const struct fp_far *far);

/* Reads what is pending, as above. Wakes the faults that were read with an event: they come again.
 * From then on the userfaultfd does not block. */
void fp_events_pump(struct fp_far *far);

/* After EAGAIN, waits a little for the thread whose system call is under way. In the reader, it
 * reads. Any thread. */
void fp_events_wait(struct fp_far *far);

/* ---- agent threads ---- */

/* True after the first event: another may come at any time. */
static inline bool fp_events_seen(const struct fp_events *ev)
{
	return atomic_load_explicit(&ev->seen, memory_order_relaxed);
}

static inline bool fp_events_any(const struct fp_events *ev)
{
	return atomic_load(&ev->in) != atomic_load(&ev->out);
}

/* A shared section. It is short, never waits for the reader, and runs on a local stack. */
void fp_events_enter(struct fp_events *events);
void fp_events_leave(struct fp_events *events);

/* True if a page of [start, end) is noted. */
bool fp_events_touch(const struct fp_events *events, uint32_t start, uint32_t end);
/* Narrows [*start, *end) to its first stretch without a noted page. False: there is none. */
bool fp_events_own_stretch(const struct fp_events *events, uint32_t *start, uint32_t *end);

/*
 * Waits until all events read so far are noted. A thread that returns from its bare call must not
 * meet an agent that does not know of it. Called before a layout call, and before a fault is served
 * in the faulting thread.
 */
void fp_events_sync(const struct fp_events *events);

/* ---- under the layout lock ---- */

/* Finds the next note at *at or later, and sets *at to it. Begin with events->out. False: none. */
bool fp_events_next(const struct fp_events *events, uint32_t *at, uint32_t *ret_start, uint32_t *ret_end);
/* The note has been followed. False: it has grown meanwhile, so follow it again. */
bool fp_events_drop(struct fp_events *events, uint32_t at, uint32_t start, uint32_t end);

#endif
