/*
 * Functions that end by a jump to the C library's, at every level of optimisation. The C library
 * looks at the return address of some calls, and no frame of ours may come between. Room:
 * preload/process.
 *
 *   FP_JUMPS void *f(int a) { FP_AS_JUMP return g(a); }
 */
#ifndef FP_JUMP_H
#define FP_JUMP_H

#if defined(__clang__)
#define FP_AS_JUMP __attribute__((musttail))
#define FP_JUMPS
#else
#define FP_AS_JUMP
#define FP_JUMPS __attribute__((optimize("O2")))
#endif

#endif
