/*
 * Signals that the shim must see before the program does. The program sets and asks for its own actions as
 * ever; the kernel's action is ours, looks first and hands on what it declines, as the kernel would have.
 * Room: preload.
 */
#ifndef FP_SIGNALS_H
#define FP_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct fp_signal_hook {
	/*
	 * Asked first, on the thread that has the signal; true: dealt with, the thread goes on. Async-signal
	 * safe, and must not touch far memory.
	 */
	bool (*first)(siginfo_t *info, void *context);
	/*
	 * false: first runs on the stack and under the mask that the program's handler asked for, and not at
	 * all while the program ignores the signal. true: always, on the thread's signal stack if it has one,
	 * with all signals blocked.
	 */
	bool always;
};

/*
 * Takes a signal for the rest of the process's life; hook is copied. Once a signal;
 * before the program runs. 0 or a negative errno.
 */
int fp_signals_take(int sig, const struct fp_signal_hook *hook);
/* Takes all signals that have not been taken, without hooks: their handlers are run by sigframe.h. */
int fp_signals_take_rest(void);

/*
 * Two signals are the C library's own, for cancellation and for setuid in all threads. It does not ask for a
 * signal stack, and the kernel can't write their frames to a far one: so once it has set their handlers, they
 * are run from ours.
 */
#define FP_SIGCANCEL 32
#define FP_SIGSETXID 33
void fp_signals_take_internal(int sig);

/* The system call rt_sigaction, as syscall(2) has it: -1 and errno. */
long fp_signals_by_number(int sig, const void *action, void *ret_old, size_t size);

/* In a forked child: its own signal actions are the ones that the program sets from now on. */
void fp_signals_forked(void);

#endif
