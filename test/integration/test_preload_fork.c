/*
 * Children of fork that share their parent's remote pages: what they see, whatever becomes of
 * either; and that nothing stays behind of them, in the parent or on the node.
 */
#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "clock.h"
#include "statsmap.h"
#include "testrng.h"
#include "transport.h"
#include "underpreload.h"

#define BIG         (8 * TEST_LOCAL_BYTES)
#define DEADLINE_NS (20 * FP_NSEC_PER_SEC)
#define MANY        200u

#define PARTS 8u /* of what is filled, each by itself */

static char *filled;
static const struct fp_statspage *stats;

static void fill_parts(char *mem, unsigned from, unsigned to, unsigned seed)
{
	for (unsigned i = from; i < to; i++)
		test_fill(mem + i * (BIG / PARTS), BIG / PARTS, seed);
}

static bool are_filled(const char *mem, unsigned from, unsigned to, unsigned seed)
{
	for (unsigned i = from; i < to; i++)
		if (!test_is_filled(mem + i * (BIG / PARTS), BIG / PARTS, seed))
			return false;
	return true;
}

static void fill_all(char *mem, unsigned seed)
{
	fill_parts(mem, 0, PARTS, seed);
}

static bool all_filled(const char *mem, unsigned seed)
{
	return are_filled(mem, 0, PARTS, seed);
}

static int fill(void **state)
{
	filled = malloc(BIG);
	stats = fp_statsmap_own();
	if (!filled || !stats)
		return -1;
	fill_all(filled, 1);
	return 0;
}

static int status_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* What a process far from us found, from a pipe: 'y', or something else; 0 if it said nothing. */
static char await_word(int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	char word = 0;

	if (poll(&pfd, 1, (int)(DEADLINE_NS / FP_NSEC_PER_MSEC)) != 1 || read(fd, &word, 1) != 1)
		return 0;
	return word;
}

static void say(int fd, bool good)
{
	(void)!write(fd, good ? "y" : "n", 1);
}

/* ---- the moment of the fork ---- */

#define WRITERS      2
#define WRITER_PAGES 1024u
#define WORDS        512u /* of a page */

/* Writes 1, 2, 3, ... into its pages in turn. */
struct writer {
	uint64_t (*pages)[WORDS];
	_Atomic uint64_t written;
	atomic_bool stop;
	pthread_t thread;
};

static void *write_on(void *arg)
{
	struct writer *w = arg;

	for (uint64_t n = 1; !atomic_load(&w->stop); n++) {
		uint64_t *page = w->pages[n % WRITER_PAGES];

		page[0] = n;
		page[WORDS - 1] = n;
		atomic_store(&w->written, n);
	}
	return NULL;
}

/* The number of the last write that the pages have, if they have exactly those up to one: 0 if
 * not. */
static uint64_t last_write(const struct writer *w)
{
	uint64_t last = 0;

	for (unsigned i = 0; i < WRITER_PAGES; i++)
		if (w->pages[i][0] > last)
			last = w->pages[i][0];
	for (uint64_t n = last; n > 0 && n + WRITER_PAGES > last; n--) {
		const uint64_t *page = w->pages[n % WRITER_PAGES];

		if (page[0] != n ||
		    (page[WORDS - 1] != n && (n < last || page[WORDS - 1] + WRITER_PAGES != n)))
			return 0;
	}
	return last;
}

static _Noreturn void check_moment(const struct writer *writers, const uint64_t *before)
{
	for (unsigned i = 0; i < WRITERS; i++) {
		uint64_t last = last_write(&writers[i]);

		if (last < before[i] || last < atomic_load(&writers[i].written))
			_exit(2);
		if (last > atomic_load(&writers[i].written) + 1)
			_exit(3);
	}
	_exit(all_filled(filled, 1) ? 0 : 4);
}

