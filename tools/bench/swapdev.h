/*
 * The kernel's swap on a device that a bench makes for itself. Room: tools/bench. Needs root.
 */
#ifndef FP_SWAPDEV_H
#define FP_SWAPDEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fp_swapdev_kind {
	FP_SWAPDEV_ZRAM, /* compresses pages with lz4 */
	FP_SWAPDEV_LOOP, /* a loop device over a file in memory */
};

struct fp_swapdev {
	enum fp_swapdev_kind kind;
	char path[32];
	int number; /* of a zram device; -1: none was made */
	int fd;     /* the open loop device; -1: none */
	bool is_on; /* the kernel swaps there */
};

/*
 * Makes a new device of at least size_bytes and lets the kernel swap there. Fails if the kernel
 * swaps anywhere else, because the figures would be those of two devices. 0 and *ret_device; else a
 * negative errno and a text in error. Release with fp_swapdev_close.
 */
int fp_swapdev_open(enum fp_swapdev_kind kind, uint64_t size_bytes, char *error, size_t error_len,
                    struct fp_swapdev *ret_device);

/*
 * Ends swapping there and removes the device. May take long while programs still have pages there.
 * 0, or a negative errno if something of it is left.
 */
int fp_swapdev_close(struct fp_swapdev *device);

#endif
