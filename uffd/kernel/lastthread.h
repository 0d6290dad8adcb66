/*
 * The last thread: if a program's main thread ends by pthread_exit, the process ends with the last
 * of the other threads. But the C library counts the agent's threads, too. So a process with an
 * agent would never end. Room: uffd/kernel.
 */
#ifndef FP_LASTTHREAD_H
#define FP_LASTTHREAD_H

#include <stdbool.h>
#include <stdint.h>

struct fp_lastthread {
	uint64_t next_look_ns;
	unsigned n_threads; /* how many threads the program had at the last look; 0: not known */
	bool ended;
};

/*
 * Looks, at intervals, whether only agent threads are left. Then ends the process as the C library
 * would: by exit(0), on a new thread, which can fault and get signals like the program's threads.
 * stat_fd is a descriptor of this process's /proc/self/stat. If it is -1, the process is never
 * ended. Called by the reclaim thread. Allocates only when it ends the process.
 */
void fp_lastthread_look(struct fp_lastthread *last, int stat_fd, uint64_t now_ns);

/* How many threads the program has; 0: not known. Any thread. */
unsigned fp_lastthread_count(int stat_fd);

#endif
