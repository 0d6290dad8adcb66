/*
 * libfarpage: far memory that a program asks for. The program opens a far memory, maps ranges of
 * it, and uses them like any memory. Pages that are not local are fetched from memory nodes when
 * they are touched.
 *
 * Every function returns 0 or a negative errno; outputs come last and stay untouched on failure.
 * All functions may be called from any thread unless said otherwise. A function that sends a
 * control request to a node blocks until the answer comes, at most until the deadline. If no node
 * can give a page back, a touch of the page raises SIGBUS: see patience_ms and on_loss.
 */
#ifndef FARPAGE_H
#define FARPAGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAR_API __attribute__((visibility("default")))

struct far_memory;

/*
 * Set the whole struct to zeros. Then set the member size, and the other members that you need. The
 * member size tells the library which members your version of this header has.
 */
struct far_options {
	size_t size;              /* sizeof(struct far_options) */
	uint64_t local_bytes;     /* far memory that may be resident at once; at least 64 KiB */
	const char *const *nodes; /* URLs, then NULL: "tcp://HOST[:PORT]", ...; see farpage(1) */
	const char *secret;       /* the nodes' shared secret; NULL if they want none */
	uint64_t deadline_ms;     /* the longest time of one remote operation; 0: 5000 ms */
	uint32_t overcommit;      /* non-zero: map without reserving memory on the nodes */
	uint32_t readahead_pages; /* most pages that are read ahead; 0: the default, 32; 1: no read-ahead */
	/* path of a file that has the counts too, for `farpage hist --stats-file`; NULL: none */
	const char *stats_file;
	uint32_t fault_mode; /* enum far_fault_mode */
	uint32_t on_loss;    /* enum far_on_loss */
	/*
	 * how long a touch of a page waits for a node that is cut off; 0: for the node's grace, the
	 * time for which it keeps the memory of a client that is cut off
	 */
	uint64_t patience_ms;
	/*
	 * for rdma+tcp: the name of the device (NULL: the first with an active port), and the
	 * number of its port (0: the first that is active)
	 */
	const char *rdma_device;
	uint32_t rdma_device_port;
};

enum far_fault_mode {
	FAR_FAULT_THREAD, /* a thread of the library serves faults, also those inside system calls */
	/*
	 * The thread that touches a page fetches it, in a handler of SIGBUS that far_open installs.
	 * This is faster, but has conditions. far_hold and far_unhold must bracket each system call
	 * that uses far memory: otherwise the call fails with EFAULT. A thread that touches far
	 * memory must not block SIGBUS. If its stack is far memory, it needs a signal stack
	 * elsewhere. Other SIGBUSes go on to the handler that was there before.
	 */
	FAR_FAULT_INLINE,
};

enum far_on_loss {
	FAR_ON_LOSS_SIGBUS, /* when a page could not be fetched in time, its touch raises SIGBUS */
	FAR_ON_LOSS_WAIT,   /* a touch waits until the node is back, or no longer has the page */
};

enum far_advice {
	FAR_ADVICE_WILLNEED, /* fetch these pages ahead, into half of the free local memory at most */
	FAR_ADVICE_COLD,     /* these pages leave local memory first */
	FAR_ADVICE_DISCARD,  /* drop the bytes: later reads give zeros */
};

struct far_stats {
	size_t size;             /* set by the caller: sizeof(struct far_stats) */
	uint64_t mapped_bytes;   /* far address space mapped now */
	uint64_t resident_bytes; /* the part of it in local memory */
	uint64_t remote_bytes;   /* bytes of the pages that have a slot on a node */
	uint64_t faults;         /* faults of all kinds */
	uint64_t fetched_bytes;
	uint64_t written_bytes;
	uint64_t fault_p50_ns;
	uint64_t fault_p99_ns;
	uint64_t lost_pages;
	/* how many faults ended in each way */
	uint64_t zero_faults;      /* the page was never written: filled with zeros here */
	uint64_t read_faults;      /* a read that fetched the page from a node */
	uint64_t write_faults;     /* a write that fetched the page */
	uint64_t protect_faults;   /* a write to a page that was local and clean */
	uint64_t rescued_faults;   /* the page was about to leave and was put back */
	uint64_t present_faults;   /* the page had arrived meanwhile */
	uint64_t prefetched_pages; /* pages fetched ahead of any fault */
};

/*
 * Opens a far memory: connects to every node and starts the fault threads. If error_text is not
 * NULL, it gets up to error_len bytes: what failed, and what to do. -EPERM: userfaultfd is not
 * permitted here. -ENOSYS: the kernel has no userfaultfd. -ENOTSUP: the kernel's userfaultfd can't
 * write-protect, or FAR_FAULT_INLINE needs an x86-64 processor. -ECONNREFUSED, -ENOENT, -ETIMEDOUT,
 * -EACCES, -EPROTO, ...: a node, or stats_file, could not be used. -ENOTUNIQ: two URLs name the
 * same node. -EINVAL: an option is wrong. -E2BIG: an option is set that this library does not know,
 * or the nodes have too many addresses. -ENOMEM: there is no memory, or no address space. Release
 * with far_close.
 */
FAR_API int far_open(const struct far_options *options, char *error_text, size_t error_len,
                     struct far_memory **ret_memory);

/* Unmaps everything and ends the sessions. No thread may touch the mappings any more. NULL is
 * fine. */
FAR_API void far_close(struct far_memory *memory);

/* Maps length bytes (rounded up to pages) of zeros, readable and writable. The memory belongs to
 * the caller until far_unmap or far_close. -ENOMEM: the nodes lack memory (see overcommit), no
 * node answers, or there is no address space; -EINVAL: length is 0. */
FAR_API int far_map(struct far_memory *memory, size_t length, void **ret_address);

/* Unmaps a range that far_map returned, or whole pages of it. Parts of the range may be unmapped
 * already. -EINVAL: length is 0, or address is not that of a page; -ENOMEM: the range lies outside
 * of the far memory. */
FAR_API int far_unmap(struct far_memory *memory, void *address, size_t length);

/*
 * Gives advice for a mapped range, which is rounded outwards to pages, but inwards for DISCARD.
 * -EINVAL: the advice is unknown, or the range goes beyond the last address; -ENOMEM: a part of it
 * is not mapped.
 */
FAR_API int far_advise(struct far_memory *memory, void *address, size_t length, enum far_advice advice);

struct far_hold {
	size_t fit_bytes;     /* after -E2BIG: how many bytes from address on could be held */
	uint64_t reserved[4]; /* for the library's own use */
};

/*
 * Makes a range resident, and keeps it so until far_unhold: for a system call that uses this
 * memory. If the parameter write is not 0, the range is also made writable. *hold lies on the
 * calling thread's stack. Holds end in reverse order. Signal handlers may hold, too. With
 * FAR_FAULT_THREAD this does nothing. -E2BIG: the range is larger than a quarter of the local
 * memory; hold->fit_bytes tells how much can be held. -ENOMEM: this far memory has 262144 holds
 * already.
 */
FAR_API int far_hold(struct far_memory *memory, const void *address, size_t length, int write,
                     struct far_hold *hold);

/* Ends a hold of the calling thread. The pages may leave again. */
FAR_API void far_unhold(struct far_memory *memory, struct far_hold *hold);

/*
 * Fills the first stats->size bytes of *stats. -EINVAL: there is no room for size itself. -ENOMEM:
 * there is no memory for the computation.
 */
FAR_API int far_get_stats(struct far_memory *memory, struct far_stats *stats);

/* The library's version, "0.1.0". */
FAR_API const char *far_version(void);

#ifdef __cplusplus
}
#endif

#endif
