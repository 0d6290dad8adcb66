/*
 * Calls of the C library that hand memory to the kernel, where the kernel does not fault for us: in
 * fault mode inline, and on hosts that permit only user-mode faults. Room: preload/syscalls.
 * calls.def lists the memory of each call, callrows.c makes rows and wrappers of it, and calls.c
 * carries out a row.
 *
 * All wrappers have one shape. It fits every function that takes and returns integers and pointers
 * in registers, variadic or not. A wrapper jumps through fp_call_entry: to the C library's function
 * if nothing must be pinned, and to fp_calls_run otherwise.
 */
#ifndef FP_CALLS_H
#define FP_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP_CALL_ARGS 7
#define FP_NOARG     0xff

/*
 * The members n and m of a piece hold the number of an argument and a flag. FP_ARG_MASK selects the
 * number. The flag, FP_ARG_IS_INT, says that the argument is an int, whose upper half is garbage.
 */
#define FP_ARG_MASK   0x3fu
#define FP_ARG_IS_INT 0x40u

typedef long fp_call_fn(long a, long b, long c, long d, long e, long f, long g);

/* In the lines below, unit, n and m are members of the piece (struct fp_call_piece). */
enum fp_piece_kind {
	FP_PIECE_END,
	FP_PIECE_WINDOW,  /* pinned: 512 bytes; if too few, 8 KiB, or unit bytes if that is more */
	FP_PIECE_IOCTL,   /* a WINDOW of at least the size in the ioctl's number, argument n */
	FP_PIECE_BYTES,   /* pinned: base + unit * argument n * argument m */
	FP_PIECE_TEXT,    /* pinned: a string, up to its NUL */
	FP_PIECE_LOCK,    /* pinned: unit bytes of a mutex, if it is of a kind that needs it */
	FP_PIECE_IOVEC,   /* pinned: n iovecs; their buffers too, unless argument m is another process */
	FP_PIECE_MESSAGE, /* pinned: a msghdr and all its memory; if n is given, n mmsghdrs */
	FP_PIECE_STRINGS, /* copied: strings and their array, as they may be too many to pin */
	FP_PIECE_MASK,    /* copied: a signal mask, without SIGBUS in fault mode inline */
	FP_PIECE_SETMASK, /* copied: the address and size of a mask, and the mask */
	FP_PIECE_ENVIRON, /* pinned: the program's environment; no argument is about it */
};

struct fp_call_piece {
	uint8_t kind, arg, n, m;
	bool write;
	uint16_t base;
	uint32_t unit;
};

#define FP_PIECES 7

/*
 * Special treatment besides pinning: see calls.def. The first three are for memory that is too long
 * to pin at once.
 */
enum fp_call_how {
	FP_HOW_READS = 1 << 0,
	FP_HOW_WRITES = 1 << 1,
	FP_HOW_STREAM = 1 << 2,
	FP_HOW_GUESS = 1 << 3, /* EFAULT may come from far memory that no piece names */
	FP_HOW_REFUSE = 1 << 4,
	FP_HOW_SYSCALL = 1 << 5,  /* argument 0 is the number of a system call, whose own row is then used */
	FP_HOW_OFFSET = 1 << 6,   /* argument FP_HOW_ARG is the file offset */
	FP_HOW_RECEIVES = 1 << 7, /* argument FP_HOW_ARG holds the flags of recv */
	FP_HOW_OPENS = 1 << 8,    /* in every fault mode: the agent opens no descriptor during the call */
	FP_HOW_RELEASES = 1 << 9, /* in every fault mode: first releases threads held on a CPU */
	FP_HOW_STACK = 1 << 11,   /* a far stack is pinned, too, for what the C library puts there */
	FP_HOW_LOOKS = 1 << 10,   /* in every fault mode: then looks at the descriptor (wary.h), whose
	                             flags argument FP_HOW_ARG holds */
};

#define FP_HOW_ARG_SHIFT   12
#define FP_HOW_ARG(how)    ((how) >> FP_HOW_ARG_SHIFT & 7)
#define FP_HOW_FIRST_SHIFT 16 /* 1 + the row of a call that is tried first; 0: none */
#define FP_HOW_FIRST(how)  ((how) >> FP_HOW_FIRST_SHIFT)

struct fp_row {
	const char *name;
	uint32_t how;
	struct fp_call_piece pieces[FP_PIECES];
};

extern const struct fp_row fp_call_rows[];
extern fp_call_fn *fp_call_entry[];
extern const unsigned fp_call_n_rows;

/* The row for syscall(number, ...). */
const struct fp_row *fp_call_raw_row(long number);

/*
 * Called once, before the program has other threads. At that time either the agent runs, or it is
 * certain that no agent will run. In the first case wrappers pin from now on. In the second case
 * they jump to the C library.
 */
void fp_calls_open(void);

/* True if the memory of system calls must be pinned. Any thread, any time. */
bool fp_calls_hold(void);

/*
 * The function to which syscall(2) jumps: see rawfork.c. At first this is fp_call_raw_syscall. If
 * memory must be pinned, fp_calls_open changes this to fp_call_syscall_mediated.
 */
extern fp_call_fn *fp_call_syscall_way;
fp_call_fn fp_call_syscall_mediated;
/*
 * syscall(2) without our treatment. Pass only longs: the last of six arguments is on the stack,
 * where the upper half of an int is garbage.
 */
long fp_call_raw_syscall(long number, ...);

/* A wrapper's slow path. args are FP_CALL_ARGS words. */
long fp_calls_run(unsigned row, long *args);

/*
 * Declares the wrapper of an INNER row, fp_call_NAME. The wrapper has the type of the C library's
 * function NAME, but is not exported under that name.
 */
#define FP_INNER_CALL(name) extern __typeof__(name) fp_call_##name

#endif
