/* The eviction queue: order, what it learns from pages that return, bounds, threads at both
 * ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include "evict_queue.h"

#define PAGES  8192u
#define BUDGET 1024u

/* A queue, and for each page how often it should be in there, and its past. */
struct bed {
	struct fp_evict_queue queue;
	uint32_t next[PAGES], past[PAGES];
	bool local[PAGES];
	uint64_t fetches;
	uint32_t n_local;
};

static int setup(void **state)
{
	struct bed *bed = calloc(1, sizeof(*bed));

	*state = bed;
	if (!bed)
		return -1;
	fp_evict_queue_init(&bed->queue, bed->next);
	fp_evict_queue_set_budget(&bed->queue, BUDGET);
	return 0;
}

static int teardown(void **state)
{
	struct bed *bed = *state;

	fp_evict_queue_done(&bed->queue);
	free(bed);
	return 0;
}

static void push(struct bed *bed, uint32_t from, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		fp_evict_queue_push(&bed->queue, from + i, 0);
}

static void pop(struct bed *bed, uint32_t from, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct fp_evict_entry out;

		assert_int_equal(fp_evict_queue_pop(&bed->queue, &out, 1), 1);
		assert_int_equal(out.page, from + i);
		assert_true(out.past > 0 && out.past < 1u << FP_EVICT_PAST_BITS);
	}
}

static void is_empty(struct bed *bed)
{
	struct fp_evict_entry out;

	assert_int_equal(fp_evict_queue_pop(&bed->queue, &out, 1), 0);
}

/* ---- order ---- */

static void test_first_in_first_out(void **state)
{
	struct bed *bed = *state;
	struct fp_evict_entry out[8];

	is_empty(bed);
	push(bed, 100, 5);
	assert_int_equal(fp_evict_queue_pop(&bed->queue, out, 3), 3);
	assert_int_equal(out[0].page, 100);
	assert_int_equal(out[2].page, 102);
	push(bed, 50, 1);
	assert_int_equal(fp_evict_queue_pop(&bed->queue, out, 8), 3);
	assert_int_equal(out[1].page, 104);
	assert_int_equal(out[2].page, 50);
	is_empty(bed);
}

static void test_one_entry(void **state)
{
	struct bed *bed = *state;

	push(bed, 0, 3);
	push(bed, 1, 1);
	push(bed, 0, 3);
	pop(bed, 0, 3);
	is_empty(bed);
	push(bed, 2, 1);
	pop(bed, 2, 1);
}

static void test_cut(void **state)
{
	struct bed *bed = *state;

	push(bed, 0, 4000);
	fp_evict_queue_cut(&bed->queue, 1024, 3000);
	for (uint32_t p = 0; p < PAGES; p++)
		if (p < 1024 || p >= 3000)
			assert_int_equal(bed->next[p], 0);
	push(bed, 3000, 1);
	pop(bed, 1024, 3001 - 1024);
	is_empty(bed);
	push(bed, 1024, 2);
	pop(bed, 1024, 2);
}

static void test_renew(void **state)
{
	struct bed *bed = *state;

	push(bed, 0, 100);
	memset(bed->next, 0, sizeof(bed->next));
	fp_evict_queue_renew(&bed->queue);
	is_empty(bed);
	push(bed, 0, 100);
	pop(bed, 0, 100);
}

/* ---- what is learnt ---- */

static void touch(struct bed *bed, uint32_t page)
{
	struct fp_evict_entry out;

	if (bed->local[page])
		return;
	if (bed->n_local == BUDGET) {
		assert_int_equal(fp_evict_queue_pop(&bed->queue, &out, 1), 1);
		assert_true(bed->local[out.page]);
		bed->local[out.page] = false;
		bed->past[out.page] = out.past;
		bed->n_local--;
	}
	fp_evict_queue_push(&bed->queue, page, bed->past[page]);
	bed->local[page] = true;
	bed->n_local++;
	bed->fetches++;
}

/* Half of the touches go to few pages, the others go round through many. */
static void test_pages_that_return(void **state)
{
	struct bed *bed = *state;
	uint32_t n_few = BUDGET / 2, few = 0, round = 0;

	for (unsigned i = 0; i < 400000; i++) {
		touch(bed, few = (few * 5 + 3) % n_few);
		touch(bed, n_few + (round = (round + 1) % (PAGES - n_few)));
	}
	/* the round alone costs 400000 fetches; first in, first out takes 200000 more for the
	 * few */
	printf("%llu fetches beyond those of the round\n", (unsigned long long)bed->fetches - 400000);
	assert_true(bed->fetches < 400000 + 40000);
}

