/* Pools: chunks come back as zeros, and a preallocated pool keeps its memory. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "pool.h"

#define MIB (1ull << 20)

static const struct fp_pool_config kinds[] = {
    {.name = (char *)"memfd", .size_bytes = 4 * MIB, .backing = FP_BACKING_MEMFD, .numa_node = FP_NUMA_ANY},
    {.name = (char *)"anonymous",
     .size_bytes = 4 * MIB,
     .backing = FP_BACKING_ANONYMOUS,
     .numa_node = FP_NUMA_ANY},
    {.name = (char *)"memfd-pre", .size_bytes = 4 * MIB, .numa_node = FP_NUMA_ANY, .preallocate = true},
    {.name = (char *)"anonymous-pre",
     .size_bytes = 4 * MIB,
     .backing = FP_BACKING_ANONYMOUS,
     .numa_node = FP_NUMA_ANY,
     .preallocate = true},
};

static struct fp_pool *open_pool(const struct fp_pool_config *config)
{
	struct fp_conf_error error;
	struct fp_pool *pool;

	assert_int_equal(fp_pool_open(config, &pool, &error), 0);
	return pool;
}

static int take(struct fp_pool *pool, uint64_t size_bytes, struct fp_chunk *ret_chunk)
{
	int r;

	*ret_chunk = (struct fp_chunk){0};
	do
		r = fp_pool_take(pool, size_bytes, fp_pool_is_shareable(pool), ret_chunk);
	while (r == 1);
	return r;
}

/* Gives the chunk back and refills the reserve. */
static int give(struct fp_pool *pool, struct fp_chunk *chunk)
{
	int r;

	while (fp_pool_give(pool, chunk) == 1)
		;
	do
		r = fp_pool_refill(pool);
	while (r == 1);
	return r;
}

static bool is_zero(const uint8_t *bytes, size_t len)
{
	return bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0;
}

static void test_chunks_are_zeroed(void **state)
{
	for (size_t i = 0; i < FP_ARRAY_LEN(kinds); i++) {
		struct fp_pool *pool = open_pool(&kinds[i]);

		for (unsigned round = 0; round < 3; round++) {
			struct fp_chunk chunk;

			assert_int_equal(take(pool, 4 * MIB, &chunk), 0);
			assert_int_equal(chunk.size_bytes, 4 * MIB);
			assert_true(is_zero(chunk.base, chunk.size_bytes));
			memset(chunk.base, 0xa5, chunk.size_bytes);
			assert_int_equal(give(pool, &chunk), 0);
			assert_int_equal(chunk.fd, -1);
		}
		fp_pool_close(pool);
	}
}

