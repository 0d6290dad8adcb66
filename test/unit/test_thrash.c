/*
 * Thrashing is told, and bounded; and a simulation of threads, their faults and a
 * first-in-first-out budget: without the word of thrash.h nobody goes on, with it everybody does,
 * whatever the order in which they run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "cleanup.h"
#include "testrng.h"
#include "thrash.h"

#define THREADS_MAX 256u
#define PAGES       64u /* of each thread */
#define OPERATIONS  40u
#define LIVELOCK    100000u /* faults after which nobody believes that it goes on */

/* ---- the simulation ---- */

struct queue {
	uint32_t items[2 * THREADS_MAX * PAGES];
	uint32_t head, tail;
};

struct sim_thread {
	uint32_t needs[FP_THRASH_PAGES]; /* of its present instruction */
	uint32_t waits_for;
	unsigned done;
};

struct sim {
	struct fp_thrash thrash;
	struct sim_thread thread[THREADS_MAX];
	bool resident[THREADS_MAX * PAGES];
	struct queue queue;    /* resident pages, the oldest first */
	struct queue messages; /* threads that wait */
	struct queue ready;    /* threads that can run */
	uint64_t rng;
	uint32_t n_threads, budget, need, faults, unfinished;
	bool cured, shared, ordered; /* ordered: all faults are served before anybody runs */
};

static uint32_t length(const struct queue *q)
{
	return q->tail - q->head;
}

static void push(struct queue *q, uint32_t item)
{
	q->items[q->tail++ % FP_ARRAY_LEN(q->items)] = item;
}

static uint32_t pop(struct queue *q)
{
	return q->items[q->head++ % FP_ARRAY_LEN(q->items)];
}

static void next_instruction(struct sim *s, uint32_t thread)
{
	uint32_t base = s->shared ? 0 : thread * PAGES;

	for (unsigned i = 0; i < FP_THRASH_PAGES; i++)
		s->thread[thread].needs[i] = base + (uint32_t)(test_random(&s->rng) % PAGES);
}

/* Executes one instruction, or as far as the first page that is not there. */
static void run_thread(struct sim *s, uint32_t thread)
{
	struct sim_thread *t = &s->thread[thread];

	for (unsigned i = 0; i < FP_THRASH_PAGES; i++)
		if (!s->resident[t->needs[i]]) {
			t->waits_for = t->needs[i];
			push(&s->messages, thread);
			return;
		}
	s->unfinished -= ++t->done == OPERATIONS;
	next_instruction(s, thread);
	push(&s->ready, thread); /* goes on for ever, and so keeps pages from the others */
}

/*
 * Tokens that are left while pages are on their way out: two margins are kept free, four batches
 * leave.
 */
static uint32_t capacity(const struct sim *s)
{
	uint32_t margin = FP_MAX(s->budget / 16, 1u);

	return FP_MAX(s->budget, s->need) - 6 * margin;
}

static void serve_one(struct sim *s)
{
	uint32_t thread = pop(&s->messages), page = s->thread[thread].waits_for, need;

	if (!s->resident[page]) {
		s->faults++;
		need = fp_thrash_fault(&s->thrash, thread + 1000, page);
		if (s->cured)
			s->need = FP_MAX(s->need, need);
		while (length(&s->queue) >= capacity(s))
			s->resident[pop(&s->queue)] = false;
		s->resident[page] = true;
		push(&s->queue, page);
	}
	push(&s->ready, thread);
}

static bool serves_next(struct sim *s)
{
	if (length(&s->messages) == 0 || length(&s->ready) == 0)
		return length(&s->messages) > 0;
	return s->ordered || test_random(&s->rng) % 2;
}

/* Until each thread is through, or too many faults made no progress. */
static void simulate(struct sim *s, uint32_t faults_max)
{
	s->unfinished = s->n_threads;
	for (uint32_t i = 0; i < s->n_threads; i++) {
		next_instruction(s, i);
		push(&s->ready, i);
	}
	while (s->unfinished && s->faults < faults_max) {
		uint32_t n = s->ordered ? length(&s->ready) : 1;

		if (serves_next(s))
			serve_one(s);
		else
			while (n--) /* a round: a thread that has run waits for the next */
				run_thread(s, pop(&s->ready));
	}
}

