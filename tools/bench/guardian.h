/*
 * The guardian of a bench: a process that makes and removes whatever must not outlive the bench.
 * Room: tools/bench.
 *
 * The bench may be interrupted or killed at any moment. So everything that the kernel would keep is
 * made by the guardian: a folder, a control group and a swap device. The guardian waits for
 * requests on a socket. When the other end of the socket is closed, it removes what it has made,
 * and ends. It has a kernel session of its own and ignores signals that end programs, so that a ^C
 * does not reach it.
 */
#ifndef FP_GUARDIAN_H
#define FP_GUARDIAN_H

#include <sys/types.h>

#include "memgroup.h"
#include "swapdev.h"

#define FP_GUARDIAN_SOCKET "redis.sock" /* this file of the folder is removed with it */

struct fp_guardian {
	pid_t pid;
	int fd;
	char dir[32]; /* the folder, of this user alone */
};

/* What programs with swap need. */
struct fp_guardian_swap {
	enum fp_swapdev_kind kind;
	uint64_t swap_bytes;
	uint64_t limit_bytes; /* of the control group */
};

/*
 * Makes a folder and starts its guardian. The process must have one thread. 0 and
 * *ret_guardian, or a negative errno. Release with fp_guardian_stop.
 */
int fp_guardian_start(struct fp_guardian *ret_guardian);

/*
 * Lets the guardian make a swap device and a control group with a limit. There is only one of each
 * at a time. 0 and *ret_group; else a negative errno and a text in error.
 */
int fp_guardian_swap_on(struct fp_guardian *guardian, const struct fp_guardian_swap *swap, char *error,
                        size_t error_len, struct fp_memgroup *ret_group);

/*
 * Lets it kill the group's processes and remove the group and the device. 0; else a negative errno
 * and a text in error.
 */
int fp_guardian_swap_off(struct fp_guardian *guardian, char *error, size_t error_len);

/* Lets it remove everything, and waits for its end. */
void fp_guardian_stop(struct fp_guardian *guardian);

#endif
