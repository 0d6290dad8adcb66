/*
 * Signals that the shim must see before the program does. The program sets its actions as ever, and
 * is told what it has set. The kernel calls our handler, which hands on what is not for us, as the
 * kernel would have. Room: preload/signals.
 */
#ifndef FP_SIGNALS_H
#define FP_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct fp_signal_hook {
	/*
	 * Asked first, on the thread that has the signal. true: nothing is left to do. Async-signal
	 * safe, and must not touch far memory.
	 */
	bool (*first)(siginfo_t *info, void *context);
	/*
	 * true: first always runs, on the thread's signal stack if it has one, with all signals
	 * blocked. false: it runs where the program's handler would, and not while the program
	 * ignores the signal.
	 */
	bool always;
};

/*
 * Takes a signal for the rest of the process's life; hook is copied. Once a signal, before the
 * program runs. 0 or a negative errno.
 */
int fp_signals_take(int sig, const struct fp_signal_hook *hook);
/* Takes all other signals, without hooks: their handlers are run by sigframe.h. */
int fp_signals_take_rest(void);

/*
 * Two signals are the C library's own, for cancellation and for setuid in all threads. Its handlers
 * do not ask for a signal stack, and the kernel can't write their frames to a far one. So once they
 * are set, ours takes their place and calls them.
 */
void fp_signals_take_internal(int sig);

/* The system call rt_sigaction, as syscall(2) has it: -1 and errno. */
long fp_signals_by_number(int sig, const void *action, void *ret_old, size_t size);

/* In a forked child: its actions are now the ones that are set here. */
void fp_signals_forked(void);

#endif
