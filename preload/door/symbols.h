/*
 * The symbol tables of loaded libraries. Room: preload/door.
 *
 * These functions work before any constructor, also while the loader relocates libraries. They
 * allocate nothing, take no lock, and call nothing of another library.
 */
#ifndef FP_SYMBOLS_H
#define FP_SYMBOLS_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* The hash table that the option --hash-style=gnu of the linker makes. */
struct fp_symbols_hash {
	uint32_t n_buckets, first_symbol, n_bloom_words, bloom_shift;
};

struct fp_symbols {
	uintptr_t base;
	const ElfW(Dyn) * dynamic;
	const ElfW(Sym) * table;
	const char *strings;
	const struct fp_symbols_hash *hash;
	const ElfW(Half) * versions; /* NULL: this library knows no versions. So are the next two */
	const ElfW(Verdef) * defined;
	const ElfW(Verneed) * needed;
};

/* Returns false if the library has no such hash table. */
bool fp_symbols_open(const struct link_map *map, struct fp_symbols *ret_symbols);

/* Returns the first definition of this name, of whatever version, or NULL. */
const ElfW(Sym) * fp_symbols_find(const struct fp_symbols *s, const char *name);

/* Returns the definition of this version, or the default one if version is NULL; or NULL. */
const ElfW(Sym) * fp_symbols_find_version(const struct fp_symbols *s, const char *name, const char *version);

/* The version of an undefined symbol by its number in the table; NULL: none. */
const char *fp_symbols_version_needed(const struct fp_symbols *s, uint32_t number);

/* Returns the address of a definition. */
void *fp_symbols_address(const struct fp_symbols *s, const ElfW(Sym) * symbol);

/* Not strcmp: a sanitizer's asks us for the functions that it needs itself. */
bool fp_symbols_is_same(const char *a, const char *b);

#endif
