/* See pin.h. */
#include "pin.h"

#include <errno.h>
#include <sys/mman.h>

#include "cleanup.h"

#define TABLE_BYTES (FP_PIN_MAX * sizeof(_Atomic uint64_t))

int fp_pin_table_init(struct fp_pin_table *table)
{
	void *p = mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
	               -1, 0);

	if (p == MAP_FAILED)
		return -ENOMEM;
	*table = (struct fp_pin_table){.ranges = p};
	return 0;
}

void fp_pin_table_done(struct fp_pin_table *table)
{
	if (table->ranges)
		munmap(table->ranges, TABLE_BYTES);
	table->ranges = NULL;
}

/*
 * Takes a place if it is free. Sequentially consistent: if an evictor's look misses the range, the
 * look came before all that the caller does next.
 */
static bool take(struct fp_pin_table *table, uint32_t place, struct fp_page_range range)
{
	uint64_t none = 0, value = (uint64_t)range.page << 32 | range.n;

	return !atomic_load_explicit(&table->ranges[place], memory_order_relaxed) &&
	       atomic_compare_exchange_strong(&table->ranges[place], &none, value);
}

/*
 * Raises top above a place that is about to be taken. A search for pins ends at top, so it would
 * miss the place otherwise.
 */
static void raise_top(struct fp_pin_table *table, uint32_t top)
{
	uint32_t old = atomic_load_explicit(&table->top, memory_order_relaxed);

	while (old < top && !atomic_compare_exchange_weak(&table->top, &old, top))
		;
}

/*
 * Takes the n places that begin with `place`, or none. Returns how many of them were free, up to
 * the first that was not.
 */
static uint32_t take_row(struct fp_pin_table *table, const struct fp_page_range *ranges, uint32_t n,
                         uint32_t place)
{
	uint32_t got = 0;

	raise_top(table, place + n);
	while (got < n && take(table, place + got, ranges[got]))
		got++;
	for (uint32_t i = got; i-- > 0 && got < n;)
		atomic_store_explicit(&table->ranges[place + i], 0, memory_order_release);
	return got;
}

uint32_t fp_pin_publish(struct fp_pin_table *table, const struct fp_page_range *ranges, uint32_t n,
                        uint32_t hint)
{
	bool wrapped = false;
	uint32_t place = hint;

	if (n > FP_PIN_MAX)
		return FP_PIN_NO_PLACE;
	/*
	 * count the ranges before they are published: an evictor that reads 0 here skips the whole
	 * table
	 */
	atomic_fetch_add(&table->held, n);
	for (;;) {
		uint32_t got;

		if (place > FP_PIN_MAX - n) {
			if (wrapped)
				break;
			wrapped = true;
			place = 0;
		}
		got = take_row(table, ranges, n, place);
		if (got == n)
			return place;
		place += got + 1;
	}
	atomic_fetch_sub(&table->held, n);
	return FP_PIN_NO_PLACE;
}

void fp_pin_clear(struct fp_pin_table *table, uint32_t place, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		atomic_store_explicit(&table->ranges[place + i], 0, memory_order_release);
	atomic_fetch_sub(&table->held, n);
}

static uint64_t look_at(uint64_t range, const uint32_t *pages, unsigned n)
{
	uint32_t first = (uint32_t)(range >> 32), len = (uint32_t)range;
	uint64_t found = 0;

	for (unsigned i = 0; i < n; i++)
		found |= (uint64_t)(pages[i] - first < len) << i;
	return found;
}

uint64_t fp_pin_look(const struct fp_pin_table *table, const uint32_t *pages, unsigned n)
{
	uint32_t top = atomic_load(&table->held) ? atomic_load(&table->top) : 0;
	uint64_t found = 0;

	for (uint32_t i = 0; i < top; i++) {
		uint64_t range = atomic_load(&table->ranges[i]);

		if (range)
			found |= look_at(range, pages, n);
	}
	return found;
}

bool fp_pin_has(const struct fp_pin_table *table, uint32_t page)
{
	return fp_pin_look(table, &page, 1);
}

bool fp_pin_any_outside(const struct fp_pin_table *table, uint32_t first, uint32_t last)
{
	uint32_t top = atomic_load(&table->held) ? atomic_load(&table->top) : 0;

	for (uint32_t i = 0; i < top; i++) {
		uint64_t range = atomic_load(&table->ranges[i]), page = range >> 32, n = (uint32_t)range;

		if (range && (page < first || page + n > last))
			return true;
	}
	return false;
}

static bool keeps(const struct fp_page_range *keep, unsigned n_keep, uint32_t place)
{
	for (unsigned i = 0; i < n_keep; i++)
		if (place - keep[i].page < keep[i].n)
			return true;
	return false;
}

void fp_pin_forked(struct fp_pin_table *table, const struct fp_page_range *keep, unsigned n_keep)
{
	uint32_t top = atomic_load(&table->top), held = 0;

	for (uint32_t i = 0; i < top; i++) {
		if (!atomic_load(&table->ranges[i]))
			continue;
		if (keeps(keep, n_keep, i))
			held++;
		else
			atomic_store(&table->ranges[i], 0);
	}
	atomic_store(&table->held, held);
}
