/*
 * The two ways in which Farpage itself ends a program. Room: common. Both functions first print
 * why. No other code ends a process (test/style/layers.sh).
 */
#ifndef FP_END_H
#define FP_END_H

/*
 * Prints one line on stderr: what happened, and what to do. Then fp_end_refused ends with status
 * 125: Farpage cannot do correctly what the program asks for. fp_end_aborted ends by SIGABRT: bytes
 * or invariants are lost. Any thread, signal handlers too.
 */
_Noreturn void fp_end_refused(const char *subsystem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
_Noreturn void fp_end_aborted(const char *subsystem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
