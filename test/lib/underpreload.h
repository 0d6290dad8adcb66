/*
 * Tests that run inside a program with far memory: the test starts a node and executes itself again
 * under the preload library. Room: test/lib.
 */
#ifndef FP_TEST_UNDERPRELOAD_H
#define FP_TEST_UNDERPRELOAD_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon.h"

/* The program's budget. Tests touch several times as much. */
#define TEST_LOCAL_BYTES (1u << 20)

#define TEST_SKIPPED 77

/*
 * Returns true and prints the reason if this process may not use userfaultfd. If FP_TEST_USER_ONLY
 * is in the environment, user-mode faults are enough: see test_useronly.py.
 */
bool test_cannot_run(void);

/*
 * Makes the programs of a test keep their stats pages in the node's folder. A program that ends by
 * _exit leaves its page there, so remove them before the node is stopped.
 */
void test_stats_use(const struct test_daemon *node);
void test_stats_remove(const struct test_daemon *node);

/*
 * The main function of such a test. argv is FARPAGED PRELOAD SCHEME [NAME=VALUE...]; the variables
 * are for the program. The first time it starts the node and executes itself under the preload
 * library. The second time it runs the tests. Returns the exit status.
 */
int test_under_preload(int argc, char **argv, int (*tests)(void));

/*
 * True if the mapping at addr is far memory: the kernel says that it is registered with
 * userfaultfd.
 */
bool test_is_far(const void *addr);
/*
 * True if the mapping is registered, but not for missing pages: then it is kernel-filled far
 * memory.
 */
bool test_is_native(const void *addr);

/* How many bytes of far memory are local now, as the kernel counts them. */
size_t test_far_resident_bytes(void);

/*
 * test_fill writes bytes that depend on seed and place, so that no page is zero. test_is_filled
 * checks for such bytes.
 */
void test_fill(void *mem, size_t len, unsigned seed);
bool test_is_filled(const void *mem, size_t len, unsigned seed);

#endif
