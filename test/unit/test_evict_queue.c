/* The eviction queue: order, bounds, growth, and threads at both ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "evict_queue.h"

#define PUSHERS 3u
#define EACH    20000u
#define ROOM    8192u

static int setup(void **state)
{
	static struct fp_evict_queue fifo;
	static uint32_t items[ROOM];

	*state = &fifo;
	fp_evict_queue_init(&fifo, items, ROOM);
	return 0;
}

static int teardown(void **state)
{
	fp_evict_queue_done(*state);
	return 0;
}

static void push(struct fp_evict_queue *fifo, uint32_t from, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		assert_true(fp_evict_queue_push(fifo, from + i));
}

static void pop(struct fp_evict_queue *fifo, uint32_t from, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t page;

		assert_int_equal(fp_evict_queue_pop(fifo, &page, 1), 1);
		assert_int_equal(page, from + i);
	}
}

static void test_first_in_first_out(void **state)
{
	struct fp_evict_queue *fifo = *state;
	uint32_t pages[8];

	assert_int_equal(fp_evict_queue_pop(fifo, pages, 8), 0);
	push(fifo, 100, 5);
	assert_int_equal(fp_evict_queue_len(fifo), 5);
	assert_int_equal(fp_evict_queue_pop(fifo, pages, 3), 3);
	assert_int_equal(pages[0], 100);
	assert_int_equal(pages[2], 102);
	assert_int_equal(fp_evict_queue_pop(fifo, pages, 8), 2);
	assert_int_equal(pages[1], 104);
}

static void test_full(void **state)
{
	struct fp_evict_queue *fifo = *state;
	uint32_t capacity = (uint32_t)fifo->capacity;

	push(fifo, 0, capacity);
	assert_false(fp_evict_queue_push(fifo, capacity));
	pop(fifo, 0, 1);
	push(fifo, capacity, 1);
	pop(fifo, 1, capacity);
}

/*
 * The queue grows while its entries lie across the end of the ring. A request for less room changes
 * nothing.
 */
static void test_grows_in_order(void **state)
{
	struct fp_evict_queue *fifo = *state;
	uint32_t capacity = (uint32_t)fifo->capacity, half = capacity / 2;

	push(fifo, 0, capacity);
	pop(fifo, 0, half);
	push(fifo, capacity, half);
	fp_evict_queue_grow(fifo, capacity + 1);
	assert_int_equal(fifo->capacity, 2 * capacity);
	fp_evict_queue_grow(fifo, 1);
	push(fifo, capacity + half, capacity);
	pop(fifo, half, 2 * capacity);
	assert_int_equal(fp_evict_queue_len(fifo), 0);
}

/*
 * Grows by several doublings at once, up to its maximum and no further. The entries then lie in the
 * middle of the old ring.
 */
static void test_grows_to_its_room(void **state)
{
	struct fp_evict_queue *fifo = *state;
	uint32_t capacity = (uint32_t)fifo->capacity, half = capacity / 2;

	push(fifo, 0, half);
	pop(fifo, 0, half);
	push(fifo, half, capacity);
	assert_int_equal(fp_evict_queue_trim(fifo, ROOM / 2), ROOM / 2);
	fp_evict_queue_grow(fifo, ROOM);
	assert_int_equal(fifo->capacity, ROOM / 2);
	assert_int_equal(fp_evict_queue_trim(fifo, 1), ROOM / 2);
	push(fifo, half + capacity, ROOM / 2 - capacity);
	assert_false(fp_evict_queue_push(fifo, 0));
	pop(fifo, half, ROOM / 2);
}

struct pusher {
	struct fp_evict_queue *fifo;
	uint32_t first;
};

static void *push_all(void *arg)
{
	const struct pusher *p = arg;

	for (uint32_t i = 0; i < EACH; i++)
		while (!fp_evict_queue_push(p->fifo, p->first + i))
			sched_yield();
	return NULL;
}

/* Each entry comes out once, and the entries of one thread in order, while the ring grows. */
static void test_threads(void **state)
{
	struct fp_evict_queue *fifo = *state;
	struct pusher pushers[PUSHERS];
	pthread_t threads[PUSHERS];
	uint32_t next[PUSHERS] = {0}, pages[64], total = 0;

	for (uint32_t i = 0; i < PUSHERS; i++) {
		pushers[i] = (struct pusher){.fifo = fifo, .first = i * EACH};
		assert_int_equal(pthread_create(&threads[i], NULL, push_all, &pushers[i]), 0);
	}
	while (total < PUSHERS * EACH) {
		unsigned n = fp_evict_queue_pop(fifo, pages, 64);

		for (unsigned i = 0; i < n; i++)
			assert_int_equal(pages[i] % EACH, next[pages[i] / EACH]++);
		total += n;
		if (total > EACH)
			fp_evict_queue_grow(fifo, ROOM);
	}
	for (uint32_t i = 0; i < PUSHERS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(fp_evict_queue_len(fifo), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(test_first_in_first_out), TEST(test_full),    TEST(test_grows_in_order),
	    TEST(test_grows_to_its_room),  TEST(test_threads),
	};

	return cmocka_run_group_tests_name("fifo", tests, NULL, NULL);
}
