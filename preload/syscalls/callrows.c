/*
 * The rows of calls.def and their wrappers: tables that the preprocessor makes. Room:
 * preload/syscalls.
 */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <threads.h>
#include <utmp.h>

#include "calls.h"
#include "shim.h"
#include "store.h"

_Static_assert(sizeof(long) == 8 && sizeof(void *) == 8, "a wrapper's arguments are words");

/* These are newer than some headers that we build with. */
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef SYS_futex_requeue
#define SYS_futex_requeue 456
#endif

#define NOARG FP_NOARG
#define I(n)  ((n) | FP_ARG_IS_INT)

#define PIECE(kind_, write_, arg_, n_, m_, base_, unit_)                                                     \
	{                                                                                                    \
		.kind = FP_PIECE_##kind_, .write = (write_), .arg = (arg_), .n = (n_), .m = (m_),            \
		.base = (base_), .unit = (uint32_t)(unit_)                                                   \
	}
#define IN(a)             PIECE(WINDOW, false, a, NOARG, NOARG, 0, 1)
#define OUT(a)            PIECE(WINDOW, true, a, NOARG, NOARG, 0, 1)
#define UP_TO(a, size)    PIECE(WINDOW, true, a, NOARG, NOARG, 0, size)
#define IOCTL(a, n)       PIECE(IOCTL, true, a, n, NOARG, 0, 1)
#define B_IN(a, n)        PIECE(BYTES, false, a, n, NOARG, 0, 1)
#define B_OUT(a, n)       PIECE(BYTES, true, a, n, NOARG, 0, 1)
#define A_IN(a, n, size)  PIECE(BYTES, false, a, n, NOARG, 0, size)
#define A_OUT(a, n, size) PIECE(BYTES, true, a, n, NOARG, 0, size)
#define M_IN(a, n, m)     PIECE(BYTES, false, a, n, m, 0, 1)
#define M_OUT(a, n, m)    PIECE(BYTES, true, a, n, m, 0, 1)
#define TYPED(a, n)       PIECE(BYTES, true, a, n, NOARG, sizeof(long), 1)
#define OBJ(a, size)      PIECE(BYTES, true, a, NOARG, NOARG, 0, size)
#define LOCK(a)           PIECE(LOCK, true, a, NOARG, NOARG, 0, sizeof(pthread_mutex_t))
#define V_IN(a, n)        PIECE(IOVEC, false, a, n, NOARG, 0, 1)
#define V_OUT(a, n)       PIECE(IOVEC, true, a, n, NOARG, 0, 1)
#define V_IO(a, n, pid)   PIECE(IOVEC, true, a, n, pid, 0, 1)
#define MSG_IN(a)         PIECE(MESSAGE, false, a, NOARG, NOARG, 0, 1)
#define MSG_OUT(a)        PIECE(MESSAGE, true, a, NOARG, NOARG, 0, 1)
#define MMSG_IN(a, n)     PIECE(MESSAGE, false, a, n, NOARG, 0, 1)
#define MMSG_OUT(a, n)    PIECE(MESSAGE, true, a, n, NOARG, 0, 1)
#define TEXT(a)           PIECE(TEXT, false, a, NOARG, NOARG, 0, 1)
#define STRV(a)           PIECE(STRINGS, false, a, NOARG, NOARG, 0, 1)
#define MASK(a)           PIECE(MASK, false, a, NOARG, NOARG, 0, 1)
#define SETMASK(a)        PIECE(SETMASK, false, a, NOARG, NOARG, 0, 1)
#define ENVIRON           PIECE(ENVIRON, false, 0, NOARG, NOARG, 0, 1)

#define READS         FP_HOW_READS
#define WRITES        FP_HOW_WRITES
#define RECEIVES(n)   (FP_HOW_READS | FP_HOW_RECEIVES | (n) << FP_HOW_ARG_SHIFT)
#define STREAM_READS  (FP_HOW_STREAM | FP_HOW_READS)
#define STREAM_WRITES (FP_HOW_STREAM | FP_HOW_WRITES)
#define AT(n)         (FP_HOW_OFFSET | (n) << FP_HOW_ARG_SHIFT)
#define OPENS         FP_HOW_OPENS
#define RELEASES      FP_HOW_RELEASES
#define LOOKS(n)      (FP_HOW_LOOKS | (n) << FP_HOW_ARG_SHIFT)
#define GUESS         FP_HOW_GUESS
#define STACK         FP_HOW_STACK
#define REFUSE        FP_HOW_REFUSE
#define SYSCALL       FP_HOW_SYSCALL
#define FIRST(name)   ((ROW_##name + 1) << FP_HOW_FIRST_SHIFT)

