/*
 * struct fp_store and its lease table, shared by the files of the store. Room: store; no other
 * folder includes it.
 *
 *   slot ── >> 20 ──────► leases[index] ──► struct fp_slots ──► node, lease id, base
 *        └─ & 2^20 - 1 ─► page in lease
 */
#ifndef FP_STORE_INTERNAL_H
#define FP_STORE_INTERNAL_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "cleanup.h"
#include "clock.h"
#include "generation.h"
#include "node.h"
#include "shortage.h"
#include "slots.h"
#include "store.h"

#define FP_STORE_MAX_LEASES                                                                                  \
	(1u << (FP_SLOT_BITS - FP_SLOT_PAGE_BITS)) /* index 0 stays empty, because slot 0 means no slot */

/*
 * A lane's owner and the reconnect thread exchange the links of one node here. Pointers change
 * hands by atomic exchange: the thread that gets a pointer owns its link.
 */
struct fp_exchange {
	_Atomic(struct fp_session_epoch_link *) fresh; /* the reconnect thread puts the next link here */
	_Atomic(struct fp_session_epoch_link *) given; /* the owner puts a link to be closed here */
};

/* The part of a lane that threads other than its owner may see. */
struct fp_lane_shared {
	LIST_ENTRY(fp_lane_shared) entry; /* the entry and the regions are under lanes_lock */
	unsigned n_regions;
	struct {
		void *base;
		size_t len_bytes;
	} regions[FP_LANE_MAX_REGIONS];
	struct fp_exchange exchange[FP_STORE_MAX_NODES];
};

struct fp_store {
	uint64_t deadline_ns;
	uint64_t patience_ns; /* 0: the node's grace */
	uint64_t connect_ns;  /* for first sessions; 0: deadline_ns */
	/* Since when the store is in a hurry (fp_store_hurry); 0: it is not. */
	_Atomic uint64_t hurried_ns;
	uint64_t lease_bytes;
	uint64_t heartbeat_ns, heartbeat_deadline_ns;
	struct fp_reconnect_options reconnect;
	char *client_name;                  /* malloc'd; NULL: none */
	const char *secret;                 /* the opener's secret, not copied; NULL: none */
	const struct fp_rdma_options *rdma; /* not copied either */
	void (*notice)(void *user, enum fp_log_level level, const char *text);
	void *notice_user;
	_Atomic bool told_short; /* people were told that descriptors ran out */
	_Atomic bool told_full;  /* people were told that no node has room */
	_Atomic bool told_fork;  /* people were told that a fork has no room for its copies */
	_Atomic bool told_away;  /* people were told that a node that may have room did not answer */
	/*
	 * The process that opened the store. A forked child of that process has no reconnect
	 * thread, and does not know which threads held the store's locks.
	 */
	pid_t opener;
	bool direct; /* every node is load_store */
	unsigned n_sets;
	struct fp_url_set *sets[FP_STORE_MAX_NODES]; /* malloc'd: one a URL */
	unsigned n_nodes;
	struct fp_node nodes[FP_STORE_MAX_NODES];
	struct fp_refusal refusal; /* why a node refused fp_store_open */

	struct fp_generations gens;
	pthread_mutex_t adoption_lock;      /* only for waits on adoption_ended */
	pthread_cond_t adoption_ended;      /* an attempt to adopt has succeeded or failed */
	_Atomic uint64_t adoption_until_ns; /* end of all waits for sessions; 0: no wait yet */

	/*
	 * Taken after all other locks; held while links are opened and closed. A reconnect thread
	 * takes it shared, together with the reconnect threads of other nodes, and changes only its
	 * own node's part. A thread that opens or closes a lane takes it exclusively.
	 */
	pthread_rwlock_t lanes_lock;
	LIST_HEAD(, fp_lane_shared) lanes;
	_Atomic uint64_t random; /* state of the random numbers for the jitter of reconnects */

	_Atomic(struct fp_slots *) *leases; /* FP_STORE_MAX_LEASES entries; unused ones take no memory */
	_Atomic uint32_t n_leases;          /* leases 1..n_leases are published */

