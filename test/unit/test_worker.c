/*
 * The worker: short jobs overtake long ones, a line keeps its order, every job is served, and each
 * client gets the same share, however many lines it has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "testrng.h"
#include "worker.h"

#define MANY       1000
#define N_CLIENTS  7
#define N_LINES    150
#define N_JOBS     600
#define MAX_SLICES 20

struct work {
	struct fp_worker_job job; /* first */
	unsigned slices;          /* slices that are left */
	char name;
};

static struct {
	struct fp_worker *worker;
	struct fp_worker_share gate, own; /* of the first slice, and of tests with one client */
	int go;                           /* an eventfd; the worker's first slice waits for it */
	char order[512];                  /* the jobs' names, in the order in which they were done */
	unsigned n_done;
} t;

static bool run(struct fp_worker_job *job)
{
	return --((struct work *)(void *)job)->slices > 0;
}

static void done(struct fp_worker_job *job)
{
	t.order[t.n_done++] = ((struct work *)(void *)job)->name;
}

static bool wait_for_go(struct fp_worker_job *job)
{
	eventfd_t events;

	return eventfd_read(t.go, &events) < 0;
}

static struct work work(char name, unsigned slices, bool awaited)
{
	return (struct work){{.run = run, .done = done, .awaited = awaited}, slices, name};
}

static int setup(void **state)
{
	static struct fp_worker_line line;
	static struct work first;

	memset(&t, 0, sizeof(t));
	t.go = eventfd(0, 0);
	assert_true(t.go >= 0);
	assert_int_equal(fp_worker_start(&t.worker), 0);
	line = (struct fp_worker_line){.share = &t.gate};
	first = (struct work){{.run = wait_for_go, .done = done, .awaited = true}, 1, '>'};
	fp_worker_post(t.worker, &line, &first.job);
	return 0;
}

static void init_lines(struct fp_worker_line *lines, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		lines[i] = (struct fp_worker_line){.share = &t.own};
}

/* Lets all posted jobs run to their end. */
static void finish(void)
{
	eventfd_write(t.go, 1);
	fp_worker_stop(t.worker);
	close(t.go);
}

/* The same; returns their order. */
static const char *order(void)
{
	finish();
	return t.order;
}

static void test_short_overtakes_long(void **state)
{
	struct fp_worker_line lines[4];
	struct work scrub = work('s', MANY, false), big = work('b', MANY / 2, true),
	            lease = work('l', 3, true), small = work('g', 1, false);

	init_lines(lines, 4);
	fp_worker_post(t.worker, &lines[0], &scrub.job);
	fp_worker_post(t.worker, &lines[1], &big.job);
	fp_worker_post(t.worker, &lines[2], &lease.job);
	fp_worker_post(t.worker, &lines[3], &small.job);
	assert_string_equal(order(), ">glbs");
}

/*
 * Jobs of one line keep their order, whatever their kind and length. So no memory is given back
 * before its keys are revoked.
 */
static void test_lines_keep_their_order(void **state)
{
	struct fp_worker_line line = {.share = &t.own}, other = {.share = &t.own};
	struct work take = work('1', 5, true), make = work('2', 1, true), revoke = work('3', 7, false),
	            leave = work('4', 1, false), between = work('x', 1, true);

	fp_worker_post(t.worker, &line, &take.job);
	fp_worker_post(t.worker, &line, &make.job);
	fp_worker_post(t.worker, &line, &revoke.job);
	fp_worker_post(t.worker, &line, &leave.job);
	fp_worker_post(t.worker, &other, &between.job);
	assert_string_equal(order(), ">x1234");
}

/* With a hundred leases to make, work that nobody waits for gets every second slice. */
static void test_nobody_starves(void **state)
{
	struct fp_worker_line lines[101];
	struct work leases[100], give = work('g', 20, false);

	init_lines(lines, 101);
	fp_worker_post(t.worker, &lines[100], &give.job);
	for (unsigned i = 0; i < 100; i++) {
		leases[i] = work('l', 1, true);
		fp_worker_post(t.worker, &lines[i], &leases[i].job);
	}
	assert_in_range(strchr(order(), 'g') - t.order, 19, 21);
	assert_int_equal(t.n_done, 102);
}

/*
 * A client's jobs wait for one slice of another client at a time, not for one of each of its two
 * hundred jobs. So it is with work that nobody waits for, too.
 */
