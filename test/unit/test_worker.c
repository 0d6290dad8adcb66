/* The worker: short jobs overtake long ones, a line keeps its order, and every job is served. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "worker.h"

#define MANY 1000

struct work {
	struct fp_worker_job job; /* first */
	unsigned slices;          /* slices that are left */
	char name;
};

static struct {
	struct fp_worker *worker;
	int go;          /* an eventfd; the worker's first slice waits for it */
	char order[512]; /* the jobs' names, in the order in which they were done */
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
	line = (struct fp_worker_line){0};
	first = (struct work){{.run = wait_for_go, .done = done, .awaited = true}, 1, '>'};
	fp_worker_post(t.worker, &line, &first.job);
	return 0;
}

/* Lets all posted jobs run to their end, and returns their order. */
static const char *order(void)
{
	eventfd_write(t.go, 1);
	fp_worker_stop(t.worker);
	close(t.go);
	return t.order;
}

static void test_short_overtakes_long(void **state)
{
	struct fp_worker_line lines[4] = {0};
	struct work scrub = work('s', MANY, false), big = work('b', MANY / 2, true),
	            lease = work('l', 3, true), small = work('g', 1, false);

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
	struct fp_worker_line line = {0}, other = {0};
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
	struct fp_worker_line lines[101] = {0};
	struct work leases[100], give = work('g', 20, false);

	fp_worker_post(t.worker, &lines[100], &give.job);
	for (unsigned i = 0; i < 100; i++) {
		leases[i] = work('l', 1, true);
		fp_worker_post(t.worker, &lines[i], &leases[i].job);
	}
	assert_in_range(strchr(order(), 'g') - t.order, 19, 21);
	assert_int_equal(t.n_done, 102);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(test_short_overtakes_long, setup),
	    cmocka_unit_test_setup(test_lines_keep_their_order, setup),
	    cmocka_unit_test_setup(test_nobody_starves, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
