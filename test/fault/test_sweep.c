/*
 * Makes the Nth kernel call of the compute side fail, with N one higher in each run, until a run
 * ends before its Nth call. The churn checks the bytes of each run. Also runs the churn with every
 * call delayed at random. Room: test/fault.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent_priv.h"
#include "churner.h"
#include "clock.h"
#include "daemon.h"
#include "inject.h"
#include "testrng.h"

#define SKIP      77
#define HANG_S    30 /* seconds; an operation with one failure takes far less */
#define SWEEP_OPS 120
#define CLEAN     3 /* exit status of a run in which no call failed */

static struct test_daemon shm, tcp;
static uint64_t seed;

struct scene {
	const struct test_daemon *daemon;
	enum fp_capture_mode capture;
	enum inject_call call;
	int error;
	bool no_mincore;
	uint64_t nth;
	uint64_t duration_ns; /* length of a run with delays; 0: no delays, but one call fails */
};

static struct fp_agent *start_agent(const struct scene *scene)
{
	const char *urls[] = {scene->daemon->url};
	const struct fp_agent_options options = {
	    .local_bytes = (scene->error == INJECT_UNSAID ? 256 : 16) * FP_PAGE_SIZE,
	    .urls = urls,
	    .n_urls = 1,
	    .capture = scene->capture,
	    .readahead_pages = 16,
	};
	struct fp_agent_error error;
	struct fp_agent *agent;

	if (fp_agent_start(&options, &agent, &error) == 0)
		return agent;
	fprintf(stderr, "%s\n", error.text);
	_exit(1);
}

static void run_scene(const struct scene *scene)
{
	struct churn_options churn = {
	    .agent = start_agent(scene),
	    .seed = seed + scene->nth,
	    .n_threads = 3,
	    .bytes = 2u << 20,
	    .ops = scene->duration_ns ? 0 : SWEEP_OPS,
	    .duration_ns = scene->duration_ns,
	};
	const struct fp_far *far = &churn.agent->far;
	struct churn_result result;
	bool failed = false;

	if (scene->no_mincore)
		inject_no_mincore();
	inject_range(far->base, far->n_pages << FP_PAGE_SHIFT);
	if (scene->duration_ns)
		inject_delays(churn.seed);
	else
		inject_fail(scene->call, scene->error, scene->nth);
	churn_run(&churn, &result);
	failed = !scene->duration_ns && inject_failed();
	if (atomic_load(&far->stats->lost_pages) || result.refused > failed) {
		fprintf(stderr, "%d pages were lost, %d calls refused\n",
		        (int)atomic_load(&far->stats->lost_pages), (int)result.refused);
		_exit(1);
	}
	fp_agent_stop(churn.agent);
	_exit(failed ? 0 : CLEAN);
}

/* Runs the scene in a process of its own. A wrong byte or a hang ends only that process. */
static int status_of(const struct scene *scene)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(HANG_S + (unsigned)(scene->duration_ns / FP_NSEC_PER_SEC));
		run_scene(scene);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		fprintf(stderr, "it hangs\n");
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void sweep(void **state)
{
	struct scene scene = *(const struct scene *)*state;
	uint64_t rng = seed;
	int status = 0;

	for (scene.nth = 1; status == 0; scene.nth += 1 + test_random(&rng) % (scene.nth / 2 + 1)) {
		status = status_of(&scene);
		if (status != 0 && status != CLEAN)
			fail_msg("call %d of kind %d failed with %d: status %d", (int)scene.nth, scene.call,
			         scene.error, status);
	}
}

static void delays(void **state)
{
	const struct scene *scene = *state;

	assert_int_equal(status_of(scene), CLEAN);
}

#define SWEEP(name, daemon, capture, call, error)                                                            \
	{                                                                                                    \
		name, sweep, NULL, NULL, &(struct scene)                                                     \
		{                                                                                            \
			daemon, capture, call, error, false, 0, 0                                            \
		}                                                                                            \
	}
#define SWEEP_NO_MINCORE(name, daemon, call, error)                                                          \
	{                                                                                                    \
		name, sweep, NULL, NULL, &(struct scene)                                                     \
		{                                                                                            \
			daemon, FP_CAPTURE_MOVE, call, error, true, 0, 0                                     \
		}                                                                                            \
	}
