/*
 * Leases over shm, from a node that this test simulates: the memory that a client maps, and the
 * memory that it refuses.
 */
#include "transport.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "clock.h"
#include "wire.h"

#define LEASE_BYTES 65536
#define SEALS       (F_SEAL_SHRINK | F_SEAL_GROW)

/* The node's answer to a LEASE. */
struct offer {
	uint64_t size_bytes;
	uint32_t id, flags;
	int fds[2]; /* the first n_fds of them are sent */
	unsigned n_fds;
	bool twice; /* the answer is sent again */
};

struct node {
	uint32_t features; /* the features that the node grants */
	struct offer offer;
	struct fp_url url;
	int listener, memfd;
	struct fp_session *session; /* the client's */
	pthread_t thread;
	bool serving;
	uint32_t released_id;       /* the lease that the client gave back by RELEASE */
	struct fp_wire_adopt adopt; /* the identity in the client's ADOPT */
	uint64_t adopted;           /* the number of adopted leases in the answer, as on the wire */
	_Atomic int fd;             /* the client's connection, once it has sent a PING */
};

#define OLD_ANSWERS 64u

static void send_frame(int fd, enum fp_wire_type type, uint64_t tag, const void *payload, size_t len)
{
	uint8_t bytes[256];

	fp_wire_header_encode(type, FP_WIRE_OK, tag, len, bytes);
	if (len > 0)
		memcpy(bytes + FP_WIRE_HEADER_BYTES, payload, len);
	(void)!send(fd, bytes, FP_WIRE_HEADER_BYTES + len, MSG_NOSIGNAL);
}

static void send_leased(int fd, const struct offer *offer, uint64_t tag)
{
	struct fp_wire_leased leased = {
	    .size_bytes = offer->size_bytes, .lease_id = offer->id, .flags = offer->flags};
	uint8_t bytes[FP_WIRE_HEADER_BYTES + sizeof(leased)];
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(offer->fds))];
	} control = {0};
	struct iovec iov = {bytes, sizeof(bytes)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	fp_wire_header_encode(FP_WIRE_LEASED, FP_WIRE_OK, tag, sizeof(leased), bytes);
	fp_wire_leased_encode(&leased, bytes + FP_WIRE_HEADER_BYTES);
	if (offer->n_fds > 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(offer->n_fds * sizeof(int));
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(offer->n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.header), offer->fds, offer->n_fds * sizeof(int));
	}
	(void)!sendmsg(fd, &msg, MSG_NOSIGNAL);
}

/* Answers the first PING many times, and later PINGs not at all. */
static void answer_ping(struct node *node, int fd, uint64_t tag)
{
	uint8_t frames[OLD_ANSWERS][FP_WIRE_HEADER_BYTES];

	node->fd = fd;
	for (unsigned i = 0; i < OLD_ANSWERS; i++)
		fp_wire_header_encode(FP_WIRE_PONG, FP_WIRE_OK, tag, 0, frames[i]);
	if (tag == 1)
		(void)!send(fd, frames, sizeof(frames), MSG_NOSIGNAL);
}

static void answer(struct node *node, int fd, const struct fp_wire_header *header, const void *payload)
{
	struct fp_wire_challenge challenge = {.version = FP_WIRE_VERSION};
	struct fp_wire_welcome welcome = {.version = FP_WIRE_VERSION,
	                                  .features = node->features,
	                                  .session_id = 1,
	                                  .max_payload = FP_WIRE_MAX_PAYLOAD,
	                                  .max_outstanding = 1};
	struct fp_wire_release release = {0};
	uint8_t bytes[sizeof(welcome)];

	switch (header->type) {
	case FP_WIRE_HELLO:
		fp_wire_challenge_encode(&challenge, bytes);
		send_frame(fd, FP_WIRE_CHALLENGE, 0, bytes, sizeof(challenge));
		break;
	case FP_WIRE_AUTH:
		fp_wire_welcome_encode(&welcome, bytes);
		send_frame(fd, FP_WIRE_WELCOME, 0, bytes, sizeof(welcome));
		break;
	case FP_WIRE_LEASE:
		send_leased(fd, &node->offer, header->tag);
		if (node->offer.twice)
			send_leased(fd, &node->offer, header->tag);
		break;
	case FP_WIRE_BYE:
		send_frame(fd, FP_WIRE_FAREWELL, header->tag, NULL, 0);
		break;
	case FP_WIRE_ADOPT:
		(void)fp_wire_adopt_decode(payload, header->length, &node->adopt);
		send_frame(fd, FP_WIRE_ADOPTED, header->tag, &node->adopted, sizeof(node->adopted));
		break;
	case FP_WIRE_PING:
		answer_ping(node, fd, header->tag);
		break;
	case FP_WIRE_RELEASE:
		(void)fp_wire_release_decode(payload, header->length, &release);
		node->released_id = release.lease_id;
		send_frame(fd, FP_WIRE_RELEASED, header->tag, NULL, 0);
		break;
	}
}

