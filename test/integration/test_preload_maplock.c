/*
 * Advice and locks on mappings, in a program whose large mappings are far. Each call is right, or
 * refused. Room: test/integration.
 */
#include "preload_map_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "race.h"
#include "underpreload.h"

/* Older headers lack it. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

static void advice(void **state)
{
	static const int ignored[] = {MADV_NORMAL,     MADV_RANDOM,   MADV_SEQUENTIAL, MADV_HUGEPAGE,
	                              MADV_NOHUGEPAGE, MADV_DOFORK,   MADV_KEEPONFORK, MADV_DONTDUMP,
	                              MADV_DODUMP,     MADV_WILLNEED, MADV_COLD,       MADV_PAGEOUT};
	char *p = map_filled(BIG, 7);

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		assert_int_equal(madvise(p, BIG, ignored[i]), 0);
	assert_true(test_is_filled(p, BIG, 7));
	assert_fails(madvise(p, BIG, MADV_REMOVE), EINVAL);
	assert_int_equal(posix_madvise(p, BIG, POSIX_MADV_DONTNEED), 0);
	assert_int_equal(posix_madvise(p + 1, BIG, POSIX_MADV_WILLNEED), EINVAL);
	assert_true(test_is_filled(p, BIG, 7));
	assert_int_equal(madvise(p, PAGE, MADV_DONTNEED), 0);
	assert_int_equal(madvise(p + PAGE, PAGE, MADV_FREE), 0);
	assert_true(is_zero(p, 2 * PAGE));
	assert_false(is_zero(p + 2 * PAGE, PAGE));
	munmap(p, BIG);
}

static void pageout_is_seen(void **state)
{
	char *p = map_anonymous(TEST_LOCAL_BYTES / 2, 0);
	size_t before;

	test_fill(p, TEST_LOCAL_BYTES / 2, 8);
	before = test_far_resident_bytes();
	assert_int_equal(madvise(p, TEST_LOCAL_BYTES / 2, MADV_PAGEOUT), 0);
	assert_true(test_far_resident_bytes() + TEST_LOCAL_BYTES / 4 < before);
	assert_true(test_is_filled(p, TEST_LOCAL_BYTES / 2, 8));
	munmap(p, TEST_LOCAL_BYTES / 2);
}

/* The number of local pages in the range, by mincore. */
static unsigned resident(char *p, size_t len)
{
	unsigned char vec[BIG / PAGE];
	unsigned n = 0;

	assert_int_equal(mincore(p, len, vec), 0);
	for (size_t i = 0; i < len / PAGE; i++)
		n += vec[i] & 1;
	return n;
}

/*
 * Locked memory is local and keeps its bytes, however much other memory is touched. The budget is
 * for the other memory. After an unmap, new memory at these addresses is far again.
 */
