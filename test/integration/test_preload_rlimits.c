/*
 * Programs under RLIMIT_AS and RLIMIT_DATA, which the far range (terabytes) and its tables exceed.
 * The program itself lowers the limits, or its parent, root, or a user who may not raise them
 * again. Each program reads back the numbers that were set, and has far memory up to them. Its
 * children inherit them. Room: test/integration.
 */
#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "race.h"
#include "underpreload.h"

/*
 * Variables of the environment: the first step of this process, and the limit under which it runs.
 */
#define STEP    "FP_TEST_STEP"
#define KIND    "FP_TEST_KIND"
#define HARD    "FP_TEST_HARD"
#define PRELOAD "FP_TEST_PRELOAD"

#define LIMIT    (4000ull << 20)
#define TIGHT    (512ull << 20)
#define BIG      (64u << 20)
#define TOO_BIG  (1024u << 20)
#define PART     (4u << 20)
#define SMALL    (1024ull << 20)
#define PIECE    (1u << 20)
#define HUGE     (8ull << 30)
#define NONSENSE ((void *)8)

static const int kinds[] = {RLIMIT_AS, RLIMIT_DATA};

/* Ends the process with a message if the condition is false. */
#define require(what)                                                                                        \
	do {                                                                                                 \
		if (!(what)) {                                                                               \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));      \
			_exit(99);                                                                           \
		}                                                                                            \
	} while (0)

static int status_of(pid_t pid)
{
	int status;

	require(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void lower(int kind, rlim_t number, bool hard)
{
	struct rlimit limit;

	require(getrlimit(kind, &limit) == 0);
	limit.rlim_cur = number;
	if (hard)
		limit.rlim_max = number;
	require(setrlimit(kind, &limit) == 0);
}

/* ---- steps under a limit ---- */

/*
 * Reads the limit in every way, also into far memory. To set the same limit again changes nothing.
 */
static void is_told(int kind, rlim_t number, bool hard)
{
	struct rlimit limit = {0, 0}, *far = malloc(BIG);

	require(getrlimit(kind, &limit) == 0 && limit.rlim_cur == number);
	require(!hard || limit.rlim_max == number);
	require(far && prlimit(0, kind, NULL, far) == 0 && memcmp(far, &limit, sizeof(limit)) == 0);
	memset(far, 0, sizeof(*far));
	require(syscall(SYS_prlimit64, getpid(), kind, NULL, far) == 0 &&
	        memcmp(far, &limit, sizeof(limit)) == 0);
	require(setrlimit(kind, far) == 0 && getrlimit(kind, far) == 0 &&
	        memcmp(far, &limit, sizeof(limit)) == 0);
	free(far);
}

static void *touch(void *mem)
{
	test_fill(mem, PART, 3);
	return test_is_filled(mem, PART, 3) ? mem : NULL;
}

static void use_far(void)
{
	char *heap = calloc(1, BIG), *private, *shared;
	pthread_t thread;
	void *result;

	require(heap && test_is_far(heap + BIG / 2));
	private = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	require(private != MAP_FAILED && test_is_far(private));
	shared = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	require(shared != MAP_FAILED);
	require(pthread_create(&thread, NULL, touch, heap) == 0);
	require(pthread_join(thread, &result) == 0 && result == heap);
	require(touch(private) && touch(shared));
	munmap(private, BIG);
	munmap(shared, BIG);
	free(heap);
}

static pid_t fork_and(void (*act)(int kind, bool hard), int kind, bool hard)
{
	pid_t pid = fork();

	require(pid >= 0);
	if (pid)
		return pid;
	act(kind, hard);
	_exit(0);
}

static void be_told_and_use(int kind, bool hard)
{
	is_told(kind, LIMIT, hard);
	use_far();
}

static void set_step(const char *step, int kind, bool hard)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", kind);
	setenv(STEP, step, 1);
	setenv(KIND, number, 1);
	setenv(HARD, hard ? "1" : "0", 1);
}

static void execute(const char *step, int kind, bool hard)
{
	char *argv[] = {(char *)"again", NULL};

	set_step(step, kind, hard);
	require(execve("/none/such", argv, environ) < 0 && errno == ENOENT);
	is_told(kind, LIMIT, hard);
	execve("/proc/self/exe", argv, environ);
	require(!"executed");
}

static void execute_and_use(int kind, bool hard)
{
	execute("use", kind, hard);
}

static int spawn_and_use(int kind, bool hard)
{
	char *argv[] = {(char *)"again", NULL};
	pid_t pid;

	set_step("use", kind, hard);
	require(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ) == 0);
	return status_of(pid);
}

/*
 * Runs in a process to which the limit applies. Tests the process, its children, and programs that
 * it executes.
 */