/* Serves one client until it disconnects. */
static void *serve(void *arg)
{
	struct node *node = arg;
	fp_autoclose int fd = accept4(node->listener, NULL, NULL, SOCK_CLOEXEC);
	uint8_t bytes[FP_WIRE_HEADER_BYTES], payload[sizeof(struct fp_wire_hello)];
	struct fp_wire_header header;

	while (recv(fd, bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes) &&
	       fp_wire_header_decode(bytes, &header) == 0 &&
	       (header.length == 0 || recv(fd, payload, header.length, MSG_WAITALL) == header.length))
		answer(node, fd, &header, payload);
	return NULL;
}

static int new_memfd(uint64_t size_bytes, int seals)
{
	int fd = memfd_create("farpage-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size_bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

/*
 * Starts a node that does everything right. Each test changes one thing of it before it opens a
 * session.
 */
static int setup(void **state)
{
	struct node *node = calloc(1, sizeof(*node));
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	char url[64];
	int len;

	*node = (struct node){.features = FP_WIRE_FEATURE_MEMFD, .memfd = new_memfd(LEASE_BYTES, SEALS)};
	node->offer = (struct offer){.size_bytes = LEASE_BYTES,
	                             .id = 1,
	                             .flags = FP_WIRE_LEASED_MEMFD,
	                             .fds = {node->memfd, node->memfd},
	                             .n_fds = 1};
	len = snprintf(url, sizeof(url), "shm:@farpage-test-%d", (int)getpid());
	assert_int_equal(fp_url_parse(url, &node->url), 0);
	memcpy(addr.sun_path + 1, node->url.host + 1, strlen(node->url.host) - 1);
	node->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	len += (int)offsetof(struct sockaddr_un, sun_path) - (int)strlen("shm:");
	assert_int_equal(bind(node->listener, (struct sockaddr *)&addr, (socklen_t)len), 0);
	assert_int_equal(listen(node->listener, 1), 0);
	assert_int_equal(pthread_create(&node->thread, NULL, serve, node), 0);
	node->serving = true;
	*state = node;
	return 0;
}

/* Closes the client's session. Afterwards the node has read all its frames. */
static void end_session(struct node *node)
{
	fp_session_close(fp_take_ptr(node->session));
	if (node->serving)
		pthread_join(node->thread, NULL);
	node->serving = false;
}

static int teardown(void **state)
{
	struct node *node = *state;

	end_session(node);
	close(node->listener);
	close(node->memfd);
	free(node);
	return 0;
}

static int open_session(struct node *node)
{
	struct fp_session_options options = {.client_name = "test", .deadline_ns = 20 * FP_NSEC_PER_SEC};

	return fp_session_open(&node->url, &options, &node->session);
}

static unsigned count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static int run_io(struct fp_link *link, enum fp_io_op op, uint64_t offset_bytes, void *buf, uint32_t len)
{
	struct fp_seg seg = {1, len, offset_bytes, buf};
	struct fp_io io = {.op = op, .n_segs = 1, .segs = &seg}, *done;

	assert_int_equal(fp_link_submit(link, &io), 0);
	assert_int_equal(fp_link_poll(link, &done, 1), 1);
	assert_ptr_equal(done, &io);
	return io.status;
}

static void copies(void **state)
{
	struct node *node = *state;
	const struct fp_lease *lease;
	struct fp_link *link;
	char text[8] = "at end", back[8];

	assert_int_equal(open_session(node), 0);
	assert_int_equal(fp_session_lease(node->session, LEASE_BYTES, &lease), 0);
	assert_int_equal(fp_link_open(node->session, &link), 0);
	assert_int_equal(run_io(link, FP_IO_WRITE, LEASE_BYTES - 8, text, 7), 0);
	assert_int_equal(pread(node->memfd, back, 7, LEASE_BYTES - 8), 7);
	assert_string_equal(back, text);
	assert_int_equal(pwrite(node->memfd, "by node", 8, 100), 8);
	assert_int_equal(run_io(link, FP_IO_READ, 100, back, 8), 0);
	assert_string_equal(back, "by node");
	assert_int_equal(run_io(link, FP_IO_READ, LEASE_BYTES - 7, back, 8), -EACCES);
	fp_link_close(link);
	assert_int_equal(fp_session_release(node->session, 1), 0);
}

/*
 * If the client can't use a lease, the call fails with this error. The client gives the lease back
 * if its id is known to be good.
 */
static void assert_refused(struct node *node, int error, uint32_t released_id)
{
	unsigned n_fds = count_fds();
	const struct fp_lease *lease;

	assert_int_equal(open_session(node), 0);
	assert_int_equal(fp_session_lease(node->session, LEASE_BYTES, &lease), error);
	end_session(node);
	assert_int_equal(node->released_id, released_id);
	assert_int_equal(count_fds(), n_fds);
}

/* The second answer must not look like a late one, whose lease is given back. */
static void lease_that_comes_twice(void **state)
{
	struct node *node = *state;
	const struct fp_lease *lease;

	node->offer.twice = true;
	assert_int_equal(open_session(node), 0);
	assert_int_equal(fp_session_lease(node->session, LEASE_BYTES, &lease), 0);
	assert_int_equal(fp_session_ping(node->session, 0, 0), -EPROTO);
	end_session(node);
	assert_int_equal(node->released_id, 0);
}

static void memfd_that_could_shrink(void **state)
{
	struct node *node = *state;

	node->offer.fds[0] = new_memfd(LEASE_BYTES, F_SEAL_GROW);
	assert_refused(node, -EPROTO, 1);
	close(node->offer.fds[0]);
}

static void memfd_of_another_size(void **state)
{
	struct node *node = *state;

	node->offer.fds[0] = new_memfd(LEASE_BYTES - 4096, SEALS);
	assert_refused(node, -EPROTO, 1);
	close(node->offer.fds[0]);
}

static void no_memfd_at_all(void **state)
{
	struct node *node = *state;

	node->offer.fds[0] = node->listener;
	assert_refused(node, -EPROTO, 1);
}

static void withheld_descriptor(void **state)
{
	struct node *node = *state;

	node->offer.n_fds = 0;
	assert_refused(node, -EMFILE, 1);
}

static void unannounced_lease_without_memfd(void **state)
{
	struct node *node = *state;

	node->offer.n_fds = 0;
	node->offer.flags = 0;
	assert_refused(node, -EPROTO, 0);
}

static void lease_that_is_too_small(void **state)
{
	struct node *node = *state;

	node->offer.size_bytes = LEASE_BYTES - 4096;
	assert_refused(node, -EPROTO, 0);
}

static void surplus_descriptors_are_closed(void **state)
{
	struct node *node = *state;
	unsigned n_fds = count_fds();
	const struct fp_lease *lease;

	node->offer.n_fds = 2;
	assert_int_equal(open_session(node), 0);
	assert_int_equal(fp_session_lease(node->session, LEASE_BYTES, &lease), 0);
	end_session(node);
	assert_int_equal(count_fds(), n_fds);
}

static void lease_of_a_number_in_use(void **state)
{
	struct node *node = *state;
	const struct fp_lease *lease;

	assert_int_equal(open_session(node), 0);
	assert_int_equal(fp_session_lease(node->session, LEASE_BYTES, &lease), 0);
	assert_int_equal(fp_session_lease(node->session, LEASE_BYTES, &lease), -EPROTO);
	/* answers no longer match, so the client asks nothing more */
	assert_int_equal(fp_session_lease(node->session, LEASE_BYTES, &lease), -EPROTO);
}

/* A read-only lease must come from an adoption, not from a LEASE. */
static void lease_that_is_read_only(void **state)
{
	struct node *node = *state;

	node->offer.flags |= FP_WIRE_LEASED_READ_ONLY;
	assert_refused(node, -EPROTO, 0);
}

/* Adopted leases need no new mapping, but can be given back. */
static void adopts(void **state)
{
	struct fp_session_identity parent = {.id = 77}, own;
	struct node *node = *state;

	memset(parent.token, 0x5a, sizeof(parent.token));
	node->adopted = 3;
	assert_int_equal(open_session(node), 0);
	assert_int_equal(fp_session_identity(node->session, &own), 0);
	assert_int_equal(own.id, 1);
	assert_int_equal(own.grace_ns, 0);
	assert_int_equal(fp_session_release(node->session, 3), -EACCES);
	assert_int_equal(fp_session_adopt(node->session, &parent, NULL), 0);
	assert_int_equal(node->released_id, 0);
	assert_int_equal(fp_session_release(node->session, 3), 0);
	assert_int_equal(fp_session_release(node->session, 0), -EACCES);
	assert_int_equal(fp_session_release(node->session, FP_WIRE_MAX_LEASE_ID + 1), -EACCES);
	end_session(node);
	assert_int_equal(node->released_id, 3);
	assert_int_equal(node->adopt.session_id, 77);
	assert_memory_equal(node->adopt.token, parent.token, sizeof(parent.token));
}

static void adoption_of_nonsense(void **state)
{
	struct fp_session_identity parent = {.id = 77};
	struct node *node = *state;
	const struct fp_lease *lease;

	node->adopted = 1ull << 32; /* sets a reserved bit */
	assert_int_equal(open_session(node), 0);
	assert_int_equal(fp_session_adopt(node->session, &parent, NULL), -EPROTO);
	/* answers no longer match, so the client asks nothing more */
	assert_int_equal(fp_session_lease(node->session, LEASE_BYTES, &lease), -EPROTO);
	assert_int_equal(fp_session_release(node->session, 1), -EPROTO);
}

static void node_without_memfds(void **state)
{
	struct node *node = *state;

	node->features = 0;
	assert_int_equal(open_session(node), -EOPNOTSUPP);
}

/* Runs in the child. It has the lease, and keeps it when it abandons its copy of the session. */
static int in_child(struct fp_session *session, const struct fp_lease *lease, bool abandons)
{
	void *lease_base = lease->base;
	const char *base = lease_base;

	if (strcmp(base, "of the parent") != 0)
		return 1;
	if (abandons)
		fp_session_abandon(session);
	else
		fp_session_close(session);
	if (strcmp(base, "of the parent") != 0)
		return 2;
	return munmap(lease_base, LEASE_BYTES) < 0 ? 3 : 0;
}

static void child_inherits_the_mapping(void **state)
{
	struct node *node = *state;
	const struct fp_lease *lease;
	int status;
	pid_t pid;

	assert_int_equal(open_session(node), 0);
	assert_int_equal(fp_session_lease(node->session, LEASE_BYTES, &lease), 0);
	strcpy(lease->base, "of the parent");
	for (unsigned abandons = 0; abandons < 2; abandons++) {
		pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			_exit(in_child(node->session, lease, abandons));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	assert_int_equal(fp_session_release(node->session, lease->id), 0);
}

/*
 * By the time the child closes its copy of the session, other memory may lie at the lease's
 * addresses.
 */
static void child_unmaps_nothing(void **state)
{
	struct node *node = *state;
	const struct fp_lease *lease;
	int status;
	pid_t pid;

	assert_int_equal(open_session(node), 0);
	assert_int_equal(fp_session_lease(node->session, LEASE_BYTES, &lease), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		char *mine = mmap(lease->base, LEASE_BYTES, PROT_READ | PROT_WRITE,
		                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

		if (mine != lease->base)
			_exit(1);
		fp_session_close(node->session);
		mine[0] = 1;
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/*
 * A node may send any number of old answers. A call whose deadline has passed does not go on
 * reading them.
 */
static void old_answers_hold_no_call_up(void **state)
{
	struct node *node = *state;
	int unread = 0;

	assert_int_equal(open_session(node), 0);
	assert_int_equal(fp_session_ping(node->session, 0, 0), 0);
	assert_int_equal(fp_session_ping(node->session, 0, fp_clock_ns()), -ETIMEDOUT);
	assert_int_equal(ioctl(node->fd, SIOCOUTQ, &unread), 0);
	assert_true(unread > 0);
}

#define with_node(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_node(copies),
	    with_node(lease_that_comes_twice),
	    with_node(memfd_that_could_shrink),
	    with_node(memfd_of_another_size),
	    with_node(no_memfd_at_all),
	    with_node(withheld_descriptor),
	    with_node(unannounced_lease_without_memfd),
	    with_node(lease_that_is_too_small),
	    with_node(surplus_descriptors_are_closed),
	    with_node(lease_of_a_number_in_use),
	    with_node(lease_that_is_read_only),
	    with_node(adopts),
	    with_node(adoption_of_nonsense),
	    with_node(node_without_memfds),
	    with_node(old_answers_hold_no_call_up),
	    with_node(child_inherits_the_mapping),
	    with_node(child_unmaps_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
