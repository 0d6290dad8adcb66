/* See versions.h. */
#include "versions.h"

#include <link.h>
#include <stddef.h>
#include <stdint.h>

#include "cleanup.h"
#include "lookup.h"
#include "symbols.h"

/* Today's functions differ from the old ones in some results alone. Many programs use these. */
static const char *const harmless[] = {"glob", "glob64", "posix_spawn", "posix_spawnp"};

static bool is_harmless(const char *name)
{
	for (size_t i = 0; i < FP_ARRAY_LEN(harmless); i++)
		if (fp_symbols_is_same(name, harmless[i]))
			return true;
	return false;
}

static bool open_libc(struct fp_symbols *libc)
{
	for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next)
		if (fp_symbols_open(map, libc) && libc->defined &&
		    fp_symbols_find(libc, "gnu_get_libc_version"))
			return true;
	return false;
}

/* True if the C library's function of this version is another one than that of today. */
static bool has_changed(const struct fp_symbols *libc, const char *name, const char *version)
{
	const ElfW(Sym) *asked = fp_symbols_find_version(libc, name, version);
	const ElfW(Sym) *today = fp_symbols_find_version(libc, name, NULL);

	return asked && today && asked->st_value != today->st_value;
}

/* Returns the highest number of a symbol in these relocations. */
static uint32_t last_symbol(const struct fp_symbols *s, ElfW(Sxword) tag, ElfW(Sxword) tag_bytes)
{
	const ElfW(Rela) *r = NULL;
	uint32_t last = 0;
	size_t n = 0;

	for (const ElfW(Dyn) *d = s->dynamic; d->d_tag != DT_NULL; d++)
		if (d->d_tag == tag)
			r = (const void *)(d->d_un.d_ptr + (d->d_un.d_ptr < s->base ? s->base : 0));
		else if (d->d_tag == tag_bytes)
			n = d->d_un.d_val / sizeof(*r);
	for (size_t i = 0; r && i < n; i++)
		last = FP_MAX(last, (uint32_t)ELF64_R_SYM(r[i].r_info));
	return last;
}

/* No table has the number of symbols that a library only uses: its relocations have it. */
static bool uses_old(const struct fp_symbols *s, const struct fp_symbols *ours, const struct fp_symbols *libc,
                     struct fp_version_use *use)
{
	uint32_t last = FP_MAX(last_symbol(s, DT_RELA, DT_RELASZ), last_symbol(s, DT_JMPREL, DT_PLTRELSZ));

	for (uint32_t i = 1; i <= last; i++) {
		const char *name = s->strings + s->table[i].st_name, *version;

		if (s->table[i].st_shndx != SHN_UNDEF || !fp_symbols_find(ours, name) || is_harmless(name))
			continue;
		version = fp_symbols_version_needed(s, i);
		if (version && has_changed(libc, name, version)) {
			use->symbol = name;
			use->version = version;
			return true;
		}
	}
	return false;
}

bool fp_versions_find_old(struct fp_version_use *ret_use)
{
	const struct link_map *own = fp_lookup_own_map();
	struct fp_symbols ours, libc, s;

	if (!own || !fp_symbols_open(own, &ours) || !open_libc(&libc))
		return false;
	for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next) {
		(void)fp_symbols_open(map, &s); /* its hash table is not needed */
		ret_use->file = map->l_name;
		if (map != own && s.table && s.strings && s.versions && uses_old(&s, &ours, &libc, ret_use))
			return true;
	}
	return false;
}
