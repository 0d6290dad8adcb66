/*
 * The store: where pages live when they are not local. It maps a slot number to a node, a lease and
 * an offset. It hands slots out and moves pages over links. Room: store. It knows sessions and
 * links, never userfaultfd or addresses of the program.
 *
 *   slot   the remote home of one page, as a number: lease index << 20 | page in lease;
 *          40 bits, never 0 (FP_SLOT_NONE)
 *   lane   one thread's set of links, one to each node
 *   node   one session, reached by one of several ways. A URL with several addresses makes a node of
 *          each address (a port), so that leases spread over them. A port falls back to the others'
 *          addresses.
 *
 * A link can break although its node lives. Then the node's breaker opens. fp_store_reconnect
 * resumes the session and gives every lane a new link. The lane asks again for pages that were
 * under way. The states of the breaker:
 *
 *   up (closed) ── failure ─► open ── attempt ─► half-open ── resumed ─► up
 *                              ▲                    │ └─ -ESTALE, or grace and patience are over ─► lost
 *                              └───── backoff ──────┘                                            for good
 *
 * A request that passes its deadline breaks its link. A read is then asked again over the next
 * link. It waits until its node is up again, or lost, or until its patience is over. A write waits
 * only for the length of one deadline, because its caller still has the page. When a patience is
 * over, the breaker is spent: later pages end with -EHOSTDOWN at once, until an attempt succeeds.
 * Memory lent over shm (load and store) is mapped here and never lost. When a session over shm
 * ends, its leases go on working. New leases must wait until fp_store_reconnect has opened another
 * session.
 *
 * A process that forks shares its slots with the child: each fork is a generation. Nobody writes a
 * shared slot any more. It is free again when neither the parent nor a living generation holds it.
 */
#ifndef FP_STORE_H
#define FP_STORE_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "breaker.h"
#include "log.h"
#include "transport.h"

#define FP_PAGE_SHIFT      12
#define FP_PAGE_SIZE       4096u
#define FP_SLOT_BITS       40
#define FP_SLOT_NONE       0ull
#define FP_STORE_MAX_NODES 16
#define FP_BATCH_MAX       FP_IO_MAX_SEGS /* pages of one request */

struct fp_store;
struct fp_lane;

struct fp_store_options {
	const char *const *urls; /* n_urls entries, at least one */
	unsigned n_urls;
	const char *secret;                 /* not copied: must outlive the store; NULL: none */
	const struct fp_rdma_options *rdma; /* not copied either; NULL: the defaults */
	const char *client_name;            /* NULL: comm and pid */
	uint64_t deadline_ns;               /* how long one request on one link may take; 0: 5 s */
	/*
	 * How long a read waits for a node that is cut off. 0: the node's grace. UINT64_MAX: until
	 * the node is back, or says that it gave our leases to others.
	 */
	uint64_t patience_ns;
	/*
	 * Wanted size of one lease; 0: 64 MiB. Above 8 MiB, it is halved until it is at most an
	 * eighth of what the node has left. Below, it is halved as long as the node has less.
	 */
	uint64_t lease_bytes;
	uint64_t connect_ns;   /* how long fp_store_open may wait for a session; 0: deadline_ns */
	uint64_t heartbeat_ns; /* time between heartbeats to a node that is up; 0: 1 s */
	/* How long one heartbeat may take; 0: half of deadline_ns, at most 2 s. */
	uint64_t heartbeat_deadline_ns;
	struct fp_reconnect_options reconnect;
	/*
	 * Called with one line for people. FP_LOG_NOTICE: a node is reached by a worse way than its
	 * best one, or by its best way again. FP_LOG_WARNING: the nodes refused memory. Each is
	 * rare. Runs on any thread that may call fp_store_open, fp_store_reconnect,
	 * fp_store_reserve or fp_store_extend, and may block. NULL: fp_log.
	 */
	void (*notice)(void *user, enum fp_log_level level, const char *text);
	void *notice_user;
	struct fp_refusal *refusal; /* NULL, or where fp_store_open writes why a node refused it */
};

/* Facts about one node, for reports. */
struct fp_store_node {
	const char *url; /* URL of the way in use, or used last */
	enum fp_breaker_state state;
	bool up;       /* state is FP_BREAKER_CLOSED */
	bool spent;    /* cut off for longer than a page's patience */
	bool degraded; /* up, but not over the transport that its URL prefers */
	/*
	 * The node waits for a session: in a forked child, or over shm after the last session has
	 * ended.
	 */
	bool adopting;
	uint64_t patience_ns; /* how long a page waits for this node; UINT64_MAX: for ever */
	int error;            /* why it is down, as negative errno; 0 if up */
	int last_error;       /* like error, but kept when the node is up again; 0: it never failed */
	const char *why;      /* last_error in the device's words, static; NULL: none */
	/* The limit that refused the last attempt to open a session or link. Cause NONE: no limit
	 * refused it. */
	struct fp_refusal refusal;
	int session_error;     /* load/store: why its session ended; 0: it has a session */
	uint64_t leased_bytes; /* to this process */
	/* Bytes of leases that give no slots: a parent's leases, and those of an ended session. */
	uint64_t retired_bytes;
	uint64_t read_bytes, written_bytes;
	/* How often the session was resumed, or, over shm, replaced. */
	uint64_t reconnects;
	uint64_t failures;     /* how often the breaker opened */
	uint64_t heartbeat_ns; /* round trip of the last heartbeat that was answered; 0: none yet */
};

