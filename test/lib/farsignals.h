/*
 * Shared by tests of signals under the preload library: far memory that handlers touch, far stacks
 * on which they run, and pressure that pages both out. Room: test/lib; see underpreload.h.
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

/* Both are far: a signal stack of TEST_STACK bytes, and TEST_PRESSURE bytes to touch. */
extern char *test_stack, *test_pressure;

/* Maps these two. Used as cmocka's set-up of a group. */
int test_farsignals_begin(void **state);

/* Pages out all other far memory. Async-signal safe. */
void test_evict(void);

/* Maps memory, and checks that it is far. */
char *test_far_memory(size_t len);

/* Both call sigaltstack. The first sets test_stack with these flags, the second sets no stack. */
void test_set_stack(unsigned flags);
void test_no_stack(void);
bool test_is_on_stack(const void *p);

/* Calls sigaction with SA_SIGINFO and these flags. */
void test_handle(int sig, void (*handler)(int, siginfo_t *, void *), int flags);

/* Waits for a child. Returns its exit status, or 128 plus its signal. */
int test_status_of(pid_t pid);

/* True if FARPAGE_FAULT_MODE is inline. */
bool test_is_inline(void);

/*
 * True if the kernel does not fault on far memory, so that the shim moves signal frames. That is so
 * in fault mode inline, and with user-mode faults only.
 */
bool test_moves_frames(void);

#endif
