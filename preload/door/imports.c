/*
 * See imports.h. The loader calls bind_all while it relocates this library, as the resolver of an
 * indirect function. It does that last, when our other imports are bound, and all libraries that we
 * were linked to are complete. No constructor has run, and no other function of ours has been
 * called.
 */
#include "imports.h"

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "cleanup.h"
#include "lookup.h"
#include "rawcall.h"
#include "symbols.h"

#if defined(FP_SANITIZED)
/* a sanitizer's code can't run before the sanitizer has started */
#elif defined(__x86_64__)
#define RELOC_SLOT R_X86_64_JUMP_SLOT
#define RELOC_DATA R_X86_64_GLOB_DAT
#define RELOC_WORD R_X86_64_64
#elif defined(__aarch64__)
#define RELOC_SLOT R_AARCH64_JUMP_SLOT
#define RELOC_DATA R_AARCH64_GLOB_DAT
#define RELOC_WORD R_AARCH64_ABS64
#endif

#define LINKED_MAX      16
#define OPERATOR_DELETE "_ZdlPv" /* of C++, for a pointer alone */
#define PAGE_BYTES      4096ul

/* The libraries that this one was linked to, in the linker's order. */
static struct fp_symbols linked[LINKED_MAX];
static unsigned n_linked;

static void *address(const struct fp_symbols *s, const ElfW(Sym) * symbol)
{
	unsigned type = ELF64_ST_TYPE(symbol->st_info);
	void *found = fp_symbols_address(s, symbol);

	if (type == STT_FUNC)
		return found;
#if defined(__x86_64__)
	if (type == STT_GNU_IFUNC)
		return ((void *(*)(void))found)();
#endif
	return NULL;
}

/* Returns NULL for data, too. */
static void *find(const char *name, const char *version)
{
	for (unsigned i = 0; i < n_linked; i++) {
		const ElfW(Sym) *symbol = fp_symbols_find_version(&linked[i], name, version);

		if (symbol)
			return address(&linked[i], symbol);
	}
	return NULL;
}

void *fp_imports_find(const char *name)
{
	return find(name, NULL);
}

#ifdef RELOC_SLOT

/* ---- the libraries ---- */

static const char *soname(const struct fp_symbols *s)
{
	for (const ElfW(Dyn) *d = s->dynamic; d->d_tag != DT_NULL; d++)
		if (d->d_tag == DT_SONAME)
			return s->strings + d->d_un.d_val;
	return "";
}

static void add_linked(const char *name)
{
	for (const struct link_map *map = _r_debug.r_map; map && n_linked < LINKED_MAX; map = map->l_next)
		if (fp_symbols_open(map, &linked[n_linked]) &&
		    fp_symbols_is_same(soname(&linked[n_linked]), name)) {
			n_linked++;
			return;
		}
}

/* ---- imports ---- */

/* For these calls of our allocator the shim does more than to pass them on. */
static void *find_in_shim(const char *name)
{
	static const char names[][20] = {"mmap",           "munmap",          "mprotect",
	                                 "madvise",        "syscall",         "dlsym",
	                                 "pthread_create", "pthread_sigmask", "__register_atfork"};

	for (size_t i = 0; i < FP_ARRAY_LEN(names); i++)
		if (fp_symbols_is_same(name, names[i]))
			return fp_lookup_own(name);
	return NULL;
}

/* True if the loader makes this page read-only once the library is relocated. */
static bool is_sealed(const struct fp_symbols *s, uintptr_t page)
{
	const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)s->base;
	const ElfW(Phdr) *ph = (const ElfW(Phdr) *)(s->base + header->e_phoff), *end = ph + header->e_phnum;

	while (ph < end && ph->p_type != PT_GNU_RELRO)
		ph++;
	return ph < end && page + PAGE_BYTES > s->base + ph->p_vaddr &&
	       page + PAGE_BYTES <= s->base + ph->p_vaddr + ph->p_memsz;
}

static void set(const struct fp_symbols *s, void **slot, void *value, bool is_relocated)
{
	uintptr_t page = (uintptr_t)slot & ~(PAGE_BYTES - 1);
	bool opens = is_relocated && is_sealed(s, page);

	if (opens && FP_RAW(SYS_mprotect, page, PAGE_BYTES, PROT_READ | PROT_WRITE, 0, 0, 0) < 0)
		return;
	*slot = value;
	if (opens)
		FP_RAW(SYS_mprotect, page, PAGE_BYTES, PROT_READ, 0, 0, 0);
}

