/* Affinity: threads are held on one CPU while they make most of the faults, and no longer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "affinity.h"
#include "cleanup.h"

#define SKIP   77
#define WINDOW 64u   /* number of faults between two decisions */
#define TRIES  1000u /* a trial takes 13 windows, but a busy machine makes it begin anew */

/*
 * A thread of the program that waits as in a fault. The test's own thread acts as the fault thread.
 */
struct blocked {
	pthread_t thread;
	int pipe[2];
	_Atomic uint32_t tid;
	struct fp_affinity *release; /* if set, the thread releases itself before it ends */
};

struct scene {
	struct fp_affinity affinity;
	struct blocked threads[4];
	cpu_set_t all;
};

static void *block(void *arg)
{
	struct blocked *b = arg;
	char byte;

	atomic_store(&b->tid, (uint32_t)gettid());
	if (read(b->pipe[0], &byte, 1) == 1 && b->release)
		fp_affinity_release(b->release, false);
	return NULL;
}

static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	for (unsigned i = 0; i < FP_ARRAY_LEN(s->threads); i++) {
		struct blocked *b = &s->threads[i];

		if (pipe(b->pipe) < 0 || pthread_create(&b->thread, NULL, block, b) != 0)
			return -1;
		while (atomic_load(&b->tid) == 0)
			sched_yield();
	}
	sched_getaffinity(0, sizeof(s->all), &s->all);
	fp_affinity_init(&s->affinity, true);
	fp_affinity_join(&s->affinity);
	*state = s;
	return 0;
}

static void unblock(struct blocked *b)
{
	if (write(b->pipe[1], "", 1) == 1)
		pthread_join(b->thread, NULL);
	close(b->pipe[0]);
	close(b->pipe[1]);
	b->thread = 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	fp_affinity_done(&s->affinity);
	for (unsigned i = 0; i < FP_ARRAY_LEN(s->threads); i++)
		if (s->threads[i].thread)
			unblock(&s->threads[i]);
	sched_setaffinity(0, sizeof(s->all), &s->all);
	free(s);
	return 0;
}

static void faults(struct scene *s, unsigned thread, unsigned n)
{
	while (n-- > 0)
		fp_affinity_fault(&s->affinity, atomic_load(&s->threads[thread].tid));
}

static int cpus_of(const struct scene *s, unsigned thread)
{
	cpu_set_t set;

	assert_int_equal(sched_getaffinity((pid_t)atomic_load(&s->threads[thread].tid), sizeof(set), &set),
	                 0);
	return CPU_COUNT(&set);
}

static void test_majority_is_held(void **state)
{
	struct scene *s = *state;
	cpu_set_t set;

	faults(s, 1, 8);
	faults(s, 0, WINDOW - 9);
	assert_int_equal(cpus_of(s, 0), CPU_COUNT(&s->all));
	faults(s, 0, 1);
	assert_int_equal(cpus_of(s, 0), 1);
	assert_int_equal(cpus_of(s, 1), CPU_COUNT(&s->all));
	sched_getaffinity(0, sizeof(set), &set);
	assert_int_equal(CPU_COUNT(&set), 1); /* the fault thread has moved to the same CPU */
}

/* A window in which n threads fault in turn. The window takes longer while the first is not
 * held. */
static void faults_in_turn(struct scene *s, unsigned n)
{
	if (cpus_of(s, 0) > 1)
		usleep(2000);
	for (unsigned i = 0; i < WINDOW; i++)
		faults(s, i % n, 1);
}

static void test_many_are_not_held(void **state)
{
	struct scene *s = *state;

	for (unsigned i = 0; i < 32; i++) {
		faults_in_turn(s, 4);
		assert_int_equal(atomic_load(&s->affinity.n_held), 0);
	}
}

static void test_few_are_held_if_that_is_faster(void **state)
{
	struct scene *s = *state;

	for (unsigned n = 2; n <= FP_HOLD_MAX; n++) {
		for (unsigned i = 0; i < TRIES && atomic_load(&s->affinity.n_held) != n; i++)
			faults_in_turn(s, n);
		for (unsigned i = 0; i < FP_ARRAY_LEN(s->threads); i++)
			assert_int_equal(cpus_of(s, i), i < n ? 1 : CPU_COUNT(&s->all));
		fp_affinity_release(&s->affinity, true);
		for (unsigned i = 0; i < n; i++)
			assert_int_equal(cpus_of(s, i), CPU_COUNT(&s->all));
		faults_in_turn(s, n);
		assert_int_equal(atomic_load(&s->affinity.n_held), n);
	}
}

/* The program permits the two threads different CPUs. */
static void test_unequals_are_not_held_together(void **state)
{
	struct scene *s = *state;
	cpu_set_t one;

	CPU_ZERO(&one);
	for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
		if (CPU_ISSET(cpu, &s->all))
			CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity((pid_t)atomic_load(&s->threads[1].tid), sizeof(one), &one), 0);
	for (unsigned i = 0; i < 32; i++) {
		faults_in_turn(s, 2);
		assert_int_equal(atomic_load(&s->affinity.n_held), 0);
	}
}

static void test_one_of_the_held_ended(void **state)
{
	struct scene *s = *state;

	for (unsigned i = 0; i < 4; i++)
		faults_in_turn(s, 2);
	unblock(&s->threads[1]);
	for (unsigned i = 0; i < 12; i++)
		faults_in_turn(s, 2);
	assert_int_equal(atomic_load(&s->affinity.n_held), 0);
	assert_int_equal(cpus_of(s, 0), CPU_COUNT(&s->all));
}

static void test_hold_moves_on(void **state)
{
	struct scene *s = *state;

	faults(s, 0, WINDOW);
	faults(s, 1, WINDOW);
	assert_int_equal(cpus_of(s, 0), CPU_COUNT(&s->all));
	assert_int_equal(cpus_of(s, 1), 1);
}