	/*
	 * The members from here on are written all the time. So they are kept off the cache lines
	 * above, which the fault path reads. n_freeing: how often slots began to become free, by a
	 * return or by a new lease.
	 */
	alignas(64) _Atomic uint64_t n_freeing;
	_Atomic uint64_t n_freed;        /* how often slots became free; == n_freeing while nobody frees */
	_Atomic uint32_t cursor;         /* the lease that allocation tries first */
	_Atomic uint64_t reserved_pages; /* grows under reserve_lock only */
	/* Taken by threads that add leases, before the control lock of any node. */
	pthread_mutex_t reserve_lock;
	struct fp_shortage shortage; /* of the last placement that failed; under reserve_lock */
	uint64_t next_ask_ns;        /* when to ask the nodes for reasons again; under reserve_lock */
};

/* Makes a store without nodes, after a check of the options. 0 and *ret_store; -EINVAL, -ENOMEM. */
int fp_store_new(const struct fp_store_options *options, struct fp_store **ret_store);
/*
 * Opens sessions to one more node, one for each of its addresses. Call it only while nobody else
 * uses the store.
 */
int fp_store_add(struct fp_store *store, const struct fp_url_set *set);
/* The options of every session of the store. If resume is NULL, they are those of a new session. */
struct fp_session_options fp_store_session_options(const struct fp_store *store,
                                                   const struct fp_session_identity *resume);
