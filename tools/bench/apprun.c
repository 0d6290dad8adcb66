/*
 * Running one program. Room: tools/bench; see apprun.h.
 */
#include "apprun.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "tool.h"

#define LABEL "bench apps"

static int join(const struct fp_appway *way, const char *const *argv, char *ret_words[FP_APPRUN_WORDS])
{
	unsigned n = 0;

	for (unsigned i = 0; i < way->n_words; i++)
		ret_words[n++] = (char *)way->words[i];
	for (; *argv; argv++) {
		if (n == FP_APPRUN_WORDS - 1)
			return -E2BIG;
		ret_words[n++] = (char *)*argv;
	}
	ret_words[n] = NULL;
	return 0;
}

/* If the bench is killed, SIGTERM reaches also a program behind `farpage run`, which passes it
 * on. */
static void die_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(FP_EXIT_RUN_FAILED);
}

static void use_fd(int fd, int as)
{
	if (fd < 0)
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	dup2(fd, as);
}

static _Noreturn void become(char *const *words, const struct fp_memgroup *group, int in_fd, int out_fd)
{
	int r = group ? fp_memgroup_enter(group) : 0;

	use_fd(in_fd, STDIN_FILENO);
	use_fd(out_fd, STDOUT_FILENO);
	setenv("LC_ALL", "C", 1);
	if (r == 0) {
		execv(words[0], words);
		r = -errno;
	}
	fp_log(FP_LOG_ERROR, LABEL, "cannot execute %s: %s", words[0], strerror(-r));
	_exit(FP_EXIT_NOT_EXECUTABLE);
}

int fp_apprun_start(const struct fp_appway *way, const char *const *argv, int in_fd, int out_fd,
                    struct fp_apprun *ret_run)
{
	struct fp_apprun run = {.way = way};
	char *words[FP_APPRUN_WORDS];
	pid_t parent = getpid();
	int r = join(way, argv, words);

	if (r < 0)
		return r;
	run.start_ns = fp_clock_kernel_ns();
	run.pid = fork();
	if (run.pid < 0)
		return -errno;
	if (run.pid == 0) {
		die_with(parent);
		become(words, way->group, in_fd, out_fd);
	}
	*ret_run = run;
	return 0;
}

bool fp_apprun_lives(const struct fp_apprun *run)
{
	siginfo_t info = {.si_pid = 0};

	return waitid(P_PID, (id_t)run->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

void fp_apprun_wait(const struct fp_apprun *run, struct fp_apprun_end *ret_end)
{
	struct rusage usage = {.ru_maxrss = 0};
	int status = 0;

	while (wait4(run->pid, &status, 0, &usage) < 0 && errno == EINTR)
		;
	*ret_end = (struct fp_apprun_end){
	    .status = status,
	    .killed = status != 0 && run->way->group && fp_memgroup_has_killed(run->way->group),
	    .seconds = (double)(fp_clock_kernel_ns() - run->start_ns) / FP_NSEC_PER_SEC,
	    .peak_bytes = (uint64_t)usage.ru_maxrss << 10,
	};
}
