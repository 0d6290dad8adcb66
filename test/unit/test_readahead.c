/* Read-ahead: the walks that it recognises, and how far ahead it fetches them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "readahead.h"

/* Reports a fault whose whole window is then fetched. Returns the size of the window. */
static unsigned fault(struct fp_readahead *ra, uint32_t page)
{
	struct fp_stream *stream;
	unsigned n = fp_readahead_fault(ra, page, &stream);

	fp_readahead_fetched(stream, n);
	return n;
}

static void test_window_doubles(void **state)
{
	static const unsigned windows[] = {0, 1, 2, 4, 8, 16, 20, 20};
	struct fp_readahead ra = {.max_pages = 20};
	uint32_t page = 1000;

	(void)state;
	for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
		unsigned n = fault(&ra, page);

		assert_int_equal(n, windows[i]);
		page += 1 + n;
	}
}

/*
 * Pages of the window that were not fetched (no token, or already present) are expected to fault
 * next.
 */
static void test_part_of_a_window(void **state)
{
	struct fp_readahead ra = {.max_pages = 32};
	struct fp_stream *stream;

	(void)state;
	fault(&ra, 10);
	fault(&ra, 11);
	assert_int_equal(fp_readahead_fault(&ra, 13, &stream), 2);
	fp_readahead_fetched(stream, 1);
	assert_int_equal(fault(&ra, 15), 4);
}

static void test_random_faults_fetch_nothing(void **state)
{
	struct fp_readahead ra = {.max_pages = 32};

	(void)state;
	for (uint32_t i = 1; i < 1000; i++)
		assert_int_equal(fault(&ra, i * 7919 % 100003), 0);
}

/* Walks from page on in these steps. Neighbours are a walk from the second fault on, others from
 * the third. */
static void walk(struct fp_readahead *ra, uint32_t page, int32_t step)
{
	unsigned window = 0, known = step == 1 || step == -1 ? 1 : 2;

	for (unsigned i = 0; i < 8; i++) {
		unsigned n = fault(ra, page);

		if (i >= known)
			window = window == 0 ? 1 : window * 2 < 32 ? window * 2 : 32;
		assert_int_equal(n, window);
		page += (uint32_t)step * (1 + n);
	}
}

static void test_steps(void **state)
{
	static const int32_t steps[] = {-1, 2, -2, 5, FP_READAHEAD_STEP_MAX, -FP_READAHEAD_STEP_MAX};
	struct fp_readahead ra = {.max_pages = 32};

	(void)state;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		walk(&ra, 100000 * (uint32_t)(i + 1), steps[i]);
}

static void test_steps_that_are_too_long(void **state)
{
	struct fp_readahead ra = {.max_pages = 32};

	(void)state;
	for (uint32_t i = 1; i < 100; i++)
		assert_int_equal(fault(&ra, i * (FP_READAHEAD_STEP_MAX + 1)), 0);
}

/* The pages of each lie between those of the other: neighbours win over larger steps. */
static void test_walks_side_by_side(void **state)
{
	struct fp_readahead ra = {.max_pages = 4};
	uint32_t up = 1000, down = 1010;

	(void)state;
	for (unsigned step = 0; step < 4; step++) {
		unsigned n = fault(&ra, up), m = fault(&ra, down);

		assert_int_equal(n, step ? 1u << (step - 1) : 0);
		assert_int_equal(m, n);
		up += 1 + n;
		down -= 1 + m;
	}
}

/* As many walks as there are streams, one page of each in turn. */
static void test_interleaved_walks(void **state)
{
	struct fp_readahead ra = {.max_pages = 32};
	uint32_t at[FP_READAHEAD_STREAMS];

	(void)state;
	for (uint32_t i = 0; i < FP_READAHEAD_STREAMS; i++)
		at[i] = 100000 * (i + 1);
	for (unsigned step = 0; step < 6; step++)
		for (uint32_t i = 0; i < FP_READAHEAD_STREAMS; i++) {
			unsigned n = fault(&ra, at[i]);

			assert_int_equal(n, step ? 1u << (step - 1) : 0);
			at[i] += 1 + n;
		}
}

/* One walk too many replaces the stream that has not moved for the longest time. */
static void test_oldest_walk_is_forgotten(void **state)
{
	struct fp_readahead ra = {.max_pages = 32};

	(void)state;
	for (uint32_t i = 0; i <= FP_READAHEAD_STREAMS; i++)
		fault(&ra, 100000 * (i + 1));
	assert_int_equal(fault(&ra, 200001), 1);
	assert_int_equal(fault(&ra, 100001), 0);
}

/* Faults on fresh pages: each begins a stream at once, if it continues none. */
static unsigned fresh(struct fp_readahead *ra, uint32_t page, int32_t *ret_step)
{
	struct fp_stream *stream;
	unsigned n = fp_readahead_fault(ra, page, &stream);

	if (n == 0)
		n = fp_readahead_begin(ra, stream, 15);
	fp_readahead_fetched(stream, n);
	*ret_step = stream->step;
	return n;
}

static void test_begins_at_once(void **state)
{
	static const int32_t steps[] = {-1, -4, 1};
	int32_t step;

	(void)state;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		struct fp_readahead ra = {.max_pages = 32};
		uint32_t page = 1000;
		int32_t way = steps[i] < 0 ? -1 : 1;

		assert_int_equal(fresh(&ra, page, &step), 15);
		assert_int_equal(step, 1);
		page += (uint32_t)(way < 0 ? steps[i] : 16);
		assert_int_equal(fresh(&ra, page, &step), way < 0 ? 15 : 30);
		assert_int_equal(step, way);
		page += (uint32_t)(way * (way < 0 ? 16 : 31));
		assert_int_equal(fresh(&ra, page, &step), way < 0 ? 30 : 32);
		assert_int_equal(step, way);
	}
}

static void test_off(void **state)
{
	struct fp_readahead ra = {.max_pages = 0};

	(void)state;
	for (uint32_t page = 5; page < 50; page++)
		assert_int_equal(fault(&ra, page), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_window_doubles),
	    cmocka_unit_test(test_part_of_a_window),
	    cmocka_unit_test(test_random_faults_fetch_nothing),
	    cmocka_unit_test(test_steps),
	    cmocka_unit_test(test_steps_that_are_too_long),
	    cmocka_unit_test(test_walks_side_by_side),
	    cmocka_unit_test(test_interleaved_walks),
	    cmocka_unit_test(test_oldest_walk_is_forgotten),
	    cmocka_unit_test(test_begins_at_once),
	    cmocka_unit_test(test_off),
	};

	return cmocka_run_group_tests_name("readahead", tests, NULL, NULL);
}
