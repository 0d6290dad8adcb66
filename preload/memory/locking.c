/* mlock and its kin, between the program and the far space. Room: preload. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "cleanup.h"
#include "local.h"
#include "local_stack.h"
#include "far_pieces.h"

static int said_refusal(int r)
{
	static atomic_bool said;

	if (r != -ENOSPC)
		return r;
	fp_shim_say_once(&said,
	                 "mlock: so much far memory can't be locked: at most half of the local memory. "
	                 "Raise it, or set FARPAGE_MIN_MAPPING above the size of that mapping to keep "
	                 "it local");
	return -ENOMEM;
}

/* These round outwards to pages by themselves. */
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
	/* who may lock nothing learns it before anything is looked at: so the kernel is asked for
	 * nothing */
	if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == 0) {
		r = (int)FP_RAW(SYS_mlock, 0, 0, 0, 0, 0, 0);
		if (r < 0)
			return r;
	}
	return said_refusal(lock_pieces(space, addr, len, &call));
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

/* ---- all of it ---- */

static int refuse_all(void)
{
	static atomic_bool said;

	fp_shim_say_once(&said,
	                 "mlockall was refused: there is more far memory than may be locked, which is half "
	                 "of the local memory. Raise it, or run with --heap none and "
	                 "FARPAGE_MIN_MAPPING above the size of what must stay");
	return -ENOMEM;
}

/* Beyond the far part, memory is locked as it is touched, and not brought in now. */
FP_INTERPOSE int mlockall(int flags)
{
	struct fp_space *space = fp_shim_space();
	uint64_t mask;
	int r;

	if (!space || !(flags & (MCL_CURRENT | MCL_FUTURE)) ||
	    flags & ~(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT))
		return fp_shim_return((int)FP_RAW(SYS_mlockall, flags, 0, 0, 0, 0, 0));
	mask = fp_local_enter_masked();
	r = (int)FP_ON_LOCAL_STACK(fp_space_mlockall, space, flags, 0, 0, 0, 0);
	fp_local_leave_masked(mask);
	return fp_shim_return(r == -ENOSPC ? refuse_all() : r);
}

FP_INTERPOSE int munlockall(void)
{
	struct fp_space *space = fp_shim_space();
	uint64_t mask;
	int r;

	if (!space)
		return fp_shim_return((int)FP_RAW(SYS_munlockall, 0, 0, 0, 0, 0, 0));
	mask = fp_local_enter_masked();
	r = (int)FP_ON_LOCAL_STACK(fp_space_munlockall, space, 0, 0, 0, 0, 0);
	fp_local_leave_masked(mask);
	return fp_shim_return(r);
}