static void the_child_sees_the_moment(void **state)
{
	struct writer writers[WRITERS] = {0};
	uint64_t before[WRITERS];

	for (unsigned i = 0; i < WRITERS; i++) {
		writers[i].pages = aligned_alloc(4096, WRITER_PAGES * sizeof(*writers[i].pages));
		pthread_create(&writers[i].thread, NULL, write_on, &writers[i]);
	}
	for (unsigned round = 0; round < 8; round++) {
		pid_t pid;

		for (unsigned i = 0; i < WRITERS; i++)
			while ((before[i] = atomic_load(&writers[i].written)) < (round + 2) * WRITER_PAGES)
				sched_yield();
		pid = fork();
		if (pid == 0)
			check_moment(writers, before);
		assert_int_equal(status_of(pid), 0);
	}
	for (unsigned i = 0; i < WRITERS; i++) {
		atomic_store(&writers[i].stop, true);
		pthread_join(writers[i].thread, NULL);
		assert_int_equal(last_write(&writers[i]), atomic_load(&writers[i].written));
		free(writers[i].pages);
	}
}

/* ---- who lives longer ---- */

/* A process that fills memory of its own, forks, and is gone; its child looks at all and says what
 * it found.
 */
static void orphan(bool by_kill, bool twice)
{
	char *own;
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		own = malloc(BIG);
		fill_all(own, 2);
		if (fork() != 0) {
			if (by_kill)
				kill(getpid(), SIGKILL);
			_exit(0);
		}
		if (twice && fork() != 0)
			_exit(0);
		say(ends[1], all_filled(own, 2) && all_filled(filled, 1));
		fill_all(own, 3);
		fill_all(filled, 4);
		say(ends[1], all_filled(own, 3) && all_filled(filled, 4));
		_exit(0);
	}
	close(ends[1]);
	assert_int_equal(status_of(pid), by_kill ? 128 + SIGKILL : 0);
	assert_int_equal(await_word(ends[0]), 'y');
	assert_int_equal(await_word(ends[0]), 'y');
	assert_int_equal(await_word(ends[0]), 0);
	close(ends[0]);
}

static void children_outlive_parents(void **state)
{
	for (int i = 0; i < 4; i++)
		orphan(i & 1, i & 2);
	assert_true(all_filled(filled, 1));
}

static void daemons_run_on(void **state)
{
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		char *own = malloc(BIG);

		fill_all(own, 2);
		if (daemon(0, 0) < 0)
			_exit(1);
		say(ends[1], all_filled(own, 2) && all_filled(filled, 1));
		_exit(0);
	}
	close(ends[1]);
	assert_int_equal(status_of(pid), 0);
	assert_int_equal(await_word(ends[0]), 'y');
	assert_int_equal(await_word(ends[0]), 0);
	close(ends[0]);
}

/* Both write all they have again and again, each in the other's way on the node. */
static void both_write_on(void **state)
{
	char *common = malloc(BIG);
	pid_t pid;

	fill_all(common, 10);
	pid = fork();
	for (unsigned seed = pid ? 20 : 30, end = seed + 4; seed < end; seed++) {
		if (!all_filled(common, seed == 20 || seed == 30 ? 10 : seed - 1))
			pid ? fail() : _exit(1);
		fill_all(common, seed);
	}
	if (pid == 0)
		_exit(all_filled(common, 33) ? 0 : 2);
	assert_int_equal(status_of(pid), 0);
	assert_true(all_filled(common, 23));
	free(common);
}

/* A family tree: each has what its parent had, and changes a part of it for its own children. */
static int generation(unsigned depth, unsigned id)
{
	int bad = !are_filled(filled, depth, PARTS, 1);
	pid_t pid[2];

	if (depth == 4)
		return bad;
	for (unsigned i = 0; i < 2; i++) {
		fill_parts(filled, depth, depth + 1, 100 + 2 * id + i);
		pid[i] = fork();
		if (pid[i] == 0) {
			bad |= !are_filled(filled, depth, depth + 1, 100 + 2 * id + i);
			_exit(bad | generation(depth + 1, 2 * id + i));
		}
	}
	for (unsigned i = 0; i < 2; i++)
		bad |= status_of(pid[i]);
	return bad | !are_filled(filled, depth, depth + 1, 100 + 2 * id + 1);
}

static void children_fork_again(void **state)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(generation(0, 1));
	assert_int_equal(status_of(pid), 0);
	assert_true(all_filled(filled, 1));
}

