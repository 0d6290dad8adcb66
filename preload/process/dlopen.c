/*
 * Libraries that the program opens. RTLD_DEEPBIND would have such a one look for its symbols in
 * what it brings along, the C library included, before it looks here: it would free with the C
 * library's free what our malloc gave out. Room: preload/process.
 *
 * The C library goes by the return address: where it looks for the file, and in which namespace,
 * depends on the caller's own library. So nothing of ours may stand between: this call is a jump,
 * at whatever level of optimisation. dlmopen's libraries have a C library of their own.
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
