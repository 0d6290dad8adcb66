/*
 * The agent: everything the compute side runs inside one process: the store, the far address space,
 * the pager, its threads and its stats page. Room: uffd, its front door: the preload shim and
 * libfarpage use this header and space.h, and nothing else of the folder.
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
enum fp_affinity_mode { FP_AFFINITY_AUTO, FP_AFFINITY_OFF };

struct fp_agent_options {
	uint64_t local_bytes;    /* the budget; at least FP_BUDGET_MIN_PAGES pages. 0: local_percent counts */
	unsigned local_percent;  /* of the most far memory so far, never below 16 MiB */
	const char *const *urls; /* nodes, n_urls of them */
	unsigned n_urls;
	const char *secret;                 /* NULL: none */
	const struct fp_rdma_options *rdma; /* NULL: the defaults */
	uint64_t deadline_ns;               /* of one remote operation; 0: 5 s */
	uint64_t patience_ns;    /* how long a page waits for a node that is cut off; 0: the node's grace */
	enum fp_on_loss on_loss; /* WAIT: patience has no end */
	uint64_t heartbeat_ns;   /* between two looks whether a node is there; 0: 1 s */
	struct fp_reconnect_options reconnect;
	enum fp_fault_mode fault_mode;
	enum fp_capture_mode capture;
	enum fp_affinity_mode affinity;
	unsigned readahead_pages; /* longest sequential read-ahead window; 0: none */
	bool overcommit;          /* map without reserving slots */
	bool pins;                /* the caller brackets its system calls by holds where they are needed */
	bool low;                 /* the range begins at 4 GiB, where it can: for hints in it */
	bool own_handler;         /* the caller has a handler of SIGBUS, which asks fp_agent_signal first */
	const char *stats_path;   /* see fp_statspage_expand; NULL: the default place, unlinked at the end */
	/*
	 * Brackets everything that the agent allocates on a program's thread (and its own threads),
	 * so that the shim's malloc serves it from local memory. May be NULL.
	 */
	void (*enter_local)(void);
	void (*leave_local)(void);
	/* True if the caller runs on a signal stack; NULL: as the kernel has it. */
	bool (*on_signal_stack)(void);
};

/* Why a start failed, for a person: what, and the remedy. */
struct fp_agent_error {
	char text[768];
};

/*
 * Connects to the nodes, reserves address space, starts the threads. Blocks. 0 and *ret_agent; else
 * a negative errno and error->text: -EPERM (userfaultfd is not permitted: the text says which
 * remedies apply), -ENOSYS, -EINVAL, those of fp_store_open. Several agents may live in one
 * process; the shim has one.
 */
int fp_agent_start(const struct fp_agent_options *options, struct fp_agent **ret_agent,
                   struct fp_agent_error *error);

/* Ends threads and sessions and gives the address space back: whatever was mapped is gone. NULL is
 * fine. */
void fp_agent_stop(struct fp_agent *agent);

/* The program is about to exit: the stats page says so, and is unlinked unless the user named it.
 * Idempotent.
 */
void fp_agent_exiting(struct fp_agent *agent);

/*
 * The process is about to become somebody whom its nodes may refuse. In a forked child that has no
 * sessions of its own yet, waits for these, up to the deadline of its first calls. Any thread of
 * the program; errno stays.
 */
void fp_agent_await_sessions(struct fp_agent *agent);

/* True if a node is reached by a network: a child connects anew, in the network of the thread that
 * forks. */
bool fp_agent_needs_network(const struct fp_agent *agent);

/*
 * The bracket around calls of space.h: signals are blocked, and what is allocated is local
 * (enter_local). Returns what leaving takes.
 */
uint64_t fp_agent_enter(const struct fp_agent *agent);
void fp_agent_leave(const struct fp_agent *agent, uint64_t mask);

struct fp_space *fp_agent_space(struct fp_agent *agent);
struct fp_statspage *fp_agent_stats(struct fp_agent *agent);

/* Checks without starting anything that this process may use userfaultfd as far memory needs; 0 or
 * as above.
 */
int fp_agent_check_kernel(struct fp_agent_error *error);

/*
 * The agent keeps the thread that faults most on the fault thread's CPU (FP_AFFINITY_AUTO). Lets go
 * of the caller, or of anyone, before the program makes threads or programs, asks for CPUs or
 * chooses some.
 */
void fp_agent_affinity_release(struct fp_agent *agent, bool anyone);

/*
 * True in a child that was made by a bare system call, behind fork's back: it has no far memory and
 * no agent, and must not use what looks like its parent's. stop_stray ends such a process with a
 * message and status
 * 125. Signal handlers too.
 */
bool fp_agent_is_stray(const struct fp_agent *agent);
void fp_agent_stop_stray(const struct fp_agent *agent);

