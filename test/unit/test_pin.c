/* Pins: the table, every interleaving of one caller and one evictor, and both as threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "clock.h"
#include "pin.h"
#include "pager.h"
#include "testrng.h"

static int setup(void **state)
{
	static struct fp_pin_table table;

	*state = &table;
	return fp_pin_table_init(&table);
}

static int teardown(void **state)
{
	fp_pin_table_done(*state);
	return 0;
}

/* ---- the table ---- */

static void test_what_is_published_is_seen(void **state)
{
	struct fp_pin_table *table = *state;
	const struct fp_page_range ranges[] = {{10, 3}, {100, 1}, {0, 1}};
	const uint32_t pages[] = {9, 10, 12, 13, 100, 0, 1};
	uint32_t place;

	assert_int_equal(fp_pin_look(table, pages, 7), 0);
	place = fp_pin_publish(table, ranges, 3, 0);
	assert_int_equal(fp_pin_look(table, pages, 7), 1u << 1 | 1u << 2 | 1u << 4 | 1u << 5);
	assert_true(fp_pin_has(table, 11));
	assert_false(fp_pin_any_outside(table, 0, 101));
	assert_true(fp_pin_any_outside(table, 1, 101) && fp_pin_any_outside(table, 0, 100));
	fp_pin_clear(table, place, 3);
	assert_int_equal(fp_pin_look(table, pages, 7), 0);
	assert_int_equal(atomic_load(&table->held), 0);
}

static void test_the_last_page_of_all(void **state)
{
	struct fp_pin_table *table = *state;
	const struct fp_page_range range = {UINT32_MAX - 1, 2};
	uint32_t place = fp_pin_publish(table, &range, 1, 0);

	assert_true(fp_pin_has(table, UINT32_MAX));
	assert_true(fp_pin_has(table, UINT32_MAX - 1));
	assert_false(fp_pin_has(table, 0));
	fp_pin_clear(table, place, 1);
}

static void test_a_row_goes_round_what_is_taken(void **state)
{
	struct fp_pin_table *table = *state;
	const struct fp_page_range ranges[] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}};
	uint32_t a = fp_pin_publish(table, ranges, 1, 2), b = fp_pin_publish(table, ranges, 4, 0), c;

	assert_int_equal(a, 2);
	assert_int_equal(b, 3);
	c = fp_pin_publish(table, ranges, 2, 0);
	assert_int_equal(c, 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(fp_pin_at(table, b + i).page, ranges[i].page);
	fp_pin_clear(table, a, 1);
	fp_pin_clear(table, b, 4);
	fp_pin_clear(table, c, 2);
}

static void test_full_and_the_end_of_the_table(void **state)
{
	struct fp_pin_table *table = *state;
	static struct fp_page_range many[FP_PIN_MAX];
	uint32_t place;

	for (uint32_t i = 0; i < FP_PIN_MAX; i++)
		many[i] = (struct fp_page_range){i, 1};
	assert_int_equal(fp_pin_publish(table, many, 2, FP_PIN_MAX - 1),
	                 0); /* no free entry there, so it searches from the start */
	fp_pin_clear(table, 0, 2);
	place = fp_pin_publish(table, many, FP_PIN_MAX - 1, 0);
	assert_int_equal(place, 0);
	assert_int_equal(fp_pin_publish(table, many, 2, 5), FP_PIN_NO_PLACE);
	assert_int_equal(fp_pin_publish(table, many, 1, 5), FP_PIN_MAX - 1);
	assert_int_equal(atomic_load(&table->held), FP_PIN_MAX);
	fp_pin_clear(table, 0, FP_PIN_MAX);
	assert_int_equal(atomic_load(&table->held), 0);
}

static void test_a_forked_child_keeps_its_own(void **state)
{
	struct fp_pin_table *table = *state;
	const struct fp_page_range mine[] = {{10, 1}, {20, 1}}, others[] = {{30, 1}};
	uint32_t a = fp_pin_publish(table, mine, 2, 0), b = fp_pin_publish(table, others, 1, 8);
	const struct fp_page_range keep = {a, 2};

	fp_pin_forked(table, &keep, 1);
	assert_true(fp_pin_has(table, 10) && fp_pin_has(table, 20));
	assert_false(fp_pin_has(table, 30));
	assert_int_equal(atomic_load(&table->held), 2);
	assert_int_equal(fp_pin_publish(table, others, 1, b), b);
	fp_pin_clear(table, a, 2);
	fp_pin_clear(table, b, 1);
}

