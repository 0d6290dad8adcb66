/*
 * userfaultfd(2), wrapped thinly: this is the only file of uffd/ that issues its ioctls. Room:
 * uffd. Errors are negative errno; a call that can be partial returns the bytes it did, if any.
 * Source: userfaultfd(2), ioctl_userfaultfd(2), and fs/userfaultfd.c of Linux 6.1 to 6.18 for what
 * these leave out.
 */
#ifndef FP_UFFD_H
#define FP_UFFD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fp_uffd {
	int fd;
	bool has_move;   /* UFFDIO_MOVE, 6.8 */
	bool has_poison; /* UFFDIO_POISON, 6.6 */
	bool sigbus;     /* faults raise SIGBUS in the faulting thread, and the kernel's own end by EFAULT */
	bool user_only;  /* the kernel's own faults end by EFAULT: it was not permitted to serve them */
};

/* What fp_uffd_open shall make. */
enum fp_uffd_flags {
	FP_UFFD_SIGBUS = 1 << 0,    /* UFFD_FEATURE_SIGBUS */
	FP_UFFD_USER_ONLY = 1 << 1, /* user-mode faults suffice, if more is not permitted: Linux 5.11 */
};

#define FP_UFFD_READ_MAX 32u /* messages at once */

/* A message: a fault, or an event. The thread that caused an event waits until it is read. */
struct fp_uffd_fault {
	uint64_t addr;          /* page-aligned */
	const char *changed_by; /* of an event: the calls that change a mapping so. Else NULL */
	uint32_t tid;           /* of the faulting thread; in inline.c a number of ours for it */
	bool write;
	bool wp; /* write to a protected page that is present */
};

/*
 * Opens a userfaultfd that may serve kernel-mode faults too: by the system call, else by
 * /dev/userfaultfd. 0 and *ret_uffd; -EPERM (neither is permitted), -ENOSYS, -EOPNOTSUPP (no
 * write-protect: Linux before 5.7).
 */
int fp_uffd_open(unsigned flags, struct fp_uffd *ret_uffd);
void fp_uffd_close(struct fp_uffd *uffd);

/* True if the kernel's own touches of what is registered end by EFAULT, so that holds are
 * needed. */
static inline bool fp_uffd_needs_pins(const struct fp_uffd *uffd)
{
	return uffd->sigbus || uffd->user_only;
}

/* What -EPERM and the like mean here and which remedies apply, for a person, into buf. */
void fp_uffd_explain(int error, char *buf, size_t len);

/* Registers a range for missing and write-protect faults. */
int fp_uffd_register(const struct fp_uffd *uffd, void *addr, size_t len);

/* The same for write-protect faults alone, which nothing gives rise to: the kernel fills pages as
 * anywhere, but tells of the mapping's end. The range is not registered. */
int fp_uffd_register_fills(const struct fp_uffd *uffd, void *addr, size_t len);

/* Takes a range out again, all of which is registered, and wakes who waits there. -ENOMEM: too many
 * mappings.
 */
int fp_uffd_unregister(const struct fp_uffd *uffd, void *addr, size_t len);

/* Chooses whether fp_uffd_read blocks. */
int fp_uffd_set_nonblock(const struct fp_uffd *uffd, bool nonblock);

/* Reads up to max (at most FP_UFFD_READ_MAX) messages, faults first. Their number; 0: none;
 * negative errno.
 */
int fp_uffd_read(const struct fp_uffd *uffd, struct fp_uffd_fault *ret_faults, unsigned max);

/* True if an event is pending, or whoever caused one has yet to go on: until then all of what
 * follows but fp_uffd_wake gives -EAGAIN. */
bool fp_uffd_is_changing(const struct fp_uffd *uffd);

/*
 * Installs len bytes at dst, write-protected if protect, and wakes who waits there. Returns the
 * bytes installed (can be fewer than len), or -EEXIST (first page is present), -ENOENT (no mapping
 * any more), -EAGAIN (the layout is changing), -ESRCH (the process is exiting), -ENOMEM.
 */
ssize_t fp_uffd_copy(const struct fp_uffd *uffd, void *dst, const void *src, size_t len, bool protect);

/*
 * Moves whole pages from src to dst, where nothing may be, atomically each. Returns the bytes moved
 * (may be short), or -EBUSY (pinned for I/O or shared with a forked child), -ENOENT (not there),
 * -EINVAL (mapped read-only, or locked), -EAGAIN. What the kernel moved and did not tell counts, if
 * mincore is permitted or pagemap_fd is one.
 */
ssize_t fp_uffd_move(const struct fp_uffd *uffd, int pagemap_fd, void *dst, void *src, size_t len);

/* Write-protects present pages, or lifts the protection and wakes. -ENOENT: no such mapping;
 * -EAGAIN. */
int fp_uffd_protect(const struct fp_uffd *uffd, void *addr, size_t len, bool protect);

/* Makes touches of a missing page raise SIGBUS, and wakes. -EEXIST: present (or poisoned)
 * already. */
int fp_uffd_poison(const struct fp_uffd *uffd, void *addr, size_t len);

int fp_uffd_wake(const struct fp_uffd *uffd, void *addr, size_t len);

#endif
