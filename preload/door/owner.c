/* See owner.h. */
#include "owner.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cleanup.h"
#include "lookup.h"

/* Where this library lies, by symbols of the linker. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static const char ours[] = "";

static bool is_own(const void *code)
{
	return (uintptr_t)code - (uintptr_t)__ehdr_start < (uintptr_t)(_end - __ehdr_start);
}

/*
 * Returns the file in which name is defined first, or ours. A program that only takes the address
 * of malloc may have an entry for it that is no definition: its code jumps to the real one.
 */
static const char *definer(const char *name)
{
	const ElfW(Sym) *symbol = NULL;
	void *first = fp_lookup_dlsym()(RTLD_DEFAULT, name);
	Dl_info info;

	if (!first || is_own(first) || !dladdr1(first, &info, (void **)&symbol, RTLD_DL_SYMENT))
		return ours;
	return symbol && symbol->st_shndx == SHN_UNDEF ? ours : info.dli_fname;
}

const char *fp_owner_file(void)
{
	static const char *const family[] = {"malloc", "free", "calloc", "realloc"};
	static _Atomic(const char *) known;
	const char *file = atomic_load_explicit(&known, memory_order_relaxed);

	if (!file) {
		file = ours;
		for (size_t i = 0; i < FP_ARRAY_LEN(family) && file == ours; i++)
			file = definer(family[i]);
		atomic_store_explicit(&known, file, memory_order_relaxed);
	}
	return file == ours ? NULL : file;
}

static _Atomic(const char *) why_no_forks;

void fp_owner_forbid_forks(const char *why)
{
	atomic_store(&why_no_forks, why);
}

const char *fp_owner_forbids_forks(void)
{
	return atomic_load(&why_no_forks);
}