static void locking(void **state)
{
	const size_t some = TEST_LOCAL_BYTES / 2;
	char *far = map_filled(BIG, 12), *local = map_anonymous(PAGE, 0), *other = map_filled(2 * BIG, 14);
	unsigned char one;

	assert_int_equal(mlock(far + 1, some - 2), 0);
	assert_int_equal(resident(far, some), some / PAGE);
	assert_true(test_is_filled(other, 2 * BIG, 14)); /* this touches all other memory */
	assert_int_equal(resident(far, some), some / PAGE);
	assert_true(test_far_resident_bytes() <= TEST_LOCAL_BYTES + (1u << 20));
	assert_fails(madvise(far, PAGE, MADV_DONTNEED), EINVAL);
	assert_fails(madvise(far, PAGE, MADV_PAGEOUT), EINVAL);
	assert_fails(mlock2(far, PAGE, 6), EINVAL);
	assert_fails(mremap(far, some, 2 * some, MREMAP_MAYMOVE), EINVAL);
	assert_fails(mremap(far, BIG, 2 * BIG, MREMAP_MAYMOVE), EINVAL); /* of which a part is locked */
	assert_ptr_equal(mremap(far, BIG, BIG, 0), far);
	assert_true(test_is_filled(far, BIG, 12));
	assert_int_equal(munlock(far, BIG), 0);
	assert_true(test_is_filled(other, 2 * BIG, 14));
	assert_int_equal(madvise(far, PAGE, MADV_DONTNEED), 0);
	assert_true(is_zero(far, PAGE));
	assert_int_equal(mlock2(far, some, MLOCK_ONFAULT), 0);
	assert_int_equal(munmap(far, PAGE), 0);
	assert_fails(mlock(far, 2 * PAGE), ENOMEM);
	assert_fails(mincore(far, PAGE, &one), ENOMEM);
	assert_fails(mincore(far + PAGE + 1, PAGE, &one), EINVAL);
	assert_fails(msync(far, PAGE, MS_ASYNC), ENOMEM);
	assert_fails(syscall(SYS_msync, far, 2 * PAGE, MS_SYNC), ENOMEM);
	assert_fails(msync(far + PAGE + 1, PAGE, MS_SYNC), EINVAL);
	assert_fails(msync(far + PAGE, PAGE, MS_SYNC | MS_ASYNC), EINVAL);
	assert_int_equal(msync(far + PAGE, some, MS_SYNC), 0);
	assert_true(test_is_filled(other, 2 * BIG, 14));
	assert_int_equal(mlock(local, PAGE), 0);
	assert_int_equal(munlock(local, PAGE), 0);
	assert_int_equal(mlock(far + PAGE, PAGE), 0);
	assert_ptr_equal(mremap(far + PAGE, BIG - PAGE, 2 * PAGE, 0), far + PAGE);
	munmap(far, 3 * PAGE);
	far = map_filled(BIG, 15);
	assert_true(test_is_filled(other, 2 * BIG, 14) && test_is_filled(far, BIG, 15));
	munmap(far, BIG);
	munmap(other, 2 * BIG);
	munmap(local, PAGE);
}

/* True if the kernel's record of the mapping at p (/proc/self/smaps) has the flag. */
static bool has_vm_flag(const char *p, const char *flag)
{
	FILE *smaps = fopen("/proc/self/smaps", "re");
	uintptr_t low, high, start = 0, end = 0;
	bool has = false;
	char line[512];

	assert_non_null(smaps);
	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &low, &high) == 2) {
			start = low;
			end = high;
		}
		if (strncmp(line, "VmFlags:", 8) == 0 && (uintptr_t)p >= start && (uintptr_t)p < end)
			has = strstr(line, flag);
	}
	fclose(smaps);
	return has;
}

/*
 * A range that contains local mappings. mlock locks the whole range, although one part of it can't
 * be brought in. Pages behind a hole are not locked.
 */
static void locking_in_parts(void **state)
{
	char *far = map_filled(16 * PAGE + BIG, 12);
	const int fixed = MAP_FIXED | MAP_SHARED | MAP_ANONYMOUS;

	assert_ptr_not_equal(mmap(far + 2 * PAGE, PAGE, PROT_NONE, fixed, -1, 0), MAP_FAILED);
	assert_ptr_not_equal(mmap(far + 3 * PAGE, PAGE, PROT_READ, fixed, -1, 0), MAP_FAILED);
	assert_fails(mlock(far, 6 * PAGE), ENOMEM);
	for (unsigned i = 0; i < 6; i++)
		assert_fails(madvise(far + i * PAGE, PAGE, MADV_DONTNEED), EINVAL);
	assert_int_equal(madvise(far + 6 * PAGE, PAGE, MADV_DONTNEED), 0);
	assert_int_equal(munlock(far, 6 * PAGE), 0);
	assert_int_equal(madvise(far + 2 * PAGE, 2 * PAGE, MADV_DONTNEED), 0);
	assert_int_equal(mprotect(far + 2 * PAGE, PAGE, PROT_READ), 0);
	assert_int_equal(mlock(far, 6 * PAGE), 0);
	assert_int_equal(resident(far, 6 * PAGE), 6);
	assert_true(has_vm_flag(far + 3 * PAGE, " lo"));
	assert_int_equal(munmap(far + 4 * PAGE, PAGE), 0);
	assert_int_equal(munlock(far, 4 * PAGE), 0);
	assert_fails(mlock(far, 6 * PAGE), ENOMEM);
	assert_fails(madvise(far, PAGE, MADV_DONTNEED), EINVAL);
	assert_int_equal(munlock(far + 5 * PAGE, PAGE), 0);
	assert_fails(mlock(far, 8 * PAGE), ENOMEM);
	assert_int_equal(madvise(far + 7 * PAGE, PAGE, MADV_DONTNEED), 0);
	munmap(far, 16 * PAGE + BIG);
}

