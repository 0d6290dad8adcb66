/*
 * Clients are killed under load, one after the other, at any moment: while they connect, take
 * leases, read and write. After the grace period the node must be as before, and have no lease of
 * these clients. Room: test/fault.
 *
 *   test_killclients URL [COUNT [WAIT_SECONDS [families]]]
 *
 * Each client checks the bytes that it reads from its own lease. With the argument families, each
 * client forks a child. The child adopts the lease, and reads until it is killed itself, also after
 * its parent was killed. The caller compares what the node itself counts (queue pairs, regions):
 * see test/vm.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "testrng.h"
#include "transport.h"
#include "verbs.h"

#define PAGE        4096u
#define LEASE_PAGES 256u
#define BATCH       8u
#define DEADLINE_NS (20 * FP_NSEC_PER_SEC)
#define LATE        5 /* a child's exit status: its parent's grace ended before it could adopt */
#define WRONG       3 /* a client's exit status: it read wrong bytes */

static bool families;

enum stage { STAGE_OPEN, STAGE_LEASED, STAGE_RUNNING, STAGE_INHERITED };

struct client {
	struct fp_session *session;
	const struct fp_lease *lease;
	struct fp_link *link;
	bool frozen; /* constant: a child reads it too */
	uint64_t rng;
	uint64_t stamps[LEASE_PAGES];
	uint64_t pages[BATCH][PAGE / sizeof(uint64_t)];
};

static void say(int fd, enum stage stage)
{
	char c = (char)stage;

	(void)!write(fd, &c, 1);
}

static void fail(const char *what, int r)
{
	fprintf(stderr, "client: %s: %s\n", what, strerror(-r));
	_exit(r == -EUSERS ? 4 : 2);
}

static void transfer(struct client *c, enum fp_io_op op, const unsigned *pages, unsigned n)
{
	struct fp_seg segs[BATCH];
	struct fp_io io = {.op = op, .n_segs = n, .segs = segs}, *done = NULL;
	int r;

	for (unsigned i = 0; i < n; i++)
		segs[i] = (struct fp_seg){c->lease->id, PAGE, (uint64_t)pages[i] * PAGE, c->pages[i]};
	r = fp_link_submit(c->link, &io);
	if (r < 0)
		fail("submit", r);
	while (fp_link_poll(c->link, &done, 1) == 0) {
		struct pollfd p;

		if (fp_link_pollfd(c->link, &p))
			poll(&p, 1, 100);
	}
	if (io.status < 0)
		fail(op == FP_IO_READ ? "read" : "write", io.status);
}

static void read_and_write(struct client *c)
{
	unsigned pages[BATCH], n = 1 + (unsigned)(test_random(&c->rng) % BATCH);

	for (unsigned i = 0; i < n; i++)
		pages[i] = ((unsigned)(test_random(&c->rng) % (LEASE_PAGES / BATCH))) * BATCH + i;
	if (!c->frozen && test_random(&c->rng) % 2) {
		for (unsigned i = 0; i < n; i++) {
			uint64_t stamp = test_random(&c->rng);

			c->stamps[pages[i]] = stamp;
			for (unsigned k = 0; k < PAGE / sizeof(stamp); k++)
				c->pages[i][k] = stamp + k;
		}
		transfer(c, FP_IO_WRITE, pages, n);
		return;
	}
	transfer(c, FP_IO_READ, pages, n);
	for (unsigned i = 0; i < n; i++) {
		uint64_t stamp = c->stamps[pages[i]];

		for (unsigned k = 0; k < PAGE / sizeof(stamp); k++)
			if (c->pages[i][k] != (stamp ? stamp + k : 0))
				_exit(WRONG);
	}
}

/* Reading mapped memory sends no message. */
static void check_mapped(const struct client *c, const uint64_t *base)
{
	const unsigned words = PAGE / sizeof(*base);

	for (unsigned i = 0; i < LEASE_PAGES * words; i++) {
		uint64_t stamp = c->stamps[i / words];

		if (base[i] != (stamp ? stamp + i % words : 0))
			_exit(WRONG);
	}
}

