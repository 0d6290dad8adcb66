/*
 * A second thread that acts at nearly the same time as the test, turn after turn. It begins each
 * turn after a pause of random length. The caller's struct must be static, because the threads
 * still run after a test has failed. Room: test/lib.
 */
#ifndef FP_TEST_RACE_H
#define FP_TEST_RACE_H

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "clock.h"
#include "testrng.h"

#define TEST_RACE_POPULATE 22 /* MADV_POPULATE_READ: older headers lack it */

struct test_race {
	void (*act)(void *user); /* what the second thread does in each turn */
	void *user;
	unsigned turns;
	uint64_t rng;
	uint64_t begun_ns; /* when the turn began */
	/*
	 * The second thread pauses for a quarter to three quarters of pause_max_ns before it acts.
	 * After each turn, pause_max_ns moves towards the time that the caller's part took.
	 */
	uint64_t pause_max_ns;
	_Atomic unsigned begun, ended; /* how many turns have begun and ended */
	/* crowds: the third thread must take the kernel's lock. crowded: it has begun to do so. */
	_Atomic bool crowds, crowded;
	_Atomic bool over;
	pthread_t thread, crowd;
};

static inline void test_race_pause(uint64_t *rng, uint64_t min_ns, uint64_t max_ns)
{
	uint64_t until_ns = fp_clock_ns() + min_ns + test_random(rng) % (max_ns - min_ns + 1);

	while (fp_clock_ns() < until_ns) /* a sleep would be too long */
		;
}

static inline void *test_race_run(void *arg)
{
	struct test_race *race = arg;

	for (unsigned turn = 1; turn <= race->turns; turn++) {
		while (atomic_load(&race->begun) < turn)
			sched_yield();
		test_race_pause(&race->rng, race->pause_max_ns / 4, race->pause_max_ns * 3 / 4);
		race->act(race->user);
		atomic_store(&race->ended, turn);
	}
	return NULL;
}

/*
 * Takes the kernel's lock on the process's mappings for reading, again and again. So calls of other
 * threads that change mappings take long, while faults go on.
 */
static inline void *test_race_crowd(void *arg)
{
	const size_t len = 2 << 20;
	struct test_race *race = arg;
	void *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	while (!atomic_load(&race->over)) {
		if (!atomic_load(&race->crowds)) {
			sched_yield();
			continue;
		}
		atomic_store(&race->crowded, true);
		madvise(mem, len, TEST_RACE_POPULATE);
	}
	munmap(mem, len);
	return NULL;
}

static inline void test_race_start(struct test_race *race)
{
	bool started = pthread_create(&race->thread, NULL, test_race_run, race) == 0 &&
	               pthread_create(&race->crowd, NULL, test_race_crowd, race) == 0;

	assert(started);
	(void)started;
}

/* Begins a turn: the caller does its own part next, then calls test_race_meet. */
static inline void test_race_begin(struct test_race *race)
{
	atomic_store(&race->crowded, false);
	atomic_store(&race->crowds, true);
	while (!atomic_load(&race->crowded))
		sched_yield();
	race->begun_ns = fp_clock_ns();
	atomic_fetch_add(&race->begun, 1);
}

/* Called after the caller's part. Waits for the second thread to end its turn. */
static inline void test_race_meet(struct test_race *race)
{
	uint64_t part_ns = fp_clock_ns() - race->begun_ns;

	while (atomic_load(&race->ended) != atomic_load(&race->begun))
		sched_yield();
	atomic_store(&race->crowds, false);
	race->pause_max_ns = (race->pause_max_ns + part_ns) / 2;
}

/* Called after the last turn. */
static inline void test_race_join(struct test_race *race)
{
	atomic_store(&race->over, true);
	pthread_join(race->thread, NULL);
	pthread_join(race->crowd, NULL);
}

#endif
