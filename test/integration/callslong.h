/*
 * Calls that hand over more far memory than can be resident, or that the C library answers in a
 * thread of its own. Room: test/integration.
 */
#ifndef FP_TEST_CALLSLONG_H
#define FP_TEST_CALLSLONG_H

#include <stdbool.h>

#define BIG (5u << 20) /* more than the shim copies */

/* The program that uses these tests defines what follows. BIG bytes each, and the current
 * folder. */
extern char *test_big_far, *test_big_local, test_folder[64];
/* Touches other far memory until none of the earlier pages is local. */
void test_evict_all(void);
/* True if the kernel does not fault on far memory, so that calls must pin it. */
bool test_is_pinning(void);
/* True if a call was refused with this errno. A call may be refused only where calls pin. */
bool test_is_refused(long result, int error);

void test_long_files(void **state);
void test_long_vectors(void **state);
void test_long_streams(void **state);
void test_long_text(void **state);
void test_long_pipe(void **state);
void test_long_datagram(void **state);
void test_whole_vectors(void **state);
void test_many_vectors(void **state);
void test_from_a_pipe(void **state);
void test_callbacks(void **state);
void test_long_receive(void **state);
void test_long_name(void **state);

#endif
