/*
 * Memory that the C library allocates for the program, but reads on every thread, also on the
 * agent's. So it must be local. There are three kinds:
 *   - Locales: a thread reads them when it starts.
 *   - Additions to printf, which looks them up for every number. The library libquadmath, which all
 *     Fortran programs use, makes some when it is loaded.
 *   - Blocks of values that threads set by pthread_setspecific: a child of fork clears the blocks
 *     of other threads before any handler runs.
 * Room: preload/syscalls.
 */
#include <errno.h>
#include <grp.h>
#include <locale.h>
#include <printf.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

#include "calls.h"
#include "local.h"
#include "owner.h"
#include "shim.h"

/* Defines name as the C library's function in a bracket, so that it allocates local memory. */
#define KEPT_LOCAL(type, name, parameters, ...)                                                              \
	FP_INTERPOSE type name parameters                                                                    \
	{                                                                                                    \
		__typeof__(&name) next = FP_NEXT(name);                                                      \
		uint64_t signals = fp_local_enter_masked();                                                  \
		type made = next(__VA_ARGS__);                                                               \
                                                                                                             \
		fp_local_leave_masked(signals);                                                              \
		return made;                                                                                 \
	}

/* The names by which libstdc++ calls these functions. */
FP_INTERPOSE locale_t __newlocale(int mask, const char *name, locale_t base);
FP_INTERPOSE locale_t __duplocale(locale_t from);

KEPT_LOCAL(char *, setlocale, (int category, const char *name), category, name)
KEPT_LOCAL(locale_t, newlocale, (int mask, const char *name, locale_t base), mask, name, base)
KEPT_LOCAL(locale_t, __newlocale, (int mask, const char *name, locale_t base), mask, name, base)
KEPT_LOCAL(locale_t, duplocale, (locale_t from), from)
KEPT_LOCAL(locale_t, __duplocale, (locale_t from), from)

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

KEPT_LOCAL(int, register_printf_specifier,
           (int spec, printf_function *print, printf_arginfo_size_function *info), spec, print, info)
KEPT_LOCAL(int, register_printf_function, (int spec, printf_function *print, printf_arginfo_function *info),
           spec, print, info)
KEPT_LOCAL(int, register_printf_modifier, (const wchar_t *text), text)
KEPT_LOCAL(int, register_printf_type, (printf_va_arg_function * get), get)

/* ---- threads' values of keys ---- */

/*
 * The values of this many keys, the first ones, lie in the thread's own record, without an
 * allocation.
 */
#define FIRST_KEYS 32u

/*
 * The allocator calls this before any constructor of ours has run, but only for one of the first
 * keys.
 */
FP_INTERPOSE int pthread_setspecific(pthread_key_t key, const void *value)
{
	__typeof__(&pthread_setspecific) next = FP_NEXT(pthread_setspecific);
	uint64_t signals;
	int r;

	if (key < FIRST_KEYS || !value ||
	    pthread_getspecific(key)) /* a key with a value has its block already */
		return next(key, value);
	if (fp_owner_file())
		fp_owner_forbid_forks("a thread has set a value of a key beyond the first 32");
	signals = fp_local_enter_masked();
	r = next(key, value);
	fp_local_leave_masked(signals);
	return r;
}

FP_ALSO_AS(pthread_setspecific) __typeof__(pthread_setspecific) __pthread_setspecific;

FP_INTERPOSE int tss_set(tss_t key, void *value)
{
	return pthread_setspecific(key, value) == 0 ? thrd_success : thrd_error;
}

/* ---- groups ---- */

FP_INNER_CALL(setgroups);

/*
 * The C library makes this call on every thread, also on the agent's. A far list would make the
 * agent's threads wait for themselves, so we pass a local copy. The kernel refuses a list that is
 * too long, without reading it.
 */
FP_INTERPOSE int setgroups(size_t n, const gid_t *list)
{
	const size_t most = 65536;
	uint64_t signals;
	gid_t *copy;
	int r;

	if (n == 0 || n > most || !fp_shim_space() || !fp_space_owns(fp_shim_space(), list))
		return fp_call_setgroups(n, list);
	signals = fp_local_enter_masked();
	copy = malloc(n * sizeof(*copy));
	fp_local_leave_masked(signals);
	if (!copy) {
		errno = ENOMEM;
		return -1;
	}
	memcpy(copy, list, n * sizeof(*copy));
	r = fp_call_setgroups(n, copy);
	free(copy);
	return r;
}
