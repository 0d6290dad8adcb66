/*
 * Running one program as `farpage run` does: its signals, its terminal and its end are its own.
 * Room: tools. Knows processes, nothing of far memory.
 */
#ifndef FP_LAUNCH_H
#define FP_LAUNCH_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/*
 * Raises a limit of this process (RLIMIT_AS, ...) as far as it is permitted: what we map ourselves
 * is not the program's to answer for. *ret_before: what it was.
 */
void fp_launch_lift(int which, struct rlimit *ret_before);

struct fp_launch {
	char *const *argv;      /* NULL-terminated */
	const char *path;       /* what to execute */
	const char *ld_preload; /* put in front of the LD_PRELOAD that is there */
	struct rlimit as, data; /* the program's limits */
	int kept_fd;            /* what the program and all that it starts keep open; -1: nothing */
	uint64_t tick_ns;       /* how often tick is called while the program runs; 0: never */
	void (*tick)(void *user);
	void *user;
};

/*
 * Starts the program and waits for its end. Signals that were sent to this process alone are passed
 * on; those of the terminal reach the program by themselves, since it stays in this process group.
 * This process stops when the program is stopped by the terminal, and continues it when it is
 * continued. Returns 0 and the wait(2) status, or a negative errno if there was no process to be
 * had. The signals stay blocked: what reaches this process after the program's end (the second half
 * of a ^C, say) must not keep it from cleaning up. A program that can't be executed ends with
 * FP_EXIT_NOT_EXECUTABLE. The process must have one thread.
 */
int fp_launch_run(const struct fp_launch *launch, int *ret_status);

/* Ends this process as the program ended: with its exit status, or by its signal (without a core
 * dump). */
_Noreturn void fp_launch_end_as(int status);

#endif
