/*
 * A session over shm that ends while its program lives: its socket is shut down or closed by a call that
 * nothing routes, at either end, or the node is killed. What the node lent is mapped, so every byte is right
 * afterwards; it is said once, and nothing more is to be had of that node. Room: test/fault.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent_priv.h"
#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "trial.h"

#define SKIP        77
#define TIMEOUT_S   60
#define NOTICE_NS   (10 * FP_NSEC_PER_SEC) /* a tick is 50 ms; a busy machine may be late */
#define LOCAL_PAGES 64u
#define PAGES       3072u
#define WORDS       (PAGES * (FP_PAGE_SIZE / sizeof(uint64_t)))
#define POOL_BYTES  (256u << 20)
#define MAX_FDS     4096

enum end { NODES_SHUTDOWN, OWN_SHUTDOWN, OWN_CLOSE, OWN_REPLACED, NODE_KILLED };

struct scene {
	struct test_daemon daemon;
	enum end end;
	struct fp_agent *agent;
	uint64_t *words;
	int program_fd; /* the program's, by the number that was a session's; -1: none */
};

static const char *farpaged;

static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	*state = s;
	s->program_fd = -1;
	return test_daemon_start(farpaged, "shm", POOL_BYTES, &s->daemon);
}

static int teardown(void **state)
{
	struct scene *s = *state;

	test_daemon_stop(&s->daemon);
	free(s);
	return 0;
}

/* ---- ends of a session ---- */

/* A UNIX socket that is connected, and no pipe of the test's. */
static bool is_session(int fd)
{
	struct sockaddr_un peer = {0};
	socklen_t len = sizeof(peer);

	return getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && peer.sun_family == AF_UNIX;
}

/* At the node's end: its descriptors are duplicated here, one after the other. */
static unsigned shut_down_at_node(pid_t node)
{
	int pidfd = (int)syscall(SYS_pidfd_open, node, 0);
	unsigned n = 0;

	trial_check(pidfd >= 0, "pidfd_open");
	for (int i = 0; i < MAX_FDS; i++) {
		int fd = (int)syscall(SYS_pidfd_getfd, pidfd, i, 0);

		if (fd < 0)
			continue;
		if (is_session(fd) && shutdown(fd, SHUT_RDWR) == 0)
			n++;
		close(fd);
	}
	close(pidfd);
	return n;
}

static bool end_own(struct scene *s, int fd)
{
	int other;

	if (s->end == OWN_SHUTDOWN)
		return syscall(SYS_shutdown, fd, SHUT_RDWR) == 0;
	if (s->end == OWN_CLOSE)
		return syscall(SYS_close, fd) == 0;
	other = memfd_create("program", MFD_CLOEXEC);
	trial_check(other >= 0 && dup3(other, fd, O_CLOEXEC) == fd, "dup3");
	s->program_fd = other;
	return true;
}

/* Returns how many were ended; 0: the agent keeps its sockets from the program. */
static unsigned end_session(struct scene *s)
{
	unsigned n = 0;

	if (s->end == NODE_KILLED)
		return kill(s->daemon.pid, SIGKILL) == 0;
	if (s->end == NODES_SHUTDOWN)
		return shut_down_at_node(s->daemon.pid);
	for (int fd = 3; fd < MAX_FDS; fd++)
		if (is_session(fd) && end_own(s, fd))
			n++;
	return n;
}

/* ---- the body ---- */

static uint64_t word_of(size_t i, uint64_t round)
{
	return (i + 1) * 0x9e3779b97f4a7c15u ^ round;
}

static void fill(const struct scene *s, uint64_t round)
{
	for (size_t i = 0; i < WORDS; i++)
		s->words[i] = word_of(i, round);
}

static void check(const struct scene *s, uint64_t round)
{
	size_t zero = 0, wrong = 0;

	for (size_t i = 0; i < WORDS; i++) {
		zero += s->words[i] == 0;
		wrong += s->words[i] != word_of(i, round);
	}
	trial_check(!wrong, "%zu of %u words are wrong, %zu of them zero", wrong, (unsigned)WORDS, zero);
}

static void begin(struct scene *s)
{
	const char *urls[] = {s->daemon.url};
	const struct fp_agent_options options = {
	    .urls = urls, .n_urls = 1, .local_bytes = LOCAL_PAGES * FP_PAGE_SIZE};
	void *far;

	s->agent = trial_agent(&options);
	trial_check(fp_space_map(fp_agent_space(s->agent), PAGES * FP_PAGE_SIZE, 0, PROT_READ | PROT_WRITE, 0,
	                         &far) == 0,
	            "no mapping");
	s->words = far;
	fill(s, 1);
}

/* The node has our memory back, as far as it knows; and the agent has noticed. */
static void await_notice(const struct scene *s)
{
	const uint64_t until_ns = fp_clock_ns() + NOTICE_NS;
	const struct timespec pause = {.tv_nsec = FP_NSEC_PER_MSEC};
	struct fp_store_node info;

	do {
		fp_store_node_info(s->agent->far.store, 0, &info);
		trial_check(fp_clock_ns() < until_ns, "the agent does not notice");
		nanosleep(&pause, NULL);
	} while (!info.session_error);
}

