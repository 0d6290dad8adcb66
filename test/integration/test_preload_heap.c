/*
 * The malloc family in each --heap mode: which blocks are far, and that malloc's contracts hold.
 * Room: test/integration.
 */
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "statsmap.h"
#include "underpreload.h"

#define SMALL 100u
#define LARGE (1u << 20)

static bool small_far, large_far; /* as FARPAGE_HEAP says */

/* Calls go through volatile pointers, so that the compiler neither removes them nor warns. */
static void *(*volatile allocate)(size_t size) = malloc;
static void *(*volatile allocate_zeroed)(size_t n, size_t size) = calloc;
static void *(*volatile resize_array)(void *ptr, size_t n, size_t size) = reallocarray;

static int choose(void **state)
{
	const char *heap = getenv("FARPAGE_HEAP");

	small_far = strcmp(heap, "all") == 0;
	large_far = strcmp(heap, "none") != 0;
	return 0;
}

/*
 * Small objects come from slabs. Slabs from before the agent's start may be used first. So this
 * looks at an object of a new slab.
 */
static bool new_small_is_far(void)
{
	bool far = false;

	for (unsigned i = 0; i < 10000 && !far; i++) {
		char *p = allocate(SMALL);

		memset(p, 1, SMALL);
		far = i % 1000 == 999 && test_is_far(p);
	}
	return far;
}

static void what_is_far(void **state)
{
	char *p = allocate(LARGE);

	assert_int_equal(test_is_far(p), large_far);
	free(p);
	assert_int_equal(new_small_is_far(), small_far);
	p = calloc(1, LARGE);
	assert_int_equal(test_is_far(p), large_far);
	free(p);
	p = aligned_alloc(LARGE, LARGE);
	assert_int_equal(test_is_far(p), large_far);
	free(p);
}

static void *of_a_thread(void *large)
{
	*(char **)large = allocate(LARGE);
	return (void *)(intptr_t)new_small_is_far();
}

static void threads_too(void **state)
{
	for (unsigned i = 0; i < 10; i++) {
		void *far, *large;
		pthread_t thread;

		assert_int_equal(pthread_create(&thread, NULL, of_a_thread, &large), 0);
		assert_int_equal(pthread_join(thread, &far), 0);
		assert_int_equal((intptr_t)far, small_far);
		assert_int_equal(test_is_far(large), large_far);
		free(large);
	}
}

/* In each mode, memory that the agent itself allocates on a thread of the program is local. */
static void agent_is_local(void **state)
{
	void (*enter)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "fp_shim_enter_local");
	void (*leave)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "fp_shim_leave_local");
	void *mem[3];
	bool small;

	for (unsigned i = 0; i < 100; i++) /* fills the thread's cache with far objects */
		free(allocate(SMALL));
	enter();
	enter();
	leave();
	small = new_small_is_far();
	mem[0] = allocate(LARGE);
	mem[1] = realloc(allocate(SMALL), LARGE);
	mem[2] = mmap(NULL, LARGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	leave();
	assert_false(small);
	for (unsigned i = 0; i < 3; i++)
		assert_false(test_is_far(mem[i]));
	munmap(mem[2], LARGE);
	mem[2] = allocate(LARGE);
	assert_int_equal(test_is_far(mem[2]), large_far);
	for (unsigned i = 0; i < 3; i++)
		free(mem[i]);
}

static void reallocation(void **state)
{
	static const size_t sizes[] = {1, 100, 65535, 65536, 3 * LARGE, 65536, 60000, 100, 5 * LARGE, 8};
	unsigned seed = 1;
	size_t kept = 0;
	char *p = NULL;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		p = realloc(p, sizes[i]);
		assert_non_null(p);
		assert_true(test_is_filled(p, kept < sizes[i] ? kept : sizes[i], seed));
		if (sizes[i] >= 65536)
			assert_int_equal(test_is_far(p), large_far);
		else if (!small_far)
			assert_false(test_is_far(p));
		test_fill(p, kept = sizes[i], ++seed);
	}
	assert_null(realloc(p, 0));
	p = resize_array(NULL, 1000, 1000);
	assert_true(malloc_usable_size(p) >= 1000000);
	errno = 0;
	assert_null(resize_array(p, SIZE_MAX / 2, 3));
	assert_int_equal(errno, ENOMEM);
	free(p);
}

