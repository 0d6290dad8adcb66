/* The words of refusals: which limit, how much of it is left, and what to do. */
#include "refusal.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "transport.h"

#define MIB (1ull << 20)

static void assert_says(struct fp_refusal refusal, const char *const *words)
{
	char text[FP_REFUSAL_TEXT_LEN];

	fp_refusal_explain(&refusal, text, sizeof(text));
	for (; *words; words++)
		if (!strstr(text, *words))
			fail_msg("'%s' does not say '%s'", text, *words);
}

#define says(refusal, ...) assert_says((struct fp_refusal)refusal, (const char *const[]){__VA_ARGS__, NULL})
#define R(...)                                                                                               \
	{                                                                                                    \
		__VA_ARGS__                                                                                  \
	}

static void test_words(void **state)
{
	says(R(.cause = FP_REFUSAL_DRAINING), "drained", "farpage node undrain");
	says(R(.cause = FP_REFUSAL_POOLS, .limit = 64 * MIB, .used = 60 * MIB),
	     "the node's pools (64.0 MiB), none has more than 4.0 MiB left", "--pool-size", "one more node");
	says(R(.cause = FP_REFUSAL_POOLS, .limit = 64 * MIB, .used = 64 * MIB), "0 B left of 64.0 MiB",
	     "--pool-size", "one more node");
	says(R(.cause = FP_REFUSAL_POOLS), "can be mapped over shm", "memfd or hugetlb", "over tcp");
	says(R(.cause = FP_REFUSAL_HOST_MEMORY, .limit = 3 * MIB), "only 3.0 MiB", "MemoryMax=");
	says(R(.cause = FP_REFUSAL_HOST_MEMORY), "could not give the memory", "MemoryMax=");
	says(R(.cause = FP_REFUSAL_HOST_MEMORY, .used = 204), "the node has 204 connections",
	     "MemoryMax=", "one more node");
	says(R(.cause = FP_REFUSAL_HOST_MEMORY, .is_share = true, .used = 153),
	     "the client has 153 connections", "keeps for one client's is used up");
	says(R(.cause = FP_REFUSAL_MAPPED_LEASES, .by_files = true), "no file descriptor left",
	     "LimitNOFILE=");
	says(R(.cause = FP_REFUSAL_QUOTA, .limit = 8 * MIB, .used = 9 * MIB), "8.0 MiB has 0 B left",
	     "limits.client_quota");
	says(R(.cause = FP_REFUSAL_LEASES, .limit = 5, .used = 5), "5 leases", "limits.max_leases");
	says(R(.cause = FP_REFUSAL_SESSIONS, .limit = 8, .used = 8), "the node has 8 sessions",
	     "raise limits.max_sessions");
	says(R(.cause = FP_REFUSAL_SESSIONS, .is_share = true, .limit = 6, .used = 6),
	     "the client has 6 sessions", "three quarters of max_sessions");
	says(R(.cause = FP_REFUSAL_CONNECTIONS, .by_files = true, .limit = 64, .used = 64), "64 connections",
	     "a quarter of LimitNOFILE= allows: raise LimitNOFILE=");
	says(R(.cause = FP_REFUSAL_OPERATORS, .is_share = true, .limit = 6, .used = 6), "the client has 6");
	says(R(.cause = FP_REFUSAL_RIGHT, .limit = 1), "the right lease");
	says(R(.cause = FP_REFUSAL_RIGHT, .limit = 4), "the right admin", "UNIX socket");
	says(R(.cause = FP_REFUSAL_RIGHT, .limit = 6), "status, or admin to drain as well");
	says(R(.cause = FP_REFUSAL_RIGHT, .limit = UINT64_MAX), "lacks the right");
	says(R(.cause = FP_REFUSAL_SECRET, .limit = 0), "wants a secret", "--secret-file");
	says(R(.cause = FP_REFUSAL_SECRET, .limit = 1), "does not know this secret");
	says(R(.cause = FP_REFUSAL_VERSION, .limit = 2, .used = 3),
	     "node speaks version 2 of the protocol, the client version 3", "update Farpage on the node");
	says(R(.cause = FP_REFUSAL_VERSION, .limit = 3, .used = 2),
	     "node speaks version 3 of the protocol, the client version 2", "on the client's machine");
	says(R(.cause = FP_REFUSAL_VERSION, .limit = 0, .used = 3), "older", "version 3",
	     "update Farpage on the node");
}

