/*
 * A trial: a function that runs in a process of its own, so that a signal, a wrong byte or a hang
 * ends only that process. Its stderr is kept. Also touches of memory that may raise a signal. Room:
 * test/fault.
 */
#ifndef FP_TRIAL_H
#define FP_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fp_agent;
struct fp_agent_options;

struct trial {
	int status;       /* of waitpid */
	char text[16384]; /* its stderr, cut at this length */
};

/* Runs body(arg) in a child, whose exit status is what it returns. After timeout_s seconds it is
 * ended by SIGALRM. */
void trial_run(int (*body)(void *arg), void *arg, unsigned timeout_s, struct trial *ret_trial);

/* Fails the test, with what the trial said, unless it ended with exit status 0. */
void trial_assert_good(const struct trial *trial);

/* In a body: unless ok, says what, and ends the trial with status 1. */
void trial_check(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* In a body: an agent, or the end of the trial. FP_TEST_FAULT_MODE=inline in the environment: of
 * that mode. Its patience is its deadline, unless options say something else. */
struct fp_agent *trial_agent(const struct fp_agent_options *options);

/*
 * Touches of a byte that may raise SIGBUS or SIGSEGV: 0, or the signal. *ret_ns: how long it took.
 * Any thread, after trial_catch_signals.
 */
void trial_catch_signals(void);
int trial_read(const char *addr, char *ret_byte, uint64_t *ret_ns);
int trial_write(char *addr, char byte, uint64_t *ret_ns);

#endif
