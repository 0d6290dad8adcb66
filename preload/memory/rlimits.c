/*
 * See rlimits.h. The kernel holds a marked number in the place of the program's: the mark is in the
 * upper 16 bits, which no address space fills, so the kernel counts nothing against it, and yet
 * compares marked numbers as the plain ones. So it is the kernel that says who may raise what, and
 * that hands the numbers on to threads, to children of every kind and through exec; nothing is kept
 * here that could be out of date.
 */
#undef _FILE_OFFSET_BITS /* it would make getrlimit a second name of getrlimit64 */

#include "rlimits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "call_args.h"
#include "calls.h"
#include "cleanup.h"
#include "fdutil.h"
#include "local.h"
#include "far_pieces.h"
#include "transport.h"

#define MARK       0x46f0ull
#define MARK_SHIFT 48
#define NUMBER_MAX ((1ull << MARK_SHIFT) - 1)

/* What our libraries take, and what our heap has in store. */
#define SLACK_BYTES (16ull << 20)

static const int kinds[2] = {RLIMIT_AS, RLIMIT_DATA};

/* Bytes, by the index of kinds. */
struct usage {
	uint64_t bytes[2];
};

static struct {
	atomic_bool marked;          /* there may be a number to keep to */
	struct usage before;         /* the agent's start */
	_Atomic uint64_t own[2];     /* the agent's part, its leases and the far range apart */
	_Atomic uint64_t program[2]; /* the rest at the last look */
	_Atomic int statm;           /* a descriptor of /proc/PID/statm and 1, of owner; 0: none */
	_Atomic pid_t owner;         /* a vfork child shares our memory, but not our descriptors */
} limits;

FP_INNER_CALL(getrlimit);
FP_INNER_CALL(setrlimit);
FP_INNER_CALL(prlimit);

static bool is_small(rlim_t number)
{
	return number <= NUMBER_MAX;
}

static bool is_marked(rlim_t number)
{
	return number >> MARK_SHIFT == MARK;
}

static rlim_t to_program(rlim_t number)
{
	return is_marked(number) ? number & NUMBER_MAX : number;
}

static rlim_t to_kernel(rlim_t number)
{
	return is_small(number) ? MARK << MARK_SHIFT | number : is_marked(number) ? number : RLIM_INFINITY;
}

/* 0 or a negative errno. On a stack that is itself far, what the kernel is given may have left: it
 * is asked again. */
static int kernel_get(pid_t pid, int kind, struct rlimit *ret_limit)
{
	volatile struct rlimit now;
	int r;

	do {
		now.rlim_cur = now.rlim_max = 0;
		r = (int)FP_RAW(SYS_prlimit64, pid, kind, NULL, &now, 0, 0);
	} while (r == -EFAULT);
	if (r == 0)
		*ret_limit = (struct rlimit){.rlim_cur = now.rlim_cur, .rlim_max = now.rlim_max};
	return r;
}

static int kernel_set(pid_t pid, int kind, rlim_t cur, rlim_t max)
{
	volatile struct rlimit next;
	int r;

	do {
		next.rlim_cur = cur;
		next.rlim_max = max;
		r = (int)FP_RAW(SYS_prlimit64, pid, kind, &next, NULL, 0, 0);
	} while (r == -EFAULT);
	return r;
}

/*
 * Where an ordinary user's hard limit is the kernel's own, from before the start, no number can be
 * marked: then all are the kernel's.
 */
static int set_marked(pid_t pid, int kind, const struct rlimit *now, const struct rlimit *wanted)
{
	int r = kernel_set(pid, kind, to_kernel(wanted->rlim_cur), to_kernel(wanted->rlim_max));

	if (r == -EPERM && !is_marked(now->rlim_max))
		return kernel_set(pid, kind, wanted->rlim_cur, wanted->rlim_max);
	if (r == 0)
		atomic_store(&limits.marked, true);
	return r;
}

