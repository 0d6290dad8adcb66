/*
 * The bare floor: the least that a page fault through userfaultfd can cost. `farpage bench`
 * compares far memory with it. Room: tools/bench. In fault mode thread, one thread on the faulting
 * core reads messages with blocking reads and copies a page for each. In fault mode inline, the
 * handler of SIGBUS copies the page. There is no state, policy, eviction or network. It uses no
 * code of uffd/ on purpose: otherwise a change there would also change the floor.
 */
#ifndef FP_FLOOR_H
#define FP_FLOOR_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct fp_floor {
	size_t bytes;
	char *memory; /* the memory that faults, once for each page */
	char *source; /* pages are copied from here; lies behind memory; zeros at first */
	int uffd;
	bool is_inline, handler_runs;
	pthread_t handler;
	struct sigaction before; /* inline: the earlier action of SIGBUS */
};

/*
 * Maps memory. Its size is the parameter bytes, a multiple of the page size. The handler of SIGBUS
 * serves the faults if is_inline is true, and a thread otherwise. Only one inline floor may be open
 * at a time. The thread runs on the caller's CPUs. 0; -ENOSYS and -EPERM: no userfaultfd here.
 * Needs no privilege, because it asks only for faults of user mode. Release with fp_floor_close. Do
 * not move *floor.
 */
int fp_floor_open(struct fp_floor *floor, size_t bytes, bool is_inline);
/*
 * Call it when the source is filled, right before a pass. Lets the kernel read each page of the
 * source once, and makes it hand out as many pages as the pass takes. On some virtual machines the
 * first use of a page costs more. A node's pages were read before, and a pager uses the same pages
 * again and again. 0, or a negative errno.
 */
int fp_floor_warm(const struct fp_floor *floor);
void fp_floor_close(struct fp_floor *floor);

#endif