static void test_lines_do_not_multiply_a_share(void **state)
{
	struct fp_worker_share greedy = {0};
	struct fp_worker_line lines[200], own[2];
	struct work jobs[200], lease = work('l', 3, true), small = work('s', 3, false);

	for (unsigned i = 0; i < 200; i++) {
		lines[i] = (struct fp_worker_line){.share = &greedy};
		jobs[i] = work(i % 2 ? 'b' : 'g', 1, i % 2);
		fp_worker_post(t.worker, &lines[i], &jobs[i].job);
	}
	init_lines(own, 2);
	fp_worker_post(t.worker, &own[0], &lease.job);
	fp_worker_post(t.worker, &own[1], &small.job);
	assert_memory_equal(order(), ">gbgbgbsl", 9);
	assert_int_equal(t.n_done, 203);
}

/* ---- any number of clients, lines and jobs ---- */

struct random_job {
	struct fp_worker_job job; /* first */
	unsigned line, client, left;
};

static struct {
	struct fp_worker_share shares[N_CLIENTS];
	struct fp_worker_line lines[N_LINES];
	struct random_job jobs[N_JOBS];
	unsigned n_slices;
	const struct random_job *served[N_JOBS * MAX_SLICES]; /* slice by slice, in their order */
	/* What the check has counted: slices that were served, and those that are still to come. */
	unsigned by_line[N_LINES], by_client[2][N_CLIENTS];
	unsigned left_of_line[N_LINES], left_of_client[2][N_CLIENTS], left[2];
} crowd;

static bool run_random(struct fp_worker_job *base)
{
	struct random_job *job = (struct random_job *)(void *)base;

	crowd.served[crowd.n_slices++] = job;
	return --job->left > 0;
}

static void done_random(struct fp_worker_job *job)
{
	t.n_done++;
}

/* A line has one kind of jobs. Some clients have many lines, others few. */
static void post_random(struct random_job *job, uint64_t *rng)
{
	unsigned line = (unsigned)(test_random(rng) % N_LINES);
	unsigned client = (unsigned)FP_MIN(line % (2 * N_CLIENTS), N_CLIENTS - 1u);
	unsigned slices = 1 + (unsigned)(test_random(rng) % MAX_SLICES);
	bool kind = line / 2 % 3 == 0;

	*job = (struct random_job){.job = {.run = run_random, .done = done_random, .awaited = kind},
	                           .line = line,
	                           .client = client,
	                           .left = slices};
	crowd.lines[line].share = &crowd.shares[client];
	crowd.left_of_line[line] += slices;
	crowd.left_of_client[kind][client] += slices;
	crowd.left[kind] += slices;
	fp_worker_post(t.worker, &crowd.lines[line], &job->job);
}

/* Whoever is served has not had more slices than anybody who still waits. */
static void check_slice(const struct random_job *job, bool previous_kind)
{
	bool kind = job->job.awaited;

	assert_true(kind != previous_kind || !crowd.left[!kind]);
	for (unsigned i = 0; i < N_CLIENTS; i++)
		assert_true(!crowd.left_of_client[kind][i] ||
		            crowd.by_client[kind][job->client] <= crowd.by_client[kind][i]);
	for (unsigned i = 0; i < N_LINES; i++)
		assert_true(!crowd.left_of_line[i] || crowd.lines[i].share != &crowd.shares[job->client] ||
		            (i / 2 % 3 == 0) != kind || crowd.by_line[job->line] <= crowd.by_line[i]);
	crowd.by_line[job->line]++;
	crowd.by_client[kind][job->client]++;
	crowd.left_of_line[job->line]--;
	crowd.left_of_client[kind][job->client]--;
	crowd.left[kind]--;
}

static void test_random_crowd(void **state)
{
	uint64_t rng = test_seed(__func__);
	const struct random_job *last[N_LINES] = {0};
	bool kind = true; /* of the first slice, which waits for go */

	memset(&crowd, 0, sizeof(crowd));
	for (unsigned i = 0; i < N_JOBS; i++)
		post_random(&crowd.jobs[i], &rng);
	finish();
	assert_int_equal(t.n_done, 1 + N_JOBS);
	for (unsigned i = 0; i < crowd.n_slices; i++) {
		const struct random_job *job = crowd.served[i];

		assert_true(job >= last[job->line]); /* the line keeps its order */
		last[job->line] = job;
		check_slice(job, kind);
		kind = job->job.awaited;
	}
	assert_int_equal(crowd.left[0] + crowd.left[1], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(test_short_overtakes_long, setup),
	    cmocka_unit_test_setup(test_lines_keep_their_order, setup),
	    cmocka_unit_test_setup(test_nobody_starves, setup),
	    cmocka_unit_test_setup(test_lines_do_not_multiply_a_share, setup),
	    cmocka_unit_test_setup(test_random_crowd, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
