/*
 * Signals that the shim must see before the program does. Room: preload/signals. The program sets
 * and reads its actions as usual. But the kernel calls our handler, which passes on all signals
 * that are not ours, as the kernel would.
 */
#ifndef FP_SIGNALS_H
#define FP_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct fp_signal_hook {
	/*
	 * Called before the program's handler, on the thread that gets the signal. Returns true if
	 * the signal needs nothing more. Must be async-signal safe, and must not touch far memory.
	 */
	bool (*first)(siginfo_t *info, void *context);
	/*
	 * true: first() always runs. It runs on the thread's signal stack, if there is one, with
	 * all signals blocked. false: first() runs where the program's handler would run. It does
	 * not run while the program ignores the signal.
	 */
	bool always;
};

/*
 * Takes a signal over for the rest of the process's life; hook is copied. Called once for each
 * signal, before the program runs. Returns 0 or a negative errno.
 */
int fp_signals_take(int sig, const struct fp_signal_hook *hook);
/* Takes all other signals, without hooks: sigframe.h runs their handlers. */
int fp_signals_take_rest(void);

/*
 * The C library uses two signals itself, for cancellation and for setuid in all threads. Its
 * handlers do not ask for a signal stack, and the kernel can't write their frames to a far stack.
 * So our handler replaces them, once the C library has set them, and calls them.
 */
void fp_signals_take_internal(int sig);

/* rt_sigaction for syscall(2). Returns 0, or -1 and errno. */
long fp_signals_by_number(int sig, const void *action, void *ret_old, size_t size);

/* In a forked child: the actions set here are now those of the child. */
void fp_signals_forked(void);

#endif
