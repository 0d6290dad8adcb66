/*
 * Threads on stacks that the program placed in far memory, and their end: the kernel does the last
 * of a thread in the C library's record of it, which is on that stack, when it serves no fault of
 * the thread any more. A tracer stops threads right there, so that the record is made to leave at
 * the worst moment.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "barecall.h"
#include "clock.h"
#include "underpreload.h"

#define BIG         (8 * TEST_LOCAL_BYTES)
#define PAGE        4096u
#define STACK_BYTES (64u << 10)
#define ENOUGH_S    30 /* seconds, for what takes none unless it hangs */
#define TRIES       20u

static char *filled;

static int fill(void **state)
{
	filled = malloc(BIG);
	if (filled)
		test_fill(filled, BIG, 1);
	return filled ? 0 : -1;
}

/* ---- one thread, held at its end by a tracer ---- */

enum way { RETURNS, EXITS, IS_CANCELLED, IS_DETACHED, N_WAYS };

struct ender {
	enum way way;
	char *stack;
	pthread_t thread;
	_Atomic pid_t tid;
	atomic_bool go;
	pid_t tracer;
	int to_tracer[2], from_tracer[2];
};

static void *end_when_told(void *arg)
{
	struct ender *e = arg;

	atomic_store(&e->tid, (pid_t)syscall(SYS_gettid));
	while (!atomic_load(&e->go))
		usleep(100); /* where it is cancelled */
	if (e->way == EXITS)
		pthread_exit(e);
	return e;
}

static void start(struct ender *e)
{
	pthread_attr_t attr;

	e->stack = aligned_alloc(PAGE, STACK_BYTES);
	pthread_attr_init(&attr);
	assert_int_equal(pthread_attr_setstack(&attr, e->stack, STACK_BYTES), 0);
	pthread_attr_setdetachstate(&attr, e->way == IS_DETACHED ? PTHREAD_CREATE_DETACHED
	                                                         : PTHREAD_CREATE_JOINABLE);
	assert_int_equal(pthread_create(&e->thread, &attr, end_when_told, e), 0);
	pthread_attr_destroy(&attr);
	while (!atomic_load(&e->tid))
		sched_yield();
}

/* Where the kernel can't fault on it, a far stack is not used. */
static bool is_on_far_stack(const struct ender *e)
{
	return (uintptr_t)e->thread - (uintptr_t)e->stack < STACK_BYTES;
}

static char *record_page(const struct ender *e)
{
	return (char *)(e->thread & ~(uintptr_t)(PAGE - 1)); // NOLINT(performance-no-int-to-ptr)
}

static void say(int fd, char word)
{
	assert_int_equal(write(fd, &word, 1), 1);
}

static char hear(int fd)
{
	char word = 0;

	return read(fd, &word, 1) == 1 ? word : 0;
}

static bool is_event(int status, int event)
{
	return WIFSTOPPED(status) && status >> 8 == (SIGTRAP | event << 8);
}

/* Until the thread is past all of its own; signals on the way are its. */
static bool await_end(pid_t tid)
{
	int status;

	while (waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status)) {
		if (is_event(status, PTRACE_EVENT_EXIT))
			return true;
		ptrace(PTRACE_CONT, tid, NULL, status >> 16 ? 0L : (long)WSTOPSIG(status));
	}
	return false;
}

/* What it says: 'p' it may not trace, 's' it does, 'e' the thread is at its end and stopped
 * there. */
static _Noreturn void trace(const struct ender *e)
{
	pid_t tid = atomic_load(&e->tid);

	hear(e->to_tracer[0]); /* it is permitted now */
	if (ptrace(PTRACE_SEIZE, tid, NULL, (long)PTRACE_O_TRACEEXIT) < 0) {
		say(e->from_tracer[1], 'p');
		_exit(0);
	}
	say(e->from_tracer[1], 's');
	say(e->from_tracer[1], await_end(tid) ? 'e' : 'x');
	hear(e->to_tracer[0]);
	_exit(ptrace(PTRACE_DETACH, tid, NULL, NULL) == 0 ? 0 : 1);
}

static void start_tracer(struct ender *e)
{
	assert_int_equal(pipe(e->to_tracer), 0);
	assert_int_equal(pipe(e->from_tracer), 0);
	e->tracer = fork();
	if (e->tracer == 0)
		trace(e);
	prctl(PR_SET_PTRACER, e->tracer, 0, 0, 0); /* where that is asked for */
	say(e->to_tracer[1], 'g');
	if (hear(e->from_tracer[0]) == 'p') {
		print_message("no process here may trace another\n");
		_exit(TEST_SKIPPED);
	}
}

static void end_tracer(struct ender *e)
{
	int status;

	assert_int_equal(waitpid(e->tracer, &status, 0), e->tracer);
	assert_int_equal(status, 0);
	for (unsigned i = 0; i < 2; i++) {
		close(e->to_tracer[i]);
		close(e->from_tracer[i]);
	}
}

static void go(struct ender *e)
{
	if (e->way == IS_CANCELLED)
		pthread_cancel(e->thread);
	else
		atomic_store(&e->go, true);
}

/* False: it does not leave. */
static bool make_leave(char *page)
{
	unsigned char vec;

	assert_int_equal(madvise(page, PAGE, MADV_PAGEOUT), 0);
	assert_int_equal(mincore(page, PAGE, &vec), 0);
	return !(vec & 1);
}

