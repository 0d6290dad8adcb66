/*
 * Runs one program for `farpage run`. Signals, the terminal and the program's end have the same
 * effects as if the user ran the program directly. Room: tools. It knows processes, but no far
 * memory.
 */
#ifndef FP_LAUNCH_H
#define FP_LAUNCH_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/*
 * Raises a limit of this process (RLIMIT_AS, ...) as far as it is permitted, because our own
 * mappings must not count against the program's limit. *ret_before: the old limit.
 */
void fp_launch_lift(int which, struct rlimit *ret_before);

struct fp_launch {
	char *const *argv;      /* NULL-terminated */
	const char *path;       /* the file to execute */
	const char *ld_preload; /* put in front of the present value of LD_PRELOAD */
	struct rlimit as, data; /* the program's limits */
	/* A descriptor that stays open in the program and its children; -1: none. */
	int kept_fd;
	uint64_t tick_ns; /* how often tick is called while the program runs; 0: never */
	void (*tick)(void *user);
	void *user;
};

/*
 * Starts the program and waits for its end. Passes on signals that were sent to this process alone.
 * The terminal's signals reach the program by themselves, because it stays in this process group.
 * When the terminal stops the program, this process stops too. When this process is continued, it
 * continues the program. Returns 0, its pid and the wait(2) status, or a negative errno if it could
 * not start a process. The signals stay blocked afterwards. So a signal that comes after the
 * program's end, such as a ^C, does not keep this process from cleaning up. A program that can't be
 * executed ends with FP_EXIT_NOT_EXECUTABLE. The process must have one thread.
 */
int fp_launch_run(const struct fp_launch *launch, pid_t *ret_pid, int *ret_status);

/*
 * Ends this process in the same way as the program: with its exit status, or by its signal (without
 * a core dump).
 */
_Noreturn void fp_launch_end_as(int status);

#endif
