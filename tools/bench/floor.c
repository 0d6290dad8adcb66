/* The bare floor. Room: tools/bench; see floor.h. This file may call nothing of the product. */
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE_BYTES 4096u

static const struct fp_floor *served; /* the floor whose faults the SIGBUS handler serves */

static bool copy_page(const struct fp_floor *floor, uint64_t at)
{
	struct uffdio_copy copy = {
	    .dst = at,
	    .src = at + floor->bytes,
	    .len = PAGE_BYTES,
	};

	return ioctl(floor->uffd, UFFDIO_COPY, &copy) == 0;
}

/*
 * If the copy fails, or the fault is not the floor's, the same fault comes again and ends the
 * program.
 */
static void on_bus(int sig, siginfo_t *info, void *context)
{
	uintptr_t addr = (uintptr_t)info->si_addr;

	if (addr - (uintptr_t)served->memory >= served->bytes ||
	    !copy_page(served, addr & ~(uint64_t)(PAGE_BYTES - 1)))
		signal(sig, SIG_DFL);
}

/*
 * Serves faults until the thread is cancelled, which happens inside read. After an error the thread
 * ends, too. Then the touching thread waits until the user presses ^C.
 */
static void *serve(void *arg)
{
	const struct fp_floor *floor = arg;
	struct uffd_msg msg;

	while (read(floor->uffd, &msg, sizeof(msg)) == sizeof(msg)) {
		if (!copy_page(floor, msg.arg.pagefault.address & ~(uint64_t)(PAGE_BYTES - 1)))
			break;
	}
	return NULL;
}

static int register_memory(struct fp_floor *floor)
{
	struct uffdio_api api = {.api = UFFD_API, .features = floor->is_inline ? UFFD_FEATURE_SIGBUS : 0};
	struct uffdio_register registration = {
	    .range = {.start = (uintptr_t)floor->memory, .len = floor->bytes},
	    .mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	floor->uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (floor->uffd < 0)
		return -errno;
	if (ioctl(floor->uffd, UFFDIO_API, &api) < 0 ||
	    ioctl(floor->uffd, UFFDIO_REGISTER, &registration) < 0)
		return -errno;
	return 0;
}

static int start_handler(struct fp_floor *floor)
{
	struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	int r;

	if (floor->is_inline) {
		served = floor;
		sigfillset(&action.sa_mask); /* all signals are blocked, as in each handler of faults */
		r = sigaction(SIGBUS, &action, &floor->before) < 0 ? -errno : 0;
	} else {
		r = -pthread_create(&floor->handler, NULL, serve, floor);
	}
	floor->handler_runs = r == 0;
	return r;
}

int fp_floor_open(struct fp_floor *floor, size_t bytes, bool is_inline)
{
	int r;

	*floor = (struct fp_floor){.bytes = bytes, .is_inline = is_inline, .uffd = -1};
	floor->memory =
	    mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (floor->memory == MAP_FAILED)
		return -ENOMEM;
	/* a kernel without huge pages refuses this, which does no harm */
	madvise(floor->memory, 2 * bytes, MADV_NOHUGEPAGE);
	floor->source = floor->memory + bytes;
	r = register_memory(floor);
	if (r == 0)
		r = start_handler(floor);
	if (r < 0)
		fp_floor_close(floor);
	return r;
}

/* Takes as many pages from the kernel as the pass will, and gives them back. */
static int warm_free_pages(size_t bytes)
{
	void *pages =
	    mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int r;

	if (pages == MAP_FAILED)
		return -errno;
	madvise(pages, bytes, MADV_NOHUGEPAGE); /* may be refused, as above */
	r = madvise(pages, bytes, MADV_POPULATE_WRITE) < 0 ? -errno : 0;
	munmap(pages, bytes);
	return r;
}

int fp_floor_warm(const struct fp_floor *floor)
{
	int fd = memfd_create("floor", MFD_CLOEXEC), r = fd < 0 ? -errno : 0;

	for (size_t at = 0; r == 0 && at < floor->bytes; at += PAGE_BYTES)
		if (pwrite(fd, floor->source + at, PAGE_BYTES, 0) != PAGE_BYTES)
			r = -errno;
	if (fd >= 0)
		close(fd);
	return r < 0 ? r : warm_free_pages(floor->bytes);
}

void fp_floor_close(struct fp_floor *floor)
{
	if (floor->handler_runs && floor->is_inline) {
		sigaction(SIGBUS, &floor->before, NULL);
	} else if (floor->handler_runs) {
		pthread_cancel(floor->handler);
		pthread_join(floor->handler, NULL);
	}
	if (floor->uffd >= 0)
		close(floor->uffd);
	munmap(floor->memory, 2 * floor->bytes);
}
