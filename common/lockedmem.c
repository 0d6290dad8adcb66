/*
 * Locked memory. Room: common. A limit that is too low costs latency under memory pressure, not
 * correctness.
 */
#include "lockedmem.h"

#include <linux/capability.h>
#include <stdatomic.h>
#include <stdint.h>
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

/*
 * What this process has locked here: no lock is inherited by a fork. Each entry is one piece, and 0
 * where there is none. Where all are taken, more is not locked.
 */
struct piece {
	_Atomic uintptr_t start; /* page aligned; 1: being written */
	_Atomic size_t len;
	atomic_bool on_fault;
};

static struct piece pieces[FP_LOCKEDMEM_PIECES];
static atomic_uint n_pieces; /* no entry was ever used from here on */
static _Atomic size_t locked;
static _Atomic pid_t whose;

#define BEING_WRITTEN 1u

static size_t whole_pages(size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (len + page - 1) / page * page;
}

static void forget_parents(void)
{
	pid_t self = getpid();

	if (atomic_exchange(&whose, self) == self)
		return;
	for (unsigned i = 0, n = atomic_exchange(&n_pieces, 0); i < n; i++)
		atomic_store(&pieces[i].start, 0);
	atomic_store(&locked, 0);
}

static bool may_lock(size_t len)
{
	struct rlimit limit;

	return is_beyond_limits() || getrlimit(RLIMIT_MEMLOCK, &limit) < 0 ||
	       limit.rlim_cur == RLIM_INFINITY || atomic_load(&locked) + len <= limit.rlim_cur / 2;
}

static bool is_known(const void *mem)
{
	for (unsigned i = 0, n = atomic_load(&n_pieces); i < n; i++)
		if (atomic_load(&pieces[i].start) == (uintptr_t)mem)
			return true;
	return false;
}

static struct piece *take_entry(void)
{
	uintptr_t none;
	unsigned n;

	for (unsigned i = 0; i < FP_LOCKEDMEM_PIECES; i++) {
		none = 0;
		if (!atomic_compare_exchange_strong(&pieces[i].start, &none, BEING_WRITTEN))
			continue;
		n = atomic_load(&n_pieces);
		while (n <= i && !atomic_compare_exchange_weak(&n_pieces, &n, i + 1))
			;
		return &pieces[i];
	}
	return NULL;
}

static bool lock_now(void *mem, size_t len, bool on_fault)
{
	return (on_fault ? mlock2(mem, len, MLOCK_ONFAULT) : mlock(mem, len)) == 0;
}

void fp_lockedmem_lock(void *mem, size_t len, bool on_fault)
{
	struct piece *piece;

	len = whole_pages(len);
	forget_parents();
	if (!may_lock(len) || is_known(mem))
		return;
	piece = take_entry();
	if (!piece)
		return;
	if (!lock_now(mem, len, on_fault)) {
		atomic_store(&piece->start, 0);
		return;
	}
	atomic_store(&piece->len, len);
	atomic_store(&piece->on_fault, on_fault);
	atomic_fetch_add(&locked, len);
	atomic_store(&piece->start, (uintptr_t)mem);
}

void fp_lockedmem_forget(const void *mem, size_t len)
{
	forget_parents();
	for (unsigned i = 0, n = atomic_load(&n_pieces); i < n; i++) {
		uintptr_t start = atomic_load(&pieces[i].start);
		size_t piece_len = atomic_load(&pieces[i].len);

		if (start - (uintptr_t)mem < len &&
		    atomic_compare_exchange_strong(&pieces[i].start, &start, 0))
			atomic_fetch_sub(&locked, piece_len);
	}
}

void fp_lockedmem_again(void)
{
	forget_parents();
	for (unsigned i = 0, n = atomic_load(&n_pieces); i < n; i++) {
		uintptr_t start = atomic_load(&pieces[i].start);
		size_t len = atomic_load(&pieces[i].len);

		if (start <= BEING_WRITTEN)
			continue;
		(void)lock_now((void *)start, len, atomic_load(&pieces[i].on_fault));
		if (atomic_load(&pieces[i].start) != start) /* it has gone meanwhile, and may be another's */
			munlock((void *)start, len);
	}
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
	fp_lockedmem_forget(mem, len);
	munmap(mem, whole_pages(len));
}
