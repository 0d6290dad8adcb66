/*
 * The store: where pages live when they are not local. It maps a slot number to a node, a lease and
 * an offset, hands slots out and moves pages over links. Room: store. It knows sessions and links,
 * never userfaultfd or addresses of the program.
 *
 *   slot   number of one remote page home: lease index << 20 | page in lease; 40 bits, never 0 (FP_SLOT_NONE)
 *   lane   one thread's set of links, one to each node
 *   node   one session, reached by one of several ways. A URL of several addresses makes one node an address
 *          (a port), so that leases spread over them; each falls back to the others' addresses.
 *
 * Links break without their node having died. Then the node's breaker opens, and fp_store_reconnect
 * resumes the session and gives every lane a new link; pages that were under way are asked again:
 *
 *   up (closed) ── failure ─► open ── attempt ─► half-open ── resumed ─► up
 *                              ▲                    │ └─ -ESTALE, or grace and patience are over ─► lost
 *                              └───── backoff ──────┘                                            for good
 *
 * A request that passes its deadline breaks its link, and is asked again over the next one. A page
 * that is read waits until its node is up again, or lost, or until its patience is over; a page
 * that is written waits for one deadline, as its caller still has it. Patience that is over leaves
 * the breaker spent: later pages end with -EHOSTDOWN at once, until an attempt succeeds. What a
 * node lends by load and store (shm) is mapped here, and is never lost: its session ends only for
 * what is still to be lent, until fp_store_reconnect has opened another.
 *
 * A process that forks shares its slots with the child: each fork is a generation. A shared slot is
 * written by nobody any more; it is free again when neither the parent nor a generation that lives
 * holds it.
 */
#ifndef FP_STORE_H
#define FP_STORE_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "breaker.h"
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
	const char *const *urls; /* n_urls of them, at least one */
	unsigned n_urls;
	const char *secret;                 /* not copied: it outlives the store; NULL: none */
	const struct fp_rdma_options *rdma; /* likewise; NULL: the defaults */
	const char *client_name;            /* NULL: comm and pid */
	uint64_t deadline_ns;               /* of one request on one link; 0: 5 s */
	uint64_t patience_ns;  /* how long a read waits for a node that is cut off; 0: the node's grace;
	                          UINT64_MAX: until it is back, or says that it has given our leases up */
	uint64_t lease_bytes;  /* wanted size of one lease; 0: 64 MiB. Halved while the pool has less. */
	uint64_t heartbeat_ns; /* between two heartbeats of a node that is up; 0: 1 s */
	uint64_t heartbeat_deadline_ns; /* of one heartbeat; 0: half of deadline_ns, at most 2 s */
	struct fp_reconnect_options reconnect;
	/*
	 * Told one line for people, rarely: a node is reached by a lesser way than it could be, or
	 * by its best again. On the thread of fp_store_open or fp_store_reconnect, which may block.
	 * NULL: fp_log.
	 */
	void (*notice)(void *user, const char *text);
	void *notice_user;
};

/* What is known of one node, for reports. */
struct fp_store_node {
	const char *url; /* the way in use, or used last */
	enum fp_breaker_state state;
	bool up;                /* state is FP_BREAKER_CLOSED */
	bool spent;             /* cut off for so long that the patience of a page was over */
	bool degraded;          /* up, but not over the transport that its URL prefers */
	bool adopting;          /* it has no session yet: a forked child's, or over shm when it has ended */
	uint64_t patience_ns;   /* how long a page waits for it; UINT64_MAX: without end */
	uint64_t wait_ns;       /* the same, and what an end that comes late may take */
	int error;              /* negative errno that took it down, 0 if up */
	int last_error;         /* the same, and kept when it is up again; 0: it never failed */
	const char *why;        /* last_error in the words of a device, static; NULL: it has none */
	int session_error;      /* load/store: what ended its session, until there is another; 0: none */
	uint64_t leased_bytes;  /* to this process */
	uint64_t retired_bytes; /* of which nothing is taken: its parent's, or of a session that has ended */
	uint64_t read_bytes, written_bytes;
	uint64_t reconnects;   /* times the session was resumed, or over shm replaced */
	uint64_t failures;     /* times the breaker opened */
	uint64_t degradations; /* times a lesser transport was taken */
	uint64_t heartbeat_ns; /* round trip of the last heartbeat that was answered; 0: none yet */
};