static void test_who_faults_no_longer_is_let_go(void **state)
{
	struct scene *s = *state;

	faults(s, 0, WINDOW);
	fp_affinity_tick(&s->affinity);
	assert_int_equal(cpus_of(s, 0), 1);
	fp_affinity_tick(&s->affinity);
	assert_int_equal(cpus_of(s, 0), CPU_COUNT(&s->all));
}

/* The program set an affinity while the thread was held: that affinity stays. */
static void test_own_choice_stays(void **state)
{
	struct scene *s = *state;
	cpu_set_t choice, now;
	pid_t tid = (pid_t)atomic_load(&s->threads[0].tid);

	faults(s, 0, WINDOW);
	CPU_ZERO(&choice);
	for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&choice) == 0; cpu++)
		if (CPU_ISSET(cpu, &s->all) && cpu != s->affinity.cpu)
			CPU_SET(cpu, &choice);
	assert_int_equal(sched_setaffinity(tid, sizeof(choice), &choice), 0);
	fp_affinity_done(&s->affinity);
	sched_getaffinity(tid, sizeof(now), &now);
	assert_true(CPU_EQUAL(&now, &choice));
	fp_affinity_init(&s->affinity, false);
}

static void test_release_is_for_the_held_thread(void **state)
{
	struct scene *s = *state;

	faults(s, 0, WINDOW);
	fp_affinity_release(&s->affinity, false); /* the test's own thread is not held */
	assert_int_equal(cpus_of(s, 0), 1);
	s->threads[0].release = &s->affinity;
	unblock(&s->threads[0]);
	assert_int_equal(atomic_load(&s->affinity.n_held), 0);
	faults(s, 1, WINDOW);
	assert_int_equal(cpus_of(s, 1), 1);
	fp_affinity_release(&s->affinity, true); /* called before the program asks for its CPUs */
	assert_int_equal(cpus_of(s, 1), CPU_COUNT(&s->all));
}

/* The thread is held on a CPU that the program permits, wherever the fault thread runs. */
static void test_a_thread_with_one_cpu(void **state)
{
	struct scene *s = *state;
	pid_t tid = (pid_t)atomic_load(&s->threads[0].tid);

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		cpu_set_t one, now;

		if (!CPU_ISSET(cpu, &s->all))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		assert_int_equal(sched_setaffinity(tid, sizeof(one), &one), 0);
		faults(s, 0, WINDOW);
		assert_int_equal(s->affinity.cpu, cpu);
		fp_affinity_release(&s->affinity, true);
		sched_getaffinity(tid, sizeof(now), &now);
		assert_true(CPU_EQUAL(&now, &one));
	}
}

static void test_a_thread_that_ended(void **state)
{
	struct scene *s = *state;

	unblock(&s->threads[0]);
	faults(s, 0, WINDOW);
	assert_int_equal(atomic_load(&s->affinity.n_held), 0);
}

/* 256 pages are evicted in batches. That takes longer while the test's own thread is not bound. */
static void evict_window(struct scene *s, int cpu)
{
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	if (CPU_COUNT(&set) > 1)
		usleep(2000);
	for (unsigned i = 0; i < 4; i++)
		fp_affinity_evicted(&s->affinity, cpu, 64);
}

static bool is_on(int cpu)
{
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	return CPU_COUNT(&set) == 1 && CPU_ISSET(cpu, &set);
}

static void test_the_reclaim_thread_follows(void **state)
{
	struct scene *s = *state;
	cpu_set_t set;
	int cpu = 0;

	for (unsigned i = 0; i < 16; i++)
		evict_window(s, -1); /* the CPU is not known */
	while (!CPU_ISSET(cpu, &s->all))
		cpu++;
	for (unsigned i = 0; i < TRIES && !is_on(cpu); i++)
		evict_window(s, cpu);
	assert_true(is_on(cpu));
	while (!CPU_ISSET(++cpu, &s->all))
		;
	fp_affinity_evicted(&s->affinity, cpu, 1);
	assert_true(is_on(cpu)); /* the program has moved */
	for (unsigned i = 0; i < 2; i++) {
		usleep(100000);
		for (unsigned n = 0; n < 4; n++)
			fp_affinity_evicted(&s->affinity, cpu, 64);
	}
	sched_getaffinity(0, sizeof(set), &set);
	assert_true(CPU_EQUAL(&set, &s->all)); /* evictions have become seldom */
}

static void test_off(void **state)
{
	struct scene *s = *state;

	fp_affinity_init(&s->affinity, false);
	faults(s, 0, 4 * WINDOW);
	assert_int_equal(cpus_of(s, 0), CPU_COUNT(&s->all));
	for (unsigned i = 0; i < 16; i++)
		evict_window(s, 0);
	assert_false(is_on(0));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(test_majority_is_held),
	    TEST(test_many_are_not_held),
	    TEST(test_few_are_held_if_that_is_faster),
	    TEST(test_unequals_are_not_held_together),
	    TEST(test_one_of_the_held_ended),
	    TEST(test_hold_moves_on),
	    TEST(test_who_faults_no_longer_is_let_go),
	    TEST(test_own_choice_stays),
	    TEST(test_release_is_for_the_held_thread),
	    TEST(test_a_thread_that_ended),
	    TEST(test_a_thread_with_one_cpu),
	    TEST(test_the_reclaim_thread_follows),
	    TEST(test_off),
	};
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	if (CPU_COUNT(&set) < 2) {
		fprintf(stderr, "affinity: two CPUs are needed, this process may use one\n");
		return SKIP;
	}
	return cmocka_run_group_tests_name("affinity", tests, NULL, NULL);
}