/* Pages are touched in turn: nobody can do better than to fetch nearly each. Nothing is lost. */
static void test_round(void **state)
{
	struct bed *bed = *state;

	for (unsigned i = 0; i < 100000; i++)
		touch(bed, i % PAGES);
	assert_true(bed->fetches <= 100000 && bed->n_local == BUDGET);
}

/* ---- random calls: each page that should be in there is, once ---- */

static uint64_t random_number(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

static void random_pops(struct bed *bed, unsigned max)
{
	struct fp_evict_entry out[64];
	unsigned n = fp_evict_queue_pop(&bed->queue, out, max);

	assert_int_equal(n, max < bed->n_local ? max : bed->n_local);
	for (unsigned i = 0; i < n; i++) {
		assert_true(bed->local[out[i].page]);
		bed->local[out[i].page] = false;
		bed->past[out[i].page] = out[i].past;
		bed->n_local--;
	}
}

static void random_step(struct bed *bed, uint64_t *random)
{
	uint32_t page = (uint32_t)(random_number(random) % PAGES), end;

	switch (random_number(random) % 1000) {
	case 0:
		fp_evict_queue_set_budget(&bed->queue,
		                          random_number(random) % (1ull << (random_number(random) % 40)));
		break;
	case 1:
		end = page + (uint32_t)(random_number(random) % (PAGES - page));
		fp_evict_queue_cut(&bed->queue, page, end);
		for (uint32_t p = 0; p < PAGES; p++)
			if ((p < page || p >= end) && bed->local[p]) {
				bed->local[p] = false;
				bed->n_local--;
			}
		break;
	default:
		if (random_number(random) % 2) {
			random_pops(bed, (unsigned)(random_number(random) % 64) + 1);
			break;
		}
		for (unsigned n = (unsigned)(random_number(random) % 64); n > 0;
		     n--, page = (page + 1) % PAGES) {
			fp_evict_queue_push(&bed->queue, page, bed->past[page]);
			bed->n_local += !bed->local[page];
			bed->local[page] = true;
		}
	}
}

static void test_random(void **state)
{
	const char *given = getenv("FP_TEST_SEED");
	uint64_t random = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
	struct bed *bed = *state;

	printf("FP_TEST_SEED=%llu\n", (unsigned long long)random);
	for (unsigned i = 0; i < 200000; i++)
		random_step(bed, &random);
	while (bed->n_local > 0)
		random_pops(bed, 64);
	is_empty(bed);
	for (uint32_t p = 0; p < PAGES; p++)
		assert_int_equal(bed->next[p], 0);
}

/* ---- threads ---- */

#define PUSHERS 3u
#define EACH    (PAGES / PUSHERS)
#define ROUNDS  20u

struct pusher {
	struct bed *bed;
	uint32_t first;
	_Atomic bool *out; /* by page: it was taken out */
};

static void *push_all(void *arg)
{
	const struct pusher *p = arg;

	for (uint32_t n = 0; n < ROUNDS; n++)
		for (uint32_t i = p->first; i < p->first + EACH; i++) {
			while (!p->out[i])
				sched_yield();
			p->out[i] = false;
			fp_evict_queue_push(&p->bed->queue, i, 0);
		}
	return NULL;
}

/* Each push of three threads comes out once, while the budget changes. */
static void test_threads(void **state)
{
	static _Atomic bool out[PAGES];
	struct bed *bed = *state;
	struct pusher pushers[PUSHERS];
	pthread_t threads[PUSHERS];
	struct fp_evict_entry taken[64];
	uint32_t total = 0;

	for (uint32_t i = 0; i < PAGES; i++)
		out[i] = true;
	for (uint32_t i = 0; i < PUSHERS; i++) {
		pushers[i] = (struct pusher){.bed = bed, .first = i * EACH, .out = out};
		assert_int_equal(pthread_create(&threads[i], NULL, push_all, &pushers[i]), 0);
	}
	while (total < PUSHERS * EACH * ROUNDS) {
		unsigned n = fp_evict_queue_pop(&bed->queue, taken, 64);

		for (unsigned i = 0; i < n; i++) {
			assert_false(out[taken[i].page]);
			out[taken[i].page] = true;
		}
		total += n;
		fp_evict_queue_set_budget(&bed->queue, total);
	}
	for (uint32_t i = 0; i < PUSHERS; i++)
		pthread_join(threads[i], NULL);
	is_empty(bed);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(test_first_in_first_out), TEST(test_one_entry), TEST(test_cut),    TEST(test_renew),
	    TEST(test_pages_that_return),  TEST(test_round),     TEST(test_random), TEST(test_threads),
	};

	return cmocka_run_group_tests_name("evict_queue", tests, NULL, NULL);
}
