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
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "affinity.h"
#include "cleanup.h"
#include "clock.h"

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
	struct blocked threads[FP_HOLD_MAX + 1];
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

/* Waits until threads may be held again after a release. */
static void await_holds(const struct scene *s)
{
	while (fp_clock_ns() <= atomic_load(&s->affinity.no_hold_until_ns))
		usleep(1000);
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
		faults_in_turn(s, FP_HOLD_MAX + 1);
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
		await_holds(s);
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
	await_holds(s);
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
		await_holds(s);
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

/* ---- after a release ---- */

/* True if thread 0 was not held. On a busy machine the time is over before that is known. */
static bool stays_free(struct scene *s)
{
	faults(s, 0, WINDOW);
	if (fp_clock_ns() >= atomic_load(&s->affinity.no_hold_until_ns))
		return false;
	assert_int_equal(cpus_of(s, 0), CPU_COUNT(&s->all));
	return true;
}

/* A thread that has released itself is about to start a thread, which would inherit its one CPU. */
static void test_a_released_thread_is_not_held_at_once(void **state)
{
	struct scene *s = *state;
	bool free = false, free_again = false;

	for (unsigned i = 0; i < 50 && !(free && free_again); i++) {
		fp_affinity_release(&s->affinity, false); /* not held, but it might be at the next fault */
		free |= stays_free(s);
		await_holds(s);
		faults(s, 0, WINDOW);
		assert_int_equal(cpus_of(s, 0), 1);
		fp_affinity_release(&s->affinity, true);
		free_again |= stays_free(s);
	}
	assert_true(free && free_again);
}

static int own_cpus(void)
{
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	return CPU_COUNT(&set);
}

static void hold_own_thread(struct scene *s)
{
	await_holds(s);
	for (unsigned i = 0; i < WINDOW; i++)
		fp_affinity_fault(&s->affinity, (uint32_t)gettid());
	assert_int_equal(own_cpus(), 1);
}

/* Makes a child. Returns how many CPUs it has after act. */
static int cpus_of_child(struct scene *s, void (*act)(struct scene *))
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		act(s);
		_exit(own_cpus());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void be_forked(struct scene *s)
{
	fp_affinity_forked(&s->affinity);
}

static void test_a_child_has_all_cpus(void **state)
{
	struct scene *s = *state;

	hold_own_thread(s);
	fp_affinity_forking(&s->affinity);
	hold_own_thread(s); /* again, because the fork took long */
	assert_int_equal(cpus_of_child(s, be_forked), CPU_COUNT(&s->all));
}

static void release_guest(struct scene *s)
{
	fp_affinity_release(&s->affinity, false);
}

static void choose_a_cpu(struct scene *s)
{
	cpu_set_t choice, now;

	CPU_ZERO(&choice);
	for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&choice) == 0; cpu++)
		if (CPU_ISSET(cpu, &s->all) && cpu != s->affinity.cpu)
			CPU_SET(cpu, &choice);
	sched_setaffinity(0, sizeof(choice), &choice);
	fp_affinity_release(&s->affinity, false);
	sched_getaffinity(0, sizeof(now), &now);
	if (!CPU_EQUAL(&now, &choice))
		_exit(0);
}

/* As to affinity, a forked child is like a child of vfork: another process with the same struct. */
static void test_a_guest_keeps_its_choice(void **state)
{
	struct scene *s = *state;

	hold_own_thread(s);
	assert_int_equal(cpus_of_child(s, release_guest), CPU_COUNT(&s->all));
	assert_int_equal(cpus_of_child(s, choose_a_cpu), 1);
}

/* A debugger reads this process's memory: the faults name a thread of the debugger. */
static void test_a_thread_of_another_process_is_not_held(void **state)
{
	struct scene *s = *state;
	pid_t pid = fork();
	cpu_set_t set;

	if (pid == 0)
		for (;;)
			pause();
	for (unsigned i = 0; i < WINDOW; i++)
		fp_affinity_fault(&s->affinity, (uint32_t)pid);
	assert_int_equal(sched_getaffinity(pid, sizeof(set), &set), 0);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_int_equal(CPU_COUNT(&set), CPU_COUNT(&s->all));
	assert_int_equal(atomic_load(&s->affinity.n_held), 0);
}

/* ---- while it is released ---- */

#define ROUNDS 300u

struct observer {
	struct scene *scene;
	_Atomic unsigned round, seen, bound;
};

/* In each round, waits until no thread counts as held. Then looks whether one still has one CPU. */
static void *observe(void *arg)
{
	struct observer *o = arg;
	struct scene *s = o->scene;

	for (unsigned round = 1; round <= ROUNDS; round++) {
		while (atomic_load(&o->round) < round || atomic_load(&s->affinity.n_held) > 0)
			;
		for (unsigned i = 0; i < 2; i++)
			if (cpus_of(s, i) == 1)
				atomic_fetch_add(&o->bound, 1);
		atomic_store(&o->seen, round);
	}
	return NULL;
}

static void hold_two(struct scene *s)
{
	const struct fp_hold_trial wanted = {.phase = FP_HOLD_KEEP, .held = true, .keep = UINT32_MAX};

	for (unsigned i = 0; i < TRIES && atomic_load(&s->affinity.n_held) != 2; i++) {
		s->affinity.trial = wanted; /* what a trial leaves that found a hold faster */
		atomic_store(&s->affinity.no_hold_until_ns, 0);
		for (unsigned n = 0; n < WINDOW; n++)
			faults(s, n % 2, 1);
	}
	assert_int_equal(atomic_load(&s->affinity.n_held), 2);
}