static void go_through(int kind, bool hard)
{
	be_told_and_use(kind, hard);
	require(status_of(fork_and(be_told_and_use, kind, hard)) == 0);
	require(status_of(fork_and(execute_and_use, kind, hard)) == 0);
	require(spawn_and_use(kind, hard) == 0);
}

static void lower_and_go_through(int kind, bool hard)
{
	lower(kind, LIMIT, hard);
	go_through(kind, hard);
}

/* ---- up to the limit, and no farther ---- */

static char *map(size_t len)
{
	return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static void meet(int kind, bool hard)
{
	char *before = map(TOO_BIG), *mem;
	unsigned n = 0;

	require(before != MAP_FAILED);
	munmap(before, TOO_BIG);
	lower(kind, TIGHT, hard);
	require(map(TOO_BIG) == MAP_FAILED && errno == ENOMEM);
	require(!malloc(TOO_BIG) && errno == ENOMEM);
	mem = map(BIG);
	require(mem != MAP_FAILED);
	require(mremap(mem, BIG, TOO_BIG, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
	while (n < TIGHT / PART && map(PART) != MAP_FAILED)
		n++;
	require(n > TIGHT / PART / 2 && n < TIGHT / PART);
	munmap(mem, BIG);
	require(map(PART) != MAP_FAILED); /* memory that was freed can be mapped again */
	lower(kind, LIMIT, false);
	_exit(hard ? 98 : map(TOO_BIG) == MAP_FAILED);
}

/*
 * Only a third of the limit is sure to be usable. The far range takes half of it, and the leases of
 * a shm: node take addresses too.
 */
static void fill_heap(int kind, bool hard)
{
	unsigned n = 0;

	while (n < SMALL / PIECE && malloc(PIECE))
		n++;
	require(n >= SMALL / PIECE / 3 && n < SMALL / PIECE);
}

static void execute_and_fill(int kind, bool hard)
{
	lower(kind, SMALL, hard);
	set_step("fill", kind, hard);
	execl("/proc/self/exe", "again", (char *)NULL);
	require(!"executed");
}

/* ---- the tests ---- */

/* A limit that is lower than the memory already mapped is refused, and changes nothing. */
static void ask_too_much(int kind, bool hard)
{
	const rlim_t too_low = kind == RLIMIT_AS ? TIGHT - 4096 : TIGHT / 64 - 4096;
	struct rlimit limit, before;
	char *mem = map(TIGHT);

	require(mem != MAP_FAILED && test_is_far(mem));
	mem[0] = mem[TIGHT - 1] = 1;
	require(getrlimit(kind, &before) == 0);
	limit = before;
	limit.rlim_cur = too_low;
	require(setrlimit(kind, &limit) < 0 && errno == EPERM);
	limit.rlim_cur = kind == RLIMIT_AS ? TIGHT : TIGHT / 64; /* less than is mapped already */
	require(prlimit(0, kind, &limit, NULL) < 0 && errno == EPERM);
	require(getrlimit(kind, &limit) == 0 && memcmp(&limit, &before, sizeof(limit)) == 0);
	require(mem[0] == 1 && mem[TIGHT - 1] == 1 && map(TOO_BIG) != MAP_FAILED);
	munmap(mem, TIGHT);
	use_far();
}

/* Most programs use vfork to start other programs. A child of vfork has limits of its own. */
static void limit_a_child(int kind, bool hard)
{
	const struct rlimit limit = {.rlim_cur = TIGHT / 2, .rlim_max = TIGHT / 2};
	char *none[] = {NULL}, *argv[] = {(char *)"true", NULL};
	pid_t pid = vfork();

	if (pid == 0) {
		if (setrlimit(kind, &limit) == 0)
			execve("/bin/true", argv, none);
		_exit(96);
	}
	require(status_of(pid) == 0);
	require(map(TOO_BIG) != MAP_FAILED);
	use_far();
}

static void each(void (*act)(int kind, bool hard), bool hard)
{
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(status_of(fork_and(act, kinds[i], hard)), 0);
}

static void soft_limit(void **state)
{
	each(lower_and_go_through, false);
}

static void hard_limit(void **state)
{
	each(lower_and_go_through, true);
}

static void limit_is_met(void **state)
{
	each(meet, false);
}

static void too_much_is_refused(void **state)
{
	each(ask_too_much, false);
}

static void limit_of_a_child(void **state)
{
	each(limit_a_child, false);
}

static void *lower_by_own_number(void *kind)
{
	struct rlimit limit;

	require(getrlimit(*(int *)kind, &limit) == 0);
	limit.rlim_cur = LIMIT;
	require(prlimit(gettid(), *(int *)kind, &limit, NULL) == 0);
	return NULL;
}

static void lower_by_thread(int kind, bool hard)
{
	pthread_t thread;

	require(pthread_create(&thread, NULL, lower_by_own_number, &kind) == 0);
	require(pthread_join(thread, NULL) == 0);
	be_told_and_use(kind, hard);
}

/* prlimit with a thread's number changes the limit of the thread's process. */
static void limit_by_a_thread(void **state)
{
	each(lower_by_thread, false);
}

static void heap_under_a_limit(void **state)
{
	each(execute_and_fill, false);
}

/* Executes the step as a user who may not raise a limit again. */
static void become_ordinary(int kind, bool hard, const char *step)
{
	(void)prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0); /* may fail if ordinary already */
	set_step(step, kind, hard);
	setenv(PRELOAD, getenv("LD_PRELOAD"), 1);
	execl("/proc/self/exe", "again", (char *)NULL);
	require(!"executed");
}

static void lower_as_ordinary(int kind, bool hard)
{
	become_ordinary(kind, hard, "ordinary");
}

static void ordinary_user(void **state)
{
	each(lower_as_ordinary, true);
	each(lower_as_ordinary, false);
}

/* The limit is lowered in the kernel before the shim starts. */
static void begin_low(int kind, bool hard)
{
	set_step("low", kind, hard);
	setenv(PRELOAD, getenv("LD_PRELOAD"), 1);
	unsetenv("LD_PRELOAD");
	execl("/proc/self/exe", "again", (char *)NULL);
	require(!"executed");
}

static void low_at_the_start(void **state)
{
	each(begin_low, true);
	each(begin_low, false);
}

static void begin_low_as_ordinary(int kind, bool hard)
{
	(void)prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
	begin_low(kind, hard);
}

static void low_for_an_ordinary_user(void **state)
{
	each(begin_low_as_ordinary, true);
	each(begin_low_as_ordinary, false);
}

/* ---- steps of executed programs ---- */

static void ordinary(int kind, bool hard)
{
	struct rlimit limit;

	lower_and_go_through(kind, hard);
	require(getrlimit(kind, &limit) == 0);
	if (!hard)
		return;
	limit.rlim_max += 4096;
	require(setrlimit(kind, &limit) < 0 && errno == EPERM);
	limit.rlim_max -= 8192;
	require(setrlimit(kind, &limit) < 0 && errno == EINVAL); /* soft limit above the hard one */
	limit.rlim_cur = limit.rlim_max;
	require(setrlimit(kind, &limit) == 0);
	is_told(kind, LIMIT - 4096, true);
}

static void low(int kind, bool hard)
{
	lower(kind, LIMIT, hard);
	set_step("through", kind, hard);
	setenv("LD_PRELOAD", getenv(PRELOAD), 1);
	execl("/proc/self/exe", "again", (char *)NULL);
	require(!"executed");
}

static int step(void)
{
	static const struct {
		const char *name;
		void (*act)(int kind, bool hard);
	} steps[] = {
	    {"use", be_told_and_use}, {"ordinary", ordinary},  {"low", low},
	    {"fill", fill_heap},      {"through", go_through},
	};
	int kind = atoi(getenv(KIND));
	bool hard = atoi(getenv(HARD));

	for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++)
		if (strcmp(getenv(STEP), steps[i].name) == 0) {
			steps[i].act(kind, hard);
			return 0;
		}
	return 97;
}

/* Other limits are left to the kernel. Wrong calls give the kernel's errors. */
static void other_calls(void **state)
{
	struct rlimit limit, same;
	int (*volatile get)(__rlimit_resource_t, struct rlimit *) = getrlimit;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(prlimit(getpid(), RLIMIT_NOFILE, &limit, &same), 0);
	assert_memory_equal(&limit, &same, sizeof(limit));
	assert_int_equal(get(RLIMIT_AS, NONSENSE), -1);
	assert_int_equal(errno, EFAULT);
	assert_int_equal(get((__rlimit_resource_t)1000, &limit), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
	assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
	assert_int_equal(getrlimit(RLIMIT_AS, &same), 0);
	assert_memory_equal(&limit, &same, sizeof(limit));
}

/*
 * Pages that were unmapped are still in the eviction queue, although the range no longer includes
 * them.
 */
static void unmap_lower_and_fill(int kind, bool hard)
{
	void *below = (void *)0xc000000000; /* NOLINT(performance-no-int-to-ptr) */
	char *gone = mmap(below, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *p;

	require(gone == below && test_is_far(gone));
	test_fill(gone, BIG, 1);
	munmap(gone, BIG);
	lower(kind, LIMIT, hard);
	p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	require(p != MAP_FAILED);
	test_fill(p, BIG, 2);
	require(test_is_filled(p, BIG, 2));
}

static void pages_that_the_range_has_no_more(void **state)
{
	assert_int_equal(status_of(fork_and(unmap_lower_and_fill, RLIMIT_AS, false)), 0);
}

/* ---- hints on memory that is unmapped meanwhile ---- */

enum { TRIALS = 30, HINTERS = 3 };

struct hinted {
	char *mem;
	int advice;
};

/* The memory may be unmapped already. Then madvise returns an error. */
static void *give_hint(void *arg)
{
	const struct hinted *hinted = arg;

	(void)madvise(hinted->mem, HUGE, hinted->advice);
	return NULL;
}

/*
 * Several threads give the hint, and all but one wait for their turn to page out. Meanwhile this
 * thread unmaps the memory, and the range shrinks below it.
 */
static void unmap_and_lower(int advice, uint64_t *rng)
{
	struct hinted hinted = {.mem = map(HUGE), .advice = advice};
	pthread_t threads[HINTERS];

	require(hinted.mem != MAP_FAILED && test_is_far(hinted.mem));
	test_fill(hinted.mem, PART, 5);
	for (unsigned i = 0; i < HINTERS; i++)
		require(pthread_create(&threads[i], NULL, give_hint, &hinted) == 0);
	test_race_pause(rng, 0, 2000000);
	require(munmap(hinted.mem, HUGE) == 0);
	lower(RLIMIT_AS, SMALL, false);
	for (unsigned i = 0; i < HINTERS; i++)
		require(pthread_join(threads[i], NULL) == 0);
	_exit(0);
}

static void hints_on_what_goes(void **state)
{
	static const int advices[] = {MADV_PAGEOUT, MADV_WILLNEED, MADV_POPULATE_READ};
	uint64_t rng = test_seed("hints_on_what_goes");

	for (unsigned i = 0; i < TRIALS; i++) {
		int advice = advices[i % 3];
		pid_t pid = fork();

		if (pid == 0)
			unmap_and_lower(advice, &rng);
		(void)test_random(&rng);
		assert_true(pid > 0);
		assert_int_equal(status_of(pid), 0);
	}
}

/* ---- a limit during a long call ---- */

#define POPULATES 5u

static atomic_bool populated;

static void *populate(void *mem)
{
	require(madvise(mem, TOO_BIG, MADV_POPULATE_WRITE) == 0);
	atomic_store(&populated, true);
	return NULL;
}

static bool any_resident(char *mem)
{
	static unsigned char vec[TOO_BIG / 4096];

	require(mincore(mem, TOO_BIG, vec) == 0);
	return memchr(vec, 1, sizeof(vec));
}

/* Begins to bring in pages in a thread. Returns true if the thread still does so. */
static bool begin_populate(char *mem, pthread_t *ret_thread)
{
	atomic_store(&populated, false);
	require(mem != MAP_FAILED && test_is_far(mem));
	require(pthread_create(ret_thread, NULL, populate, mem) == 0);
	while (!any_resident(mem))
		sched_yield();
	return !atomic_load(&populated);
}

/*
 * The new limit does not wait until all pages have come in. On a busy machine they may be there
 * before this thread sees the first. Then it tries again.
 */
static void populate_and_lower(int kind, bool hard)
{
	char *mem = map(TOO_BIG);
	unsigned tries = 1;
	pthread_t thread;

	while (!begin_populate(mem, &thread)) {
		require(tries++ < POPULATES);
		require(pthread_join(thread, NULL) == 0 && munmap(mem, TOO_BIG) == 0);
		mem = map(TOO_BIG);
	}
	lower(kind, LIMIT, hard);
	require(!atomic_load(&populated));
	_exit(0);
}

static void lowered_during_a_populate(void **state)
{
	each(populate_and_lower, false);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(soft_limit),
	    cmocka_unit_test(hard_limit),
	    cmocka_unit_test(limit_by_a_thread),
	    cmocka_unit_test(limit_is_met),
	    cmocka_unit_test(too_much_is_refused),
	    cmocka_unit_test(limit_of_a_child),
	    cmocka_unit_test(ordinary_user),
	    cmocka_unit_test(low_at_the_start),
	    cmocka_unit_test(low_for_an_ordinary_user),
	    cmocka_unit_test(other_calls),
	    cmocka_unit_test(heap_under_a_limit),
	    cmocka_unit_test(pages_that_the_range_has_no_more),
	    cmocka_unit_test(hints_on_what_goes),
	    cmocka_unit_test(lowered_during_a_populate),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	if (getenv(STEP))
		return step();
	return test_under_preload(argc, argv, tests);
}