/* Another process counts as one with an agent if its numbers are marked. */
static int set(pid_t pid, int kind, const struct rlimit *now, const struct rlimit *wanted)
{
	bool is_own =
	    pid == 0 || FP_RAW(SYS_tgkill, getpid(), pid, 0, 0, 0, 0) == 0; /* a thread of ours too */
	bool marks = is_own ? fp_shim_agent() != NULL : is_marked(now->rlim_cur) || is_marked(now->rlim_max);

	if (wanted->rlim_cur > wanted->rlim_max)
		return -EINVAL;
	if (!marks || (!is_small(wanted->rlim_cur) && !is_small(wanted->rlim_max)))
		return kernel_set(pid, kind, wanted->rlim_cur, wanted->rlim_max);
	return set_marked(pid, kind, now, wanted);
}

/* given: what must be there; the headers say that it always is. */
static bool is_ours(int kind, const volatile void *given)
{
	return given && (kind == RLIMIT_AS || kind == RLIMIT_DATA) && fp_shim_agent() && !fp_local_is_agent();
}

/* prlimit of one of our kinds: 0 or a negative errno. */
static int change(pid_t pid, int kind, const struct rlimit *wanted, struct rlimit *ret_old)
{
	struct rlimit now = {0, 0}, next = {0, 0};
	int r = wanted ? fp_call_args_fetch(&next, wanted, sizeof(next)) : 0;

	if (r == 0)
		r = kernel_get(pid, kind, &now);
	if (r == 0 && wanted)
		r = set(pid, kind, &now, &next);
	if (r < 0 || !ret_old)
		return r;
	now.rlim_cur = to_program(now.rlim_cur);
	now.rlim_max = to_program(now.rlim_max);
	return fp_call_args_store(ret_old, &now, sizeof(now));
}

/* ---- what the program calls ---- */

FP_INTERPOSE int getrlimit(__rlimit_resource_t kind, struct rlimit *ret_limit)
{
	if (!is_ours((int)kind, ret_limit))
		return fp_call_getrlimit(kind, ret_limit);
	return fp_shim_return(change(0, (int)kind, NULL, ret_limit));
}

FP_INTERPOSE int setrlimit(__rlimit_resource_t kind, const struct rlimit *limit)
{
	if (!is_ours((int)kind, limit))
		return fp_call_setrlimit(kind, limit);
	return fp_shim_return(change(0, (int)kind, limit, NULL));
}

FP_INTERPOSE int prlimit(pid_t pid, __rlimit_resource_t kind, const struct rlimit *limit,
                         struct rlimit *ret_old)
{
	if (!is_ours((int)kind, &kind))
		return fp_call_prlimit(pid, kind, limit, ret_old);
	return fp_shim_return(change(pid, (int)kind, limit, ret_old));
}

_Static_assert(sizeof(struct rlimit) == sizeof(struct rlimit64), "one struct by two names");

FP_INTERPOSE int getrlimit64(__rlimit_resource_t kind, struct rlimit64 *ret_limit)
{
	return getrlimit(kind, (struct rlimit *)ret_limit);
}

FP_INTERPOSE int setrlimit64(__rlimit_resource_t kind, const struct rlimit64 *limit)
{
	return setrlimit(kind, (const struct rlimit *)limit);
}

FP_INTERPOSE int prlimit64(pid_t pid, __rlimit_resource_t kind, const struct rlimit64 *limit,
                           struct rlimit64 *ret_old)
{
	return prlimit(pid, kind, (const struct rlimit *)limit, (struct rlimit *)ret_old);
}

/* ---- what there is, as the kernel counts ---- */

/* Of all that the kernel counts, the far range counts as the program has mapped it; leases, which
 * are shared, are address space alone. Of RLIMIT_DATA the kernel's count of the range is right as
 * it is. */
static uint64_t not_counted(int i)
{
	return i == 0 ? atomic_load(&fp_transport_mapped_bytes) : 0;
}

/* Stays open: a look must not wait for the lock of descriptors, nor be a call that a filter refuses
 * later on.
 */
