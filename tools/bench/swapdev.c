/*
 * Swap devices of a bench. Room: tools/bench.
 */
#include "swapdev.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/swap.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "sysfile.h"

#define ZRAM_ADD      "/sys/class/zram-control/hot_add"
#define ZRAM_REMOVE   "/sys/class/zram-control/hot_remove"
#define LOOP_CONTROL  "/dev/loop-control"
#define LOOP_ATTEMPTS 16
#define SIGNATURE     "SWAPSPACE2"
#define WAIT_NS       (5 * FP_NSEC_PER_SEC)
#define LOOK_NS       (10 * (long)FP_NSEC_PER_MSEC)
#define PATH_BYTES    64

/* The beginning of a swap device, as mkswap(8) writes it. */
struct swap_header {
	char boot[1024];
	uint32_t version, last_page, n_bad_pages;
};

static int fail(int r, char *error, size_t error_len, const char *what)
{
	snprintf(error, error_len, "%s: %s", what, strerror(-r));
	return r;
}

/* The kernel's list has a heading, and a line for each device. */
static int check_alone(char *error, size_t error_len)
{
	char text[4096], *first;
	int r = fp_sysfile_read("/proc/swaps", text, sizeof(text));

	if (r < 0)
		return fail(r, error, error_len, "the kernel does not swap");
	first = text + strcspn(text, "\n");
	if (!first[0] || !first[1])
		return 0;
	snprintf(error, error_len, "this machine already swaps to %.*s, so the figures would be wrong",
	         (int)strcspn(first + 1, " \t\n"), first + 1);
	return -EBUSY;
}

static int write_header(int fd, uint64_t size_bytes)
{
	size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	fp_autofree char *page = calloc(1, page_bytes);
	struct swap_header header = {.version = 1, .last_page = (uint32_t)(size_bytes / page_bytes - 1)};

	if (!page)
		return -ENOMEM;
	memcpy(page, &header, sizeof(header));
	memcpy(page + page_bytes - strlen(SIGNATURE), SIGNATURE, strlen(SIGNATURE));
	return pwrite(fd, page, page_bytes, 0) == (ssize_t)page_bytes ? 0 : -EIO;
}

/* The device's file may appear a moment after the device. */
static int open_device(const char *path)
{
	const struct timespec pause = {.tv_nsec = LOOK_NS};
	uint64_t deadline_ns = fp_clock_kernel_ns() + WAIT_NS;
	int fd;

	while ((fd = open(path, O_RDWR | O_CLOEXEC)) < 0 && errno == ENOENT &&
	       fp_clock_kernel_ns() < deadline_ns)
		nanosleep(&pause, NULL);
	return fd < 0 ? -errno : fd;
}

static const char *zram_file(const struct fp_swapdev *device, const char *name, char path[PATH_BYTES])
{
	snprintf(path, PATH_BYTES, "/sys/block/zram%d/%s", device->number, name);
	return path;
}

static int open_zram(struct fp_swapdev *device, uint64_t size_bytes, char *error, size_t error_len)
{
	char path[PATH_BYTES], text[32];
	fp_autoclose int fd = -1;
	int r = fp_sysfile_read(ZRAM_ADD, text, sizeof(text));

	if (r == -ENOENT) {
		snprintf(error, error_len, "the kernel has no zram, or its module is not loaded");
		return r;
	}
	if (r < 0)
		return fail(r, error, error_len, ZRAM_ADD);
	device->number = atoi(text);
	snprintf(device->path, sizeof(device->path), "/dev/zram%d", device->number);
	r = fp_sysfile_write(zram_file(device, "comp_algorithm", path), "lz4");
	if (r < 0)
		return fail(r, error, error_len, "zram with the compression lz4");
	snprintf(text, sizeof(text), "%" PRIu64, size_bytes);
	r = fp_sysfile_write(zram_file(device, "disksize", path), text);
	if (r == 0)
		r = fd = open_device(device->path);
	if (r >= 0)
		r = write_header(fd, size_bytes);
	return r < 0 ? fail(r, error, error_len, device->path) : 0;
}

