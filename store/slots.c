/*
 * Slots of one lease. Room: store. Only atomic words: no lock, no allocation after creation.
 *
 * fp_slots_put raises n_free before it clears a bit. fp_slots_take lowers n_free after it has set
 * the bits. So n_free is never below the number of clear bits, and a lease whose n_free is 0 can be
 * skipped.
 */
#include "slots.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>

#include "cleanup.h"
#include "lockedmem.h"

#define WORD_BITS 64u
#define BITMAPS   3u /* in use, shared, limbo */

static uint32_t words_of(uint32_t n_pages)
{
	return (n_pages + WORD_BITS - 1) / WORD_BITS;
}

static size_t size_bytes(uint32_t n_pages)
{
	return sizeof(struct fp_slots) + BITMAPS * words_of(n_pages) * sizeof(uint64_t);
}

/*
 * The value of the word while no slot is in use. Bits behind the last page stay set, so they are
 * never free.
 */
static uint64_t unused_word(const struct fp_slots *slots, uint32_t word)
{
	return word == slots->n_pages / WORD_BITS ? ~0ull << (slots->n_pages % WORD_BITS) : 0;
}

struct fp_slots *fp_slots_new(uint32_t n_pages)
{
	struct fp_slots *slots;

	assert(n_pages > 0 && n_pages <= FP_LEASE_MAX_PAGES);
	slots = fp_lockedmem_new(size_bytes(n_pages));
	if (!slots)
		return NULL;
	slots->n_pages = n_pages;
	slots->n_free = n_pages;
	slots->shared = slots->word + words_of(n_pages);
	slots->limbo = slots->shared + words_of(n_pages);
	if (n_pages % WORD_BITS)
		slots->word[n_pages / WORD_BITS] = unused_word(slots, n_pages / WORD_BITS);
	return slots;
}

void fp_slots_free(struct fp_slots *slots)
{
	if (slots)
		fp_lockedmem_free(slots, size_bytes(slots->n_pages));
}

/* Returns the lowest run of `len` set bits in `bits`, as a mask. 0: there is no such run. */
static uint64_t run_find(uint64_t bits, unsigned len)
{
	/*
	 * Each bit that is set in `bits` now starts a run of at least `known` set bits. Each step
	 * doubles `known`, up to `len`.
	 */
	for (unsigned known = 1, step; known < len; known += step) {
		step = FP_MIN(known, len - known);
		bits &= bits >> step;
	}
	return bits ? (~0ull >> (WORD_BITS - len)) << __builtin_ctzll(bits) : 0;
}

/* Finds `len` clear bits in a row in *word, sets them and returns them. 0: there is no such run. */
static uint64_t word_take(_Atomic uint64_t *word, unsigned len)
{
	uint64_t used = atomic_load_explicit(word, memory_order_acquire);
	uint64_t run;

	do
		run = run_find(~used, len);
	while (run && !atomic_compare_exchange_weak_explicit(word, &used, used | run, memory_order_acq_rel,
	                                                     memory_order_acquire));
	return run;
}

/* Takes one run of exactly len slots, searching from the cursor on. */
static bool run_take(struct fp_slots *slots, unsigned len, uint64_t *ret_slots)
{
	uint32_t n_words = words_of(slots->n_pages);
	uint32_t w = atomic_load_explicit(&slots->cursor, memory_order_relaxed);

	for (uint32_t i = 0; i < n_words; i++, w = w + 1 < n_words ? w + 1 : 0) {
		uint64_t run = word_take(&slots->word[w], len);

		if (!run)
			continue;
		atomic_store_explicit(&slots->cursor, w, memory_order_relaxed);
		for (uint64_t first = w * WORD_BITS + (unsigned)__builtin_ctzll(run), k = 0; k < len; k++)
			ret_slots[k] = slots->first_slot + first + k;
		return true;
	}
	return false;
}

unsigned fp_slots_take(struct fp_slots *slots, unsigned n, uint64_t *ret_slots)
{
	unsigned got = 0;
	unsigned len =
	    FP_MIN(n, FP_MIN(WORD_BITS, atomic_load_explicit(&slots->n_free, memory_order_acquire)));

	while (got < n && len) {
		if (run_take(slots, len, ret_slots + got))
			got += len;
		else
			len /= 2;
		len = FP_MIN(len, n - got);
	}
	if (got)
		atomic_fetch_sub_explicit(&slots->n_free, got, memory_order_release);
	return got;
}