/* Page in, page out. Owned by the caller from submit until it comes out of fp_lane_poll, exactly
 * once. */
struct fp_page_io {
	uint64_t slot;
	void *buf;  /* FP_PAGE_SIZE bytes of local memory */
	int status; /* 0 or negative errno, as struct fp_io; -EHOSTDOWN: its node is lost or spent */
	void *user; /* caller's */
	struct fp_page_io *next; /* the store's */
};

/*
 * Opens sessions to all nodes, each by the best of its ways that answers. Fails if one has none;
 * *ret_failed (may be NULL) then tells which url. Blocks up to the deadline a way. 0 and
 * *ret_store; errors of fp_url_parse_set and fp_session_open; -E2BIG: more than FP_STORE_MAX_NODES
 * addresses.
 */
int fp_store_open(const struct fp_store_options *options, struct fp_store **ret_store,
                  const char **ret_failed);
/* Ends the sessions (the nodes take the leases back). After all lanes are closed. NULL is fine. */
void fp_store_close(struct fp_store *store);

/*
 * Keeps a node's links healthy: sends heartbeats, opens the breaker when one is missed, attempts to
 * resume what is cut off (at once, then with exponential backoff and jitter), attaches its leases
 * again, opens links for every lane and closes those that the lanes gave up. Does what is due, then
 * returns how long the caller may sleep before the next call, in ns (0: call again now), unless
 * fp_store_await_work says that work has come earlier.
 *
 * One thread a node calls it, in a loop, from the opening of the store until its lanes are idle or
 * closed. A thread that tends several nodes in turn lets each wait for the others.
 *
 *   while (!stop) { ns = fp_store_reconnect(store, i); fp_store_await_work(store, i, ns); }
 *
 * It blocks on its node (to connect: half of deadline_ns in all, all of it after two attempts, 200
 * ms a way), allocates, logs and takes locks that control calls hold: never a thread that faults
 * depend on, nor one that a fork waits for while it holds the allocator's locks. Its thread's
 * buffers and stack must not be far memory. In a forked child only after fp_store_fork_child. A
 * store that nobody tends is no less safe: what breaks then ends by its deadline.
 */
uint64_t fp_store_reconnect(struct fp_store *store, unsigned node);
/*
 * Looks names of a node up again that may mean something else by now, while it is not up. Between
 * two calls of fp_store_reconnect, by the same thread. It blocks as long as the resolver likes,
 * also while the process forks: no fork waits.
 */
void fp_store_refresh_names(const struct fp_store *store, unsigned node);
/* Waits for work that was not due when fp_store_reconnect returned, wait_ns at most. True: there is
 * some. Woken without any by fp_store_wake_reconnect. */
bool fp_store_await_work(struct fp_store *store, unsigned node, uint64_t wait_ns);
void fp_store_wake_reconnect(struct fp_store *store, unsigned node);

/*
 * Backs n_pages more of address space: takes leases, from the node with the most free first, until
 * all reserved pages have a slot on a node that is up. Ports of one node share its pools: the one
 * with the fewest leases comes first. All or nothing. Blocks; control threads only. 0; -ENOSPC: the
 * pools (or the quotas) are full; -EHOSTDOWN, or the error of a call that failed: a node that might
 * have backed it is lost, cut off or in trouble.
 */
int fp_store_reserve(struct fp_store *store, uint64_t n_pages);
/*
 * Takes one more lease, of slots that nobody reserved: for mappings without a reservation, when
 * slots run out. Blocks; a thread that may wait. 0; -EBUSY: another thread takes leases already; or
 * as fp_store_reserve.
 */
int fp_store_extend(struct fp_store *store);

/* True in a forked child in which no node can give a lease as yet, and one that is to adopt our
 * parent's might. Any thread, lock-free. */
bool fp_store_lacks_sessions(const struct fp_store *store);

/*
 * True while it does, and the two above would wait for that to change; waits for it itself, wait_ns
 * at most. All who ask wait for one deadline together: from then on the answer is false until some
 * node has adopted.
 */
