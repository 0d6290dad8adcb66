/*
 * The bare floor: the least that a page fault through userfaultfd can cost, as the yardstick of
 * `farpage bench`. Room: tools/bench. In fault mode thread, one thread on the faulting core reads
 * messages, blocking, and copies a page. In fault mode inline, the handler of SIGBUS copies it. No
 * state, no policy, no eviction, no network. It uses nothing of uffd/ on purpose: a yardstick must
 * not bend with the thing it measures.
 */
#ifndef FP_FLOOR_H
#define FP_FLOOR_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct fp_floor {
	size_t bytes;
	char *memory; /* where touches fault, each page once */
	char *source; /* copied into faulting pages; lies behind memory; zeros at first */
	int uffd;
	bool is_inline, handler_runs;
	pthread_t handler;
	struct sigaction before; /* inline: the action of SIGBUS before */
};

/*
 * Maps bytes (a multiple of the page size) whose faults are served by a thread, or inline by
 * SIGBUS. SIGBUS serves one floor at a time, until it is closed. The thread runs on the caller's
 * CPUs. 0; -ENOSYS and -EPERM: no userfaultfd here. Needs no privilege: it asks for faults of user
 * mode alone. Release with fp_floor_close. floor stays where it is.
 */
int fp_floor_open(struct fp_floor *floor, size_t bytes, bool is_inline);
void fp_floor_close(struct fp_floor *floor);

#endif
