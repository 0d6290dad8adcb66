/* See refusals.h. What is asked beside far memory goes on to the kernel. */
#include "refusals.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include "calls.h"
#include "pieces.h"

#define KEEP_LOCAL "Set FARPAGE_MIN_MAPPING above the size of that mapping to keep it local"

/* Newer than some headers that we build with. */
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

/* ---- memory ---- */

/* The agent itself could not unmap it then, nor open and close it. */
long fp_refusals_seal(void *addr, size_t len, unsigned long flags)
{
	static atomic_bool said;

	if (!fp_touched(addr, len))
		return fp_shim_return_long(FP_RAW(FP_SYS_MSEAL, addr, len, flags, 0, 0, 0));
	fp_shim_say_once(&said, "mseal was refused for far memory. " KEEP_LOCAL);
	errno = ENOSYS;
	return -1;
}

static size_t segment_bytes(int id)
{
	struct shmid_ds segment = {.shm_segsz = 0};
	int saved = errno;

	(void)FP_RAW(SYS_shmctl, id, IPC_STAT, &segment, 0, 0, 0);
	errno = saved;
	return segment.shm_segsz;
}

/* The kernel tells nobody that it replaces far memory. */
FP_INTERPOSE void *shmat(int id, const void *addr, int flags)
{
	static atomic_bool said;

	if (!(flags & SHM_REMAP) || !fp_touched(addr, segment_bytes(id)))
		return (void *)fp_shim_return_long(FP_RAW(SYS_shmat, id, addr, flags, 0, 0, 0));
	fp_shim_say_once(&said, "shmat(SHM_REMAP) over far memory was refused. " KEEP_LOCAL);
	errno = EINVAL;
	return (void *)-1;
}

/* ---- the process ---- */

FP_INNER_CALL(prctl);

/* Pages that the kernel merges lose their write protection, by which the agent knows what was written. */
static int refuse_merging(void)
{
	static atomic_bool said;

	fp_shim_say_once(&said, "prctl(PR_SET_MEMORY_MERGE) was refused: far memory can't be merged. Give "
	                        "madvise(MADV_MERGEABLE) to what shall be");
	errno = EPERM;
	return -1;
}

FP_INTERPOSE int prctl(int option, ...)
{
	unsigned long arg[4];
	va_list args;

	va_start(args, option);
	for (unsigned i = 0; i < 4; i++)
		arg[i] = va_arg(args, unsigned long);
	va_end(args);
	if (option == PR_SET_MEMORY_MERGE && arg[0] && fp_shim_space())
		return refuse_merging();
	return fp_call_prctl(option, arg[0], arg[1], arg[2], arg[3]);
}
