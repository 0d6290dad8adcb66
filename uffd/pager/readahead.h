/*
 * Read-ahead: recognises threads that walk through memory in steps of equal length, forwards or
 * backwards, and says which pages to fetch ahead. Room: uffd/pager. Pure: page numbers in, page
 * numbers out.
 */
#ifndef FP_READAHEAD_H
#define FP_READAHEAD_H

#include <stdbool.h>
#include <stdint.h>

#define FP_READAHEAD_STREAMS  8u
#define FP_READAHEAD_DEFAULT  32u
#define FP_READAHEAD_MAX      63u /* with the faulting page 64: as many as one install takes */
#define FP_READAHEAD_STEP_MAX 64  /* pages */

struct fp_stream {
	uint32_t next;   /* the page whose fault continues the stream */
	uint32_t last;   /* the page of its last fault */
	int32_t step;    /* from each page to the next; 0: not known yet */
	uint32_t window; /* how many pages were fetched ahead the last time */
	uint32_t used;   /* the clock of its last use: the stream used longest ago is replaced */
};

struct fp_readahead {
	unsigned max_pages;
	uint32_t clock;
	struct fp_stream stream[FP_READAHEAD_STREAMS];
};

/*
 * Called for a fault on page. Returns how many pages to fetch as well (0: none): page + step, page
 * + 2 step and so on, where step is that of *ret_stream. The window doubles with each fault that
 * continues a stream, up to max_pages. Neighbours begin a stream at once, and larger steps when
 * they come twice. Report the number that was fetched to fp_readahead_fetched.
 */
unsigned fp_readahead_fault(struct fp_readahead *ra, uint32_t page, struct fp_stream **ret_stream);

/*
 * Called if fp_readahead_fault has returned 0, but neighbours cost little: the stream begins at
 * once. It goes downwards if the fault came below the latest one nearby, otherwise upwards. Returns
 * n, or max_pages if that is less: so many pages to bring as well.
 */
unsigned fp_readahead_begin(const struct fp_readahead *ra, struct fp_stream *stream, unsigned n);

/*
 * Called when the n pages after the stream's last fault are local or on their way: its next fault
 * is expected behind them.
 */
static inline void fp_readahead_fetched(struct fp_stream *stream, unsigned n)
{
	stream->next = stream->last + (uint32_t)stream->step * (n + 1);
}

#endif
