/*
 * What the C library allocates for the program and then looks at on every thread, the agent's own included:
 * locales, which a thread reads when it starts, and what a program taught printf, which is looked up whenever
 * anybody formats a number. All this is local. libquadmath, and with it whatever was written in Fortran,
 * teaches printf when it is loaded. Room: uffd/preload.
 */
#include <dlfcn.h>
#include <locale.h>
#include <printf.h>

#include "local.h"
#include "shim.h"

/* The C library's own function of that name. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The names by which libstdc++ calls them. */
FP_INTERPOSE locale_t __newlocale(int mask, const char *name, locale_t base);
FP_INTERPOSE locale_t __duplocale(locale_t from);

/* ---- locales ---- */

FP_INTERPOSE char *setlocale(int category, const char *name)
{
	char *chosen;

	fp_shim_enter_local();
	chosen = NEXT(setlocale)(category, name);
	fp_shim_leave_local();
	return chosen;
}

FP_INTERPOSE locale_t newlocale(int mask, const char *name, locale_t base)
{
	locale_t made;

	fp_shim_enter_local();
	made = NEXT(newlocale)(mask, name, base);
	fp_shim_leave_local();
	return made;
}

locale_t __newlocale(int mask, const char *name, locale_t base)
{
	return newlocale(mask, name, base);
}

FP_INTERPOSE locale_t duplocale(locale_t from)
{
	locale_t made;

	fp_shim_enter_local();
	made = NEXT(duplocale)(from);
	fp_shim_leave_local();
	return made;
}

locale_t __duplocale(locale_t from)
{
	return duplocale(from);
}

/* ---- printf ---- */

FP_INTERPOSE int register_printf_specifier(int spec, printf_function *print,
                                           printf_arginfo_size_function *info)
{
	int r;

	fp_shim_enter_local();
	r = NEXT(register_printf_specifier)(spec, print, info);
	fp_shim_leave_local();
	return r;
}

FP_INTERPOSE int register_printf_modifier(const wchar_t *text)
{
	int r;

	fp_shim_enter_local();
	r = NEXT(register_printf_modifier)(text);
	fp_shim_leave_local();
	return r;
}

FP_INTERPOSE int register_printf_type(printf_va_arg_function *get)
{
	int r;

	fp_shim_enter_local();
	r = NEXT(register_printf_type)(get);
	fp_shim_leave_local();
	return r;
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

FP_INTERPOSE int register_printf_function(int spec, printf_function *print, printf_arginfo_function *info)
{
	int r;

	fp_shim_enter_local();
	r = NEXT(register_printf_function)(spec, print, info);
	fp_shim_leave_local();
	return r;
}