static struct sim *sim_new(uint32_t n_threads, uint32_t budget, uint64_t seed)
{
	struct sim *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->n_threads = n_threads;
	s->budget = budget;
	s->rng = seed;
	return s;
}

static uint32_t all_done(const struct sim *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_threads; i++)
		n += s->thread[i].done;
	return n;
}

static void test_nobody_goes_on_without(void **state)
{
	for (uint32_t budget = 16; budget <= 64; budget *= 2) {
		struct sim *s = sim_new(32, budget, 1);

		s->ordered = true;
		simulate(s, LIVELOCK);
		assert_int_equal(all_done(s), 0);
		free(s);
	}
}

static void check_progress(uint32_t n_threads, uint32_t budget, bool shared, bool ordered, uint64_t seed)
{
	struct sim *s = sim_new(n_threads, budget, seed);

	s->cured = true;
	s->shared = shared;
	s->ordered = ordered;
	simulate(s, 100 * LIVELOCK);
	if (s->unfinished)
		print_message("%u threads, %u pages, shared %d, ordered %d\n", n_threads, budget, shared,
		              ordered);
	assert_int_equal(s->unfinished, 0);
	assert_true(s->need <= FP_THRASH_NEED * n_threads);
	/*
	 * the promise of thrash.h: one fault in four is new, and four new ones are an instruction
	 */
	assert_true(s->faults <= 16 * (all_done(s) + n_threads) + 64 * FP_THRASH_WINDOW);
	free(s);
}

static void test_everybody_comes_through(void **state)
{
	static const uint32_t threads[] = {1, 2, 3, 7, 32, 100, THREADS_MAX};
	uint64_t seed = test_seed("thrash");

	for (unsigned i = 0; i < FP_ARRAY_LEN(threads); i++)
		for (uint32_t budget = 16; budget <= 1024; budget *= 4)
			for (unsigned how = 0; how < 4; how++)
				check_progress(threads[i], budget, how & 1, how & 2, seed++);
}

/* ---- what tells, and what does not ---- */

static void test_new_pages_never_tell(void **state)
{
	struct fp_thrash *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	for (uint32_t i = 0; i < 100 * FP_THRASH_WINDOW;
	     i++) /* five pages in turn: more than one instruction's */
		assert_int_equal(fp_thrash_fault(t, 1 + i % 7, i / 7 % (FP_THRASH_PAGES + 1)), 0);
	free(t);
}

/* Faults of n threads, each of the same two pages again and again: the last word on what is
 * needed. */
static uint32_t thrash_with(struct fp_thrash *t, uint32_t n, uint32_t n_faults)
{
	uint32_t need = 0;

	for (uint32_t i = 0; i < n_faults; i++) {
		uint32_t told = fp_thrash_fault(t, 1 + i % n, i % n * 2 + i / n % 2);

		need = told ? told : need;
	}
	return need;
}

static void test_only_threads_that_fault_count(void **state)
{
	struct fp_thrash *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	assert_int_equal(thrash_with(t, 32, 10 * FP_THRASH_WINDOW), FP_THRASH_NEED * 32);
	assert_int_equal(thrash_with(t, 4, 100 * FP_THRASH_WINDOW), FP_THRASH_NEED * 4);
	assert_int_equal(thrash_with(t, THREADS_MAX, 100 * FP_THRASH_WINDOW), FP_THRASH_NEED * THREADS_MAX);
	assert_int_equal(thrash_with(t, 800, 100 * FP_THRASH_WINDOW), FP_THRASH_NEED_MAX);
	free(t);
}

/* Whoever asks again among many that do not is in nobody's way. */
static void test_one_of_four_is_not_enough(void **state)
{
	struct fp_thrash *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	for (uint32_t i = 0; i < 100 * FP_THRASH_WINDOW; i++)
		assert_int_equal(fp_thrash_fault(t, 1 + i % 4, i % 4 < 2 ? i % 4 : i), 0);
	free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_nobody_goes_on_without),
	    cmocka_unit_test(test_everybody_comes_through),
	    cmocka_unit_test(test_new_pages_never_tell),
	    cmocka_unit_test(test_only_threads_that_fault_count),
	    cmocka_unit_test(test_one_of_four_is_not_enough),
	};

	return cmocka_run_group_tests_name("thrash", tests, NULL, NULL);
}
