/*
 * Pools: what a chunk is, that it comes back as zeros, and that a preallocated pool keeps what it has.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
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
		r = fp_pool_take(pool, size_bytes, ret_chunk);
	while (r == 1);
	return r;
}

/* Gives it back and refills the reserve. */
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

/* A client has it in a descriptor, then in a mapping. What it maps stays its own when the node stops: some of
 * it may be the only copy. */
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

/* What the host could not give when a chunk came back is asked for again later. */
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

/* Two that are made at once and one that is given back: each slice leaves reserve and chunks together the
 * pool. */
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
			more_a = fp_pool_take(pool, 32 * MIB, &a);
		a_waited = a_waited || (more_a && !a.base);
		if (more_b)
			more_b = fp_pool_take(pool, 16 * MIB, &b);
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

/* Whatever is leased, reserve and leases together are the pool. */
static void test_preallocated_stays_resident(void **state)
{
	struct fp_pool_config config = kinds[3];
	uint64_t before = resident_bytes(), slack = 4 * MIB;
	struct fp_chunk chunk[4];
	struct fp_pool *pool;

	config.size_bytes = 64 * MIB;
	pool = open_pool(&config);
	assert_true(resident_bytes() + slack >= before + 64 * MIB);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(take(pool, 16 * MIB, &chunk[i]), 0);
		assert_int_equal(pool->reserve_bytes, (3 - i) * 16 * MIB);
		assert_true(resident_bytes() + slack >= before + 64 * MIB);
		assert_true(resident_bytes() <= before + 64 * MIB + slack);
	}
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(give(pool, &chunk[i]), 0);
	assert_int_equal(pool->reserve_bytes, 64 * MIB);
	assert_true(resident_bytes() + slack >= before + 64 * MIB);
	fp_pool_close(pool);
	assert_true(resident_bytes() <= before + slack);
}

static void test_charge(void **state)
{
	struct fp_pool *pool = open_pool(&kinds[0]);

	assert_int_equal(fp_pool_round(pool, 1), 4096);
	assert_int_equal(fp_pool_round(pool, 8192), 8192);
	assert_true(fp_pool_charge(pool, 3 * MIB));
	assert_false(fp_pool_charge(pool, 2 * MIB));
	assert_false(fp_pool_charge(pool, UINT64_MAX));
	assert_true(fp_pool_charge(pool, MIB));
	assert_false(fp_pool_charge(pool, 4096));
	fp_pool_uncharge(pool, 4 * MIB);
	assert_int_equal(pool->used_bytes, 0);
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
	    cmocka_unit_test(test_anonymous_has_no_descriptor),
	    cmocka_unit_test(test_preallocated_stays_resident),
	    cmocka_unit_test(test_charge),
	    cmocka_unit_test(test_what_is_not_to_be_had),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
