/*
 * The rows of calls.def and the wrappers they stand for: tables, made by the preprocessor. Room:
 * preload.
 */
#include <aio.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/bpf.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <linux/usbdevice_fs.h>
#include <mqueue.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <scsi/sg.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/msg.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/times.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <termios.h>
#include <threads.h>
#include <time.h>
#include <utime.h>
#include <utmp.h>

#include "calls.h"
#include "shim.h"

_Static_assert(sizeof(long) == 8 && sizeof(void *) == 8, "a wrapper's arguments are words");

/* Newer than some headers that we build with. */
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif
#ifndef FIDEDUPERANGE
#define FIDEDUPERANGE _IOWR(0x94, 54, struct file_dedupe_range)
#endif
#ifndef IPT_SO_SET_REPLACE
#define IPT_SO_SET_REPLACE 64 /* of IPv6 as well; its header does not go with those of the C library */
#endif
/* Neither do those of ARP tables and bridges. */
#ifndef ARPT_SO_SET_REPLACE
#define ARPT_SO_SET_REPLACE 96
#endif
#ifndef EBT_SO_SET_ENTRIES
#define EBT_SO_SET_ENTRIES      128
#define EBT_SO_SET_COUNTERS     129
#define EBT_SO_GET_ENTRIES      129
#define EBT_SO_GET_INIT_ENTRIES 131
#endif
#ifndef SOL_PACKET
#define SOL_PACKET 263
#endif
#ifndef PACKET_FANOUT_DATA
#define PACKET_FANOUT_DATA 22
#endif
#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule       445
#endif
#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef SYS_futex_wake
#define SYS_futex_wake 454
#endif
#ifndef SYS_futex_wait
#define SYS_futex_wait 455
#endif
#ifndef SYS_futex_requeue
#define SYS_futex_requeue 456
#endif
#ifndef FUTEX_LOCK_PI2
#define FUTEX_LOCK_PI2 13
#endif

#define IN    FP_DIR_IN
#define OUT   FP_DIR_OUT
#define INOUT FP_DIR_INOUT
#define NOARG FP_NOARG
#define I(n)  ((n) | FP_ARG_IS_INT)

#define PIECE(kind_, dir_, arg_, n_, m_, base_, unit_)                                                       \
	{                                                                                                    \
		.kind = FP_PIECE_##kind_, .dir = (dir_), .arg = (arg_), .n = (n_), .m = (m_),                \
		.base = (base_), .unit = (uint32_t)(unit_)                                                   \
	}
