/*
 * Agent threads. They start with all signals blocked, on stacks that are locked in memory.
 * Room: uffd/kernel.
 */
#ifndef FP_THREAD_H
#define FP_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct fp_thread {
	pthread_t id;
	size_t locked_bytes; /* of the stack; set by the thread itself */
	void *(*run)(void *);
	void *arg;
	const char *name;
	bool running;
	_Atomic pid_t tid;
};

/*
 * Starts run(arg) on a thread called name (a constant of at most 15 characters). *thread must stay
 * in place until it is joined. Returns 0 or a negative errno.
 */
int fp_thread_start(struct fp_thread *thread, const char *name, void *(*run)(void *), void *arg);
/* Waits for the thread's end. Does nothing if it never ran. */
void fp_thread_join(struct fp_thread *thread);

/* Called in a forked child, where the thread does not run. */
void fp_thread_abandon(struct fp_thread *thread);

/* The thread's number in the kernel; 0 until it runs. */
pid_t fp_thread_tid(const struct fp_thread *thread);

/* How many agent threads run in this process. */
unsigned fp_thread_count(void);

/* True on a thread that fp_thread_start began. */
bool fp_thread_is_own(void);

#endif
