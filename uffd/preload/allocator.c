/*
 * libfarpage-jemalloc.so: the C part of the distribution's archive of jemalloc, which this reference takes
 * out of it. Room: uffd/preload.
 */
#include <jemalloc/jemalloc.h>

__attribute__((used)) static void *(*const entry)(size_t size, int flags) = mallocx;