/*
 * Holds: where the kernel can't fault on far memory (inline faults, or only user-mode faults
 * permitted), each system call that hands memory over is bracketed by a hold of it.
 *
 *   r = fp_agent_pin(agent, ranges, n, &hold);   makes it resident, and keeps it so
 *   ... the system call ...
 *   fp_agent_unpin(agent, &hold);
 *
 * Any thread of the program, signal handlers too, nested; no lock, no allocation. struct fp_pin is
 * on the stack of the thread that made it and undoes it, the last one first; those that a longjmp
 * or a cancelled thread left behind end with that thread's next hold, or by fp_agent_thread_ends.
 * Layout calls of other threads go on meanwhile, as the kernel's do: what they unmap, the call
 * finds unmapped. In a forked child the forking thread's holds go on, all others are gone.
 */
struct fp_pin_range {
	const void *addr; /* any address and length: what of it is not far is left alone */
	size_t len_bytes;
	bool write; /* the kernel shall write it */
};

struct fp_pin {
	uint32_t place, n;   /* the agent's; n 0: nothing had to be held, unhold is fine */
	uint32_t depth;      /* the agent's */
	unsigned fit_ranges; /* -E2BIG: so many ranges, from the first on, could be held as they are, ... */
	size_t fit_bytes;    /* ... and so many bytes of the next; at least one of the two is not 0 */
};

/*
 * The handler of SIGBUS, which a fault raises with FP_FAULT_MODE_INLINE, asks this first, with the
 * arguments that it got. True: it was a page of an agent in this process, and the thread may go on;
 * or it was sent while the thread worked for one, and comes once more. False: it is the program's
 * to deal with; so is the loss of a page. On any thread, on local memory, with all signals blocked;
 * it may take as long as a fault does, at most the deadline.
 */
bool fp_agent_signal(const siginfo_t *info, const void *context);

/* What the calling thread holds, as a number; and back to that, after a child of vfork that may
 * have been killed in a call. */
unsigned fp_agent_pin_depth(void);
void fp_agent_pin_vforked(unsigned depth);

/* Whether holds do anything here; else the calls below return at once. */
bool fp_agent_needs_pins(const struct fp_agent *agent);

/*
 * Makes every far page of the ranges resident (and writable where write) and keeps it so until
 * fp_agent_unpin. Waits as faults do, at most the deadline a page. What is unmapped, of another
 * protection, or lost, is passed over: of that the kernel answers EFAULT, or a short count, as it
 * always would. 0 and *ret_hold; -E2BIG: together more than a quarter of the local memory; -ENOMEM:
 * 262144 ranges are held.
 */
int fp_agent_pin(struct fp_agent *agent, const struct fp_pin_range *ranges, unsigned n,
                 struct fp_pin *ret_hold);
void fp_agent_unpin(struct fp_agent *agent, struct fp_pin *hold);

/* Whether a page that a device writes into may be captured unseen: see fp_agent_pin_for_device. */
bool fp_agent_is_blind_to_devices(const struct fp_agent *agent);

/*
 * For calls in which a device may write into memory (O_DIRECT). Where holds are needed, a hold.
 * Where the kernel faults by itself, but capture can't tell that a page is pinned: keeps the far
 * pages of the ranges from leaving, without bringing them in. Else nothing. As fp_agent_pin in all
 * other respects.
 */
int fp_agent_pin_for_device(struct fp_agent *agent, const struct fp_pin_range *ranges, unsigned n,
                            struct fp_pin *ret_hold);

/* The calling thread is ending: what it still holds is let go. */
void fp_agent_thread_ends(struct fp_agent *agent);

/* True on a thread that the agent started. */
bool fp_agent_is_own_thread(void);

/*
 * fork(2) in four parts, for pthread_atfork. All four run on the forking thread, on a local stack
 * (local_stack.h), with signals blocked: a handler that forks would wait for the fork that it has
 * interrupted.
 *
 * quiet waits for nodes that are cut off, up to the deadline, or for as long as pages wait for
 * them. Then it waits for write-backs and for what the agent does that allocates, at most about the
 * deadline each. So it must come before locks of the allocator are taken. On a far stack it ends
 * the process with status 125.
 *
 * prepare makes every remote page shared and keeps the layout; parent lets all go on. child starts
 * an agent of its own over the inherited address space, which fetches what is remote when it is
 * touched: it sees exactly the parent's bytes at the fork. It blocks on no node: its sessions are
 * opened meanwhile. If it can't, it prints why and ends the process with status 125: never wrong
 * bytes.
 */
void fp_agent_fork_quiet(struct fp_agent *agent);
void fp_agent_fork_prepare(struct fp_agent *agent);
void fp_agent_fork_parent(struct fp_agent *agent);
void fp_agent_fork_child(struct fp_agent *agent);

#endif