static void zeroed(void **state)
{
	static const size_t sizes[] = {SMALL, 20000, LARGE};

	for (unsigned round = 0; round < 3; round++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			char *p = calloc(sizes[i], 1);

			assert_true(p[0] == 0 && memcmp(p, p + 1, sizes[i] - 1) == 0);
			memset(p, 0xff, sizes[i]);
			free(p);
		}
}

/* Long blocks are zeroed page by page. The neighbours of a block must keep every byte. */
static void zeroed_among_others(void **state)
{
	static const size_t sizes[] = {40000, 70001, LARGE + 8};
	char *block[32];

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		for (unsigned i = 0; i < 32; i++)
			test_fill(block[i] = allocate(sizes[s]), sizes[s], i);
		for (unsigned i = 0; i < 32; i += 2)
			free(block[i]);
		for (unsigned i = 0; i < 32; i += 2) {
			block[i] = allocate_zeroed(1, sizes[s]);
			assert_true(block[i][0] == 0 && memcmp(block[i], block[i] + 1, sizes[s] - 1) == 0);
			test_fill(block[i], sizes[s], i);
		}
		for (unsigned i = 0; i < 32; i++) {
			assert_true(test_is_filled(block[i], sizes[s], i));
			free(block[i]);
		}
	}
}

/* calloc must not fetch a remote page only to overwrite it with zeros. */
static void zeroed_from_afar(void **state)
{
	const struct fp_statspage *stats;
	uint64_t fetched;
	char *p;

	if (!small_far || getenv("FARPAGE_FAULT_MODE")) /* in inline mode, jemalloc writes the zeros itself */
		return;
	stats = fp_statsmap_own();
	assert_non_null(stats);
	for (unsigned round = 0; round < 4; round++) {
		p = allocate((size_t)3 * LARGE);
		test_fill(p, (size_t)3 * LARGE, round);
		free(p);
		fetched = atomic_load(&stats->fetched_bytes);
		p = allocate_zeroed(3, LARGE);
		assert_in_range(atomic_load(&stats->fetched_bytes) - fetched, 0, LARGE);
		assert_true(p[0] == 0 && memcmp(p, p + 1, (size_t)3 * LARGE - 1) == 0);
		free(p);
	}
}

static void alignment(void **state)
{
	void *p = NULL;

	for (size_t align = sizeof(void *); align <= 4 * LARGE; align *= 2) {
		assert_int_equal(posix_memalign(&p, align, 3 * align / 2), 0);
		assert_int_equal((uintptr_t)p % align, 0);
		free(p);
		p = memalign(align, 1);
		assert_int_equal((uintptr_t)p % align, 0);
		free(p);
	}
	p = memalign(24, 1); /* the next power of 2 */
	assert_true(p && (uintptr_t)p % 32 == 0);
	free(p);
	errno = 0;
	assert_null(memalign(SIZE_MAX / 2 + 2, 1));
	assert_int_equal(errno, EINVAL);
	assert_int_equal(posix_memalign(&p, 24, 1), EINVAL);
	assert_int_equal(posix_memalign(&p, 2, 1), EINVAL);
	p = valloc(1);
	assert_int_equal((uintptr_t)p % 4096, 0);
	free(p);
	p = pvalloc(4097);
	assert_true((uintptr_t)p % 4096 == 0 && malloc_usable_size(p) >= 8192);
	free(p);
}

static void small_alignment(void **state)
{
	uintptr_t all = 0;

	for (unsigned i = 0; i < 1000; i++) /* the leaks leave no block for the next to reuse */
		all |= (uintptr_t)allocate(i % 40) | (uintptr_t)allocate_zeroed(1, i % 40) |
		       (uintptr_t)resize_array(NULL, 1, i % 40 + 1) |
		       (uintptr_t)resize_array(allocate(100), 1, 1);
	assert_int_equal(all % alignof(max_align_t), 0);
}

