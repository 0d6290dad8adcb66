/* Events: which are noted, who sees them, and which parts of a stretch are left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "events.h"
#include "far.h"

#define BASE  0x10000000ull
#define PAGES (1u << 20)
#define OWN   16u

static struct fp_far far;

static int set_up(void **state)
{
	far = (struct fp_far){.base = (char *)(uintptr_t)BASE,
	                      .n_pages = PAGES,
	                      .deadline_ns = 1000000,
	                      .uffd = {.fd = -1, .has_events = true},
	                      .budget = {.starved_fd = -1, .kick_fd = -1}};
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
	assert_false(atomic_load(&far.events.seen));
}

/* The n-th of what is noted. */
static bool noted(unsigned n, uint32_t *ret_at, uint32_t *ret_start, uint32_t *ret_end)
{
	*ret_at = atomic_load(&far.events.out);
	while (fp_events_next(&far.events, ret_at, ret_start, ret_end)) {
		if (n-- == 0)
			return true;
		++*ret_at;
	}
	return false;
}

static void what_is_noted_is_seen(void **state)
{
	uint32_t at, start, end;

	note(100, 110);
	note(200, 201);
	assert_true(atomic_load(&far.events.seen));
	assert_true(fp_events_any(&far.events));
	assert_false(fp_events_touch(&far.events, 0, 100));
	assert_true(fp_events_touch(&far.events, 99, 101));
	assert_true(fp_events_touch(&far.events, 109, 120));
	assert_false(fp_events_touch(&far.events, 110, 200));
	assert_true(fp_events_touch(&far.events, 0, PAGES));
	assert_true(noted(0, &at, &start, &end));
	assert_int_equal(start, 100);
	assert_int_equal(end, 110);
	assert_true(fp_events_drop(&far.events, at, start, end));
	assert_false(fp_events_touch(&far.events, 100, 110));
	assert_true(noted(0, &at, &start, &end));
	assert_int_equal(start, 200);
	assert_int_equal(end, 201);
	assert_true(fp_events_drop(&far.events, at, start, end));
	assert_false(noted(0, &at, &start, &end));
	assert_false(fp_events_any(&far.events));
	assert_int_equal(atomic_load(&far.events.n_noted), 2);
}

/* A note that can't be followed yet does not delay the others. */
static void in_any_order(void **state)
{
	uint32_t at, start, end;

	note(100, 110);
	note(200, 201);
	note(300, 301);
	assert_true(noted(1, &at, &start, &end));
	assert_int_equal(start, 200);
	assert_true(fp_events_drop(&far.events, at, start, end));
	assert_false(fp_events_touch(&far.events, 200, 201));
	assert_true(fp_events_touch(&far.events, 100, 101));
	assert_true(noted(1, &at, &start, &end));
	assert_int_equal(start, 300);
	assert_true(fp_events_drop(&far.events, at, start, end));
	assert_true(fp_events_any(&far.events));
	assert_true(noted(0, &at, &start, &end));
	assert_int_equal(start, 100);
	assert_true(fp_events_drop(&far.events, at, start, end));
	assert_false(fp_events_any(&far.events));
}

/* Unmapped page by page, from either side: one note, that must be followed as it is now. */
static void neighbours_are_one(void **state)
{
	uint32_t at, start, end;

	note(100, 101);
	assert_true(noted(0, &at, &start, &end));
	note(101, 103);
	note(98, 100);
	assert_false(fp_events_drop(&far.events, at, start, end));
	assert_true(noted(0, &at, &start, &end));
	assert_int_equal(start, 98);
	assert_int_equal(end, 103);
	assert_false(noted(1, &at, &start, &end));
	assert_true(noted(0, &at, &start, &end));
	assert_true(fp_events_drop(&far.events, at, start, end));
	note(103, 104);
	assert_true(noted(0, &at, &start, &end));
	assert_int_equal(start, 103);
	assert_int_equal(atomic_load(&far.events.n_noted), 4);
}

/* One system call may end more than what is ours. */
static void borders(void **state)
{
	const struct fp_uffd_fault below = {.change = FP_UFFD_UNMAPPED, .addr = 0x1000, .end = BASE};
	uint32_t at, start, end;

	assert_true(fp_events_note(&far, &below));
	assert_false(fp_events_any(&far.events));
	note(PAGES, PAGES + 100);
	assert_false(fp_events_any(&far.events));
	note(PAGES - 10, PAGES + 100);
	assert_true(noted(0, &at, &start, &end));
	assert_int_equal(start, PAGES - 10);
	assert_int_equal(end, PAGES);
}

/* The stretches of our memory together are exactly all of it. */
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

/* As many as there can be mappings, at least. */
static void the_ring_fills(void **state)
{
	uint32_t at, start, end;
	unsigned n = 0;

	while (fp_events_has_room(&far)) {
		note(100 + 2 * n, 101 + 2 * n);
		n++;
	}
	assert_in_range(n, 100000, FP_EVENTS_MAX);
	for (unsigned i = 0; i < FP_UFFD_READ_MAX - 1; i++)
		note(900001 + 2 * i, 900002 + 2 * i);
	assert_true(fp_events_touch(&far.events, 100, 101));
	assert_true(fp_events_touch(&far.events, 900001, 900002));
	assert_true(noted(0, &at, &start, &end));
	assert_true(fp_events_drop(&far.events, at, start, end));
	assert_false(fp_events_has_room(&far));
}

/* Who made the calls would wait for ever. */
static void what_can_not_be_noted_ends_the_process(void **state)
{
	int status;
	pid_t pid;

	for (unsigned n = 0; fp_events_has_room(&far); n++)
		note(100 + 2 * n, 101 + 2 * n);
	pid = fork();
	if (pid == 0)
		for (;;)
			fp_events_pump(&far);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 125);
}

/* A shared section may begin again as soon as the reader is done. */
static void a_section_may_begin_again(void **state)
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
	assert_true(atomic_load(&far.events.seen));
	fp_events_renew(&far);
	assert_false(atomic_load(&far.events.seen));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(faults_are_none, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(what_is_noted_is_seen, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(in_any_order, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(neighbours_are_one, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(borders, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(stretches, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(the_ring_fills, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(what_can_not_be_noted_ends_the_process, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_section_may_begin_again, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