/* Calls the notice function of the options. Only for threads that may block. */
void fp_store_notice(const struct fp_store *store, enum fp_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Tells people if a node is now reached by a worse way, or by the best one again. */
void fp_store_way_taken(struct fp_store *store, struct fp_node *node, unsigned way, int cause);

#define FP_PATIENCE_DEFAULT_NS (30 * FP_NSEC_PER_SEC) /* patience if the node announces no grace */

/*
 * The patience with this node: how long a page waits for it, from its first try on. Reports show
 * this time, and a page gives up by itself, even if the reconnect thread is in the middle of an
 * attempt. The node may be lost only later.
 */
static inline uint64_t fp_store_patience_ns(const struct fp_store *store, const struct fp_node *node)
{
	uint64_t grace_ns = atomic_load_explicit(&node->grace_ns, memory_order_relaxed);

	return store->patience_ns ? store->patience_ns : grace_ns ? grace_ns : FP_PATIENCE_DEFAULT_NS;
}

/*
 * How long the reconnect thread tries to reach a node: at least as long as the node keeps the
 * leases. If the leases are mapped here, it tries for ever, because they can be read without the
 * node.
 */
static inline uint64_t fp_store_outage_ns(const struct fp_store *store, const struct fp_node *node)
{
	uint64_t grace_ns = atomic_load_explicit(&node->grace_ns, memory_order_relaxed);

	return node->load_store ? UINT64_MAX : FP_MAX(store->patience_ns, grace_ns);
}

/*
 * Mark the begin and the end of a return of slots: see fp_store_slot_alloc. Any thread, lock-free.
 */
static inline void fp_store_freeing(struct fp_store *store)
{
	atomic_fetch_add(&store->n_freeing, 1);
}

static inline void fp_store_freed(struct fp_store *store)
{
	atomic_fetch_add_explicit(&store->n_freed, 1, memory_order_release);
}

/* Takes the options that a forked child may change. */
void fp_store_options_take(struct fp_store *store, const struct fp_store_options *options);

void fp_adoption_init(struct fp_store *store);
void fp_adoption_done(struct fp_store *store);
/* Unmaps a lease that is in no session of ours. */
void fp_lease_unmap(struct fp_slots *slots);
/*
 * Takes a lease from its node's list, unmaps it and gives it back. The caller holds node->control.
 */
void fp_lease_end(struct fp_node *node, struct fp_slots *slots);
/*
 * The session of these leases is no longer ours, but the leases stay mapped. The caller holds
 * node->control.
 */
void fp_leases_outlive(struct fp_node *node);
/*
 * The session of a node over shm has ended: lets the reconnect thread open another one. The caller
 * holds node->control.
 */
void fp_adoption_begin(struct fp_store *store, struct fp_node *node, int error);
/*
 * Called by a thread that needs the node's session: the reconnect thread then adopts without
 * further delay. Any thread, lock-free.
 */
void fp_adoption_want(struct fp_store *store, struct fp_node *node);
/*
 * Waits until a node can grant leases, or until no attempt to adopt is left that might help. For
 * the first calls of a forked child. All calls share one deadline (adoption_until_ns).
 */
void fp_adoption_await(struct fp_store *store);
/*
 * Called by the reconnect thread, which holds node->control. A session of our own takes over the
 * parent's leases, or those of an ended session over shm.
 */
int fp_adoption_adopt(struct fp_store *store, struct fp_node *node, struct fp_session *session);
/*
 * Ends the node's wait for a session: the node has a session of this process now, or will never get
 * one. The caller holds node->control.
 */
void fp_adoption_end(struct fp_store *store, struct fp_node *node);
/*
 * Called by the reconnect thread. fp_leases_retire: once the nodes have lent as many pages again,
 * no more slots are taken from the leases of an ended session. Returns false while another thread
 * adds leases: try again soon. fp_retired_release: gives back retired leases of which this process
 * holds no slot.
 */
bool fp_leases_retire(struct fp_store *store, struct fp_node *node);
void fp_retired_release(struct fp_store *store, struct fp_node *node);
/*
 * Takes leases for n_pages more pages. Does not wait for sessions. The caller holds reserve_lock.
 * Returns the errors of fp_store_reserve.
 */
int fp_store_grow(struct fp_store *store, uint64_t n_pages);

/*
 * When the next heartbeat is due. After some time without a heartbeat the node counts us as cut
 * off: at least four heartbeats fit into that time.
 */
uint64_t fp_reconnect_next_heartbeat(const struct fp_store *store, const struct fp_node *node);
/*
 * The first two functions take lanes_lock: exclusively, or shared (for a reconnect thread). Whoever
 * calls fp_session_epoch_link_open, fp_session_epoch_link_close or fp_node_enter holds this lock,
 * in one of these ways. A forked child, which has only one thread, needs no lock.
 */
void fp_store_lanes_lock(struct fp_store *store);
void fp_store_lanes_share(struct fp_store *store);
void fp_store_lanes_unlock(struct fp_store *store);
/*
 * Opens a link of an epoch, with the lane's regions, and counts it in the epoch. Blocks. 0 and
 * *ret_link.
 */
int fp_session_epoch_link_open(struct fp_session_epoch *epoch, const struct fp_lane_shared *shared,
                               struct fp_session_epoch_link **ret_link);
/*
 * Closes a link. If its epoch has ended and this was its last link, closes the epoch's session too.
 * Blocks. NULL is fine.
 */
void fp_session_epoch_link_close(struct fp_session_epoch_link *link);
/* The epoch of a session, without links. NULL: no memory. */
struct fp_session_epoch *fp_session_epoch_new(struct fp_session *session, uint64_t epoch);
/*
 * Makes another epoch the node's current one, and ends the one before. The caller holds
 * node->control too.
 */
void fp_node_enter(struct fp_node *node, struct fp_session_epoch *epoch);

/*
 * Takes leases from the nodes that are up, of at least n_pages pages in all. Begins with the node
 * that has the most free memory. All or nothing; the leases are not published. The caller holds
 * reserve_lock. Blocks. 0 and *ret_list; -ENOSPC: every node is full; -EHOSTDOWN: a node that might
 * have helped is down; or an error of a node or of this host. After an error,
 * store->shortage has the nodes' reasons.
 */
int fp_placement_take(struct fp_store *store, uint64_t n_pages, struct fp_slots **ret_list);
/*
 * Asks whether the nodes could lend n_pages now; takes nothing. The caller holds reserve_lock.
 * Blocks. 0, also if a node that may have room did not answer; -ENOSPC: store->shortage has the
 * nodes' reasons.
 */
int fp_placement_look(struct fp_store *store, uint64_t n_pages);

/* The lease of a slot that fp_store_slot_alloc handed out. Any thread, lock-free. */
static inline struct fp_slots *fp_store_lease_of(const struct fp_store *store, uint64_t slot)
{
	uint64_t index = slot >> FP_SLOT_PAGE_BITS;
	struct fp_slots *slots;

	assert(index < FP_STORE_MAX_LEASES);
	slots = atomic_load_explicit(&store->leases[index], memory_order_acquire);
	assert(slots);
	return slots;
}

static inline uint64_t fp_store_offset_of(uint64_t slot)
{
	return (slot & (FP_LEASE_MAX_PAGES - 1)) << FP_PAGE_SHIFT;
}

#endif