/* What the node had lent is kept then: the agent still maps it. */
static bool has_no_lease(struct fp_session *session)
{
	char *json;
	bool has_none;

	trial_check(fp_session_status(session, &json) == 0, "status");
	has_none = strstr(json, "\"leases\":0}") && !strstr(json, "\"kept_bytes\":0,");
	free(json);
	return has_none;
}

static void await_kept(const struct scene *s)
{
	const uint64_t until_ns = fp_clock_ns() + NOTICE_NS;
	const struct timespec pause = {.tv_nsec = FP_NSEC_PER_MSEC};
	const struct fp_session_options options = {.deadline_ns = NOTICE_NS};
	const struct fp_lease *lease;
	struct fp_session *session;
	struct fp_url url;

	trial_check(fp_url_parse(s->daemon.url, &url) == 0 && fp_session_open(&url, &options, &session) == 0,
	            "no session");
	while (!has_no_lease(session)) {
		trial_check(fp_clock_ns() < until_ns, "the node keeps the leases");
		nanosleep(&pause, NULL);
	}
	/* and the node goes on lending what is left of its pool */
	trial_check(fp_session_lease(session, FP_PAGE_SIZE, &lease) == 0, "lease");
	fp_session_close(session);
}

static void check_nothing_more_is_had(const struct scene *s)
{
	struct stat st;
	void *far;

	trial_check(fp_space_map(fp_agent_space(s->agent), POOL_BYTES / 2, 0, PROT_READ, 0, &far) == -ENOMEM,
	            "a node without a session lends memory");
	trial_check(s->program_fd < 0 || (fstat(s->program_fd, &st) == 0 && st.st_size == 0),
	            "the agent wrote into a file of the program's");
}

static int body(void *arg)
{
	struct scene *s = arg;

	begin(s);
	check(s, 1);
	if (end_session(s) == 0) {
		fputs("out of reach\n", stderr);
		return 0;
	}
	if (s->end != NODE_KILLED)
		await_kept(s);
	check(s, 1);
	await_notice(s);
	check(s, 1);
	fill(s, 2);
	check(s, 2);
	check_nothing_more_is_had(s);
	check(s, 2);
	fp_agent_stop(s->agent);
	return 0;
}

/* A child that is born after the end has all that its parent had, and gets memory of its own. */
static int body_forks(void *arg)
{
	struct scene *s = arg;
	int status = -1;
	pid_t pid;

	begin(s);
	trial_check(end_session(s) > 0, "nothing was ended");
	await_kept(s);
	fp_agent_fork_quiet(s->agent);
	fp_agent_fork_prepare(s->agent);
	pid = fork();
	if (pid == 0) {
		fp_agent_fork_child(s->agent);
		check(s, 1);
		fill(s, 2);
		check(s, 2);
		_exit(0);
	}
	fp_agent_fork_parent(s->agent);
	waitpid(pid, &status, 0);
	trial_check(status == 0, "the child ended with %x", (unsigned)status);
	check(s, 1);
	fp_agent_stop(s->agent);
	return 0;
}

/* ---- tests ---- */

static void run(void **state, enum end end)
{
	struct scene *s = *state;
	struct trial trial;
	const char *line;

	s->end = end;
	trial_run(body, s, TIMEOUT_S, &trial);
	/* the agent may be the next to get that number, and then ends the process: see fp_fd_watch */
	if (end == OWN_CLOSE && strstr(trial.text, "closed or replaced a descriptor"))
		return;
	trial_assert_good(&trial);
	if (strcmp(trial.text, "out of reach\n") == 0 && end != NODES_SHUTDOWN)
		return;
	line = strstr(trial.text, s->daemon.url);
	assert_non_null(line);
	assert_non_null(strstr(line, "the session has ended"));
	assert_null(strstr(line + 1, s->daemon.url)); /* once */
}

static void test_shut_down_at_the_node(void **state)
{
	run(state, NODES_SHUTDOWN);
}

static void test_shut_down_by_the_program(void **state)
{
	run(state, OWN_SHUTDOWN);
}

static void test_closed_by_the_program(void **state)
{
	run(state, OWN_CLOSE);
}

static void test_replaced_by_the_program(void **state)
{
	run(state, OWN_REPLACED);
}

static void test_node_killed(void **state)
{
	run(state, NODE_KILLED);
}

static void test_fork_after_the_end(void **state)
{
	struct scene *s = *state;
	struct trial trial;

	s->end = NODES_SHUTDOWN;
	trial_run(body_forks, s, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	if (strstr(trial.text, "lost: "))
		fail_msg("%s", trial.text);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    TEST(test_shut_down_at_the_node), TEST(test_shut_down_by_the_program),
	    TEST(test_closed_by_the_program), TEST(test_replaced_by_the_program),
	    TEST(test_node_killed),           TEST(test_fork_after_the_end),
	};
	struct fp_agent_error error;

	if (argc < 2)
		return 2;
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	farpaged = argv[1];
	if (fp_agent_check_kernel(&error) < 0) {
		fprintf(stderr, "%s\n", error.text);
		return SKIP;
	}
	return cmocka_run_group_tests_name("sessionend", tests, NULL, NULL);
}
