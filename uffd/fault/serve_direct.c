/*
 * Faults where the store is mapped: all ends here and now, and neighbours are installed by one
 * call. See serve.h.
 */
#include "serve.h"

const char *fp_serve_direct_bytes(struct fp_server *sv, uint64_t slot)
{
	fp_store_slot_count(sv->far->store, slot, FP_IO_READ);
	return fp_store_slot_direct(sv->far->store, slot);
}

/* Pages that are installed by one call: neighbours here and, unless they are zeros, there. */
struct run {
	uint32_t page;
	unsigned n;
	const char *bytes;
	bool zero;
	bool writable;
};

static void run_install(struct fp_server *sv, struct run *run)
{
	if (run->n)
		fp_far_install(sv->far, run->page, run->n, run->bytes, run->writable);
	run->n = 0;
}

static void run_add(struct fp_server *sv, struct run *run, uint32_t page, const char *bytes, bool writable)
{
	bool joins = run->n && run->writable == writable &&
	             (run->zero || bytes == run->bytes + (size_t)run->n * FP_PAGE_SIZE);

	if (!joins) {
		run_install(sv, run);
		run->page = page;
		run->bytes = bytes;
		run->writable = writable;
	}
	run->n++;
}

/* Adds up to want pages behind page to the run while they are of its kind; returns how many. Tokens
 * are taken. */
static unsigned run_ahead(struct fp_server *sv, struct run *run, uint32_t page, unsigned want, bool write)
{
	struct fp_far *far = sv->far;
	unsigned n = 0, tokens = want ? fp_serve_room(sv, want) : 0;

	while (n < tokens) {
		uint32_t p = page + 1 + n;
		uint64_t old;
		struct fp_page_step s;

		fp_far_touch(far, p);
		s = fp_pager_apply(&far->words[p], run->zero ? FP_EV_PREZERO : FP_EV_PREFETCH, &old);
		if (s.action == FP_ACT_NONE)
			break;
		if (run->zero)
			run_add(sv, run, p, fp_zeros, write);
		else
			run_add(sv, run, p, fp_serve_direct_bytes(sv, fp_page_slot(old)),
			        fp_page_expects_write(old));
		n++;
	}
	fp_budget_give(&far->room, tokens - n);
	fp_count(&far->stats->prefetched_pages, n);
	if (!run->zero)
		fp_count(&far->stats->fetched_bytes, (uint64_t)n * FP_PAGE_SIZE);
	return n;
}

void fp_serve_direct(struct fp_server *sv, struct fp_arrival *a)
{
	struct run run = {.zero = a->zero};
	struct fp_stream *stream;
	unsigned ahead = fp_serve_ahead(sv, a->page, &stream);
	const char *bytes = a->zero ? fp_zeros : fp_serve_direct_bytes(sv, a->io.slot);

	run_add(sv, &run, a->page, bytes, a->writable);
	if (ahead)
		fp_readahead_fetched(stream, a->page, run_ahead(sv, &run, a->page, ahead, a->writable));
	run_install(sv, &run);
	if (!a->zero)
		fp_count(&sv->far->stats->fetched_bytes, FP_PAGE_SIZE);
	fp_serve_count(sv, a);
	fp_arrival_put(sv, a);
}