/*
 * One page to read or write. The store owns it from fp_lane_read or fp_lane_write until
 * fp_lane_poll returns it, exactly once.
 */
struct fp_page_io {
	uint64_t slot;
	void *buf;  /* FP_PAGE_SIZE bytes of local memory */
	int status; /* 0 or a negative errno as in struct fp_io; -EHOSTDOWN: node lost or spent */
	void *user; /* caller's */
	struct fp_page_io *next; /* the store's */
};

/*
 * Opens a session to each node, by the best of its ways that answers. Fails if no way to a node
 * answers; *ret_failed (may be NULL) then names the URL. Blocks up to the deadline for each way. 0
 * and *ret_store; an error of fp_url_parse_set or fp_session_open; -E2BIG: more than
 * FP_STORE_MAX_NODES addresses; -ENOTUNIQ: two URLs name the same node.
 */
int fp_store_open(const struct fp_store_options *options, struct fp_store **ret_store,
                  const char **ret_failed);
/* Ends the sessions, so the nodes take the leases back. Close all lanes first. NULL is fine. */
void fp_store_close(struct fp_store *store);

/*
 * Keeps a node's links healthy. It sends heartbeats, and opens the breaker when as many in a row
 * are missed as the options say. It attempts to resume a session that is cut off: at once, then
 * with exponential backoff and jitter. After a resume it attaches the leases and opens links for
 * every lane. It closes the links that lanes gave up. It does all work that is due. Then it returns
 * for how many ns the caller may sleep before the next call (0: call again now). The caller sleeps
 * by fp_store_await_work, which ends early if work comes.
 *
 * One thread for each node calls it, in a loop, from the opening of the store until its lanes are
 * idle or closed. If one thread served several nodes in turn, each would wait for the others.
 *
 *   while (!stop) { ns = fp_store_reconnect(store, i); fp_store_await_work(store, i, ns); }
 *
 * It blocks on its node. To connect it takes half of deadline_ns in all, or all of it after two
 * attempts, but at least 200 ms for each way. It allocates, logs and takes locks that control calls
 * hold. So no fault may depend on this thread, and no fork may wait for it while the fork holds the
 * allocator's locks. Its buffers and stack must not be far memory. In a forked child, call it only
 * after fp_store_fork_child. A store without this thread loses no safety: after a break, requests
 * end by their deadline.
 */
uint64_t fp_store_reconnect(struct fp_store *store, unsigned node);
/*
 * While a node is not up, looks its names up again: their addresses may have changed. Called by the
 * same thread, between two calls of fp_store_reconnect. It blocks as long as the resolver does. It
 * may run during a fork, because no fork waits for it.
 */
void fp_store_refresh_names(const struct fp_store *store, unsigned node);
/*
 * Waits at most wait_ns for work that was not due when fp_store_reconnect returned. True: there is
 * work now. fp_store_wake_reconnect ends the wait without work.
 */
bool fp_store_await_work(struct fp_store *store, unsigned node, uint64_t wait_ns);
void fp_store_wake_reconnect(struct fp_store *store, unsigned node);

/*
 * Reserves n_pages more pages. Takes leases until all reserved pages have a slot on a node that is
 * up, first from the node with the most free memory. Ports of one node share its pools: the port
 * with the fewest leases comes first. All or nothing. Blocks; control threads only. Returns 0 or an
 * error. -ENOSPC: the pools (or the quotas) are full. -EHOSTDOWN, or the error of a failed call: a
 * node that might have lent the memory is lost, cut off or in trouble.
 */
int fp_store_reserve(struct fp_store *store, uint64_t n_pages);
/*
 * Takes one more lease, whose slots nobody has reserved. Called when slots run out for mappings
 * without a reservation. Blocks, so only for a thread that may wait. 0; -EBUSY: another thread
 * already takes leases; else an error of fp_store_reserve.
 */
int fp_store_extend(struct fp_store *store);

/*
 * True while no node can give a lease, but a node that waits for a session may do so soon (see
 * adopting in struct fp_store_node). Any thread, lock-free.
 */
