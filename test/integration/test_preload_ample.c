/*
 * A program that fits in local memory as a whole: the kernel fills its fresh pages. The agent
 * serves at most one fault a chunk, and none in short mappings. The test counts faults, and
 * measures no time. Room: test/integration.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "race.h"
#include "statsmap.h"
#include "underpreload.h"

#define PAGE    4096u
#define CHUNK   (2u << 20)
#define REGIONS 24u
/* Odd, so that no two mappings begin at the same place in a chunk. */
#define ODD (161u * PAGE)

static const struct fp_statspage *stats;

static int open_stats(void **state)
{
	stats = fp_statsmap_own();
	return stats ? 0 : -1;
}

static uint64_t n_faults(void)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < FP_FAULT_KINDS; i++)
		n += atomic_load(&stats->faults[i]);
	return n;
}

static char *map(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	assert_true(test_is_far(p) || test_is_native(p));
	return p;
}

/* Short mappings share chunks, which become kernel-filled part by part. */
static void neighbours(void **state)
{
	uint64_t before = n_faults();
	char *region[REGIONS];

	for (unsigned i = 0; i < REGIONS; i++) {
		region[i] = map(ODD);
		test_fill(region[i], ODD, i + 1);
	}
	assert_int_equal(n_faults(), before);
	for (unsigned i = 0; i < REGIONS; i += 2)
		assert_int_equal(madvise(region[i], ODD, MADV_PAGEOUT), 0);
	for (unsigned i = 0; i < REGIONS; i++) {
		assert_true(test_is_filled(region[i], ODD, i + 1));
		assert_int_equal(munmap(region[i], ODD), 0);
	}
}

/*
 * A program may touch a long mapping only here and there. Each chunk that it touches takes one
 * fault.
 */
static void long_ones(void **state)
{
	size_t len = 8 * (size_t)CHUNK;
	char *p = map(len);
	uint64_t before = n_faults();

	assert_true(test_is_far(p) && test_is_far(p + len / 2));
	test_fill(p, len, 3);
	for (unsigned i = 0; n_faults() - before < len / CHUNK && i < 1000000; i++)
		sched_yield(); /* a fault is counted after its thread goes on */
	assert_in_range(n_faults() - before, len / CHUNK, len / CHUNK + 2);
	assert_true(test_is_filled(p, len, 3));
	assert_int_equal(munmap(p, len), 0);
}

/*
 * A mapping may have tokens for pages that were never touched. Other mappings get these tokens if
 * they need them.
 */
static void never_touched(void **state)
{
	enum { N = 64 };
	uint64_t budget = atomic_load(&stats->budget_bytes);
	size_t len = budget * 5 / 8 / N / PAGE * PAGE;
	char *unused[N], *used[N];

	for (unsigned i = 0; i < N; i++)
		unused[i] = map(len);
	for (unsigned i = 0; i < N; i++) {
		used[i] = map(len);
		test_fill(used[i], len, i + 1);
	}
	for (unsigned i = 0; i < N; i++) {
		assert_true(test_is_filled(used[i], len, i + 1));
		for (size_t at = 0; at < len; at += PAGE)
			assert_int_equal(unused[i][at], 0);
		assert_int_equal(munmap(unused[i], len), 0);
		assert_int_equal(munmap(used[i], len), 0);
	}
}

/* A hole that is mapped again reads as zeros, whatever state its chunk has then. */
static void holes(void **state)
{
	char *region[REGIONS];

	for (unsigned round = 0; round < 4; round++) {
		for (unsigned i = round % 2; i < REGIONS; i += round ? 2 : 1) {
			region[i] = map(ODD);
			for (size_t at = 0; at < ODD; at += PAGE)
				assert_int_equal(region[i][at], 0);
			test_fill(region[i], ODD, i + 1);
		}
		for (unsigned i = (round + 1) % 2; i < REGIONS; i += 2) {
			assert_true(test_is_filled(region[i], ODD, i + 1));
			assert_int_equal(munmap(region[i], ODD), 0);
		}
	}
	for (unsigned i = 1; i < REGIONS; i += 2)
		assert_int_equal(munmap(region[i], ODD), 0);
}

/* Small objects, one after the other: the allocator asks for larger and larger extents. */
static void heap(void **state)
{
	enum { OBJECTS = 60000, SIZE = 800 };
	static char *object[OBJECTS];
	uint64_t before = n_faults(), grown;

	for (unsigned i = 0; i < OBJECTS; i++) {
		object[i] = malloc(SIZE);
		assert_non_null(object[i]);
		test_fill(object[i], SIZE, i);
	}
	grown = n_faults() - before;
	assert_true(grown <= 3ull * OBJECTS * SIZE / CHUNK + 16);
	for (unsigned i = 0; i < OBJECTS; i++) {
		assert_true(test_is_filled(object[i], SIZE, i));
		free(object[i]);
	}
}