/* Advice stays in force when memory is locked. Memory that the kernel refuses to lock stays far. */
static void locking_keeps(void **state)
{
	const struct rlimit little = {.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
	char *far = map_filled(BIG, 12), *wiped = far + 16 * PAGE;
	struct rlimit before;
	int status;
	pid_t pid;

	assert_int_equal(madvise(far, 8 * PAGE, MADV_DONTDUMP), 0);
	assert_int_equal(madvise(wiped, PAGE, MADV_WIPEONFORK), 0);
	assert_int_equal(mlock(far, 32 * PAGE), 0);
	assert_true(has_vm_flag(far, " dd") && !has_vm_flag(far + 8 * PAGE, " dd"));
	pid = fork();
	if (pid == 0)
		_exit(!is_zero(wiped, PAGE) || !test_is_filled(far, 16 * PAGE, 12));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(test_is_filled(far, BIG, 12));
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
	if (geteuid() != 0 && before.rlim_max == RLIM_INFINITY) {
		assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &little), 0);
		assert_true(mlock(far + BIG / 2, PAGE) < 0);
		assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
	}
	munmap(far, BIG);
}

/*
 * Touches the first n of 64 remote pages, and returns how many are local then. Waits until at least
 * `least` are local, because read-ahead over a wire arrives later.
 */
static unsigned brought_in(char *p, unsigned n, unsigned least)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	unsigned here, tries = 0;

	do {
		assert_int_equal(madvise(p, 64 * PAGE, MADV_PAGEOUT), 0);
		nanosleep(&pause, NULL);
	} while (resident(p, 64 * PAGE) > 0 && ++tries < 20000);
	for (unsigned i = 0; i < n; i++)
		(void)((volatile char *)p)[i * PAGE];
	for (unsigned i = 0; (here = resident(p, 64 * PAGE)) < least && i < 20000; i++)
		nanosleep(&pause, NULL);
	return here;
}

static void advised_order(void **state)
{
	char *far = map_filled(BIG, 12);

	assert_true(brought_in(far, 1, 1) < 16);
	assert_int_equal(madvise(far, 64 * PAGE, MADV_RANDOM), 0);
	assert_int_equal(brought_in(far, 16, 16), 16);
	assert_int_equal(madvise(far, 64 * PAGE, MADV_NORMAL), 0);
	assert_true(brought_in(far, 16, 17) >= 17);
	assert_int_equal(madvise(far, 64 * PAGE, MADV_RANDOM), 0);
	assert_int_equal(madvise(far, 64 * PAGE, MADV_SEQUENTIAL), 0);
	assert_true(brought_in(far, 16, 17) >= 17);
	assert_true(test_is_filled(far, BIG, 12));
	munmap(far, BIG);
}

static void populating(void **state)
{
	char *far = map_anonymous(BIG, 0);

	assert_int_equal(madvise(far, 8 * PAGE, MADV_POPULATE_WRITE), 0);
	assert_int_equal(resident(far, 8 * PAGE), 8);
	assert_int_equal(mprotect(far, PAGE, PROT_READ), 0);
	assert_fails(madvise(far, 8 * PAGE, MADV_POPULATE_WRITE), EINVAL);
	assert_int_equal(madvise(far, 9 * PAGE, MADV_POPULATE_READ), 0);
	assert_int_equal(munmap(far + 8 * PAGE, PAGE), 0);
	assert_fails(madvise(far, 9 * PAGE, MADV_POPULATE_READ), ENOMEM);
	munmap(far, BIG);
}

