/* Which clients get a session, and which answers the others get. */
#include "rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fdutil.h"

static void opens(void **state)
{
	struct rig *rig = *state;
	struct fp_node_info info;

	assert_int_equal(rig_open(&rig->url, NULL, 0, &rig->session), 0);
	assert_int_equal(fp_session_info(rig->session, &info), 0);
	assert_true(info.capacity_bytes == POOL_BYTES);
	assert_true(info.free_bytes == POOL_BYTES);
}

static void long_and_odd_client_names(void **state)
{
	struct rig *rig = *state;
	char name[200] = "a \"name\"\n\\ of any \x01\xff form ";
	struct fp_session_options options = {
	    .client_name = name, .secret = rig_secret(NULL), .deadline_ns = PATIENCE_NS};

	memset(name + strlen(name), 'x', 150);
	assert_int_equal(fp_session_open(&rig->url, &options, &rig->session), 0);
}

static void secrets(void **state)
{
	struct rig *rig = *state;
	struct fp_session *session;

	assert_int_equal(rig_open(&rig->url, RIG_NO_SECRET, 0, &session), -EACCES);
	assert_int_equal(rig_open(&rig->url, "0123456789abcdef0123456789abcdeF", 0, &session), -EACCES);
	assert_int_equal(rig_open(&rig->url, "", 0, &session), -EINVAL);
	assert_int_equal(rig_open(&rig->url, RIG_SECRET, 0, &rig->session), 0);
	assert_int_equal(fp_session_lease(rig->session, MIB, &rig->lease), 0);
	assert_int_equal(fp_link_open(rig->session, &rig->link), 0);
	assert_int_equal(rig_write(rig->link, rig->lease->id, 0, "known", 5), 0);
}

/*
 * The node must prove that it knows the secret. Otherwise another process at the node's address
 * would get the pages of its clients.
 */
static void node_without_the_secret(void **state)
{
	struct rig *rig = *state;
	struct fp_session *session;

	if (!rig_socket())
		rig_skip("a node without a secret listens where no device of rdma is");
	assert_int_equal(rig_open(&rig->url, RIG_SECRET, 0, &session), -EKEYREJECTED);
}

#define STREAM_ONLY "this is about bytes on a socket, which rdma has none of"

static int dialog(struct rig *rig, enum fp_wire_purpose purpose, const struct fp_wire_welcome *session,
                  struct fp_handshake **ret_dialog, struct fp_wire_welcome *ret_welcome)
{
	struct fp_handshake_options options = {
	    .purpose = purpose, .client_name = "conformance", .session = session};

	return fp_handshake_open(&rig->url, &options, fp_clock_ns() + PATIENCE_NS, ret_dialog, ret_welcome);
}

static void link_to_a_session_of_others(void **state)
{
	struct rig *rig = *state;
	struct fp_wire_welcome welcome, wrong, link_welcome;
	struct fp_handshake *control, *link;

	if (!rig_socket())
		rig_skip(STREAM_ONLY);
	assert_int_equal(dialog(rig, FP_WIRE_CONTROL, NULL, &control, &welcome), 0);
	wrong = welcome;
	wrong.token[15] ^= 1;
	assert_int_equal(dialog(rig, FP_WIRE_LINK, &wrong, &link, &link_welcome), -EACCES);
	wrong = welcome;
	wrong.session_id += 1000;
	assert_int_equal(dialog(rig, FP_WIRE_LINK, &wrong, &link, &link_welcome), -EACCES);
	assert_int_equal(dialog(rig, FP_WIRE_LINK, &welcome, &link, &link_welcome), 0);
	fp_handshake_close(link);
	fp_handshake_close(control);
}

/* Opens a plain connection to the address to which a session's socket is connected. */
static int connect_raw(struct rig *rig)
{
	struct fp_wire_welcome welcome;
	struct sockaddr_storage addr;
	socklen_t len = sizeof(addr);
	struct fp_handshake *control;
	int fd, raw;

	assert_int_equal(dialog(rig, FP_WIRE_CONTROL, NULL, &control, &welcome), 0);
	fd = fp_handshake_take_socket(control);
	assert_int_equal(getpeername(fd, (struct sockaddr *)&addr, &len), 0);
	raw = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(raw, (struct sockaddr *)&addr, len), 0);
	fp_fd_close(fd);
	return raw;
}

