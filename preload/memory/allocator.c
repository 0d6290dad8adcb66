/*
 * libfarpage-jemalloc.so: the C part of jemalloc, out of the distribution's static library. The
 * linker takes it because this file refers to mallocx. Room: preload/memory.
 */
#include <stddef.h>

void *mallocx(size_t size, int flags); /* declared here, as jemalloc's header would export malloc_conf too */

/*
 * jemalloc's options, which MALLOC_CONF overrides. A thread caches objects of up to 64 KiB instead
 * of 32 KiB. Objects of a far arena that are not cached cost more, because jemalloc keeps a list of
 * them. The symbol is hidden from a jemalloc of the program, which may be too old for this option.
 */
__attribute__((visibility("hidden"))) const char *malloc_conf = "tcache_max:65536";

__attribute__((used)) static void *(*const entry)(size_t size, int flags) = mallocx;
