/*
 * A TCP proxy on loopback in front of a memory node. A test uses it like a cable that can be
 * pulled: it forwards, stalls, cuts and resets. Room: test/lib. A thread of the test owns all
 * sockets. Any thread may make the calls.
 */
#ifndef FP_TEST_CABLE_H
#define FP_TEST_CABLE_H

#include <stdint.h>

struct test_cable;

enum test_cable_mode {
	TEST_CABLE_FORWARD,
	/* Moves no bytes in either direction. It accepts new connections, but these stall too. */
	TEST_CABLE_STALL,
	/* Resets all connections. Resets new ones as soon as they come. */
	TEST_CABLE_CUT,
};

/*
 * Starts a proxy for the node at url ("tcp://HOST:PORT", an IPv4 address). Returns 0 and
 * *ret_cable, or a negative errno. Release with test_cable_stop, which ignores NULL.
 */
int test_cable_start(const char *url, struct test_cable **ret_cable);
void test_cable_stop(struct test_cable *cable);

/* The proxy's URL, to which clients connect. */
const char *test_cable_url(const struct test_cable *cable);

/* Sets the mode. This call and the next two return when their change has taken effect. */
void test_cable_set(struct test_cable *cable, enum test_cable_mode mode);
/* Resets all present connections on both sides. The peers get no other sign. */
void test_cable_reset(struct test_cable *cable);
/* Forwards new connections to another node. */
void test_cable_retarget(struct test_cable *cable, const char *url);

/* The number of connections forwarded so far. */
unsigned test_cable_accepted(const struct test_cable *cable);

#endif
