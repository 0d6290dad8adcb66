/* See readahead.h. */
#include "readahead.h"

#include <stdlib.h>

#include "cleanup.h"

/* The step from the stream's last fault to page, if it is short enough; else 0. */
static int32_t step_to(const struct fp_stream *s, uint32_t page)
{
	int64_t step = (int64_t)page - s->last;

	return llabs(step) <= FP_READAHEAD_STEP_MAX ? (int32_t)step : 0;
}

static bool is_next_to(const struct fp_stream *s, uint32_t page)
{
	return !s->window && (page == s->last + 1 || page + 1 == s->last);
}

/*
 * Replaces the stream used longest ago. The step of the new one is a guess: the step from the
 * latest fault nearby. It counts once the next fault confirms it.
 */
static struct fp_stream *begin(struct fp_readahead *ra, uint32_t page)
{
	struct fp_stream *oldest = &ra->stream[0];
	uint32_t latest = 0;
	int32_t step = 0;

	for (unsigned i = 0; i < FP_READAHEAD_STREAMS; i++) {
		struct fp_stream *s = &ra->stream[i];

		if (s->used < oldest->used)
			oldest = s;
		if (s->used > latest && step_to(s, page)) {
			latest = s->used;
			step = step_to(s, page);
		}
	}
	*oldest = (struct fp_stream){.step = step};
	return oldest;
}

/* The stream that page continues, and its step. NULL: there is none. */
static struct fp_stream *find_stream(struct fp_readahead *ra, uint32_t page, int32_t *ret_step)
{
	struct fp_stream *neighbour = NULL;

	for (unsigned i = 0; i < FP_READAHEAD_STREAMS; i++) {
		struct fp_stream *s = &ra->stream[i];

		if (s->used && s->step && s->next == page) {
			*ret_step = s->step;
			return s;
		}
		if (s->used && is_next_to(s, page))
			neighbour = s;
	}
	if (neighbour)
		*ret_step = step_to(neighbour, page);
	return neighbour;
}

unsigned fp_readahead_fault(struct fp_readahead *ra, uint32_t page, struct fp_stream **ret_stream)
{
	int32_t step = 0;
	struct fp_stream *s = find_stream(ra, page, &step);

	if (s) {
		s->step = step;
		s->window = FP_MIN(s->window ? s->window * 2 : 1, ra->max_pages);
	} else {
		s = begin(ra, page);
	}
	s->used = ++ra->clock;
	s->last = page;
	fp_readahead_fetched(s, 0);
	*ret_stream = s;
	return s->window;
}

unsigned fp_readahead_begin(const struct fp_readahead *ra, struct fp_stream *stream, unsigned n)
{
	stream->step = stream->step < 0 ? -1 : 1;
	stream->window = FP_MIN(n, ra->max_pages);
	fp_readahead_fetched(stream, 0);
	return stream->window;
}
