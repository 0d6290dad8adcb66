/*
 * libfarpage-jemalloc.so: the C part of the distribution's archive of jemalloc, which this
 * reference takes out of it. Room: preload.
 */
#include <stddef.h>

void *mallocx(size_t size, int flags); /* its header would export the next one as well */

/*
 * jemalloc's options, which MALLOC_CONF overrides: a thread keeps objects of up to 64 KiB at hand,
 * not of 32 KiB, as those of a far arena that are not cost more: jemalloc keeps a list of them.
 * Hidden, so that a jemalloc of the program's own, which may be too old to know it, does not read
 * this.
 */
__attribute__((visibility("hidden"))) const char *malloc_conf = "tcache_max:65536";

__attribute__((used)) static void *(*const entry)(size_t size, int flags) = mallocx;