static void check_mapped_on_and_on(const struct client *c, const uint64_t *base, int ready_fd)
{
	check_mapped(c, base);
	say(ready_fd, STAGE_INHERITED);
	for (;;) {
		usleep(1000);
		check_mapped(c, base);
	}
}

/*
 * The child of a client that may be killed. It opens a session and a link of its own, and adopts
 * the client's lease.
 */
static void child_main(const struct fp_url *url, struct client *c, int ready_fd)
{
	struct fp_session_options options = {
	    .client_name = "child", .secret = getenv("FARPAGE_TEST_SECRET"), .deadline_ns = DEADLINE_NS};
	struct fp_session *parents = c->session;
	struct fp_session_identity identity;
	uint64_t *base = c->lease->base;
	uint32_t id = c->lease->id;
	int r = fp_session_identity(parents, &identity);

	alarm(120); /* an alarm ends it if the process that should kill it has ended */
	fp_link_close(c->link);
	fp_transport_forked();
	r = r < 0 ? r : fp_session_open(url, &options, &c->session);
	if (r < 0)
		fail("the child's open", r);
	r = fp_session_adopt(c->session, &identity, NULL);
	if (r == -ESTALE && strncmp(url->transport->scheme, "rdma", 4) == 0)
		_exit(LATE);
	if (r < 0)
		fail("adopt", r);
	fp_session_abandon(parents);
	if (url->transport->load_store)
		check_mapped_on_and_on(c, base, ready_fd);
	r = fp_session_attach(c->session, id, &c->lease);
	if (r == 0)
		r = fp_link_open(c->session, &c->link);
	if (r < 0)
		fail("the child's link", r);
	read_and_write(c);
	say(ready_fd, STAGE_INHERITED);
	for (;;)
		read_and_write(c);
}

static void make_family(const struct fp_url *url, struct client *c, int ready_fd)
{
	pid_t pid;

	for (unsigned n = (unsigned)(test_random(&c->rng) % 20); n > 0; n--)
		read_and_write(c);
	c->frozen = true;
	pid = fork();
	if (pid < 0)
		fail("fork", -errno);
	if (pid == 0)
		child_main(url, c, ready_fd);
}

static void client_main(const struct fp_url *url, uint64_t seed, int ready_fd)
{
	struct fp_session_options options = {
	    .client_name = "doomed", .secret = getenv("FARPAGE_TEST_SECRET"), .deadline_ns = DEADLINE_NS};
	struct client *c = calloc(1, sizeof(*c));
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpgid(0, 0);
	c->rng = seed;
	say(ready_fd, STAGE_OPEN);
	r = fp_session_open(url, &options, &c->session);
	if (r < 0)
		fail("open", r);
	r = fp_session_lease(c->session, LEASE_PAGES * PAGE, &c->lease);
	if (r < 0)
		fail("lease", r);
	say(ready_fd, STAGE_LEASED);
	r = fp_link_open(c->session, &c->link);
	if (r < 0)
		fail("link", r);
	if (test_random(&c->rng) % 2)
		fp_link_register(c->link, c->pages, sizeof(c->pages));
	say(ready_fd, STAGE_RUNNING);
	if (families)
		make_family(url, c, ready_fd);
	for (;;)
		read_and_write(c);
}

/* Waits until the client has reached this stage, or has ended. */
static void await(int fd, enum stage stage)
{
	char c;

	do
		if (read(fd, &c, 1) != 1)
			return;
	while (c != (char)stage);
}

/*
 * Kills the process group of a client's children, if there are any, after up to 20 ms. In half of
 * the cases it first waits until the child has read its parent's bytes. Returns false if a child
 * had ended by itself, with another status than LATE.
 */