static void client_of_another_version(void **state)
{
	struct fp_wire_hello hello = {
	    .min_version = FP_WIRE_VERSION + 1, .max_version = 9, .purpose = FP_WIRE_CONTROL};
	uint8_t bytes[FP_WIRE_HEADER_BYTES + sizeof(hello)];
	struct fp_wire_header header;
	fp_autoclose int fd = -1;

	if (!rig_socket())
		rig_skip(STREAM_ONLY);
	fd = connect_raw(*state);
	fp_wire_header_encode(FP_WIRE_HELLO, FP_WIRE_OK, 0, sizeof(hello), bytes);
	fp_wire_hello_encode(&hello, bytes + FP_WIRE_HEADER_BYTES);
	assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
	assert_int_equal(recv(fd, bytes, FP_WIRE_HEADER_BYTES, MSG_WAITALL), FP_WIRE_HEADER_BYTES);
	assert_int_equal(fp_wire_header_decode(bytes, &header), 0);
	assert_int_equal(header.status, FP_WIRE_VERSION_GAP);
}

static void answer_hello(int fd, const void *bytes, size_t len)
{
	uint8_t hello[FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_hello)], rest;

	if (recv(fd, hello, sizeof(hello), MSG_WAITALL) == sizeof(hello) &&
	    (len == 0 || send(fd, bytes, len, MSG_NOSIGNAL) > 0))
		(void)!read(fd, &rest, 1); /* wait until the client has closed */
}

static void serve_version_gap(int fd)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES];

	fp_wire_header_encode(FP_WIRE_ERROR, FP_WIRE_VERSION_GAP, 0, 0, bytes);
	answer_hello(fd, bytes, sizeof(bytes));
}

/* A node of the next version, which says so. */
static void serve_next_version(int fd)
{
	const struct fp_wire_refusal refusal = {
	    .cause = FP_REFUSAL_VERSION, .limit = FP_WIRE_VERSION + 1, .used = FP_WIRE_VERSION};
	uint8_t bytes[FP_WIRE_HEADER_BYTES + sizeof(refusal)];

	fp_wire_header_encode(FP_WIRE_ERROR, FP_WIRE_VERSION_GAP, 0, sizeof(refusal), bytes);
	fp_wire_refusal_encode(&refusal, bytes + FP_WIRE_HEADER_BYTES);
	answer_hello(fd, bytes, sizeof(bytes));
}

static void serve_later_version(int fd)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES];

	fp_wire_header_encode(FP_WIRE_PONG, FP_WIRE_OK, 0, 0, bytes);
	bytes[4] = 2;
	answer_hello(fd, bytes, sizeof(bytes));
}

static void serve_unasked_version(int fd)
{
	struct fp_wire_challenge challenge = {.version = FP_WIRE_VERSION + 1};
	uint8_t bytes[FP_WIRE_HEADER_BYTES + sizeof(challenge)];

	fp_wire_header_encode(FP_WIRE_CHALLENGE, FP_WIRE_OK, 0, sizeof(challenge), bytes);
	fp_wire_challenge_encode(&challenge, bytes + FP_WIRE_HEADER_BYTES);
	answer_hello(fd, bytes, sizeof(bytes));
}

static void serve_http(int fd)
{
	static const char text[] =
	    "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

	answer_hello(fd, text, sizeof(text) - 1);
}

static void serve_echo(int fd)
{
	uint8_t hello[FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_hello)];

	if (recv(fd, hello, sizeof(hello), MSG_WAITALL) == sizeof(hello))
		(void)!send(fd, hello, sizeof(hello), MSG_NOSIGNAL);
}

static void serve_silence(int fd)
{
	answer_hello(fd, NULL, 0);
}

static void serve_goodbye(int fd)
{
}

static void assert_refused(void (*serve)(int fd), uint64_t deadline_ns, int error)
{
	struct fake_node node;
	struct fp_session *session;

	fake_node_start(&node, serve);
	assert_int_equal(rig_open(&node.url, NULL, deadline_ns, &session), error);
	fake_node_stop(&node);
}