/* What the program has advised for its children, and that they inherit no lock in memory. */
static void advice_for_children(void **state)
{
	size_t len = BIG / PARTS;
	char *kept = mmap(NULL, 3 * len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *wiped = kept + len, *locked = wiped + len;
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	for (unsigned i = 0; i < 3; i++)
		test_fill(kept + i * len, len, 2 + i);
	assert_int_equal(madvise(kept, len, MADV_DONTFORK), 0);
	assert_int_equal(madvise(wiped, len, MADV_WIPEONFORK), 0);
	assert_int_equal(mlock(locked, 4 * 4096), 0);
	pid = fork();
	if (pid == 0) {
		for (size_t i = 0; i < len; i++)
			if (wiped[i])
				_exit(1);
		if (write(ends[1], kept, 1) >= 0 || errno != EFAULT)
			_exit(2);
		test_fill(wiped, len, 7);
		if (!test_is_filled(locked, len, 4) || !all_filled(filled, 1) ||
		    !test_is_filled(wiped, len, 7))
			_exit(3);
		_exit(0);
	}
	assert_int_equal(status_of(pid), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_true(test_is_filled(kept + i * len, len, 2 + i));
	munmap(kept, 3 * len);
	close(ends[0]);
	close(ends[1]);
}

/* ---- what stays behind ---- */

static uint64_t node_leased_bytes(void)
{
	const struct fp_session_options options = {.deadline_ns = DEADLINE_NS};
	struct fp_session *session;
	struct fp_node_info info;
	struct fp_url url;

	assert_int_equal(fp_url_parse(getenv("FARPAGE_NODES"), &url), 0);
	assert_int_equal(fp_session_open(&url, &options, &session), 0);
	assert_int_equal(fp_session_info(session, &info), 0);
	fp_session_close(session);
	return info.capacity_bytes - info.free_bytes;
}

static void await_at_most(uint64_t (*gauge)(void), uint64_t bytes)
{
	uint64_t until_ns = fp_clock_ns() + DEADLINE_NS;

	while (gauge() > bytes) {
		if (fp_clock_ns() > until_ns)
			fail_msg("still %llu bytes, at most %llu should be left", (unsigned long long)gauge(),
			         (unsigned long long)bytes);
		poll(NULL, 0, 10);
	}
}

static uint64_t remote_bytes(void)
{
	return atomic_load(&stats->remote_bytes);
}

/* Children end in every way, and meanwhile the parent writes what they hold: each page that it
 * writes needs a fresh slot, so a leak of a few a fork would be seen. */
static void slots_come_back(void **state)
{
	uint64_t mapped = atomic_load(&stats->mapped_bytes), leased = node_leased_bytes();
	uint64_t rng = test_seed("slots_come_back");
	unsigned seed = 1;

	for (unsigned i = 0; i < MANY; i++) {
		pid_t pid = fork();
		int status;

		if (pid == 0) {
			if (test_random(&rng) % 4 == 0)
				fill_parts(filled, 0, PARTS / 4, 5);
			if (test_random(&rng) % 4 == 0 && fork() == 0)
				_exit(are_filled(filled, PARTS / 2, PARTS, seed) ? 0 : 1);
			_exit(i % 8 || are_filled(filled, PARTS / 2, PARTS, seed) ? 0 : 1);
		}
		if (test_random(&rng) % 3 == 0)
			kill(pid, SIGKILL);
		if (i % 8 == 0)
			fill_all(filled, ++seed);
		status = status_of(pid);
		assert_true(status == 0 || status == 128 + SIGKILL);
	}
	assert_true(all_filled(filled, seed));
	fill_all(filled, 1);
	await_at_most(remote_bytes, mapped);
	/* what the forks doubled may stay leased to us, for the next time */
	await_at_most(node_leased_bytes, leased + 3 * (64ull << 20));
}

static void the_node_gets_it_back(void **state)
{
	uint64_t leased = node_leased_bytes();
	pid_t pid[3];
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	for (unsigned i = 0; i < 3; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			char *own = malloc(BIG);

			fill_all(own, 2);
			say(ends[1], all_filled(own, 2));
			pause();
		}
	}
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(await_word(ends[0]), 'y');
	assert_true(node_leased_bytes() > leased);
	for (unsigned i = 0; i < 3; i++) {
		kill(pid[i], i ? SIGKILL : SIGTERM);
		status_of(pid[i]);
	}
	await_at_most(node_leased_bytes, leased);
	close(ends[0]);
	close(ends[1]);
}

/* ---- other programs ---- */

static char true_path[] = "/bin/true", true_name[] = "true";
static char *const true_argv[] = {true_name, NULL};

static void exec_at_once(void **state)
{
	for (unsigned i = 0; i < 30; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			if (i % 3 == 0)
				execl(true_path, true_name, NULL);
			if (i % 3 == 1)
				execle(true_path, true_name, NULL, environ);
			execlp(true_name, true_name, NULL);
			_exit(127);
		}
		assert_int_equal(status_of(pid), 0);
	}
	for (unsigned i = 0; i < 5; i++) {
		pid_t pid;

		assert_int_equal(posix_spawn(&pid, true_path, NULL, NULL, true_argv, environ), 0);
		assert_int_equal(status_of(pid), 0);
	}
	assert_true(all_filled(filled, 1));
}

