/*
 * The agent: all that Farpage runs inside one process of the compute side. It consists of the
 * store, the far address space, the pager, threads and a stats page. Room: uffd/agent. The preload
 * shim and libfarpage use this header and space.h, and nothing else of uffd.
 */
#ifndef FP_AGENT_H
#define FP_AGENT_H

#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "statspage.h"
#include "store.h"

#define FP_BUDGET_MIN_PAGES 16u

struct fp_agent;
struct fp_space;

enum fp_fault_mode { FP_FAULT_MODE_THREAD, FP_FAULT_MODE_INLINE };
enum fp_capture_mode { FP_CAPTURE_AUTO, FP_CAPTURE_MOVE, FP_CAPTURE_PROTECT };
enum fp_on_loss { FP_ON_LOSS_SIGBUS, FP_ON_LOSS_WAIT };

/*
 * What the agent does to make faults faster (affinity.h). BOUND: its threads follow a thread that
 * the program has bound to a CPU itself, and no mask of the program changes. AUTO: it also holds
 * threads of the program on a CPU. The caller of AUTO must call fp_agent_affinity_release.
 */
enum fp_affinity_mode { FP_AFFINITY_AUTO, FP_AFFINITY_OFF, FP_AFFINITY_BOUND };

struct fp_agent_options {
	uint64_t local_bytes;    /* the budget, at least FP_BUDGET_MIN_PAGES pages; 0: see local_percent */
	unsigned local_percent;  /* the budget in % of the peak of mapped far memory; at least 16 MiB */
	const char *const *urls; /* URLs of n_urls nodes */
	unsigned n_urls;
	const char *secret;                 /* NULL: none */
	const struct fp_rdma_options *rdma; /* NULL: the defaults */
	uint64_t deadline_ns;               /* the longest time of one remote operation; 0: 5 s */
	uint64_t patience_ns;    /* how long a page waits for a node that is cut off; 0: the node's grace */
	uint64_t connect_ns;     /* how long the start may wait for a node; 0: deadline_ns */
	enum fp_on_loss on_loss; /* WAIT: pages wait without end */
	uint64_t heartbeat_ns;   /* time between two checks that a node is there; 0: 1 s */
	struct fp_reconnect_options reconnect;
	enum fp_fault_mode fault_mode;
	enum fp_capture_mode capture;
	enum fp_affinity_mode affinity;
	unsigned readahead_pages; /* longest sequential read-ahead window; 0: none */
	bool overcommit;          /* map without reserving slots */
	bool pins;                /* the caller pins the memory of its system calls where needed */
	bool low;                 /* if possible, the range begins at 4 GiB: the programs' hints lie there */
	bool foreign_malloc;      /* libraries allocate from an allocator whose memory may be far */
	bool own_handler;         /* the caller has a SIGBUS handler, which calls fp_agent_signal first */
	const char *stats_path;   /* a file to count in, see fp_statspage_expand; NULL: none is wanted */
	/* The folder for the page that `farpage ps` reads; the page stays there at the end. NULL:
	 * the user's folder. */
	const char *stats_dir;
	/*
	 * The agent calls these two functions around all its allocations, on its own threads and on
	 * the program's. So the shim's malloc serves these allocations from local memory. Both may
	 * be NULL.
	 */
	void (*enter_local)(void);
	void (*leave_local)(void);
	/* True if the caller runs on a signal stack; NULL: the agent asks the kernel. */
	bool (*on_signal_stack)(void);
};

/* Why a start failed and what to do about it, as text for a person. */
struct fp_agent_error {
	char text[768];
};

/*
 * Connects to the nodes, reserves address space, starts the threads. Blocks. Returns 0 and
 * *ret_agent, or a negative errno and error->text: -EPERM (userfaultfd is not permitted: the text
 * lists the remedies), -ENOSYS (the kernel has no userfaultfd), -EINVAL (an option is wrong), the
 * errors of fp_store_open, or others. A process may have several agents; the shim has one.
 */
int fp_agent_start(const struct fp_agent_options *options, struct fp_agent **ret_agent,
                   struct fp_agent_error *error);

