/* See farsignals.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "farsignals.h"

char *test_stack, *test_pressure;

void test_evict(void)
{
	for (size_t i = 0; i < TEST_PRESSURE; i += TEST_PAGE)
		((volatile char *)test_pressure)[i]++;
}

char *test_far_memory(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	assert_true(test_is_far(p));
	return p;
}

int test_farsignals_begin(void **state)
{
	test_pressure = test_far_memory(TEST_PRESSURE);
	test_stack = test_far_memory(TEST_STACK);
	return 0;
}

void test_set_stack(unsigned flags)
{
	const stack_t ss = {.ss_sp = test_stack, .ss_size = TEST_STACK, .ss_flags = (int)flags};

	assert_int_equal(sigaltstack(&ss, NULL), 0);
}

void test_no_stack(void)
{
	const stack_t none = {.ss_flags = SS_DISABLE};

	assert_int_equal(sigaltstack(&none, NULL), 0);
}

bool test_is_on_stack(const void *p)
{
	return (const char *)p >= test_stack && (const char *)p < test_stack + TEST_STACK;
}

void test_handle(int sig, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};

	assert_int_equal(sigaction(sig, &action, NULL), 0);
}

int test_status_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool test_is_inline(void)
{
	const char *mode = getenv("FARPAGE_FAULT_MODE");

	return mode && strcmp(mode, "inline") == 0;
}

bool test_moves_frames(void)
{
	return test_is_inline() || getenv("FP_TEST_USER_ONLY");
}
