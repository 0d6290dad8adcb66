/* See unheld.h. Raw system calls, as in process_memory.c. */
#include "unheld.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "abi.h"
#include "clock.h"
#include "presence.h"
#include "process_memory.h"
#include "store.h"

#define LISTS_NS (5 * FP_NSEC_PER_MSEC)
#define TRIES    3u /* the kernel may be busy with a page, or have it in a processor's own list */

/*
 * A page may be in a list of some processor, which counts as a holder. This call empties the lists
 * of all processors, before it finds that there is no such NUMA node. It is slow, and pages may be
 * held for long: so it is made for every closed page that stays, but not for every open one.
 */
static void empty_lists(void *addr, bool is_open)
{
	static _Atomic uint64_t next_ns;
	uint64_t now = fp_clock_ns();
	int nowhere = -1, status;

	if (is_open && now < atomic_load_explicit(&next_ns, memory_order_relaxed))
		return;
	atomic_store_explicit(&next_ns, now + LISTS_NS, memory_order_relaxed);
	(void)syscall(SYS_move_pages, 0, 1ul, &addr, &nowhere, &status, 0);
}

int fp_unheld_take(int mem_fd, int pagemap_fd, void *addr, bool is_open, void *ret_bytes)
{
	if (!fp_process_memory_read(mem_fd, addr, ret_bytes))
		return -EIO;
	if (fp_presence_is_shared(pagemap_fd, addr))
		return madvise(addr, FP_PAGE_SIZE, MADV_DONTNEED) < 0 ? -errno : 0;
	for (unsigned i = 0; i < TRIES; i++) {
		if (madvise(addr, FP_PAGE_SIZE, MADV_FREE) < 0)
			return i == 0 ? -errno : -EBUSY;
		/*
		 * the page may have been written before MADV_FREE made it clean, and by whom the
		 * last try met, unmarked. If this read fails, the kernel has dropped the page
		 * already, and the last copy is all there is
		 */
		(void)fp_process_memory_read(mem_fd, addr, ret_bytes);
		(void)madvise(addr, FP_PAGE_SIZE, MADV_PAGEOUT);
		if (fp_presence_is_absent(pagemap_fd, addr))
			return 0;
		if (i == 0)
			empty_lists(addr, is_open);
	}
	return -EBUSY;
}

/*
 * Lets the kernel do an atomic "or 0" on the page's first word. Unlike other ways to write, this
 * one gives EFAULT for an absent page, and waits for nobody.
 */
bool fp_unheld_touch(void *addr)
{
	uint32_t word = 0;

	return syscall(SYS_futex, &word, FUTEX_WAKE_OP_PRIVATE, 0, 0, addr,
	               FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_LT, 0)) >= 0 ||
	       errno != EFAULT;
}

void fp_unheld_close(void *addr, size_t len, int prot)
{
	while (mprotect(addr, len, prot) < 0 && errno == ENOMEM)
		sched_yield(); /* the range is a mapping of its own, so no limit is met */
}

bool fp_unheld_keep(void *addr, int prot)
{
	bool kept;

	if (mprotect(addr, FP_PAGE_SIZE, prot | PROT_READ | PROT_WRITE) < 0)
		return true;
	kept = fp_unheld_touch(addr);
	fp_unheld_close(addr, FP_PAGE_SIZE, prot);
	return kept;
}
