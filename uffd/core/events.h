/*
 * What system calls past the C library did to the far range: userfaultfd tells of a mapping that
 * ended (munmap, mmap over it), and of one that moved (mremap). Room: uffd, inside.
 *
 * Whoever made the call waits in the kernel until its event is read, and may map something of its
 * own at the same place right after. From then on nothing of ours may reach there by address alone.
 * So:
 *
 *   - The reader notes an event where all agent threads see it, before it does anything else. The
 *     layout and the words follow later (space_events.c), by another thread.
 *   - What the kernel does not check against the registration by itself (UFFDIO_MOVE out of a page,
 *     MADV_DONTNEED, UFFDIO_REGISTER) is done in a *shared section*, and only to pages that are not
 *     noted.
 *   - Once there was an event, the reader reads only while no shared section is open.
 *     UFFDIO_COPY and its kin fail by EAGAIN as long as an event is pending.
 *   - Nobody waits for a fault in a shared section, as a fault may wait for the reader. So a thread
 *     goes through one on a local stack only (local_stack.h).
 */
#ifndef FP_EVENTS_H
#define FP_EVENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* More than the kernel lets a process have mappings, so that who holds the layout lock may take its
 * time. */
#define FP_EVENTS_MAX (1u << 17)

struct fp_far;
struct fp_uffd_fault;

struct fp_events {
	/* Pages [start, end), as start << 32 | end, were mapped by others, or by nobody, at some
	 * time since; 0: that has been followed. NULL: the kernel tells nothing. */
	_Atomic uint64_t *ring;
	_Atomic uint32_t in, out; /* in: the reader's; out: of who holds the layout lock */
	_Atomic uint32_t n_noted; /* so many so far */
	uint32_t own_pages;       /* from the range's start on: the agent's */
	uint64_t full_since_ns;   /* the reader's; 0: there is room */
	_Atomic bool seen;        /* there was an event */
	_Atomic bool closed;      /* no shared section may begin */
	_Atomic unsigned passing;
};

/* Before the threads start; the userfaultfd is open. 0 or -ENOMEM. */
int fp_events_init(struct fp_far *far, uint32_t own_pages);
void fp_events_done(struct fp_far *far);
/* In the child of a fork, whose userfaultfd is new: what is noted stays so. */
void fp_events_renew(struct fp_far *far);

/* ---- the reader ---- */

/* The calling thread is the one that reads the userfaultfd. */
void fp_events_be_reader(void);

/*
 * Reads up to max messages and notes what events are among them. Once there was an event it does
 * not block, and waits until no shared section is open. Their number; 0: none; negative errno.
 */
int fp_events_read(struct fp_far *far, struct fp_uffd_fault *ret_messages, unsigned max);

/* Notes an event that was read. False if it is none. Ends the process, with a message, where far
 * memory was moved: its bytes are not where the program believes them. */
bool fp_events_note(struct fp_far *far, const struct fp_uffd_fault *message);

/* True if as many events as can be read at once can be noted. Else the reader must not read. */
bool fp_events_has_room(const struct fp_far *far);

/*
 * Reads what is pending, as above. Faults that come before an event are woken: they come again. The
 * userfaultfd does not block from then on.
 */
void fp_events_pump(struct fp_far *far);

/* Any thread: waits a little for whoever made a system call to go on, after EAGAIN. The reader
 * reads. */
void fp_events_wait(struct fp_far *far);

/* ---- agent threads ---- */

/* True once there was one: there may be more at any time. */
static inline bool fp_events_seen(const struct fp_events *ev)
{
	return atomic_load_explicit(&ev->seen, memory_order_relaxed);
}

static inline bool fp_events_any(const struct fp_events *ev)
{
	return atomic_load(&ev->in) != atomic_load(&ev->out);
}

/* A shared section: short, and never waits for the reader. On a local stack. */
void fp_events_enter(struct fp_events *events);
void fp_events_leave(struct fp_events *events);

/* True if a page of [start, end) is noted. */
bool fp_events_touch(const struct fp_events *events, uint32_t start, uint32_t end);
/* The first stretch of [*start, *end) of which no page is noted, in place; false: there is none. */
bool fp_events_own_stretch(const struct fp_events *events, uint32_t *start, uint32_t *end);

/*
 * Waits until what was read is noted: who made a system call, and goes on, must not meet an agent
 * that does not know of it. Before a layout call; before a fault that is served in the thread that
 * meets it.
 */
void fp_events_sync(const struct fp_events *events);

/* ---- under the layout lock ---- */

/* The next of what is noted, at *at or after, in place; the first from events->out on. False:
 * none. */
bool fp_events_next(const struct fp_events *events, uint32_t *at, uint32_t *ret_start, uint32_t *ret_end);
/* It has been followed. False: it has grown meanwhile, and is to be followed again. */
bool fp_events_drop(struct fp_events *events, uint32_t at, uint32_t start, uint32_t end);

#endif