#define STR(a)                    PIECE(STRING, IN, a, NOARG, NOARG, 0, 1)
#define STRV(a)                   PIECE(STRINGS, IN, a, NOARG, NOARG, 0, 1)
#define TEXT(a)                   PIECE(TEXT, IN, a, NOARG, NOARG, 0, 1)
#define S_IN(a, size)             PIECE(STRUCT, IN, a, NOARG, NOARG, 0, size)
#define S_OUT(a, size)            PIECE(STRUCT, OUT, a, NOARG, NOARG, 0, size)
#define S_IO(a, size)             PIECE(STRUCT, INOUT, a, NOARG, NOARG, 0, size)
#define MASK(a, size)             PIECE(MASK, IN, a, NOARG, NOARG, 0, size)
#define B_IN(a, n)                PIECE(BYTES, IN, a, n, NOARG, 0, 1)
#define B_OUT(a, n)               PIECE(BYTES, OUT, a, n, NOARG, 0, 1)
#define A_IN(a, n, size)          PIECE(BYTES, IN, a, n, NOARG, 0, size)
#define A_OUT(a, n, size)         PIECE(BYTES, OUT, a, n, NOARG, 0, size)
#define A_IO(a, n, size)          PIECE(BYTES, INOUT, a, n, NOARG, 0, size)
#define M_IN(a, n, m)             PIECE(BYTES, IN, a, n, m, 0, 1)
#define M_OUT(a, n, m)            PIECE(BYTES, OUT, a, n, m, 0, 1)
#define PREFIXED(a, n, more, dir) PIECE(BYTES, dir, a, n, NOARG, more, 1)
#define PAGES(a, n)               PIECE(PAGES, OUT, a, n, NOARG, 0, 1)
#define V_IN(a, n)                PIECE(IOVEC, IN, a, n, NOARG, 0, 1)
#define V_OUT(a, n)               PIECE(IOVEC, OUT, a, n, NOARG, 0, 1)
#define V_SELF(a, n, pid)         PIECE(IOVEC, INOUT, a, n, pid, 0, 1)
#define MSG_IN(a)                 PIECE(MESSAGE, IN, a, NOARG, NOARG, 0, 1)
#define MSG_OUT(a)                PIECE(MESSAGE, OUT, a, NOARG, NOARG, 0, 1)
#define MMSG_IN(a, n)             PIECE(MESSAGE, IN, a, n, NOARG, 0, 1)
#define MMSG_OUT(a, n)            PIECE(MESSAGE, OUT, a, n, NOARG, 0, 1)
#define SIZED(a, n, most)         PIECE(SIZED, INOUT, a, n, NOARG, 0, most)
#define SELF(a, base)             PIECE(SELF, INOUT, a, NOARG, NOARG, base, 1)
#define OBJ(a, size)              PIECE(OBJECT, INOUT, a, NOARG, NOARG, 0, size)
#define LOCK(a)                   PIECE(LOCK, INOUT, a, NOARG, NOARG, 0, sizeof(pthread_mutex_t))
#define FDS(a, n)                 PIECE(FDS, INOUT, a, n, NOARG, 0, 1)
#define UPTO(a, size)             PIECE(UPTO, INOUT, a, NOARG, NOARG, 0, size)
#define NEST(a, at, len_at, unit) PIECE(NEST, INOUT, a, len_at, NOARG, at, unit)
#define SETMASK(a)                PIECE(SETMASK, IN, a, NOARG, NOARG, 0, 1)
#define WAITERS(a, n)             PIECE(WAITERS, INOUT, a, n, NOARG, 0, 1)
#define TWO_WAITERS(a)            PIECE(WAITERS, INOUT, a, NOARG, NOARG, 0, 2)
#define AIOCB(a)                  PIECE(AIOCB, INOUT, a, NOARG, NOARG, 0, 1)
#define AIOCBS(a, n)              PIECE(AIOCB, INOUT, a, n, NOARG, 0, 1)

#define READS         FP_HOW_READS
#define WRITES        FP_HOW_WRITES
#define RECEIVES(n)   (FP_HOW_READS | FP_HOW_RECEIVES | (n) << FP_HOW_ARG_SHIFT)
#define STREAM_READS  (FP_HOW_STREAM | FP_HOW_READS)
#define STREAM_WRITES (FP_HOW_STREAM | FP_HOW_WRITES)
#define AT(n)         (FP_HOW_OFFSET | (n) << FP_HOW_ARG_SHIFT)
#define COMMAND(n)    (FP_HOW_COMMAND | (n) << FP_HOW_ARG_SHIFT)
#define PAIR(n)       (FP_HOW_COMMAND | FP_HOW_PAIR | (n) << FP_HOW_ARG_SHIFT)
#define OPTION(l, o)  ((l) << 16 | (o))
#define OPENS         FP_HOW_OPENS
#define RELEASES      FP_HOW_RELEASES
#define FLAGS_128     FP_HOW_FLAGS_128
#define BY_NUMBER     FP_HOW_BY_NUMBER
#define DONE_BIT      FP_HOW_DONE_BIT
#define REFUSE        FP_HOW_REFUSE
#define REFUSE_FAR    FP_HOW_REFUSE_FAR
#define SYSCALL       FP_HOW_SYSCALL
#define FIRST(name)   ((ROW_##name + 1) << FP_HOW_FIRST_SHIFT)

/* ---- which row is which ---- */

#define ALIAS(other, name)
#define REFUSED(name, how, ...)
#define ELSEWHERE(name, where)
#define NONE(name, why)

#define CALL(name, how, ...)  ROW_##name,
#define BOTH(name, how, ...)  ROW_##name,
#define INNER(name, how, ...) ROW_##name,
#define RAW(name, how, ...)
#define CMD(name, value, ...)
enum {
#include "calls.def"
	N_ROWS
};
#undef CALL
#undef BOTH
#undef INNER
#undef RAW
#undef CMD