/* Pages that the parent never touched are fresh in its child, too. */
static void children(void **state)
{
	size_t len = 4 * (size_t)CHUNK;
	char *all = map(len + CHUNK), *p = all + (CHUNK - (uintptr_t)all % CHUNK) % CHUNK;
	int status;
	pid_t pid;

	for (size_t at = 0; at < len; at += CHUNK)
		test_fill(p + at, CHUNK / 4, 7);
	pid = fork();
	if (pid == 0) {
		uint64_t n;

		if (open_stats(NULL) < 0)
			_exit(2);
		n = n_faults();
		for (size_t at = 0; at < len; at += CHUNK) {
			if (!test_is_filled(p + at, CHUNK / 4, 7) || p[at + CHUNK / 4])
				_exit(3);
			test_fill(p + at + CHUNK / 4, CHUNK - CHUNK / 4, 8);
		}
		_exit(n_faults() - n > 4 * 4 + 8 ? 4 : 0);
	}
	assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	for (size_t at = 0; at < len; at += CHUNK)
		assert_true(test_is_filled(p + at, CHUNK / 4, 7) && p[at + CHUNK / 4] == 0);
	assert_int_equal(munmap(all, len + CHUNK), 0);
}

/* mincore answers for each page, up to the first hole. */
static void residency(void **state)
{
	unsigned char vec[8];
	char *p = map(16 * PAGE);

	p[0] = p[(size_t)3 * PAGE] = 1;
	assert_int_equal(mincore(p, (size_t)8 * PAGE, vec), 0);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(vec[i] & 1, i == 0 || i == 3);
	assert_int_equal(munmap(p + (size_t)4 * PAGE, PAGE), 0);
	assert_int_equal(mincore(p, (size_t)4 * PAGE, vec), 0);
	assert_int_equal(mincore(p, (size_t)8 * PAGE, vec), -1);
	assert_int_equal(munmap(p, 16 * PAGE), 0);
}

/* ---- the kernel also fills a mapping in the place of a short one ---- */

/* A free place in a kernel-filled chunk. */
static char *left_by_a_short_mapping(void)
{
	char *p = map(ODD);

	test_fill(p, ODD, 9);
	assert_true(test_is_native(p));
	assert_int_equal(munmap(p, ODD), 0);
	return p;
}

static void map_at(char *p, int prot, int flags, int fd)
{
	assert_ptr_equal(mmap(p, ODD, prot, flags | MAP_FIXED, fd, 0), p);
}

static bool is_zero(const char *p)
{
	for (size_t at = 0; at < ODD; at += PAGE / 2)
		if (p[at])
			return false;
	return true;
}

/* Fills the mapping, lets its pages be paged out, checks their bytes, and unmaps it. */
static void use_and_unmap(char *p)
{
	assert_true(is_zero(p));
	test_fill(p, ODD, 10);
	assert_int_equal(madvise(p, ODD, MADV_PAGEOUT), 0);
	assert_true(test_is_filled(p, ODD, 10));
	assert_int_equal(munmap(p, ODD), 0);
}

static void the_next_mapping(void **state)
{
	const int plain = MAP_PRIVATE | MAP_ANONYMOUS;
	char *p = left_by_a_short_mapping();
	uint64_t before = n_faults();

	assert_ptr_equal(map(ODD), p);
	test_fill(p, ODD, 1);
	assert_int_equal(n_faults(), before);
	assert_int_equal(munmap(p, ODD), 0);
	map_at(p, PROT_READ, plain, -1);
	assert_true(is_zero(p));
	assert_int_equal(mprotect(p, ODD, PROT_READ | PROT_WRITE), 0);
	use_and_unmap(p);
	left_by_a_short_mapping();
	map_at(p, PROT_READ | PROT_WRITE, plain | MAP_NORESERVE, -1);
	use_and_unmap(p);
	assert_ptr_equal(map(ODD + PAGE), p); /* longer than the free place */
	use_and_unmap(p);
}

/*
 * Shared memory that is mapped at the place of a short mapping belongs to the kernel. mremap can't
 * move shared memory to such a place.
 */