/* The C library's other names for the family. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *ptr, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void *__libc_valloc(size_t size);
void *__libc_pvalloc(size_t size);
void __libc_free(void *ptr);

static void other_names(void **state)
{
	void (*cfree)(void *) = (void (*)(void *))dlvsym(RTLD_DEFAULT, "cfree", "GLIBC_2.2.5");
	void *of_theirs[] = {__libc_malloc(100), __libc_calloc(1, 100),    __libc_realloc(allocate(10), 100),
	                     __libc_valloc(100), __libc_memalign(64, 100), __libc_pvalloc(100)};

	for (size_t i = 0; i < sizeof(of_theirs) / sizeof(*of_theirs); i++)
		free(realloc(of_theirs[i], LARGE));
	__libc_free(allocate(100));
	__libc_free(allocate(LARGE));
	if (cfree) /* gone from newer processors' C libraries */
		cfree(allocate(100));
}

static void edges(void **state)
{
	size_t absurd = SIZE_MAX - 4000;
	void *p = allocate(0), *q = allocate(0);

	assert_true(p && q && p != q);
	free(p);
	free(q);
	free(NULL);
	assert_int_equal(malloc_usable_size(NULL), 0);
	errno = 0;
	assert_null(allocate(absurd));
	assert_int_equal(errno, ENOMEM);
	errno = 0;
	assert_null(allocate_zeroed(absurd, 2));
	assert_int_equal(errno, ENOMEM);
	errno = 0;
	p = allocate(100);
	assert_null(resize_array(p, 1, absurd));
	assert_int_equal(errno, ENOMEM);
	free(p);
	errno = 77;
	assert_int_equal(posix_memalign(&p, 16, absurd), ENOMEM);
	assert_int_equal(errno, 77);
	assert_null(pvalloc(SIZE_MAX));
	p = calloc(0, 0);
	assert_non_null(p);
	free(p);
}

/* The pool has 512 MiB. */
static void pool_full(void **state)
{
	char *p = allocate((size_t)1 << 30);

	if (large_far)
		assert_null(p);
	else
		assert_non_null(p);
	free(p);
	p = allocate(LARGE);
	assert_non_null(p);
	free(p);
}

/* Threads pass blocks to one another, and check the bytes of the blocks that they get. */
#define HANDS  64
#define ROUNDS 4000

struct gift {
	size_t words;
	uint64_t word[];
};

static struct gift *_Atomic hands[HANDS];

static void check_and_free(struct gift *gift)
{
	if (!gift)
		return;
	for (size_t i = 0; i < gift->words; i++)
		if (gift->word[i] != gift->words + i)
			abort();
	free(gift);
}

static void *give(void *seed)
{
	unsigned random = (unsigned)(uintptr_t)seed;

	for (unsigned round = 0; round < ROUNDS; round++) {
		size_t words = 1 + (size_t)rand_r(&random) % (round % 50 ? 300 : 20000);
		struct gift *gift = allocate(sizeof(*gift) + words * sizeof(uint64_t));

		gift->words = words;
		for (size_t i = 0; i < words; i++)
			gift->word[i] = words + i;
		check_and_free(atomic_exchange(&hands[(unsigned)rand_r(&random) % HANDS], gift));
	}
	return NULL;
}

static void many_threads(void **state)
{
	unsigned seed = (unsigned)getpid();
	pthread_t thread[4];

	printf("seed %u\n", seed);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, give, (void *)(uintptr_t)(seed + i)), 0);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	for (unsigned i = 0; i < HANDS; i++)
		check_and_free(hands[i]);
	assert_true(test_far_resident_bytes() <= TEST_LOCAL_BYTES + (1u << 20));
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(what_is_far),
	    cmocka_unit_test(threads_too),
	    cmocka_unit_test(agent_is_local),
	    cmocka_unit_test(reallocation),
	    cmocka_unit_test(zeroed),
	    cmocka_unit_test(alignment),
	    cmocka_unit_test(small_alignment),
	    cmocka_unit_test(other_names),
	    cmocka_unit_test(edges),
	    cmocka_unit_test(pool_full),
	    cmocka_unit_test(many_threads),
	    cmocka_unit_test(zeroed_among_others),
	    cmocka_unit_test(zeroed_from_afar),
	};

	return cmocka_run_group_tests(all, choose, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
