/*
 * A trial: a function that runs in a separate process. So a signal, a wrong byte or a hang ends
 * only that process. Its stderr is kept. This file also has touches of memory that may raise a
 * signal. Room: test/fault.
 */
#ifndef FP_TRIAL_H
#define FP_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fp_agent;
struct fp_agent_options;

struct trial {
	int status;       /* as waitpid gives it */
	char text[16384]; /* its stderr, cut to this size */
};

/*
 * Runs body(arg) in a child, whose exit status is its result. SIGALRM ends the child after
 * timeout_s seconds.
 */
void trial_run(int (*body)(void *arg), void *arg, unsigned timeout_s, struct trial *ret_trial);

/* Unless the trial ended with exit status 0, fails the test and prints the trial's stderr. */
void trial_assert_good(const struct trial *trial);

/* Called in a body. If ok is false, prints the text and ends the trial with status 1. */
void trial_check(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Called in a body: starts an agent, or ends the trial. Its fault mode is inline if the environment
 * has FP_TEST_FAULT_MODE=inline. Its patience is its deadline, unless options set one.
 */
struct fp_agent *trial_agent(const struct fp_agent_options *options);

/*
 * These touch a byte, which may raise SIGBUS or SIGSEGV. They return 0 or the signal. *ret_ns is
 * the time that the touch took. Any thread may call them, after trial_catch_signals.
 */
void trial_catch_signals(void);
int trial_read(const char *addr, char *ret_byte, uint64_t *ret_ns);
int trial_write(char *addr, char byte, uint64_t *ret_ns);

#endif
