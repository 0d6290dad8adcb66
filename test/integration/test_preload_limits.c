/*
 * Programs whose limits or root folder leave little to the agent. The file of its counters may not
 * grow, there is no /proc, or little memory may be locked. The programs and their children go on
 * with far memory. Room: test/integration.
 */
#include <linux/capability.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "underpreload.h"

#define BIG   (8 * TEST_LOCAL_BYTES)
#define AGAIN "FP_TEST_AGAIN" /* set in the environment of a program that runs under a limit */

static char *filled;

static int fill(void **state)
{
	filled = malloc(BIG);
	if (!filled)
		return -1;
	test_fill(filled, BIG, 1);
	return 0;
}

static int status_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/*
 * Runs in a child. Checks the inherited bytes, and bytes of its own, most of which have to leave.
 * Then a child of this child does the same.
 */
static int use_far(unsigned generations)
{
	pid_t pid;

	if (!test_is_filled(filled, BIG, generations))
		return 20;
	test_fill(filled, BIG, generations + 1);
	if (!test_is_filled(filled, BIG, generations + 1))
		return 21;
	if (test_far_resident_bytes() > BIG / 2)
		return 22;
	if (generations == 3)
		return 0;
	pid = fork();
	if (pid == 0)
		_exit(use_far(generations + 1));
	return status_of(pid);
}

static void limit_files(void)
{
	const struct rlimit none = {.rlim_cur = 0, .rlim_max = 0};

	signal(SIGXFSZ, SIG_DFL);
	if (setrlimit(RLIMIT_FSIZE, &none) < 0)
		_exit(30);
}

/* Calls restrict_self in a separate process, which then uses far memory in a child. */
static int child_of(void (*restrict_self)(void))
{
	pid_t pid = fork(), child;

	if (pid != 0)
		return status_of(pid);
	restrict_self();
	child = fork();
	if (child == 0)
		_exit(use_far(1));
	_exit(status_of(child));
}

static void no_files_for_children(void **state)
{
	assert_int_equal(child_of(limit_files), 0);
}

static void no_files_at_all(void **state)
{
	FILE *tmp = tmpfile();
	pid_t pid;

	assert_non_null(tmp);
	pid = fork();

	if (pid == 0) {
		setenv(AGAIN, "1", 1);
		limit_files();
		if (dup2(fileno(tmp), STDERR_FILENO) < 0) /* this file can't grow */
			_exit(33);
		execl("/proc/self/exe", "again", (char *)NULL);
		_exit(31);
	}
	assert_int_equal(status_of(pid), 0);
	fclose(tmp);
}

/*
 * Makes the folder of the node the root folder. Only the node's socket is there, and children must
 * reach it by name.
 */
static void leave_root(void)
{
	if (chdir(getenv("FARPAGE_RUNTIME_DIR")) < 0 || chroot(".") < 0 || access("/proc/self", F_OK) == 0)
		_exit(32);
}

/* Adds or removes a hard link, so that the socket's path is right inside the new root, too. */
static void show_socket(bool show)
{
	const char *dir = getenv("FARPAGE_RUNTIME_DIR"), *node = getenv("FARPAGE_NODES");
	char inner[256], link_name[256];

	if (strncmp(node, "shm:", 4) != 0)
		return;
	assert_int_equal(strncmp(dir, "/tmp/", 5), 0);
	snprintf(link_name, sizeof(link_name), "%s%s", dir, node + 4);
	snprintf(inner, sizeof(inner), "%s/tmp", dir);
	if (show)
		assert_int_equal(mkdir(inner, 0700), 0);
	snprintf(inner, sizeof(inner), "%s%s", dir, dir);
	if (show) {
		assert_int_equal(mkdir(inner, 0700), 0);
		assert_int_equal(link(node + 4, link_name), 0);
		return;
	}
	unlink(link_name);
	rmdir(inner);
	*strrchr(inner, '/') = '\0';
	rmdir(inner);
}

static void no_proc(void **state)
{
	int status;

	if (geteuid() != 0) {
		print_message("only root may chroot\n");
		skip();
	}
	show_socket(true);
	status = child_of(leave_root);
	show_socket(false);
	assert_int_equal(status, 0);
}

/* ---- locked memory ---- */

#define LOCK_LIMIT (4u << 20)
#define THREADS    100u

static size_t locked_bytes(void)
{
	FILE *status = fopen("/proc/self/status", "re");
	unsigned long kib = 0;
	char line[256];

	while (status && fgets(line, sizeof(line), status))
		if (sscanf(line, "VmLck: %lu kB", &kib) == 1)
			break;
	if (status)
		fclose(status);
	return (size_t)kib << 10;
}

/* Shared memory stays local. */
static char *map_local(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static void skip_unless_lockable(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_max >= LOCK_LIMIT)
		return;
	print_message("RLIMIT_MEMLOCK is below %u bytes\n", LOCK_LIMIT);
	skip();
}

/*
 * munlockall unlocks all memory of the process, as the kernel's call does. That includes memory
 * that the agent has locked.
 */
static void all_can_be_unlocked(void **state)
{
	char *mine = map_local(4096);

	skip_unless_lockable();
	assert_true(locked_bytes() > 0);
	assert_int_equal(mlock(mine, 4096), 0);
	assert_true(madvise(mine, 4096, MADV_COLD) < 0);
	assert_int_equal(munlockall(), 0);
	assert_int_equal(madvise(mine, 4096, MADV_COLD), 0);
	munmap(mine, 4096);
}

static void *wait_for_all(void *barrier)
{
	pthread_barrier_wait(barrier);
	return NULL;
}

/*
 * Runs in a process that may lock only LOCK_LIMIT bytes. The agent leaves half of them to the
 * program, however many threads the program has.
 */
static int lock_half(void)
{
	char *mine = map_local(LOCK_LIMIT / 2);
	pthread_t threads[THREADS];
	pthread_barrier_t all;
	int r;

	pthread_barrier_init(&all, NULL, THREADS + 1);
	for (unsigned i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, wait_for_all, &all) != 0)
			return 40;
	if (locked_bytes() == 0)
		return 41;
	r = mlock(mine, LOCK_LIMIT / 2) < 0 ? 42 : 0;
	pthread_barrier_wait(&all);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return r;
}

static void half_may_be_locked(void **state)
{
	const struct rlimit limit = {.rlim_cur = LOCK_LIMIT, .rlim_max = LOCK_LIMIT};
	pid_t pid;

	skip_unless_lockable();
	pid = fork();
	if (pid == 0) {
		setenv(AGAIN, "lock", 1);
		(void)prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0); /* now the limit holds for root, too */
		if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0)
			_exit(43);
		execl("/proc/self/exe", "again", (char *)NULL);
		_exit(31);
	}
	assert_int_equal(status_of(pid), 0);
}

static int again(void)
{
	if (strcmp(getenv(AGAIN), "lock") == 0)
		return lock_half();
	return fill(NULL) < 0 ? 1 : use_far(1);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(no_files_for_children),
	    cmocka_unit_test(no_files_at_all),
	    cmocka_unit_test(no_proc),
	    cmocka_unit_test(all_can_be_unlocked),
	    cmocka_unit_test(half_may_be_locked),
	};

	if (getenv(AGAIN))
		return again();
	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
