/*
 * libfarpage-jemalloc.so: the C part of jemalloc, out of the distribution's static library. The
 * reference to mallocx makes the linker take it. Room: preload/memory.
 */
#include <stddef.h>

void *mallocx(size_t size, int flags); /* declared here, as jemalloc's header would export malloc_conf too */

/*
 * jemalloc's options, which MALLOC_CONF overrides. A thread caches objects of up to 64 KiB instead
 * of 32 KiB: without a cache, objects of a far arena cost more, as jemalloc keeps a list of them.
 * The symbol is hidden from a jemalloc of the program, which may be too old for this option.
 */
__attribute__((visibility("hidden"))) const char *malloc_conf = "tcache_max:65536";

__attribute__((used)) static void *(*const entry)(size_t size, int flags) = mallocx;