/* ---- every interleaving of a caller and an evictor ---- */

/*
 * The caller publishes its pin, looks at the page's word (again while the page is under way), makes
 * the call, and clears the pin. The evictor claims the page, looks for a pin, and takes the page or
 * puts it back. The model is sequentially consistent, because the fences make the real code so.
 */
enum { CALLER_START, CALLER_LOOKS, CALLER_CALLS, CALLER_DONE };
enum { EVICTOR_START, EVICTOR_LOOKS, EVICTOR_TAKES, EVICTOR_PUTS_BACK, EVICTOR_DONE };

struct model {
	unsigned caller, evictor;
	_Atomic uint64_t word;
	bool present;
	uint32_t place;
};

static bool caller_step(struct fp_pin_table *table, struct model *m)
{
	const struct fp_page_range range = {7, 1};

	switch (m->caller) {
	case CALLER_START:
		m->place = fp_pin_publish(table, &range, 1, 0);
		m->caller = CALLER_LOOKS;
		return true;
	case CALLER_LOOKS:
		if (fp_page_state(m->word) == FP_PAGE_RESIDENT) {
			m->caller = CALLER_CALLS;
			return true;
		}
		if (fp_page_state(m->word) == FP_PAGE_LEAVING)
			return false; /* the caller waits */
		m->word = FP_PAGE_RESIDENT | (m->word & ~FP_PAGE_STATE_MASK);
		m->present = true;
		m->caller = CALLER_CALLS;
		return true;
	case CALLER_CALLS:
		assert_true(m->present); /* a pin must guarantee this */
		fp_pin_clear(table, m->place, 1);
		m->caller = CALLER_DONE;
		return true;
	}
	return false;
}

static bool evictor_step(struct fp_pin_table *table, struct model *m)
{
	switch (m->evictor) {
	case EVICTOR_START:
		m->evictor = fp_pager_apply_evict(&m->word, 0, NULL).action == FP_ACT_NONE ? EVICTOR_DONE
		                                                                           : EVICTOR_LOOKS;
		return true;
	case EVICTOR_LOOKS:
		m->evictor = fp_pin_has(table, 7) ? EVICTOR_PUTS_BACK : EVICTOR_TAKES;
		return true;
	case EVICTOR_TAKES:
		m->present = false;
		fp_pager_apply(&m->word, FP_EV_DROPPED, NULL);
		m->evictor = EVICTOR_DONE;
		return true;
	case EVICTOR_PUTS_BACK:
		fp_pager_apply(&m->word, FP_EV_REFUSED, NULL);
		m->evictor = EVICTOR_DONE;
		return true;
	}
	return false;
}

/*
 * Runs one schedule, in which each bit chooses who makes the next step. The evictor starts again
 * until the caller is done.
 */
static void run_schedule(struct fp_pin_table *table, unsigned schedule)
{
	struct model m = {.present = true};

	m.word = FP_PAGE_RESIDENT | 5ull << FP_PAGE_SLOT_SHIFT;
	for (unsigned i = 0; i < 16 && m.caller != CALLER_DONE; i++) {
		if (m.evictor == EVICTOR_DONE)
			m.evictor = EVICTOR_START;
		if (schedule >> i & 1)
			caller_step(table, &m);
		else
			evictor_step(table, &m);
	}
	while (m.caller != CALLER_DONE) /* at any moment one of the two can go on */
		assert_true(caller_step(table, &m) || evictor_step(table, &m));
	while (m.evictor != EVICTOR_DONE)
		assert_true(evictor_step(table, &m));
}

static void test_every_interleaving(void **state)
{
	for (unsigned schedule = 0; schedule < 1u << 16; schedule++)
		run_schedule(*state, schedule);
	assert_int_equal(atomic_load(&((struct fp_pin_table *)*state)->held), 0);
}

/* ---- threads ---- */

#define PAGES   8u
#define CALLERS 3u
#define ENOUGH  300u /* at least so many pages must be taken, and so many refused */