static void bind(const struct fp_symbols *s, const ElfW(Rela) * r, bool is_allocator)
{
	uint32_t number = ELF64_R_SYM(r->r_info), type = ELF64_R_TYPE(r->r_info);
	const ElfW(Sym) *symbol = &s->table[number];
	const char *name = s->strings + symbol->st_name;
	void **slot = (void **)(s->base + r->r_offset), *value;

	if (number == 0 || symbol->st_shndx != SHN_UNDEF)
		return;
	if (type != RELOC_SLOT && type != RELOC_DATA && type != RELOC_WORD)
		return;
	value = is_allocator ? find_in_shim(name) : NULL;
	if (!value)
		value = find(name, fp_symbols_version_needed(s, number));
	if (value && *slot != value)
		set(s, slot, value, is_allocator);
}

/* ---- allocators of others ---- */

static bool is_in_family(const char *name)
{
	static const char names[][20] = {"malloc",   "free",           "calloc",        "realloc",
	                                 "memalign", "posix_memalign", "aligned_alloc", "malloc_usable_size"};

	for (size_t i = 0; i < FP_ARRAY_LEN(names); i++)
		if (fp_symbols_is_same(name, names[i]))
			return true;
	return false;
}

static void keep_own(const struct fp_symbols *s, const ElfW(Rela) * r)
{
	uint32_t number = ELF64_R_SYM(r->r_info), type = ELF64_R_TYPE(r->r_info);
	const ElfW(Sym) *symbol = &s->table[number];
	void **slot = (void **)(s->base + r->r_offset), *value;

	if (number == 0 || symbol->st_shndx == SHN_UNDEF || (type != RELOC_SLOT && type != RELOC_DATA) ||
	    !is_in_family(s->strings + symbol->st_name))
		return;
	value = address(s, symbol);
	if (value && *slot != value)
		set(s, slot, value, true);
}

/* ---- all relocations of a library ---- */

enum how {
	OURS,   /* this library: to those that it was linked to */
	MALLOC, /* its allocator: the same, but some to the shim */
	OTHERS, /* an allocator of others: to itself */
};

static void bind_list(const struct fp_symbols *s, ElfW(Sxword) tag, ElfW(Sxword) tag_bytes, enum how how)
{
	const ElfW(Rela) *list = NULL;
	size_t bytes = 0;

	for (const ElfW(Dyn) *d = s->dynamic; d->d_tag != DT_NULL; d++)
		if (d->d_tag == tag)
			list = (const void *)(d->d_un.d_ptr + (d->d_un.d_ptr < s->base ? s->base : 0));
		else if (d->d_tag == tag_bytes)
			bytes = d->d_un.d_val;
	for (size_t i = 0; list && i < bytes / sizeof(*list); i++)
		if (how == OTHERS)
			keep_own(s, &list[i]);
		else
			bind(s, &list[i], how == MALLOC);
}

static void bind_library(const struct fp_symbols *s, enum how how)
{
	bind_list(s, DT_RELA, DT_RELASZ, how);
	bind_list(s, DT_JMPREL, DT_PLTRELSZ, how);
}

static bool is_linked(const struct fp_symbols *s)
{
	for (unsigned i = 0; i < n_linked; i++)
		if (linked[i].base == s->base)
			return true;
	return false;
}

void fp_imports_keep_allocators(void)
{
	const struct link_map *own = fp_lookup_own_map(), *program = _r_debug.r_map;
	struct fp_symbols s;

	for (const struct link_map *map = program ? program->l_next : NULL; map; map = map->l_next)
		if (map != own && fp_symbols_open(map, &s) && !is_linked(&s) &&
		    fp_symbols_find(&s, "malloc") && fp_symbols_find(&s, OPERATOR_DELETE))
			bind_library(&s, OTHERS);
}

static void do_nothing(void)
{
}

__attribute__((used)) static void (*bind_all(void))(void)
{
	const struct link_map *own = fp_lookup_own_map();
	struct fp_symbols s;

	if (!own || !fp_symbols_open(own, &s))
		return do_nothing;
	for (const ElfW(Dyn) *d = s.dynamic; d->d_tag != DT_NULL; d++)
		if (d->d_tag == DT_NEEDED)
			add_linked(s.strings + d->d_un.d_val);
	bind_library(&s, OURS);
	for (unsigned i = 0; i < n_linked; i++)
		if (fp_symbols_find(&linked[i], "mallocx"))
			bind_library(&linked[i], MALLOC);
	return do_nothing;
}

void fp_imports_open(void) __attribute__((ifunc("bind_all")));

#else

void fp_imports_keep_allocators(void)
{
}

void fp_imports_open(void)
{
}
#endif
