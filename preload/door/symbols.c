/* See symbols.h. */
#include "symbols.h"

#include <stddef.h>

#define WORD_BITS (8 * sizeof(ElfW(Addr)))

/* Of a version's number; the bit above it hides a definition that is not the default. */
#define NUMBER_MASK 0x7fffu
#define HIDDEN      0x8000u

bool fp_symbols_open(const struct link_map *map, struct fp_symbols *s)
{
	*s = (struct fp_symbols){.base = map->l_addr, .dynamic = map->l_ld};
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		/* the loader has added the base, unless it can't write there */
		const void *at = (const void *)(d->d_un.d_ptr + (d->d_un.d_ptr < s->base ? s->base : 0));

		if (d->d_tag == DT_SYMTAB)
			s->table = at;
		else if (d->d_tag == DT_STRTAB)
			s->strings = at;
		else if (d->d_tag == DT_GNU_HASH)
			s->hash = at;
		else if (d->d_tag == DT_VERSYM)
			s->versions = at;
		else if (d->d_tag == DT_VERDEF)
			s->defined = at;
		else if (d->d_tag == DT_VERNEED)
			s->needed = at;
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
static bool may_have(const struct fp_symbols_hash *h, uint32_t hash)
{
	const ElfW(Addr) *bloom = (const ElfW(Addr) *)(h + 1);
	ElfW(Addr) word = bloom[hash / WORD_BITS % h->n_bloom_words];

	return word >> hash % WORD_BITS & word >> (hash >> h->bloom_shift) % WORD_BITS & 1;
}

bool fp_symbols_is_same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

static const void *after(const void *record, uint32_t bytes)
{
	return (const char *)record + bytes;
}

static const char *version_defined(const struct fp_symbols *s, unsigned number)
{
	const ElfW(Verdef) *d = s->defined;

	while (d && d->vd_ndx != number)
		d = d->vd_next ? after(d, d->vd_next) : NULL;
	return d ? s->strings + ((const ElfW(Verdaux) *)after(d, d->vd_aux))->vda_name : "";
}

const char *fp_symbols_version_needed(const struct fp_symbols *s, uint32_t symbol)
{
	unsigned number = s->versions ? s->versions[symbol] & NUMBER_MASK : 0;
	const ElfW(Vernaux) * a;

	for (const ElfW(Verneed) *n = s->needed; n; n = n->vn_next ? after(n, n->vn_next) : NULL)
		for (a = after(n, n->vn_aux); a; a = a->vna_next ? after(a, a->vna_next) : NULL)
			if (a->vna_other == number)
				return s->strings + a->vna_name;
	return NULL;
}

static bool has_version(const struct fp_symbols *s, uint32_t symbol, const char *version)
{
	if (!s->versions || !s->defined)
		return true;
	return version ? fp_symbols_is_same(version_defined(s, s->versions[symbol] & NUMBER_MASK), version)
	               : !(s->versions[symbol] & HIDDEN);
}

static const ElfW(Sym) *
    find(const struct fp_symbols *s, const char *name, const char *version, bool any_version)
{
	const struct fp_symbols_hash *h = s->hash;
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
		if ((own | 1) == (hash | 1) && s->table[i].st_shndx != SHN_UNDEF &&
		    fp_symbols_is_same(s->strings + s->table[i].st_name, name) &&
		    (any_version || has_version(s, i, version)))
			return &s->table[i];
		i++;
	} while (!(own & 1));
	return NULL;
}

const ElfW(Sym) * fp_symbols_find(const struct fp_symbols *s, const char *name)
{
	return find(s, name, NULL, true);
}

const ElfW(Sym) * fp_symbols_find_version(const struct fp_symbols *s, const char *name, const char *version)
{
	return find(s, name, version, false);
}

void *fp_symbols_address(const struct fp_symbols *s, const ElfW(Sym) * symbol)
{
	return (void *)(s->base + symbol->st_value);
}