/* Connects a free loop device with the file. Someone else may take a free device before us. */
static int connect_loop(struct fp_swapdev *device, int file_fd)
{
	const struct loop_config config = {.fd = (uint32_t)file_fd, .info.lo_flags = LO_FLAGS_AUTOCLEAR};
	fp_autoclose int control_fd = open(LOOP_CONTROL, O_RDWR | O_CLOEXEC);
	int r = control_fd < 0 ? -errno : -EBUSY;

	for (unsigned i = 0; r == -EBUSY && i < LOOP_ATTEMPTS; i++) {
		fp_autoclose int fd = -1;
		int number = ioctl(control_fd, LOOP_CTL_GET_FREE);

		if (number < 0)
			return -errno;
		snprintf(device->path, sizeof(device->path), "/dev/loop%d", number);
		fd = open_device(device->path);
		if (fd < 0)
			return fd;
		r = ioctl(fd, LOOP_CONFIGURE, &config) < 0 ? -errno : 0;
		if (r == 0)
			device->fd = fp_take_fd(fd);
	}
	return r;
}

/*
 * All of the file's memory is taken now. Otherwise the kernel would count it against the group
 * whose pages it swaps out.
 */
static int open_loop(struct fp_swapdev *device, uint64_t size_bytes, char *error, size_t error_len)
{
	fp_autoclose int file_fd = memfd_create("farpage-bench-swap", MFD_CLOEXEC);
	int r = file_fd < 0 ? -errno : 0;

	if (r == 0 && fallocate(file_fd, 0, 0, (off_t)size_bytes) < 0)
		r = -errno;
	if (r < 0)
		return fail(r, error, error_len, "memory for the file of a loop device");
	r = connect_loop(device, file_fd);
	if (r < 0)
		return fail(r, error, error_len, "a loop device");
	r = write_header(device->fd, size_bytes);
	return r < 0 ? fail(r, error, error_len, device->path) : 0;
}

int fp_swapdev_open(enum fp_swapdev_kind kind, uint64_t size_bytes, char *error, size_t error_len,
                    struct fp_swapdev *ret_device)
{
	struct fp_swapdev device = {.kind = kind, .number = -1, .fd = -1};
	int r = check_alone(error, error_len);

	if (r == 0)
		r = (kind == FP_SWAPDEV_ZRAM ? open_zram : open_loop)(&device, size_bytes, error, error_len);
	if (r == 0 && swapon(device.path, 0) < 0)
		r = fail(-errno, error, error_len, device.path);
	device.is_on = r == 0;
	if (r < 0)
		(void)fp_swapdev_close(&device);
	else
		*ret_device = device;
	return r;
}

/* Others, such as udev, may have the device open for a moment. */
static int remove_zram(const struct fp_swapdev *device)
{
	const struct timespec pause = {.tv_nsec = LOOK_NS};
	uint64_t deadline_ns = fp_clock_kernel_ns() + WAIT_NS;
	char path[PATH_BYTES], text[32];
	int r;

	snprintf(text, sizeof(text), "%d", device->number);
	while ((r = fp_sysfile_write(zram_file(device, "reset", path), "1")) == -EBUSY &&
	       fp_clock_kernel_ns() < deadline_ns)
		nanosleep(&pause, NULL);
	while (r == 0 && (r = fp_sysfile_write(ZRAM_REMOVE, text)) == -EBUSY &&
	       fp_clock_kernel_ns() < deadline_ns) {
		nanosleep(&pause, NULL);
		r = 0;
	}
	return r;
}

int fp_swapdev_close(struct fp_swapdev *device)
{
	int r = device->is_on && swapoff(device->path) < 0 ? -errno : 0;

	if (r == 0 && device->number >= 0)
		r = remove_zram(device);
	/* The kernel disconnects the loop device when nobody has it open. */
	fp_cleanup_close(&device->fd);
	*device = (struct fp_swapdev){.kind = device->kind, .number = -1, .fd = -1};
	return r;
}