bool fp_store_adopts(struct fp_store *store, uint64_t wait_ns);
/* Gives reserved backing back. Leases stay for the next reservation. Any thread, lock-free. */
void fp_store_unreserve(struct fp_store *store, uint64_t n_pages);

/*
 * Takes up to n free slots, near one another where it can, on nodes that are up. Returns how many
 * (0: full: with overcommit that can happen). Lock-free, no allocation: any thread.
 */
unsigned fp_store_slot_alloc(struct fp_store *store, unsigned n, uint64_t *ret_slots);
/*
 * Gives a slot back; its bytes are undefined from here on. One that is shared is free once nobody
 * else holds it. Lock-free: any thread.
 */
void fp_store_slot_free(struct fp_store *store, uint64_t slot);
/*
 * Whether the slot's node is up: only then may a clean page be dropped. A node that is cut off may
 * be up again later. Lock-free: any thread.
 */
bool fp_store_slot_up(const struct fp_store *store, uint64_t slot);
/* The index (for fp_store_node_info) of the node of a slot. */
unsigned fp_store_slot_node(const struct fp_store *store, uint64_t slot);
/*
 * Whether the slot is shared with a child or a parent: then its bytes stay as they are, and who has
 * something else to write takes a fresh slot and frees this one. A slot that is shared may cease to
 * be at any moment; one that is not becomes shared by fp_store_fork_prepare alone. Lock-free: any
 * thread.
 */
bool fp_store_slot_is_shared(const struct fp_store *store, uint64_t slot);
/* True while pages wait for a node that is cut off. Any thread, lock-free. */
bool fp_store_is_blocked(const struct fp_store *store);
/*
 * From now on (or no longer) a page that is read waits for one deadline at most for a node that is
 * cut off: while nobody tends, and what waits may keep the caller from tending again. Any thread,
 * lock-free.
 */
void fp_store_hurry(struct fp_store *store, bool hurried);
/* The slot's bytes where its lease is mapped here (load/store), else NULL. Lock-free: any
 * thread. */
void *fp_store_slot_direct(const struct fp_store *store, uint64_t slot);
/* Counts a page that the caller moved itself, by fp_store_slot_direct. Lock-free: any thread. */
void fp_store_slot_count(struct fp_store *store, uint64_t slot, enum fp_io_op op);

/* True if every node is reached by load and store: reads and writes then complete at once, without
 * a lane. */
bool fp_store_is_direct(const struct fp_store *store);

unsigned fp_store_n_nodes(const struct fp_store *store);
/* Any thread. The url stays valid until the store closes. */
void fp_store_node_info(const struct fp_store *store, unsigned node, struct fp_store_node *ret_info);
/*
 * Looks whether the sessions of nodes that are reached by load and store have ended, and has
 * fp_store_reconnect open others: now and then. Nothing is lost with them: what the nodes lent is
 * mapped here, and stays in use. A thread that may wait a little, never blocks on a node.
 */
void fp_store_check_sessions(struct fp_store *store);
uint64_t fp_store_slots_used(const struct fp_store *store);
uint64_t fp_store_slots_total(const struct fp_store *store);

/*
 * Before a fork, on the thread that forks: marks every slot in use as shared with the child that is
 * to be, a new generation. From here until fp_store_fork_parent or fp_store_fork_child no slot is
 * taken, freed or written (evictions are frozen, the layout is locked) and nobody tends. Waits for
 * control calls that are under way; no malloc. 0; -ENOMEM, -EMFILE, -ENFILE, ...: no memory or no
 * descriptors; -EOPNOTSUPP: a node's leases can't be handed on. After an error the fork may go on,
 * but fp_store_fork_child will fail with the same.
 */
int fp_store_fork_prepare(struct fp_store *store);
/*
 * The same thread, in the parent. forked: false if it is known that there is no child; the end of a
 * child that never was is seen as that of any other. No malloc, never blocks.
 */