static void test_memfd_is_sealed(void **state)
{
	struct fp_pool *pool = open_pool(&kinds[0]);
	struct fp_chunk chunk;

	assert_true(fp_pool_is_shareable(pool));
	assert_int_equal(take(pool, MIB, &chunk), 0);
	assert_int_equal(ftruncate(chunk.fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(chunk.fd, 2 * MIB), -1);
	assert_int_equal(fcntl(chunk.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	assert_int_equal(lseek(chunk.fd, 0, SEEK_END), MIB);
	assert_int_equal(give(pool, &chunk), 0);
	fp_pool_close(pool);
}

/*
 * A client gets a descriptor of a chunk and maps it. Its mapping stays when the node stops, because
 * it may have the only copy.
 */
static void test_passed(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		struct fp_pool *pool = open_pool(&kinds[i < 2 ? 0 : 2]);
		struct fp_chunk chunk;
		char *client;
		int fd = -1;

		assert_int_equal(take(pool, MIB, &chunk), 0);
		assert_true(fp_chunk_is_alone(&chunk));
		assert_int_equal(fp_chunk_pass(&chunk, &fd), 0);
		assert_false(fp_chunk_is_alone(&chunk));
		client = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		assert_ptr_not_equal(client, MAP_FAILED);
		close(fd);
		assert_false(fp_chunk_is_alone(&chunk));
		strcpy(client, "the only copy");
		assert_string_equal(chunk.base, "the only copy");
		if (i % 2)
			fp_pool_leave(pool, &chunk);
		assert_string_equal(client, "the only copy");
		munmap(client, MIB);
		if (i % 2 == 0) {
			assert_true(fp_chunk_is_alone(&chunk));
			assert_int_equal(give(pool, &chunk), 0);
		}
		fp_pool_close(pool);
	}
}

/* If the host can't give memory for a returned chunk, the pool asks again later. */
static void test_reserve_recovers(void **state)
{
	struct fp_pool *pool = open_pool(&kinds[3]);
	struct fp_chunk chunk;

	assert_int_equal(pool->reserve_bytes, 4 * MIB);
	for (unsigned i = 0; i < 2; i++) {
		pool->reserve_bytes -= 2 * MIB;
		assert_int_equal(take(pool, MIB, &chunk), 0);
		assert_int_equal(pool->reserve_bytes, 2 * MIB);
		assert_int_equal(fp_pool_refill(pool), 0);
		assert_int_equal(pool->reserve_bytes, 3 * MIB);
		pool->reserve_bytes -= i * 2 * MIB;
		assert_int_equal(give(pool, &chunk), 0);
		assert_int_equal(pool->reserve_bytes, 4 * MIB);
	}
	fp_pool_close(pool);
}

/*
 * Two chunks are made while a third one is given back. After each slice, all chunks together have
 * taken at most the bytes of the pool.
 */
static void test_slices_take_turns(void **state)
{
	struct fp_pool_config config = kinds[3];
	struct fp_chunk a = {0}, b = {0}, c = {0};
	struct fp_pool *pool;
	bool a_waited = false;

	config.size_bytes = 48 * MIB;
	pool = open_pool(&config);
	assert_int_equal(take(pool, 32 * MIB, &c), 0);
	memset(c.base, 1, c.size_bytes);
	for (int more = 1, more_a = 1, more_b = 1, more_c = 1; more; more = more_a || more_b || more_c) {
		if (more_a)
			more_a = fp_pool_take(pool, 32 * MIB, fp_pool_is_shareable(pool), &a);
		a_waited = a_waited || (more_a && !a.base);
		if (more_b)
			more_b = fp_pool_take(pool, 16 * MIB, fp_pool_is_shareable(pool), &b);
		if (more_c)
			more_c = fp_pool_give(pool, &c);
		assert_true(fp_pool_refill(pool) >= 0);
		assert_int_equal(more_a < 0 || more_b < 0 || more_c < 0, 0);
		assert_true(pool->taken_bytes <= 48 * MIB);
	}
	assert_true(a_waited);
	assert_true(is_zero(a.base, a.size_bytes));
	assert_true(is_zero(b.base, b.size_bytes));
	assert_int_equal(pool->reserve_bytes, 0);
	assert_int_equal(give(pool, &a), 0);
	assert_int_equal(give(pool, &b), 0);
	assert_int_equal(pool->reserve_bytes, 48 * MIB);
	fp_pool_close(pool);
}

/*
 * A large chunk waits for the space of small ones that are given back. Small ones that come later
 * ask after each turn, and must not get that space first.
 */
static void test_large_does_not_starve(void **state)
{
	struct fp_chunk old[8], large = {0}, late = {0};
	struct fp_pool_config config = kinds[0];
	struct fp_pool *pool;

	config.size_bytes = 8 * MIB;
	pool = open_pool(&config);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(take(pool, MIB, &old[i]), 0);
	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(fp_pool_take(pool, 4 * MIB, fp_pool_is_shareable(pool), &large), i < 4);
		assert_int_equal(fp_pool_take(pool, MIB, fp_pool_is_shareable(pool), &late), 1);
		assert_int_equal(give(pool, &old[i]), 0);
	}
	assert_int_equal(fp_pool_take(pool, MIB, fp_pool_is_shareable(pool), &late), 0);
	for (unsigned i = 5; i < 8; i++)
		assert_int_equal(give(pool, &old[i]), 0);
	assert_int_equal(give(pool, &large), 0);
	assert_int_equal(give(pool, &late), 0);
	assert_int_equal(pool->taken_bytes, 0);
	fp_pool_close(pool);
}

/* A pool clears the memory of a new chunk slice by slice. Returns how many slices 1 MiB has. */
static unsigned slices(struct fp_pool *pool)
{
	struct fp_chunk chunk = {0};
	unsigned n = 1;

	while (fp_pool_take(pool, MIB, fp_pool_is_shareable(pool), &chunk) == 1)
		n++;
	assert_int_equal(give(pool, &chunk), 0);
	return n;
}

/*
 * A small chunk waits neither for a large one that is being made, nor for one that is being given
 * back.
 */
static void test_small_does_not_wait_for_large(void **state)
{
	struct fp_pool_config config = kinds[3];
	struct fp_chunk large = {0}, rest;
	struct fp_pool *pool;

	config.size_bytes = 48 * MIB;
	pool = open_pool(&config);
	assert_int_equal(fp_pool_take(pool, 40 * MIB, fp_pool_is_shareable(pool), &large), 1);
	assert_int_equal(slices(pool), 1);
	while (fp_pool_take(pool, 40 * MIB, fp_pool_is_shareable(pool), &large) == 1)
		;
	assert_int_equal(take(pool, 8 * MIB, &rest), 0);
	assert_int_equal(fp_pool_give(pool, &large), 1);
	assert_int_equal(slices(pool), 1);
	assert_int_equal(give(pool, &large), 0);
	assert_int_equal(give(pool, &rest), 0);
	assert_int_equal(pool->reserve_bytes, 48 * MIB);
	fp_pool_close(pool);
}

static void test_anonymous_has_no_descriptor(void **state)
{
	struct fp_pool *pool = open_pool(&kinds[1]);
	struct fp_chunk chunk;

	assert_false(fp_pool_is_shareable(pool));
	assert_int_equal(take(pool, MIB, &chunk), 0);
	assert_int_equal(chunk.fd, -1);
	assert_int_equal(give(pool, &chunk), 0);
	fp_pool_close(pool);
}

static uint64_t resident_bytes(void)
{
	fp_autofclose FILE *statm = fopen("/proc/self/statm", "re");
	unsigned long long pages;

	assert_non_null(statm);
	assert_int_equal(fscanf(statm, "%*u %llu", &pages), 1);
	return pages * 4096;
}

/* The bytes in the mappings of this process and in the reserve. */
static uint64_t held_bytes(const struct fp_pool *pool)
{
	struct stat reserve;

	assert_int_equal(fstat(pool->reserve_fd, &reserve), 0);
	return resident_bytes() + (uint64_t)reserve.st_blocks * 512;
}

/* After any leases, reserve and leases together are the whole pool. */
static void test_preallocated_stays_resident(void **state)
{
	struct fp_pool_config config = kinds[3];
	uint64_t before = resident_bytes(), slack = 4 * MIB;
	struct fp_chunk chunk[4];
	struct fp_pool *pool;

	config.size_bytes = 64 * MIB;
	pool = open_pool(&config);
	assert_true(held_bytes(pool) + slack >= before + 64 * MIB);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(take(pool, 16 * MIB, &chunk[i]), 0);
		assert_int_equal(pool->reserve_bytes, (3 - i) * 16 * MIB);
		assert_true(held_bytes(pool) + slack >= before + 64 * MIB);
		assert_true(held_bytes(pool) <= before + 64 * MIB + slack);
	}
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(give(pool, &chunk[i]), 0);
	assert_int_equal(pool->reserve_bytes, 64 * MIB);
	assert_true(held_bytes(pool) + slack >= before + 64 * MIB);
	fp_pool_close(pool);
	assert_true(resident_bytes() <= before + slack);
}

