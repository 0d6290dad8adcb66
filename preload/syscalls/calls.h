/*
 * Calls of the C library that hand memory to the kernel, where the kernel does not fault for us:
 * fault mode inline, and hosts that permit only user-mode faults. What each hands over is data,
 * calls.def; callrows.c makes rows and wrappers of it, calls.c carries out what a row says. Room:
 * preload.
 *
 * A wrapper has the shape of every function that takes and returns integers and pointers in
 * registers; so one serves for all, variadic ones too. It jumps through fp_call_entry: to the C
 * library's function itself once it is known that nothing need be held, and to fp_calls_run
 * otherwise.
 */
#ifndef FP_CALLS_H
#define FP_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP_CALL_ARGS 7
#define FP_NOARG     0xff

/* Of a piece's n and m: the argument, and whether it is an int, whose upper half means nothing. */
#define FP_ARG_MASK   0x3fu
#define FP_ARG_IS_INT 0x40u

typedef long fp_call_fn(long a, long b, long c, long d, long e, long f, long g);

enum fp_piece_kind {
	FP_PIECE_END,
	FP_PIECE_STRING,  /* copied */
	FP_PIECE_STRINGS, /* copied, and the array */
	FP_PIECE_STRUCT,  /* copied: unit bytes */
	FP_PIECE_MASK,    /* copied: unit bytes, without SIGBUS if that is ours */
	FP_PIECE_SIZED,   /* copied: its length word is argument n, at most unit */
	FP_PIECE_SELF,    /* copied: base + its first word */
	FP_PIECE_FDS,     /* copied: one bit for each of argument n */
	FP_PIECE_TEXT,    /* held, up to its NUL */
	FP_PIECE_BYTES,   /* held: base + unit * argument n * argument m */
	FP_PIECE_PAGES,   /* held: a byte for each page of argument n */
	FP_PIECE_UPTO,    /* held as far as mapped: unit bytes */
	FP_PIECE_OBJECT,  /* held: unit bytes */
	FP_PIECE_LOCK,    /* held, if this kind of mutex wants it */
	FP_PIECE_IOVEC,   /* argument n of them; only if argument m names this process */
	FP_PIECE_MESSAGE, /* a msghdr; if there is an n, so many mmsghdr */
	FP_PIECE_NEST,    /* held: pointer at base, length unit * 32-bit word at n, or unit */
	FP_PIECE_SETMASK, /* copied: a mask's address and size, and the mask as above */
	FP_PIECE_WAITERS, /* argument n of struct futex_waitv, copied, and the words they name, held */
	FP_PIECE_AIOCB,   /* its buffer; if there is an n, an array of so many pointers to them */
};

enum fp_piece_dir { FP_DIR_IN = 1, FP_DIR_OUT = 2, FP_DIR_INOUT = 3 };

struct fp_call_piece {
	uint8_t kind, dir, arg, n, m;
	uint16_t base;
	uint32_t unit;
};

#define FP_PIECES 5

/* What to do beyond holding: see calls.def. The low bits tell how to deal with what is too long. */
enum fp_call_how {
	FP_HOW_READS = 1 << 0,
	FP_HOW_WRITES = 1 << 1,
	FP_HOW_STREAM = 1 << 2,
	FP_HOW_COMMAND = 1 << 3,   /* a CMD row for argument FP_HOW_ARG, if there is one */
	FP_HOW_FLAGS_128 = 1 << 4, /* the command has flags from 128 on */
	FP_HOW_BY_NUMBER = 1 << 5, /* else the command's number tells the size */
	FP_HOW_DONE_BIT = 1 << 6,  /* nothing to do if the word at argument 0 has bit 1 */
	FP_HOW_REFUSE = 1 << 7,
	FP_HOW_REFUSE_FAR = 1 << 8,
	FP_HOW_OFFSET = 1 << 9,    /* argument FP_HOW_ARG is the offset */
	FP_HOW_SYSCALL = 1 << 10,  /* the row is that of the number, its arguments follow */
	FP_HOW_RECEIVES = 1 << 11, /* argument FP_HOW_ARG is the flags of recv */
};

#define FP_HOW_PAIR        (1u << 16) /* the command is argument FP_HOW_ARG << 16 | the one after it */
#define FP_HOW_ARG_SHIFT   12
#define FP_HOW_ARG(how)    ((how) >> FP_HOW_ARG_SHIFT & 7)
#define FP_HOW_FIRST_SHIFT 18 /* the call to try first, 1 + its row */
#define FP_HOW_FIRST(how)  ((how) >> FP_HOW_FIRST_SHIFT & 0xfff)
#define FP_HOW_OPENS       (1u << 31) /* no opening of the agent's meanwhile: in every fault mode */

struct fp_row {
	const char *name;
	uint32_t how;
	struct fp_call_piece pieces[FP_PIECES];
};

struct fp_cmd_row {
	const char *call;
	unsigned long value;
	struct fp_call_piece pieces[FP_PIECES];
};

extern const struct fp_row fp_call_rows[];
extern fp_call_fn *fp_call_entry[];
extern const unsigned fp_call_n_rows;

/* The row for syscall(number, ...), NULL if that hands nothing over. */
const struct fp_row *fp_call_raw_row(long number);
/* The row for a command of a call, NULL if there is none. */
const struct fp_cmd_row *fp_call_cmd_row(const char *call, unsigned long value);

/*
 * Once the agent is there, or is known never to be: from now on wrappers jump to the C library, or
 * hold. Called once, before the program has threads of its own.
 */
void fp_calls_open(void);

/* True if system calls need what they are given to be held. Any thread, any time. */
bool fp_calls_hold(void);

/* How syscall(2) goes on; straight to the kernel, at first. See rawfork.c. */
extern fp_call_fn *fp_call_syscall_way;
fp_call_fn fp_call_syscall_mediated;
/* The last of six arguments goes over the stack, and has to be a long: of an int half would be
 * garbage. */
long fp_call_raw_syscall(long number, ...);

/* A wrapper's long way: args are FP_CALL_ARGS words. */
long fp_calls_run(unsigned row, long *args);

/* Declares the wrapper of an INNER row: name's type, and no other name than this. */
#define FP_INNER_CALL(name) extern __typeof__(name) fp_call_##name

#endif
