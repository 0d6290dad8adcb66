/* libfarpage over a real node: each promise of far_*. Room: test/integration. */
#include "farpage/farpage.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmocka.h>

#include "clock.h"
#include "daemon.h"
#include "underpreload.h"

#define MIB  (1u << 20)
#define PAGE 4096u

static const char *farpaged, *scheme;
static uint32_t fault_mode;
static struct test_daemon node;

static int start_node(void **state)
{
	int r = test_daemon_start(farpaged, scheme, 512ull * MIB, &node);

	test_stats_use(&node);
	return r;
}

static int stop_node(void **state)
{
	test_stats_remove(&node);
	test_daemon_stop(&node);
	return 0;
}

/*
 * An assertion for any thread. In other threads than the first, cmocka's own message would be lost.
 */
static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "%s\n", what);
	fail();
}

static struct far_memory *open_memory(uint64_t local_bytes)
{
	const char *const nodes[] = {node.url, NULL};
	const struct far_options options = {.size = sizeof(options),
	                                    .local_bytes = local_bytes,
	                                    .nodes = nodes,
	                                    .secret = node.secret,
	                                    .fault_mode = fault_mode};
	struct far_memory *memory;
	char error[512];

	must(far_open(&options, error, sizeof(error), &memory) == 0, error);
	return memory;
}

static struct far_stats stats_of(struct far_memory *memory)
{
	struct far_stats stats = {.size = sizeof(stats)};

	assert_int_equal(far_get_stats(memory, &stats), 0);
	return stats;
}

/* Waits, because the agent updates gauges only once a tick. */
static void await_remote(struct far_memory *memory, uint64_t bytes)
{
	uint64_t until_ns = fp_clock_ns() + 10 * FP_NSEC_PER_SEC;

	while (stats_of(memory).remote_bytes < bytes && fp_clock_ns() < until_ns)
		sched_yield();
	assert_true(stats_of(memory).remote_bytes >= bytes);
}

static void map_use_unmap(void **state)
{
	struct far_memory *memory = open_memory(MIB);
	struct far_stats stats;
	void *p, *q;

	assert_int_equal(far_map(memory, 16 * MIB, &p), 0);
	assert_int_equal(far_map(memory, PAGE + 1, &q), 0);
	assert_true(test_is_far(p) && test_is_far(q));
	assert_true((uintptr_t)p >= 4ull << 40); /* low addresses are left to others, for example a Java VM */
	test_fill(p, 16 * MIB, 1);
	test_fill(q, 2 * PAGE, 2);
	assert_true(test_is_filled(p, 16 * MIB, 1));
	assert_true(test_is_filled(q, 2 * PAGE, 2));
	await_remote(memory, 14 * MIB);
	stats = stats_of(memory);
	assert_int_equal(stats.mapped_bytes, 16 * MIB + 2 * PAGE);
	assert_true(stats.resident_bytes <= MIB);
	assert_true(stats.faults > 0 && stats.fetched_bytes > 0 && stats.written_bytes > 0);
	assert_true(stats.fault_p50_ns > 0 && stats.fault_p50_ns <= stats.fault_p99_ns);
	assert_int_equal(stats.lost_pages, 0);
	assert_int_equal(far_unmap(memory, p, 8 * MIB), 0);
	assert_int_equal(stats_of(memory).mapped_bytes, 8 * MIB + 2 * PAGE);
	assert_int_equal(far_unmap(memory, (char *)p + 8 * MIB, 8 * MIB), 0);
	assert_int_equal(stats_of(memory).mapped_bytes, 2 * PAGE);
	far_close(memory);
	assert_false(test_is_far(p));
	far_close(NULL);
}

static void advise(void **state)
{
	struct far_memory *memory = open_memory(MIB);
	char *bytes;
	void *p;

	assert_int_equal(far_map(memory, 4 * MIB, &p), 0);
	bytes = p;
	test_fill(p, 4 * MIB, 3);
	assert_int_equal(far_advise(memory, bytes + 1, 2 * PAGE, FAR_ADVICE_COLD), 0);
	assert_int_equal(far_advise(memory, bytes + 1, 2 * PAGE, FAR_ADVICE_WILLNEED), 0);
	assert_true(test_is_filled(p, 4 * MIB, 3));
	/*
	 * The range is rounded inwards: only the middle one of these three pages is dropped. The
	 * others are only partly in the range.
	 */
	assert_int_equal(far_advise(memory, bytes + 1, 2 * PAGE, FAR_ADVICE_DISCARD), 0);
	assert_true(test_is_filled(p, PAGE, 3));
	for (unsigned i = 0; i < PAGE; i++)
		assert_int_equal(bytes[PAGE + i], 0);
	assert_int_not_equal(bytes[2 * PAGE], 0);
	assert_int_equal(far_advise(memory, bytes + 1, PAGE, FAR_ADVICE_DISCARD), 0);
	assert_int_equal(far_advise(memory, bytes, SIZE_MAX, FAR_ADVICE_COLD), -EINVAL);
	assert_int_equal(far_advise(memory, bytes, PAGE, (enum far_advice)77), -EINVAL);
	far_close(memory);
}