static struct {
	int file, watched; /* -1: this machine has no huge pages */
	pid_t restorer;
} huge = {.file = -1};

/*
 * Adds four huge pages to the machine for this test. A child restores the number, even if the test
 * dies.
 */
static int take_huge_pages(void **state)
{
	int file = open("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", O_RDWR | O_CLOEXEC),
	    ends[2];
	char before[32] = "", more[32], byte;

	if (file < 0 || flock(file, LOCK_EX) < 0 || pread(file, before, sizeof(before) - 1, 0) <= 0 ||
	    pipe2(ends, O_CLOEXEC) < 0)
		return 0;
	huge.restorer = fork();
	if (huge.restorer == 0) {
		close(ends[1]);
		(void)!read(ends[0], &byte, 1);
		(void)!pwrite(file, before, strlen(before), 0);
		_exit(0);
	}
	close(ends[0]);
	huge.file = file;
	huge.watched = ends[1];
	snprintf(more, sizeof(more), "%lu", strtoul(before, NULL, 10) + 4);
	return pwrite(file, more, strlen(more), 0) > 0 ? 0 : -1;
}

static int return_huge_pages(void **state)
{
	if (huge.file < 0)
		return 0;
	close(huge.watched);
	waitpid(huge.restorer, NULL, 0);
	return close(huge.file);
}

