/*
 * A thief that has its own session, and knows the address and key of another client's lease. Room:
 * test/fault.
 *
 *   stealkey rdma://HOST[:PORT]
 *
 * The victim writes a secret to its lease. Over its own link the thief tries to READ it and then to
 * WRITE it. Status 0: the thief could do neither, and the victim's link noticed nothing.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "transport.h"

#define PAGE        4096u
#define LEASE_BYTES (1u << 20)
#define DEADLINE_NS (20 * FP_NSEC_PER_SEC)

struct client {
	struct fp_session *session;
	struct fp_lease *lease;
	struct fp_link *link;
};

static void must(int r, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(-r));
	exit(2);
}

static void link_open(struct client *c)
{
	must(fp_link_open(c->session, &c->link), "link");
}

static void client_open(const struct fp_url *url, const char *name, struct client *ret)
{
	struct fp_session_options options = {
	    .client_name = name, .secret = getenv("FARPAGE_TEST_SECRET"), .deadline_ns = DEADLINE_NS};
	const struct fp_lease *lease;

	must(fp_session_open(url, &options, &ret->session), "session");
	must(fp_session_lease(ret->session, LEASE_BYTES, &lease), "lease");
	ret->lease = (struct fp_lease *)lease;
	link_open(ret);
}

static int transfer(struct client *c, enum fp_io_op op, void *buf)
{
	struct fp_seg seg = {c->lease->id, PAGE, 0, buf};
	struct fp_io io = {.op = op, .n_segs = 1, .segs = &seg}, *done;

	must(fp_link_submit(c->link, &io), "submit");
	while (fp_link_poll(c->link, &done, 1) == 0) {
		struct pollfd p;

		if (fp_link_pollfd(c->link, &p))
			poll(&p, 1, 100);
	}
	return io.status;
}

/* One attempt. It breaks the thief's link. */
static int steal(struct client *thief, enum fp_io_op op, void *buf)
{
	int r = transfer(thief, op, buf);

	printf("the thief's %s: %s\n", op == FP_IO_READ ? "READ" : "WRITE", strerror(-r));
	fp_link_close(thief->link);
	link_open(thief);
	return r;
}

int main(int argc, char **argv)
{
	static char secret[PAGE], loot[PAGE];
	struct client victim, thief;
	struct fp_lease own;
	struct fp_url url;
	int failed = 0;

	if (argc != 2 || fp_url_parse(argv[1], &url) < 0) {
		fprintf(stderr, "usage: stealkey rdma://HOST[:PORT]\n");
		return 2;
	}
	client_open(&url, "victim", &victim);
	client_open(&url, "thief", &thief);
	if (!victim.lease->remote_key) {
		fprintf(stderr, "%s has no keys to steal\n", argv[1]);
		return 2;
	}
	memset(secret, 's', PAGE);
	must(transfer(&victim, FP_IO_WRITE, secret), "the victim's write");
	own = *thief.lease;
	thief.lease->remote_address = victim.lease->remote_address;
	thief.lease->remote_key = victim.lease->remote_key;
	failed |= steal(&thief, FP_IO_READ, loot) >= 0 || memchr(loot, 's', PAGE);
	memset(loot, 'x', PAGE);
	failed |= steal(&thief, FP_IO_WRITE, loot) >= 0;
	must(transfer(&victim, FP_IO_READ, loot), "the victim's read");
	failed |= memcmp(loot, secret, PAGE) != 0;
	*thief.lease = own;
	must(transfer(&thief, FP_IO_READ, loot), "the thief's read of its own");
	fp_link_close(victim.link);
	fp_link_close(thief.link);
	fp_session_close(victim.session);
	fp_session_close(thief.session);
	printf("%s\n", failed ? "STOLEN" : "nothing was stolen");
	return failed;
}
