/*
 * See rlimits.h. The kernel counts the reserved range like any other memory. So before a limit is
 * lowered, the range shrinks to the size that the limit allows. After that the kernel enforces the
 * limit by itself, also for children and the programs that they execute.
 */
#undef _FILE_OFFSET_BITS /* otherwise setrlimit would become a second name of setrlimit64 */

#include "rlimits.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "call_args.h"
#include "calls.h"
#include "far_pieces.h"
#include "local.h"
#include "local_stack.h"

/* The process of the agent. A child of vfork shares its memory, but has limits of its own. */
static _Atomic pid_t owner;

FP_INNER_CALL(setrlimit);
FP_INNER_CALL(prlimit);

void fp_limits_open(void)
{
	atomic_store(&owner, getpid());
}

static bool is_ours(pid_t pid)
{
	pid_t self = getpid();

	return fp_shim_space() && atomic_load(&owner) == self &&
	       (pid == 0 || FP_RAW(SYS_tgkill, self, pid, 0, 0, 0, 0) == 0); /* pid may be a thread of ours */
}

/* Says why the limit was refused. Returns the errno for the program. */
static int refuse(int r)
{
	static atomic_bool said, said_busy;

	if (r == -EBUSY) {
		fp_shim_say_once(&said_busy,
		                 "setrlimit was refused: a call of another thread uses memory that would go. "
		                 "Set the limit before other threads make calls, or before the start");
		return -EPERM; /* as the kernel refuses */
	}
	fp_shim_say_once(&said, "setrlimit was refused: far memory takes half of such a limit, which must be "
	                        "512 MiB at least, and hold what is mapped. Set it before the start, or "
	                        "limit the program by a cgroup");
	return r;
}

/*
 * Shrinks the range to the limit. Returns 0, or a negative errno if it can't shrink that far. Also
 * returns 0 for wrong arguments: the kernel then reports the error.
 */
static int make_room(pid_t pid, int kind, const struct rlimit *limit)
{
	struct rlimit wanted;
	uint64_t mask;
	int r;

	if (!limit || (kind != RLIMIT_AS && kind != RLIMIT_DATA) || !is_ours(pid) ||
	    fp_call_args_fetch(&wanted, limit, sizeof(wanted)) < 0 || wanted.rlim_cur > wanted.rlim_max)
		return 0;
	mask = fp_local_enter_masked();
	r = (int)FP_ON_LOCAL_STACK(fp_space_fit, fp_agent_space(fp_shim_agent()), kind, wanted.rlim_cur, 0, 0,
	                           0);
	fp_local_leave_masked(mask);
	return r < 0 ? refuse(r) : 0;
}

/* ---- the program's calls ---- */

FP_INTERPOSE int setrlimit(__rlimit_resource_t kind, const struct rlimit *limit)
{
	int r = make_room(0, (int)kind, limit);

	return r < 0 ? fp_shim_return(r) : fp_call_setrlimit(kind, limit);
}

FP_INTERPOSE int prlimit(pid_t pid, __rlimit_resource_t kind, const struct rlimit *limit,
                         struct rlimit *ret_old)
{
	int r = make_room(pid, (int)kind, limit);

	return r < 0 ? fp_shim_return(r) : fp_call_prlimit(pid, kind, limit, ret_old);
}

_Static_assert(sizeof(struct rlimit) == sizeof(struct rlimit64), "one struct by two names");

FP_INTERPOSE int setrlimit64(__rlimit_resource_t kind, const struct rlimit64 *limit)
{
	return setrlimit(kind, (const struct rlimit *)limit);
}

FP_INTERPOSE int prlimit64(pid_t pid, __rlimit_resource_t kind, const struct rlimit64 *limit,
                           struct rlimit64 *ret_old)
{
	return prlimit(pid, kind, (const struct rlimit *)limit, (struct rlimit *)ret_old);
}