/*
 * Ends threads and sessions and releases the address space, with all far mappings in it. NULL is
 * fine.
 */
void fp_agent_stop(struct fp_agent *agent);

/*
 * Called when the program is about to exit. Marks the stats page as exited, and unlinks it unless
 * the user named it. Idempotent.
 */
void fp_agent_exiting(struct fp_agent *agent);

/*
 * Called before the process changes its user, network or folders: after that its nodes may refuse
 * it. A forked child may have no sessions yet. Then this call waits until they are open, but no
 * longer than the deadline of the child's first calls. Any thread of the program; errno stays.
 */
void fp_agent_await_sessions(struct fp_agent *agent);

/*
 * True if a node is reached over a network. Then a forked child connects again, in the network of
 * the thread that forks.
 */
bool fp_agent_needs_network(const struct fp_agent *agent);

/*
 * The bracket around calls of space.h: blocks signals, and makes allocations local (enter_local).
 * Pass the result of enter to leave.
 */
uint64_t fp_agent_enter(const struct fp_agent *agent);
void fp_agent_leave(const struct fp_agent *agent, uint64_t mask);

struct fp_space *fp_agent_space(struct fp_agent *agent);
struct fp_statspage *fp_agent_stats(struct fp_agent *agent);

/*
 * Checks that this process may use userfaultfd in the way that far memory needs. Starts nothing. 0
 * or the errors of fp_agent_start.
 */
int fp_agent_check_kernel(struct fp_agent_error *error);

/*
 * With FP_AFFINITY_AUTO, the agent holds the thread that faults most on the fault thread's CPU.
 * This call gives the held thread its own CPUs back, if it is the calling thread. If the parameter
 * anyone is true, it does so whichever thread is held. The shim calls it before the program creates
 * threads or processes, and before the program reads or sets its CPUs.
 */
void fp_agent_affinity_release(struct fp_agent *agent, bool anyone);

/*
 * True in a child that a bare system call made, without our fork. The child has no far memory and
 * no agent, and must not use its copy of the parent's agent. stop_stray ends such a process with a
 * message and status 125. Signal handlers may call both.
 */
bool fp_agent_is_stray(const struct fp_agent *agent);
void fp_agent_stop_stray(const struct fp_agent *agent);

/*
 * Pins: where the kernel can't fault on far memory (inline faults, or only user-mode faults
 * permitted), the caller pins the memory that a system call gets, until the call returns.
 *
 *   r = fp_agent_pin(agent, ranges, n, &pin);    makes the memory resident, and keeps it so
 *   ... the system call ...
 *   fp_agent_unpin(agent, &pin);
 *
 * Any thread of the program may pin, in signal handlers too; pins may nest. No lock, no allocation.
 * struct fp_pin is on the stack of the thread that pins. The same thread unpins, in reverse order.
 * A longjmp or a cancelled thread may leave pins behind. These pins end when that thread pins
 * again, or with fp_agent_thread_ends. While memory is pinned, other threads may unmap it. Then the
 * system call finds it unmapped, as it would without Farpage. A forked child keeps the pins of the
 * thread that forked, and no others.
 */
struct fp_pin_range {
	const void *addr; /* any address and length: parts that are not far are skipped */
	size_t len_bytes;
	bool write; /* true: the kernel will write to it */
};

struct fp_pin {
	uint32_t place, n;   /* for the agent; if n is 0, nothing was pinned, and unpin does nothing */
	uint32_t depth;      /* for the agent */
	unsigned fit_ranges; /* after -E2BIG: this many of the first ranges could be pinned whole, */
	size_t fit_bytes;    /* and this many bytes of the next range; at least one of the two is above 0 */
	uint64_t serial;     /* for the agent */
};

/*
 * With FP_FAULT_MODE_INLINE, a fault raises SIGBUS. The handler of SIGBUS calls this function
 * first, and passes its own arguments. Any thread, on local memory, with all signals blocked. Takes
 * as long as a fault: at most the deadline.
 *
 * True: the thread may go on, in two cases. An agent in this process has served the page. Or
 * somebody has sent the signal while the thread ran the agent's code: then the signal comes again
 * when the thread leaves that code. False: the program must handle the signal. A lost page gives
 * false, too.
 */