static int open_statm(void)
{
	int none = 0, fd = atomic_load(&limits.statm) - 1;
	uint64_t mask;

	if (fd >= 0 || getpid() != atomic_load(&limits.owner))
		return fd;
	mask = fp_local_enter_masked();
	fd = FP_FD_OPEN(open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
	if (fd >= 0 && !atomic_compare_exchange_strong(&limits.statm, &none, fd + 1)) {
		fp_fd_close(fd);
		fd = none - 1;
	}
	fp_local_leave_masked(mask);
	return fd;
}

/* The parent's, in the child of a fork. */
static void close_statm(void)
{
	int fd = atomic_exchange(&limits.statm, 0) - 1;

	if (fd >= 0)
		fp_fd_close(fd);
	atomic_store(&limits.owner, getpid());
}

/* A vfork child looks by its parent's descriptor, if that is where it was, and at its parent, as it
 * has that one's memory. */
static bool look(struct usage *ret_usage)
{
	unsigned long total, data;
	int fd = open_statm();
	char text[128];
	long n;

	if (fd < 0)
		return false;
	do {
		*(volatile char *)text = '\0';
		n = FP_RAW(SYS_pread64, fd, text, sizeof(text) - 1, 0, 0, 0);
	} while (n == -EFAULT);
	if (n <= 0)
		return false;
	text[n] = '\0';
	if (sscanf(text, "%lu %*u %*u %*u %*u %lu", &total, &data) != 2)
		return false;
	ret_usage->bytes[0] = total * FP_PAGE_SIZE;
	ret_usage->bytes[1] = data * FP_PAGE_SIZE;
	for (int i = 0; i < 2; i++)
		ret_usage->bytes[i] -= FP_MIN(not_counted(i), ret_usage->bytes[i]);
	return true;
}

/* Where it can't be looked at just now, or at all: as at the last time. */
static uint64_t used(int i)
{
	struct usage now;

	if (look(&now))
		for (int k = 0; k < 2; k++)
			atomic_store(&limits.program[k],
			             now.bytes[k] - FP_MIN(atomic_load(&limits.own[k]), now.bytes[k]));
	return atomic_load(&limits.program[i]) +
	       (i == 0 ? fp_space_mapped_bytes(fp_agent_space(fp_shim_agent())) : 0);
}

static bool refuses(int i, size_t len)
{
	struct rlimit now = {0, 0};

	if (kernel_get(0, kinds[i], &now) < 0 || !is_marked(now.rlim_cur))
		return false;
	return used(i) + len > to_program(now.rlim_cur) + SLACK_BYTES;
}

bool fp_limits_refuse(size_t len, int prot, int flags)
{
	bool is_data = (prot & PROT_WRITE) && (flags & MAP_TYPE) == MAP_PRIVATE;
	int saved = errno;
	bool refused;

	if (!atomic_load_explicit(&limits.marked, memory_order_relaxed) || !fp_shim_agent() ||
	    fp_local_is_agent())
		return false;
	refused = refuses(0, len) || (is_data && refuses(1, len));
	errno = saved;
	return refused;
}

/* ---- the start ---- */

static void mark(int kind)
{
	struct rlimit now = {0, 0};

	if (kernel_get(0, kind, &now) < 0 || (!is_small(now.rlim_cur) && !is_small(now.rlim_max)))
		return;
	(void)set_marked(0, kind, &now, &now);
}

void fp_limits_begin(void)
{
	struct rlimit now = {0, 0};

	close_statm();
	if (!look(&limits.before))
		limits.before = (struct usage){.bytes = {0, 0}};
	for (int i = 0; i < 2; i++) {
		mark(kinds[i]);
		if (kernel_get(0, kinds[i], &now) == 0 && is_marked(now.rlim_cur))
			atomic_store(&limits.marked, true);
	}
}

bool fp_limits_are_low(void)
{
	struct rlimit now = {0, 0};

	for (int i = 0; i < 2; i++)
		if (kernel_get(0, kinds[i], &now) == 0 && is_small(to_program(now.rlim_cur)))
			return true;
	return false;
}

void fp_limits_open(void)
{
	struct usage now;

	if (!look(&now))
		return;
	for (int i = 0; i < 2; i++)
		atomic_fetch_add(&limits.own[i], now.bytes[i] - FP_MIN(limits.before.bytes[i], now.bytes[i]));
}
