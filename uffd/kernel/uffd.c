/* See uffd.h. */
#include "presence.h"
#include "uffd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "abi.h"
#include "cleanup.h"
#include "fdutil.h"
#include "store.h"

/* All these features are older than write-protection. */
#define FEATURES_NEEDED                                                                                      \
	(UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_EVENT_UNMAP |                \
	 UFFD_FEATURE_EVENT_REMAP)

/*
 * Issues an ioctl. If a bare close has taken the descriptor away, notices that here, before the
 * fault ends: see fdguard.h.
 */
static int uffd_ioctl(int fd, unsigned long request, void *arg)
{
	int r = ioctl(fd, request, arg) < 0 ? -errno : 0;

	if (r == -EBADF || r == -ENOTTY)
		fp_fd_lost();
	return r;
}

static int open_any(bool *ret_user_only, unsigned flags)
{
	fp_autoclose int dev = -1;
	int fd = FP_FD_OPEN((int)syscall(SYS_userfaultfd, O_CLOEXEC)), error = errno;

	*ret_user_only = false;
	if (fd >= 0)
		return fd;
	dev = FP_FD_OPEN(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
	if (dev >= 0)
		fd = FP_FD_OPEN(ioctl(dev, USERFAULTFD_IOC_NEW, O_CLOEXEC));
	if (fd < 0 && (flags & FP_UFFD_USER_ONLY)) {
		fd = FP_FD_OPEN((int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
		*ret_user_only = fd >= 0;
	}
	return fd < 0 ? -error : fd;
}

/*
 * A descriptor allows only one API handshake. So the features are read from a descriptor that is
 * then closed.
 */
static int probe_features(unsigned flags, uint64_t *ret_features)
{
	struct uffdio_api api = {.api = UFFD_API};
	bool user_only;
	fp_autoclose int fd = open_any(&user_only, flags);
	int r;

	if (fd < 0)
		return fd;
	r = uffd_ioctl(fd, UFFDIO_API, &api);
	if (r < 0)
		return r;
	*ret_features = api.features;
	return 0;
}

int fp_uffd_open(unsigned flags, struct fp_uffd *ret_uffd)
{
	const uint64_t needed = FEATURES_NEEDED | (flags & FP_UFFD_SIGBUS ? UFFD_FEATURE_SIGBUS : 0);
	const uint64_t wanted = needed | UFFD_FEATURE_POISON | UFFD_FEATURE_MOVE;
	fp_autoclose int fd = -1;
	struct uffdio_api api = {.api = UFFD_API};
	bool user_only;
	uint64_t offered;
	int r = probe_features(flags, &offered);

	if (r < 0)
		return r;
	if ((offered & needed) != needed)
		return -EOPNOTSUPP;
	fd = open_any(&user_only, flags);
	if (fd < 0)
		return fd;
	api.features = offered & wanted;
	r = uffd_ioctl(fd, UFFDIO_API, &api);
	if (r < 0)
		return r;
	ret_uffd->fd = fp_take_fd(fd);
	ret_uffd->has_move = offered & UFFD_FEATURE_MOVE;
	ret_uffd->has_poison = offered & UFFD_FEATURE_POISON;
	ret_uffd->sigbus = flags & FP_UFFD_SIGBUS;
	ret_uffd->user_only = user_only;
	return 0;
}

void fp_uffd_close(struct fp_uffd *uffd)
{
	fp_fd_close(uffd->fd);
	uffd->fd = -1;
}

static int register_for(const struct fp_uffd *uffd, void *addr, size_t len, uint64_t mode)
{
	struct uffdio_register reg = {.range = {.start = (uintptr_t)addr, .len = len}, .mode = mode};

	return uffd_ioctl(uffd->fd, UFFDIO_REGISTER, &reg);
}

int fp_uffd_register(const struct fp_uffd *uffd, void *addr, size_t len)
{
	return register_for(uffd, addr, len, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
}

int fp_uffd_register_fills(const struct fp_uffd *uffd, void *addr, size_t len)
{
	return register_for(uffd, addr, len, UFFDIO_REGISTER_MODE_WP);
}

int fp_uffd_unregister(const struct fp_uffd *uffd, void *addr, size_t len)
{
	struct uffdio_range range = {.start = (uintptr_t)addr, .len = len};

	return uffd_ioctl(uffd->fd, UFFDIO_UNREGISTER, &range);
}

int fp_uffd_set_nonblock(const struct fp_uffd *uffd, bool nonblock)
{
	int flags = fcntl(uffd->fd, F_GETFL);

	if (flags < 0)
		return -errno;
	flags = nonblock ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
	return fcntl(uffd->fd, F_SETFL, flags) < 0 ? -errno : 0;
}

/* Returns false for a message that we did not ask for. */
static bool decode(const struct uffd_msg *m, struct fp_uffd_fault *ret_fault)
{
	switch (m->event) {
	case UFFD_EVENT_PAGEFAULT:
		*ret_fault = (struct fp_uffd_fault){
		    .addr = m->arg.pagefault.address & ~4095ull,
		    .tid = m->arg.pagefault.feat.ptid,
		    .write = m->arg.pagefault.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP),
		    .wp = m->arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP,
		};
		return true;
	case UFFD_EVENT_UNMAP:
		*ret_fault =
		    (struct fp_uffd_fault){.changed_by = "munmap or mmap", .addr = m->arg.remove.start};
		return true;
	case UFFD_EVENT_REMAP:
		*ret_fault = (struct fp_uffd_fault){.changed_by = "mremap", .addr = m->arg.remap.from};
		return true;
	default:
		return false;
	}
}

int fp_uffd_read(const struct fp_uffd *uffd, struct fp_uffd_fault *ret_faults, unsigned max)
{
	struct uffd_msg msgs[FP_UFFD_READ_MAX];
	ssize_t got = read(uffd->fd, msgs, sizeof(msgs[0]) * FP_MIN(max, FP_UFFD_READ_MAX));
	int n = 0;

	if (got < 0 && errno == EBADF)
		fp_fd_lost();
	if (got < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	for (size_t i = 0; i < (size_t)got / sizeof(msgs[0]); i++)
		n += decode(&msgs[i], &ret_faults[n]);
	return n;
}

/*
 * True while a mapping is being changed: then the kernel fails with EAGAIN before it checks the
 * arguments. At other times the empty range gives EINVAL.
 */
bool fp_uffd_is_changing(const struct fp_uffd *uffd)
{
	return fp_uffd_protect(uffd, NULL, 0, false) == -EAGAIN;
}

/*
 * Returns how many bytes an ioctl has done, or its error. done is the count that the kernel wrote;
 * after a failure it may be a negative errno. If only a part was done, the kernel returns EAGAIN
 * and writes the count of that part.
 */
static ssize_t done_or_error(int r, int64_t done)
{
	if (done > 0)
		return (ssize_t)done;
	return r < 0 ? r : -EAGAIN;
}

ssize_t fp_uffd_copy(const struct fp_uffd *uffd, void *dst, const void *src, size_t len, bool protect)
{
	struct uffdio_copy copy = {
	    .dst = (uintptr_t)dst,
	    .src = (uintptr_t)src,
	    .len = len,
	    .mode = protect ? UFFDIO_COPY_MODE_WP : 0,
	};
	int r = uffd_ioctl(uffd->fd, UFFDIO_COPY, &copy);

	return done_or_error(r, copy.copy);
}

/*
 * How many bytes were moved although the kernel did not report them. Linux 6.18 may move pages and
 * then try again: it finds their places taken, and reports EEXIST or too few bytes. dst was empty,
 * so a page that is there now has been moved.
 */
static size_t moved_unsaid(int pagemap_fd, const char *dst, const char *src, size_t len)
{
	size_t moved = 0;

	while (moved < len && fp_presence_is_here(pagemap_fd, dst + moved) &&
	       !fp_presence_is_here(pagemap_fd, src + moved))
		moved += FP_PAGE_SIZE;
	return moved;
}

ssize_t fp_uffd_move(const struct fp_uffd *uffd, int pagemap_fd, void *dst, void *src, size_t len)
{
	struct uffdio_move move = {.dst = (uintptr_t)dst, .src = (uintptr_t)src, .len = len};
	int r = uffd_ioctl(uffd->fd, UFFDIO_MOVE, &move);
	size_t told = move.move > 0 ? (size_t)move.move : 0;

	if (r == -EEXIST || (told > 0 && told < len))
		move.move = (int64_t)(told + moved_unsaid(pagemap_fd, (char *)dst + told, (char *)src + told,
		                                          len - told));
	return done_or_error(r, move.move);
}

int fp_uffd_protect(const struct fp_uffd *uffd, void *addr, size_t len, bool protect)
{
	struct uffdio_writeprotect wp = {
	    .range = {.start = (uintptr_t)addr, .len = len},
	    .mode = protect ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	return uffd_ioctl(uffd->fd, UFFDIO_WRITEPROTECT, &wp);
}

int fp_uffd_poison(const struct fp_uffd *uffd, void *addr, size_t len)
{
	struct uffdio_poison poison = {.range = {.start = (uintptr_t)addr, .len = len}};

	if (!uffd->has_poison)
		return -EOPNOTSUPP;
	return uffd_ioctl(uffd->fd, UFFDIO_POISON, &poison);
}

int fp_uffd_wake(const struct fp_uffd *uffd, void *addr, size_t len)
{
	struct uffdio_range range = {.start = (uintptr_t)addr, .len = len};

	return uffd_ioctl(uffd->fd, UFFDIO_WAKE, &range);
}
