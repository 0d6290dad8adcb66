/*
 * The circuit breaker of a node: what a failure, a deadline, an attempt do to it, and when the next
 * attempt is due. Room: store. Pure: words and times in, words and times out; no clock, thread or
 * descriptor.
 *
 *              FAIL                  TRY
 *   CLOSED ───────────► OPEN ─────────────────► HALF_OPEN        any but LOST ── GONE ──► LOST, for good
 *      ▲                  ▲        REFUSED          │            OPEN, HALF_OPEN ── WAITED ──► the same,
 * spent │                  └─────────────────────────┤ └────────────────── RESUMED, epoch + 1 ──────┘
 *
 * The whole state is one word, so that many threads may read and step it by compare-and-swap. Its
 * epoch counts the resumes: what still fails of an earlier epoch says nothing about this one.
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
	FP_BREAKER_WAITED,  /* a page waited for it until its patience was over */
	FP_BREAKER_GONE,    /* there is nothing to come back to */
};

#define FP_BREAKER_NEW 0ull /* closed, epoch 0 */

static inline enum fp_breaker_state fp_breaker_state(uint64_t word)
{
	return (enum fp_breaker_state)(word & 3);
}

/* A page waited in vain: nobody need wait any more, until an attempt succeeds. */
static inline bool fp_breaker_spent(uint64_t word)
{
	return word & 4;
}

static inline uint64_t fp_breaker_epoch(uint64_t word)
{
	return word >> 8;
}

/* The word after an event; the same word where the event means nothing. epoch: of what failed (FAIL
 * alone).
 */
uint64_t fp_breaker_step(uint64_t word, enum fp_breaker_event event, uint64_t epoch);

/* The word of a forked child, whose own session is still to be opened: cut off, unless the node is
 * lost. */
uint64_t fp_breaker_inherit(uint64_t word);

/* How a node that is cut off is reached again. Of each, 0 is the default. */
struct fp_reconnect_options {
	uint64_t
	    missed_heartbeats; /* so many in a row open the breaker; a connection that broke does at once */
	uint64_t backoff_first_ns; /* after the first attempt failed; doubles from there */
	uint64_t backoff_max_ns;   /* but for jitter: 25 % more or less */
};

#define FP_MISSED_HEARTBEATS 1u
#define FP_BACKOFF_FIRST_NS  50000000ull
#define FP_BACKOFF_MAX_NS    2000000000ull
#define FP_BACKOFF_STABLE_NS 1000000000ull /* a resume that held so long was a good one */
#define FP_BACKOFF_FLAP      2u            /* attempts that a resume that was not counts for at most */
#define FP_BACKOFF_MARGIN_NS 5000000000ull /* the node may notice later than we do */

/* When attempts are due. Zero-initialise, but for the options. Times are of one clock, in ns. */
struct fp_backoff {
	struct fp_reconnect_options options;
	uint64_t next_ns;    /* the next attempt */
	uint64_t give_up_ns; /* the grace is over */
	uint64_t closed_ns;  /* the last resume; 0: none yet */
	unsigned n_failed;   /* attempts since one held */
};

/*
 * The breaker has opened, of a node that is waited for as long as wait_ns (UINT64_MAX: for ever).
 * The first attempt is due at once, unless the last resume did not even hold for
 * FP_BACKOFF_STABLE_NS: then it counts as one more that failed, but FP_BACKOFF_FLAP at most, as a
 * node that resumes is there.
 */
void fp_backoff_opened(struct fp_backoff *backoff, uint64_t now_ns, uint64_t wait_ns, uint64_t random);
/* The node was heard of: the time that it is waited for begins anew. */
void fp_backoff_heard(struct fp_backoff *backoff, uint64_t now_ns, uint64_t wait_ns);
/* An attempt failed. random: any 64 bits. */
void fp_backoff_refused(struct fp_backoff *backoff, uint64_t now_ns, uint64_t random);
/* An attempt succeeded. */
void fp_backoff_resumed(struct fp_backoff *backoff, uint64_t now_ns);

#endif
