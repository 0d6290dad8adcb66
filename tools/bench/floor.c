/*
 * The bare floor, see floor.h. Nothing of the product may be called from here but its cleanup
 * macros.
 */
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"

#define PAGE_BYTES 4096u

struct fp_floor {
	size_t bytes;
	char *memory; /* MAP_FAILED: none */
	char *source; /* MAP_FAILED: none */
	int uffd;     /* -1: none */
	pthread_t handler;
	bool handler_runs;
	bool is_inline;
	struct sigaction before; /* between enter and leave, inline */
};

static const struct fp_floor *entered; /* whose faults SIGBUS serves */

static void free_floor(struct fp_floor **floor)
{
	fp_floor_close(*floor);
}

static bool copy_page(const struct fp_floor *floor, uint64_t at)
{
	struct uffdio_copy copy = {
	    .dst = at,
	    .src = (uintptr_t)floor->source + (at - (uintptr_t)floor->memory),
	    .len = PAGE_BYTES,
	};

	return ioctl(floor->uffd, UFFDIO_COPY, &copy) == 0;
}

/* What fails, or is no fault of the floor's, comes again and ends the program. */
static void on_bus(int sig, siginfo_t *info, void *context)
{
	uintptr_t addr = (uintptr_t)info->si_addr;

	if (addr - (uintptr_t)entered->memory >= entered->bytes ||
	    !copy_page(entered, addr & ~(uint64_t)(PAGE_BYTES - 1)))
		signal(sig, SIG_DFL);
}

/* Ends by cancellation, in the read; on an error too, which leaves the touching thread waiting for
 * a ^C. */
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

static char *map_pages(size_t bytes)
{
	char *pages =
	    mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (pages != MAP_FAILED)
		madvise(pages, bytes,
		        MADV_NOHUGEPAGE); /* a kernel without huge pages refuses, and need not care */
	return pages;
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

static int start_handler(struct fp_floor *floor, int cpu)
{
	pthread_attr_t attr;
	cpu_set_t set;
	int r;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	r = pthread_attr_init(&attr);
	if (r)
		return -r;
	r = pthread_attr_setaffinity_np(&attr, sizeof(set), &set);
	if (r == 0)
		r = pthread_create(&floor->handler, &attr, serve, floor);
	pthread_attr_destroy(&attr);
	floor->handler_runs = r == 0;
	return -r;
}

int fp_floor_open(size_t bytes, int cpu, bool is_inline, struct fp_floor **ret_floor)
{
	FP_CLEANUP(free_floor) struct fp_floor *floor = calloc(1, sizeof(*floor));
	int r;

	if (!floor)
		return -ENOMEM;
	floor->bytes = bytes;
	floor->is_inline = is_inline;
	floor->uffd = -1;
	floor->memory = map_pages(bytes);
	floor->source = map_pages(bytes);
	if (floor->memory == MAP_FAILED || floor->source == MAP_FAILED)
		return -ENOMEM;
	r = register_memory(floor);
	if (r == 0 && !is_inline)
		r = start_handler(floor, cpu);
	if (r < 0)
		return r;
	*ret_floor = fp_take_ptr(floor);
	return 0;
}

int fp_floor_enter(struct fp_floor *floor)
{
	struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	if (!floor->is_inline)
		return 0;
	entered = floor;
	sigfillset(&action.sa_mask); /* as any such handler must */
	return sigaction(SIGBUS, &action, &floor->before) < 0 ? -errno : 0;
}

void fp_floor_leave(struct fp_floor *floor)
{
	if (floor->is_inline)
		sigaction(SIGBUS, &floor->before, NULL);
}

void *fp_floor_memory(const struct fp_floor *floor)
{
	return floor->memory;
}

void *fp_floor_source(const struct fp_floor *floor)
{
	return floor->source;
}

int fp_floor_reset(struct fp_floor *floor)
{
	return madvise(floor->memory, floor->bytes, MADV_DONTNEED) < 0 ? -errno : 0;
}

void fp_floor_close(struct fp_floor *floor)
{
	if (!floor)
		return;
	if (floor->handler_runs) {
		pthread_cancel(floor->handler);
		pthread_join(floor->handler, NULL);
	}
	if (floor->uffd >= 0)
		close(floor->uffd);
	if (floor->memory != MAP_FAILED)
		munmap(floor->memory, floor->bytes);
	if (floor->source != MAP_FAILED)
		munmap(floor->source, floor->bytes);
	free(floor);
}
