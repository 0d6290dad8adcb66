/*
 * Tests that run inside a program with far memory: the test starts a node and executes itself again
 * under the preload library. Room: test/lib.
 */
#ifndef FP_TEST_UNDERPRELOAD_H
#define FP_TEST_UNDERPRELOAD_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon.h"

#define TEST_LOCAL_BYTES (1u << 20) /* the program's budget; tests touch several times as much */

#define TEST_SKIPPED 77

/*
 * True, with the reason printed, if this process may not use userfaultfd. If FP_TEST_USER_ONLY is
 * in the environment, user-mode faults are enough: see test_useronly.py.
 */
bool test_cannot_run(void);

/*
 * Makes the programs of a test keep their stats pages in the node's folder. A program that ends by
 * _exit leaves its page there, so remove them before the node is stopped.
 */
void test_stats_use(const struct test_daemon *node);
void test_stats_remove(const struct test_daemon *node);

/*
 * main of such a test. argv is FARPAGED PRELOAD SCHEME [NAME=VALUE...]; the variables are for the
 * program. Outside the program it starts the node and executes itself; inside it runs tests.
 * Returns the exit status.
 */
int test_under_preload(int argc, char **argv, int (*tests)(void));

/* True if the mapping at addr is far memory: registered with userfaultfd, says the kernel. */
bool test_is_far(const void *addr);
/* True if it is registered, but not for missing pages: kernel-filled far memory. */
bool test_is_native(const void *addr);

/* The bytes of far memory that are local now, by the kernel's account. */
size_t test_far_resident_bytes(void);

/* Fills with bytes that depend on seed and place, and leaves no page zero; checks such bytes. */
void test_fill(void *mem, size_t len, unsigned seed);
bool test_is_filled(const void *mem, size_t len, unsigned seed);

#endif