bool fp_store_lacks_sessions(const struct fp_store *store);

/*
 * While fp_store_lacks_sessions is true, waits for a session, but at most wait_ns. Returns true
 * only if there is still none and another wait may help. All callers share one deadline. After it,
 * this function returns false at once, until an adoption at some node succeeds.
 */
bool fp_store_adopts(struct fp_store *store, uint64_t wait_ns);
/* Ends the reservation of n_pages. Leases stay for the next one. Any thread, lock-free. */
void fp_store_unreserve(struct fp_store *store, uint64_t n_pages);

/*
 * Takes up to n free slots on nodes that are up, near one another where possible. Returns how many
 * (0: all slots are taken, which can happen with overcommit). Lock-free, no allocation: any thread.
 */
unsigned fp_store_slot_alloc(struct fp_store *store, unsigned n, uint64_t *ret_slots);
/*
 * Gives a slot back; its bytes are undefined from here on. A shared slot becomes free once nobody
 * else holds it. Lock-free: any thread.
 */
void fp_store_slot_free(struct fp_store *store, uint64_t slot);
/* True if the slot's node is up: only then may a clean page be dropped. A node that is cut off may
 * be up again later. Lock-free: any thread. */
bool fp_store_slot_up(const struct fp_store *store, uint64_t slot);
/* The index (for fp_store_node_info) of the slot's node. */
unsigned fp_store_slot_node(const struct fp_store *store, uint64_t slot);
/*
 * True if the slot is shared with a child or a parent. Nobody may write a shared slot: to write
 * other bytes, take a fresh slot and free this one. A shared slot may cease to be shared at any
 * moment. Only fp_store_fork_prepare makes slots shared. Lock-free: any thread.
 */
bool fp_store_slot_is_shared(const struct fp_store *store, uint64_t slot);
/* True while pages wait for a node that is cut off. Any thread, lock-free. */
bool fp_store_is_blocked(const struct fp_store *store);
/*
 * If `hurried` is true, a read waits at most the length of one deadline for a node that is cut off.
 * The caller sets it while the reconnect thread is stopped. Only the caller starts that thread
 * again, and it may itself have to wait for a page first. So that wait must be short. Any thread,
 * lock-free.
 */
void fp_store_hurry(struct fp_store *store, bool hurried);
/* The slot's bytes if its lease is mapped here (load/store), else NULL. Lock-free: any thread. */
void *fp_store_slot_direct(const struct fp_store *store, uint64_t slot);
/* Counts a page that the caller moved through fp_store_slot_direct. Lock-free: any thread. */
void fp_store_slot_count(struct fp_store *store, uint64_t slot, enum fp_io_op op);

/*
 * True if every node is reached by load and store: reads and writes then complete at once, without
 * a lane.
 */
bool fp_store_is_direct(const struct fp_store *store);

unsigned fp_store_n_nodes(const struct fp_store *store);
/* Any thread. The url stays valid until the store closes. */
void fp_store_node_info(const struct fp_store *store, unsigned node, struct fp_store_node *ret_info);
/*
 * Looks whether the sessions of load/store nodes have ended, and lets fp_store_reconnect open
 * others. Call it now and then. The end of such a session loses no byte: the node's memory is
 * mapped here, and stays in use. Only for a thread that may wait a little. Never waits for a node.
 */
void fp_store_check_sessions(struct fp_store *store);
uint64_t fp_store_slots_used(const struct fp_store *store);
uint64_t fp_store_slots_total(const struct fp_store *store);

/*
 * Asks whether there is room for the copies that a fork may cause, with a child that lives on. A
 * page that one of the two writes then needs a second slot. n_resident: pages in local memory;
 * n_inherited: pages that the child would have. Takes nothing. Asks the nodes only if the store's
 * own spare slots are too few, and then blocks. 0, or -ENOSPC and a notice (the first time). Called
 * without any lock, before fp_store_fork_prepare.
 */
int fp_store_fork_room(struct fp_store *store, uint64_t n_resident, uint64_t n_inherited);
/*
 * Called before a fork, on the thread that forks. Marks every slot in use as shared with the coming
 * child, a new generation. Until fp_store_fork_parent or fp_store_fork_child, no thread may take,
 * free or write a slot, or reconnect. So the caller freezes evictions and locks the layout. Waits
 * for control calls that are under way; no malloc. 0; -ENOMEM, -EMFILE, -ENFILE, ...: no memory or
 * no descriptors; -EOPNOTSUPP: a child cannot adopt the leases of a node. After an error the fork
 * may go on, but fp_store_fork_child will fail with the same error.
 */
int fp_store_fork_prepare(struct fp_store *store);
/*
 * Called on the same thread, in the parent. If forked is false, there is certainly no child. If
 * forked is true but there is no child, the generation counts as ended. No malloc, never blocks.
 */
