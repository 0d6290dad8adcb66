/*
 * The signal mask of a thread inside the agent: which signals are blocked, and what happens to a
 * SIGBUS that is sent to it.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent_sigmask.h"

#define BIT(sig) (1ull << ((sig)-1))

static volatile int times, value;

static void on_bus(int sig, siginfo_t *info, void *context)
{
	if (fp_agent_sigmask_defer(info))
		return;
	times++;
	value = info->si_value.sival_int;
}

static uint64_t now(void)
{
	uint64_t mask;

	assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, sizeof(mask)), 0);
	return mask;
}

/* Call it in each test, because cmocka sets a handler of its own before each test. */
static void begin(void)
{
	struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
	sigset_t set;

	times = 0;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_SETMASK, &set, NULL);
	assert_int_equal(sigaction(SIGBUS, &action, NULL), 0);
}

static void what_is_blocked(void **state)
{
	const uint64_t never = BIT(SIGKILL) | BIT(SIGSTOP), internals = BIT(32) | BIT(33);

	begin();
	for (unsigned i = 0; i < 4; i++) {
		bool all = i & 1, faults = i & 2;
		uint64_t before = fp_agent_sigmask_block(all, faults), during = now();

		fp_agent_sigmask_restore(before);
		assert_int_equal(before, BIT(SIGUSR1));
		assert_int_equal(during, ~(never | (all ? 0 : internals) | (faults ? BIT(SIGBUS) : 0)));
		assert_int_equal(now(), BIT(SIGUSR1));
	}
}

static void send(int number)
{
	assert_int_equal(sigqueue(getpid(), SIGBUS, (union sigval){.sival_int = number}), 0);
}

/*
 * Only the first SIGBUS is kept, as with any pending signal. It is delivered when the outermost
 * mask is restored.
 */
static void sent_meanwhile(void **state)
{
	uint64_t outer, inner;

	begin();
	outer = fp_agent_sigmask_block(false, true);
	send(7);
	inner = fp_agent_sigmask_block(true, true);
	send(8);
	fp_agent_sigmask_restore(inner);
	assert_int_equal(times, 0);
	fp_agent_sigmask_restore(outer);
	assert_int_equal(times, 1);
	assert_int_equal(value, 7);
	assert_int_equal(now(), BIT(SIGUSR1));
	send(9);
	assert_int_equal(times, 2);
	assert_int_equal(value, 9);
}

static void a_child_gets_none(void **state)
{
	uint64_t mask;

	begin();
	mask = fp_agent_sigmask_block(false, true);
	send(1);
	fp_agent_sigmask_forked();
	fp_agent_sigmask_restore(mask);
	assert_int_equal(times, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_is_blocked),
	    cmocka_unit_test(sent_meanwhile),
	    cmocka_unit_test(a_child_gets_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