/* ---- what the C library looks at in the child before anybody serves faults ---- */

/* 'y' if the child said so; it is killed if it says nothing. */
static char word_of_child(bool (*look)(void))
{
	int ends[2];
	char word;
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		say(ends[1], look());
		_exit(0);
	}
	close(ends[1]);
	word = await_word(ends[0]);
	kill(pid, SIGKILL);
	status_of(pid);
	close(ends[0]);
	return word;
}

static bool look_at_filled(void)
{
	return all_filled(filled, 1);
}

/* Any new thread is made of the data of all modules: the agent's own in the child, too. */
static void libraries_with_thread_data(void **state)
{
	char path[4096];
	void *library;
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof("/libtlslibrary.so"));

	assert_true(n > 0);
	path[n] = '\0';
	strcpy(strrchr(path, '/'), "/libtlslibrary.so");
	library = dlopen(path, RTLD_NOW);
	assert_non_null(library);
	fill_all(filled, 1); /* what can leave has left */
	assert_int_equal(word_of_child(look_at_filled), 'y');
	dlclose(library);
}

#define AWAY (512u << 10) /* further than any read-ahead */

static gid_t *groups;

static bool take_groups(void)
{
	gid_t taken[2] = {0, 0};

	return setgroups(2, groups) == 0 && getgroups(2, taken) == 2 && taken[0] + taken[1] == 23;
}

/* The C library has all threads take the list, so those that would bring it in as well. */
static void groups_that_are_remote(void **state)
{
	char *mem = malloc(2 * AWAY);

	if (geteuid())
		skip();
	groups = (gid_t *)(void *)(mem + AWAY);
	groups[0] = 11;
	groups[1] = 12;
	fill_all(filled, 1);
	assert_int_equal(word_of_child(take_groups), 'y');
	free(mem);
}

#define NOBODY 65534

/* It reads what was remote at the fork, and needs room of its own. */
static bool become_nobody(void)
{
	const size_t len = 24u << 20;
	char *mem;
	bool ok;

	if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0 || !all_filled(filled, 1) || !(mem = malloc(len)))
		return false;
	test_fill(mem, len, 3);
	ok = test_is_filled(mem, len, 3) && all_filled(filled, 1);
	free(mem);
	return ok;
}

/* As the workers of servers do, before they touch much. */
static void children_of_another_user(void **state)
{
	if (geteuid())
		skip();
	fill_all(filled, 1);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(word_of_child(become_nobody), 'y');
}

#define KEYS        40u /* more than a thread's own record has room for */
#define NEIGHBOURS  64u
#define VALUES_SIZE 512u /* the C library's blocks of values have that size */

static struct {
	char *neighbours[NEIGHBOURS];
	pthread_key_t keys[KEYS];
	_Atomic unsigned stage;
} values;

static void *set_values(void *arg)
{
	for (unsigned i = 0; i < NEIGHBOURS; i++) {
		values.neighbours[i] = malloc(VALUES_SIZE);
		memset(values.neighbours[i], 'v', VALUES_SIZE);
		if (i == NEIGHBOURS / 2)
			pthread_setspecific(values.keys[KEYS - 1], arg);
	}
	atomic_store(&values.stage, 1);
	while (atomic_load(&values.stage) == 1)
		usleep(1000);
	return NULL;
}

static bool look_at_neighbours(void)
{
	for (unsigned i = 0; i < NEIGHBOURS; i++)
		for (unsigned k = 0; k < VALUES_SIZE; k++)
			if (values.neighbours[i][k] != 'v')
				return false;
	return true;
}

