/*
 * Libraries that the program opens. With RTLD_DEEPBIND a library would look for symbols in its own
 * dependencies first. It would find the C library's free before ours, and call it for memory of our
 * malloc. Room: preload/process.
 *
 * In a namespace of its own, a library has a C library of its own, and the agent sees none of its
 * calls. So dlmopen opens libraries in the program's namespace alone.
 *
 * The C library looks at the return address of these calls: the library of that address decides
 * where they search, and in which namespace.
 */
#include <dlfcn.h>

#include "jump.h"
#include "shim.h"

#define NO_NAMESPACE (-3) /* the C library refuses it, and dlerror tells why */

static Lmid_t permitted_namespace(Lmid_t wanted)
{
	static atomic_bool said;

	if (wanted == LM_ID_BASE)
		return wanted;
	fp_shim_say_once(&said, "dlmopen was refused: a library in a namespace of its own has a C library "
	                        "of its own, whose calls on far memory can't be seen. Use dlopen");
	return NO_NAMESPACE;
}

FP_JUMPS FP_INTERPOSE void *dlopen(const char *file, int flags)
{
	FP_AS_JUMP return FP_NEXT(dlopen)(file, flags & ~RTLD_DEEPBIND);
}

FP_JUMPS FP_INTERPOSE void *dlmopen(Lmid_t namespace, const char *file, int flags)
{
	FP_AS_JUMP return FP_NEXT(dlmopen)(permitted_namespace(namespace), file, flags & ~RTLD_DEEPBIND);
}
