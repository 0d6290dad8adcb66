/*
 * See lookup.h. The list of loaded libraries is read without its lock. That is right as we stop at
 * the C library: it is in the list before the program runs, and stays.
 */
#include "lookup.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>

#define WORD_BITS (8 * sizeof(ElfW(Addr)))

extern const ElfW(Dyn) fp_lookup_dynamic[] __asm__("_DYNAMIC") __attribute__((visibility("hidden")));

/* ---- the symbols of one library ---- */

/* The hash table that the option --hash-style=gnu of the linker makes. */
struct hash_header {
	uint32_t n_buckets, first_symbol, n_bloom_words, bloom_shift;
};

struct symbols {
	uintptr_t base;
	const ElfW(Sym) * table;
	const char *strings;
	const struct hash_header *hash;
};

/* Returns false if the library has no such hash table. */
static bool open_symbols(const struct link_map *map, struct symbols *s)
{
	*s = (struct symbols){.base = map->l_addr};
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		/* the loader has added the base, unless it can't write there */
		const void *at = (const void *)(d->d_un.d_ptr + (d->d_un.d_ptr < s->base ? s->base : 0));

		if (d->d_tag == DT_SYMTAB)
			s->table = at;
		else if (d->d_tag == DT_STRTAB)
			s->strings = at;
		else if (d->d_tag == DT_GNU_HASH)
			s->hash = at;
	}
	return s->table && s->strings && s->hash;
}

static uint32_t name_hash(const char *name)
{
	uint32_t hash = 5381;

	while (*name)
		hash = hash * 33 + (unsigned char)*name++;
	return hash;
}

/* False if no symbol has this hash; true if one may have it. */
static bool may_have(const struct hash_header *h, uint32_t hash)
{
	const ElfW(Addr) *bloom = (const ElfW(Addr) *)(h + 1);
	ElfW(Addr) word = bloom[hash / WORD_BITS % h->n_bloom_words];

	return word >> hash % WORD_BITS & word >> (hash >> h->bloom_shift) % WORD_BITS & 1;
}

/* Not strcmp: a sanitizer's asks us for the functions that it needs itself. */
static bool is_same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

static bool is_named(const struct symbols *s, const ElfW(Sym) * symbol, const char *name)
{
	return symbol->st_shndx != SHN_UNDEF && is_same(s->strings + symbol->st_name, name);
}

/* Returns the address of the first definition of this name, or NULL. */
static void *find_symbol(const struct symbols *s, const char *name)
{
	const struct hash_header *h = s->hash;
	const uint32_t *buckets = (const uint32_t *)((const ElfW(Addr) *)(h + 1) + h->n_bloom_words);
	const uint32_t *chains = buckets + h->n_buckets, hash = name_hash(name);
	uint32_t i, own;

	if (h->n_buckets == 0 || !may_have(h, hash))
		return NULL;
	i = buckets[hash % h->n_buckets];
	if (i < h->first_symbol)
		return NULL;
	do { /* the lowest bit of a hash in the table marks the end of its bucket */
		own = chains[i - h->first_symbol];
		if ((own | 1) == (hash | 1) && is_named(s, &s->table[i], name))
			return (void *)(s->base + s->table[i].st_value);
		i++;
	} while (!(own & 1));
	return NULL;
}

/* ---- the libraries ---- */

static const struct link_map *own_map(void)
{
	const struct link_map *map = _r_debug.r_map;

	while (map && map->l_ld != fp_lookup_dynamic)
		map = map->l_next;
	return map;
}

/* Finds the first definition of this name in the libraries after ours. */
static void *find_after(_Atomic(void *) *known, const char *name)
{
	void *found = atomic_load_explicit(known, memory_order_relaxed);
	const struct link_map *map = found ? NULL : own_map();
	struct symbols s;

	while (!found && map && (map = map->l_next))
		if (open_symbols(map, &s))
			found = find_symbol(&s, name);
	atomic_store_explicit(known, found, memory_order_relaxed);
	return found;
}

fp_dlsym_fn *fp_lookup_dlsym(void)
{
	static _Atomic(void *) known;

	return (fp_dlsym_fn *)find_after(&known, "dlsym");
}

fp_dlvsym_fn *fp_lookup_dlvsym(void)
{
	static _Atomic(void *) known;

	return (fp_dlvsym_fn *)find_after(&known, "dlvsym");
}

void *fp_lookup_next(const char *name, const char *version)
{
	return version ? fp_lookup_dlvsym()(RTLD_NEXT, name, version) : fp_lookup_dlsym()(RTLD_NEXT, name);
}

void *fp_lookup_own(const char *name)
{
	const struct link_map *map = own_map();
	struct symbols s;

	return map && open_symbols(map, &s) ? find_symbol(&s, name) : NULL;
}

static const struct link_map *map_of(const void *code)
{
	struct dl_find_object found;

	return _dl_find_object((void *)code, &found) == 0 ? found.dlfo_link_map : NULL;
}

static bool is_after_ours(const struct link_map *map)
{
	const struct link_map *own = own_map();

	while (map && map != own)
		map = map->l_prev;
	return map && own;
}

/* False for the kernel's vdso too: it is in the list, but no lookup finds its functions. */
static bool defines(const struct link_map *map, const char *name)
{
	struct symbols s;

	return map->l_addr != getauxval(AT_SYSINFO_EHDR) && open_symbols(map, &s) && find_symbol(&s, name);
}

bool fp_lookup_is_next(const void *code, const char *name)
{
	const struct link_map *caller = map_of(code), *map = _r_debug.r_map;
	bool after_caller = false;

	while (map && map->l_ld != fp_lookup_dynamic) {
		if (after_caller && defines(map, name))
			return false;
		after_caller |= map == caller;
		map = map->l_next;
	}
	return map && after_caller;
}

bool fp_lookup_is_bystander(const void *code, const char *name)
{
	const struct link_map *map = map_of(code);
	struct symbols s;

	if (!map || map->l_ld == fp_lookup_dynamic || !is_after_ours(map))
		return false;
	if (!open_symbols(map, &s) || find_symbol(&s, name))
		return false;
	return map_of(fp_lookup_next(name, NULL)) == map_of((const void *)fp_lookup_dlsym());
}
