/*
 * Sessions over rdma that open and close, several at a time. Each session and its link must open at
 * the first try, and read back their own bytes. Room: test/fault.
 *
 *   opens FARPAGED COUNT    needs FARPAGE_TEST_RDMA, an address of the device
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "daemon.h"
#include "transport.h"

#define MIB     (1ull << 20)
#define PAGE    4096u
#define OPENERS 3u
/* The deadline of one call. The node allows less time for a handshake. */
#define DEADLINE_NS (60 * FP_NSEC_PER_SEC)

static struct fp_url url;
static unsigned count;
static _Atomic unsigned n_begun, n_failed;
static _Atomic uint64_t longest_ns;

static void complain(unsigned n, const char *what, int r)
{
	fprintf(stderr, "opens: session %u: %s: %s\n", n, what, strerror(-r));
	atomic_fetch_add(&n_failed, 1);
}

static int transfer(struct fp_link *link, enum fp_io_op op, uint32_t lease_id, uint8_t *page)
{
	struct fp_seg seg = {lease_id, PAGE, 0, page};
	struct fp_io io = {.op = op, .n_segs = 1, .segs = &seg}, *done;
	int r = fp_link_submit(link, &io);

	while (r == 0 && fp_link_poll(link, &done, 1) == 0) {
		struct pollfd p;

		if (fp_link_pollfd(link, &p))
			poll(&p, 1, 100);
	}
	return r < 0 ? r : io.status;
}

/* Returns the name of the step that failed; NULL: none. */
static const char *use_link(struct fp_link *link, uint32_t lease_id, unsigned n, int *ret_error)
{
	uint8_t out[PAGE], in[PAGE] = {0};

	memset(out, (int)(n % 255) + 1, sizeof(out));
	*ret_error = transfer(link, FP_IO_WRITE, lease_id, out);
	if (*ret_error < 0)
		return "its first write";
	*ret_error = transfer(link, FP_IO_READ, lease_id, in);
	if (*ret_error < 0)
		return "its first read";
	*ret_error = -EILSEQ;
	return memcmp(in, out, sizeof(in)) ? "what it read" : NULL;
}

static void use_session(struct fp_session *session, unsigned n)
{
	const struct fp_lease *lease;
	struct fp_link *link = NULL;
	const char *what = "its lease";
	int r = fp_session_lease(session, MIB, &lease);

	if (r == 0) {
		what = "its link";
		r = fp_link_open(session, &link);
	}
	if (r == 0)
		what = use_link(link, lease->id, n, &r);
	if (what)
		complain(n, what, r);
	fp_link_close(link);
}

static void note_longest(uint64_t took_ns)
{
	uint64_t longest = atomic_load(&longest_ns);

	while (took_ns > longest && !atomic_compare_exchange_weak(&longest_ns, &longest, took_ns))
		continue;
}

static void *open_on_and_on(void *arg)
{
	const struct fp_session_options options = {
	    .client_name = "opens", .secret = TEST_DAEMON_SECRET, .deadline_ns = DEADLINE_NS};
	unsigned n;

	while ((n = atomic_fetch_add(&n_begun, 1)) < count) {
		uint64_t begin_ns = fp_clock_ns();
		struct fp_session *session;
		int r = fp_session_open(&url, &options, &session);

		if (r < 0) {
			complain(n, "its opening", r);
			continue;
		}
		use_session(session, n);
		fp_session_close(session);
		note_longest(fp_clock_ns() - begin_ns);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[OPENERS];
	struct test_daemon node;

	if (argc != 3)
		return 2;
	if (!test_daemon_rdma_host()) {
		puts("FARPAGE_TEST_RDMA names no address of an rdma device");
		return 77;
	}
	count = (unsigned)strtoul(argv[2], NULL, 10);
	if (test_daemon_start(argv[1], "rdma", 64 * MIB, &node) < 0 || fp_url_parse(node.url, &url) < 0)
		return 2;
	for (unsigned i = 0; i < OPENERS; i++)
		if (pthread_create(&threads[i], NULL, open_on_and_on, NULL))
			return 2;
	for (unsigned i = 0; i < OPENERS; i++)
		pthread_join(threads[i], NULL);
	test_daemon_stop(&node);
	printf("%u sessions, %u failures; the longest took %.0f ms\n", count, atomic_load(&n_failed),
	       (double)atomic_load(&longest_ns) / FP_NSEC_PER_MSEC);
	return atomic_load(&n_failed) > 0;
}