const unsigned fp_call_n_rows = N_ROWS;

#define CALL(name_, how_, ...)  {.name = #name_, .how = (how_), .pieces = {__VA_ARGS__}},
#define BOTH(name_, how_, ...)  CALL(name_, how_, __VA_ARGS__)
#define INNER(name_, how_, ...) CALL(name_, how_, __VA_ARGS__)
#define RAW(name, how, ...)
#define CMD(name, value, ...)
const struct fp_row fp_call_rows[] = {
#include "calls.def"
};
#undef CALL
#undef BOTH
#undef INNER
#undef RAW
#undef CMD

/* Other processors have other numbers, and no way to hold at all: see sigframe.h. */
#if defined(__x86_64__)
#define CALL(name, how, ...)
#define BOTH(name_, how_, ...) [SYS_##name_] = {.name = #name_, .how = (how_), .pieces = {__VA_ARGS__}},
#define INNER(name, how, ...)
#define RAW(name_, how_, ...) BOTH(name_, how_, __VA_ARGS__)
#define CMD(name, value, ...)
static const struct fp_row raw_rows[] = {
#include "calls.def"
};
#undef CALL
#undef BOTH
#undef INNER
#undef RAW
#undef CMD
#else
static const struct fp_row raw_rows[1];
#endif

#define CALL(name, how, ...)
#define BOTH(name, how, ...)
#define INNER(name, how, ...)
#define RAW(name, how, ...)
#define CMD(call_, value_, ...) {.call = #call_, .value = (unsigned long)(value_), .pieces = {__VA_ARGS__}},
static const struct fp_cmd_row cmd_rows[] = {
#include "calls.def"
};
#undef CALL
#undef BOTH
#undef INNER
#undef RAW
#undef CMD

const struct fp_row *fp_call_raw_row(long number)
{
	bool known = number >= 0 && (size_t)number < sizeof(raw_rows) / sizeof(*raw_rows);

	return known && raw_rows[number].name ? &raw_rows[number] : NULL;
}

const struct fp_cmd_row *fp_call_cmd_row(const char *call, unsigned long value)
{
	for (size_t i = 0; i < sizeof(cmd_rows) / sizeof(*cmd_rows); i++)
		if (cmd_rows[i].value == value && strcmp(cmd_rows[i].call, call) == 0)
			return &cmd_rows[i];
	return NULL;
}

/* ---- wrappers ---- */

/* By its long way a call is a function of its own: it knows its row. */
#define CALL(name, how, ...)                                                                                 \
	static long run_##name(long a, long b, long c, long d, long e, long f, long g)                       \
	{                                                                                                    \
		return fp_calls_run(ROW_##name, (long[FP_CALL_ARGS]){a, b, c, d, e, f, g});                  \
	}
#define BOTH(name, how, ...)  CALL(name, how)
#define INNER(name, how, ...) CALL(name, how)
#define RAW(name, how, ...)
#define CMD(name, value, ...)
#include "calls.def"
#undef CALL
#undef BOTH
#undef INNER

#define CALL(name, how, ...)  [ROW_##name] = run_##name,
#define BOTH(name, how, ...)  [ROW_##name] = run_##name,
#define INNER(name, how, ...) [ROW_##name] = run_##name,
fp_call_fn *fp_call_entry[] = {
#include "calls.def"
};
#undef CALL
#undef BOTH
#undef INNER
#undef ALIAS

fp_call_fn *fp_call_syscall_way = (fp_call_fn *)fp_call_raw_syscall;

long fp_call_syscall_mediated(long a, long b, long c, long d, long e, long f, long g)
{
	return run_syscall(a, b, c, d, e, f, g);
}

/*
 * The names that the program calls. As our headers declare them with their own types, they are
 * given to functions of ours by the assembler's names.
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
#define INNER(name, how, ...)                                                                                \
	long fp_call_##name(long a, long b, long c, long d, long e, long f, long g);                         \
	long fp_call_##name(long a, long b, long c, long d, long e, long f, long g)                          \
	{                                                                                                    \
		return fp_call_entry[ROW_##name](a, b, c, d, e, f, g);                                       \
	}
#include "calls.def"
