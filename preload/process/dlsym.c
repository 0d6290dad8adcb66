/*
 * dlsym and dlvsym. By a handle of the C library, a program would find the C library's functions
 * past ours. Foreign function interfaces of languages find functions that way. Room:
 * preload/process.
 *
 * We return our function exactly where the program would get the one that ours calls. If another
 * library's definition comes between, then that library may look up what it calls itself. Our
 * function there would call that library for ever. For the same reason, a library that defines a
 * name gets the next definition by RTLD_NEXT, past ours.
 *
 * With RTLD_DEFAULT and RTLD_NEXT, the library of the return address decides where the C library
 * searches. So both of our functions end by a jump, as dlopen does.
 */
#include <dlfcn.h>

#include "jump.h"
#include "lookup.h"
#include "shim.h"

/* Returns what the program gets in place of found. Keeps the state of dlerror: no error. */
static void *replace(void *found, const char *name, const char *version)
{
	void *own = found ? fp_lookup_own(name) : NULL, *next;

	if (!own || own == found)
		return found;
	next = fp_lookup_next(name, version);
	if (!next)
		dlerror();
	return found == next ? own : found;
}

static void *find_in(void *library, const char *name)
{
	return replace(fp_lookup_dlsym()(library, name), name, NULL);
}

static void *find_version_in(void *library, const char *name, const char *version)
{
	return replace(fp_lookup_dlvsym()(library, name, version), name, version);
}

static void *find_next(void *unused, const char *name)
{
	return replace(fp_lookup_next(name, NULL), name, NULL);
}

static void *find_next_version(void *unused, const char *name, const char *version)
{
	return replace(fp_lookup_next(name, version), name, version);
}

/* How a lookup from this caller is made. */
enum dlsym_way { WAY_PLAIN, WAY_IN_LIBRARY, WAY_NEXT };

static enum dlsym_way way_of(const void *handle, const char *name, const void *caller)
{
	if (handle == RTLD_NEXT)
		return fp_lookup_own(name) && fp_lookup_is_bystander(caller, name) ? WAY_NEXT : WAY_PLAIN;
	return handle == RTLD_DEFAULT ? WAY_PLAIN : WAY_IN_LIBRARY;
}

/*
 * Our functions have no version, so a lookup with a version passes them, unlike one without. Here
 * it gets them where the other would.
 */
static enum dlsym_way way_of_version(const void *handle, const char *name, const char *version,
                                     const void *caller)
{
	enum dlsym_way way = way_of(handle, name, caller);
	const void *own = way == WAY_PLAIN ? fp_lookup_own(name) : NULL;

	if (!own)
		return way;
	if (handle == RTLD_NEXT ? !fp_lookup_is_next(caller, name)
	                        : fp_lookup_dlsym()(RTLD_DEFAULT, name) != own)
		return WAY_PLAIN;
	return fp_lookup_next(name, version) ? WAY_NEXT : WAY_PLAIN;
}

FP_JUMPS FP_INTERPOSE void *dlsym(void *restrict handle, const char *restrict name)
{
	fp_dlsym_fn *ways[] = {fp_lookup_dlsym(), find_in, find_next};

	FP_AS_JUMP return ways[way_of(handle, name, __builtin_return_address(0))](handle, name);
}

FP_JUMPS FP_INTERPOSE void *dlvsym(void *restrict handle, const char *restrict name,
                                   const char *restrict version)
{
	fp_dlvsym_fn *ways[] = {fp_lookup_dlvsym(), find_version_in, find_next_version};

	FP_AS_JUMP return ways[way_of_version(handle, name, version, __builtin_return_address(0))](
	    handle, name, version);
}
