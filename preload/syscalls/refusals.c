/* See refusals.h. Requests that touch no far memory go on to the kernel. */
#include "refusals.h"

#include <errno.h>
#include <linux/kvm.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <time.h>

#include "abi.h"
#include "call_args.h"
#include "calls.h"
#include "clock.h"
#include "far_pieces.h"

#define KEEP_LOCAL "Set FARPAGE_MIN_MAPPING above the size of that mapping to keep it local"

/* These are newer than some headers that we build with. */
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

/* ---- memory ---- */

/*
 * Refuses to seal far memory. The agent itself could no longer unmap sealed memory, or change its
 * protection.
 */
long fp_refusals_seal(void *addr, size_t len, unsigned long flags)
{
	static atomic_bool said;

	if (!fp_touched(addr, len))
		return fp_shim_return_long(FP_RAW(FP_SYS_MSEAL, addr, len, flags, 0, 0, 0));
	fp_shim_say_once(&said, "mseal was refused for far memory. " KEEP_LOCAL);
	errno = ENOSYS;
	return -1;
}

bool fp_refusals_clear_tid(const void *word)
{
	static atomic_bool said;

	if (!fp_touched(word, sizeof(pid_t)))
		return false;
	fp_shim_say_once(&said,
	                 "a thread whose number the kernel shall clear in far memory was refused "
	                 "(set_tid_address, CLONE_CHILD_CLEARTID): give it a word of a static variable");
	errno = EINVAL;
	return true;
}

static size_t segment_bytes(int id)
{
	struct shmid_ds segment = {.shm_segsz = 0};

	(void)FP_RAW(SYS_shmctl, id, IPC_STAT, &segment, 0, 0, 0);
	return segment.shm_segsz;
}

/*
 * Refuses SHM_REMAP over far memory: the kernel would replace far memory, and tell us by no event.
 */
FP_INTERPOSE void *shmat(int id, const void *addr, int flags)
{
	static atomic_bool said, said_where;
	bool is_far = addr && fp_touched(addr, segment_bytes(id));
	long r;

	if (!is_far || !(flags & SHM_REMAP)) {
		r = FP_RAW(SYS_shmat, id, addr, flags, 0, 0, 0);
		if (r == -EINVAL && is_far)
			fp_shim_say_once(&said_where,
			                 "shmat at %p was refused: that place is reserved for far "
			                 "memory. Attach it elsewhere, or without an address",
			                 addr);
		return (void *)fp_shim_return_long(r);
	}
	fp_shim_say_once(&said, "shmat(SHM_REMAP) over far memory was refused. " KEEP_LOCAL);
	errno = EINVAL;
	return (void *)-1;
}

FP_INNER_CALL(ioctl);

/* KVM_SET_USER_MEMORY_REGION, or its second version: both structs begin alike. */
static bool is_guest_memory(unsigned long request)
{
	const unsigned second_version = 0x49;

	return _IOC_TYPE(request) == KVMIO && (_IOC_NR(request) == _IOC_NR(KVM_SET_USER_MEMORY_REGION) ||
	                                       _IOC_NR(request) == second_version);
}

/*
 * Where a system call can't bring pages in, a guest can't touch far memory: KVM_RUN would fail.
 * What the kernel can't read either is left to the kernel.
 */
static bool is_guest_refused(const void *arg)
{
	static atomic_bool said;
	struct kvm_userspace_memory_region region;

	if (!fp_calls_hold() || fp_call_args_fetch(&region, arg, sizeof(region)) < 0 ||
	    !fp_touched((void *)(uintptr_t)region.userspace_addr, region.memory_size))
		return false;
	fp_shim_say_once(&said,
	                 "KVM_SET_USER_MEMORY_REGION was refused: a guest can't use far memory in this "
	                 "fault mode. Use fault mode thread. " KEEP_LOCAL);
	errno = ENOSYS;
	return true;
}

/* To the kernel, a page that is away is a hole: it would be moved as zeros. */
static bool is_move_refused(const void *arg)
{
	static atomic_bool said;
	struct uffdio_move move;

	if (!fp_shim_space() || fp_call_args_fetch(&move, arg, sizeof(move)) < 0 ||
	    !fp_touched((void *)(uintptr_t)move.src, move.len))
		return false;
	fp_shim_say_once(&said, "UFFDIO_MOVE out of far memory was refused. " KEEP_LOCAL);
	errno = EINVAL;
	return true;
}

FP_INTERPOSE int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (is_guest_memory(request) && is_guest_refused(arg))
		return -1;
	if (request == UFFDIO_MOVE && is_move_refused(arg))
		return -1;
	return fp_call_ioctl(fd, request, arg);
}

FP_INNER_CALL(timer_create);

