/*
 * The contents that benches write into pages, and the order of their touches. Both are functions of
 * a seed, so that every word can be checked. The contents can't be compressed, so no shortcut for
 * simple pages makes them faster. Room: tools/bench. It uses its arguments alone.
 */
#ifndef FP_PATTERN_H
#define FP_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP_PATTERN_PAGE_BYTES 4096u
#define FP_PATTERN_PAGE_WORDS (FP_PATTERN_PAGE_BYTES / sizeof(uint64_t))

/*
 * Returns one word of the pattern. page: the index of its page. word: its index in that page.
 * generation: how often the page's first word was overwritten; 0: never.
 */
uint64_t fp_pattern_word(uint64_t seed, size_t page, size_t word, unsigned generation);

/* Fills n_pages pages with generation 0. The first of them is at base. */
void fp_pattern_fill(void *base, size_t n_pages, uint64_t seed);

/*
 * Compares every word. The first word of each page must be of the given generation, and the others
 * of generation 0. True if all are right; else *ret_bad is the page of the first wrong word.
 */
bool fp_pattern_verify(const void *base, size_t n_pages, uint64_t seed, unsigned generation, size_t *ret_bad);

/* Writes the numbers 0..n-1 to ret_order, in an order that depends on seed alone. */
void fp_pattern_shuffle(uint64_t seed, size_t n, uint32_t *ret_order);

#endif
