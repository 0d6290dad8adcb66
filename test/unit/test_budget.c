/* The budget: tokens never exceed it, and each waiting thread is woken once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <pthread.h>
#include <sys/eventfd.h>

#include "budget.h"
#include "testrng.h"

#define BUDGET  64u
#define THREADS 4u

static int setup(void **state)
{
	static struct fp_budget room;

	*state = &room;
	return fp_budget_init(&room, BUDGET);
}

static int teardown(void **state)
{
	fp_budget_done(*state);
	return 0;
}

static unsigned signals(int fd)
{
	eventfd_t n;

	return eventfd_read(fd, &n) == 0 ? (unsigned)n : 0;
}

static void test_take_up_to_the_budget(void **state)
{
	struct fp_budget *room = *state;

	assert_int_equal(fp_budget_take(room, 60), 60);
	assert_int_equal(fp_budget_free(room), 4);
	assert_int_equal(fp_budget_take(room, 10), 4);
	assert_int_equal(fp_budget_take(room, 1), 0);
	fp_budget_give(room, 3);
	assert_int_equal(fp_budget_take(room, 10), 3);
	assert_int_equal(atomic_load(&room->peak), BUDGET);
}

static void test_the_peak_is_shown_as_it_grows(void **state)
{
	struct fp_budget *room = *state;
	_Atomic uint64_t shown = 0, renewed = 7 * 4096;

	fp_budget_take(room, 2);
	fp_budget_show_peak(room, &shown);
	assert_int_equal(shown, 2 * 4096);
	fp_budget_take(room, 3);
	fp_budget_give(room, 5);
	fp_budget_take(room, 1);
	assert_int_equal(shown, 5 * 4096);
	fp_budget_overdraw(room, BUDGET);
	assert_int_equal(shown, (BUDGET + 1) * 4096);
	fp_budget_show_peak(room, NULL);
	fp_budget_overdraw(room, 1);
	assert_int_equal(shown, (BUDGET + 1) * 4096);
	fp_budget_show_peak(room, &renewed);
	assert_int_equal(renewed, (BUDGET + 2) * 4096);
}

static void test_what_calls_hold_leaves_half(void **state)
{
	struct fp_budget *room = *state;

	fp_budget_pin(room, BUDGET / 2);
	assert_int_equal(fp_budget_take(room, 2 * BUDGET), BUDGET);
	fp_budget_pin(room, 10);
	assert_int_equal(fp_budget_free(room), 10);
	assert_int_equal(fp_budget_take(room, 20), 10);
	fp_budget_unpin(room, BUDGET / 2 + 10);
	assert_int_equal(fp_budget_free(room), 0);
	fp_budget_give(room, 10);
	assert_int_equal(fp_budget_take(room, 1), 0);
	fp_budget_give(room, 1);
	assert_int_equal(fp_budget_take(room, 2), 1);
}

static void test_overdraft_is_paid_back_first(void **state)
{
	struct fp_budget *room = *state;

	assert_int_equal(fp_budget_take(room, BUDGET), BUDGET);
	fp_budget_overdraw(room, 2);
	assert_int_equal(atomic_load(&room->peak), BUDGET + 2);
	assert_int_equal(fp_budget_free(room), 0);
	fp_budget_give(room, 2);
	assert_int_equal(fp_budget_take(room, 1), 0);
	fp_budget_give(room, 1);
	assert_int_equal(fp_budget_take(room, 1), 1);
}

static void test_budget_shrinks_below_what_is_out(void **state)
{
	struct fp_budget *room = *state;

	assert_int_equal(fp_budget_take(room, 40), 40);
	atomic_store(&room->pages, 20);
	assert_int_equal(fp_budget_free(room), 0);
	assert_int_equal(fp_budget_take(room, 1), 0);
	fp_budget_give(room, 21);
	assert_int_equal(fp_budget_take(room, 5), 1);
}

static void test_reclaim_is_kicked_once_until_it_looks(void **state)
{
	struct fp_budget *room = *state;
	unsigned batch = fp_budget_batch(room);

	fp_budget_take(room, BUDGET - batch);
	assert_int_equal(signals(room->kick_fd), 0);
	fp_budget_take(room, 1);
	fp_budget_take(room, 1);
	assert_int_equal(signals(room->kick_fd), 1);
	atomic_store(&room->kicked, false);
	fp_budget_take(room, 1);
	assert_int_equal(signals(room->kick_fd), 1);
}

static void test_who_starves_is_told_once(void **state)
{
	struct fp_budget *room = *state;

	fp_budget_take(room, BUDGET);
	fp_budget_give(room, 1);
	assert_int_equal(signals(room->starved_fd), 0);
	atomic_store(&room->starved, true);
	fp_budget_give(room, 0);
	assert_int_equal(signals(room->starved_fd), 0);
	fp_budget_give(room, 1);
	fp_budget_give(room, 1);
	assert_int_equal(signals(room->starved_fd), 1);
	assert_false(atomic_load(&room->starved));
}

static void test_batches_fit_the_budget(void **state)
{
	struct fp_budget *room = *state;

	for (uint64_t budget = 16; budget < 1u << 20; budget = budget * 3 / 2) {
		atomic_store(&room->pages, budget);
		assert_in_range(fp_budget_batch(room), 1, FP_BUDGET_BATCH_MAX);
		assert_in_range(fp_budget_batch(room), 1, budget / 16);
		fp_budget_take(room, (unsigned)fp_budget_free(room) - fp_budget_batch(room));
		assert_true(fp_budget_is_low(room));
		fp_budget_give(room, fp_budget_batch(room));
		assert_false(fp_budget_is_low(room));
	}
}

static void test_grants_are_taken_back_by_what_leaves(void **state)
{
	struct fp_budget *room = *state;
	unsigned batch = fp_budget_batch(room);

	assert_int_equal(fp_budget_take(room, BUDGET), BUDGET);
	assert_false(fp_budget_tried_in_vain(room, false)); /* no thread has waited long enough yet */
	assert_int_equal(fp_budget_take(room, 1), 0);
	fp_budget_grant(room);
	assert_int_equal(fp_budget_take(room, 2), 1);
	assert_true(fp_budget_tried_in_vain(room, false));
	assert_false(fp_budget_tried_in_vain(room, false)); /* a token is free again */
	assert_int_equal(fp_budget_take(room, batch + 1), batch);
	fp_budget_give(room, 1); /* the token was not used: the grants stay */
	assert_int_equal(fp_budget_take(room, 2), 1);
	fp_budget_leave(room, batch);
	assert_int_equal(fp_budget_free(room), 0);
	fp_budget_leave(room, 2); /* more than was granted */
	assert_int_equal(fp_budget_free(room), 1);
	fp_budget_tried_in_vain(room, false);
	assert_int_equal(fp_budget_take(room, 2), 1);
	fp_budget_tried_in_vain(room, false); /* no grant is left: the next thread waits like the first */
	assert_int_equal(fp_budget_take(room, 1), 0);
	assert_true(fp_budget_tried_in_vain(room, true)); /* except where waiting can't help */
	assert_int_equal(fp_budget_take(room, batch + 1), batch);
	fp_budget_leave(room, batch);
	fp_budget_give(room, BUDGET);
}

