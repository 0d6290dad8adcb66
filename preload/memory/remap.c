/* mremap, between the program and the far space. Room: preload/memory. */
#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "cleanup.h"
#include "local.h"
#include "local_stack.h"
#include "far_pieces.h"
#include "mapping.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

static unsigned far_flags(int flags)
{
	return (flags & MREMAP_MAYMOVE ? FP_REMAP_MAYMOVE : 0) | (flags & MREMAP_FIXED ? FP_REMAP_FIXED : 0);
}

/* Returns a failure to the program, with its errno. */
static void *failed(int r)
{
	static atomic_bool said, held;

	if (r == -ENOTSUP)
		fp_shim_say_once(
		    &said,
		    "mremap: refused are MREMAP_DONTUNMAP of far memory, to move other memory to "
		    "its place or it away, and to move or grow a file, shared memory or memory "
		    "that was locked or lent inside. Set FARPAGE_MIN_MAPPING above the size of that mapping "
		    "to keep it "
		    "local");
	if (r == -EBUSY)
		fp_shim_say_once(
		    &held, "mremap was refused: a device or a call holds far memory there (a registered "
		           "buffer, O_DIRECT under way). Unregister it first, or keep that memory local "
		           "(FARPAGE_MIN_MAPPING)");
	errno = r == -ENOTSUP || r == -EBUSY ? EINVAL : -r;
	return MAP_FAILED;
}

static void *remap_far(struct fp_space *space, const struct fp_remap *what)
{
	void *moved;
	uint64_t mask;
	int r;

	mask = fp_local_enter_masked();
	r = (int)FP_ON_LOCAL_STACK(fp_space_remap_to, space, what, &moved, 0, 0, 0);
	fp_local_leave_masked(mask);
	return r < 0 ? failed(r) : moved;
}

void *fp_mremap(void *addr, size_t old_len, size_t new_len, int flags, void *new_addr)
{
	const struct fp_remap what = {.old_addr = addr,
	                              .old_len = old_len,
	                              .new_len = new_len,
	                              .flags = far_flags(flags),
	                              .new_addr = new_addr};
	bool is_known = !(flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP));
	struct fp_space *space = fp_touched(addr, FP_MAX(old_len, 1u));

	if (!space && (flags & MREMAP_FIXED))
		space = fp_touched(new_addr, new_len);
	if (!space || !is_known)
		return (void *)(intptr_t)fp_shim_return_long(
		    FP_RAW(SYS_mremap, addr, old_len, new_len, flags, new_addr, 0));
	return flags & MREMAP_DONTUNMAP ? failed(-ENOTSUP) : remap_far(space, &what);
}

FP_INTERPOSE void *mremap(void *addr, size_t old_len, size_t new_len, int flags, ...)
{
	void *new_addr;
	va_list args;

	va_start(args, flags);
	new_addr = va_arg(args, void *);
	va_end(args);
	return fp_mremap(addr, old_len, new_len, flags, new_addr);
}
