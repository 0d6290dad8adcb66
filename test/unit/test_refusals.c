/*
 * Calls that the shim refuses: which ones, with which error and message, and that all others reach
 * the kernel. Each refusal prints its message only once in the life of a process, so only one test
 * can hear it.
 */
#include "far_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "refusals.h"

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

/* ---- memory ---- */

static void test_seal(void **state)
{
	const unsigned long wrong = 1; /* flags that no kernel takes: nothing is sealed here */

	far_rig_listen();
	assert_int_equal(fp_refusals_seal(FAR(0) - FP_PAGE_SIZE, FP_PAGE_SIZE, wrong), -1);
	assert_true(errno == EINVAL || errno == ENOSYS);
	assert_string_equal(far_rig_heard(), "");
	far_rig_listen();
	errno = 0;
	assert_int_equal(fp_refusals_seal(FAR(0) - FP_PAGE_SIZE, FP_PAGE_SIZE + 1, 0), -1);
	assert_int_equal(errno, ENOSYS);
	assert_non_null(strstr(far_rig_heard(), "mseal was refused"));
}

/* No byte of the word for a thread's number may lie in far memory. */
static void test_word_of_a_thread(void **state)
{
	assert_false(fp_refusals_clear_tid(FAR(0) - sizeof(pid_t)));
	assert_false(fp_refusals_clear_tid(NULL));
	far_rig_listen();
	errno = 0;
	assert_true(fp_refusals_clear_tid(FAR(0) - 1));
	assert_int_equal(errno, EINVAL);
	assert_non_null(strstr(far_rig_heard(), "CLONE_CHILD_CLEARTID"));
	assert_true(fp_refusals_clear_tid(FAR(FP_PAGE_SIZE)));
	far_rig_use_agent(false);
	assert_false(fp_refusals_clear_tid(FAR(FP_PAGE_SIZE)));
}

/* Memory that can't be made local: the program is told, and the mutex is not made. */
static void test_mutex_that_stays_far(void **state)
{
	pthread_mutexattr_t attr;
	pthread_mutex_t local;

	pthread_mutexattr_init(&attr);
	assert_int_equal(pthread_mutex_init((void *)FAR(0), &attr), 0);
	pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
	far_rig_listen();
	assert_int_equal(pthread_mutex_init(&local, &attr), 0);
	assert_string_equal(far_rig_heard(), "");
	far_rig_listen();
	assert_int_equal(pthread_mutex_init((void *)FAR(0), &attr), EAGAIN);
	assert_non_null(strstr(far_rig_heard(), "could not be made local"));
	pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_NONE);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	assert_int_equal(pthread_mutex_init((void *)FAR(0), &attr), EAGAIN);
}

/* A segment over far memory is refused, also if only its end is there. Elsewhere it is attached. */
static void test_segments(void **state)
{
	int id = shmget(IPC_PRIVATE, 2 * FP_PAGE_SIZE, IPC_CREAT | 0600);
	char *attached;

	if (id < 0)
		skip();
	strcpy(FAR(0), "stays");
	far_rig_listen();
	errno = 0;
	attached = shmat(id, FAR(0) - FP_PAGE_SIZE, SHM_REMAP);
	assert_ptr_equal(attached, (void *)-1);
	assert_int_equal(errno, EINVAL);
	assert_non_null(strstr(far_rig_heard(), "SHM_REMAP"));
	assert_string_equal(FAR(0), "stays");
	attached = shmat(id, NULL, 0);
	assert_ptr_not_equal(attached, (void *)-1);
	attached[2 * FP_PAGE_SIZE - 1] = 1;
	assert_ptr_equal(shmat(id, attached, SHM_REMAP), attached);
	assert_int_equal(shmdt(attached), 0);
	assert_int_equal(shmctl(id, IPC_RMID, NULL), 0);
	assert_ptr_equal(shmat(-1, NULL, 0), (void *)-1);
}

/* ---- the process ---- */

static void test_merging(void **state)
{
	far_rig_listen();
	errno = 0;
	assert_int_equal(prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_non_null(strstr(far_rig_heard(), "PR_SET_MEMORY_MERGE"));
	if (prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0) < 0)
		assert_int_equal(errno, EINVAL); /* the kernel does not know it */
	far_rig_use_agent(false);
	if (prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) < 0)
		assert_int_equal(errno, EINVAL);
	else
		assert_int_equal(prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0), 0);
}

/* All other requests reach the kernel with all their arguments. */
static void test_other_requests(void **state)
{
	strcpy(FAR(0), "by-far-memory");
	far_rig_close();
	assert_int_equal(prctl(PR_SET_NAME, FAR(0), 0, 0, 0), 0);
	far_rig_close();
	assert_int_equal(prctl(PR_GET_NAME, FAR(100), 0, 0, 0), 0);
	assert_string_equal(FAR(100), "by-far-memory");
	assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 1, 0, 0), -1);
	assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 1, 0), -1);
	assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 1), -1);
	assert_int_equal(errno, EINVAL);
}

