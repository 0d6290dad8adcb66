/*
 * The far address space: one range of virtual addresses, reserved and registered with userfaultfd
 * once, from which far mappings are cut. A page's number in it finds its state word at once,
 * without a search. Room: uffd. Layout calls run on the program's threads and wait (bounded by the
 * store's deadline) for pages that are in flight. The fault threads never take the layout lock.
 *
 * The caller blocks all signals first (fp_agent_enter, or the shim's bracket) and restores them
 * last: a handler that ran inside could fork, or call in here again, while this thread holds the
 * lock.
 *
 * A program may place a mapping of the kernel's (a file, shared memory) inside the range by
 * MAP_FIXED: a foreign piece. Calls on it are passed on to the kernel, but for those that would
 * leave a hole.
 *
 * All addresses and lengths are multiples of FP_PAGE_SIZE unless said otherwise. Errors are those
 * of the system call that each stands for, and what is done before an error is what the kernel
 * does.
 */
#ifndef FP_SPACE_H
#define FP_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fp_space;

enum fp_map_flags {
	FP_MAP_LAZY = 1 << 0,      /* MAP_NORESERVE: take no reservation of slots, now or later */
	FP_MAP_LOCKED = 1 << 1,    /* MAP_LOCKED */
	FP_MAP_POPULATE = 1 << 2,  /* MAP_POPULATE: as much as fits easily */
	FP_MAP_NOREPLACE = 1 << 3, /* fp_space_map_at: -EEXIST where something is mapped */
	FP_MAP_HEAP =
	    1 << 4, /* the caller is an allocator and holds its locks: while a fork is under way, lazily */
};

/* What fp_space_remap_to may do, as mremap(2). */
enum fp_remap_flags {
	FP_REMAP_MAYMOVE = 1 << 0,
	FP_REMAP_FIXED = 1 << 1,
	FP_REMAP_DONTUNMAP = 1 << 2,
};

/* The arguments of an mmap(2) that is the kernel's. */
struct fp_foreign {
	int prot, flags, fd;
	off_t offset;
};

/* The arguments of mremap(2). */
struct fp_remap {
	void *old_addr;
	size_t old_len, new_len;
	unsigned flags; /* enum fp_remap_flags */
	void *new_addr; /* with FIXED */
};

/*
 * Maps len bytes of zeros with protection prot (PROT_*), aligned to align (a power of two, at least
 * FP_PAGE_SIZE; 0: page). What is inaccessible gets its slots when it is opened. 0 and *ret_addr;
 * -ENOMEM (no address space, or no slots to back it), -EINVAL, -EAGAIN (it was to be locked, and
 * that is too much).
 */
int fp_space_map(struct fp_space *space, size_t len, size_t align, int prot, unsigned flags, void **ret_addr);

/* The same at a place of the caller's inside the range, over whatever is mapped there (MAP_FIXED).
 * -EEXIST: see FP_MAP_NOREPLACE. */
int fp_space_map_at(struct fp_space *space, void *addr, size_t len, int prot, unsigned flags);

/* Has the kernel map what at a place inside the range, over whatever is mapped there. mmap(2)'s
 * errors; then nothing was replaced, unless memory ran out on the way. Not in inline fault mode's
 * handler. */
int fp_space_map_foreign(struct fp_space *space, void *addr, size_t len, const struct fp_foreign *what);

/* munmap(2): any range inside the space, holes allowed; its slots are freed. */
int fp_space_unmap(struct fp_space *space, void *addr, size_t len);

/* madvise(MADV_DONTNEED): reads zeros afterwards, slots are freed. -ENOMEM if a part is not
 * mapped. */
int fp_space_discard(struct fp_space *space, void *addr, size_t len);

/* madvise(MADV_WILLNEED): fetches what fits below the watermark. A hint: 0 unless a part is not
 * mapped (-ENOMEM). */
int fp_space_willneed(struct fp_space *space, void *addr, size_t len);

/* madvise(MADV_PAGEOUT, MADV_COLD): these pages are the next to leave. A hint as above. */
int fp_space_pageout(struct fp_space *space, void *addr, size_t len);

/* madvise(2) with any advice that the kernel knows. -EINVAL for what far memory can't do. */
int fp_space_advise(struct fp_space *space, void *addr, size_t len, int advice);

/* mprotect(2). -ENOMEM at the first part that is not mapped, or if there are no slots for what is
 * opened. */
int fp_space_protect(struct fp_space *space, void *addr, size_t len, int prot);

/*
 * mlock2(2): the pages are brought in, unless on_fault, and do not leave until they are unlocked.
 * -ENOSPC: the policy refuses it, as at most half of the budget may be locked; the program is to
 * see ENOMEM.
 */
int fp_space_mlock(struct fp_space *space, void *addr, size_t len, bool on_fault);
/* munlock(2). */
int fp_space_munlock(struct fp_space *space, void *addr, size_t len);

/* mlockall(2), with its flags. -ENOSPC as above; nothing is locked then. */
int fp_space_mlockall(struct fp_space *space, int flags);
int fp_space_munlockall(struct fp_space *space);

/* mincore(2): bit 0 of a byte a page: it is in local memory. */
int fp_space_mincore(struct fp_space *space, void *addr, size_t len, unsigned char *vec);

/* mremap(2) of one far mapping, private anonymous; bytes move with it, whether local or remote. */
int fp_space_remap(struct fp_space *space, void *old_addr, size_t old_len, size_t new_len, unsigned flags,
                   void **ret_addr);

/*
 * The same with all that mremap(2) can do, lengths of any size. Either end may lie outside of the
 * range. -ENOTSUP: far memory can't be moved out of the range, nor a foreign piece within it;
 * -ENOSPC: it is locked, and would become more than the policy allows.
 */
int fp_space_remap_to(struct fp_space *space, const struct fp_remap *what, void **ret_addr);

/* True if addr lies in the reserved range. Lock-free; any thread, any time, signal handlers too. */
bool fp_space_owns(const struct fp_space *space, const void *addr);
/* True if [addr, addr + len) touches the reserved range. As above. */
bool fp_space_overlaps(const struct fp_space *space, const void *addr, size_t len);

/* The reserved range, end excluded: for callers who cut a range of theirs at its borders. As
 * above. */
void fp_space_range(const struct fp_space *space, char **ret_start, char **ret_end);

/* Bytes mapped now. */
uint64_t fp_space_mapped_bytes(const struct fp_space *space);

#endif
