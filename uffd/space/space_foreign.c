/*
 * Foreign pieces: the kernel's mappings inside the far range. Room: uffd/space; see space_priv.h.
 *
 * The range must never get a hole, where the kernel could place another mapping. So a single system
 * call maps a new piece and ends the old one. When a foreign piece ends, a single system call
 * replaces it by inaccessible memory.
 */
#include "space_priv.h"

#include <errno.h>
#include <sys/mman.h>

#include "cleanup.h"

/*
 * Unregisters pages whose mapping the kernel will replace: otherwise the fault thread would get an
 * event about that. Fails only for unmapped pages.
 */
static void expect_no_event(struct fp_space *space, uint32_t start, uint32_t end)
{
	(void)fp_uffd_unregister(&space->far->uffd, fp_far_addr(space->far, start),
	                         (size_t)(end - start) << FP_PAGE_SHIFT);
}

int fp_space_close(struct fp_space *space, uint32_t start, uint32_t end)
{
	char *addr = fp_far_addr(space->far, start);
	size_t len = (size_t)(end - start) << FP_PAGE_SHIFT;

	expect_no_event(space, start, end);
	if (mmap(addr, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
	    MAP_FAILED)
		return -errno;
	madvise(addr, len, MADV_NOHUGEPAGE);
	madvise(addr, len, MADV_DONTDUMP);
	madvise(addr, len, MADV_DONTFORK); /* see fp_far_inherit */
	/*
	 * a bare mremap may have grown a mapping into a hole without an event, and have left far
	 * pages there
	 */
	fp_space_forget(space, start, end);
	return fp_uffd_register(&space->far->uffd, addr, len);
}

/*
 * Checks that the kernel can make this mapping: maps the same elsewhere, and unmaps it. Without
 * this check, a mapping that fails would cost the old one, which could not be restored.
 */
static int rehearse(size_t len, const struct fp_foreign *what)
{
	const int skipped = MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_POPULATE;
	void *p = mmap(NULL, len, what->prot, what->flags & ~skipped, what->fd, what->offset);

	if (p == MAP_FAILED)
		return -errno;
	munmap(p, len);
	return 0;
}

static int map_over(struct fp_space *space, uint32_t start, uint32_t end, const struct fp_foreign *what)
{
	struct fp_piece piece = {.start = start, .end = end, .flags = FP_PIECE_FOREIGN, .lazy = true};
	size_t len = (size_t)(end - start) << FP_PAGE_SHIFT;
	int flags = (what->flags & ~MAP_FIXED_NOREPLACE) | MAP_FIXED, r;
	uint64_t none;

	/* before the kernel maps: from now on nothing is read ahead there */
	if (!fp_space_end_filled(space, start, end))
		return -ENOMEM;
	r = fp_layout_add(&space->layout, piece);
	if (r < 0)
		return r;
	expect_no_event(space, start, end);
	if (mmap(fp_far_addr(space->far, start), len, what->prot, flags, what->fd, what->offset) ==
	    MAP_FAILED) {
		r = -errno;
		if (fp_space_close(space, start, end) == 0)
			fp_layout_remove(&space->layout, start, end, &none);
	}
	/* faults that began before the piece was added have ended, or are undone here */
	fp_space_forget(space, start, end);
	return r;
}

int fp_space_map_foreign(struct fp_space *space, void *addr, size_t len, const struct fp_foreign *what)
{
	uint64_t reserved = 0;
	uint32_t start, end;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r == 0)
		r = rehearse(len, what);
	if (r < 0)
		return r;
	fp_space_lock(space);
	if ((what->flags & MAP_FIXED_NOREPLACE) && !fp_layout_is_free(&space->layout, start, end))
		r = -EEXIST;
	if (r == 0 && !fp_space_end_filled(space, start, end)) /* map_over needs it: fail with nothing lost */
		r = -ENOMEM;
	if (r == 0)
		r = fp_space_remove(space, start, end, &reserved);
	if (r == 0)
		r = map_over(space, start, end, what);
	fp_space_unlock(space);
	fp_space_unback(space, reserved);
	return r;
}
