/*
 * Running one program. Room: tools.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "tool.h"

#define KEPT_FD_MIN 512

/*
 * The signals to pass on. SIGSTOP and SIGKILL can't be passed on; faults such as SIGSEGV are this
 * process's own.
 */
static const int forwarded[] = {
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGTSTP, SIGWINCH, SIGPIPE,
};

static void block_signals(sigset_t *ret_waited, sigset_t *ret_before)
{
	sigemptyset(ret_waited);
	sigaddset(ret_waited, SIGCHLD);
	for (size_t i = 0; i < FP_ARRAY_LEN(forwarded); i++)
		sigaddset(ret_waited, forwarded[i]);
	sigprocmask(SIG_BLOCK, ret_waited, ret_before);
}

static void prepend_preload(const char *ours)
{
	const char *theirs = getenv("LD_PRELOAD");
	fp_autofree char *both = NULL;

	if (!theirs || !*theirs)
		setenv("LD_PRELOAD", ours, 1);
	else if (asprintf(&both, "%s:%s", ours, theirs) >= 0)
		setenv("LD_PRELOAD", both, 1);
}

/*
 * Gives the program a copy of fd with a high number, where programs do not look for descriptors.
 * The preload library keeps the program from closing it.
 */
static void hand_down(int fd)
{
	int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD, KEPT_FD_MIN);
	char number[16];

	unsetenv("FARPAGE_KEPT_FD");
	if (high < 0)
		return;
	snprintf(number, sizeof(number), "%d", high);
	setenv("FARPAGE_KEPT_FD", number, 1);
}

void fp_launch_lift(int which, struct rlimit *ret_before)
{
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};

	if (getrlimit(which, ret_before) < 0)
		*ret_before = limit;
	if (setrlimit(which, &limit) == 0)
		return;
	limit.rlim_cur = limit.rlim_max = ret_before->rlim_max;
	(void)setrlimit(which, &limit);
}

static _Noreturn void become_program(const struct fp_launch *launch)
{
	char buf[64];

	prepend_preload(launch->ld_preload);
	hand_down(launch->kept_fd);
	(void)setrlimit(RLIMIT_AS, &launch->as);
	(void)setrlimit(RLIMIT_DATA, &launch->data);
	execvp(launch->path, launch->argv);
	fp_log(FP_LOG_ERROR, "run", "cannot execute %s: %s", launch->path,
	       fp_strerror(-errno, buf, sizeof(buf)));
	_exit(FP_EXIT_NOT_EXECUTABLE);
}

/*
 * True if the signal was sent to this process alone, perhaps because its sender does not know the
 * program. A signal of the terminal goes to the whole group, so it has reached the program too. The
 * same holds for a signal that the program itself sends to the group.
 */
static bool is_for_us_alone(const siginfo_t *info, pid_t child)
{
	return info->si_code <= 0 && info->si_pid != child;
}

static bool is_terminal_stop(int signo)
{
	return signo == SIGTSTP || signo == SIGTTIN || signo == SIGTTOU;
}

/*
 * Collects the program's changes of state. Returns true and the status once the program has ended.
 */
static bool child_ended(pid_t child, int *ret_status)
{
	int status;

	while (waitpid(child, &status, WNOHANG | WUNTRACED) > 0) {
		if (!WIFSTOPPED(status)) {
			*ret_status = status;
			return true;
		}
		if (is_terminal_stop(WSTOPSIG(status))) {
			raise(SIGSTOP); /* the shell that waits for us must see its job stop */
			kill(child, SIGCONT);
		}
	}
	return false;
}

static void wait_for_end(const struct fp_launch *launch, const sigset_t *waited, pid_t child, int *ret_status)
{
	/* The first ticks come early, because many programs are short. */
	uint64_t tick_ns = launch->tick_ns / 64;
	siginfo_t info;

	while (!child_ended(child, ret_status)) {
		const struct timespec tick = {.tv_sec = (time_t)(tick_ns / FP_NSEC_PER_SEC),
		                              .tv_nsec = (long)(tick_ns % FP_NSEC_PER_SEC)};
		int signo = sigtimedwait(waited, &info, tick_ns ? &tick : NULL);

		if (signo > 0 && signo != SIGCHLD && is_for_us_alone(&info, child))
			kill(child, signo);
		if (signo < 0 && errno == EAGAIN) {
			tick_ns = FP_MIN(2 * tick_ns, launch->tick_ns);
			launch->tick(launch->user);
		}
	}
}

int fp_launch_run(const struct fp_launch *launch, pid_t *ret_pid, int *ret_status)
{
	struct sigaction on_child, wanted = {.sa_handler = SIG_DFL};
	sigset_t waited, before;
	int r = 0;
	pid_t child;

	/*
	 * An inherited SIG_IGN of SIGCHLD would hide the status from us. The program gets its
	 * SIG_IGN back.
	 */
	sigaction(SIGCHLD, &wanted, &on_child);
	block_signals(&waited, &before);
	fflush(NULL);
	child = fork();
	if (child == 0) {
		sigaction(SIGCHLD, &on_child, NULL);
		sigprocmask(SIG_SETMASK, &before, NULL);
		become_program(launch);
	}
	if (child < 0)
		r = -errno;
	else
		wait_for_end(launch, &waited, child, ret_status);
	*ret_pid = child;
	return r;
}

void fp_launch_end_as(int status)
{
	const struct rlimit no_core = {0, 0};
	sigset_t only;

	fflush(NULL);
	if (!WIFSIGNALED(status))
		exit(WEXITSTATUS(status));
	setrlimit(RLIMIT_CORE, &no_core);
	signal(WTERMSIG(status), SIG_DFL);
	sigemptyset(&only);
	sigaddset(&only, WTERMSIG(status));
	sigprocmask(SIG_UNBLOCK, &only, NULL);
	raise(WTERMSIG(status));
	exit(128 + WTERMSIG(status)); /* reached only after a signal that did not end this process */
}
