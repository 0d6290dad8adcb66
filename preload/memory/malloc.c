/*
 * The malloc family. The fast path calls jemalloc's plain functions, and the slow path calls
 * jemalloc's extended functions. Room: preload/memory. The fast path checks a thread-local word
 * (local.h) and the caller (libc_memory.h). C++'s operators come here through the C++ library.
 * If the program has an allocator of its own (owner.h), this family serves the agent alone, and an
 * allocator that only wraps the next one.
 */
#include <errno.h>
#include <jemalloc/jemalloc.h>
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "heap.h"
#include "libc_memory.h"
#include "local.h"
#include "owner.h"
#include "shim.h"
#include "store.h"

#define likely(x) __builtin_expect(!!(x), 1)

/*
 * False for a size of 0, because 0 - 1 is the largest number. So a size of 0 takes the slow path.
 */
static inline bool is_plain(size_t size, const void *caller)
{
	return likely(size - 1 < fp_local.fast_below) && likely(!fp_libc_memory_is_loader(caller));
}

/* The calling code. Some callers get local memory: see fp_heap_flags. */
#define CALLER __builtin_return_address(0)

static inline void *or_enomem(void *p)
{
	if (!likely(p))
		errno = ENOMEM;
	return p;
}

/*
 * Every block is aligned for any type, as the C library's is: programs tag pointers, and compilers
 * rely on it. jemalloc aligns blocks of up to 8 bytes less.
 */
#define MIN_BYTES 9u

static inline size_t at_least_min(size_t size)
{
	return size < MIN_BYTES ? MIN_BYTES : size;
}

static inline void *allocate(size_t size, const void *caller)
{
	if (is_plain(size, caller))
		return fp_heap_calls.malloc(at_least_min(size));
	return or_enomem(mallocx(at_least_min(size), fp_heap_flags(size, caller)));
}

FP_INTERPOSE void *malloc(size_t size)
{
	return allocate(size, CALLER);
}

FP_INTERPOSE void free(void *ptr)
{
	if (likely(fp_local.fast_below))
		fp_heap_calls.free(ptr);
	else if (ptr)
		dallocx(ptr, fp_heap_free_flags());
}

FP_INTERPOSE void *calloc(size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes))
		return or_enomem(NULL);
	if (is_plain(bytes, CALLER))
		return bytes < FP_HEAP_DISCARD_FROM ? fp_heap_calls.calloc(1, at_least_min(bytes))
		                                    : fp_heap_zeroed(bytes);
	return or_enomem(mallocx(at_least_min(bytes), fp_heap_flags(bytes, CALLER) | MALLOCX_ZERO));
}

/* Reallocates between local and far memory. jemalloc's realloc might grow in place instead. */
static void *move(void *ptr, size_t size, const void *caller)
{
	size_t old_size = sallocx(ptr, 0);
	void *p = allocate(size, caller);

	if (!p)
		return NULL;
	memcpy(p, ptr, size < old_size ? size : old_size);
	free(ptr);
	return p;
}

static void *resize(void *ptr, size_t size, const void *caller)
{
	if (!ptr)
		return allocate(size, caller);
	if (size == 0) {
		free(ptr);
		return NULL;
	}
	if (fp_heap_must_move(ptr, size, caller))
		return move(ptr, size, caller);
	if (is_plain(size, caller))
		return or_enomem(fp_heap_calls.realloc(ptr, at_least_min(size)));
	return or_enomem(rallocx(ptr, at_least_min(size), fp_heap_flags(size, caller)));
}

FP_INTERPOSE void *realloc(void *ptr, size_t size)
{
	return resize(ptr, size, CALLER);
}

/* Our own code calls this name instead, as with strdup in libc_memory.c. */
void *__wrap_reallocarray(void *ptr, size_t n, size_t size);

static void *resize_array(void *ptr, size_t n, size_t size, const void *caller)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes))
		return or_enomem(NULL);
	return resize(ptr, bytes, caller);
}

void *__wrap_reallocarray(void *ptr, size_t n, size_t size)
{
	return resize_array(ptr, n, size, CALLER);
}

/* A program's own allocator may lack this function. The C library's version calls that
 * allocator. */
FP_INTERPOSE void *reallocarray(void *ptr, size_t n, size_t size)
{
	return fp_owner_file() ? FP_NEXT(reallocarray)(ptr, n, size) : resize_array(ptr, n, size, CALLER);
}

static bool is_power_of_2(size_t n)
{
	return n && !(n & (n - 1));
}

/* At least n, which is at most SIZE_MAX / 2 + 1. */
static size_t next_power_of_2(size_t n)
{
	return n <= 1 ? 1 : (size_t)1 << (CHAR_BIT * sizeof(n) - (size_t)__builtin_clzl(n - 1));
}

/* Like the C library, takes the next power of 2. */
static void *allocate_aligned(size_t alignment, size_t size, const void *caller)
{
	if (alignment > SIZE_MAX / 2 + 1) {
		errno = EINVAL;
		return NULL;
	}
	return or_enomem(
	    mallocx(at_least_min(size), (is_plain(size, caller) ? 0 : fp_heap_flags(size, caller)) |
	                                    MALLOCX_ALIGN(next_power_of_2(alignment))));
}

FP_INTERPOSE void *aligned_alloc(size_t alignment, size_t size)
{
	return allocate_aligned(alignment, size, CALLER);
}

FP_INTERPOSE int posix_memalign(void **ret_ptr, size_t alignment, size_t size)
{
	int saved = errno;
	void *p;

	if (!is_power_of_2(alignment) || alignment % sizeof(void *))
		return EINVAL;
	p = allocate_aligned(alignment, size, CALLER);
	errno = saved;
	if (!p)
		return ENOMEM;
	*ret_ptr = p;
	return 0;
}

FP_INTERPOSE void *memalign(size_t alignment, size_t size)
{
	return allocate_aligned(alignment, size, CALLER);
}

FP_INTERPOSE void *valloc(size_t size)
{
	return allocate_aligned(FP_PAGE_SIZE, size, CALLER);
}

FP_INTERPOSE void *pvalloc(size_t size)
{
	size_t rounded = (size + FP_PAGE_SIZE - 1) & ~(size_t)(FP_PAGE_SIZE - 1);

	return rounded < size ? or_enomem(NULL) : allocate_aligned(FP_PAGE_SIZE, rounded, CALLER);
}

FP_INTERPOSE size_t malloc_usable_size(void *ptr)
{
	return ptr ? sallocx(ptr, 0) : 0;
}

/*
 * Other names of the C library for these functions. An allocator that counts, and calls the C
 * library by them, mixes them with the names above.
 */
FP_ALSO_AS(malloc) void *__libc_malloc(size_t size);
FP_ALSO_AS(free) void __libc_free(void *ptr);
FP_ALSO_AS(free) void cfree(void *ptr);
FP_ALSO_AS(calloc) void *__libc_calloc(size_t n, size_t size);
FP_ALSO_AS(realloc) void *__libc_realloc(void *ptr, size_t size);
FP_ALSO_AS(memalign) void *__libc_memalign(size_t alignment, size_t size);
FP_ALSO_AS(valloc) void *__libc_valloc(size_t size);
FP_ALSO_AS(pvalloc) void *__libc_pvalloc(size_t size);
