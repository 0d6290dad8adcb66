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
#include <stdint.h>

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
/* Takes those of a set that are not taken yet, without hooks; bit N - 1 is signal N. */
int fp_signals_take_rest(uint64_t signals);

#define FP_SIGNALS_ALL      UINT64_MAX /* sigframe.h runs their handlers */
#define FP_SIGNALS_BIT(sig) (1ull << ((sig)-1))
/* Those whose default action dumps core, but for limits of time and size. */
#define FP_SIGNALS_CORE                                                                                      \
	(FP_SIGNALS_BIT(SIGQUIT) | FP_SIGNALS_BIT(SIGILL) | FP_SIGNALS_BIT(SIGTRAP) |                        \
	 FP_SIGNALS_BIT(SIGABRT) | FP_SIGNALS_BIT(SIGBUS) | FP_SIGNALS_BIT(SIGFPE) |                         \
	 FP_SIGNALS_BIT(SIGSEGV) | FP_SIGNALS_BIT(SIGSYS))

/*
 * From now on `act` is called before the default action of such a signal, if it is taken, ends the
 * process; not in a child of vfork. It runs in a handler, on the thread that gets the signal, and
 * must not touch far memory. Called before any signal is taken.
 */
void fp_signals_before_core(void (*act)(void));

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
