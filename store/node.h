/*
 * One memory node as the store sees it: the ways to it, its session, its breaker, and counters.
 * Room: store.
 *
 *   epoch   a session of the node from one resume to the next. It outlives its end until the last link that
 *         some idle lane still has of it is closed. What a session over shm lent outlives both: it
 *         is mapped.
 */
#ifndef FP_NODE_H
#define FP_NODE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "breaker.h"
#include "slots.h"
#include "transport.h"

struct fp_shared_slots;

struct fp_session_epoch {
	struct fp_session *session;
	uint64_t number;
	unsigned n_refs; /* its open links, and one while it is the node's; under lanes_lock */
};

/* A link, and the epoch that it belongs to. */
struct fp_session_epoch_link {
	struct fp_link *link;
	struct fp_session_epoch *epoch;
};

struct fp_node {
	/* constant once open */
	const struct fp_url_set *set; /* shared by the ports of one URL; the store's */
	unsigned group;               /* index of the set */
	unsigned address;             /* this port's, in the set */
	bool load_store;              /* it never breaks: what it lent is mapped here */
	bool resumable;
	bool adoptable;            /* a forked child can have its leases */
	_Atomic uint32_t has_work; /* for its reconnect thread, since that looked; a futex */
	/*
	 * In a forked child until it has adopted: whose session, and where its identity is. The
	 * epoch is the parent's until then: its copy of the control connection keeps the leases.
	 * NULL: there is none.
	 */
	struct fp_shared_slots *adopt_from;

	/* Held across control calls. Before lanes_lock. */
	pthread_mutex_t control;
	struct fp_slots *leases; /* linked by node_next; under control */
	unsigned n_leases;       /* that its session knows; under control */
	struct fp_session_epoch
	    *epoch; /* written under control and the store's lanes_lock, read under either */

	/* its reconnect thread's */
	struct fp_session_identity identity;
	struct fp_backoff backoff;
	bool attempting; /* backoff is of the breaker's present opening */
	bool has_former; /* of its leases some may be of a session that has ended, and are not retired yet */
	uint64_t next_heartbeat_ns;
	unsigned n_missed;    /* heartbeats, since the last one that was answered */
	uint64_t adopt_at_ns; /* the first attempt to adopt, unless adoption_wanted comes earlier */

	/* any thread's */
	_Atomic uint64_t breaker;
	_Atomic unsigned way;       /* in use, or used last */
	_Atomic bool had_best;      /* a way over the best transport was in use once */
	_Atomic int error;          /* what opened the breaker last; 0: nothing ever did */
	const char *_Atomic why;    /* the same in the words of a device (fp_link_why); NULL: it has none */
	_Atomic int session_error;  /* load/store: what ended the session; 0: it stands, or another does */
	_Atomic uint64_t grace_ns;  /* as the node told it last */
	_Atomic unsigned n_blocked; /* lanes with pages that wait for it to be up again */
	_Atomic bool adopting; /* it waits for a session: a forked child's for its parent's leases, one over
	                               shm whose session has ended for another */
	_Atomic bool adoption_wanted; /* something waits for it */
	_Atomic uint64_t n_slots;     /* in all leases that are not retired */
	_Atomic uint64_t n_retired;   /* in those that are, and are still mapped or held */
	_Atomic uint64_t read_bytes;
	_Atomic uint64_t written_bytes;
	_Atomic uint64_t reconnects, failures, heartbeat_ns;
};

static inline uint64_t fp_node_breaker(const struct fp_node *node)
{
	return atomic_load_explicit(&node->breaker, memory_order_acquire);
}

/* Any thread. A node that is cut off may be up again later; one that is lost never is. */
static inline bool fp_node_up(const struct fp_node *node)
{
	return fp_breaker_state(fp_node_breaker(node)) == FP_BREAKER_CLOSED;
}

static inline bool fp_node_is_lost(const struct fp_node *node)
{
	return fp_breaker_state(fp_node_breaker(node)) == FP_BREAKER_LOST;
}

/* Any thread. Such a node takes no control call but the reconnect thread's. */
static inline bool fp_node_is_adopting(const struct fp_node *node)
{
	return atomic_load_explicit(&node->adopting, memory_order_acquire);
}

/* The ways to a node, best first: over the best transport by its own address, then by the
 * others. */
unsigned fp_node_n_ways(const struct fp_node *node);
const struct fp_url *fp_node_way(const struct fp_node *node, unsigned way);
/* Whether a way is over another transport than the best. */
bool fp_node_way_is_lesser(const struct fp_node *node, unsigned way);

/*
 * Opens a session by the first way that answers; resumes one where options say so. Blocks. 0,
 * *ret_session, *ret_way, and *ret_cause: why the way before it failed (0: it is the first); errors
 * of fp_session_open, of the last way; -ESTALE ends the search.
 */
int fp_node_dial(const struct fp_node *node, const struct fp_session_options *options,
                 struct fp_session **ret_session, unsigned *ret_way, int *ret_cause);

/* Learns the identity of the node's session, and with it the grace. As fp_session_identity. */
int fp_node_identify(struct fp_node *node, struct fp_session *session);

/* Whether a status means that the node's link or session is not to be trusted any more. */
bool fp_node_is_fatal(int error);

/*
 * Tells the node's fate from something of an epoch that failed with error: its breaker opens, or,
 * where it cannot be resumed, it is lost. why: see fp_link_why, or NULL. Not for errors that
 * concern a call alone (fp_node_is_fatal). A node reached by load and store is never lost: what it
 * lent is mapped here and outlives its daemon. Any thread, lock-free.
 */
void fp_node_report(struct fp_node *node, uint64_t epoch, int error, const char *why);

/* Takes the breaker one step. True if that changed it. Any thread, lock-free. */
bool fp_node_step(struct fp_node *node, enum fp_breaker_event event, uint64_t epoch);

/* Its reconnect thread has work. Any thread. */
void fp_node_wake(struct fp_node *node);

/* Counts bytes that were moved. Any thread, lock-free. */
void fp_node_count(struct fp_node *node, enum fp_io_op op, uint64_t len_bytes);

#endif