/* Memory mapped with MAP_LOCKED is local. */
static void mapped_locked(void **state)
{
	const size_t some = TEST_LOCAL_BYTES / 4;
	const int fixed = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED;
	char *p = map_anonymous(some, MAP_LOCKED), *q = map_anonymous(some, MAP_POPULATE);

	assert_true(!test_is_far(p) && test_is_far(q));
	assert_int_equal(resident(p, some), some / PAGE);
	assert_true(resident(q, some) > 0);
	assert_ptr_equal(mmap(q + PAGE, PAGE, PROT_READ | PROT_WRITE, fixed, -1, 0), q + PAGE);
	assert_true(has_vm_flag(q + PAGE, " lo"));
	munmap(p, some);
	munmap(q, some);
}

/* mlockall is refused, because pages that have left can't be locked. */
static void locking_everything_is_refused(void **state)
{
	assert_fails(mlockall(0), EINVAL);
	assert_fails(mlockall(MCL_CURRENT), ENOMEM);
	assert_fails(mlockall(MCL_FUTURE), ENOMEM);
	assert_int_equal(munlockall(), 0);
}

/* ---- locked by one thread, first touched by another ---- */

enum { FRESH_CHUNKS = 500, CHUNK = 2 << 20, LOCKED = 64 * PAGE };

static void fill_fresh(void *user)
{
	test_fill(*(char **)user, PAGE, 16);
}

/*
 * A fault is served while its chunk is given to the kernel. The lock begins at the page in front of
 * the chunk. That page has no access rights, so it can't be brought in. For this reason no page of
 * the chunk is brought in before the fault. After munlock the pages may leave, but no byte may be
 * lost.
 */
static void locking_what_is_first_touched(void **state)
{
	const size_t len = (FRESH_CHUNKS + 2) * (size_t)CHUNK;
	char *all = map_anonymous(len, MAP_NORESERVE), *first, *other;
	static struct test_race race = {.act = fill_fresh, .turns = FRESH_CHUNKS};
	static char *fresh;

	race.user = &fresh;
	race.rng = test_seed("locking_what_is_first_touched");
	assert_ptr_not_equal(all, MAP_FAILED);
	first = all + CHUNK + (CHUNK - (uintptr_t)all % CHUNK) % CHUNK;
	test_race_start(&race);
	for (unsigned i = 0; i < FRESH_CHUNKS; i++) {
		char *chunk = first + i * (size_t)CHUNK;

		assert_int_equal(mprotect(chunk - PAGE, PAGE, PROT_NONE), 0);
		assert_int_equal(mlock2(chunk - PAGE, PAGE, MLOCK_ONFAULT), 0);
		fresh = chunk + 8 * PAGE;
		test_race_begin(&race);
		assert_int_equal(mlock2(chunk - PAGE, LOCKED, MLOCK_ONFAULT), 0);
		test_race_meet(&race);
		assert_int_equal(munlock(chunk - PAGE, LOCKED), 0);
	}
	test_race_join(&race);
	other = map_filled(2 * BIG, 17); /* makes all other memory leave */
	assert_true(test_is_filled(other, 2 * BIG, 17));
	for (unsigned i = 0; i < FRESH_CHUNKS; i++)
		assert_true(test_is_filled(first + i * (size_t)CHUNK + 8 * PAGE, PAGE, 16));
	munmap(other, 2 * BIG);
	munmap(all, len);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(mapped_locked),
	    cmocka_unit_test(advice),
	    cmocka_unit_test(pageout_is_seen),
	    cmocka_unit_test(locking),
	    cmocka_unit_test(locking_in_parts),
	    cmocka_unit_test(locking_keeps),
	    cmocka_unit_test(locking_what_is_first_touched),
	    cmocka_unit_test(advised_order),
	    cmocka_unit_test(populating),
	    cmocka_unit_test(locking_everything_is_refused),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
