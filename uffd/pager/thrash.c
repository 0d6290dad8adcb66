/* See thrash.h. */
#include "thrash.h"

#include <stdbool.h>

#include "cleanup.h"

#define AGAIN_MIN (FP_THRASH_WINDOW / 4 * 3)
#define RECENT    32u /* windows in which each of so many threads faults: they are served in turn */

static uint32_t load(const _Atomic uint32_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static void store(_Atomic uint32_t *word, uint32_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

/* Numbers that follow each other are spread evenly (Fibonacci hashing). */
static struct fp_thrash_thread *place_of(struct fp_thrash *thrash, uint32_t thread)
{
	return &thrash->thread[(thread * 0x9e3779b9u) >> (32 - FP_THRASH_BITS)];
}

/* Notes that the thread asks for the page. True if it is among the last that it asked for. */
static bool asks_again(struct fp_thrash_thread *t, uint32_t thread, uint32_t page)
{
	uint32_t next = load(&t->next);

	if (load(&t->id) != thread) {
		store(&t->id, thread);
		for (unsigned i = 0; i < FP_THRASH_PAGES; i++)
			store(&t->page[i], UINT32_MAX);
	}
	for (unsigned i = 0; i < FP_THRASH_PAGES; i++)
		if (load(&t->page[i]) == page)
			return true;
	store(&t->page[next % FP_THRASH_PAGES], page);
	store(&t->next, next + 1);
	return false;
}

/* Rare: only in windows of thrashing. */
static uint32_t needed(const struct fp_thrash *thrash, uint32_t window)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < FP_THRASH_THREADS; i++) {
		uint32_t last = load(&thrash->thread[i].window);

		n += last && window - last < RECENT;
	}
	return FP_MIN(n * FP_THRASH_NEED, FP_THRASH_NEED_MAX);
}

static uint32_t end_window(struct fp_thrash *thrash, uint32_t window)
{
	uint32_t again = load(&thrash->again);

	store(&thrash->faults, 0);
	store(&thrash->again, 0);
	store(&thrash->window, window + 1);
	return again < AGAIN_MIN ? 0 : needed(thrash, window);
}

uint32_t fp_thrash_fault(struct fp_thrash *thrash, uint32_t thread, uint32_t page)
{
	struct fp_thrash_thread *t = place_of(thrash, thread);
	uint32_t window = FP_MAX(load(&thrash->window), 1u), faults = load(&thrash->faults) + 1;

	if (asks_again(t, thread, page))
		store(&thrash->again, load(&thrash->again) + 1);
	store(&t->window, window);
	store(&thrash->faults, faults);
	return faults < FP_THRASH_WINDOW ? 0 : end_window(thrash, window);
}