static void test_threads_have_eight_pages_each(void **state)
{
	struct fp_budget *room = *state;

	fp_budget_see_threads(room, BUDGET / 8); /* the budget is large enough for so many threads */
	assert_false(fp_budget_is_scarce(room));
	assert_int_equal(fp_budget_take(room, 4 * BUDGET), BUDGET);
	fp_budget_see_threads(room, BUDGET / 4);
	assert_true(fp_budget_is_scarce(room));
	assert_int_equal(fp_budget_take(room, 4 * BUDGET), BUDGET);
	fp_budget_pin(room, 3); /* the threads can't use the tokens of pinned pages */
	assert_int_equal(fp_budget_take(room, 4 * BUDGET), 3);
	fp_budget_unpin(room, 3);
	fp_budget_see_threads(room, 1);
	assert_false(fp_budget_is_scarce(room));
	assert_int_equal(fp_budget_free(room), 0);
	fp_budget_leave(room, BUDGET + 4);
	assert_int_equal(fp_budget_free(room), 1);
}

struct taker {
	struct fp_budget *room;
	_Atomic uint64_t *out;
	uint64_t rng;
	bool exceeded;
};

static void *take_and_give(void *arg)
{
	struct taker *t = arg;

	for (unsigned i = 0; i < 20000; i++) {
		unsigned got = fp_budget_take(t->room, 1 + (unsigned)(test_random(&t->rng) % 40));

		t->exceeded |= atomic_fetch_add(t->out, got) + got > BUDGET;
		atomic_fetch_sub(t->out, got);
		fp_budget_give(t->room, got);
	}
	return NULL;
}

static void test_threads_never_exceed_it(void **state)
{
	struct fp_budget *room = *state;
	struct taker takers[THREADS];
	pthread_t threads[THREADS];
	_Atomic uint64_t out = 0;
	uint64_t seed = test_seed("room");

	for (unsigned i = 0; i < THREADS; i++) {
		takers[i] = (struct taker){.room = room, .out = &out, .rng = seed + i};
		assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &takers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		assert_false(takers[i].exceeded);
	}
	assert_int_equal(fp_budget_free(room), BUDGET);
	assert_true(atomic_load(&room->peak) <= BUDGET);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(test_take_up_to_the_budget),
	    TEST(test_the_peak_is_shown_as_it_grows),
	    TEST(test_what_calls_hold_leaves_half),
	    TEST(test_overdraft_is_paid_back_first),
	    TEST(test_budget_shrinks_below_what_is_out),
	    TEST(test_reclaim_is_kicked_once_until_it_looks),
	    TEST(test_who_starves_is_told_once),
	    TEST(test_grants_are_taken_back_by_what_leaves),
	    TEST(test_batches_fit_the_budget),
	    TEST(test_threads_have_eight_pages_each),
	    TEST(test_threads_never_exceed_it),
	};

	return cmocka_run_group_tests_name("room", tests, NULL, NULL);
}
