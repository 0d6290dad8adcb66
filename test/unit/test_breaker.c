/* The breaker: every event in every state, and the times of attempts and tries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "breaker.h"
#include "cleanup.h"
#include "clock.h"
#include "testrng.h"
#include "retry.h"

#define N_STATES 4
#define N_EVENTS 6
#define EPOCH    41u

static uint64_t word_of(enum fp_breaker_state state, bool spent, uint64_t epoch)
{
	return epoch << 8 | (uint64_t)spent << 2 | state;
}

/*
 * The next state for each event. Other tests check the epoch and the spent flag. (A breaker is
 * spent when one page has waited until its patience was over.)
 */
static const enum fp_breaker_state next_state[N_STATES][N_EVENTS] = {
    /* FAIL, TRY, REFUSED, RESUMED, WAITED, GONE */
    [FP_BREAKER_CLOSED] = {FP_BREAKER_OPEN, FP_BREAKER_CLOSED, FP_BREAKER_CLOSED, FP_BREAKER_CLOSED,
                           FP_BREAKER_CLOSED, FP_BREAKER_LOST},
    [FP_BREAKER_OPEN] = {FP_BREAKER_OPEN, FP_BREAKER_HALF_OPEN, FP_BREAKER_OPEN, FP_BREAKER_OPEN,
                         FP_BREAKER_OPEN, FP_BREAKER_LOST},
    [FP_BREAKER_HALF_OPEN] = {FP_BREAKER_HALF_OPEN, FP_BREAKER_HALF_OPEN, FP_BREAKER_OPEN, FP_BREAKER_CLOSED,
                              FP_BREAKER_HALF_OPEN, FP_BREAKER_LOST},
    [FP_BREAKER_LOST] = {FP_BREAKER_LOST, FP_BREAKER_LOST, FP_BREAKER_LOST, FP_BREAKER_LOST, FP_BREAKER_LOST,
                         FP_BREAKER_LOST},
};

static void every_state_meets_every_event(void **state)
{
	for (unsigned s = 0; s < N_STATES; s++) {
		for (unsigned e = 0; e < N_EVENTS; e++) {
			for (unsigned spent = 0; spent < 2; spent++) {
				uint64_t word = word_of(s, spent, EPOCH),
				         next = fp_breaker_step(word, e, EPOCH);
				bool resumed = s == FP_BREAKER_HALF_OPEN && e == FP_BREAKER_RESUMED;
				bool waits = s == FP_BREAKER_OPEN || s == FP_BREAKER_HALF_OPEN;

				assert_int_equal(fp_breaker_state(next), next_state[s][e]);
				assert_int_equal(fp_breaker_epoch(next), EPOCH + resumed);
				if (resumed)
					assert_false(fp_breaker_spent(next));
				else
					assert_int_equal(fp_breaker_spent(next),
					                 spent || (waits && e == FP_BREAKER_WAITED));
			}
		}
	}
}

static void what_fails_of_another_epoch_says_nothing(void **state)
{
	uint64_t word = word_of(FP_BREAKER_CLOSED, false, EPOCH);

	assert_int_equal(fp_breaker_step(word, FP_BREAKER_FAIL, EPOCH - 1), word);
	assert_int_equal(fp_breaker_step(word, FP_BREAKER_FAIL, EPOCH + 1), word);
	assert_int_not_equal(fp_breaker_step(word, FP_BREAKER_FAIL, EPOCH), word);
	assert_int_equal(fp_breaker_state(FP_BREAKER_NEW), FP_BREAKER_CLOSED);
	assert_int_equal(fp_breaker_epoch(FP_BREAKER_NEW), 0);
}

static void attempts_are_ever_rarer(void **state)
{
	static const uint64_t expected_ms[] = {50, 100, 200, 400, 800, 1600, 2000, 2000, 2000};
	uint64_t rng = test_seed(__func__), now_ns = 77 * FP_NSEC_PER_SEC;

	for (unsigned round = 0; round < 1000; round++) {
		struct fp_backoff backoff = {0};

		fp_backoff_opened(&backoff, now_ns, 10, test_random(&rng));
		assert_int_equal(backoff.next_ns, now_ns); /* at once */
		assert_int_equal(backoff.give_up_ns, now_ns + 10 + FP_BACKOFF_MARGIN_NS);
		for (unsigned i = 0; i < FP_ARRAY_LEN(expected_ms); i++) {
			uint64_t delay_ns, expected_ns = expected_ms[i] * FP_NSEC_PER_MSEC;

			now_ns = backoff.next_ns;
			fp_backoff_refused(&backoff, now_ns, test_random(&rng));
			delay_ns = backoff.next_ns - now_ns;
			assert_true(delay_ns >= expected_ns * 3 / 4 && delay_ns <= expected_ns * 5 / 4);
		}
	}
}