/*
 * The C library runs the callback of SIGEV_THREAD in a thread of its own, with all signals blocked.
 * In fault mode inline, that thread could not touch far memory.
 */
FP_INTERPOSE int timer_create(clockid_t clock, struct sigevent *event, timer_t *ret_timer)
{
	static atomic_bool said;
	struct sigevent copy;

	if (!fp_calls_hold() || !event || fp_call_args_fetch(&copy, event, sizeof(copy)) < 0 ||
	    copy.sigev_notify != SIGEV_THREAD)
		return fp_call_timer_create(clock, event, ret_timer);
	fp_shim_say_once(&said, "timer_create with SIGEV_THREAD was refused: its callback could not use far "
	                        "memory in this fault mode. Use fault mode thread, a signal or a timerfd");
	errno = ENOSYS;
	return -1;
}

/* ---- the process ---- */

FP_INNER_CALL(prctl);

/*
 * Refuses to merge pages: merging removes their write protection, by which the agent notices
 * writes.
 */
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
	if (option == PR_SET_TSC && arg[0] == PR_TSC_SIGSEGV)
		fp_clock_ask_kernel(); /* as the agent also reads its clock on the program's threads */
	return fp_call_prctl(option, arg[0], arg[1], arg[2], arg[3]);
}

/* ---- namespaces ---- */

/* Flags that the kernel permits only to a process with a single thread. */
#define FOR_ONE_THREAD (CLONE_NEWUSER | CLONE_NEWTIME | CLONE_VM | CLONE_SIGHAND | CLONE_THREAD)

/* Refused, because children connect to the nodes again: from another network they could not. */
static int refuse_network(const char *call)
{
	static atomic_bool said;

	fp_shim_say_once(&said,
	                 "%s(CLONE_NEWNET) was refused: children would not reach the nodes from another "
	                 "network. Enter it before the start (ip netns exec NAME farpage run ...), or use a "
	                 "node on this host (shm:)",
	                 call);
	errno = EPERM;
	return -1;
}

static bool leaves_network(int flags)
{
	return (flags & CLONE_NEWNET) && fp_shim_space() && fp_agent_needs_network(fp_shim_agent());
}

/* Explains the kernel's refusal, if the agent's threads are its cause. Keeps errno. */
static void explain(const char *call, int flags)
{
	static atomic_bool said;
	int saved = errno;

	if ((flags & FOR_ONE_THREAD) && (errno == EINVAL || errno == EUSERS) && fp_shim_space())
		fp_shim_say_once(
		    &said,
		    "%s: the kernel refuses such a namespace to a process with threads, and far "
		    "memory has some of its own. Enter it before the start (unshare --user "
		    "farpage run ...), or in a program that this one executes without LD_PRELOAD",
		    call);
	errno = saved;
}

/*
 * Makes a forked child open its sessions before it enters another namespace. Afterwards it might
 * not be able to open them.
 */
static void connect_first(void)
{
	if (fp_shim_space())
		fp_agent_await_sessions(fp_shim_agent());
}

FP_INTERPOSE int unshare(int flags)
{
	int r;

	if (leaves_network(flags))
		return refuse_network("unshare");
	if (flags & (CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUSER))
		connect_first();
	r = fp_shim_return((int)FP_RAW(SYS_unshare, flags, 0, 0, 0, 0, 0));
	if (r < 0)
		explain("unshare", flags);
	return r;
}

/*
 * Returns the kinds of namespaces that setns enters. These are the parameter kinds or, if it is 0,
 * the kind of fd's namespace.
 */
static int kind_of(int fd, int kinds)
{
	long kind = kinds ? kinds : FP_RAW(SYS_ioctl, fd, NS_GET_NSTYPE, 0, 0, 0, 0);

	return kind > 0 ? (int)kind : 0;
}

/*
 * Enters namespaces. To change mounts, the kernel requires a root folder that no other thread
 * shares. The agent's threads keep the old one.
 */
static int enter(int fd, int kinds, int flags)
{
	int r = (int)FP_RAW(SYS_setns, fd, kinds, 0, 0, 0, 0);

	if (r != -EINVAL || !(flags & CLONE_NEWNS) || !fp_shim_space() ||
	    FP_RAW(SYS_unshare, CLONE_FS, 0, 0, 0, 0, 0) < 0)
		return r;
	return (int)FP_RAW(SYS_setns, fd, kinds, 0, 0, 0, 0);
}

FP_INTERPOSE int setns(int fd, int kinds)
{
	int flags = kind_of(fd, kinds), r;

	if (leaves_network(flags))
		return refuse_network("setns");
	connect_first();
	r = fp_shim_return(enter(fd, kinds, flags));
	if (r < 0)
		explain("setns", flags);
	return r;
}
