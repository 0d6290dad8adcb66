/*
 * A TCP proxy on loopback in front of a memory node, whose cable a test can pull: it forwards,
 * stalls, cuts and resets. Room: test/lib. A thread of the test owns all sockets; the calls are any
 * thread's.
 */
#ifndef FP_TEST_CABLE_H
#define FP_TEST_CABLE_H

#include <stdint.h>

struct test_cable;

enum test_cable_mode {
	TEST_CABLE_FORWARD,
	TEST_CABLE_STALL, /* bytes stay where they are, both ways; new connections are taken, and stall too */
	TEST_CABLE_CUT,   /* all connections are reset, and new ones as soon as they come */
};

/*
 * Starts a proxy for the node at url ("tcp://HOST:PORT", an IPv4 address). 0 and *ret_cable, or a negative
 * errno. Release with test_cable_stop; NULL is fine there.
 */
int test_cable_start(const char *url, struct test_cable **ret_cable);
void test_cable_stop(struct test_cable *cable);

/* Where clients connect to; the proxy's. */
const char *test_cable_url(const struct test_cable *cable);

/* Each of these has taken effect when it returns. */
void test_cable_set(struct test_cable *cable, enum test_cable_mode mode);
/* Resets the connections that there are, on both sides, without a word to end them. */
void test_cable_reset(struct test_cable *cable);
/* New connections go to another node. */
void test_cable_retarget(struct test_cable *cable, const char *url);

/* Connections that were forwarded so far. */
unsigned test_cable_accepted(const struct test_cable *cable);

#endif
