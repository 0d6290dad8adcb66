/*
 * Copies of pages that no thread reads soon. Room: common. On x86-64 they do not pass through the
 * cache. The processor need not read the target first, and the program's lines stay cached. Other
 * processors have memcpy. doc/performance.md has the gain.
 */
#ifndef FP_STREAMCOPY_H
#define FP_STREAMCOPY_H

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#ifdef __x86_64__

#include <emmintrin.h>

#define FP_STREAM_LINE 64u /* bytes of a line of the cache */

/*
 * Copies len bytes. len and both addresses are multiples of 64. Meanwhile fetches len bytes of next
 * into the cache: next is the source of the following copy. Other threads may read the target only
 * after fp_stream_end. Any thread; no errors.
 */
static inline void fp_stream_copy(void *to, const void *from, const void *next, size_t len)
{
	for (size_t at = 0; at < len; at += FP_STREAM_LINE) {
		const __m128i *source = (const void *)((const char *)from + at);
		__m128i *target = (void *)((char *)to + at);
		__m128i a = _mm_load_si128(source), b = _mm_load_si128(source + 1),
		        c = _mm_load_si128(source + 2), d = _mm_load_si128(source + 3);

		_mm_prefetch((const char *)next + at, _MM_HINT_T0);
		_mm_stream_si128(target, a);
		_mm_stream_si128(target + 1, b);
		_mm_stream_si128(target + 2, c);
		_mm_stream_si128(target + 3, d);
	}
}

/* What was copied before is seen before what this thread stores from now on. */
static inline void fp_stream_end(void)
{
	_mm_sfence();
}

#else

static inline void fp_stream_copy(void *to, const void *from, const void *next, size_t len)
{
	(void)next;
	memcpy(to, from, len);
}

static inline void fp_stream_end(void)
{
	atomic_thread_fence(memory_order_release);
}

#endif

#endif
