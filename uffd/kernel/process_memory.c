/*
 * See process_memory.h. Uses raw system calls: if the C library's functions were called, the shim
 * would answer as it answers the program.
 */
#include "process_memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "presence.h"
#include "store.h"

static char zeros[FP_PAGE_SIZE]; /* never written */

/*
 * Reads or writes our own memory by a call that is meant for other processes: number is
 * process_vm_readv or process_vm_writev.
 */
static ssize_t copy_as_other(long number, void *ours, void *theirs, size_t len)
{
	struct iovec local = {.iov_base = ours, .iov_len = len};
	struct iovec remote = {.iov_base = theirs, .iov_len = len};

	return syscall(number, getpid(), &local, 1, &remote, 1, 0);
}

int fp_process_memory_check(void)
{
	char from = 0, to;

	return copy_as_other(SYS_process_vm_readv, &to, &from, 1) == 1 ? 0 : -errno;
}

bool fp_process_memory_read(int mem_fd, void *addr, void *ret_bytes)
{
	if (mem_fd >= 0)
		return pread(mem_fd, ret_bytes, FP_PAGE_SIZE, (off_t)(uintptr_t)addr) == FP_PAGE_SIZE;
	/* unlike /proc/self/mem, these calls wait for an absent page, and so for us */
	return fp_presence_is_here(-1, addr) &&
	       copy_as_other(SYS_process_vm_readv, ret_bytes, addr, FP_PAGE_SIZE) == FP_PAGE_SIZE;
}

bool fp_process_memory_clear(int mem_fd, void *addr)
{
	if (mem_fd >= 0)
		return pwrite(mem_fd, zeros, FP_PAGE_SIZE, (off_t)(uintptr_t)addr) == FP_PAGE_SIZE;
	return fp_presence_is_here(-1, addr) &&
	       copy_as_other(SYS_process_vm_writev, zeros, addr, FP_PAGE_SIZE) == FP_PAGE_SIZE;
}
