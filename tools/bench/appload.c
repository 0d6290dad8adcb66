/*
 * The table of workloads; those that print their result as one line. Room: tools/bench; see
 * appload.h.
 */
#include "appload.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"
#include "program.h"
#include "workload.h"

#define LABEL            "bench apps"
#define PYTHON_KEY_BYTES 176 /* of a key, its value and their place in the dict */

/*
 * Fills a dict whose keys are texts, and looks up half as many at random. Prints what a workload of
 * ours prints.
 */
static const char python_script[] =
    "import sys, time\n"
    "n, seed, mask = int(sys.argv[1]), int(sys.argv[2]), (1 << 64) - 1\n"
    "def key(i): return '%016x' % ((i + 1) * 0x9e3779b97f4a7c15 + seed & mask)\n"
    "def fill(): return {key(i): i for i in range(n)}\n"
    "def look(d):\n"
    "    x, total = seed | 1, 0\n"
    "    for _ in range(n // 2):\n"
    "        x = x * 6364136223846793005 + 1442695040888963407 & mask\n"
    "        i = (x >> 33) % n\n"
    "        total = total * 31 + (d[key(i)] ^ i) + i & mask\n"
    "    return total\n"
    "begin = time.perf_counter()\n"
    "d = fill()\n"
    "filled = time.perf_counter()\n"
    "total = look(d)\n"
    "end = time.perf_counter()\n"
    "print('seconds %.9f setup_seconds %.9f checksum %016x' % (end - filled, filled - begin, total))\n"
    "sys.stdout.flush()\n"
    "import os; os._exit(0)\n";

int fp_appload_fail(const struct fp_appload *load, const struct fp_appway *way, const char *what, int r)
{
	fp_log(FP_LOG_ERROR, LABEL, "%s, %s: %s: %s", load->name, way->name, what, strerror(-r));
	return r;
}

int fp_appload_wait(const struct fp_appload *load, const struct fp_apprun *run, double *ret_seconds,
                    struct fp_appload_result *ret_result)
{
	struct fp_apprun_end end;

	fp_apprun_wait(run, &end);
	ret_result->killed = end.killed;
	ret_result->peak_bytes = end.peak_bytes;
	*ret_seconds = end.seconds;
	if (end.status == 0 || end.killed)
		return 0;
	fp_log(FP_LOG_ERROR, LABEL, "%s, %s: the program ended with %s %d", load->name, run->way->name,
	       WIFSIGNALED(end.status) ? "signal" : "status",
	       WIFSIGNALED(end.status) ? WTERMSIG(end.status) : WEXITSTATUS(end.status));
	return -ECHILD;
}

/* Reads until the other end is closed. */
static void read_all(int fd, char *ret_text, size_t len)
{
	size_t n = 0;
	ssize_t got;

	while (n + 1 < len &&
	       ((got = read(fd, ret_text + n, len - 1 - n)) > 0 || (got < 0 && errno == EINTR)))
		n += got > 0 ? (size_t)got : 0;
	ret_text[n] = '\0';
}

/* Runs a program that prints a line for fp_workload_parse. */
static int measure_line(const struct fp_appload *load, const struct fp_appway *way, const char *const *argv,
                        struct fp_appload_result *ret_result)
{
	fp_autoclose int read_fd = -1, write_fd = -1;
	struct fp_workload_result line;
	struct fp_apprun run;
	double seconds;
	char text[256];
	int fds[2], r;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return fp_appload_fail(load, way, "a pipe", -errno);
	read_fd = fds[0];
	write_fd = fds[1];
	r = fp_apprun_start(way, argv, -1, write_fd, &run);
	if (r < 0)
		return fp_appload_fail(load, way, argv[0], r);
	close(fp_take_fd(write_fd));
	read_all(read_fd, text, sizeof(text));
	r = fp_appload_wait(load, &run, &seconds, ret_result);
	if (r < 0 || ret_result->killed)
		return r;
	r = fp_workload_parse(text, &line);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, LABEL, "%s, %s: not a result: %s", load->name, way->name, text);
		return r;
	}
	ret_result->seconds = line.seconds;
	ret_result->setup_seconds = line.setup_seconds;
	ret_result->checksum = line.checksum;
	return 0;
}

static int measure_own(struct fp_appload_scene *scene, const struct fp_appload *load,
                       const struct fp_appway *way, struct fp_appload_result *ret_result)
{
	char size[24], seed[24];
	const char *argv[] = {scene->self, "bench", "apps",   "--run", load->name,
	                      "--size",    size,    "--seed", seed,    NULL};

	snprintf(size, sizeof(size), "%" PRIu64, scene->size_bytes);
	snprintf(seed, sizeof(seed), "%" PRIu64, scene->seed);
	return measure_line(load, way, argv, ret_result);
}

static int measure_python(struct fp_appload_scene *scene, const struct fp_appload *load,
                          const struct fp_appway *way, struct fp_appload_result *ret_result)
{
	char n[24], seed[24];
	const char *argv[] = {scene->program, "-I", "-S", "-c", python_script, n, seed, NULL};

	snprintf(n, sizeof(n), "%" PRIu64, scene->size_bytes / PYTHON_KEY_BYTES);
	snprintf(seed, sizeof(seed), "%" PRIu64, scene->seed);
	return measure_line(load, way, argv, ret_result);
}

static const struct fp_appload loads[] = {
    {"quicksort", NULL, measure_own},
    {"kmeans", NULL, measure_own},
    {"graph", NULL, measure_own},
    {"hash", NULL, measure_own},
    {"stream", NULL, measure_own},
    {"columns", NULL, measure_own},
    {"python", "python3", measure_python},
    {"sort", "sort", fp_appload_measure_sort},
    {"redis", "redis-server", fp_appload_measure_redis},
};

const char *const fp_appload_names[] = {"quicksort", "kmeans", "graph", "hash",  "stream",
                                        "columns",   "python", "sort",  "redis", NULL};

_Static_assert(FP_ARRAY_LEN(loads) + 1 == FP_ARRAY_LEN(fp_appload_names), "a workload has no name");

const struct fp_appload *fp_appload_get(unsigned index)
{
	return &loads[index];
}

/* In /usr/bin first: elsewhere, python3 may be a script of a version manager. */
int fp_appload_find(const struct fp_appload *load, struct fp_appload_scene *scene, char *error,
                    size_t error_len)
{
	char usual[64];
	int r;

	if (!load->program)
		return 0;
	snprintf(usual, sizeof(usual), "/usr/bin/%s", load->program);
	r = fp_program_find(usual, scene->program, sizeof(scene->program));
	if (r < 0)
		r = fp_program_find(load->program, scene->program, sizeof(scene->program));
	if (r < 0)
		snprintf(error, error_len, "%s is not installed", load->program);
	return r;
}

void fp_appload_done(struct fp_appload_scene *scene)
{
	fp_cleanup_close(&scene->text_fd);
	fp_cleanup_close(&scene->sorted_fd);
	scene->text_fd = scene->sorted_fd = -1;
}
