/*
 * Functions of the C library that a program gets by dlsym, as foreign function interfaces do: they
 * must be the shim's. Another library that defines such a function must get the next one. Room:
 * test/integration.
 */
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <sys/wait.h>

#include "preload_map_rig.h"

#define HOOKED  "sigpending" /* hookinglibrary.c defines it */
#define OLD     "GLIBC_2.2.5"
#define LIBRARY "libc.so.6"

/* Names whose oldest version in the C library is another function than the one of today. */
static const char *const changed[] = {
    "glob",
    "glob64",
    "lio_listio",
    "lio_listio64",
    "nftw",
    "nftw64",
    "posix_spawn",
    "posix_spawnp",
    "pthread_cond_broadcast",
    "pthread_cond_destroy",
    "pthread_cond_signal",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_getaffinity_np",
    "pthread_setaffinity_np",
    "realpath",
    "sched_getaffinity",
    "sched_setaffinity",
    "timer_create",
    "timer_delete",
    "timer_getoverrun",
    "timer_gettime",
    "timer_settime",
};

static void *c_library;
static struct link_map *shim;

/* ---- the names that the shim exports ---- */

static const void *dynamic(const struct link_map *map, ElfW(Sxword) tag)
{
	const ElfW(Dyn) *d = map->l_ld;

	while (d->d_tag != tag && d->d_tag != DT_NULL)
		d++;
	assert_int_equal(d->d_tag, tag);
	return (const void *)d->d_un.d_ptr;
}

/* Calls visit for each function that the shim exports. Returns how many there are. */
static unsigned each_export(void (*visit)(const char *name, const void *own))
{
	const char *strings = dynamic(shim, DT_STRTAB);
	const ElfW(Sym) *symbol = dynamic(shim, DT_SYMTAB);
	unsigned n = 0;

	for (; (const char *)symbol < strings; symbol++)
		if (symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC) {
			visit(strings + symbol->st_name, (const char *)shim->l_addr + symbol->st_value);
			n++;
		}
	return n;
}

static bool has_changed(const char *name)
{
	for (size_t i = 0; i < sizeof(changed) / sizeof(*changed); i++)
		if (strcmp(changed[i], name) == 0)
			return true;
	return false;
}

static unsigned n_different;

static void compare(const char *name, const void *own, const void *found)
{
	if (!found || found == own)
		return;
	fprintf(stderr, "%s is not the shim's\n", name);
	n_different++;
}

static void look_up(const char *name, const void *own)
{
	if (strcmp(name, HOOKED) == 0)
		return;
	compare(name, own, dlsym(c_library, name));
	if (!has_changed(name)) {
		compare(name, own, dlvsym(c_library, name, OLD));
		compare(name, own, dlvsym(RTLD_DEFAULT, name, OLD));
		compare(name, own, dlvsym(RTLD_NEXT, name, OLD));
	}
	compare(name, own, dlsym(RTLD_DEFAULT, name));
	compare(name, own, dlsym(RTLD_NEXT, name));
}

static void all_names(void **state)
{
	assert_in_range(each_export(look_up), 500, 5000);
	assert_int_equal(n_different, 0);
}

/* ---- other libraries that look up ---- */

static bool is_in(const void *code, const char *library)
{
	Dl_info info;

	return code && dladdr(code, &info) && strstr(info.dli_fname, library);
}

static void *own_of(const char *name)
{
	void *own = dlsym(RTLD_DEFAULT, name);

	assert_true(is_in(own, "farpage-preload"));
	return own;
}

/* A library that defines a function gets the C library's, by each way. Others get the shim's. */
static void other_libraries(void **state)
{
	void *(*next)(const char *) = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "fp_hooking_next");
	void *(*next_version)(const char *, const char *) =
	    (void *(*)(const char *, const char *))dlsym(RTLD_DEFAULT, "fp_hooking_next_version");
	void *(*in)(const char *, const char *) =
	    (void *(*)(const char *, const char *))dlsym(RTLD_DEFAULT, "fp_hooking_in");
	int *(*calls)(void) = (int *(*)(void))dlsym(RTLD_DEFAULT, "fp_hooking_calls");
	int before = *calls();
	sigset_t set;

	assert_true(is_in(next(HOOKED), LIBRARY));
	assert_true(is_in(next_version(HOOKED, OLD), LIBRARY));
	assert_true(is_in(in(LIBRARY, HOOKED), LIBRARY));
	assert_ptr_equal(next("munmap"), own_of("munmap"));
	assert_ptr_equal(next_version("munmap", OLD), own_of("munmap"));
	assert_ptr_equal(in(LIBRARY, "munmap"), own_of("munmap"));
	assert_true(is_in(next("strlen"), LIBRARY));
	assert_int_equal(sigpending(&set), 0);
	assert_int_equal(*calls(), before + 1);
}

