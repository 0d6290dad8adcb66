/*
 * The workloads of `farpage bench apps`: our own (workload.h), and programs of others. Room:
 * tools/bench.
 */
#ifndef FP_APPLOAD_H
#define FP_APPLOAD_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "apprun.h"

struct fp_appload;

/* What all runs of all workloads share. Zeros and -1 at first; fp_appload_done releases it. */
struct fp_appload_scene {
	char self[PATH_MAX]; /* the path of the farpage command */
	const char *dir;     /* a folder for a socket */
	uint64_t size_bytes, seed;
	char program[PATH_MAX]; /* of the workload that fp_appload_find was called for */
	int text_fd, sorted_fd; /* the text for sort, and its result; -1: not made */
};

struct fp_appload_result {
	bool killed; /* the others then have no meaning */
	double seconds;
	double setup_seconds; /* NAN: not measured */
	uint64_t checksum;
	uint64_t peak_bytes;
};

struct fp_appload {
	const char *name;
	const char *program; /* that it needs; NULL: our own */
	/* Runs it once. 0 and *ret_result, or a negative errno after a message. */
	int (*measure)(struct fp_appload_scene *scene, const struct fp_appload *load,
	               const struct fp_appway *way, struct fp_appload_result *ret_result);
};

/* The names of all workloads, ended by NULL. */
extern const char *const fp_appload_names[];

/* The workload whose name stands at this index of fp_appload_names. */
const struct fp_appload *fp_appload_get(unsigned index);

/*
 * Finds the program that a workload needs: scene->program. 0, or a negative errno and a text in
 * error that says what is missing.
 */
int fp_appload_find(const struct fp_appload *load, struct fp_appload_scene *scene, char *error,
                    size_t error_len);

void fp_appload_done(struct fp_appload_scene *scene);

/*
 * What follows is for the files of the workloads. fp_appload_wait waits for the end of a program. 0
 * if it ended well, or was killed for want of memory: then ret_result->killed is set. Otherwise
 * prints a message and returns -ECHILD. *ret_seconds: from its start to its end.
 */
int fp_appload_wait(const struct fp_appload *load, const struct fp_apprun *run, double *ret_seconds,
                    struct fp_appload_result *ret_result);

/* Prints a message about a run that failed. Returns the error r. */
int fp_appload_fail(const struct fp_appload *load, const struct fp_appway *way, const char *what, int r);

int fp_appload_measure_sort(struct fp_appload_scene *scene, const struct fp_appload *load,
                            const struct fp_appway *way, struct fp_appload_result *ret_result);
int fp_appload_measure_redis(struct fp_appload_scene *scene, const struct fp_appload *load,
                             const struct fp_appway *way, struct fp_appload_result *ret_result);

#endif
