/*
 * One memory node as the store sees it: the ways to it, its session, its breaker, and counters.
 * Room: store.
 *
 *   epoch   a session of the node from one resume to the next. An ended epoch is freed when its
 *           last link is closed, which an idle lane may have kept. Leases over shm outlive the
 *           epoch and the session, because they are mapped here.
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
	/*
	 * How many links are open, plus one while this is the node's epoch. Protected by
	 * lanes_lock.
	 */
	unsigned n_refs;
};

/* A link, and the epoch that it belongs to. */
struct fp_session_epoch_link {
	struct fp_link *link;
	struct fp_session_epoch *epoch;
};

struct fp_node {
	/* constant once open */
	const struct fp_url_set *set; /* shared by the ports of one URL; owned by the store */
	unsigned group;               /* index of the set; all ports of one URL have the same index */
	unsigned address;             /* index of this port's address in the set */
	bool load_store;              /* its leases are mapped here, so no link to it breaks */
	bool resumable;
	bool adoptable;            /* a forked child can adopt its leases */
	_Atomic uint32_t has_work; /* 1: its reconnect thread has new work; a futex */
	/*
	 * Only in a forked child that has not adopted yet: the map with the identity of the session
	 * to adopt. Else NULL. Until the child has adopted, the epoch is the parent's. The leases
	 * last as long as our copy of the parent's control connection. Over rdma they last for the
	 * session's grace.
	 */
	struct fp_shared_slots *adopt_from;

	/* Held during control calls. Taken before lanes_lock. */
	pthread_mutex_t control;
	struct fp_slots *leases; /* linked by node_next; protected by control */
	unsigned n_leases;       /* how many leases the session knows; protected by control */
	/* Written under both control and the store's lanes_lock, read under either. */
	struct fp_session_epoch *epoch;

	/* its reconnect thread's */
	struct fp_session_identity identity;
	struct fp_backoff backoff;
	bool attempting; /* backoff was started for the present outage */
	bool has_former; /* some leases may be of an ended session, and not retired yet */
	uint64_t next_heartbeat_ns;
	unsigned n_missed; /* heartbeats in a row without an answer */
	/* When the first attempt to adopt is due. If adoption_wanted is set, it comes earlier. */
	uint64_t adopt_at_ns;

	/* any thread's */
	_Atomic uint64_t breaker;
	_Atomic unsigned way;        /* index of the way in use, or used last */
	_Atomic bool had_best;       /* a way over the best transport was once in use */
	_Atomic int error;           /* why the breaker opened last; 0: it never did */
	const char *_Atomic why;     /* the same error in the device's words (fp_link_why); NULL: none */
	_Atomic uint64_t refusal[3]; /* see fp_node_refusal */
	_Atomic int session_error;   /* load/store: why its session ended; 0: it has a session */
	_Atomic uint64_t grace_ns;   /* the grace that the node told us last */
	_Atomic unsigned n_blocked;  /* lanes whose pages wait until the node is up again */
	/*
	 * The node waits for a session: in a forked child, or over shm after a session has ended.
	 */
	_Atomic bool adopting;
	_Atomic bool adoption_wanted; /* a thread waits for that session */
	_Atomic uint64_t n_slots;     /* slots of leases that are not retired */
	_Atomic uint64_t n_retired;   /* slots of retired leases that are still mapped or held */
	_Atomic uint64_t read_bytes;
	_Atomic uint64_t written_bytes;
	_Atomic uint64_t reconnects, failures, heartbeat_ns;
};

static inline uint64_t fp_node_breaker(const struct fp_node *node)
{
	return atomic_load_explicit(&node->breaker, memory_order_acquire);
}

/*
 * True if the node is up. A node that is cut off may be up again later; a lost node never is. Any
 * thread.
 */
static inline bool fp_node_up(const struct fp_node *node)
{
	return fp_breaker_state(fp_node_breaker(node)) == FP_BREAKER_CLOSED;
}

/* True if the node is up, or cut off while its pages still wait for it. */
static inline bool fp_node_may_be_back(const struct fp_node *node)
{
	uint64_t word = fp_node_breaker(node);

	return fp_breaker_state(word) != FP_BREAKER_LOST && !fp_breaker_spent(word);
}

static inline bool fp_node_is_lost(const struct fp_node *node)
{
	return fp_breaker_state(fp_node_breaker(node)) == FP_BREAKER_LOST;
}

/*
 * Keeps why the node refused its last attempt to open a session or a link. Cause NONE: it did not
 * refuse it. Any thread, lock-free.
 */
void fp_node_set_refusal(struct fp_node *node, const struct fp_refusal *refusal);
/*
 * The refusal that was kept last; cause NONE: there is none. A refusal of another thread may come
 * in between, so do not rely on the numbers: they are for people. Any thread, lock-free.
 */
struct fp_refusal fp_node_refusal(const struct fp_node *node);

/*
 * True if the node waits for a session (see adopting). Only the reconnect thread may make control
 * calls to such a node. Any thread.
 */
static inline bool fp_node_is_adopting(const struct fp_node *node)
{
	return atomic_load_explicit(&node->adopting, memory_order_acquire);
}

/*
 * The ways to a node, best first. The first ways are those over the best transport: at the node's
 * own address, then at the other addresses of its URL. Then come the ways over the next transport.
 */
unsigned fp_node_n_ways(const struct fp_node *node);
const struct fp_url *fp_node_way(const struct fp_node *node, unsigned way);
/* True if a way uses another transport than the best one. */
bool fp_node_way_is_lesser(const struct fp_node *node, unsigned way);

/*
 * Opens a session by the first way that answers, or resumes one if options say so. Blocks. 0 with
 * *ret_session, *ret_way and *ret_cause (why the previous way failed; 0: the first way answered).
 * Otherwise the error of fp_session_open on the last way. -ESTALE ends the search.
 */
int fp_node_dial(const struct fp_node *node, const struct fp_session_options *options,
                 struct fp_session **ret_session, unsigned *ret_way, int *ret_cause);

/*
 * Learns the identity of the node's session, and the session's grace. Returns what
 * fp_session_identity returns.
 */
int fp_node_identify(struct fp_node *node, struct fp_session *session);

/* True if, after this error, the link or session can no longer be used. */
bool fp_node_is_fatal(int error);

/*
 * Called when a call, link or heartbeat of an epoch failed with error. Opens the node's breaker, or
 * marks the node as lost if it cannot be resumed. why: see fp_link_why, or NULL. Not for errors
 * that concern one call alone (see fp_node_is_fatal). A load/store node is never lost: its leases
 * are mapped here and outlive its daemon. Any thread, lock-free.
 */
void fp_node_report(struct fp_node *node, uint64_t epoch, int error, const char *why);

/* Changes the breaker by one event. True if the breaker is now different. Any thread, lock-free. */
bool fp_node_step(struct fp_node *node, enum fp_breaker_event event, uint64_t epoch);

/* Tells the node's reconnect thread that it has work. Any thread. */
void fp_node_wake(struct fp_node *node);

/* Counts bytes that were moved. Any thread, lock-free. */
void fp_node_count(struct fp_node *node, enum fp_io_op op, uint64_t len_bytes);

#endif