static void refusals(void **state)
{
	struct far_memory *memory = open_memory(MIB);
	char local[PAGE] __attribute__((aligned(PAGE)));
	void *p = local;

	assert_int_equal(far_map(memory, 0, &p), -EINVAL);
	assert_int_equal(far_map(memory, SIZE_MAX, &p), -ENOMEM);
	assert_int_equal(far_map(memory, 1ul << 30, &p), -ENOMEM); /* the pool has 512 MiB */
	assert_ptr_equal(p, local);
	assert_int_equal(far_unmap(memory, local, 0), -EINVAL);
	assert_int_equal(far_unmap(memory, local, PAGE), -ENOMEM);
	assert_int_equal(far_unmap(memory, local + 1, PAGE), -EINVAL);
	assert_int_equal(far_advise(memory, local, PAGE, FAR_ADVICE_COLD), -ENOMEM);
	far_close(memory);
}

static void bad_options(void **state)
{
	const char *const good[] = {node.url, NULL}, *const bad[] = {"tcp:nowhere", NULL},
	                  *const none[] = {NULL};
	const struct {
		struct far_options options;
		int error;
	} cases[] = {
	    {{.size = sizeof(struct far_options), .local_bytes = MIB}, -EINVAL},
	    {{.size = sizeof(struct far_options), .local_bytes = MIB, .nodes = none}, -EINVAL},
	    {{.size = sizeof(struct far_options), .local_bytes = MIB, .nodes = bad}, -EINVAL},
	    {{.size = sizeof(struct far_options), .local_bytes = 65535, .nodes = good}, -EINVAL},
	    {{.size = sizeof(struct far_options), .local_bytes = 0, .nodes = good}, -EINVAL},
	    {{.size = sizeof(struct far_options),
	      .local_bytes = MIB,
	      .nodes = good,
	      .deadline_ms = UINT64_MAX},
	     -EINVAL},
	    {{.size = sizeof(struct far_options),
	      .local_bytes = MIB,
	      .nodes = good,
	      .patience_ms = UINT64_MAX},
	     -EINVAL},
	    {{.size = sizeof(struct far_options), .local_bytes = MIB, .nodes = good, .on_loss = 2}, -EINVAL},
	    {{.size = 0}, -EINVAL},
	    {{.size = sizeof(struct far_options), .local_bytes = MIB, .nodes = good, .fault_mode = 2},
	     -EINVAL},
	};
	struct far_memory *memory = NULL;
	char error[512];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		error[0] = '\0';
		assert_int_equal(far_open(&cases[i].options, error, sizeof(error), &memory), cases[i].error);
		assert_null(memory);
		assert_true(error[0]);
		assert_int_equal(far_open(&cases[i].options, NULL, 0, &memory), cases[i].error);
	}
}

/*
 * A program compiled with a later header has members that this library does not know. The program
 * is accepted if these members are 0, and refused otherwise.
 */
static void later_options(void **state)
{
	const char *const nodes[] = {node.url, NULL};
	struct {
		struct far_options known;
		uint64_t later;
	} options = {
	    .known = {.size = sizeof(options), .local_bytes = MIB, .nodes = nodes, .secret = node.secret}};
	struct {
		struct far_stats known;
		uint64_t later;
	} stats = {.known.size = sizeof(stats), .later = 77};
	struct far_memory *memory;
	char error[512];

	assert_int_equal(far_open(&options.known, error, sizeof(error), &memory), 0);
	assert_int_equal(far_get_stats(memory, &stats.known), 0);
	assert_int_equal(stats.later, 77);
	stats.known = (struct far_stats){.size = offsetof(struct far_stats, faults), .faults = 88};
	assert_int_equal(far_get_stats(memory, &stats.known), 0);
	assert_int_equal(stats.known.faults, 88);
	far_close(memory);
	options.later = 1;
	assert_int_equal(far_open(&options.known, error, sizeof(error), &memory), -E2BIG);
}

/*
 * Several memories come and go, for longer than the descriptor guard waits between two looks. The
 * guard must not report a loss for the descriptor of another memory, nor for a number that a closed
 * memory had.
 */
