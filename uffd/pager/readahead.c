/* See readahead.h. */
#include "readahead.h"

#include "cleanup.h"

static struct fp_stream *find_stream(struct fp_readahead *ra, uint32_t page)
{
	struct fp_stream *oldest = &ra->stream[0];

	for (unsigned i = 0; i < FP_READAHEAD_STREAMS; i++) {
		struct fp_stream *s = &ra->stream[i];

		if (s->next == page && s->used)
			return s;
		if (s->used < oldest->used)
			oldest = s;
	}
	oldest->next = 0;
	oldest->window = 0;
	return oldest;
}

unsigned fp_readahead_fault(struct fp_readahead *ra, uint32_t page, struct fp_stream **ret_stream)
{
	struct fp_stream *s = find_stream(ra, page);
	bool continues = s->used && s->next == page;

	s->used = ++ra->clock;
	s->next = page + 1;
	s->window = continues ? FP_MIN(s->window ? s->window * 2 : 1, ra->max_pages) : 0;
	*ret_stream = s;
	return s->window;
}