void fp_store_fork_parent(struct fp_store *store, bool forked);
/*
 * Called on the same thread, in the child, after it has closed the parent's lanes (fp_lane_close).
 * The store becomes this process's own. It holds the slots that the parent held at the fork: it can
 * read and free them. Nothing is reserved.
 *
 * Nodes behind a wire start cut off, and no node takes a lease yet. Then fp_store_reconnect opens a
 * session of this process that adopts the parent's leases. It does so as soon as something needs
 * it, or after a short while. Requests wait meanwhile, each within its deadline. So the child needs
 * reconnect threads. That is true also for a direct store, although its inherited memory is mapped
 * and can be read at once.
 *
 * options: as for fp_store_open, but nodes, name and secret stay as they are; NULL: all options
 * stay. Does not block on nodes; allocates. 0; the error of fp_store_fork_prepare; -ENOMEM,
 * -EMFILE, ...: then the store can only be closed.
 */
int fp_store_fork_child(struct fp_store *store, const struct fp_store_options *options);
/*
 * Marks the descriptors by which our parent knows that we still read its slots (fp_fd_make_vital).
 * If one were closed, the parent would believe that we have ended, and would free slots that we
 * still read.
 */
void fp_store_mark_vital_fds(const struct fp_store *store, uint8_t mark);

/*
 * Frees the slots that this process has given up and that no living generation holds. Cheap if
 * there are none; never blocks, no allocation. Any thread; call it at each tick.
 * fp_store_slot_alloc calls it when it finds no free slot.
 */
void fp_store_sweep(struct fp_store *store);

/*
 * Opens a lane for at most max_outstanding pages in flight. Allocates all that it will ever need.
 * For control threads.
 */
int fp_lane_open(struct fp_store *store, unsigned max_outstanding, struct fp_lane **ret_lane);
/*
 * Closes a lane, and abandons its pages in flight. Their buffers are the caller's again once this
 * returns. For control threads. NULL is fine.
 */
void fp_lane_close(struct fp_lane *lane);

/*
 * For a lane whose reads no thread waits for, such as those of read-ahead: each read is tried for
 * the length of one deadline at most. Call it before the first read. For control threads.
 */
void fp_lane_be_brief(struct fp_lane *lane);

#define FP_LANE_MAX_REGIONS 4

/*
 * Announces that buffers of later pages lie in these bytes, to every present and later link of the
 * lane (fp_link_register). The bytes must stay in place until the lane closes. This is a hint. Call
 * it before the first read or write. For control threads. 0; -ENOSPC: FP_LANE_MAX_REGIONS are known
 * already.
 */
int fp_lane_register(struct fp_lane *lane, void *base, size_t len_bytes);

/*
 * Starts reading (writing) n pages, gathered into as few requests as their nodes allow. For the
 * owner thread. No allocation, no blocking, no log. fp_lane_poll returns every page with its own
 * status. That happens at the latest when the patience of a read or the deadline of a write is
 * over. It may be a little later, while a closing link still uses the page's buffer. Returns 0, or
 * -EAGAIN if n do not fit in max_outstanding now (nothing was started).
 */
int fp_lane_read(struct fp_lane *lane, struct fp_page_io *const *pages, unsigned n);
int fp_lane_write(struct fp_lane *lane, struct fp_page_io *const *pages, unsigned n);

/* Returns completed pages, up to max; 0 if there are none. Never blocks. For the owner thread. */
unsigned fp_lane_poll(struct fp_lane *lane, struct fp_page_io **ret_done, unsigned max);
/*
 * Looks whether idle nodes have hung up, and opens the breakers of those that have. This matters
 * because a clean page may be dropped only while its node is up. Makes one system call for each
 * node, and never blocks. For the owner thread.
 */
void fp_lane_check(struct fp_lane *lane);

/*
 * The next thread that uses the lane becomes its owner. The caller makes sure that this thread sees
 * all work of the old owner.
 */
void fp_lane_hand_over(struct fp_lane *lane);

unsigned fp_lane_outstanding(const struct fp_lane *lane);
/*
 * Fills up to `max` pollfds, on which the caller waits until fp_lane_poll may have more.
 * FP_STORE_MAX_NODES pollfds are always enough. Returns their number.
 *
 * The caller must also poll again when fp_clock_ns reaches *ret_deadline_ns. This is 0 if pages are
 * done already, and UINT64_MAX if there is nothing to wait for. Else it is the nearest deadline or
 * earlier. It is at most 100 ms from now while pages are under way on a link that may be replaced.
 * It is at most 10 ms from now while pages wait for a new link.
 */
unsigned fp_lane_pollfds(struct fp_lane *lane, struct pollfd *ret_fds, unsigned max,
                         uint64_t *ret_deadline_ns);

#endif
