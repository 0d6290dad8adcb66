/* The messages about a node that is cut off, back, lost, or flapping. Room: test/unit. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "clock.h"
#include "node_notice.h"

#define S FP_NSEC_PER_SEC

static uint64_t outage_ns;

static enum fp_node_news step(struct fp_node_said *said, enum fp_breaker_state state, uint64_t now_ns)
{
	outage_ns = 0;
	return fp_node_notice_step(said, state, now_ns, &outage_ns);
}

static void an_outage_is_told_once_and_so_is_its_end(void **state)
{
	struct fp_node_said said = {0};

	assert_int_equal(step(&said, FP_BREAKER_CLOSED, 1 * S), FP_NEWS_NONE);
	assert_int_equal(step(&said, FP_BREAKER_OPEN, 2 * S), FP_NEWS_CUT_OFF);
	assert_int_equal(step(&said, FP_BREAKER_HALF_OPEN, 3 * S), FP_NEWS_NONE);
	assert_int_equal(step(&said, FP_BREAKER_OPEN, 4 * S), FP_NEWS_NONE);
	assert_int_equal(step(&said, FP_BREAKER_CLOSED, 5 * S), FP_NEWS_BACK);
	assert_int_equal(outage_ns, 3 * S);
	assert_int_equal(step(&said, FP_BREAKER_CLOSED, 6 * S), FP_NEWS_NONE);
	assert_int_equal(step(&said, FP_BREAKER_HALF_OPEN, 30 * S), FP_NEWS_CUT_OFF);
}

static void lost_is_for_good(void **state)
{
	struct fp_node_said said = {0};

	assert_int_equal(step(&said, FP_BREAKER_OPEN, 1 * S), FP_NEWS_CUT_OFF);
	assert_int_equal(step(&said, FP_BREAKER_LOST, 2 * S), FP_NEWS_LOST);
	assert_int_equal(step(&said, FP_BREAKER_LOST, 3 * S), FP_NEWS_NONE);
	assert_int_equal(step(&said, FP_BREAKER_CLOSED, 4 * S), FP_NEWS_NONE);
}

static void of_a_link_that_flaps_only_long_outages_are_told(void **state)
{
	struct fp_node_said said = {0};
	uint64_t now_ns = 1 * S;

	assert_int_equal(step(&said, FP_BREAKER_OPEN, now_ns), FP_NEWS_CUT_OFF);
	assert_int_equal(step(&said, FP_BREAKER_CLOSED, now_ns += S / 10), FP_NEWS_BACK);
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(step(&said, FP_BREAKER_OPEN, now_ns += S / 10), FP_NEWS_NONE);
		assert_int_equal(step(&said, FP_BREAKER_CLOSED, now_ns += S / 10), FP_NEWS_NONE);
	}
	assert_int_equal(step(&said, FP_BREAKER_OPEN, now_ns), FP_NEWS_NONE);
	assert_int_equal(step(&said, FP_BREAKER_OPEN, now_ns + FP_NODE_NOTICE_LONG_NS), FP_NEWS_CUT_OFF);
	assert_int_equal(step(&said, FP_BREAKER_CLOSED, now_ns + 2 * FP_NODE_NOTICE_LONG_NS), FP_NEWS_BACK);
	assert_int_equal(outage_ns, 2 * FP_NODE_NOTICE_LONG_NS);
	assert_int_equal(step(&said, FP_BREAKER_OPEN, now_ns + 2 * S), FP_NEWS_NONE);
	assert_int_equal(step(&said, FP_BREAKER_LOST, now_ns + 2 * S + 1), FP_NEWS_LOST);
}

static void a_reason_has_the_words_of_the_device(void **state)
{
	struct fp_store_node info = {.last_error = -ECONNRESET};
	char buf[FP_NODE_NOTICE_REASON_LEN];

	assert_string_equal(fp_node_notice_reason(&info, -ECONNRESET, buf, sizeof(buf)),
	                    "Connection reset by peer");
	info.why = "transport retry counter exceeded";
	assert_string_equal(fp_node_notice_reason(&info, -ECONNRESET, buf, sizeof(buf)),
	                    "Connection reset by peer (transport retry counter exceeded)");
	assert_string_equal(fp_node_notice_reason(&info, -EPIPE, buf, sizeof(buf)), "Broken pipe");
}

static void a_reason_has_the_words_of_the_node(void **state)
{
	struct fp_store_node info = {.last_error = -EUSERS,
	                             .refusal = {.cause = FP_REFUSAL_SESSIONS, .limit = 2, .used = 2}};
	char buf[FP_NODE_NOTICE_REASON_LEN];

	assert_non_null(
	    strstr(fp_node_notice_reason(&info, -EUSERS, buf, sizeof(buf)), "raise limits.max_sessions"));
	assert_non_null(strstr(fp_node_notice_reason(&info, -ESTALE, buf, sizeof(buf)), "leases up"));
	info.session_error = -EPIPE; /* the session ended first; the attempt to resume it was refused */
	assert_string_equal(fp_node_notice_reason(&info, -EPIPE, buf, sizeof(buf)), "Broken pipe");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_outage_is_told_once_and_so_is_its_end),
	    cmocka_unit_test(lost_is_for_good),
	    cmocka_unit_test(of_a_link_that_flaps_only_long_outages_are_told),
	    cmocka_unit_test(a_reason_has_the_words_of_the_device),
	    cmocka_unit_test(a_reason_has_the_words_of_the_node),
	};

	return cmocka_run_group_tests_name("node_notice", tests, NULL, NULL);
}