static _Atomic bool stop_mapping;

/* Checks that mappings of another thread keep their bytes. */
static void *map_and_write(void *arg)
{
	while (!stop_mapping) {
		char *bytes = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		assert_ptr_not_equal(bytes, MAP_FAILED);
		memset(bytes, 1, 64 << 10);
		munmap(bytes, MIB);
	}
	return NULL;
}

/*
 * Another process takes the huge pages that a lease gave back. The reserve lacks them until that
 * process frees them.
 */
static void test_huge_pages_taken_by_others(void **state)
{
	struct fp_pool_config config = {.name = (char *)"huge",
	                                .size_bytes = 8 * MIB,
	                                .backing = FP_BACKING_HUGETLB,
	                                .numa_node = FP_NUMA_ANY,
	                                .preallocate = true};
	struct fp_pool *pool = NULL;
	struct fp_conf_error error;
	struct fp_chunk chunk;
	pthread_t thread;
	char *taken;

	if (huge.file < 0 || fp_pool_open(&config, &pool, &error) < 0)
		skip(); /* the host has none */
	assert_int_equal(take(pool, 4 * MIB, &chunk), 0);
	fp_pool_end(pool); /* ends the pool, so that the pages go to the host and not to the reserve */
	while (fp_pool_give(pool, &chunk) == 1)
		;
	pool->ending = false;
	taken = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	assert_ptr_not_equal(taken, MAP_FAILED);
	assert_int_equal(pthread_create(&thread, NULL, map_and_write, NULL), 0);
	for (unsigned i = 0; i < 20000; i++)
		assert_int_equal(fp_pool_refill(pool), -ENOMEM);
	stop_mapping = true;
	pthread_join(thread, NULL);
	munmap(taken, 4 * MIB);
	while (fp_pool_refill(pool) == 1)
		;
	assert_int_equal(pool->reserve_bytes, 8 * MIB);
	fp_pool_close(pool);
}

static void test_round(void **state)
{
	struct fp_pool *pool = open_pool(&kinds[0]);

	assert_int_equal(fp_pool_round(pool, 1), 4096);
	assert_int_equal(fp_pool_round(pool, 8192), 8192);
	fp_pool_close(pool);
}

static void test_what_is_not_to_be_had(void **state)
{
	struct fp_pool_config config = kinds[0];
	struct fp_conf_error error;
	struct fp_pool *pool = NULL;

	config.backing = FP_BACKING_HUGETLB;
	config.size_bytes = 1ull << 45;
	assert_true(fp_pool_open(&config, &pool, &error) < 0);
	assert_non_null(strstr(error.text, "huge page"));
	config.size_bytes = 3 * MIB;
	assert_int_equal(fp_pool_open(&config, &pool, &error), -EINVAL);
	assert_non_null(strstr(error.text, "huge page"));
	config = kinds[0];
	config.numa_node = 1000;
	assert_true(fp_pool_open(&config, &pool, &error) < 0);
	assert_non_null(strstr(error.text, "NUMA node 1000"));
	assert_null(pool);
	fp_pool_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_chunks_are_zeroed),
	    cmocka_unit_test(test_memfd_is_sealed),
	    cmocka_unit_test(test_passed),
	    cmocka_unit_test(test_reserve_recovers),
	    cmocka_unit_test(test_slices_take_turns),
	    cmocka_unit_test(test_large_does_not_starve),
	    cmocka_unit_test(test_small_does_not_wait_for_large),
	    cmocka_unit_test(test_anonymous_has_no_descriptor),
	    cmocka_unit_test(test_preallocated_stays_resident),
	    cmocka_unit_test_setup_teardown(test_huge_pages_taken_by_others, take_huge_pages,
	                                    return_huge_pages),
	    cmocka_unit_test(test_round),
	    cmocka_unit_test(test_what_is_not_to_be_had),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
