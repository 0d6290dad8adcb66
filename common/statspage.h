/*
 * The stats page: a memory-mapped file in which an agent counts. Room: common. Writers (uffd/) only
 * add with relaxed atomics. Readers copy the page (statsview.h) without stopping anyone.
 *
 * A page in the user's folder is unlinked at exit. If the program ends in another way (_exit, a
 * signal, exec), the next program that makes a page there removes it. A file that the user chose
 * elsewhere stays. So does a page in the folder of a `farpage run`, which removes it. While the
 * writer maps the file, it holds a lock on the file (flock). So readers in another pid namespace
 * also know whether the writer lives.
 */
#ifndef FP_STATSPAGE_H
#define FP_STATSPAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "hist.h"

#define FP_STATSPAGE_MAGIC   0x3153544154535046ull /* "FPSTATS1" */
#define FP_STATSPAGE_VERSION 7
#define FP_STATSPAGE_NODES   16
#define FP_STATSPAGE_SUFFIX  ".stats"

/* How a fault ended (law 1: each fault ends exactly once). The order is part of the file format. */
enum fp_fault_kind {
	FP_FAULT_ZERO,     /* the page was never written: filled with zeros locally */
	FP_FAULT_READ,     /* fetched from a node after a read access */
	FP_FAULT_WRITE,    /* fetched from a node after a write access */
	FP_FAULT_PROTECT,  /* write to a resident clean page: protection lifted */
	FP_FAULT_RESCUED,  /* the page was about to leave: put back from the stage */
	FP_FAULT_PRESENT,  /* the page was present already: the thread was woken */
	FP_FAULT_DROPPED,  /* the region was unmapped during the fault */
	FP_FAULT_POISONED, /* no node could give it back: SIGBUS */
	FP_FAULT_KINDS
};

/*
 * The number of kinds that have a histogram of their own: those from the first kind to
 * FP_FAULT_PROTECT.
 */
#define FP_FAULT_TIMED (FP_FAULT_PROTECT + 1)

/* The state of a node. The order is part of the file format. */
enum fp_stats_node_state {
	FP_STATS_NODE_UP,
	FP_STATS_NODE_OPEN,      /* cut off: faults that need the node wait */
	FP_STATS_NODE_HALF_OPEN, /* cut off, and an attempt to reach it is under way */
	FP_STATS_NODE_LOST,      /* gone for good, with the pages that only it held */
	FP_STATS_NODE_UNASKED,   /* a forked child has not needed it yet: nothing is known of it */
	FP_STATS_NODE_STATES
};

struct fp_stats_node {
	char url[128];             /* the URL used at the start; empty: this entry is unused */
	char way[128];             /* the URL used now, or used last; a reader may see it change */
	_Atomic uint32_t up;       /* 1: state is FP_STATS_NODE_UP */
	_Atomic uint32_t state;    /* enum fp_stats_node_state */
	_Atomic uint32_t degraded; /* 1: up, but not over the transport that its URL prefers */
	_Atomic uint32_t spent;    /* 1: cut off for so long that pages no longer wait for it */
	_Atomic uint64_t leased_bytes;
	_Atomic uint64_t read_bytes;
	_Atomic uint64_t written_bytes;
	_Atomic uint64_t reconnects;   /* how often its session was resumed */
	_Atomic uint64_t failures;     /* how often it was cut off */
	_Atomic uint64_t heartbeat_ns; /* round trip of the last heartbeat; 0: none yet */
};

struct fp_statspage {
	uint64_t magic;
	uint32_t version;
	uint32_t size_bytes; /* sizeof(struct fp_statspage) */
	int32_t pid;
	int32_t ppid;
	uint64_t start_ticks;       /* field 22 of /proc/PID/stat, to notice that the PID was reused */
	uint64_t start_realtime_ns; /* when the page was made: tells pages of one process apart */
	char command[64];           /* the program's name, as prctl(PR_GET_NAME) gives it */
	char fault_mode[16];
	char capture[16];        /* "move" or "protect" */
	_Atomic uint64_t exited; /* 1 once the program has exited in good order */
	_Atomic uint64_t budget_bytes;
	_Atomic uint64_t mapped_bytes; /* far address space that is mapped now */
	_Atomic uint64_t mapped_peak_bytes;
	_Atomic uint64_t resident_bytes;
	_Atomic uint64_t resident_peak_bytes;
	_Atomic uint64_t remote_bytes; /* bytes of the slots in use */
	/* From here to not_far_bytes all are counters: tools/stats_dir.c adds them up over
	 * programs. */
	_Atomic uint64_t faults[FP_FAULT_KINDS];
	_Atomic uint64_t prefetched_pages;
	_Atomic uint64_t fetched_bytes;
	_Atomic uint64_t written_bytes;
	_Atomic uint64_t evicted_clean; /* pages dropped without a write */
	_Atomic uint64_t evicted_dirty; /* pages written back */
	_Atomic uint64_t evicted_zero;  /* pages found all zero, which are never sent */
	_Atomic uint64_t evict_refused; /* pages that could not leave (EBUSY: pinned for I/O) */
	/* pages that threads evicted while they served faults: clean, dirty and zero ones */
	_Atomic uint64_t evicted_on_fault;
	_Atomic uint64_t waits_for_room; /* faults without a free token, which waited for an eviction */
	/* In fault mode thread: faults of another thread than the one of the fault before. */
	_Atomic uint64_t thread_changes;
	_Atomic uint64_t own_mallocs; /* 1: the program brings a malloc of its own */
	_Atomic uint64_t lost_pages;
	_Atomic uint64_t not_far_bytes;    /* shared and file mappings, and memory that rules keep local */
	_Atomic uint64_t rule_local_bytes; /* mappings that a rule keeps local now */
	_Atomic uint64_t far_start;        /* addresses of the far range */
	_Atomic uint64_t far_end;
	struct fp_stats_node node[FP_STATSPAGE_NODES];
	/* The sum of kind_latency. Only a reader's copy has it: see fp_statspage_sum_kinds. */
	struct fp_hist fault_latency;
	/*
	 * From a fault's arrival at the agent to the wake-up, by kind. Also of faults whose page
	 * was lost. Not timed: faults whose page was present, was put back from the staging area,
	 * or was being fetched already.
	 */
	struct fp_hist kind_latency[FP_FAULT_TIMED];
	struct fp_hist waited_latency; /* once more, the faults of kind_latency that waits_for_room counts */
	/*
	 * The read of the page of a READ or WRITE fault. Over a wire: from request to answer. From
	 * mapped memory: UFFDIO_COPY, which also installs the page, and pages read ahead with it.
	 * Of these copies, one in eight is timed.
	 */
	struct fp_hist fetch_latency;
	/*
	 * The write of a batch's dirty pages, from the choice of their slots until the last of them
	 * is at its node and has left. If a copy of a page was written, its original is dropped
	 * right after the write. This time is included.
	 */
	struct fp_hist writeback_latency;
	struct fp_hist evict_latency; /* a batch of evictions, from the choice of its pages */
};

