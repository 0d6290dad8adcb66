/*
 * The circuit breaker of a node: how failures, deadlines and attempts change it, and when the next
 * attempt is due. Room: store. Only pure functions: they take and return words and times, and use
 * no clock, thread or descriptor.
 *
 *              FAIL                   TRY
 *   CLOSED ───────────► OPEN ───────────────────► HALF_OPEN
 *      ▲                  ▲         REFUSED           │
 *      │                  └───────────────────────────┤
 *      └────────────── RESUMED, epoch + 1 ────────────┘
 *
 *   any but LOST ──── GONE ────► LOST, for good
 *   OPEN, HALF_OPEN ─ WAITED ──► the same state, but spent
 *
 * The whole state is one word, so that many threads may read and step it by compare-and-swap. Its
 * epoch counts the resumes: failures of an earlier epoch say nothing about this one.
 */
#ifndef FP_BREAKER_H
#define FP_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

enum fp_breaker_state { FP_BREAKER_CLOSED, FP_BREAKER_OPEN, FP_BREAKER_HALF_OPEN, FP_BREAKER_LOST };

enum fp_breaker_event {
	FP_BREAKER_FAIL,    /* a call, a link or a heartbeat of an epoch failed */
	FP_BREAKER_TRY,     /* an attempt begins */
	FP_BREAKER_REFUSED, /* it failed */
	FP_BREAKER_RESUMED, /* it succeeded */
	FP_BREAKER_WAITED,  /* a page's patience with the node is over */
	FP_BREAKER_GONE,    /* no session is left to resume */
};

#define FP_BREAKER_NEW 0ull /* closed, epoch 0 */

static inline enum fp_breaker_state fp_breaker_state(uint64_t word)
{
	return (enum fp_breaker_state)(word & 3);
}

/*
 * True if the breaker is spent: one page waited until its patience was over. Later pages do not
 * wait, until an attempt to resume the session succeeds.
 */
static inline bool fp_breaker_spent(uint64_t word)
{
	return word & 4;
}

static inline uint64_t fp_breaker_epoch(uint64_t word)
{
	return word >> 8;
}

/*
 * Returns the word after an event, or the same word if the event has no meaning in this state.
 * epoch is used for FAIL alone: it is the epoch that failed.
 */
uint64_t fp_breaker_step(uint64_t word, enum fp_breaker_event event, uint64_t epoch);

/*
 * The word for a forked child, which has no session of its own yet: the node is cut off, or still
 * lost.
 */
uint64_t fp_breaker_inherit(uint64_t word);

/* How the node is reached again after a cut. A member that is 0 means its default. */
struct fp_reconnect_options {
	uint64_t missed_heartbeats; /* this many missed in a row open the breaker */
	uint64_t backoff_first_ns;  /* delay after the first failed attempt; doubles each time */
	uint64_t backoff_max_ns;    /* longest delay; then jitter adds or removes up to 25 % */
};

#define FP_MISSED_HEARTBEATS 1u
#define FP_BACKOFF_FIRST_NS  50000000ull
#define FP_BACKOFF_MAX_NS    2000000000ull
#define FP_BACKOFF_STABLE_NS 1000000000ull /* a session that lasts this long after its resume is stable */
#define FP_BACKOFF_FLAP      2u            /* limit of n_failed after an unstable resume */
/*
 * Attempts go on for this long after the wait is over, because the node may notice a break later
 * than we do. Its grace begins only then.
 */
#define FP_BACKOFF_MARGIN_NS 5000000000ull

/* When attempts are due. Zero-initialise all but options. Times are of one clock, in ns. */
struct fp_backoff {
	struct fp_reconnect_options options;
	uint64_t next_ns;    /* when the next attempt is due */
	uint64_t give_up_ns; /* when the grace is over */
	uint64_t closed_ns;  /* when the last resume was; 0: there was none yet */
	unsigned n_failed;   /* failed attempts since the last stable resume */
};

/*
 * The breaker has opened. From now on we try for at most wait_ns (UINT64_MAX: for ever). The first
 * attempt is due at once, unless the last resume was unstable. An unstable resume counts as one
 * more failed attempt. After it, at most FP_BACKOFF_FLAP failed attempts count, because a node that
 * can resume is not dead.
 */
void fp_backoff_opened(struct fp_backoff *backoff, uint64_t now_ns, uint64_t wait_ns, uint64_t random);
/* The node has answered: wait_ns begins anew. */
void fp_backoff_heard(struct fp_backoff *backoff, uint64_t now_ns, uint64_t wait_ns);
/* An attempt failed. random: any 64 bits. */
void fp_backoff_refused(struct fp_backoff *backoff, uint64_t now_ns, uint64_t random);
/* An attempt succeeded. */
void fp_backoff_resumed(struct fp_backoff *backoff, uint64_t now_ns);

#endif