/* A program may forbid itself to read the processor's clock. We then ask the kernel. */
static void test_forbidden_clock(void **state)
{
#if defined(__x86_64__)
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		uint64_t before_ns = fp_clock_ns();

		if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) < 0)
			_exit(1);
		_exit(fp_clock_ns() >= before_ns && fp_clock_ns() - before_ns < 10 * FP_NSEC_PER_SEC ? 0 : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
#else
	skip();
#endif
}

/* ---- namespaces ---- */

static int open_namespace(const char *kind)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/ns/%s", kind);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static bool is_in(const char *kind, const char *before)
{
	char path[64], now[64];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/ns/%s", kind);
	n = readlink(path, now, sizeof(now) - 1);
	assert_true(n > 0);
	now[n] = '\0';
	return strcmp(now, before) == 0;
}

/* While nodes are reached over a network, a change to another network is refused, even to root. */
static void test_network(void **state)
{
	char before[64] = {0};
	int net = open_namespace("net"), uts = open_namespace("uts");

	assert_true(readlink("/proc/self/ns/net", before, sizeof(before) - 1) > 0);
	far_rig.needs_network = true;
	far_rig_listen();
	errno = 0;
	assert_int_equal(unshare(CLONE_NEWNET | CLONE_NEWUTS), -1);
	assert_int_equal(errno, EPERM);
	assert_non_null(strstr(far_rig_heard(), "unshare(CLONE_NEWNET) was refused"));
	assert_true(is_in("net", before));
	assert_int_equal(setns(net, CLONE_NEWNET), -1);
	assert_int_equal(errno, EPERM);
	errno = 0;
	assert_int_equal(setns(net, 0), -1); /* the kind is that of the descriptor */
	assert_int_equal(errno, EPERM);
	assert_int_equal(far_rig.n_awaited, 0);            /* the kernel was not asked */
	assert_true(setns(uts, 0) == 0 || errno == EPERM); /* a kind that does not matter */
	assert_int_equal(far_rig.n_awaited, 1);
	far_rig.needs_network = false;
	assert_true(setns(net, 0) == 0 || errno == EPERM);
	assert_int_equal(far_rig.n_awaited, 2);
	far_rig.needs_network = true;
	far_rig_use_agent(false);
	assert_true(setns(net, CLONE_NEWNET) == 0 || errno == EPERM);
	assert_int_equal(far_rig.n_awaited, 2);
	close(net);
	close(uts);
}

/*
 * Before a process moves to another namespace, its sessions are opened. Perhaps it can't reach the
 * nodes from there.
 */
static void test_sessions_come_first(void **state)
{
	static const int moves[] = {CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWUSER},
	                 stays[] = {CLONE_FS, CLONE_FILES};

	for (unsigned i = 0; i < 3; i++) {
		far_rig_close();
		(void)unshare(moves[i] | 1); /* with a flag that no kernel takes, so that nothing changes */
		assert_int_equal(errno, EINVAL);
		assert_int_equal(far_rig.n_awaited, 1);
	}
	for (unsigned i = 0; i < 2; i++) {
		far_rig_close();
		assert_int_equal(unshare(stays[i]), 0);
		assert_int_equal(far_rig.n_awaited, 0);
	}
	assert_int_equal(setns(-1, 0), -1);
	assert_int_equal(errno, EBADF);
}

static void *wait_for_end(void *arg)
{
	char byte;

	(void)read(*(int *)arg, &byte, 1);
	return NULL;
}

/* The kernel's refusals get an explanation if other threads may be their cause. errno stays. */
static void test_threads_in_the_way(void **state)
{
	int mnt = open_namespace("mnt"), fds[2];
	pthread_t thread;

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(pthread_create(&thread, NULL, wait_for_end, &fds[0]), 0);
	far_rig_listen();
	assert_int_equal(unshare(1), -1);
	assert_int_equal(errno, EINVAL);
	far_rig_use_agent(false);
	assert_int_equal(unshare(CLONE_NEWUSER), -1);
	assert_string_equal(far_rig_heard(), "");
	far_rig_use_agent(true);
	far_rig_listen();
	assert_int_equal(unshare(CLONE_NEWUSER), -1);
	assert_int_equal(errno, EINVAL);
	assert_non_null(strstr(far_rig_heard(), "unshare: the kernel refuses such a namespace"));
	/* a root folder of its own is all that the kernel asks for here */
	assert_true(setns(mnt, CLONE_NEWNS) == 0 || errno == EPERM);
	close(fds[1]);
	pthread_join(thread, NULL);
	close(fds[0]);
	close(mnt);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, far_rig_setup, far_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_seal),
	    TEST(test_word_of_a_thread),
	    TEST(test_mutex_that_stays_far),
	    TEST(test_segments),
	    TEST(test_merging),
	    TEST(test_other_requests),
	    TEST(test_forbidden_clock),
	    TEST(test_threads_in_the_way),
	    TEST(test_network),
	    TEST(test_sessions_come_first),
	};

	return cmocka_run_group_tests(tests, far_rig_begin, NULL);
}
