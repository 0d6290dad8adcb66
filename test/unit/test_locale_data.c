/*
 * What the C library allocates for the program and reads on every thread must be local. So the shim
 * opens a bracket (local.h) around such allocations.
 */
#include "far_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <locale.h>
#include <printf.h>
#include <pthread.h>
#include <string.h>
#include <threads.h>
#include <unistd.h>

#include "cleanup.h"
#include "local.h"

#define N_KEYS     40u /* more than lie in a thread's own record */
#define FIRST_KEYS 32u

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* these have an allocator of their own */
#define SEES_ALLOCATIONS 1
static _Thread_local unsigned n_local, n_far; /* allocations inside brackets, and outside */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

static void note(void)
{
	if (fp_local.depth)
		n_local++;
	else
		n_far++;
}

FP_INTERPOSE void *malloc(size_t size)
{
	note();
	return __libc_malloc(size);
}

FP_INTERPOSE void *calloc(size_t n, size_t size)
{
	note();
	return __libc_calloc(n, size);
}
FP_INTERPOSE void *realloc(void *memory, size_t size)
{
	note();
	return __libc_realloc(memory, size);
}

/* free is here too, so that the loader does not mix our functions with its own. */
FP_INTERPOSE void free(void *memory)
{
	__libc_free(memory);
}
#else
#define SEES_ALLOCATIONS 0
static unsigned n_local, n_far;
#endif

static void begin(void)
{
	n_local = n_far = 0;
}

/* Since begin, all was allocated in brackets, and none of them is open. */
static void assert_local(void)
{
	assert_int_equal(n_far, 0);
	assert_true(n_local > 0 || !SEES_ALLOCATIONS);
	assert_int_equal(fp_local.depth, 0);
}

static void assert_none(void)
{
	assert_int_equal(n_far + n_local, 0);
	assert_int_equal(fp_local.depth, 0);
}

static void test_locales(void **state)
{
	locale_t (*newlocale_of_old)(int, const char *, locale_t) =
	    (locale_t(*)(int, const char *, locale_t))dlsym(RTLD_DEFAULT, "__newlocale");
	locale_t (*duplocale_of_old)(locale_t) = (locale_t(*)(locale_t))dlsym(RTLD_DEFAULT, "__duplocale");
	locale_t one, two;

	begin();
	one = newlocale(LC_ALL_MASK, "C.UTF-8", NULL);
	assert_true(one != (locale_t)0);
	assert_local();
	begin();
	two = duplocale(one);
	assert_true(two != (locale_t)0 && two != one);
	assert_local();
	freelocale(two);
	begin();
	two = duplocale_of_old(one);
	assert_true(two != (locale_t)0 && two != one);
	assert_local();
	freelocale(two);
	freelocale(one);
	begin();
	one = newlocale_of_old(LC_ALL_MASK, "C.UTF-8", NULL);
	assert_true(one != (locale_t)0);
	assert_local();
	freelocale(one);
	begin();
	assert_string_equal(setlocale(LC_ALL, "C.UTF-8"), "C.UTF-8");
	assert_local();
	assert_null(setlocale(LC_ALL, "no such locale"));
	assert_string_equal(setlocale(LC_ALL, "C"), "C");
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static int print_nothing(FILE *stream, const struct printf_info *info, const void *const *args)
{
	return 0;
}

static int no_arguments(const struct printf_info *info, size_t n, int *types, int *sizes)
{
	return 0;
}

static int no_arguments_of_old(const struct printf_info *info, size_t n, int *types)
{
	return 0;
}

static void take_nothing(void *memory, va_list *args)
{
}

static void test_additions_to_printf(void **state)
{
	begin();
	assert_int_equal(register_printf_specifier('Y', print_nothing, no_arguments), 0);
	assert_local();
	assert_int_equal(register_printf_function('W', print_nothing, no_arguments_of_old), 0);
	begin();
	assert_true(register_printf_modifier(L"Q") > 0);
	assert_local();
	begin();
	assert_true(register_printf_type(take_nothing) > 0);
	assert_local();
}

/* ---- values of keys ---- */

static pthread_key_t keys[N_KEYS];

/* Runs in a new thread, in which no block of values is allocated yet. */
static void *set_values(void *arg)
{
	void *const value = &keys;

	begin();
	assert_int_equal(pthread_setspecific(keys[N_KEYS - 1], NULL), 0); /* NULL needs no block */
	assert_none();
	assert_int_equal(pthread_setspecific(keys[0], value), 0);
	assert_none();
	assert_int_equal(pthread_setspecific(keys[N_KEYS - 1], value), 0);
	assert_local();
	assert_ptr_equal(pthread_getspecific(keys[N_KEYS - 1]), value);
	begin();
	assert_int_equal(pthread_setspecific(keys[N_KEYS - 1], &value), 0); /* its block exists already */
	assert_int_equal(tss_set(keys[N_KEYS - 2], value), thrd_success);
	assert_none();
	assert_ptr_equal(pthread_getspecific(keys[N_KEYS - 2]), value);
	assert_int_equal(tss_set(100000, value), thrd_error);
	assert_int_equal(pthread_setspecific(100000, value), EINVAL);
	return NULL;
}

static void test_values_of_keys(void **state)
{
	pthread_t thread;

	for (unsigned i = 0; i < N_KEYS; i++)
		assert_int_equal(pthread_key_create(&keys[i], NULL), 0);
	assert_true(keys[N_KEYS - 2] >= FIRST_KEYS);
	assert_int_equal(pthread_create(&thread, NULL, set_values, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	for (unsigned i = 0; i < N_KEYS; i++)
		assert_int_equal(pthread_key_delete(keys[i]), 0);
}

/* ---- groups ---- */

/* The C library hands the list to every thread, so a far list is copied, and not pinned. */
static void test_groups(void **state)
{
	gid_t local[65537] = {0}, *far = (gid_t *)(void *)FAR(FP_PAGE_SIZE - sizeof(gid_t));
	int n = getgroups(FP_ARRAY_LEN(local), local);

	assert_true(n >= 0);
	if (n == 0)
		local[n++] = getgid();
	memcpy(far, local, (size_t)n * sizeof(*far));
	far_rig_close();
	begin();
	assert_true(setgroups((size_t)n, far) == 0 || errno == EPERM);
	assert_local();
	assert_int_equal(far_rig.n_pins, 0);
	begin();
	assert_true(setgroups((size_t)n, local) == 0 || errno == EPERM);
	assert_none();
	far_rig_close();
	assert_int_equal(setgroups(65537, far), -1); /* the list is not even read */
	assert_true(errno == EINVAL || errno == EPERM);
	assert_int_equal(far_rig.n_faults, 0);
	assert_none();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, far_rig_setup, far_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_locales),
	    TEST(test_additions_to_printf),
	    TEST(test_values_of_keys),
	    TEST(test_groups),
	};

	return cmocka_run_group_tests(tests, far_rig_begin, NULL);
}
