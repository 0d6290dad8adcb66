/*
 * What tests of signals under the preload library share: far memory for what handlers touch and for
 * the stacks that they run on, and pressure on it. Room: test/lib; see underpreload.h.
 */
#ifndef FP_TEST_FARSIGNALS_H
#define FP_TEST_FARSIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "underpreload.h"

#define TEST_PAGE     4096u
#define TEST_STACK    (64u << 10)
#define TEST_PRESSURE (4 * TEST_LOCAL_BYTES)

/* Far: a signal stack of TEST_STACK bytes, and TEST_PRESSURE bytes to touch. */
extern char *test_stack, *test_pressure;

/* Makes them: cmocka's set-up of a group. */
int test_farsignals_begin(void **state);

/* Drives everything else out of local memory. Async-signal safe. */
void test_evict(void);

/* Memory that is checked to be far. */
char *test_far_memory(size_t len);

/* sigaltstack: test_stack, with these flags; none. */
void test_set_stack(unsigned flags);
void test_no_stack(void);
bool test_is_on_stack(const void *p);

/* sigaction, with SA_SIGINFO and these flags. */
void test_handle(int sig, void (*handler)(int, siginfo_t *, void *), int flags);

/* Waits for a child: its exit status, or 128 and the signal. */
int test_status_of(pid_t pid);

/* True if FARPAGE_FAULT_MODE says so. */
bool test_is_inline(void);

/* True where the kernel does not fault on far memory for us, so that the shim moves signal frames:
 * fault mode inline, and with user-mode faults alone. */
bool test_moves_frames(void);

#endif
