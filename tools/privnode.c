/*
 * A private memory node. Room: tools.
 */
#include "privnode.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"
#include "install_paths.h"
#include "launch.h"
#include "tool.h"

#define START_TIMEOUT_MS 10000
#define STOP_TIMEOUT_MS  5000
#define FILE_LIMIT_MIN   (256ull << 20) /* larger than any lease */

static void free_node(struct fp_privnode **node)
{
	fp_privnode_stop(*node);
}

/*
 * Raises the program's limit of file sizes, because it would also hold for the node's shared
 * memory.
 */
static void lift_file_limit(void)
{
	struct rlimit limit;

	fp_launch_lift(RLIMIT_FSIZE, &limit);
	if (getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur >= FILE_LIMIT_MIN)
		return;
	fp_log(FP_LOG_ERROR, "node",
	       "shared memory is limited to %llu bytes by the limit of file sizes, which only root may raise "
	       "again: lift it (`ulimit -f unlimited`), or name a node with --node tcp://HOST",
	       (unsigned long long)limit.rlim_cur);
	_exit(FP_EXIT_RUN_FAILED);
}

static void daemon_exec(const char *daemon, const char *listen, const struct fp_privnode_options *options,
                        int users_fd, int ready_fd)
{
	char pool[32], delay[16], ready[16], users[16];
	int null_fd = open("/dev/null", O_RDWR);

	if (options->kind == FP_PRIVNODE_SHM)
		lift_file_limit();
	snprintf(pool, sizeof(pool), "%" PRIu64, options->pool_bytes);
	snprintf(delay, sizeof(delay), "%u", options->link_delay_us);
	snprintf(ready, sizeof(ready), "%d", ready_fd);
	snprintf(users, sizeof(users), "%d", users_fd);
	setsid();
	dup2(null_fd, STDIN_FILENO);
	dup2(null_fd, STDOUT_FILENO);
	/*
	 * The node may live longer than this command. So it must not inherit a pipe: another
	 * process may wait for the end of that pipe.
	 */
	syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
	fcntl(ready_fd, F_SETFD, 0);
	if (users_fd >= 0) {
		fcntl(users_fd, F_SETFD, 0);
		fcntl(options->dir_lock_fd, F_SETFD, 0);
	}
	execl(daemon, daemon, "--private", "--listen", listen, "--pool-size", pool, "--link-delay", delay,
	      "--ready-fd", ready, users_fd < 0 ? (char *)NULL : "--users-fd", users, (char *)NULL);
	fp_log(FP_LOG_ERROR, "node", "cannot execute %s: %s", daemon, strerror(errno));
	_exit(FP_EXIT_NOT_EXECUTABLE);
}

/*
 * Waits until the daemon serves: then it writes its URL and a newline to the pipe. -ECHILD: the
 * daemon has ended before that.
 */
static int await_ready(int fd, char *ret_url, size_t len)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	for (char *at = ret_url; at + 1 < ret_url + len; at++) {
		if (poll(&pfd, 1, START_TIMEOUT_MS) == 0)
			return -ETIMEDOUT;
		if (read(fd, at, 1) != 1)
			return -ECHILD;
		if (*at == '\n') {
			*at = '\0';
			return 0;
		}
	}
	return -EPROTO;
}

static int spawn(const char *daemon, const char *listen, const struct fp_privnode_options *options,
                 struct fp_privnode *node)
{
	fp_autoclose int read_fd = -1, write_fd = -1;
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	read_fd = fds[0];
	write_fd = fds[1];
	node->pid = fork();
	if (node->pid < 0) {
		node->pid = 0;
		return -errno;
	}
	if (node->pid == 0)
		daemon_exec(daemon, listen, options, node->users_fds[0], write_fd);
	close(fp_take_fd(write_fd));
	return await_ready(read_fd, node->url, sizeof(node->url));
}

/* True if a UNIX socket can have such a path, which the daemon writes as unix:PATH. */
static bool is_short_enough(const char *listen)
{
	struct sockaddr_un sun;

	return strlen(listen) - strlen("unix:") < sizeof(sun.sun_path);
}

int fp_privnode_start(const struct fp_privnode_options *options, char *error, size_t error_len,
                      struct fp_privnode **ret_node)
{
	FP_CLEANUP(free_node) struct fp_privnode *node = calloc(1, sizeof(*node));
	char daemon[PATH_MAX], listen[PATH_MAX + 16] = "tcp://127.0.0.1:0", reason[64];
	int r;

	snprintf(error, error_len, "no memory for a private memory node");
	if (!node)
		return -ENOMEM;
	node->users_fds[0] = node->users_fds[1] = -1;
	if (options->kind == FP_PRIVNODE_SHM)
		snprintf(listen, sizeof(listen), "unix:%s/" FP_PRIVNODE_SOCKET, options->dir);
	if (!is_short_enough(listen)) {
		snprintf(
		    error, error_len,
		    "the private memory node's socket would be %.200s, but its path may have 107 bytes: set "
		    "FARPAGE_RUNTIME_DIR to a shorter folder",
		    listen);
		return -ENAMETOOLONG;
	}
	r = fp_install_paths_daemon(daemon, sizeof(daemon));
	if (r < 0) {
		snprintf(error, error_len,
		         "farpaged is not installed next to farpage: set FARPAGE_DAEMON to its path, or "
		         "name a node with --node");
		return r;
	}
	r = options->serves_users && pipe2(node->users_fds, O_CLOEXEC) < 0 ? -errno : 0;
	if (r == 0)
		r = spawn(daemon, listen, options, node);
	if (r < 0) {
		snprintf(error, error_len, "the private memory node %s: %s", daemon,
		         r == -ECHILD ? "ended at once" : fp_strerror(r, reason, sizeof(reason)));
		return r;
	}
	*ret_node = fp_take_ptr(node);
	return 0;
}

bool fp_privnode_leave(struct fp_privnode *node)
{
	struct pollfd users = {.fd = node ? node->users_fds[0] : -1};

	if (users.fd < 0)
		return false;
	fp_cleanup_close(&node->users_fds[1]);
	node->users_fds[1] = -1;
	if (poll(&users, 1, 0) != 0)
		return false;
	close(users.fd);
	free(node); /* the kernel ends the node when we end */
	return true;
}

void fp_privnode_stop(struct fp_privnode *node)
{
	fp_autoclose int pidfd = -1;

	if (!node)
		return;
	if (node->pid > 0) {
		struct pollfd pfd = {.events = POLLIN};

		pfd.fd = pidfd = (int)syscall(SYS_pidfd_open, node->pid, 0);
		kill(node->pid, SIGTERM);
		if (pidfd < 0 || poll(&pfd, 1, STOP_TIMEOUT_MS) != 1)
			kill(node->pid, SIGKILL);
		while (waitpid(node->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	fp_cleanup_close(&node->users_fds[0]);
	fp_cleanup_close(&node->users_fds[1]);
	free(node);
}