bool fp_slots_put(struct fp_slots *slots, uint64_t slot)
{
	uint64_t page = slot - slots->first_slot;
	uint64_t bit = 1ull << (page % WORD_BITS);
	uint64_t used;
	uint32_t n_free;

	assert(page < slots->n_pages);
	n_free = atomic_fetch_add_explicit(&slots->n_free, 1, memory_order_relaxed);
	used = atomic_fetch_and_explicit(&slots->word[page / WORD_BITS], ~bit, memory_order_release);
	assert(used & bit);
	return n_free == 0;
}

/* n_free stays as it is, because nobody takes slots of this lease any more. */
bool fp_slots_close(struct fp_slots *slots)
{
	uint32_t n_words = words_of(slots->n_pages), w;
	uint64_t unused;

	if (atomic_load_explicit(&slots->n_free, memory_order_acquire) != slots->n_pages)
		return false;
	for (w = 0; w < n_words; w++) {
		unused = unused_word(slots, w);
		if (!atomic_compare_exchange_strong(&slots->word[w], &unused, ~0ull))
			break;
	}
	if (w == n_words)
		return true;
	while (w--)
		atomic_store(&slots->word[w], unused_word(slots, w));
	return false;
}

uint64_t fp_slots_share(struct fp_slots *slots, uint32_t word)
{
	uint64_t used = atomic_load_explicit(&slots->word[word], memory_order_acquire);
	uint64_t limbo = atomic_load_explicit(&slots->limbo[word], memory_order_acquire);
	uint32_t n_last = slots->n_pages % WORD_BITS;

	if (n_last && word == slots->n_pages / WORD_BITS) /* the bits behind the last page are no slots */
		used &= ~(~0ull << n_last);
	used &= ~limbo;
	if (used)
		atomic_fetch_or_explicit(&slots->shared[word], used, memory_order_release);
	return used;
}

bool fp_slots_is_shared(const struct fp_slots *slots, uint64_t slot)
{
	uint32_t word = fp_slots_word_of(slots, slot);

	assert(slot - slots->first_slot < slots->n_pages);
	return slots->inherited || (atomic_load_explicit(&slots->shared[word], memory_order_acquire) &
	                            fp_slots_bit_of(slots, slot));
}

void fp_slots_let_go(struct fp_slots *slots, uint64_t slot)
{
	uint64_t bit = fp_slots_bit_of(slots, slot), limbo;

	assert(slot - slots->first_slot < slots->n_pages);
	/* Checked first, because fp_slots_settle may free the slot as soon as it is in limbo. */
	assert(slots->word[fp_slots_word_of(slots, slot)] & bit);
	atomic_fetch_add_explicit(&slots->n_limbo, 1, memory_order_relaxed);
	limbo =
	    atomic_fetch_or_explicit(&slots->limbo[fp_slots_word_of(slots, slot)], bit, memory_order_acq_rel);
	assert(!(limbo & bit));
	(void)limbo;
}

/*
 * Clears the bits in shared before the bits in limbo, because a slot must not be marked as shared
 * when it is taken again. The slot's owner may still see the old mark. Then it may put the slot
 * into limbo after this function has read the bits in limbo. In that case the next call frees the
 * slot.
 */
unsigned fp_slots_settle(struct fp_slots *slots, uint32_t word, uint64_t held)
{
	uint64_t limbo;
	unsigned n;

	if (atomic_load_explicit(&slots->shared[word], memory_order_relaxed) & ~held)
		atomic_fetch_and_explicit(&slots->shared[word], held, memory_order_release);
	limbo = atomic_load_explicit(&slots->limbo[word], memory_order_acquire) & ~held;
	if (!limbo)
		return 0;
	n = (unsigned)__builtin_popcountll(limbo);
	atomic_fetch_and_explicit(&slots->limbo[word], ~limbo, memory_order_relaxed);
	atomic_fetch_sub_explicit(&slots->n_limbo, n, memory_order_relaxed);
	atomic_fetch_add_explicit(&slots->n_free, n, memory_order_relaxed);
	atomic_fetch_and_explicit(&slots->word[word], ~limbo, memory_order_release);
	return n;
}

void fp_slots_inherit(struct fp_slots *slots)
{
	uint32_t n_words = slots->n_limbo ? words_of(slots->n_pages) : 0;

	for (uint32_t w = 0; w < n_words; w++) {
		uint64_t limbo = slots->limbo[w];

		if (!limbo)
			continue;
		slots->word[w] &= ~limbo;
		slots->n_free += (unsigned)__builtin_popcountll(limbo);
	}
	slots->n_limbo = 0;
	slots->inherited = true;
	slots->retired = true;
}
