/*
 * A library that is preloaded after the shim. It defines a function of the C library that the shim
 * defines, too, and looks others up. Room: test/integration, for test_preload_handles.
 */
#include <dlfcn.h>
#include <signal.h>

#define EXPORT __attribute__((visibility("default")))

void *fp_hooking_next(const char *name);
void *fp_hooking_next_version(const char *name, const char *version);
void *fp_hooking_in(const char *library, const char *name);
int *fp_hooking_calls(void);

static int calls;

EXPORT void *fp_hooking_next(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	__asm__ volatile("" : "+r"(found)); /* so that the call above is no jump */
	return found;
}

EXPORT void *fp_hooking_next_version(const char *name, const char *version)
{
	void *found = dlvsym(RTLD_NEXT, name, version);

	__asm__ volatile("" : "+r"(found));
	return found;
}

EXPORT void *fp_hooking_in(const char *library, const char *name)
{
	void *handle = dlopen(library, RTLD_LAZY), *found = dlsym(handle, name);

	dlclose(handle);
	return found;
}

EXPORT int *fp_hooking_calls(void)
{
	return &calls;
}

EXPORT int sigpending(sigset_t *set)
{
	int (*next)(sigset_t *) = (int (*)(sigset_t *))dlsym(RTLD_NEXT, "sigpending");

	calls++;
	return next(set);
}
