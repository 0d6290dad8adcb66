/*
 * Locked memory. Room: common. If RLIMIT_MEMLOCK is too low, some of this memory is not locked.
 * Then faults are slower when the machine lacks memory, but they are still correct.
 */
#include "lockedmem.h"

#include <linux/capability.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* True if RLIMIT_MEMLOCK does not apply (CAP_IPC_LOCK). Asked once, while the process begins. */
static bool is_beyond_limits(void)
{
	static atomic_int known; /* 0: not asked yet; 1: the limit does not apply; 2: it applies */
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2] = {{0}};

	if (!atomic_load(&known))
		atomic_store(
		    &known,
		    syscall(SYS_capget, &head, caps) == 0 && caps[0].effective >> CAP_IPC_LOCK & 1 ? 1 : 2);
	return atomic_load(&known) == 1;
}

/*
 * An upper bound of the number of bytes that are locked. A child of fork inherits this number, but
 * not the locks. After the first refusal (is_full) nothing more is locked.
 */
static _Atomic size_t locked;
static atomic_bool is_full;

static size_t whole_pages(size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (len + page - 1) / page * page;
}

/* How many bytes may be locked in all. */
static size_t share(void)
{
	struct rlimit limit;

	if (is_beyond_limits() || getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
		return SIZE_MAX;
	return limit.rlim_cur / 2;
}

void fp_lockedmem_lock(void *mem, size_t len, bool on_fault)
{
	size_t most = share();

	len = whole_pages(len);
	if (len > most || atomic_load(&is_full))
		return;
	if (atomic_fetch_add(&locked, len) > most - len ||
	    (on_fault ? mlock2(mem, len, MLOCK_ONFAULT) : mlock(mem, len)) < 0)
		atomic_store(&is_full, true);
}

void fp_lockedmem_forget(size_t len)
{
	len = whole_pages(len);
	if (len <= share())
		atomic_fetch_sub(&locked, len);
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
		fp_lockedmem_lock(mem, len, false);
	return mem;
}

void *fp_lockedmem_lazy(size_t len)
{
	void *mem = map(len, 0);

	if (mem)
		fp_lockedmem_lock(mem, len, true);
	return mem;
}

void fp_lockedmem_free(void *mem, size_t len)
{
	if (!mem)
		return;
	fp_lockedmem_forget(len);
	munmap(mem, whole_pages(len));
}