bool fp_agent_signal(const siginfo_t *info, const void *context);

/*
 * fp_agent_pin_depth returns how many pins the calling thread has. A child of vfork may be killed
 * while it has pins. The parent then calls fp_agent_pin_vforked with the number of pins from before
 * the vfork. That call removes all pins beyond this number.
 */
unsigned fp_agent_pin_depth(void);
void fp_agent_pin_vforked(unsigned depth);

/* True if pins do anything here; otherwise the calls below return at once. */
bool fp_agent_needs_pins(const struct fp_agent *agent);

/*
 * Makes every far page of the ranges resident, and also writable if the range's field write is set.
 * The pages stay so until fp_agent_unpin. Waits as faults do, at most the deadline for each page.
 * Skips pages that are unmapped, lost, or protected against the access: for these the kernel
 * returns EFAULT or a short count, as always.
 *
 * Returns 0 and *ret_hold. -E2BIG: the ranges together are more than a quarter of the local memory.
 * -ENOMEM: 262144 ranges are pinned already.
 */
int fp_agent_pin(struct fp_agent *agent, const struct fp_pin_range *ranges, unsigned n,
                 struct fp_pin *ret_hold);
void fp_agent_unpin(struct fp_agent *agent, struct fp_pin *hold);

/*
 * From now on a page leaves only once it is proved that nobody holds it: no device or kernel code
 * that keeps it without a pin, or reads it. Called before such a holder can be made. Any thread,
 * signal handlers too. Waits until the evictions that know nothing of it have ended.
 */
void fp_agent_be_wary(struct fp_agent *agent);

/* Called when the calling thread ends: releases its remaining pins. */
void fp_agent_thread_ends(struct fp_agent *agent);

/*
 * Called in a signal handler when the program is about to die by a signal that dumps core. If there
 * will be a core, brings in all far pages, beyond the budget, as far as the machine has memory;
 * says how many came, and how many are missing. On a local stack (local_stack.h). Takes no lock.
 */
void fp_agent_core_fill(struct fp_agent *agent);

/* True on a thread that the agent started. */
bool fp_agent_is_own_thread(void);

/*
 * True if the program certainly has no thread but the calling one. A thread that was joined a
 * moment ago may still count, so this waits up to 20 ms for it to go.
 */
bool fp_agent_is_alone(const struct fp_agent *agent);

/*
 * 0 if the nodes have room for the copies that a fork may cause, or if with overcommit nobody asks.
 * Otherwise -ENOMEM, and the first time a line. Called before a fork, in the
 * bracket of fp_agent_enter, on a local stack; blocks on the nodes.
 */
int fp_agent_fork_room(struct fp_agent *agent);

/*
 * fork(2) in four parts, for pthread_atfork. All four run on the forking thread, on a local stack
 * (local_stack.h), with signals blocked. Otherwise a handler that forks would deadlock with the
 * fork that it interrupted.
 *   - quiet first waits for nodes that are cut off. It stops at the deadline, unless pages still
 *     wait for these nodes. Then it waits for write-backs. At last it waits for work of the agent
 *     that allocates. Such work needs the allocator's locks, so quiet must come before the fork
 *     takes them. Each of the last two waits may last about as long as the deadline. On a far
 *     stack, quiet ends the process with status 125.
 *   - prepare marks every slot in use as shared with the child, and locks the layout.
 *   - parent lets all work go on.
 *   - child starts an agent of its own over the inherited address space. The child sees exactly the
 *     parent's bytes at the fork, and fetches remote pages at their first touch. It waits for no
 *     node: its sessions are opened in the background. If it can't start, it prints why and ends
 *     the process with status 125, rather than read wrong bytes.
 */
void fp_agent_fork_quiet(struct fp_agent *agent);
void fp_agent_fork_prepare(struct fp_agent *agent);
void fp_agent_fork_parent(struct fp_agent *agent);
void fp_agent_fork_child(struct fp_agent *agent);

#endif
