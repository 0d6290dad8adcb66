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
#include <sys/auxv.h>

#include "symbols.h"

extern const ElfW(Dyn) fp_lookup_dynamic[] __asm__("_DYNAMIC") __attribute__((visibility("hidden")));

/* Returns the address of the first definition of this name, or NULL. */
static void *find_symbol(const struct fp_symbols *s, const char *name)
{
	const ElfW(Sym) *symbol = fp_symbols_find(s, name);

	return symbol ? fp_symbols_address(s, symbol) : NULL;
}

const struct link_map *fp_lookup_own_map(void)
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
	const struct link_map *map = found ? NULL : fp_lookup_own_map();
	struct fp_symbols s;

	while (!found && map && (map = map->l_next))
		if (fp_symbols_open(map, &s))
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
	const struct link_map *map = fp_lookup_own_map();
	struct fp_symbols s;

	return map && fp_symbols_open(map, &s) ? find_symbol(&s, name) : NULL;
}

static const struct link_map *map_of(const void *code)
{
	struct dl_find_object found;

	return _dl_find_object((void *)code, &found) == 0 ? found.dlfo_link_map : NULL;
}

static bool is_after_ours(const struct link_map *map)
{
	const struct link_map *own = fp_lookup_own_map();

	while (map && map != own)
		map = map->l_prev;
	return map && own;
}

/* False for the kernel's vdso too: it is in the list, but no lookup finds its functions. */
static bool defines(const struct link_map *map, const char *name)
{
	struct fp_symbols s;

	return map->l_addr != getauxval(AT_SYSINFO_EHDR) && fp_symbols_open(map, &s) && find_symbol(&s, name);
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
	struct fp_symbols s;

	if (!map || map->l_ld == fp_lookup_dynamic || !is_after_ours(map))
		return false;
	if (!fp_symbols_open(map, &s) || find_symbol(&s, name))
		return false;
	return map_of(fp_lookup_next(name, NULL)) == map_of((const void *)fp_lookup_dlsym());
}
