/*
 * Read-ahead: recognises threads that walk through memory page by page, and says how far ahead to
 * fetch. Room: uffd/pager. Pure: page numbers in, a number out.
 */
#ifndef FP_READAHEAD_H
#define FP_READAHEAD_H

#include <stdbool.h>
#include <stdint.h>

#define FP_READAHEAD_STREAMS 8u
#define FP_READAHEAD_DEFAULT 32u
#define FP_READAHEAD_MAX     63u /* with the faulting page 64: as many as one install takes */

struct fp_readahead {
	unsigned max_pages;
	uint32_t clock;
	struct fp_stream {
		uint32_t next;   /* the page whose fault continues the stream */
		uint32_t window; /* how many pages were fetched ahead the last time */
		uint32_t used;   /* the clock of its last use: the stream used longest ago is replaced */
	} stream[FP_READAHEAD_STREAMS];
};

/*
 * Called for a fault on page. Returns how many pages after it to fetch as well (0: none). The
 * window doubles with each fault that continues a stream, up to max_pages. Report the number that
 * was fetched to fp_readahead_fetched.
 */
unsigned fp_readahead_fault(struct fp_readahead *ra, uint32_t page, struct fp_stream **ret_stream);

/*
 * Called when n pages that follow page were fetched: the stream's next fault is expected behind
 * them.
 */
static inline void fp_readahead_fetched(struct fp_stream *stream, uint32_t page, unsigned n)
{
	stream->next = page + 1 + n;
}

#endif
