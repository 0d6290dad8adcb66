/* See daemon.h. */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"

#define START_TIMEOUT_MS 10000

/* The daemon's arguments, without its descriptor. */
struct command {
	const char *path;
	const char *args[6]; /* NULL-terminated */
};

static void exec_daemon(const struct command *command, int ready_fd)
{
	const char *argv[FP_ARRAY_LEN(command->args) + 4] = {command->path};
	unsigned n = 1;
	char ready[16];

	for (unsigned i = 0; command->args[i]; i++)
		argv[n++] = command->args[i];
	snprintf(ready, sizeof(ready), "%d", ready_fd);
	argv[n++] = "--ready-fd";
	argv[n++] = ready;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fcntl(ready_fd, F_SETFD, 0);
	execv(command->path, (char *const *)argv);
	perror(command->path);
	_exit(127);
}

/*
 * Reads the URL and newline that the daemon writes when it serves. The pipe's end without them
 * means that the daemon has ended.
 */
static int await_url(int fd, char *ret_url, size_t len)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	size_t n = 0;

	while (n + 1 < len && poll(&pfd, 1, START_TIMEOUT_MS) == 1) {
		ssize_t got = read(fd, ret_url + n, 1);

		if (got <= 0)
			return got < 0 ? -errno : -ECHILD;
		if (ret_url[n] == '\n') {
			ret_url[n] = '\0';
			return 0;
		}
		n++;
	}
	return -ETIMEDOUT;
}

static int spawn(const struct command *command, struct test_daemon *daemon)
{
	fp_autoclose int read_fd = -1, write_fd = -1;
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	read_fd = fds[0];
	write_fd = fds[1];
	daemon->pid = fork();
	if (daemon->pid < 0)
		return -errno;
	if (daemon->pid == 0)
		exec_daemon(command, write_fd);
	close(fp_take_fd(write_fd));
	return await_url(read_fd, daemon->url, sizeof(daemon->url));
}

const char *test_daemon_rdma_host(void)
{
	return getenv("FARPAGE_TEST_RDMA");
}

/*
 * Makes the daemon's folder, and chooses its listener: a socket in that folder, or a port of
 * loopback.
 */
static int choose_listen(struct test_daemon *daemon, const char *scheme, char *ret_listen, size_t len)
{
	strcpy(daemon->dir, "/tmp/farpage-test.XXXXXX");
	if (!mkdtemp(daemon->dir))
		return -errno;
	if (strcmp(scheme, "shm") == 0)
		snprintf(ret_listen, len, "unix:%s/node.sock", daemon->dir);
	else if (strcmp(scheme, "rdma") == 0)
		snprintf(ret_listen, len, "rdma://%s:0", test_daemon_rdma_host());
	else
		snprintf(ret_listen, len, "tcp://127.0.0.1:0");
	return 0;
}

/*
 * The URL by which clients reach the node. The node says where it listens; a client chooses the
 * transport.
 */
static void choose_url(struct test_daemon *daemon, const char *scheme)
{
	char url[sizeof(daemon->url)];

	if (strcmp(scheme, "rdma+tcp") != 0)
		return;
	snprintf(url, sizeof(url), "rdma+%.*s", (int)sizeof(url) - 8, daemon->url);
	memcpy(daemon->url, url, sizeof(url));
}

static int start(const struct command *command, const char *scheme, struct test_daemon *daemon,
                 struct test_daemon *ret_daemon)
{
	int r = spawn(command, daemon);

	if (r < 0) {
		test_daemon_stop(daemon);
		return r;
	}
	choose_url(daemon, scheme);
	*ret_daemon = *daemon;
	return 0;
}

/*
 * Over rdma this starts a configured node, and not a private one (--private). A private node has no
 * secret, but a node needs a secret to guard an rdma device. Nor does it have shards.
 */
int test_daemon_start(const char *path, const char *scheme, uint64_t pool_bytes,
                      struct test_daemon *ret_daemon)
{
	char listen[128], pool[32], config[128];
	struct command command = {path, {"--private", "--listen", listen, "--pool-size", pool}};
	struct test_daemon daemon = {0};
	int r;