static void memories_that_come_and_go(void **state)
{
	struct far_memory *memory[4] = {open_memory(MIB)};

	for (unsigned i = 1; i < 4; i++) {
		memory[i] = open_memory(MIB);
		poll(NULL, 0, 600);
		far_close(memory[i - 1]);
	}
	poll(NULL, 0, 600);
	far_close(memory[3]);
}

#define N_OPENERS 4u
#define N_EACH    6u
#define N_ROUNDS  3u

struct opener {
	pthread_t thread;
	pthread_barrier_t *together;
	unsigned idx;
};

/*
 * All threads open memories at once. Half of the threads close theirs while the guards of the
 * others look at their descriptors several times. If a guard had also taken a descriptor of another
 * memory, it would end the process when that memory is closed.
 */
static void *open_and_close(void *arg)
{
	const struct opener *opener = arg;
	struct far_memory *memory[N_EACH];
	void *p;

	for (unsigned round = 0; round < N_ROUNDS; round++) {
		pthread_barrier_wait(opener->together);
		for (unsigned i = 0; i < N_EACH; i++)
			memory[i] = open_memory(MIB);
		must(far_map(memory[0], 4 * MIB, &p) == 0, "it could not be mapped");
		test_fill(p, 4 * MIB, 30 + opener->idx);
		pthread_barrier_wait(opener->together);
		if ((round + opener->idx) % 2)
			poll(NULL, 0, 600);
		must(test_is_filled(p, 4 * MIB, 30 + opener->idx), "its bytes are wrong");
		for (unsigned i = 0; i < N_EACH; i++)
			far_close(memory[i]);
	}
	return NULL;
}

