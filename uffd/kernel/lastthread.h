/*
 * The last thread: a program whose main thread ended by pthread_exit is over when its last other
 * thread ends. The C library sees to that by counting threads, ours too, so with an agent nobody
 * would end it. Room: uffd.
 */
#ifndef FP_LASTTHREAD_H
#define FP_LASTTHREAD_H

#include <stdbool.h>
#include <stdint.h>

struct fp_lastthread {
	uint64_t next_look_ns;
	unsigned n_threads; /* of the program, when it was looked last; 0: not known */
	bool ended;
};

/*
 * Looks, now and then, whether only agent threads are left, and then ends the process as the C
 * library would: exit(0), on a thread of its own, that can fault and be signalled like a program's.
 * stat_fd: this process's /proc/self/stat, -1 where there is none: then nobody is ended. The
 * reclaim thread's: it allocates when the end has come.
 */
void fp_lastthread_look(struct fp_lastthread *last, int stat_fd, uint64_t now_ns);

#endif