static void errors(void **state)
{
	assert_null(dlsym(c_library, "no_such_function"));
	assert_non_null(dlsym(c_library, "munmap"));
	assert_null(dlerror());
	assert_null(dlsym(c_library, "no_such_function"));
	assert_non_null(strstr(dlerror(), "no_such_function"));
	assert_null(dlerror());
	assert_null(dlvsym(c_library, "munmap", "GLIBC_1.0"));
	assert_non_null(strstr(dlerror(), "GLIBC_1.0"));
	assert_null(dlsym(RTLD_NEXT, "no_such_function"));
	assert_non_null(strstr(dlerror(), "no_such_function"));
}

/* In a namespace of its own, a library would have a C library that the shim does not see. */
static void namespaces(void **state)
{
	void *same = dlmopen(LM_ID_BASE, LIBRARY, RTLD_LAZY | RTLD_DEEPBIND);

	assert_ptr_equal(dlsym(same, "munmap"), own_of("munmap"));
	assert_null(dlmopen(LM_ID_NEWLM, LIBRARY, RTLD_LAZY));
	assert_non_null(strstr(dlerror(), "namespace"));
	dlclose(same);
}

/* ---- what the functions do to far memory ---- */

#define BY_HANDLE(name) ((__typeof__(&name))dlsym(c_library, #name))

static void discard(void **state)
{
	char *p = map_filled(BIG, 1);

	assert_int_equal(BY_HANDLE(madvise)(p, BIG, MADV_DONTNEED), 0);
	assert_true(is_zero(p, BIG));
	assert_int_equal(BY_HANDLE(munmap)(p, BIG / 2), 0);
	assert_true(is_zero(p + BIG / 2, BIG / 2));
	munmap(p + BIG / 2, BIG / 2);
}

static void wipe_on_fork(void **state)
{
	char *p = map_filled(BIG, 2);
	int status;
	pid_t pid;

	assert_int_equal(BY_HANDLE(madvise)(p, BIG, MADV_WIPEONFORK), 0);
	pid = BY_HANDLE(fork)();
	if (pid == 0)
		_exit(!is_zero(p, BIG));
	assert_int_equal(BY_HANDLE(waitpid)(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(test_is_filled(p, BIG, 2));
	munmap(p, BIG);
}

static void read_far(void **state)
{
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	char *p = map_filled(BIG, 3);

	assert_int_equal(BY_HANDLE(read)(fd, p, BIG), BIG);
	assert_true(is_zero(p, BIG));
	close(fd);
	munmap(p, BIG);
}

/* What the C library's strdup and malloc return goes to its free. */
static void memory(void **state)
{
	for (size_t n = 1; n < BIG; n *= 4) {
		char *p = BY_HANDLE(malloc)(n), *q = malloc(n);

		memset(p, 'a', n - 1);
		p[n - 1] = 0;
		free(BY_HANDLE(strdup)(p));
		BY_HANDLE(free)(q);
		BY_HANDLE(free)(strdup(p));
		free(BY_HANDLE(realloc)(p, 2 * n));
	}
}

static int begin(void **state)
{
	void *library;

	c_library = dlopen(LIBRARY, RTLD_LAZY);
	library = dlopen("libfarpage-preload.so", RTLD_LAZY | RTLD_NOLOAD);
	return c_library && library ? dlinfo(library, RTLD_DI_LINKMAP, &shim) : -1;
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(all_names),  cmocka_unit_test(other_libraries), cmocka_unit_test(errors),
	    cmocka_unit_test(namespaces), cmocka_unit_test(discard),         cmocka_unit_test(wipe_on_fork),
	    cmocka_unit_test(read_far),   cmocka_unit_test(memory),
	};

	return cmocka_run_group_tests(all, begin, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
