/* See audit.h. */
#include "audit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "far.h"

#define CHUNK_PAGES  (1u << FP_CHUNK_SHIFT)
#define PATIENCE_NS  (2 * FP_NSEC_PER_SEC)
#define PAGEMAP_HERE (3ull << 62) /* present or swapped */

struct books {
	struct fp_far *far;
	int pagemap;
	uint64_t resident, slots;
	char *text;
	size_t len;
};

static bool settled(enum fp_page_state state)
{
	return state == FP_PAGE_ZERO || state == FP_PAGE_RESIDENT || state == FP_PAGE_REMOTE ||
	       state == FP_PAGE_LOST;
}

static bool audit_page(struct books *b, uint32_t page, bool here)
{
	uint64_t word = atomic_load(&b->far->words[page]);
	enum fp_page_state state = fp_page_state(word);
	const char *wrong = NULL;

	if (!settled(state) || word & FP_PAGE_WAIT)
		wrong = "is under way";
	else if (state == FP_PAGE_RESIDENT && !(word & FP_PAGE_QUEUED))
		wrong = "would never be evicted";
	else if (here && (state == FP_PAGE_ZERO || state == FP_PAGE_REMOTE))
		wrong = "is present";
	else if (!here && state == FP_PAGE_RESIDENT &&
	         !atomic_load(&b->far->filled_chunks[page >> FP_CHUNK_SHIFT]))
		wrong = "is not present";
	b->resident += state == FP_PAGE_RESIDENT;
	b->slots += fp_page_slot(word) != 0;
	if (wrong)
		snprintf(b->text, b->len, "page %u, word %#" PRIx64 ", state %u, %s", page, word, state,
		         wrong);
	return !wrong;
}

static bool audit_chunk(struct books *b, uint32_t first)
{
	uint64_t entries[CHUNK_PAGES];
	off_t at = (off_t)((uintptr_t)fp_far_addr(b->far, first) / FP_PAGE_SIZE * sizeof(entries[0]));

	if (pread(b->pagemap, entries, sizeof(entries), at) != (ssize_t)sizeof(entries)) {
		snprintf(b->text, b->len, "/proc/self/pagemap: %s", strerror(errno));
		return false;
	}
	for (uint32_t i = 0; i < CHUNK_PAGES; i++)
		if (!audit_page(b, first + i, entries[i] & PAGEMAP_HERE))
			return false;
	return true;
}

static bool audit_sums(struct books *b)
{
	uint64_t tokens = atomic_load(&b->far->budget.resident), slots = fp_store_slots_used(b->far->store);

	if (b->resident == tokens && b->slots == slots)
		return true;
	snprintf(b->text, b->len,
	         "%" PRIu64 " pages are resident, %" PRIu64 " tokens are out; %" PRIu64
	         " pages have slots, %" PRIu64 " slots are in use",
	         b->resident, tokens, b->slots, slots);
	return false;
}

static bool audit_once(struct books *b)
{
	uint64_t n_chunks = b->far->n_pages >> FP_CHUNK_SHIFT;

	b->resident = b->slots = 0;
	if (!audit_chunk(b, 0)) /* the first chunk holds the agent's own stages */
		return false;
	for (uint64_t chunk = 1; chunk < n_chunks; chunk++) {
		uint64_t bits = atomic_load(&b->far->touched[chunk / 64]);

		if (!bits)
			chunk |= 63;
		else if (bits >> (chunk & 63) & 1 && !audit_chunk(b, (uint32_t)(chunk << FP_CHUNK_SHIFT)))
			return false;
	}
	return audit_sums(b);
}

bool audit(struct fp_far *far, char *ret_text, size_t len)
{
	const struct timespec pause = {.tv_nsec = 5 * FP_NSEC_PER_MSEC};
	fp_autoclose int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	struct books books = {.far = far, .pagemap = pagemap, .text = ret_text, .len = len};
	uint64_t until_ns = fp_clock_ns() + PATIENCE_NS;
	bool good;

	while (!(good = audit_once(&books)) && fp_clock_ns() < until_ns)
		nanosleep(&pause, NULL);
	return good;
}