#define DELAYS(name, daemon, capture)                                                                        \
	{                                                                                                    \
		name, delays, NULL, NULL, &(struct scene)                                                    \
		{                                                                                            \
			daemon, capture, INJECT_CALLS, 0, false, 0, 5 * FP_NSEC_PER_SEC                      \
		}                                                                                            \
	}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    DELAYS("delays, shm, move", &shm, FP_CAPTURE_MOVE),
	    DELAYS("delays, shm, protect", &shm, FP_CAPTURE_PROTECT),
	    DELAYS("delays, tcp, move", &tcp, FP_CAPTURE_MOVE),
	    DELAYS("delays, tcp, protect", &tcp, FP_CAPTURE_PROTECT),
	    SWEEP("copy: EAGAIN, shm", &shm, FP_CAPTURE_MOVE, INJECT_COPY, EAGAIN),
	    SWEEP("copy: EAGAIN, tcp", &tcp, FP_CAPTURE_MOVE, INJECT_COPY, EAGAIN),
	    SWEEP("copy: EEXIST, shm", &shm, FP_CAPTURE_MOVE, INJECT_COPY, EEXIST),
	    SWEEP("copy: EEXIST, tcp", &tcp, FP_CAPTURE_PROTECT, INJECT_COPY, EEXIST),
	    SWEEP("copy: ENOMEM", &shm, FP_CAPTURE_MOVE, INJECT_COPY, ENOMEM),
	    SWEEP("copy: ENOENT, shm", &shm, FP_CAPTURE_MOVE, INJECT_COPY, ENOENT),
	    SWEEP("copy: ENOENT, tcp", &tcp, FP_CAPTURE_MOVE, INJECT_COPY, ENOENT),
	    SWEEP("copy: partial", &shm, FP_CAPTURE_MOVE, INJECT_COPY, INJECT_PARTIAL),
	    SWEEP("move: EAGAIN, shm", &shm, FP_CAPTURE_MOVE, INJECT_MOVE, EAGAIN),
	    SWEEP("move: EBUSY, tcp", &tcp, FP_CAPTURE_MOVE, INJECT_MOVE, EBUSY),
	    SWEEP("move: ENOMEM", &shm, FP_CAPTURE_MOVE, INJECT_MOVE, ENOMEM),
	    SWEEP("move: EINVAL", &shm, FP_CAPTURE_MOVE, INJECT_MOVE, EINVAL),
	    /* Linux 6.18 gives EEXIST if two threads move a page at the same time */
	    SWEEP("move: EEXIST, shm", &shm, FP_CAPTURE_MOVE, INJECT_MOVE, EEXIST),
	    SWEEP("move: EEXIST, tcp", &tcp, FP_CAPTURE_MOVE, INJECT_MOVE, EEXIST),
	    SWEEP("move: unsaid", &shm, FP_CAPTURE_MOVE, INJECT_MOVE, INJECT_UNSAID),
	    SWEEP_NO_MINCORE("move: unsaid, no mincore", &shm, INJECT_MOVE, INJECT_UNSAID),
	    SWEEP_NO_MINCORE("move: EEXIST, no mincore", &tcp, INJECT_MOVE, EEXIST),
	    SWEEP("move: partial", &tcp, FP_CAPTURE_MOVE, INJECT_MOVE, INJECT_PARTIAL),
	    SWEEP("protect: EAGAIN", &shm, FP_CAPTURE_PROTECT, INJECT_PROTECT, EAGAIN),
	    SWEEP("protect: ENOENT", &tcp, FP_CAPTURE_PROTECT, INJECT_PROTECT, ENOENT),
	    SWEEP("unprotect: EAGAIN", &shm, FP_CAPTURE_PROTECT, INJECT_UNPROTECT, EAGAIN),
	    SWEEP("unprotect: ENOENT", &shm, FP_CAPTURE_MOVE, INJECT_UNPROTECT, ENOENT),
	    SWEEP("madvise: EINVAL, move", &shm, FP_CAPTURE_MOVE, INJECT_DONTNEED, EINVAL),
	    SWEEP("madvise: EINVAL, protect", &tcp, FP_CAPTURE_PROTECT, INJECT_DONTNEED, EINVAL),
	};
	struct fp_agent_error error;
	int r;

	if (argc < 2)
		return 2;
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	if (fp_agent_check_kernel(&error) < 0) {
		fprintf(stderr, "%s\n", error.text);
		return SKIP;
	}
	seed = test_seed("sweep");
	if (test_daemon_start(argv[1], "shm", 64u << 20, &shm) < 0 ||
	    test_daemon_start(argv[1], "tcp", 64u << 20, &tcp) < 0)
		return 1;
	r = cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
	test_daemon_stop(&shm);
	test_daemon_stop(&tcp);
	return r;
}
