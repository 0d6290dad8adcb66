/*
 * What the C library allocates for the program and then looks at on every thread, the agent's own
 * included: locales, which a thread reads when it starts, and what a program taught printf, which
 * is looked up whenever anybody formats a number. All this is local. libquadmath, and with it
 * whatever was written in Fortran, teaches printf when it is loaded. So are the blocks in which it
 * keeps threads' values of their keys: a child of fork clears those of the other threads before any
 * handler runs. Room: preload.
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
#include "shim.h"

/* Defines name as the C library's function, which allocates local memory then. */
#define KEPT_LOCAL(type, name, parameters, ...)                                                              \
	FP_INTERPOSE type name parameters                                                                    \
	{                                                                                                    \
		uint64_t signals = fp_local_enter_masked();                                                  \
		type made = FP_NEXT(name)(__VA_ARGS__);                                                      \
                                                                                                             \
		fp_local_leave_masked(signals);                                                              \
		return made;                                                                                 \
	}

/* The names by which libstdc++ calls them. */
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

/* The first keys have their place in the thread's own record. */
#define FIRST_KEYS 32u

/* The allocator's first call comes before any constructor; what it sets is of a first key. */
FP_INTERPOSE int pthread_setspecific(pthread_key_t key, const void *value)
{
	uint64_t signals;
	int r;

	if (key < FIRST_KEYS || !value ||
	    pthread_getspecific(key)) /* the others are allocated for the first */
		return FP_NEXT(pthread_setspecific)(key, value);
	signals = fp_local_enter_masked();
	r = FP_NEXT(pthread_setspecific)(key, value);
	fp_local_leave_masked(signals);
	return r;
}

FP_INTERPOSE int tss_set(tss_t key, void *value)
{
	return pthread_setspecific(key, value) == 0 ? thrd_success : thrd_error;
}

/* ---- groups ---- */

FP_INNER_CALL(setgroups);

/*
 * The C library has every thread make this call, the agent's own included, which would wait for
 * themselves where the list is far. A list that is too long to be right, the kernel refuses unread.
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