static void the_backoff_is_as_chosen(void **state)
{
	static const uint64_t expected_ns[] = {700, 1400, 2800, 5000, 5000};
	struct fp_backoff backoff = {.options = {.backoff_first_ns = 700, .backoff_max_ns = 5000}};

	fp_backoff_opened(&backoff, 0, 10, 0);
	for (unsigned i = 0; i < FP_ARRAY_LEN(expected_ns); i++) {
		fp_backoff_refused(&backoff, 0, expected_ns[i] / 4); /* here the jitter shortens nothing */
		assert_int_equal(backoff.next_ns, expected_ns[i]);
	}
}

static void jitter_reaches_both_ends(void **state)
{
	struct fp_backoff low = {0}, high = {0};

	fp_backoff_refused(&low, 0, 0);
	fp_backoff_refused(&high, 0, FP_BACKOFF_FIRST_NS / 2);
	assert_int_equal(low.next_ns, FP_BACKOFF_FIRST_NS * 3 / 4);
	assert_int_equal(high.next_ns, FP_BACKOFF_FIRST_NS * 5 / 4);
}

static void a_resume_that_does_not_hold_counts_as_refused(void **state)
{
	struct fp_backoff backoff = {0};
	uint64_t now_ns = FP_NSEC_PER_SEC, last_ns = 0;

	fp_backoff_opened(&backoff, now_ns, 0, 0);
	for (unsigned i = 1; i < 6; i++) { /* each attempt at a flapping node comes later, up to a bound */
		fp_backoff_resumed(&backoff, now_ns);
		fp_backoff_opened(&backoff, now_ns + FP_BACKOFF_STABLE_NS - 1, 0, 0);
		assert_int_equal(backoff.n_failed, FP_MIN(i, FP_BACKOFF_FLAP));
		assert_true(backoff.next_ns - now_ns > last_ns || i > FP_BACKOFF_FLAP);
		last_ns = backoff.next_ns - now_ns;
		now_ns = backoff.next_ns;
	}
	for (unsigned i = 0; i < 9; i++) /* the same bound holds after a long outage */
		fp_backoff_refused(&backoff, now_ns, 0);
	fp_backoff_resumed(&backoff, now_ns);
	fp_backoff_opened(&backoff, now_ns + 1, 0, 0);
	assert_int_equal(backoff.n_failed, FP_BACKOFF_FLAP);
	fp_backoff_resumed(&backoff, now_ns);
	fp_backoff_opened(&backoff, now_ns + FP_BACKOFF_STABLE_NS, 0, 0);
	assert_int_equal(backoff.next_ns, now_ns + FP_BACKOFF_STABLE_NS);
	assert_int_equal(backoff.n_failed, 0);
}

static void an_endless_grace_does_not_wrap(void **state)
{
	struct fp_backoff backoff = {0};

	fp_backoff_opened(&backoff, 1000, UINT64_MAX, 0);
	assert_true(backoff.give_up_ns == UINT64_MAX);
	fp_backoff_opened(&backoff, UINT64_MAX - 5, 10, 0);
	assert_true(backoff.give_up_ns == UINT64_MAX);
}

static void what_is_heard_of_is_waited_for_anew(void **state)
{
	struct fp_backoff backoff = {0};

	fp_backoff_opened(&backoff, 1000, 10, 0);
	fp_backoff_heard(&backoff, 5000, 10);
	assert_int_equal(backoff.give_up_ns, 5010 + FP_BACKOFF_MARGIN_NS);
	assert_int_equal(backoff.next_ns, 1000);
}

/*
 * A slow node gets more time for each try, up to a bound. No try gets more than the whole request
 * has.
 */
static void later_tries_have_more_time(void **state)
{
	static const uint64_t expected[] = {20, 40, 80, 80, 80};
	struct fp_retry tries;
	uint64_t now_ns = 1000, deadline_ns = fp_retry_begin(&tries, now_ns, 10, 2000);

	assert_int_equal(deadline_ns, 1010);
	assert_int_equal(fp_retry_next(&tries, 1005, 10, deadline_ns), 1015); /* the first link broke */
	for (unsigned i = 0; i < FP_ARRAY_LEN(expected); i++) {
		now_ns = deadline_ns;
		deadline_ns = fp_retry_next(&tries, now_ns, 10, deadline_ns);
		assert_int_equal(deadline_ns, now_ns + expected[i]);
	}
	assert_int_equal(fp_retry_next(&tries, 2990, 10, 2980), 3000);
	assert_int_equal(fp_retry_begin(&tries, now_ns, 10, 5), now_ns + 5);
	fp_retry_begin(&tries, now_ns, 10, UINT64_MAX);
	assert_true(tries.until_ns == UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_state_meets_every_event),
	    cmocka_unit_test(what_fails_of_another_epoch_says_nothing),
	    cmocka_unit_test(attempts_are_ever_rarer),
	    cmocka_unit_test(the_backoff_is_as_chosen),
	    cmocka_unit_test(jitter_reaches_both_ends),
	    cmocka_unit_test(a_resume_that_does_not_hold_counts_as_refused),
	    cmocka_unit_test(an_endless_grace_does_not_wrap),
	    cmocka_unit_test(what_is_heard_of_is_waited_for_anew),
	    cmocka_unit_test(later_tries_have_more_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