static void other_mappings(void **state)
{
	const int plain = MAP_PRIVATE | MAP_ANONYMOUS;
	char *p = left_by_a_short_mapping(), *shared;

	map_at(p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
	test_fill(p, ODD, 11);
	assert_int_equal(madvise(map(ODD), ODD, MADV_PAGEOUT), 0);
	assert_true(test_is_filled(p, ODD, 11));
	map_at(p, PROT_READ | PROT_WRITE, plain, -1);
	use_and_unmap(p);
	left_by_a_short_mapping();
	shared = mmap(NULL, ODD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(shared != MAP_FAILED);
	test_fill(shared, ODD, 12);
	assert_true(mremap(shared, ODD, ODD, MREMAP_MAYMOVE | MREMAP_FIXED, p) == MAP_FAILED);
	assert_true(errno == EINVAL && test_is_filled(shared, ODD, 12));
	munmap(shared, ODD);
	map_at(p, PROT_READ | PROT_WRITE, plain, -1);
	use_and_unmap(p);
}

/*
 * A child that maps at the place of the short mapping finds only zeros. So does the program itself,
 * after its budget was used up.
 */
static void later(void **state)
{
	char *p = left_by_a_short_mapping(), *all;
	size_t len = atomic_load(&stats->budget_bytes) / PAGE * PAGE;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		map_at(p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		use_and_unmap(p);
		_exit(0);
	}
	assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	all = map(len);
	test_fill(all, len, 13);
	map_at(p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	use_and_unmap(p);
	assert_true(test_is_filled(all, len, 13));
	assert_int_equal(munmap(all, len), 0);
}

/* ---- kernel-filling begins while another thread locks ---- */

enum { LOCKS = 60, LOCKED = 64 * PAGE };

static void touch(void *user)
{
	*(char *)user = 1;
}

/* Pages out a page of the chunk, so that the kernel no longer fills the chunk. */
static void end_filling(char *page)
{
	assert_int_equal(madvise(page, PAGE, MADV_PAGEOUT), 0);
}

/*
 * A touch makes the kernel fill a chunk again, while a part of it is locked. That part is the
 * kernel's own, so it must not be registered when the filling ends.
 */
static void filling_beside_a_lock(void **state)
{
	char *all = map(2 * (size_t)CHUNK), *p = all + (CHUNK - (uintptr_t)all % CHUNK) % CHUNK;
	static struct test_race race = {.act = touch, .turns = LOCKS};

	race.user = p + CHUNK / 2;
	race.rng = test_seed("filling_beside_a_lock");
	test_race_start(&race);
	for (unsigned i = 0; i < LOCKS; i++) {
		test_fill(p, LOCKED, i + 1);
		p[CHUNK - PAGE] = 1;
		end_filling(p + CHUNK - PAGE);
		test_race_begin(&race);
		assert_int_equal(mlock2(p, LOCKED, MLOCK_ONFAULT), 0);
		test_race_meet(&race);
		end_filling(p + CHUNK / 2);
		assert_false(test_is_far(p) || test_is_native(p));
		assert_true(test_is_filled(p, LOCKED, i + 1));
		assert_int_equal(munmap(all, 2 * (size_t)CHUNK), 0);
		assert_ptr_equal(map(2 * (size_t)CHUNK), all);
	}
	test_race_join(&race);
	munmap(all, 2 * (size_t)CHUNK);
}

/*
 * In fault mode inline the kernel fills nothing. There a fresh page brings the pages behind it, in
 * whatever order the program touches them.
 */
static void fresh_together(void **state)
{
	enum { N = 2048, STEP = 389 }; /* the step has no divisor in common with the number of pages */
	char *p = map((size_t)N * PAGE);
	uint64_t before = n_faults();

	for (size_t i = 0; i < N / 2; i++)
		p[i * STEP % N * PAGE] = (char)(i % 251 + 1);
	assert_true(n_faults() - before < N / 4);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(p[i * STEP % N * PAGE], i < N / 2 ? (char)(i % 251 + 1) : 0);
	assert_int_equal(munmap(p, (size_t)N * PAGE), 0);
}

/* A walk downwards brings the pages below it. */
static void fresh_downwards(void **state)
{
	enum { N = 1024, WALKED = N / 2 };
	char *p = map((size_t)N * PAGE);

	for (unsigned step = 1; step <= 4; step += 3) {
		uint64_t before = n_faults();

		for (size_t page = N / 2 + WALKED / 2; page > N / 2 - WALKED / 2; page -= step)
			p[page * PAGE] = 1;
		assert_true(n_faults() - before < WALKED / 8);
		assert_int_equal(munmap(p, (size_t)N * PAGE), 0);
		p = map((size_t)N * PAGE);
	}
	assert_int_equal(munmap(p, (size_t)N * PAGE), 0);
}

static int tests_inline(void)
{
	const struct CMUnitTest all[] = {cmocka_unit_test(fresh_together), cmocka_unit_test(fresh_downwards)};

	return cmocka_run_group_tests(all, open_stats, NULL);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(neighbours),
	    cmocka_unit_test(long_ones),
	    cmocka_unit_test(never_touched),
	    cmocka_unit_test(holes),
	    cmocka_unit_test(heap),
	    cmocka_unit_test(children),
	    cmocka_unit_test(residency),
	    cmocka_unit_test(the_next_mapping),
	    cmocka_unit_test(other_mappings),
	    cmocka_unit_test(later),
	    cmocka_unit_test(filling_beside_a_lock),
	};

	return cmocka_run_group_tests(all, open_stats, NULL);
}

int main(int argc, char **argv)
{
	const char *mode = getenv("FARPAGE_FAULT_MODE");

	return test_under_preload(argc, argv, mode && strcmp(mode, "inline") == 0 ? tests_inline : tests);
}
