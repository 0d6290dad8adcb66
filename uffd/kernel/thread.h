/*
 * Agent threads: started with all signals blocked, on stacks of our own that are locked in memory.
 * Room: uffd.
 */
#ifndef FP_THREAD_H
#define FP_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct fp_thread {
	pthread_t id;
	void *stack;
	void *(*run)(void *);
	void *arg;
	const char *name;
	bool running;
	_Atomic pid_t tid;
};

/* Starts run(arg), named name (at most 15 characters, constant); *thread stays in place until
 * joined. 0 or a negative errno. */
int fp_thread_start(struct fp_thread *thread, const char *name, void *(*run)(void *), void *arg);
/* Waits for its end and frees the stack. Fine on one that never ran. */
void fp_thread_join(struct fp_thread *thread);

/* Frees the stack of a thread that a fork left behind: in the child, where it does not run. */
void fp_thread_abandon(struct fp_thread *thread);

/* Its number, as soon as it runs; 0 before. */
pid_t fp_thread_tid(const struct fp_thread *thread);

/* How many run in this process. */
unsigned fp_thread_count(void);

/* True on a thread that fp_thread_start began. */
bool fp_thread_is_own(void);

#endif
