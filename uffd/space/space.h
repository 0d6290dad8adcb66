/*
 * The far address space: one range of virtual addresses, reserved once and registered with
 * userfaultfd. Far mappings are cut from it. A page's number in the range is the index of its word.
 * Room: uffd/space. Layout calls run on the program's threads. They wait for pages in flight, at
 * most the store's deadline. The fault threads never take the layout lock.
 *
 * The caller blocks all signals first (fp_agent_enter, or the shim's bracket) and restores them
 * last. Otherwise a handler could fork, or call in here again, while its thread holds the lock.
 *
 * A program may place one of the kernel's mappings (a file, shared memory) inside the range by
 * MAP_FIXED: a foreign piece. Calls on it go to the kernel, unless they would leave a hole.
 *
 * All addresses and lengths are multiples of FP_PAGE_SIZE unless said otherwise. Each function
 * returns the errors of its system call. A call that fails half-way has done what the kernel would
 * have done until then.
 */
#ifndef FP_SPACE_H
#define FP_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fp_space;

enum fp_map_flags {
	FP_MAP_LAZY = 1 << 0,      /* MAP_NORESERVE: reserve no slots, now or later */
	FP_MAP_POPULATE = 1 << 2,  /* MAP_POPULATE: bring in as much as fits easily */
	FP_MAP_NOREPLACE = 1 << 3, /* fp_space_map_at: -EEXIST if something is mapped there */
	FP_MAP_HEAP =
	    1 << 4, /* the caller is an allocator and holds its locks: reserves no slots during a fork */
};

/* The flags of fp_space_remap_to: see mremap(2). */
enum fp_remap_flags {
	FP_REMAP_MAYMOVE = 1 << 0,
	FP_REMAP_FIXED = 1 << 1,
};

/* The arguments of an mmap(2) that the kernel itself serves. */
struct fp_foreign {
	int prot, flags, fd;
	off_t offset;
};

/* The arguments of mremap(2). */
struct fp_remap {
	void *old_addr;
	size_t old_len, new_len;
	unsigned flags; /* enum fp_remap_flags */
	void *new_addr; /* the new place, with FP_REMAP_FIXED */
};

/*
 * Maps len bytes of zeros with protection prot (PROT_*), aligned to align (a power of two, at least
 * FP_PAGE_SIZE; 0: a page). With PROT_NONE, the slots are reserved later, when mprotect makes the
 * memory writable. Returns 0 and *ret_addr, -ENOMEM (no address space, or no slots), or -EINVAL
 * (len or align is wrong).
 */
int fp_space_map(struct fp_space *space, size_t len, size_t align, int prot, unsigned flags, void **ret_addr);

/*
 * Maps memory as fp_space_map does, but at addr inside the range. Replaces the mappings there
 * (MAP_FIXED). -EEXIST: see FP_MAP_NOREPLACE.
 */
int fp_space_map_at(struct fp_space *space, void *addr, size_t len, int prot, unsigned flags);

/*
 * Makes the kernel map *what at addr inside the range. Replaces the mappings there. Returns
 * mmap(2)'s errors. After an error nothing was replaced, unless memory ran out midway. Must not be
 * called in the SIGBUS handler of fault mode inline.
 */
int fp_space_map_foreign(struct fp_space *space, void *addr, size_t len, const struct fp_foreign *what);

/* munmap(2): any range inside the space, holes allowed. Frees its slots. */
int fp_space_unmap(struct fp_space *space, void *addr, size_t len);

/*
 * madvise(2) with any advice that the kernel knows. -EINVAL if far memory can't follow it; -ENOMEM
 * if a part is not mapped. DONTNEED frees slots. WILLNEED fetches as many pages as fit easily.
 * After PAGEOUT and COLD these pages leave next.
 */
int fp_space_advise(struct fp_space *space, void *addr, size_t len, int advice);

/*
 * mprotect(2). -ENOMEM at the first part that is not mapped. -ENOMEM also if there are no slots for
 * memory that becomes writable.
 */
int fp_space_protect(struct fp_space *space, void *addr, size_t len, int prot);

/*
 * mlock2(2). Locked memory becomes the kernel's own, with its bytes: a foreign piece, outside of
 * the budget, until it is unmapped. -EAGAIN: a node can't give a page back.
 */
int fp_space_mlock(struct fp_space *space, void *addr, size_t len, bool on_fault);

/*
 * Lends memory to the kernel, which keeps plain references to its pages (vmsplice): UFFDIO_MOVE
 * does not see these. The whole pages become the kernel's own, with their bytes, until they are
 * unmapped. At most a quarter of the budget may be lent at any time. Returns 0, -ENOMEM (it would
 * be more, or the kernel has too many mappings) or -EAGAIN (a node can't give a page back).
 */
int fp_space_lend(struct fp_space *space, void *addr, size_t len);
/* munlock(2): the kernel unlocks, and the memory stays a foreign piece. */
int fp_space_munlock(struct fp_space *space, void *addr, size_t len);

/*
 * Makes memory local until it is unmapped, as fp_space_mlock does, but lets the kernel lock
 * nothing: no limit bounds it. For kernel code that can't wait for a page, or keeps one by a
 * reference that nobody sees. Skips unmapped parts. -EAGAIN: a node can't give a page back;
 * -ENOMEM: too many mappings. Then the page that failed and all after it are far, as before.
 */
int fp_space_hold(struct fp_space *space, void *addr, size_t len);

/* mincore(2): bit 0 of a page's byte says that the page is in local memory. */
int fp_space_mincore(struct fp_space *space, void *addr, size_t len, unsigned char *vec);
/*
 * msync(2): there is nothing to write. -ENOMEM tells of a hole: some programs ask in this way
 * whether memory may be read.
 */
int fp_space_msync(struct fp_space *space, void *addr, size_t len, int flags);

/*
 * mremap(2); the lengths need not be multiples of FP_PAGE_SIZE. The bytes move, local or remote.
 * The old or the new place may lie outside of the range. -ENOTSUP: no memory can move into the
 * range or out of it, and no foreign piece can move within it.
 */
int fp_space_remap_to(struct fp_space *space, const struct fp_remap *what, void **ret_addr);

/* True if addr lies in the reserved range. Lock-free; any thread, any time, signal handlers too. */
bool fp_space_owns(const struct fp_space *space, const void *addr);
/*
 * True if [addr, addr + len) touches the reserved range. Lock-free; any thread, any time, signal
 * handlers too.
 */
bool fp_space_overlaps(const struct fp_space *space, const void *addr, size_t len);

/*
 * The parts of the reserved range, ends excluded. Callers cut their own ranges at these borders.
 * The agent's own pages come first; to the calls here they are a hole in which nothing can be
 * mapped. The program's part follows, not at once if a limit has shrunk the range. Lock-free; any
 * thread, any time, signal handlers too.
 */
struct fp_space_borders {
	char *own_start, *own_end;
	char *start, *end;
};
struct fp_space_borders fp_space_borders(const struct fp_space *space);

/*
 * Shrinks the range for good, around the mapped pages, to the size that a limit (RLIMIT_AS,
 * RLIMIT_DATA) allows. -EPERM: too much is mapped, or the mappings lie too far apart. -EBUSY: a
 * call of the program has pinned pages far from them.
 */
int fp_space_fit(struct fp_space *space, int kind, uint64_t limit);

/* Bytes mapped now. */
uint64_t fp_space_mapped_bytes(const struct fp_space *space);

#endif
