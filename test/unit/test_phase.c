/*
 * Histograms by name: each phase and each kind of fault has its own. Only the kind "all" has that
 * of the first phase.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "phase.h"

static struct fp_statspage page;

static void each_is_another_histogram(void **state)
{
	const struct fp_hist *all[FP_PHASES + FP_PHASE_KINDS];
	unsigned n = 0;

	for (unsigned i = 0; i < FP_PHASES; i++)
		all[n++] = fp_phase_hist(&fp_phases[i], &page);
	for (unsigned i = 1; i < FP_PHASE_KINDS; i++)
		all[n++] = fp_phase_hist(&fp_phase_kinds[i], &page);
	for (unsigned i = 0; i < n; i++)
		for (unsigned k = 0; k < i; k++)
			assert_ptr_not_equal(all[i], all[k]);
	assert_ptr_equal(fp_phase_hist(&fp_phase_kinds[0], &page), all[0]);
}

/* A kind has the name that `farpage ps` gives its counter. */
static void kinds_are_those_that_are_counted(void **state)
{
	for (unsigned kind = 0; kind < FP_FAULT_TIMED; kind++) {
		assert_string_equal(fp_phase_kind_names[1 + kind], fp_fault_kind_name(kind));
		assert_ptr_equal(fp_phase_hist(&fp_phase_kinds[1 + kind], &page), &page.kind_latency[kind]);
	}
	assert_string_equal(fp_phase_kind_names[1 + FP_FAULT_TIMED], "waited");
}

static void lists_end(void **state)
{
	assert_null(fp_phase_names[FP_PHASES]);
	assert_null(fp_phase_kind_names[FP_PHASE_KINDS]);
	for (unsigned i = 0; i < FP_PHASES; i++)
		assert_non_null(fp_phase_names[i]);
	for (unsigned i = 0; i < FP_PHASE_KINDS; i++)
		assert_non_null(fp_phase_kind_names[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_is_another_histogram),
	    cmocka_unit_test(kinds_are_those_that_are_counted),
	    cmocka_unit_test(lists_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
