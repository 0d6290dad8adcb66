/*
 * Takes the bytes of a page of private anonymous memory, and drops the page only if nobody else
 * holds it. Room: uffd/kernel. For memory from which UFFDIO_MOVE can't take a page. The caller sees
 * to it that no thread of the program can write to the page meanwhile.
 *
 * The proof is the kernel's. It may discard a page that was given MADV_FREE, and MADV_PAGEOUT asks
 * it to do so at once. It discards the page only if its reference count is that of its mappings
 * alone, and it is not dirty (mm/rmap.c, try_to_unmap_one, from Linux 5.18 on). So a page that
 * vanishes was held by nobody at that time. Who wrote to it by a reference before has mostly marked
 * it dirty. doc/kernel.md names the gaps: all of them are writes that end meanwhile.
 *
 * A page that a forked child shares is dropped at once: the kernel pins no such page. Whoever wants
 * to pin it gets a copy of its own first (mm/gup.c, gup_must_unshare, from Linux 5.19 on).
 */
#ifndef FP_UNHELD_H
#define FP_UNHELD_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Copies a present page to ret_bytes, and drops it. 0: done. -EBUSY: the page is still there, and
 * the kernel may drop it at any time until fp_unheld_keep. Nothing has changed after -EINVAL (the
 * page is locked), -EPERM (sealed, or a filter forbids madvise) and -EIO (the page can't be read).
 * is_open: the program can read and write the page, so keeping it opens nothing. Then -EBUSY may be
 * wrong for a few milliseconds, which is cheaper.
 */
int fp_unheld_take(int mem_fd, int pagemap_fd, void *addr, bool is_open, void *ret_bytes);

/*
 * Ends the kernel's right to drop the page: makes the page dirty, without a change to any byte. The
 * page must not be write-protected by userfaultfd. False: the page is absent, or it can't be
 * written.
 */
bool fp_unheld_touch(void *addr);

/*
 * The same for a page whose protection is prot. For that time the page is writable. False: the
 * kernel has dropped it before that, and the bytes that fp_unheld_take copied are right.
 */
bool fp_unheld_keep(void *addr, int prot);

/*
 * mprotect(2) of a range that was opened before. Waits while the kernel has no memory for its own
 * tables.
 */
void fp_unheld_close(void *addr, size_t len, int prot);

#endif