static struct {
	struct fp_pin_table *table;
	_Atomic uint64_t words[PAGES];
	_Atomic bool present[PAGES]; /* whether the kernel would find the page */
	uint64_t seed;
	_Atomic bool stop;
	_Atomic unsigned broken, refused, taken;
} arena;

/* Acts as the agent: waits for the owner of the page, and brings the page back if it is away. */
static void bring(uint32_t page)
{
	for (;;) {
		struct fp_page_step s;
		uint64_t word = atomic_load(&arena.words[page]);

		if (fp_page_state(word) == FP_PAGE_RESIDENT)
			return;
		s = fp_pager_apply(&arena.words[page], FP_EV_PREFETCH, NULL);
		if (s.action == FP_ACT_FETCH) {
			atomic_store(&arena.present[page], true);
			fp_pager_apply(&arena.words[page], FP_EV_INSTALLED, NULL);
		} else {
			sched_yield();
		}
	}
}

static void *caller(void *arg)
{
	uint64_t rng = arena.seed + (uintptr_t)arg;

	for (unsigned i = 0; !atomic_load(&arena.stop); i++) {
		struct fp_page_range range = {.n = 1 + (uint32_t)(test_random(&rng) % 3)};
		uint32_t place;

		range.page = (uint32_t)(test_random(&rng) % (PAGES - range.n + 1));
		place = fp_pin_publish(arena.table, &range, 1, (uint32_t)(uintptr_t)arg % 4);
		fp_pin_fence();
		for (uint32_t p = range.page; p < range.page + range.n; p++)
			bring(p);
		for (uint32_t p = range.page; p < range.page + range.n; p++)
			if (!atomic_load(&arena.present[p]))
				arena.broken++;
		if (i % 4 == 0) /* gives the evictor time */
			sched_yield();
		for (uint32_t p = range.page; p < range.page + range.n; p++)
			if (!atomic_load(&arena.present[p]))
				arena.broken++;
		fp_pin_clear(arena.table, place, 1);
	}
	return NULL;
}

static void *evictor(void *arg)
{
	while (!atomic_load(&arena.stop)) {
		uint32_t victims[PAGES];
		unsigned n = 0;
		uint64_t held;

		for (uint32_t p = 0; p < PAGES; p++)
			if (fp_pager_apply_evict(&arena.words[p], 0, NULL).action != FP_ACT_NONE)
				victims[n++] = p;
		fp_pin_fence();
		held = fp_pin_look(arena.table, victims, n);
		for (unsigned i = 0; i < n; i++) {
			bool refuse = held >> i & 1;

			if (!refuse)
				atomic_store(&arena.present[victims[i]], false);
			fp_pager_apply(&arena.words[victims[i]], refuse ? FP_EV_REFUSED : FP_EV_DROPPED,
			               NULL);
			*(refuse ? &arena.refused : &arena.taken) += 1;
		}
		sched_yield();
	}
	return NULL;
}

static void test_threads(void **state)
{
	uint64_t until_ns = fp_clock_ns() + 20 * FP_NSEC_PER_SEC;
	pthread_t threads[CALLERS], evicting;

	arena.table = *state;
	arena.seed = test_seed("hold");
	for (uint32_t p = 0; p < PAGES; p++)
		arena.words[p] = FP_PAGE_REMOTE | (p + 1ull) << FP_PAGE_SLOT_SHIFT;
	pthread_create(&evicting, NULL, evictor, NULL);
	for (uintptr_t i = 0; i < CALLERS; i++)
		pthread_create(&threads[i], NULL, caller, (void *)(i + 1));
	while ((arena.taken < ENOUGH || arena.refused < ENOUGH) && fp_clock_ns() < until_ns)
		sched_yield();
	atomic_store(&arena.stop, true);
	for (unsigned i = 0; i < CALLERS; i++)
		pthread_join(threads[i], NULL);
	pthread_join(evicting, NULL);
	print_message("%u taken, %u refused\n", arena.taken, arena.refused);
	assert_int_equal(arena.broken, 0);
	assert_true(arena.taken >= ENOUGH && arena.refused >= ENOUGH);
	assert_int_equal(atomic_load(&arena.table->held), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_what_is_published_is_seen, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_the_last_page_of_all, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_a_row_goes_round_what_is_taken, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_full_and_the_end_of_the_table, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_a_forked_child_keeps_its_own, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_every_interleaving, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
