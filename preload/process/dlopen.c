/*
 * Libraries that the program opens. With RTLD_DEEPBIND a library would look for symbols in its own
 * dependencies first. It would find the C library's free before ours, and call it for memory of our
 * malloc. Room: preload/process.
 *
 * The C library looks at the return address of this call: the library of that address decides where
 * dlopen searches, and in which namespace. So no frame of ours may come between. This call must be
 * a jump, at every level of optimisation.
 *
 * dlmopen is left alone: its libraries have a C library of their own.
 */
#include <dlfcn.h>

#include "shim.h"

#if defined(__clang__)
#define AS_JUMP __attribute__((musttail))
#define JUMPS
#else
#define AS_JUMP
#define JUMPS __attribute__((optimize("O2")))
#endif

JUMPS FP_INTERPOSE void *dlopen(const char *file, int flags)
{
	AS_JUMP return FP_NEXT(dlopen)(file, flags & ~RTLD_DEEPBIND);
}