/* ---- rows by name and by number ---- */

#define ALIAS(other, name)

#define CALL(name, how, ...)  ROW_##name,
#define BOTH(name, how, ...)  ROW_##name,
#define INNER(name, how, ...) ROW_##name,
#define RAW(name, how, ...)
enum {
#include "calls.def"
	N_ROWS
};

const unsigned fp_call_n_rows = N_ROWS;

#define CALL(name_, how_, ...)  {.name = #name_, .how = (how_), .pieces = {__VA_ARGS__}},
#define BOTH(name_, how_, ...)  CALL(name_, how_, __VA_ARGS__)
#define INNER(name_, how_, ...) CALL(name_, how_, __VA_ARGS__)
#define RAW(name, how, ...)
const struct fp_row fp_call_rows[] = {
#include "calls.def"
};

/* For x86-64 only: other processors have other numbers, and can't pin at all (see sigframe.h). */
#if defined(__x86_64__)
#define CALL(name, how, ...)
#define BOTH(name_, how_, ...) [SYS_##name_] = {.name = #name_, .how = (how_), .pieces = {__VA_ARGS__}},
#define INNER(name, how, ...)
#define RAW(name_, how_, ...) BOTH(name_, how_, __VA_ARGS__)
static const struct fp_row raw_rows[] = {
#include "calls.def"
};
#else
static const struct fp_row raw_rows[1];
#endif

/*
 * The row of all system calls whose number has no row of its own: any argument may point to memory.
 */
static const struct fp_row any_number = {
    .name = "syscall",
    .how = GUESS,
    .pieces = {OUT(0), OUT(1), OUT(2), OUT(3), OUT(4), OUT(5)},
};

const struct fp_row *fp_call_raw_row(long number)
{
	bool known = number >= 0 && (size_t)number < sizeof(raw_rows) / sizeof(*raw_rows);

	return known && raw_rows[number].name ? &raw_rows[number] : &any_number;
}

/* ---- wrappers ---- */

/* The slow path of a call must know the call's row, so each call has a function of its own. */
#define CALL(name, how, ...)                                                                                 \
	static long run_##name(long a, long b, long c, long d, long e, long f, long g)                       \
	{                                                                                                    \
		return fp_calls_run(ROW_##name, (long[FP_CALL_ARGS]){a, b, c, d, e, f, g});                  \
	}
#define BOTH(name, how, ...)  CALL(name, how)
#define INNER(name, how, ...) CALL(name, how)
#define RAW(name, how, ...)
#include "calls.def"

#define CALL(name, how, ...)  [ROW_##name] = run_##name,
#define BOTH(name, how, ...)  [ROW_##name] = run_##name,
#define INNER(name, how, ...) [ROW_##name] = run_##name,
#define RAW(name, how, ...)
fp_call_fn *fp_call_entry[] = {
#include "calls.def"
};
#undef ALIAS

fp_call_fn *fp_call_syscall_way = (fp_call_fn *)fp_call_raw_syscall;

long fp_call_syscall_mediated(long a, long b, long c, long d, long e, long f, long g)
{
	return run_syscall(a, b, c, d, e, f, g);
}

/*
 * Our headers declare these names with their own types. So our functions have other names in C, and
 * get the program's names in the assembler.
 */
#define WRAPPER(symbol, row)                                                                                 \
	FP_INTERPOSE long fp_wrap_##symbol(long a, long b, long c, long d, long e, long f,                   \
	                                   long g) __asm__(#symbol);                                         \
	long fp_wrap_##symbol(long a, long b, long c, long d, long e, long f, long g)                        \
	{                                                                                                    \
		return fp_call_entry[ROW_##row](a, b, c, d, e, f, g);                                        \
	}
#define CALL(name, how, ...) WRAPPER(name, name)
#define BOTH(name, how, ...) WRAPPER(name, name)
#define ALIAS(other, name)   WRAPPER(other, name)
#define RAW(name, how, ...)
#define INNER(name, how, ...)                                                                                \
	long fp_call_##name(long a, long b, long c, long d, long e, long f, long g);                         \
	long fp_call_##name(long a, long b, long c, long d, long e, long f, long g)                          \
	{                                                                                                    \
		return fp_call_entry[ROW_##name](a, b, c, d, e, f, g);                                       \
	}
#include "calls.def"