	snprintf(pool, sizeof(pool), "%" PRIu64, pool_bytes);
	if (strncmp(scheme, "rdma", 4) == 0 || getenv("FARPAGE_TEST_SHARDS")) {
		snprintf(config, sizeof(config), "pools: [ { name: main, size: %s } ]\nlog_level: warning\n",
		         pool);
		return test_daemon_start_config(path, scheme, config, ret_daemon);
	}
	r = choose_listen(&daemon, scheme, listen, sizeof(listen));
	return r < 0 ? r : start(&command, scheme, &daemon, ret_daemon);
}

int test_daemon_restart(const char *path, uint64_t pool_bytes, struct test_daemon *daemon)
{
	char listen[128], pool[32];
	struct command command = {path, {"--private", "--listen", listen, "--pool-size", pool}};

	snprintf(listen, sizeof(listen), "unix:%s/node.sock", daemon->dir);
	snprintf(pool, sizeof(pool), "%" PRIu64, pool_bytes);
	return spawn(&command, daemon);
}

static int write_file(const char *path, const char *first, const char *second, const char *third)
{
	fp_autofclose FILE *f = fopen(path, "we");

	if (!f)
		return -errno;
	return fprintf(f, "%s%s%s", first, second, third) < 0 || fflush(f) ? -EIO : 0;
}

/*
 * more: lines of configuration that a node needs for this scheme, in addition to the test's lines.
 */
static int write_config(const struct test_daemon *daemon, const char *scheme, const char *path,
                        const char *listen, const char *config)
{
	char first[192], secret[96], more[160] = "";
	const char *shards = getenv("FARPAGE_TEST_SHARDS");
	int r;

	snprintf(first, sizeof(first), "listen: [ \"%s\" ]\nshards: %s\n", listen, shards ? shards : "1");
	snprintf(secret, sizeof(secret), "%s/secret", daemon->dir);
	if (daemon->secret || strstr(config, TEST_DAEMON_AUTH)) {
		snprintf(more, sizeof(more), "auth: { secret_file: %s }\n", secret);
		r = write_file(secret, TEST_DAEMON_SECRET, "\n", "");
		if (r < 0 || chmod(secret, 0600) < 0)
			return r < 0 ? r : -errno;
	}
	if (strcmp(scheme, "rdma+tcp") == 0)
		strcat(more, "rdma: {}\n");
	return write_file(path, first, config, more);
}

int test_daemon_start_config(const char *path, const char *scheme, const char *config,
                             struct test_daemon *ret_daemon)
{
	char listen[128], file[96];
	struct command command = {path, {"--config", file}};
	struct test_daemon daemon = {0};
	int r = choose_listen(&daemon, scheme, listen, sizeof(listen));

	if (r < 0)
		return r;
	snprintf(file, sizeof(file), "%s/node.yaml", daemon.dir);
	if (strcmp(scheme, "rdma") == 0 && !strstr(config, TEST_DAEMON_AUTH))
		daemon.secret = TEST_DAEMON_SECRET;
	r = write_config(&daemon, scheme, file, listen, config);
	if (r < 0) {
		test_daemon_stop(&daemon);
		return r;
	}
	return start(&command, scheme, &daemon, ret_daemon);
}

static void remove_file(const struct test_daemon *daemon, const char *name)
{
	char path[96];

	snprintf(path, sizeof(path), "%s/%s", daemon->dir, name);
	unlink(path);
}

void test_daemon_kill(struct test_daemon *daemon)
{
	if (daemon->pid > 0) {
		kill(daemon->pid, SIGKILL);
		waitpid(daemon->pid, NULL, 0);
	}
	daemon->pid = 0;
}

void test_daemon_stop(struct test_daemon *daemon)
{
	test_daemon_kill(daemon);
	remove_file(daemon, "node.sock");
	remove_file(daemon, "node.yaml");
	remove_file(daemon, "secret");
	rmdir(daemon->dir);
}
