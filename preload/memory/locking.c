/* mlock and its relatives, between the program and the far space. Room: preload/memory. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "cleanup.h"
#include "local.h"
#include "far_pieces.h"

/* Rounds the range outwards to whole pages, as the kernel's mlock and munlock do. */
static int lock_pieces(struct fp_space *space, const void *addr, size_t len, const struct fp_call *call)
{
	uintptr_t start = (uintptr_t)addr & ~(uintptr_t)(FP_PAGE_SIZE - 1);

	return fp_for_pieces(space, (void *)start, len + ((uintptr_t)addr - start), call);
}

/* ---- mlock ---- */

static int lock_plain(const struct fp_call *call, void *addr, size_t len)
{
	if (call->arg == 0)
		return (int)FP_RAW(SYS_mlock, addr, len, 0, 0, 0, 0);
	return (int)FP_RAW(SYS_mlock2, addr, len, call->arg, 0, 0, 0);
}

static int lock_far(const struct fp_call *call, struct fp_space *space, void *addr, size_t len)
{
	return fp_space_mlock(space, addr, len, call->arg & MLOCK_ONFAULT);
}

static int lock(struct fp_space *space, const void *addr, size_t len, unsigned flags)
{
	const struct fp_call call = {
	    .far = lock_far, .plain = lock_plain, .arg = (int)flags, .ends_at_hole = true};
	struct rlimit limit;
	int r;

	if (flags & ~(unsigned)MLOCK_ONFAULT)
		return -EINVAL;
	/*
	 * if the program may lock nothing, the kernel's error must come first: locking an empty
	 * range gives it
	 */
	if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == 0) {
		r = (int)FP_RAW(SYS_mlock, 0, 0, 0, 0, 0, 0);
		if (r < 0)
			return r;
	}
	return lock_pieces(space, addr, len, &call);
}

FP_INTERPOSE int mlock(const void *addr, size_t len)
{
	struct fp_space *space = fp_touched(addr, len);

	return fp_shim_return(space ? lock(space, addr, len, 0)
	                            : (int)FP_RAW(SYS_mlock, addr, len, 0, 0, 0, 0));
}

FP_INTERPOSE int mlock2(const void *addr, size_t len, unsigned flags)
{
	struct fp_space *space = fp_touched(addr, len);

	return fp_shim_return(space ? lock(space, addr, len, flags)
	                            : (int)FP_RAW(SYS_mlock2, addr, len, flags, 0, 0, 0));
}

/* ---- munlock ---- */

static int unlock_far(const struct fp_call *call, struct fp_space *space, void *addr, size_t len)
{
	return fp_space_munlock(space, addr, len);
}

static int unlock_plain(const struct fp_call *call, void *addr, size_t len)
{
	return (int)FP_RAW(SYS_munlock, addr, len, 0, 0, 0, 0);
}

FP_INTERPOSE int munlock(const void *addr, size_t len)
{
	const struct fp_call call = {.far = unlock_far, .plain = unlock_plain, .ends_at_hole = true};
	struct fp_space *space = fp_touched(addr, len);

	return fp_shim_return(space ? lock_pieces(space, addr, len, &call)
	                            : unlock_plain(&call, (char *)addr, len));
}

/* ---- mlockall ---- */

/*
 * Always refused. The kernel would lock the whole far range, and give all of it page tables. But
 * evicted pages can't be resident.
 */
FP_INTERPOSE int mlockall(int flags)
{
	static atomic_bool said;

	if (!fp_shim_space() || !(flags & (MCL_CURRENT | MCL_FUTURE)) ||
	    flags & ~(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT))
		return fp_shim_return((int)FP_RAW(SYS_mlockall, flags, 0, 0, 0, 0, 0));
	fp_shim_say_once(&said, "mlockall was refused: far memory is not all here. Lock what must stay by "
	                        "mlock, which makes it local");
	return fp_shim_return(-ENOMEM);
}