static void test_each_cause_has_a_name_and_words(void **state)
{
	char text[FP_REFUSAL_TEXT_LEN];

	for (int i = FP_REFUSAL_NONE; i < FP_REFUSAL_CAUSES; i++) {
		struct fp_refusal r = {.cause = (enum fp_refusal_cause)i,
		                       .is_share = i % 2,
		                       .limit = UINT64_MAX,
		                       .used = UINT64_MAX};

		assert_non_null(fp_refusal_name(r.cause));
		for (int j = 0; j < i; j++)
			assert_string_not_equal(fp_refusal_name(r.cause),
			                        fp_refusal_name((enum fp_refusal_cause)j));
		fp_refusal_explain(&r, text, sizeof(text));
		assert_int_equal(strlen(text) > 20, i != FP_REFUSAL_NONE);
		assert_true(strlen(text) < sizeof(text) - 1); /* not cut */
	}
}

static void test_over_the_wire(void **state)
{
	const struct fp_refusal refusal = {
	    .cause = FP_REFUSAL_SESSIONS, .is_share = true, .limit = 6, .used = 7};
	struct fp_wire_refusal wire;
	struct fp_refusal back;

	fp_refusal_to_wire(&refusal, &wire);
	assert_int_equal(wire.cause, 9);
	assert_int_equal(wire.flags, FP_WIRE_REFUSAL_SHARE);
	fp_refusal_from_wire(&wire, &back);
	assert_int_equal(back.cause, refusal.cause);
	assert_true(back.is_share && !back.by_files);
	assert_int_equal(back.limit, 6);
	assert_int_equal(back.used, 7);
	wire.cause = FP_REFUSAL_CAUSES; /* of a later version */
	fp_refusal_from_wire(&wire, &back);
	assert_int_equal(back.cause, FP_REFUSAL_NONE);
	assert_int_equal(back.limit, 0);
}

static void test_errors(void **state)
{
	const struct fp_refusal sessions = {.cause = FP_REFUSAL_SESSIONS, .limit = 8, .used = 8};
	const struct fp_refusal none = {.cause = FP_REFUSAL_NONE};
	static const struct {
		int error;
		const char *says;
	} cases[] = {
	    {-EINVAL, "not a node URL"}, {-ENXIO, "cannot be resolved"}, {-ENAMETOOLONG, "107 bytes"},
	    {-E2BIG, "addresses"},       {-EUSERS, "limits:"},           {-ENOSPC, "no memory to lend"},
	    {-EDQUOT, "quota"},          {-EPROTONOSUPPORT, "version"},  {-EACCES, "--secret-file"},
	    {-ENODEV, "device"},         {-EHOSTUNREACH, "No route to"},
	};
	char text[FP_EXPLAIN_LEN];

	for (size_t i = 0; i < FP_ARRAY_LEN(cases); i++) {
		const char *said = fp_session_explain(cases[i].error, &none, NULL, text, sizeof(text));

		if (!strstr(said, cases[i].says))
			fail_msg("'%s' does not say '%s'", said, cases[i].says);
	}
	assert_non_null(strstr(fp_session_explain(-EUSERS, &sessions, NULL, text, sizeof(text)),
	                       "as many as max_sessions"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_words),
	    cmocka_unit_test(test_each_cause_has_a_name_and_words),
	    cmocka_unit_test(test_over_the_wire),
	    cmocka_unit_test(test_errors),
	};

	return cmocka_run_group_tests_name("refusal", tests, NULL, NULL);
}