static unsigned n_entries(const char *folder)
{
	DIR *dir = opendir(folder);
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* After pthread_join returns, the kernel still lists the thread for a moment. */
static void await_threads(unsigned n)
{
	uint64_t until_ns = fp_clock_ns() + 10 * FP_NSEC_PER_SEC;

	while (n_entries("/proc/self/task") > n && fp_clock_ns() < until_ns)
		sched_yield();
	assert_true(n_entries("/proc/self/task") <= n);
}

static void memories_of_several_threads(void **state)
{
	unsigned n_fds = n_entries("/proc/self/fd"), n_threads = n_entries("/proc/self/task");
	struct opener openers[N_OPENERS];
	pthread_barrier_t together;

	if (strcmp(scheme, "rdma") == 0)
		skip(); /* soft iWARP refuses handshakes that come at the same time */
	assert_int_equal(pthread_barrier_init(&together, NULL, N_OPENERS), 0);
	for (unsigned i = 0; i < N_OPENERS; i++) {
		openers[i] = (struct opener){.together = &together, .idx = i};
		assert_int_equal(pthread_create(&openers[i].thread, NULL, open_and_close, &openers[i]), 0);
	}
	for (unsigned i = 0; i < N_OPENERS; i++)
		assert_int_equal(pthread_join(openers[i].thread, NULL), 0);
	pthread_barrier_destroy(&together);
	assert_int_equal(n_entries("/proc/self/fd"), n_fds);
	await_threads(n_threads);
}

/* Two memories at the same time. A child sees both as they were at the fork. */
static void fork_with_two(void **state)
{
	struct far_memory *memory[2];
	void *p[2];
	int status;
	pid_t pid;

	for (unsigned i = 0; i < 2; i++) {
		memory[i] = open_memory(MIB);
		assert_int_equal(far_map(memory[i], 8 * MIB, &p[i]), 0);
		test_fill(p[i], 8 * MIB, 10 + i);
	}
	pid = fork();
	if (pid == 0) {
		bool same = test_is_filled(p[0], 8 * MIB, 10) && test_is_filled(p[1], 8 * MIB, 11);

		test_fill(p[0], 8 * MIB, 12);
		_exit(same && test_is_filled(p[0], 8 * MIB, 12) ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(test_is_filled(p[i], 8 * MIB, 10 + i));
		far_close(memory[i]);
	}
}

static void fork_there(void)
{
	_exit(fork() < 0 ? 1 : 2);
}

/*
 * A fork on a far stack is refused with a message: the child would run on that stack before it has
 * an agent.
 */
static void fork_on_a_far_stack(void **state)
{
	char text[512] = "";
	int status, said[2];
	pid_t pid;

	assert_int_equal(pipe(said), 0);
	pid = fork();
	if (pid == 0) {
		static char handlers[64u << 10]; /* inline: the SIGBUS handler runs on this stack */
		const stack_t local = {.ss_sp = handlers, .ss_size = sizeof(handlers)};
		ucontext_t there;
		void *stack;

		dup2(said[1], STDERR_FILENO);
		if (sigaltstack(&local, NULL) < 0 || far_map(open_memory(MIB), MIB, &stack) < 0)
			_exit(3);
		getcontext(&there);
		there.uc_stack = (stack_t){.ss_sp = stack, .ss_size = MIB};
		makecontext(&there, fork_there, 0);
		setcontext(&there);
		_exit(4);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 125);
	assert_true(read(said[0], text, sizeof(text) - 1) > 0);
	assert_non_null(strstr(text, "a fork on a stack in far memory"));
	close(said[0]);
	close(said[1]);
}

/*
 * The kernel reads and writes held memory, also if holds are nested. In mode inline it can't reach
 * far memory that is not held.
 */
static void held_for_the_kernel(void **state)
{
	struct far_memory *memory = open_memory(MIB);
	struct far_hold outer, inner;
	int fds[2];
	char *bytes;
	void *p;

	assert_int_equal(far_map(memory, 8 * MIB, &p), 0);
	bytes = p;
	test_fill(p, 8 * MIB, 20); /* makes the first pages leave again */
	assert_int_equal(pipe(fds), 0);
	if (fault_mode == FAR_FAULT_INLINE) {
		assert_int_equal(write(fds[1], bytes, 1), -1);
		assert_int_equal(errno, EFAULT);
	}
	assert_int_equal(far_hold(memory, bytes, 4 * PAGE, 0, &outer), 0);
	assert_int_equal(far_hold(memory, bytes + 10 * PAGE, 4 * PAGE, 1, &inner), 0);
	assert_int_equal(write(fds[1], bytes, 4 * PAGE), 4 * PAGE);
	test_fill(bytes + 4 * MIB, 4 * MIB, 21); /* held memory stays */
	assert_int_equal(read(fds[0], bytes + 10 * PAGE, 4 * PAGE), 4 * PAGE);
	assert_int_equal(write(fds[1], bytes, PAGE), PAGE);
	far_unhold(memory, &inner);
	far_unhold(memory, &outer);
	assert_memory_equal(bytes, bytes + 10 * PAGE, 4 * PAGE);
	if (fault_mode == FAR_FAULT_INLINE) {
		assert_int_equal(far_hold(memory, bytes + 1, MIB, 0, &outer), -E2BIG);
		assert_int_equal(outer.fit_bytes, MIB / 4 - 1);
	}
	close(fds[0]);
	close(fds[1]);
	far_close(memory);
}

/* ---- CPUs ---- */

static int own_cpus(void)
{
	cpu_set_t set;

	must(sched_getaffinity(0, sizeof(set), &set) == 0, "its CPUs can't be read");
	return CPU_COUNT(&set);
}

static void *count_cpus(void *ret_count)
{
	*(int *)ret_count = own_cpus();
	return NULL;
}

/* The library has no hold on what the program starts, so it must leave the program's CPUs alone. */
static void the_programs_cpus_stay(void **state)
{
	struct far_memory *memory = open_memory(MIB);
	int all = own_cpus(), of_thread = 0;
	pthread_t thread;
	void *p;

	assert_int_equal(far_map(memory, 8 * MIB, &p), 0);
	test_fill(p, 8 * MIB, 50);
	assert_true(test_is_filled(p, 8 * MIB, 50));
	assert_int_equal(pthread_create(&thread, NULL, count_cpus, &of_thread), 0);
	pthread_join(thread, NULL);
	assert_int_equal(own_cpus(), all);
	assert_int_equal(of_thread, all);
	far_close(memory);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(map_use_unmap),
	    cmocka_unit_test(advise),
	    cmocka_unit_test(refusals),
	    cmocka_unit_test(bad_options),
	    cmocka_unit_test(later_options),
	    cmocka_unit_test(memories_that_come_and_go),
	    cmocka_unit_test(memories_of_several_threads),
	    cmocka_unit_test(fork_with_two),
	    cmocka_unit_test(fork_on_a_far_stack),
	    cmocka_unit_test(held_for_the_kernel),
	    cmocka_unit_test(the_programs_cpus_stay),
	};

	if (argc != 3 && argc != 4) {
		fprintf(stderr, "usage: %s FARPAGED SCHEME [inline]\n", argv[0]);
		return 2;
	}
	if (test_cannot_run())
		return TEST_SKIPPED;
	farpaged = argv[1];
	scheme = argv[2];
	fault_mode = argc == 4 ? FAR_FAULT_INLINE : FAR_FAULT_THREAD;
	return cmocka_run_group_tests(tests, start_node, stop_node);
}
