/*
 * userfaultfd(2), with little added. Only this module issues its ioctls. Room: uffd/kernel. Errors
 * are negative errnos. A call that may do only a part of its work returns how many bytes it has
 * done.
 *
 * Sources: userfaultfd(2), ioctl_userfaultfd(2), and for what these omit, fs/userfaultfd.c of Linux
 * 6.1 to 6.18.
 */
#ifndef FP_UFFD_H
#define FP_UFFD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fp_uffd {
	int fd;
	bool has_move;   /* UFFDIO_MOVE (Linux 6.8) */
	bool has_poison; /* UFFDIO_POISON (Linux 6.6) */
	bool sigbus;     /* a fault raises SIGBUS in its thread; inside a system call it gives EFAULT */
	bool user_only;  /* only user-mode faults were permitted: inside a system call a fault gives EFAULT */
};

/* Flags of fp_uffd_open. */
enum fp_uffd_flags {
	FP_UFFD_SIGBUS = 1 << 0,    /* UFFD_FEATURE_SIGBUS */
	FP_UFFD_USER_ONLY = 1 << 1, /* if more is not permitted, user-mode faults suffice (Linux 5.11) */
};

#define FP_UFFD_READ_MAX 32u /* most messages of one read */

/* A message: a fault, or an event. The thread that caused an event waits until it is read. */
struct fp_uffd_fault {
	uint64_t addr;          /* the page's address */
	const char *changed_by; /* of an event: the calls that may have caused it; NULL: a fault */
	uint32_t tid;           /* the faulting thread; not set if the thread serves its own faults */
	bool write;
	bool wp; /* the fault is a write to a present, protected page */
};

/*
 * Opens a userfaultfd: by the system call, else by /dev/userfaultfd. It serves kernel-mode faults
 * too, unless user_only is set. Returns 0 and *ret_uffd, or an error: -EPERM (not permitted),
 * -ENOSYS (the kernel has none), -EOPNOTSUPP (no write-protect: Linux before 5.7).
 */
int fp_uffd_open(unsigned flags, struct fp_uffd *ret_uffd);
void fp_uffd_close(struct fp_uffd *uffd);

/* True if a fault inside a system call ends by EFAULT, so that memory given to calls must be
 * pinned. */
static inline bool fp_uffd_needs_pins(const struct fp_uffd *uffd)
{
	return uffd->sigbus || uffd->user_only;
}

/* Writes into buf, for a person, the meaning of error (-EPERM and the like) and its remedies. */
void fp_uffd_explain(int error, char *buf, size_t len);

/* Registers a range for missing and write-protect faults. */
int fp_uffd_register(const struct fp_uffd *uffd, void *addr, size_t len);

/*
 * Registers a range for write-protect faults only, which never occur there. So the kernel fills
 * pages as usual, but reports the mapping's end. The range must not be registered yet.
 */
int fp_uffd_register_fills(const struct fp_uffd *uffd, void *addr, size_t len);

/*
 * Unregisters a range that is wholly registered, and wakes the threads that wait there. -ENOMEM:
 * too many mappings.
 */
int fp_uffd_unregister(const struct fp_uffd *uffd, void *addr, size_t len);

/* Sets whether fp_uffd_read blocks. */
int fp_uffd_set_nonblock(const struct fp_uffd *uffd, bool nonblock);

/* Reads up to max (at most FP_UFFD_READ_MAX) messages, faults first. Returns their number, 0 if
 * there is none, or a negative errno. */
int fp_uffd_read(const struct fp_uffd *uffd, struct fp_uffd_fault *ret_faults, unsigned max);

/*
 * True if an event is pending, or the thread that caused one has not continued yet. While this is
 * true, all calls below except fp_uffd_wake give -EAGAIN.
 */
bool fp_uffd_is_changing(const struct fp_uffd *uffd);

/*
 * Installs len bytes at dst and wakes the threads that wait there. If the parameter protect is
 * true, the pages are write-protected. Returns the bytes installed (may be fewer than len), or an
 * error: -EEXIST (the first page is present), -ENOENT (no longer mapped), -EAGAIN (the layout is
 * changing), -ESRCH (the process is exiting), -ENOMEM.
 */
ssize_t fp_uffd_copy(const struct fp_uffd *uffd, void *dst, const void *src, size_t len, bool protect);

/*
 * Moves whole pages, each atomically, from src to dst, which must be empty. Returns the bytes moved
 * (may be fewer than len), or an error: -EBUSY (pinned for I/O or shared with a forked child),
 * -ENOENT (not there), -EINVAL (mapped read-only, or locked), -EAGAIN (the layout is changing).
 *
 * The kernel may move pages without reporting them. The result includes such pages if mincore is
 * permitted or pagemap_fd is not -1.
 */
ssize_t fp_uffd_move(const struct fp_uffd *uffd, int pagemap_fd, void *dst, void *src, size_t len);

/*
 * Write-protects present pages if the parameter protect is true. Otherwise lifts their protection
 * and wakes the threads that wait for them. Returns 0, -ENOENT (not mapped) or -EAGAIN (the layout
 * is changing).
 */
int fp_uffd_protect(const struct fp_uffd *uffd, void *addr, size_t len, bool protect);

/* Makes touches of a missing page raise SIGBUS, and wakes its waiters. -EEXIST: the page is
 * present, or already poisoned. */
int fp_uffd_poison(const struct fp_uffd *uffd, void *addr, size_t len);

int fp_uffd_wake(const struct fp_uffd *uffd, void *addr, size_t len);

#endif
