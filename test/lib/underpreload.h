/*
 * Tests that run inside a program with far memory: the test starts a node and executes itself again
 * under the preload library. Room: test/lib.
 */
#ifndef FP_TEST_UNDERPRELOAD_H
#define FP_TEST_UNDERPRELOAD_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon.h"

#define TEST_LOCAL_BYTES (1u << 20) /* of far memory: far less than a test touches */

#define TEST_SKIPPED 77

/* True, and the reason is printed, if this process may not use userfaultfd. With FP_TEST_USER_ONLY
 * in the environment user-mode faults do: see test_useronly.py. */
bool test_cannot_run(void);

/* Where the programs of a test keep their stats pages: the node's folder; emptied before the node
 * is stopped, as a program that ends by _exit leaves its page behind. */
void test_stats_use(const struct test_daemon *node);
void test_stats_remove(const struct test_daemon *node);

/*
 * main of such a test: argv is FARPAGED PRELOAD SCHEME [NAME=VALUE...], the variables being for the
 * program. Outside, runs the node and itself; inside, tests. Returns the exit status.
 */
int test_under_preload(int argc, char **argv, int (*tests)(void));

/* True if the mapping at addr is far memory: registered with userfaultfd, says the kernel. */
bool test_is_far(const void *addr);
/* True if it is registered, but not for missing pages: far memory that the kernel fills. */
bool test_is_native(const void *addr);

/* Far memory in local DRAM now, by the kernel's account. */
size_t test_far_resident_bytes(void);

/* Fills with what depends on seed and place, no page zero; checks it. */
void test_fill(void *mem, size_t len, unsigned seed);
bool test_is_filled(const void *mem, size_t len, unsigned seed);

#endif
