/*
 * Instructions that need four pages at once, in more threads than the budget has room for. A page
 * that arrived must still be present when the last of the four arrives. Each thread must finish;
 * its speed is not tested. Room: test/integration.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pthread.h>

#include <cmocka.h>

#include "clock.h"
#include "testrng.h"
#include "underpreload.h"
#include "units.h"

#define PAGE       4096u
#define THREADS    32u
#define PAGES      64u /* pages of each thread */
#define OPERATIONS 100u
#define DEADLINE_S 60u
#define STRADDLE   4u /* how many of the eight bytes lie before the page's end */

struct worker {
	pthread_t thread;
	char *mem;
	uint64_t rng;
	unsigned seed;
	_Atomic unsigned done;
	bool wrong;
};

/*
 * One instruction that needs four pages. Each operand lies half in one page and half in the next.
 */
static void copy_at_once(char *to, const char *from)
{
#ifdef __x86_64__
	__asm__ volatile("movsq" : "+D"(to), "+S"(from) : : "memory");
#else
	memcpy(to, from, 8);
#endif
}

/* The first half of the memory has the sources, and is never written. */
static void *work(void *arg)
{
	struct worker *w = arg;
	char expected[PAGES / 2 * PAGE];

	test_fill(expected, sizeof(expected), w->seed);
	while (w->done < OPERATIONS && !w->wrong) {
		size_t from = (1 + test_random(&w->rng) % (PAGES / 2 - 1)) * PAGE - STRADDLE;
		size_t to = (PAGES / 2 + 1 + test_random(&w->rng) % (PAGES / 2 - 1)) * PAGE - STRADDLE;

		copy_at_once(w->mem + to, w->mem + from);
		w->wrong = memcmp(w->mem + to, expected + from, 8) != 0;
		w->done++;
	}
	return NULL;
}

static unsigned total(const struct worker *workers)
{
	unsigned n = 0;

	for (unsigned i = 0; i < THREADS; i++)
		n += workers[i].done;
	return n;
}

/*
 * Threads that needed several pages at once got tokens beyond the budget. When the threads have
 * ended, these tokens must be gone.
 */
static void budget_holds_again(void)
{
	uint64_t until_ns = fp_clock_ns() + DEADLINE_S * FP_NSEC_PER_SEC, budget;

	assert_int_equal(fp_size_parse(getenv("FARPAGE_LOCAL_MEMORY"), &budget), 0);
	while (test_far_resident_bytes() > budget) {
		assert_true(fp_clock_ns() < until_ns);
		usleep(1000);
	}
}

static void all_threads_come_through(void **state)
{
	static struct worker workers[THREADS];
	uint64_t seed = test_seed("atonce"), until_ns;

	for (unsigned i = 0; i < THREADS; i++) {
		workers[i].mem =
		    mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert_true(workers[i].mem != MAP_FAILED && test_is_far(workers[i].mem));
		workers[i].seed = i + 1;
		workers[i].rng = seed + i;
		test_fill(workers[i].mem, PAGES * PAGE, workers[i].seed);
	}
	until_ns = fp_clock_ns() + DEADLINE_S * FP_NSEC_PER_SEC;
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	while (total(workers) < THREADS * OPERATIONS && fp_clock_ns() < until_ns)
		usleep(1000);
	printf("%u of %u operations after %.2f s\n", total(workers), THREADS * OPERATIONS,
	       DEADLINE_S - (double)(int64_t)(until_ns - fp_clock_ns()) / FP_NSEC_PER_SEC);
	fflush(stdout);
	if (total(workers) < THREADS * OPERATIONS)
		_exit(1); /* the threads hang in the middle of an instruction: they can't be joined */
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		assert_false(workers[i].wrong);
	}
	budget_holds_again();
}

static int tests(void)
{
	const struct CMUnitTest all[] = {cmocka_unit_test(all_threads_come_through)};

	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
