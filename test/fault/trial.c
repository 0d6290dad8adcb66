/* See trial.h. */
#include "trial.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent.h"
#include "clock.h"

static void read_all(int fd, char *ret_text, size_t len)
{
	char rest[512];
	size_t n = 0;
	ssize_t got;

	while ((got = n + 1 < len ? read(fd, ret_text + n, len - 1 - n) : read(fd, rest, sizeof(rest))) > 0)
		n += n + 1 < len ? (size_t)got : 0;
	ret_text[n] = '\0';
}

void trial_run(int (*body)(void *arg), void *arg, unsigned timeout_s, struct trial *ret_trial)
{
	int fds[2];
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(fds[1], STDERR_FILENO);
		close(fds[0]);
		close(fds[1]);
		alarm(timeout_s);
		_exit(body(arg));
	}
	close(fds[1]);
	read_all(fds[0], ret_trial->text, sizeof(ret_trial->text));
	close(fds[0]);
	assert_int_equal(waitpid(pid, &ret_trial->status, 0), pid);
}

void trial_assert_good(const struct trial *trial)
{
	if (WIFSIGNALED(trial->status) && WTERMSIG(trial->status) == SIGALRM)
		fail_msg("it hangs; it said:\n%s", trial->text);
	if (WIFSIGNALED(trial->status))
		fail_msg("signal %d; it said:\n%s", WTERMSIG(trial->status), trial->text);
	if (WEXITSTATUS(trial->status) != 0)
		fail_msg("status %d; it said:\n%s", WEXITSTATUS(trial->status), trial->text);
}

void trial_check(bool ok, const char *format, ...)
{
	va_list args;

	if (ok)
		return;
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1);
}

struct fp_agent *trial_agent(const struct fp_agent_options *options)
{
	const char *mode = getenv("FP_TEST_FAULT_MODE");
	struct fp_agent_options chosen = *options;
	struct fp_agent_error error;
	struct fp_agent *agent;

	if (!chosen.patience_ns) /* short, so that pages are lost soon */
		chosen.patience_ns = chosen.deadline_ns;
	if (mode && strcmp(mode, "inline") == 0) {
		chosen.fault_mode = FP_FAULT_MODE_INLINE;
		chosen.pins = true;
	}
	trial_check(fp_agent_start(&chosen, &agent, &error) == 0, "%s", error.text);
	return agent;
}

/* ---- touches ---- */

static __thread sigjmp_buf back;

static __thread const char *signal_at;

static void on_signal(int signal, siginfo_t *info, void *context)
{
	signal_at = info->si_addr;
	siglongjmp(back, signal);
}

/* Checks the address that the signal handler got: it must be in the right page. */
static int at(const char *addr, int signal)
{
	trial_check(signal == 0 || ((uintptr_t)signal_at ^ (uintptr_t)addr) < FP_PAGE_SIZE,
	            "signal %d of %p says %p", signal, (const void *)addr, (const void *)signal_at);
	return signal;
}

void trial_catch_signals(void)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};

	sigaction(SIGBUS, &action, NULL);
	sigaction(SIGSEGV, &action, NULL);
}

int trial_read(const char *addr, char *ret_byte, uint64_t *ret_ns)
{
	const uint64_t begun_ns = fp_clock_ns();
	int signal = sigsetjmp(back, 1);

	if (signal == 0)
		*ret_byte = *(const volatile char *)addr;
	*ret_ns = fp_clock_ns() - begun_ns;
	return at(addr, signal);
}

int trial_write(char *addr, char byte, uint64_t *ret_ns)
{
	const uint64_t begun_ns = fp_clock_ns();
	int signal = sigsetjmp(back, 1);

	if (signal == 0)
		*(volatile char *)addr = byte;
	*ret_ns = fp_clock_ns() - begun_ns;
	return at(addr, signal);
}
