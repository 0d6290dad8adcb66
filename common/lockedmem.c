/*
 * Locked memory. Room: common.
 */
#include "lockedmem.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Asked once, while the process begins. */
static bool is_beyond_limits(void)
{
	static atomic_int known; /* 1: yes, 2: no */
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2] = {{0}};

	if (!atomic_load(&known))
		atomic_store(
		    &known,
		    syscall(SYS_capget, &head, caps) == 0 && caps[0].effective >> CAP_IPC_LOCK & 1 ? 1 : 2);
	return atomic_load(&known) == 1;
}

/* What this process has locked here. No lock is inherited by a fork. */
static _Atomic size_t locked;
static _Atomic pid_t whose;

static size_t whole_pages(size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (len + page - 1) / page * page;
}

static bool may_lock(size_t len)
{
	pid_t self = getpid();
	struct rlimit limit;

	if (atomic_exchange(&whose, self) != self)
		atomic_store(&locked, 0);
	return is_beyond_limits() || getrlimit(RLIMIT_MEMLOCK, &limit) < 0 ||
	       limit.rlim_cur == RLIM_INFINITY || atomic_load(&locked) + len <= limit.rlim_cur / 2;
}

/* The kernel has a word for it: nothing that is locked can be cold. */
static bool is_locked(void *mem, size_t len)
{
	return madvise(mem, len, MADV_COLD) < 0 && errno == EINVAL;
}

/* A limit that is too low costs latency under memory pressure, not correctness. */
static void lock(void *mem, size_t len, int flags)
{
	len = whole_pages(len);
	if (may_lock(len) && (flags ? mlock2(mem, len, (unsigned)flags) : mlock(mem, len)) == 0)
		atomic_fetch_add(&locked, len);
}

static void *map(size_t len, int flags)
{
	void *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	return mem == MAP_FAILED ? NULL : mem;
}

void *fp_lockedmem_new(size_t len)
{
	void *mem = map(len, MAP_POPULATE);

	if (mem)
		lock(mem, len, 0);
	return mem;
}

void *fp_lockedmem_lazy(size_t len)
{
	void *mem = map(len, 0);

	if (mem)
		lock(mem, len, MLOCK_ONFAULT);
	return mem;
}

void fp_lockedmem_free(void *mem, size_t len)
{
	if (!mem)
		return;
	len = whole_pages(len);
	if (atomic_load(&locked) >= len && is_locked(mem, len))
		atomic_fetch_sub(&locked, len);
	munmap(mem, len);
}
