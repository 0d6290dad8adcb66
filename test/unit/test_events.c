/* events: what is noted, who sees it, and what is left of a stretch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "events.h"
#include "far.h"

#define BASE  0x10000000ull
#define PAGES 4096u
#define OWN   16u

static struct fp_far far;

static int set_up(void **state)
{
	far = (struct fp_far){.base = (char *)(uintptr_t)BASE,
	                      .n_pages = PAGES,
	                      .uffd = {.fd = -1, .has_events = true},
	                      .room = {.starved_fd = -1, .kick_fd = -1}};
	return fp_events_init(&far, OWN);
}

static int tear_down(void **state)
{
	fp_events_done(&far);
	return 0;
}

static void note(uint64_t start, uint64_t end)
{
	const struct fp_uffd_fault m = {.change = FP_UFFD_UNMAPPED,
	                                .addr = BASE + start * FP_PAGE_SIZE,
	                                .end = BASE + end * FP_PAGE_SIZE};

	assert_true(fp_events_note(&far, &m));
}

static void faults_are_none(void **state)
{
	const struct fp_uffd_fault fault = {.addr = BASE + 100 * FP_PAGE_SIZE};

	assert_false(fp_events_note(&far, &fault));
	assert_false(fp_events_any(&far.events));
	assert_false(atomic_load(&far.events.careful));
}

static void what_is_noted_is_seen(void **state)
{
	uint32_t start, end;

	note(100, 110);
	note(200, 201);
	assert_true(atomic_load(&far.events.careful));
	assert_true(fp_events_any(&far.events));
	assert_false(fp_events_touch(&far.events, 0, 100));
	assert_true(fp_events_touch(&far.events, 99, 101));
	assert_true(fp_events_touch(&far.events, 109, 120));
	assert_false(fp_events_touch(&far.events, 110, 200));
	assert_true(fp_events_touch(&far.events, 0, PAGES));
	assert_true(fp_events_first(&far.events, &start, &end));
	assert_int_equal(start, 100);
	assert_int_equal(end, 110);
	fp_events_drop_first(&far.events);
	assert_false(fp_events_touch(&far.events, 100, 110));
	assert_true(fp_events_first(&far.events, &start, &end));
	assert_int_equal(start, 200);
	assert_int_equal(end, 201);
	fp_events_drop_first(&far.events);
	assert_false(fp_events_first(&far.events, &start, &end));
}

/* One system call may end more than what is ours. */
static void borders(void **state)
{
	const struct fp_uffd_fault below = {.change = FP_UFFD_UNMAPPED, .addr = 0x1000, .end = BASE};
	uint32_t start, end;

	assert_true(fp_events_note(&far, &below));
	assert_false(fp_events_any(&far.events));
	note(PAGES, PAGES + 100);
	assert_false(fp_events_any(&far.events));
	note(PAGES - 10, PAGES + 100);
	assert_true(fp_events_first(&far.events, &start, &end));
	assert_int_equal(start, PAGES - 10);
	assert_int_equal(end, PAGES);
}

/* Stretches of what is ours, put together, are all of it and nothing else. */
static void stretches(void **state)
{
	uint32_t seen = 0, start = 90, end = 220;

	note(100, 110);
	note(110, 112);
	note(200, 201);
	while (fp_events_own_stretch(&far.events, &start, &end)) {
		assert_false(fp_events_touch(&far.events, start, end));
		seen += end - start;
		start = end;
		end = 220;
	}
	assert_int_equal(seen, 130 - 12 - 1);
	start = 101;
	end = 111;
	assert_false(fp_events_own_stretch(&far.events, &start, &end));
}

static void the_ring_fills(void **state)
{
	unsigned n = 0;

	while (fp_events_has_room(&far)) {
		note(100 + n % 1000, 101 + n % 1000);
		n++;
	}
	assert_in_range(n, FP_EVENTS_MAX - FP_UFFD_READ_MAX, FP_EVENTS_MAX);
	for (unsigned i = 0; i < FP_UFFD_READ_MAX - 1; i++)
		note(3000 + i, 3001 + i);
	assert_true(fp_events_touch(&far.events, 100, 101));
	assert_true(fp_events_touch(&far.events, 3000, 3001));
	fp_events_drop_first(&far.events);
	assert_false(fp_events_has_room(&far));
}

/* A passage may begin again as soon as the reader is done. */
static void passages(void **state)
{
	fp_events_enter(&far.events);
	fp_events_enter(&far.events);
	fp_events_leave(&far.events);
	fp_events_leave(&far.events);
	fp_events_pump(&far); /* nothing to be read */
	fp_events_enter(&far.events);
	fp_events_leave(&far.events);
	fp_events_sync(&far.events);
	assert_int_equal(atomic_load(&far.events.passing), 0);
	assert_true(atomic_load(&far.events.careful));
	fp_events_renew(&far);
	assert_false(atomic_load(&far.events.careful));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(faults_are_none, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(what_is_noted_is_seen, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(borders, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(stretches, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(the_ring_fills, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(passages, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
