/*
 * The ends that Farpage itself gives a program. Room: common. Nothing is ever silent: these two say
 * why first, and nobody else ends a process (test/style/layers.sh).
 */
#ifndef FP_END_H
#define FP_END_H

/*
 * One line on stderr: what happened, and what to do. Then refused ends with status 125, as what the
 * program asks for can't be done rightly; aborted by SIGABRT, as bytes or invariants are lost. Any
 * thread, signal handlers too.
 */
_Noreturn void fp_end_refused(const char *subsystem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
_Noreturn void fp_end_aborted(const char *subsystem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
