/*
 * Runs one program of `farpage bench apps` and measures it from outside. Room: tools/bench. It
 * knows processes, and nothing of what they compute.
 */
#ifndef FP_APPRUN_H
#define FP_APPRUN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "memgroup.h"

#define FP_APPRUN_WORDS 64

/* How a program gets its memory: a contender. */
struct fp_appway {
	const char *name;
	const char *words[FP_APPRUN_WORDS]; /* a command that runs the program: `farpage run` */
	unsigned n_words;
	const struct fp_memgroup *group; /* NULL: none */
};

struct fp_apprun {
	pid_t pid;
	uint64_t start_ns;
	const struct fp_appway *way; /* the caller's: it lives as long as the run */
};

struct fp_apprun_end {
	int status;          /* as wait(2) has it */
	bool killed;         /* by the kernel, because the group's limit left it no memory */
	double seconds;      /* from the start to the end */
	uint64_t peak_bytes; /* the most resident memory (ru_maxrss), of the greatest of its processes */
};

/*
 * Starts a program. argv[0] is its path. in_fd and out_fd become its standard input and output; -1:
 * /dev/null. The program ends with this process. 0 and *ret_run, or a negative errno. Then
 * fp_apprun_wait must be called.
 */
int fp_apprun_start(const struct fp_appway *way, const char *const *argv, int in_fd, int out_fd,
                    struct fp_apprun *ret_run);

/* True if the program has not ended. */
bool fp_apprun_lives(const struct fp_apprun *run);

/* Waits for its end. */
void fp_apprun_wait(const struct fp_apprun *run, struct fp_apprun_end *ret_end);

#endif