static bool end_family(pid_t group, int ready_fd, uint64_t *rng)
{
	bool well = true;
	int status;
	pid_t pid;

	if (!families)
		return true;
	if (test_random(rng) % 2)
		await(ready_fd, STAGE_INHERITED);
	usleep((useconds_t)(test_random(rng) % 20000));
	(void)kill(-group, SIGKILL);
	while ((pid = waitpid(-group, &status, 0)) > 0) {
		if (WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == LATE))
			continue;
		fprintf(stderr, "child %d ended by itself: status %#x%s\n", (int)pid, (unsigned)status,
		        WIFEXITED(status) && WEXITSTATUS(status) == WRONG ? ": IT READ WRONG BYTES" : "");
		well = false;
	}
	return well;
}

/* Starts and kills one client. False: it ended by itself. */
static bool one_life(const struct fp_url *url, uint64_t *rng)
{
	int ready[2], status;
	bool ended_well;
	pid_t pid;

	if (pipe(ready) < 0)
		exit(1);
	pid = fork();
	if (pid == 0) {
		close(ready[0]);
		client_main(url, test_random(rng), ready[1]);
	}
	close(ready[1]);
	await(ready[0], (enum stage)(test_random(rng) % 8 ? STAGE_RUNNING : test_random(rng) % 2));
	usleep((useconds_t)(test_random(rng) % 20000));
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	(void)test_random(rng);
	ended_well = end_family(pid, ready[0], rng);
	close(ready[0]);
	if (!ended_well)
		return false;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return true;
	fprintf(stderr, "client %d ended by itself: status %#x%s\n", (int)pid, (unsigned)status,
	        WIFEXITED(status) && WEXITSTATUS(status) == WRONG ? ": IT READ WRONG BYTES" : "");
	return false;
}

/* True if the node has all its memory back in time. */
static bool all_given_back(const struct fp_url *url, uint64_t wait_ns)
{
	struct fp_session_options options = {
	    .client_name = "auditor", .secret = getenv("FARPAGE_TEST_SECRET"), .deadline_ns = DEADLINE_NS};
	uint64_t until = fp_clock_ns() + wait_ns;
	struct fp_node_info info = {0};
	struct fp_session *session;
	char *json = NULL;
	int r = fp_session_open(url, &options, &session);

	if (r < 0) {
		fprintf(stderr, "the node no longer answers: %s\n", strerror(-r));
		return false;
	}
	do
		r = fp_session_info(session, &info);
	while (r == 0 && info.free_bytes != info.capacity_bytes && fp_clock_ns() < until &&
	       usleep(100000) == 0);
	if (info.free_bytes != info.capacity_bytes && fp_session_status(session, &json) == 0)
		fprintf(stderr, "%s\n", json);
	free(json);
	fp_session_close(session);
	printf("free %llu of %llu bytes\n", (unsigned long long)info.free_bytes,
	       (unsigned long long)info.capacity_bytes);
	return r == 0 && info.free_bytes == info.capacity_bytes;
}

int main(int argc, char **argv)
{
	unsigned count = argc > 2 ? (unsigned)atoi(argv[2]) : 100, n_failed = 0;
	uint64_t wait_ns = (argc > 3 ? (unsigned)atoi(argv[3]) : 60) * FP_NSEC_PER_SEC, rng, began;
	struct fp_url url;

	if (argc < 2 || fp_url_parse(argv[1], &url) < 0) {
		fprintf(stderr, "usage: test_killclients URL [COUNT [WAIT_SECONDS [families]]]\n");
		return 2;
	}
	families = argc > 4;
	if (families) /* orphans become children of this process */
		prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (url.transport->default_port) /* done once here, not again in every client */
		(void)fp_verbs_load();
	rng = test_seed("killclients");
	began = fp_clock_ns();
	for (unsigned i = 0; i < count; i++)
		n_failed += !one_life(&url, &rng);
	printf("%u clients killed over %s in %.1f s, %u ended by themselves\n", count, argv[1],
	       (double)(fp_clock_ns() - began) / 1e9, n_failed);
	return n_failed || !all_given_back(&url, wait_ns);
}
