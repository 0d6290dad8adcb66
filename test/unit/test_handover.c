/*
 * Requests of guests: a guest whose process is killed just after its start ends, and does not wait
 * for ever. Room: test/unit.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "handover.h"
#include "uffd.h"

#define PATIENCE_S 5
#define ROUNDS     20 /* in some, the new thread runs before its process is killed */
#define REFUSED    125

static struct fp_handover *volatile handover;

/* Makes a request when its process has ended. */
static int ask_when_left(void *process)
{
	const struct fp_uffd_fault fault = {.addr = 1u << 20};

	alarm(PATIENCE_S);
	while (getppid() == *(pid_t *)process)
		usleep(1000);
	if (handover)
		fp_handover_serve(handover, &fault);
	return 0;
}

/* All new threads then share the caller's CPU, and so don't run before the caller waits. */
static int keep_to_one_cpu(void)
{
	cpu_set_t own;

	CPU_ZERO(&own);
	CPU_SET(sched_getcpu(), &own);
	return sched_setaffinity(0, sizeof(own), &own);
}

static void die_after_start(void)
{
	static char stack[1u << 16] __attribute__((aligned(16)));
	static pid_t own;
	struct fp_handover *started;

	own = getpid();
	if (clone(ask_when_left, stack + sizeof(stack), CLONE_VM | SIGCHLD, &own) < 0 ||
	    keep_to_one_cpu() < 0 || fp_handover_start(NULL, &started) < 0)
		_exit(1);
	handover = started;
	kill(own, SIGKILL);
}

static void leave_a_guest(void)
{
	pid_t process;
	int status;

	process = fork();
	if (process == 0)
		die_after_start();
	assert_int_equal(waitpid(process, &status, 0), process);
	assert_true(WIFSIGNALED(status));
	assert_true(wait(&status) > 0); /* the guest is our child now */
	assert_false(WIFSIGNALED(status));
	assert_int_equal(WEXITSTATUS(status), REFUSED);
}

static void left_at_the_start(void **state)
{
#ifdef __SANITIZE_THREAD__
	skip(); /* it can't tell a guest from the thread whose thread-local memory the guest shares */
#endif
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
	for (unsigned i = 0; i < ROUNDS; i++)
		leave_a_guest();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(left_at_the_start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
