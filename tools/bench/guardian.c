/*
 * The guardian of a bench. Room: tools/bench; see guardian.h.
 */
#include "guardian.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"

#define LABEL "bench apps"

struct request {
	bool on; /* false: remove what is there */
	struct fp_guardian_swap swap;
};

struct reply {
	int r;
	char error[256];
	struct fp_memgroup group;
};

/* What the guardian has made. */
struct made {
	struct fp_memgroup group; /* zeros: none */
	struct fp_swapdev device;
};

static void undo(struct made *made, struct reply *reply)
{
	int r = fp_memgroup_remove(&made->group);

	reply->r = fp_swapdev_close(&made->device);
	if (reply->r < 0)
		snprintf(reply->error, sizeof(reply->error), "the swap device could not be removed: %s",
		         strerror(-reply->r));
	if (r < 0)
		snprintf(reply->error, sizeof(reply->error), "control group %s could not be removed: %s",
		         made->group.dir, strerror(-r));
	reply->r = r ?: reply->r;
	made->group = (struct fp_memgroup){.is_v2 = false};
}

static void make(struct made *made, const struct fp_guardian_swap *swap, struct reply *reply)
{
	reply->r = fp_memgroup_make(swap->limit_bytes, reply->error, sizeof(reply->error), &made->group);
	if (reply->r == 0) {
		reply->r = fp_swapdev_open(swap->kind, swap->swap_bytes, reply->error, sizeof(reply->error),
		                           &made->device);
		if (reply->r < 0) {
			(void)fp_memgroup_remove(&made->group);
			made->group = (struct fp_memgroup){.is_v2 = false};
		}
	}
	reply->group = made->group;
}

static void leave_caller(void)
{
	static const int ignored[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTSTP};
	int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (size_t i = 0; i < FP_ARRAY_LEN(ignored); i++)
		signal(ignored[i], SIG_IGN);
	setsid();
	prctl(PR_SET_NAME, "bench-guardian");
	/* Whoever waits for the end of the bench's output does not wait for us. */
	dup2(null_fd, STDIN_FILENO);
	dup2(null_fd, STDOUT_FILENO);
	close(null_fd);
}

static _Noreturn void guard(int fd, const char *dir)
{
	struct made made = {.device = {.number = -1, .fd = -1}};
	struct request request;
	struct reply reply;
	char path[64];

	leave_caller();
	while (recv(fd, &request, sizeof(request), 0) == sizeof(request)) {
		reply = (struct reply){.r = 0};
		if (request.on)
			make(&made, &request.swap, &reply);
		else
			undo(&made, &reply);
		(void)send(fd, &reply, sizeof(reply), MSG_NOSIGNAL);
	}
	undo(&made, &reply);
	if (reply.r < 0)
		fp_log(FP_LOG_ERROR, LABEL, "%s", reply.error);
	snprintf(path, sizeof(path), "%s/" FP_GUARDIAN_SOCKET, dir);
	unlink(path);
	rmdir(dir);
	_exit(reply.r < 0);
}

int fp_guardian_start(struct fp_guardian *ret_guardian)
{
	struct fp_guardian guardian = {.dir = "/tmp/farpage-bench-XXXXXX"};
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return -errno;
	guardian.fd = fds[0];
	if (mkdtemp(guardian.dir) && (guardian.pid = fork()) == 0) {
		close(fds[0]);
		guard(fds[1], guardian.dir);
	}
	close(fds[1]);
	if (guardian.pid <= 0) {
		int r = -errno;

		rmdir(guardian.dir); /* no folder has this name if mkdtemp failed */
		close(fds[0]);
		return r;
	}
	*ret_guardian = guardian;
	return 0;
}

static int ask(struct fp_guardian *guardian, const struct request *request, struct reply *ret_reply)
{
	ssize_t n;

	if (send(guardian->fd, request, sizeof(*request), MSG_NOSIGNAL) < 0)
		return -errno;
	do
		n = recv(guardian->fd, ret_reply, sizeof(*ret_reply), 0);
	while (n < 0 && errno == EINTR);
	return n == sizeof(*ret_reply) ? ret_reply->r : -EPIPE;
}

static int ask_or_explain(struct fp_guardian *guardian, const struct request *request,
                          struct reply *ret_reply, char *error, size_t error_len)
{
	int r = ask(guardian, request, ret_reply);

	if (r < 0)
		snprintf(error, error_len, "%s",
		         ret_reply->error[0] ? ret_reply->error : "the guardian process has ended");
	return r;
}

int fp_guardian_swap_on(struct fp_guardian *guardian, const struct fp_guardian_swap *swap, char *error,
                        size_t error_len, struct fp_memgroup *ret_group)
{
	const struct request request = {.on = true, .swap = *swap};
	struct reply reply = {.r = 0};
	int r = ask_or_explain(guardian, &request, &reply, error, error_len);

	if (r == 0)
		*ret_group = reply.group;
	return r;
}

int fp_guardian_swap_off(struct fp_guardian *guardian, char *error, size_t error_len)
{
	const struct request request = {.on = false};
	struct reply reply = {.r = 0};

	return ask_or_explain(guardian, &request, &reply, error, error_len);
}

void fp_guardian_stop(struct fp_guardian *guardian)
{
	close(guardian->fd);
	while (waitpid(guardian->pid, NULL, 0) < 0 && errno == EINTR)
		;
}