/* A node of another version is refused, and the message says which side to update. */
static void assert_updates(void (*serve)(int fd), const char *words)
{
	struct fp_refusal refusal;
	struct fp_session_options options = {.client_name = "conformance",
	                                     .secret = rig_secret(NULL),
	                                     .deadline_ns = PATIENCE_NS,
	                                     .refusal = &refusal};
	char text[FP_EXPLAIN_LEN];
	struct fp_session *session;
	struct fake_node node;
	const char *said;

	fake_node_start(&node, serve);
	assert_int_equal(fp_session_open(&node.url, &options, &session), -EPROTONOSUPPORT);
	fake_node_stop(&node);
	said = fp_session_explain(-EPROTONOSUPPORT, &refusal, NULL, text, sizeof(text));
	if (!strstr(said, words))
		fail_msg("'%s' does not say '%s'", said, words);
}

static void nodes_of_another_version(void **state)
{
	if (!rig_socket())
		rig_skip(STREAM_ONLY);
	assert_updates(serve_version_gap, "update Farpage on the node");
	assert_updates(serve_next_version, "update Farpage on the client's machine");
}

static void nodes_of_another_kind(void **state)
{
	if (!rig_socket())
		rig_skip(STREAM_ONLY);
	assert_refused(serve_version_gap, 0, -EPROTONOSUPPORT);
	assert_refused(serve_later_version, 0, -EPROTONOSUPPORT);
	assert_refused(serve_unasked_version, 0, -EPROTONOSUPPORT);
	assert_refused(serve_http, 0, -EPROTO);
	assert_refused(serve_echo, 0, -EPROTO);
	assert_refused(serve_silence, 50 * FP_NSEC_PER_MSEC, -ETIMEDOUT);
}

static void node_that_hangs_up(void **state)
{
	struct fake_node node;
	struct fp_session *session;
	int r;

	if (!rig_socket())
		rig_skip(STREAM_ONLY);
	fake_node_start(&node, serve_goodbye);
	r = rig_open(&node.url, NULL, 0, &session);
	assert_true(r == -ECONNRESET || r == -EPIPE);
	fake_node_stop(&node);
}

static void node_that_is_absent(void **state)
{
	struct rig *rig = *state;
	struct fp_session *session;
	int r;

	test_daemon_stop(&rig->node);
	/*
	 * The kernel needs a moment after the end of a process to close its listening socket,
	 * because an io_uring still holds the socket.
	 */
	do
		r = rig_open(&rig->url, NULL, 0, &session);
	while (r == -ECONNRESET);
	assert_int_equal(r, rig_load_store() ? -ENOENT : -ECONNREFUSED);
}

/*
 * A session's descriptors have high numbers and close at exec. Programs rely on low numbers, and
 * executed children must not inherit a session.
 */
static void descriptors_are_out_of_the_way(void **state)
{
	struct stat before[512], after;
	int flags;

	for (int fd = 0; fd < 512; fd++)
		if (fstat(fd, &before[fd]) < 0)
			before[fd].st_ino = 0;
	assert_int_equal(rig_setup(state), 0);
	for (int fd = 0; fd < 512; fd++)
		if (fstat(fd, &after) == 0)
			assert_true(after.st_ino == before[fd].st_ino);
	for (int fd = 512; fd < 600; fd++)
		if ((flags = fcntl(fd, F_GETFD)) >= 0)
			assert_true(flags & FD_CLOEXEC);
	assert_true(fcntl(512, F_GETFD) >= 0);
}

#define on(fixture, test) cmocka_unit_test_setup_teardown(test, fixture, rig_teardown)

int run_handshake_cases(void)
{
	const struct CMUnitTest handshake[] = {
	    on(rig_setup_node, opens),
	    on(rig_setup_node, long_and_odd_client_names),
	    on(rig_setup_secret, secrets),
	    on(rig_setup_node, node_without_the_secret),
	    on(rig_setup_node, link_to_a_session_of_others),
	    on(rig_setup_node, client_of_another_version),
	    cmocka_unit_test(nodes_of_another_version),
	    cmocka_unit_test(nodes_of_another_kind),
	    cmocka_unit_test(node_that_hangs_up),
	    on(rig_setup_node, node_that_is_absent),
	    cmocka_unit_test_teardown(descriptors_are_out_of_the_way, rig_teardown),
	};

	return cmocka_run_group_tests(handshake, NULL, NULL);
}