static bool leaves_at_last(char *page)
{
	uint64_t until_ns = fp_clock_ns() + ENOUGH_S * FP_NSEC_PER_SEC;

	while (!make_leave(page)) {
		if (fp_clock_ns() > until_ns)
			return false;
		usleep(1000);
	}
	return true;
}

static int join(pthread_t thread, void **ret_result)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ENOUGH_S;
	return pthread_timedjoin_np(thread, ret_result, &until);
}

/* In a child of fork there is no such thread, and nothing is kept for it. */
static void assert_forgotten_in_child(char *page)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(leaves_at_last(page) ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void end_in_one_way(enum way way)
{
	struct ender e = {.way = way};
	bool left = false;
	void *result;

	start(&e);
	start_tracer(&e);
	go(&e);
	assert_int_equal(hear(e.from_tracer[0]), 'e');
	if (is_on_far_stack(&e)) {
		assert_forgotten_in_child(record_page(&e)); /* first: a fork brings records in */
		for (unsigned i = 0; i < TRIES; i++)
			left |= make_leave(record_page(&e));
	}
	say(e.to_tracer[1], 'd');
	if (way != IS_DETACHED) {
		assert_int_equal(join(e.thread, &result), 0);
		assert_ptr_equal(result, way == IS_CANCELLED ? PTHREAD_CANCELED : &e);
	}
	end_tracer(&e);
	assert_false(left);
	if (is_on_far_stack(&e))
		assert_true(leaves_at_last(record_page(&e)));
	free(e.stack);
}

static void record_leaves_at_the_end(void **state)
{
	for (enum way way = RETURNS; way < N_WAYS; way++)
		end_in_one_way(way);
}

/* ---- many, under pressure ---- */

#define MANY     32u
#define ROUNDS   40u
#define PRESSERS 2u

static atomic_bool all_ended;

static void *press(void *number)
{
	unsigned random = (unsigned)(intptr_t)number;

	while (!atomic_load(&all_ended)) {
		volatile char *byte = filled + (size_t)rand_r(&random) % BIG;

		*byte = *byte; /* each page that comes must be written when it leaves */
	}
	return NULL;
}

static void *end_soon(void *number)
{
	const struct timespec pause = {.tv_nsec = (long)(intptr_t)number % 8 * 100000};

	nanosleep(&pause, NULL);
	return number;
}

static void end_many(char *const stack[MANY])
{
	pthread_t thread[MANY];
	pthread_attr_t attr;
	void *result;

	for (intptr_t i = 0; i < (intptr_t)MANY; i++) {
		pthread_attr_init(&attr);
		pthread_attr_setstack(&attr, stack[i], STACK_BYTES);
		assert_int_equal(pthread_create(&thread[i], &attr, end_soon, (void *)i), 0);
		pthread_attr_destroy(&attr);
	}
	for (intptr_t i = 0; i < (intptr_t)MANY; i++) {
		assert_int_equal(join(thread[i], &result), 0);
		assert_int_equal((intptr_t)result, i);
	}
}

/* What was kept for them must all go again: together it is more than a tenth of what may be
 * local. */
static void many_end_under_pressure(void **state)
{
	pthread_t presser[PRESSERS];
	char *stack[MANY];

	for (unsigned i = 0; i < MANY; i++)
		stack[i] = aligned_alloc(PAGE, STACK_BYTES);
	for (intptr_t i = 0; i < (intptr_t)PRESSERS; i++)
		assert_int_equal(pthread_create(&presser[i], NULL, press, (void *)(i + 1)), 0);
	for (unsigned round = 0; round < ROUNDS; round++)
		end_many(stack);
	atomic_store(&all_ended, true);
	for (unsigned i = 0; i < PRESSERS; i++)
		pthread_join(presser[i], NULL);
	for (unsigned i = 0; i < MANY; i++) {
		for (size_t at = 0; at < STACK_BYTES; at += PAGE)
			assert_true(leaves_at_last(stack[i] + at));
		free(stack[i]);
	}
	assert_true(test_is_filled(filled, BIG, 1));
}

/* ---- stacks that only lie in far memory's range ---- */

static void end_on(void *stack)
{
	pthread_attr_t attr;
	pthread_t thread;
	void *result;

	assert_true(stack != MAP_FAILED);
	pthread_attr_init(&attr);
	assert_int_equal(pthread_attr_setstack(&attr, stack, STACK_BYTES), 0);
	assert_int_equal(pthread_create(&thread, &attr, end_soon, stack), 0);
	pthread_attr_destroy(&attr);
	assert_int_equal(join(thread, &result), 0);
	assert_ptr_equal(result, stack);
}

/* Nothing of them is far, and nothing is kept for their threads. */
static void ends_where_another_mapping_is(void **state)
{
	const int prot = PROT_READ | PROT_WRITE;
	char *stack = mmap(NULL, 2 * STACK_BYTES, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *second = stack + STACK_BYTES;

	assert_true(stack != MAP_FAILED);
	assert_true(test_is_far(stack));
	end_on(mmap(stack, STACK_BYTES, prot, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
#ifndef NO_BARE_CALLS
	end_on((char *)bare(SYS_mmap, second, STACK_BYTES, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
	                    0));
#else
	end_on(second);
#endif
	assert_int_equal(munmap(stack, 2 * STACK_BYTES), 0);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(record_leaves_at_the_end), cmocka_unit_test(many_end_under_pressure),
	    cmocka_unit_test(ends_where_another_mapping_is), // last: it is known now that such calls are made
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
