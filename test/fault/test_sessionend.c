/*
 * A session over shm ends while its program lives. One end shuts down or closes its socket by a
 * bare call, or the node is killed. The node's memory is mapped, so every byte is right afterwards.
 * The client asks for another session, and the node lends again. Room: test/fault.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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
#define MORE_PAGES  (6 * PAGES) /* more pages than the first lease has left */
#define SMALL_BYTES (4u << 20)
#define MAX_FDS     4096
#define LATE_MS     6000
#define DEADLINE_NS (5 * FP_NSEC_PER_SEC) /* the default */

enum end { NODES_SHUTDOWN, OWN_SHUTDOWN, OWN_CLOSE, OWN_REPLACED };

struct scene {
	struct test_daemon daemon;
	enum end end;
	struct fp_agent *agent;
	uint64_t *words;
	/* A descriptor of the program that got the number of a session's descriptor; -1: none. */
	int program_fd;
	int starter_fd; /* a socket to the process that starts nodes */
};

/* A message to the process that starts nodes. */
struct order {
	unsigned delay_ms;
	uint64_t pool_bytes;
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

/* ---- ways to end a session ---- */

/* True for a connected UNIX socket that is not one of the test's. */
static bool is_session(int fd)
{
	struct sockaddr_un peer = {0};
	socklen_t len = sizeof(peer);

	return getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && peer.sun_family == AF_UNIX;
}

/*
 * Duplicates the node's descriptors of sessions into this process, and shuts them down. First finds
 * them all: meanwhile the agent could open a new session, which must not be ended, too.
 */
static unsigned shut_down_at_node(pid_t node)
{
	int pidfd = (int)syscall(SYS_pidfd_open, node, 0), found[MAX_FDS];
	unsigned n_found = 0, n = 0;

	trial_check(pidfd >= 0, "pidfd_open");
	for (int i = 0; i < MAX_FDS; i++) {
		int fd = (int)syscall(SYS_pidfd_getfd, pidfd, i, 0);

		if (fd >= 0 && is_session(fd))
			found[n_found++] = fd;
		else if (fd >= 0)
			close(fd);
	}
	for (unsigned i = 0; i < n_found; i++) {
		n += shutdown(found[i], SHUT_RDWR) == 0;
		close(found[i]);
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

/*
 * Returns the number of sessions that it has ended. The number is 0 if the agent hides its sockets
 * from the program.
 */
static unsigned end_session(struct scene *s)
{
	unsigned n_found = 0, n = 0;
	int found[MAX_FDS];

	if (s->end == NODES_SHUTDOWN)
		return shut_down_at_node(s->daemon.pid);
	for (int fd = 3; fd < MAX_FDS; fd++)
		if (is_session(fd))
			found[n_found++] = fd;
	for (unsigned i = 0; i < n_found; i++)
		n += end_own(s, found[i]);
	return n;
}

/* ---- the body of the tests ---- */

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

typedef bool (*condition)(const struct fp_store_node *info, uint64_t arg);

static void await(const struct scene *s, const char *what, condition holds, uint64_t arg)
{
	const uint64_t until_ns = fp_clock_ns() + NOTICE_NS;
	const struct timespec pause = {.tv_nsec = FP_NSEC_PER_MSEC};
	struct fp_store_node info;

	for (;;) {
		fp_store_node_info(s->agent->far.store, 0, &info);
		if (holds(&info, arg))
			return;
		trial_check(fp_clock_ns() < until_ns, "%s", what);
		nanosleep(&pause, NULL);
	}
}

static bool has_ended(const struct fp_store_node *info, uint64_t unused)
{
	(void)unused;
	return info->session_error;
}

static bool is_back(const struct fp_store_node *info, uint64_t n_times)
{
	return !info->adopting && info->reconnects >= n_times && !info->session_error;
}

/* True if the session has new leases, while leases of an ended session are still kept. */
static bool is_retired(const struct fp_store_node *info, uint64_t unused)
{
	(void)unused;
	return info->retired_bytes && info->leased_bytes;
}

static bool is_given_back(const struct fp_store_node *info, uint64_t unused)
{
	(void)unused;
	return !info->retired_bytes;
}

static uint64_t *map(const struct scene *s, size_t pages)
{
	void *far;
	int r =
	    fp_space_map(fp_agent_space(s->agent), pages * FP_PAGE_SIZE, 0, PROT_READ | PROT_WRITE, 0, &far);

	trial_check(r == 0, "no mapping: %d", r);
	return far;
}

/*
 * Writes, reads and unmaps a further mapping of MORE_PAGES pages. The node has to lend memory for
 * this mapping.
 */
static void use_more(struct scene *s)
{
	uint64_t *before = s->words, *more = map(s, MORE_PAGES);

	for (unsigned part = 0; part < MORE_PAGES / PAGES; part++) {
		s->words = more + part * WORDS;
		fill(s, 3 + part);
	}
	for (unsigned part = 0; part < MORE_PAGES / PAGES; part++) {
		s->words = more + part * WORDS;
		check(s, 3 + part);
	}
	trial_check(fp_space_unmap(fp_agent_space(s->agent), more, MORE_PAGES * FP_PAGE_SIZE) == 0, "munmap");
	s->words = before;
}

static void check_programs_file(const struct scene *s)
{
	struct stat st;

	trial_check(s->program_fd < 0 || (fstat(s->program_fd, &st) == 0 && st.st_size == 0),
	            "the agent closed a file of the program's, or wrote into it");
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
	check(s, 1);
	await(s, "no other session", is_back, 1);
	check(s, 1);
	fill(s, 2);
	use_more(s);
	check(s, 2);
	fp_agent_stop(s->agent);
	check_programs_file(s);
	return 0;
}

/*
 * Checks that a child has all of its parent's bytes, and gets memory of its own. Afterwards the
 * child calls the function `then`, unless it is NULL.
 */
static void check_child(struct scene *s, uint64_t round, void (*then)(struct scene *s))
{
	int status = -1;
	pid_t pid;

	fp_agent_fork_quiet(s->agent);
	fp_agent_fork_prepare(s->agent);
	pid = fork();
	if (pid == 0) {
		fp_agent_fork_child(s->agent);
		check(s, round);
		fill(s, round + 100);
		use_more(s);
		check(s, round + 100);
		if (then)
			then(s);
		check(s, round + 100);
		_exit(0);
	}
	fp_agent_fork_parent(s->agent);
	waitpid(pid, &status, 0);
	trial_check(status == 0, "the child ended with %x", (unsigned)status);
	check(s, round);
}

static int body_forks(void *arg)
{
	struct scene *s = arg;

	begin(s);
	trial_check(end_session(s) > 0, "nothing was ended");
	check_child(s, 1, NULL);
	await(s, "no other session", is_back, 1);
	check_child(s, 1, NULL);
	fp_agent_stop(s->agent);
	return 0;
}

/* ---- nodes that are restarted ---- */

/*
 * A process without an agent starts the nodes, so that no node inherits an agent. After the given
 * time each node is replaced by the next. All nodes end together with the body.
 */
static void start_starter(struct scene *s)
{
	struct test_daemon daemon = s->daemon;
	struct order order;
	int fds[2];
	pid_t pid;

	trial_check(pipe2(fds, O_CLOEXEC) == 0, "pipe");
	pid = fork();
	trial_check(pid >= 0, "fork");
	s->starter_fd = fds[1];
	if (pid > 0) {
		close(fds[0]);
		return;
	}
	close(fds[1]);
	while (read(fds[0], &order, sizeof(order)) == sizeof(order)) {
		if (daemon.pid != s->daemon.pid) /* the test itself has killed the first node */
			test_daemon_kill(&daemon);
		usleep(order.delay_ms * 1000);
		trial_check(test_daemon_restart(farpaged, order.pool_bytes, &daemon) == 0, "no node");
	}
	_exit(0);
}

static void restart_node(const struct scene *s, unsigned delay_ms, uint64_t pool_bytes)
{
	struct order order = {delay_ms, pool_bytes};

	kill(s->daemon.pid, SIGKILL); /* the first node */
	trial_check(write(s->starter_fd, &order, sizeof(order)) == sizeof(order), "no starter");
}

/* Runs in a child, which has a session of its own. */
static void outlive_restart(struct scene *s)
{
	restart_node(s, 0, POOL_BYTES);
	await(s, "the child gets no other session", is_back, 1);
	use_more(s);
}

/* The number of mapped leases. */
static unsigned n_leases_mapped(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	unsigned n = 0;

	while (maps && fgets(line, sizeof(line), maps))
		n += strstr(line, "/memfd:farpage") != NULL;
	if (maps)
		fclose(maps);
	return n;
}

static int body_restarted(void *arg)
{
	struct scene *s = arg;

	start_starter(s);
	begin(s);
	restart_node(s, 0, POOL_BYTES);
	use_more(s); /* waits for the node */
	check(s, 1);
	fill(s, 2);
	check_child(s, 2, NULL);
	await(s, "it has lent nothing anew", is_retired, 0);
	restart_node(s, 0, POOL_BYTES);
	check_child(s, 2, NULL); /* the fork happens at any moment of the restart */
	await(s, "no third session", is_back, 2);
	use_more(s);
	check_child(s, 2, outlive_restart);
	await(s, "no fourth session", is_back, 3);
	trial_check(fp_space_unmap(fp_agent_space(s->agent), s->words, PAGES * FP_PAGE_SIZE) == 0, "munmap");
	await(s, "what was lent before stays", is_given_back, 0);
	s->words = map(s, PAGES);
	fill(s, 5);
	check_child(s, 5, NULL);
	fp_agent_stop(s->agent);
	trial_check(n_leases_mapped() == 0, "%u leases stay mapped", n_leases_mapped());
	return 0;
}

/* While the node is away, old memory works as before. Requests for new memory fail after a time. */
static int body_late(void *arg)
{
	struct scene *s = arg;
	uint64_t begun_ns;
	void *far;
	int r;

	start_starter(s);
	begin(s);
	restart_node(s, LATE_MS, POOL_BYTES);
	await(s, "nobody notices", has_ended, 0);
	begun_ns = fp_clock_ns();
	r = fp_space_map(fp_agent_space(s->agent), POOL_BYTES / 2, 0, PROT_READ, 0, &far);
	trial_check(r == -ENOMEM, "a node that is away lends memory: %d", r);
	trial_check(fp_clock_ns() - begun_ns < DEADLINE_NS + FP_NSEC_PER_SEC, "it is waited for too long");
	check(s, 1);
	fill(s, 2);
	check_child(s, 2, NULL);
	await(s, "it is not back", is_back, 1);
	use_more(s);
	check(s, 2);
	fp_agent_stop(s->agent);
	return 0;
}

/* The new node has too little memory to lend as much again. The old memory works as before. */
static int body_smaller(void *arg)
{
	struct scene *s = arg;

	start_starter(s);
	begin(s);
	restart_node(s, 0, SMALL_BYTES);
	await(s, "it is not back", is_back, 1);
	for (unsigned round = 2; round < 5; round++) {
		fill(s, round);
		check(s, round);
	}
	fp_agent_stop(s->agent);
	return 0;
}

/* The node never comes back, like a private node that has ended. */
static int body_killed(void *arg)
{
	struct scene *s = arg;

	begin(s);
	kill(s->daemon.pid, SIGKILL);
	check(s, 1);
	await(s, "nobody notices", has_ended, 0);
	fill(s, 2);
	check(s, 2);
	fp_agent_stop(s->agent);
	return 0;
}

/* ---- tests ---- */

static void run_body(void **state, int (*act)(void *arg), struct trial *ret_trial)
{
	trial_run(act, *state, TIMEOUT_S, ret_trial);
	trial_assert_good(ret_trial);
	if (strstr(ret_trial->text, "lost: "))
		fail_msg("%s", ret_trial->text);
}

static void run(void **state, enum end end)
{
	struct scene *s = *state;
	struct trial trial;

	s->end = end;
	trial_run(body, s, TIMEOUT_S, &trial);
	/* The agent may reuse the number at once. Then it ends the process: see fp_fd_watch. */
	if (end == OWN_CLOSE && strstr(trial.text, "closed or replaced a descriptor"))
		return;
	trial_assert_good(&trial);
	if (strcmp(trial.text, "out of reach\n") == 0 && end != NODES_SHUTDOWN)
		return;
	if (trial.text[0]) /* the first attempt must succeed */
		fail_msg("%s", trial.text);
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

static void test_fork_after_the_end(void **state)
{
	struct scene *s = *state;
	struct trial trial;

	s->end = NODES_SHUTDOWN;
	run_body(state, body_forks, &trial);
}

static void test_restarted_twice(void **state)
{
	struct trial trial;

	run_body(state, body_restarted, &trial);
}

static unsigned n_times(const char *text, const char *what)
{
	unsigned n = 0;

	for (; (text = strstr(text, what)); text++)
		n++;
	return n;
}

static void test_back_late(void **state)
{
	struct trial trial;

	run_body(state, body_late, &trial);
	/*
	 * The child was forked while the node was away. It waits for its first session, so it
	 * prints itself that the node is back.
	 */
	if (n_times(trial.text, "the session has ended") != 1 || n_times(trial.text, "is back after") != 2)
		fail_msg("%s", trial.text);
}

static void test_back_smaller(void **state)
{
	struct trial trial;

	run_body(state, body_smaller, &trial);
}

static void test_killed(void **state)
{
	struct trial trial;

	run_body(state, body_killed, &trial);
	if (n_times(trial.text, "the session has ended") != 1 || strstr(trial.text, "is back after"))
		fail_msg("%s", trial.text);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    TEST(test_shut_down_at_the_node),
	    TEST(test_shut_down_by_the_program),
	    TEST(test_closed_by_the_program),
	    TEST(test_replaced_by_the_program),
	    TEST(test_fork_after_the_end),
	    TEST(test_restarted_twice),
	    TEST(test_back_late),
	    TEST(test_back_smaller),
	    TEST(test_killed),
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