/* It clears the values that other threads have, without a look at whose page that is. */
static void values_of_many_keys(void **state)
{
	pthread_t thread;

	for (unsigned i = 0; i < KEYS; i++)
		assert_int_equal(pthread_key_create(&values.keys[i], NULL), 0);
	assert_int_equal(pthread_create(&thread, NULL, set_values, &values), 0);
	while (atomic_load(&values.stage) == 0)
		usleep(1000);
	fill_all(filled, 1);
	assert_int_equal(word_of_child(look_at_neighbours), 'y');
	atomic_store(&values.stage, 2);
	pthread_join(thread, NULL);
	for (unsigned i = 0; i < NEIGHBOURS; i++)
		free(values.neighbours[i]);
	for (unsigned i = 0; i < KEYS; i++)
		pthread_key_delete(values.keys[i]);
}

/* ---- a child that is made on a stack in far memory ---- */

static _Atomic int forked_status;

static void fork_in_handler(int sig)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		if (!are_filled(filled, 0, PARTS, 77))
			_exit(2);
		execl("/bin/true", "true", (char *)NULL);
		_exit(3);
	}
	if (waitpid(pid, &status, 0) == pid)
		forked_status = status;
}

/* The usual handler of a crash: its stack is from malloc, and only its uppermost pages have been
 * touched. */
static void stacks_that_are_far(void **state)
{
	enum { STACK_BYTES = 256 << 10 };
	char *stack = malloc(STACK_BYTES);
	const stack_t far_stack = {.ss_sp = stack, .ss_size = STACK_BYTES};
	const struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_ONSTACK};
	struct sigaction old_action;
	stack_t old_stack;

	assert_non_null(stack);
	test_fill(stack, STACK_BYTES, 5);
	assert_int_equal(sigaltstack(&far_stack, &old_stack), 0);
	assert_int_equal(sigaction(SIGUSR2, &action, &old_action), 0);
	for (unsigned i = 0; i < 10; i++) {
		fill_all(filled, 77); /* the stack is pushed out */
		forked_status = -1;
		raise(SIGUSR2);
		assert_int_equal(forked_status, 0);
	}
	sigaction(SIGUSR2, &old_action, NULL);
	sigaltstack(&old_stack, NULL);
	free(stack);
}

/* ---- a thread with descriptors of its own ---- */

static int said[2];

/* Forks again, which opens what the other table does not get. */
static void fork_once(void)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	assert_int_equal(status_of(pid), 0);
}

static void *fork_apart(void *unused)
{
	pid_t pid;

	if (unshare(CLONE_FILES) < 0)
		return NULL;
	fork_once();
	dup2(said[1], STDERR_FILENO);
	close(said[1]);
	pid = fork();
	if (pid == 0)
		_exit(are_filled(filled, 0, PARTS, 1) ? 0 : 1);
	return (void *)(uintptr_t)(1000 + status_of(pid));
}

/* What its child lacks is in the other table: right, or ended with a message. */
static void descriptors_of_its_own(void **state)
{
	char text[1024] = "";
	pthread_t thread;
	void *status;

	fill_all(filled, 1);
	assert_int_equal(pipe(said), 0);
	assert_int_equal(pthread_create(&thread, NULL, fork_apart, NULL), 0);
	for (unsigned i = 0; i < 3; i++)
		fork_once();
	assert_int_equal(pthread_join(thread, &status), 0);
	close(said[1]);
	if ((uintptr_t)status == 1000 + 125) {
		assert_true(read(said[0], text, sizeof(text) - 1) > 0);
		assert_non_null(strstr(text, "farpage: "));
	} else {
		assert_int_equal((uintptr_t)status, 1000);
	}
	close(said[0]);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(the_child_sees_the_moment),
	    cmocka_unit_test(children_outlive_parents),
	    cmocka_unit_test(daemons_run_on),
	    cmocka_unit_test(both_write_on),
	    cmocka_unit_test(children_fork_again),
	    cmocka_unit_test(advice_for_children),
	    cmocka_unit_test(slots_come_back),
	    cmocka_unit_test(the_node_gets_it_back),
	    cmocka_unit_test(exec_at_once),
	    cmocka_unit_test(groups_that_are_remote),
	    cmocka_unit_test(children_of_another_user),
	    cmocka_unit_test(values_of_many_keys),
	    cmocka_unit_test(libraries_with_thread_data),
	    cmocka_unit_test(stacks_that_are_far),
	    cmocka_unit_test(descriptors_of_its_own),
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
