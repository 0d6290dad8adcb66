/*
 * The contents that benches write, and the order of their touches. Room: tools/bench.
 */
#include "pattern.h"

#include "rng.h"

uint64_t fp_pattern_word(uint64_t seed, size_t page, size_t word, unsigned generation)
{
	return fp_rng_mix(seed ^
	                  fp_rng_mix(page * FP_PATTERN_PAGE_WORDS + word + ((uint64_t)generation << 48)));
}

void fp_pattern_fill(void *base, size_t n_pages, uint64_t seed)
{
	uint64_t *words = base;

	for (size_t page = 0; page < n_pages; page++)
		for (size_t i = 0; i < FP_PATTERN_PAGE_WORDS; i++)
			*words++ = fp_pattern_word(seed, page, i, 0);
}

bool fp_pattern_verify(const void *base, size_t n_pages, uint64_t seed, unsigned generation, size_t *ret_bad)
{
	const uint64_t *words = base;

	for (size_t page = 0; page < n_pages; page++)
		for (size_t i = 0; i < FP_PATTERN_PAGE_WORDS; i++)
			if (*words++ != fp_pattern_word(seed, page, i, i == 0 ? generation : 0)) {
				*ret_bad = page;
				return false;
			}
	return true;
}

void fp_pattern_shuffle(uint64_t seed, size_t n, uint32_t *ret_order)
{
	for (size_t i = 0; i < n; i++) {
		size_t j = (size_t)(fp_rng_mix(seed ^ fp_rng_mix(i)) % (i + 1));

		ret_order[i] = ret_order[j];
		ret_order[j] = (uint32_t)i;
	}
}