/* A thread that reads that nothing is held goes on at once, and starts threads. */
static void test_who_no_longer_counts_as_held_is_free(void **state)
{
	struct observer observer = {.scene = *state};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, observe, &observer), 0);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		hold_two(*state);
		atomic_store(&observer.round, round);
		fp_affinity_release(&observer.scene->affinity, true);
		while (atomic_load(&observer.seen) < round)
			sched_yield();
	}
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&observer.bound), 0);
}

/* ---- the lock ---- */

#define HOLDER_US 4000u

/* Acts as a holder of the lock that was preempted for some milliseconds. */
static void *unlock_later(void *busy)
{
	usleep(HOLDER_US);
	atomic_store((_Atomic bool *)busy, false);
	return NULL;
}

static void test_a_release_waits_for_the_lock(void **state)
{
	struct scene *s = *state;
	unsigned released = 0;
	pthread_t holder;

	for (unsigned i = 0; i < 8; i++) { /* on a busy machine, the holder may be late */
		await_holds(s);
		faults(s, 0, WINDOW);
		atomic_store(&s->affinity.busy, true);
		assert_int_equal(pthread_create(&holder, NULL, unlock_later, &s->affinity.busy), 0);
		fp_affinity_release(&s->affinity, true);
		released += cpus_of(s, 0) > 1;
		pthread_join(holder, NULL);
		fp_affinity_release(&s->affinity, true);
	}
	assert_true(released > 0);
}

static void test_a_lock_that_is_never_given_back(void **state)
{
	struct scene *s = *state;

	faults(s, 0, WINDOW);
	atomic_store(&s->affinity.busy, true);
	fp_affinity_release(&s->affinity, true);
	fp_affinity_done(&s->affinity);
	assert_int_equal(cpus_of(s, 0), CPU_COUNT(&s->all));
	atomic_store(&s->affinity.busy, false);
}

static struct fp_affinity *interrupted;
static _Atomic unsigned n_signals, n_in_lock;
static _Thread_local bool releases; /* only this thread can be interrupted in the lock */

static void count_signal(int sig)
{
	atomic_fetch_add(&n_signals, 1);
	if (releases && atomic_load(&interrupted->busy))
		atomic_fetch_add(&n_in_lock, 1);
}

/* A handler that jumps away would keep the lock. So no handler may run while it is locked. */
static void test_no_handler_runs_while_it_is_locked(void **state)
{
	const struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
	struct scene *s = *state;
	sigset_t alarm;

	interrupted = &s->affinity;
	releases = true;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	signal(SIGALRM, count_signal);
	setitimer(ITIMER_REAL, &often, NULL);
	for (unsigned i = 0; i < 20 * ROUNDS; i++) {
		pthread_sigmask(SIG_BLOCK, &alarm, NULL); /* the fault thread takes no signals */
		atomic_store(&s->affinity.no_hold_until_ns, 0);
		faults(s, 0, WINDOW);
		pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
		fp_affinity_release(&s->affinity, true);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	signal(SIGALRM, SIG_DFL);
	assert_true(atomic_load(&n_signals) > 0);
	assert_int_equal(atomic_load(&n_in_lock), 0);
}

/* ---- bound threads only, and off ---- */

static bool is_on(int cpu)
{
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	return CPU_COUNT(&set) == 1 && CPU_ISSET(cpu, &set);
}

/* The agent's threads follow, but no mask of the program changes. */
static void test_only_bound_threads_are_followed(void **state)
{
	struct scene *s = *state;
	pid_t tid = (pid_t)atomic_load(&s->threads[0].tid);
	int cpu = 0;
	cpu_set_t one;

	s->affinity.only_bound = true;
	faults(s, 0, WINDOW);
	assert_int_equal(cpus_of(s, 0), CPU_COUNT(&s->all));
	assert_int_equal(own_cpus(), CPU_COUNT(&s->all));
	while (!CPU_ISSET(cpu, &s->all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(tid, sizeof(one), &one), 0);
	faults(s, 0, WINDOW);
	assert_true(is_on(cpu));
	fp_affinity_done(&s->affinity);
	assert_int_equal(cpus_of(s, 0), 1);
	assert_int_equal(own_cpus(), CPU_COUNT(&s->all));
}

static void test_off(void **state)
{
	struct scene *s = *state;

	fp_affinity_init(&s->affinity, false);
	faults(s, 0, 4 * WINDOW);
	assert_int_equal(cpus_of(s, 0), CPU_COUNT(&s->all));
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
	    TEST(test_a_released_thread_is_not_held_at_once),
	    TEST(test_a_child_has_all_cpus),
	    TEST(test_a_guest_keeps_its_choice),
	    TEST(test_a_thread_of_another_process_is_not_held),
	    TEST(test_who_no_longer_counts_as_held_is_free),
	    TEST(test_a_release_waits_for_the_lock),
	    TEST(test_a_lock_that_is_never_given_back),
	    TEST(test_no_handler_runs_while_it_is_locked),
	    TEST(test_only_bound_threads_are_followed),
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