void fp_store_fork_parent(struct fp_store *store, bool forked);
/*
 * The same thread, in the child, once the parent's lanes are closed there (fp_lane_close): the
 * store becomes this process' own. What slots held at the fork they hold here too: they can be read
 * and freed. Leases of its own it takes as before; nothing is reserved. Nodes behind a wire are cut
 * off, and every node takes no lease, until fp_store_reconnect has opened a session of this
 * process' own that adopts the parent's leases: as soon as something needs it, or after a short
 * while. What is asked meanwhile waits, each within its deadline. So the child needs threads that
 * tend, also if the store is direct. Where it is, what is inherited is mapped, and read at once.
 * options: as fp_store_open, but for the nodes, name and secret, which stay; NULL: all stay. Blocks
 * not on nodes; allocates. 0; the error of fp_store_fork_prepare; -ENOMEM, -EMFILE, ...: then the
 * store can only be closed.
 */
int fp_store_fork_child(struct fp_store *store, const struct fp_store_options *options);
/*
 * The descriptors whose loss nobody would notice: they tell our parent that we live and read its
 * slots. Writes at most max numbers and returns how many; a negative number is none.
 */
unsigned fp_store_vital_fds(const struct fp_store *store, int *ret_fds, unsigned max);

/*
 * Frees the slots that the parent has freed and no generation that lives holds any more. Cheap when
 * there are none, never blocks, no allocation: any thread, each tick of one that has ticks.
 * fp_store_slot_alloc does it when it finds nothing.
 */
void fp_store_sweep(struct fp_store *store);

/* A lane with room for max_outstanding pages in flight. Allocates all it will ever need. Control
 * threads. */
int fp_lane_open(struct fp_store *store, unsigned max_outstanding, struct fp_lane **ret_lane);
/* Pages in flight are abandoned; their buffers are free once this returns. Control threads. NULL is
 * fine. */
void fp_lane_close(struct fp_lane *lane);

/* Reads over this lane wait for one deadline at most: nobody needs them. Before the first; control
 * threads.
 */
void fp_lane_be_brief(struct fp_lane *lane);

#define FP_LANE_MAX_REGIONS 4

/*
 * Says that buffers of later pages lie in these bytes (fp_link_register), to every link that the
 * lane has or will have; they stay in place until the lane closes. A hint. Before the first read or
 * write; control threads. 0; -ENOSPC: FP_LANE_MAX_REGIONS are known already.
 */
int fp_lane_register(struct fp_lane *lane, void *base, size_t len_bytes);

/*
 * Starts reading (writing) n pages, gathered into as few requests as their nodes allow. Owner
 * thread. No allocation, no blocking, no log. Every page comes out of fp_lane_poll with its own
 * status: when its patience (a write: its deadline) is over, or a little later (a link that is
 * being closed has its buffers), at the latest. Returns 0, or -EAGAIN if n do not fit in
 * max_outstanding now (nothing was started).
 */
int fp_lane_read(struct fp_lane *lane, struct fp_page_io *const *pages, unsigned n);
int fp_lane_write(struct fp_lane *lane, struct fp_page_io *const *pages, unsigned n);

/* Completed pages, up to max; 0 if none. Never blocks. Owner thread. */
unsigned fp_lane_poll(struct fp_lane *lane, struct fp_page_io **ret_done, unsigned max);
/*
 * Looks whether the nodes that nothing is asked of have hung up, and opens their breakers: a clean
 * page may be dropped only while its node is there. One system call a node, never blocks. Owner
 * thread.
 */
void fp_lane_check(struct fp_lane *lane);

/* The next thread that uses the lane is its owner; the caller makes sure that it sees all of this
 * one's work.
 */
void fp_lane_hand_over(struct fp_lane *lane);

unsigned fp_lane_outstanding(const struct fp_lane *lane);
/*
 * Fills up to max pollfds (FP_STORE_MAX_NODES suffice) to wait on until fp_lane_poll may have more;
 * returns their number. Poll again in any case when *ret_deadline_ns has come: 0 if pages are done
 * already, else the nearest deadline, or earlier: at most 100 ms from now while pages are under way
 * on a link that may be replaced, 10 ms while they wait for a new one (absolute CLOCK_MONOTONIC;
 * UINT64_MAX: nothing to wait for).
 */
unsigned fp_lane_pollfds(struct fp_lane *lane, struct pollfd *ret_fds, unsigned max,
                         uint64_t *ret_deadline_ns);

#endif
