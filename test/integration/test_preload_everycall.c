/*
 * Every system call that takes memory, by its number: the rows of everycall.def. Each is made on
 * local memory, and on far memory with the same content that was paged out. Both must give the same
 * result and leave the same bytes. In fault mode thread the calls are also made by instructions of
 * the test's own. Room: test/integration.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "everycall.h"
#include "underpreload.h"

#define PAGE      4096u
#define AREA      (8 * PAGE)
#define ROW_BYTES (CALL_AREAS * AREA)
#define PRESSURE  (4 * TEST_LOCAL_BYTES)
#define GAP       (128 * PAGE)
#define TRIES     50

static char *far_memory, *pressure;
static char local_memory[ROW_BYTES] __attribute__((aligned(4096)));
static int pagemap;

/* ---- objects ---- */

static char *far_areas(size_t row)
{
	return far_memory + row * ROW_BYTES;
}

static void name_objects(char *areas, void **m)
{
	for (unsigned i = 0; i < CALL_AREAS; i++)
		m[i] = areas + i * AREA + PAGE - CALL_TAIL;
}

/* The bytes behind the objects' zeros show that a call writes no further than it may. */
static void prepare(const struct call_row *row, char *areas)
{
	void *m[CALL_AREAS];

	memset(areas, 0, ROW_BYTES);
	name_objects(areas, m);
	for (unsigned i = 0; i < CALL_AREAS; i++) {
		memset(areas + i * AREA, 'p', (size_t)2 * PAGE);
		memset(m[i], 0, PAGE / 2);
	}
	row->before(m);
}

/* ---- paging out ---- */

static bool is_present(const char *addr)
{
	uint64_t entry = 0;

	assert_int_equal(
	    pread(pagemap, &entry, sizeof(entry), (off_t)((uintptr_t)addr / PAGE * sizeof(entry))),
	    sizeof(entry));
	return entry >> 63;
}

static void push_out(void)
{
	for (int round = 0; round < 2; round++)
		for (size_t i = 0; i < PRESSURE; i += PAGE)
			((volatile char *)pressure)[GAP + i]++;
}

static void page_out(const char *areas)
{
	for (unsigned i = 0; i < CALL_AREAS; i++)
		for (int tries = 0; is_present(areas + i * AREA) || is_present(areas + i * AREA + PAGE);
		     tries++) {
			assert_true(tries < TRIES);
			push_out();
		}
}

/* ---- */

static bool compare(const struct call_row *row, const char *there)
{
	bool same = true;

	for (unsigned i = 0; i < CALL_AREAS; i++) {
		const char *here = local_memory + i * AREA, *far = there + i * AREA;
		bool equal = row->differ & CALL_ANY(i) || memcmp(here, far, AREA) == 0;

		if (row->differ >> i & 1) { /* written in both runs, or in neither */
			static const char zeros[PAGE / 2];

			equal = !memcmp(here + PAGE - CALL_TAIL, zeros, 64) ==
			        !memcmp(far + PAGE - CALL_TAIL, zeros, 64);
		}
		if (!equal)
			fprintf(stderr, "%s: other bytes in memory %u\n", row->name, i);
		same &= equal;
	}
	return same;
}

static bool try_row(size_t n, bool is_bare)
{
	const struct call_row *row = &test_call_rows[n];
	void *m[CALL_AREAS];
	long plain, far;

	prepare(row, local_memory);
	name_objects(local_memory, m);
	plain = test_call_row(row, m, is_bare);
	page_out(far_areas(n));
	name_objects(far_areas(n), m);
	far = test_call_row(row, m, is_bare);
	if (far != plain)
		fprintf(stderr, "%s: %ld on far memory, %ld on local memory\n", row->name, far, plain);
	return compare(row, far_areas(n)) && far == plain;
}

static void try_rows(bool is_bare)
{
	bool same = true;

	for (size_t i = 0; i < test_call_n_rows; i++)
		prepare(&test_call_rows[i], far_areas(i));
	for (size_t i = 0; i < test_call_n_rows; i++)
		same &= try_row(i, is_bare);
	assert_true(same);
}

static void by_number(void **state)
{
	try_rows(false);
}

static bool is_inline(void)
{
	const char *mode = getenv("FARPAGE_FAULT_MODE");

	return mode && strcmp(mode, "inline") == 0;
}

/* In fault mode inline, the kernel fetches no page for them. The first rows are single calls. */
static void by_instruction(void **state)
{
	void *m[CALL_AREAS];

	if (!is_inline()) {
		try_rows(true);
		return;
	}
	for (size_t i = 0; i < 5; i++) {
		prepare(&test_call_rows[i], far_areas(i));
		page_out(far_areas(i));
		name_objects(far_areas(i), m);
		assert_int_equal(test_call_row(&test_call_rows[i], m, true), -EFAULT);
	}
}

static char *mapped(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED && test_is_far(p));
	return p;
}

static char folder[] = "/tmp/farpage-every.XXXXXX";

static int begin(void **state)
{
	struct sigevent none = {.sigev_notify = SIGEV_NONE};
	timer_t first;

	/* so that no row gets number 0, which could not be told from memory that was not written */
	timer_create(CLOCK_MONOTONIC, &none, &first);
	far_memory = mapped(test_call_n_rows * ROW_BYTES);
	pressure = mapped(PRESSURE + (size_t)2 * GAP);
	pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	return pagemap >= 0 && mkdtemp(folder) ? chdir(folder) : -1;
}

static int end(void **state)
{
	return chdir("/") | rmdir(folder);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(by_number),
	    cmocka_unit_test(by_instruction),
	};

	return cmocka_run_group_tests(all, begin, end);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
