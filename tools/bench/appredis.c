/*
 * The workload redis: redis-server, with a client of ours in this process. Room: tools/bench; see
 * appload.h. The client's memory is never far.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "appload.h"
#include "cleanup.h"
#include "clock.h"
#include "guardian.h"
#include "redisload.h"

#define START_NS (60 * FP_NSEC_PER_SEC)
#define LOOK_NS  (2 * (long)FP_NSEC_PER_MSEC)

/* Waits until the server takes connections. */
static int await_server(const struct fp_appload_scene *scene, const struct fp_apprun *run, const char *path,
                        struct fp_redisload *load)
{
	const struct timespec pause = {.tv_nsec = LOOK_NS};
	uint64_t deadline_ns = fp_clock_kernel_ns() + START_NS;
	uint64_t n_keys = scene->size_bytes / FP_REDISLOAD_KEY_BYTES;
	int r;

	while ((r = fp_redisload_open(load, path, n_keys, scene->seed)) == -EAGAIN) {
		if (!fp_apprun_lives(run))
			return -ECONNREFUSED;
		if (fp_clock_kernel_ns() > deadline_ns)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
	return r;
}

static double seconds_since(uint64_t start_ns)
{
	return (double)(fp_clock_kernel_ns() - start_ns) / FP_NSEC_PER_SEC;
}

static int put_load(struct fp_redisload *load, struct fp_appload_result *ret_result)
{
	uint64_t start_ns = fp_clock_kernel_ns();
	int r = fp_redisload_fill(load);

	ret_result->setup_seconds = seconds_since(start_ns);
	start_ns = fp_clock_kernel_ns();
	if (r == 0)
		r = fp_redisload_run(load);
	ret_result->seconds = seconds_since(start_ns);
	ret_result->checksum = load->checksum;
	return r;
}

/* Drives a server that was started, and ends it. */
static int drive(const struct fp_appload_scene *scene, const struct fp_apprun *run, const char *path,
                 struct fp_appload_result *ret_result)
{
	fp_autofree struct fp_redisload *load = calloc(1, sizeof(*load));
	int r = load ? await_server(scene, run, path, load) : -ENOMEM;

	if (r < 0) {
		kill(run->pid, SIGTERM);
		return r;
	}
	r = put_load(load, ret_result);
	fp_redisload_close(load);
	if (r < 0)
		kill(run->pid, SIGTERM); /* a server that answers wrongly may not obey */
	return r;
}

int fp_appload_measure_redis(struct fp_appload_scene *scene, const struct fp_appload *load,
                             const struct fp_appway *way, struct fp_appload_result *ret_result)
{
	char path[64];
	const char *argv[] = {scene->program, "--port", "0", "--unixsocket", path, "--dir",
	                      scene->dir,     "--save", "",  "--appendonly", "no", "--loglevel",
	                      "warning",      NULL};
	struct fp_apprun run;
	double seconds;
	int r, driven;

	snprintf(path, sizeof(path), "%s/" FP_GUARDIAN_SOCKET, scene->dir);
	unlink(path);
	r = fp_apprun_start(way, argv, -1, -1, &run);
	if (r < 0)
		return fp_appload_fail(load, way, scene->program, r);
	driven = drive(scene, &run, path, ret_result);
	r = fp_appload_wait(load, &run, &seconds, ret_result);
	if (r < 0 || ret_result->killed || driven == 0)
		return r;
	return fp_appload_fail(load, way, "its server", driven);
}
