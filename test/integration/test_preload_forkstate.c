/*
 * Other state that a child of fork inherits: thread data, groups and users, far stacks,
 * descriptors. Also children that exec at once. Room: test/integration.
 */
#include "preload_fork_rig.h"

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

/* ---- exec ---- */

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

/* ---- data that the C library reads in the child before anything serves its faults ---- */

/* Returns the child's verdict: 'y' if look returned true. Then kills the child. */
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

/*
 * Each new thread copies the thread data of all libraries. The agent thread of the child does so
 * too.
 */
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
	fill_all(filled, 1); /* this makes all other pages leave */
	assert_int_equal(word_of_child(look_at_filled), 'y');
	dlclose(library);
}

#define AWAY (512u << 10) /* farther away than any read-ahead reaches */

static gid_t *groups;

static bool take_groups(void)
{
	gid_t taken[2] = {0, 0};

	return setgroups(2, groups) == 0 && getgroups(2, taken) == 2 && taken[0] + taken[1] == 23;
}

/*
 * The C library makes every thread read the list of groups. Some of these threads would have to
 * fetch the page of that list.
 */
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

static unsigned change;

/* By each of the C library's functions in turn. */
static int change_user(void)
{
	switch (change) {
	case 0:
		return setuid(NOBODY);
	case 1:
		return setreuid(NOBODY, NOBODY);
	default:
		return setresuid(NOBODY, NOBODY, NOBODY);
	}
}

/* Changes its user, checks pages that were remote at the fork, and uses memory of its own. */
static bool become_nobody(void)
{
	const size_t len = 24u << 20;
	char *mem;
	bool ok;

	if (setgid(NOBODY) < 0 || change_user() < 0 || !all_filled(filled, 1) || !(mem = malloc(len)))
		return false;
	test_fill(mem, len, 3);
	ok = test_is_filled(mem, len, 3) && all_filled(filled, 1);
	free(mem);
	return ok;
}

/* Changes user like the workers of servers, which do it before they touch much memory. */
static void children_of_another_user(void **state)
{
	if (geteuid())
		skip();
	fill_all(filled, 1);
	for (change = 0; change < 3; change++)
		assert_int_equal(word_of_child(become_nobody), 'y');
}

#define KEYS        40u /* more keys than fit in a thread's own record */
#define NEIGHBOURS  64u
#define VALUES_SIZE 512u /* size of the C library's blocks of values */

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

/*
 * In the child, the C library clears the values of all other threads. The pages of these values may
 * be remote.
 */
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

/* ---- a child made on a far stack ---- */

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

/*
 * Acts as crash handlers often do: the stack is from malloc, and only its uppermost pages were
 * touched.
 */
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
		fill_all(filled, 77); /* this makes the stack's pages leave */
		forked_status = -1;
		raise(SIGUSR2);
		assert_int_equal(forked_status, 0);
	}
	sigaction(SIGUSR2, &old_action, NULL);
	sigaltstack(&old_stack, NULL);
	free(stack);
}

/* ---- a thread with its own descriptor table ---- */

static int said[2];

/* Forks, so that the agent opens descriptors that the other table does not get. */
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

/* The child lacks the descriptors of the other table. It works, or ends with a message. */
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