/*
 * Creates the page at path (0600), fills in the identity fields of the calling process, and maps
 * the page. Locks it in memory where the limit allows. Replaces an existing regular file of this
 * user. But if the parameter yields is true and the file's lock is held, does not replace it, and
 * returns -EBUSY. Otherwise returns 0 and *ret_page, or a negative errno. -EFBIG: RLIMIT_FSIZE has
 * no room for the page. -EISDIR: path is a folder. -EEXIST: it is another user's file, or no
 * regular file. Release with fp_statspage_close. Call before the fault threads start.
 */
int fp_statspage_create(const char *path, bool yields, struct fp_statspage **ret_page);

/*
 * Makes the page in private memory, for a process that cannot have the file. No other process can
 * read it.
 */
int fp_statspage_create_unseen(struct fp_statspage **ret_page);

#define FP_STATSPAGE_EXPLAIN_LEN 128

/* Why a page could not be created, and what to do, for a person. Returns buf or a constant. */
const char *fp_statspage_explain(int error, char *buf, size_t len);

/* Copies all counters, while others count. Any thread. */
void fp_statspage_copy(struct fp_statspage *to, const struct fp_statspage *from);

/* Writes to *ret_sum the latency of all faults, of any kind. Any thread, while others count. A
 * fault is recorded once only, by its kind, because recording costs time on the fault path. */
void fp_statspage_sum_kinds(const struct fp_statspage *page, struct fp_hist *ret_sum);

/* Unmaps; NULL is fine. */
void fp_statspage_close(const struct fp_statspage *page);

/* PID.stats in the folder of fp_rundir_path: the page of a program, or a copy of it
 * (agent_stats.h). */
int fp_statspage_path(pid_t pid, char *buf, size_t len);

/*
 * Writes to buf the path of a process's page. pattern is the path that the user chose; its first
 * "%p" is replaced by the process number. So a program and its children have files of their own. 0
 * or -ENAMETOOLONG.
 */
int fp_statspage_expand(const char *pattern, pid_t pid, char *buf, size_t len);

/*
 * Returns 1 if the process that wrote page still lives (same pid and start time), 0 if not. It may
 * run another program by now: fp_statsview tells whether the page still has a writer.
 */
int fp_statspage_alive(const struct fp_statspage *page);

/*
 * True if both are looks at one page: at one far memory of one program. A program that calls exec
 * keeps its process number and start time, but makes another page.
 */
bool fp_statspage_same(const struct fp_statspage *a, const struct fp_statspage *b);

/*
 * Returns the PID in the name PID.stats of a stats page: usually that of its process. -EINVAL: the
 * name has another form.
 */
int fp_statspage_owner(const char *name);

/*
 * Takes the name of a file in the folder of fp_statspage_path. If it is a page's temporary name,
 * returns the number of the process that is making the page. Returns 0 if that process has ended,
 * so that nobody completes the page. Returns -EINVAL if the name has another form.
 */
int fp_statspage_maker(const char *name);

/*
 * True for a page, of any version, that nobody writes any more. If finished is false, it may be a
 * page that its maker has not finished, which may still be empty.
 */
bool fp_statspage_is_free(int dir_fd, const char *name, bool finished);

/*
 * Removes from this user's folder dir the pages that ended processes have left there. Allocates
 * nothing, so that a forked child may call it.
 */
void fp_statspage_sweep(const char *dir);

/* "up", "cut off", "reconnecting", "lost", "not yet connected"; "?" for an unknown state. */
const char *fp_stats_node_state_name(uint32_t state);

/* True for a node that is neither up nor merely not needed yet. */
bool fp_stats_node_is_trouble(uint32_t state);

/* "zero", "read", ... */
const char *fp_fault_kind_name(enum fp_fault_kind kind);

#endif
