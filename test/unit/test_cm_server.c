/*
 * The rdma_cm server: what it admits and refuses, what it pumps, what it tells, and what it
 * destroys. No device: see cm_server_rig.h.
 */
#include "cm_server_rig.h"

static void opening_fails_by_name(void **state)
{
	const struct fp_cm_server_address addresses[2] = {{.host = "10.0.0.1"}, {.host = "10.0.0.2"}};
	const struct fp_cm_server_options options = {.listen = addresses, .n_listen = 2};
	struct fp_cm_server *gate = NULL;
	unsigned failed;

	n_devices = 0;
	n_listeners = 0;
	load_result = -ELIBACC;
	assert_int_equal(fp_cm_server_open(&options, &gate, &failed), -ELIBACC);
	load_result = 0;
	assert_int_equal(fp_cm_server_open(&options, &gate, &failed), -ENODEV);
	assert_int_equal(failed, 2);
	n_devices = 1;
	listen_result = -EADDRINUSE;
	assert_int_equal(fp_cm_server_open(&options, &gate, &failed), -EADDRINUSE);
	assert_int_equal(failed, 0);
	assert_null(gate);
	listen_result = 0;
}

static void strangers_get_no_queue_pair(void **state)
{
	static const uint8_t token[FP_WIRE_TOKEN_BYTES] = {1};
	struct fp_cm_server_counts counts;
	struct fp_verbs_request request;

	ask(&request, "fedcba9876543210", 0, NULL);
	await(&request.answer, FP_WIRE_DENIED);
	assert_int_equal(next_news(*state).type, FP_CM_SERVER_EVENT_REJECTED);
	ask(&request, NULL, 7, token);
	await(&request.answer, FP_WIRE_DENIED);
	assert_int_equal(next_news(*state).type, FP_CM_SERVER_EVENT_REJECTED);
	memset(request.private_data, 0xff, sizeof(request.private_data));
	happens((struct fp_verbs_event){.type = FP_VERBS_EV_REQUEST,
	                                .request = &request,
	                                .private_data = request.private_data,
	                                .private_len = sizeof(request.private_data)});
	await(&request.answer, FP_WIRE_MALFORMED);
	assert_non_null(strstr(next_news(*state).why, "protocol"));
	fp_cm_server_counts(*state, &counts);
	assert_int_equal(counts.rejected, 3);
	assert_int_equal(counts.queue_pairs, 0);
}

static void no_more_than_allowed(void **state)
{
	struct fp_cm_server_event first = enter(*state), second;
	int first_client = client_fd;
	struct fp_verbs_request request;

	second = enter(*state);
	ask(&request, SECRET, 0, NULL);
	await(&request.answer, FP_WIRE_BUSY);
	assert_int_equal(next_news(*state).type, FP_CM_SERVER_EVENT_REJECTED);
	leave(&second);
	client_fd = first_client;
	leave(&first);
}

/* Requests that are not finished take no place from those who come in. */
static void the_oldest_unfinished_goes(void **state)
{
	struct fp_cm_server_event news;
	struct fp_verbs_request request;

	for (unsigned i = 0; i < 5; i++) {
		ask(&request, SECRET, 0, NULL);
		await(&request.answer, -2);
		await_conns(1);
	}
	news = enter(*state);
	await_conns(1);
	leave(&news);
}

/* More than both buffers hold: each side is held up by the other, and no byte is lost. */
static void bytes_go_both_ways(void **state)
{
	static uint8_t out[1 << 20], in[sizeof(out)];
	struct fp_cm_server_event news = enter(*state);

	for (unsigned way = 0; way < 2; way++) {
		int from = way ? news.fd : client_fd, to = way ? client_fd : news.fd;
		size_t sent = 0, got = 0;

		for (size_t i = 0; i < sizeof(out); i++)
			out[i] = (uint8_t)(i * 7 + i / 4096 + way);
		for (;;) { /* until it is full all the way */
			struct pollfd p = {.fd = from, .events = POLLOUT};

			if (sent == sizeof(out) || poll(&p, 1, 100) == 0)
				break;
			sent +=
			    (size_t)send(from, out + sent, sizeof(out) - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
		}
		assert_true(sent < sizeof(out));
		while (got < sizeof(out)) {
			struct pollfd p[2] = {{.fd = sent < sizeof(out) ? from : -1, .events = POLLOUT},
			                      {.fd = to, .events = POLLIN}};

			assert_true(poll(p, 2, PATIENCE_MS) > 0);
			if (p[0].revents)
				sent += (size_t)send(from, out + sent, sizeof(out) - sent,
				                     MSG_DONTWAIT | MSG_NOSIGNAL);
			if (p[1].revents)
				got += (size_t)recv(to, in + got, sizeof(in) - got, MSG_DONTWAIT);
		}
		assert_memory_equal(in, out, sizeof(out));
	}
	leave(&news);
}

/* What came before the end is read before the end. */
static void the_end_of_a_connection(void **state)
{
	struct fp_cm_server_event news = enter(*state);
	char byte[2];

	assert_int_equal(send(client_fd, "x", 1, 0), 1);
	happens((struct fp_verbs_event){.type = FP_VERBS_EV_DISCONNECTED, .conn = last_conn});
	assert_int_equal(recv(news.fd, byte, 2, MSG_WAITALL), 1);
	await_conns(0);
	leave(&news);
}

static void what_broke_a_control_connection_is_told(void **state)
{
	struct fp_cm_server_event news = enter(*state), told;

	stream_why = "said by the device";
	shutdown(client_fd, SHUT_RDWR);
	told = next_news(*state);
	assert_int_equal(told.type, FP_CM_SERVER_EVENT_BROKEN);
	assert_string_equal(told.why, "said by the device");
	assert_string_equal(told.who, "10.0.0.2:4");
	stream_why = NULL;
	leave(&news);
}

/* What the daemon said last goes out when it closes its end. */
static void the_daemon_closes(void **state)
{
	struct fp_cm_server_event news = enter(*state);
	char byte[2];

	assert_int_equal(send(news.fd, "x", 1, 0), 1);
	shutdown(news.fd, SHUT_RDWR);
	await_conns(0);
	assert_int_equal(recv(client_fd, byte, 2, MSG_DONTWAIT), 1);
	leave(&news);
}

static void links_need_the_token(void **state)
{
	static const uint8_t token[FP_WIRE_TOKEN_BYTES] = {1}, wrong[FP_WIRE_TOKEN_BYTES] = {2};
	struct fp_cm_server_event news = enter(*state);
	struct fp_verbs_request request;

	fp_cm_server_peer_admit(news.peer, 7, token);
	ask(&request, NULL, 7, wrong);
	await(&request.answer, FP_WIRE_DENIED);
	ask(&request, NULL, 8, token);
	await(&request.answer, FP_WIRE_DENIED);
	ask(&request, NULL, 7, token);
	await(&request.answer, -2);
	await_conns(2);
	assert_int_equal(fp_cm_server_peer_queue_pairs(news.peer), 2);
	fp_cm_server_peer_fence(news.peer);
	assert_int_equal(fp_cm_server_peer_queue_pairs(news.peer), 1);
	assert_int_equal(n_conns, 1);
	ask(&request, NULL, 7, token);
	await(&request.answer, FP_WIRE_DENIED);
	leave(&news);
}

static void a_link_that_breaks_is_told(void **state)
{
	static const uint8_t token[FP_WIRE_TOKEN_BYTES] = {1};
	struct fp_cm_server_event news = enter(*state), told;
	struct fp_cm_server_counts counts;
	struct fp_verbs_request request;

	fp_cm_server_peer_admit(news.peer, 7, token);
	for (unsigned i = 0; i < 2; i++) {
		ask(&request, NULL, 7, token);
		await(&request.answer, -2);
		await_conns(2);
		pthread_mutex_lock(&lock);
		last_conn->flushed = true;
		if (i == 0)
			eventfd_write(last_conn->fd, 1);
		pthread_mutex_unlock(&lock);
		if (i == 1) /* it is found out also when the client leaves at once */
			happens((struct fp_verbs_event){.type = FP_VERBS_EV_DISCONNECTED, .conn = last_conn});
		told = next_news(*state);
		assert_int_equal(told.type, FP_CM_SERVER_EVENT_DENIED);
		assert_int_equal(told.session_id, 7);
		await_conns(1);
	}
	ask(&request, NULL, 7, token);
	await(&request.answer, -2);
	await_conns(2);
	happens((struct fp_verbs_event){.type = FP_VERBS_EV_DISCONNECTED, .conn = last_conn});
	await_conns(1);
	fp_cm_server_counts(*state, &counts);
	assert_int_equal(counts.denied, 2);
	leave(&news);
}

static void queue_pairs_by_hand(void **state)
{
	static const enum fp_verbs_access kinds[] = {FP_VERBS_REMOTE, FP_VERBS_REMOTE_READ};
	struct fp_verbs_address client = {.qpn = 66}, own;
	struct fp_verbs_region region = {0};
	struct fp_cm_server_link *link, *more;
	struct fp_cm_server_peer *peer;
	char memory[8];

	assert_int_equal(fp_cm_server_peer_new(*state, "10.0.0.3:9", &peer), 0);
	for (unsigned i = 0; i < FP_ARRAY_LEN(kinds); i++) {
		fp_cm_server_peer_deregister(peer, &region);
		assert_int_equal(fp_cm_server_peer_register(peer, memory, sizeof(memory), kinds[i], &region),
		                 0);
		assert_int_equal(last_access, kinds[i]);
		assert_int_equal(fp_cm_server_peer_regions(peer), 1);
	}
	assert_int_equal(fp_cm_server_peer_connect(peer, &client, &own, &link), 0);
	assert_int_equal(own.qpn, 77);
	client.qpn = 65;
	assert_int_equal(fp_cm_server_peer_connect(peer, &client, &own, &more), -EINVAL);
	client.qpn = 66;
	assert_int_equal(fp_cm_server_peer_connect(peer, &client, &own, &more), 0);
	assert_int_equal(n_conns, 2);
	fp_cm_server_link_close(link);
	assert_int_equal(n_conns, 1);
	fp_cm_server_peer_end(peer);
	assert_int_equal(n_conns, 0);
	assert_int_equal(fp_cm_server_peer_connect(peer, &client, &own, &link), -ECONNRESET);
	fp_cm_server_peer_deregister(peer, &region);
	fp_cm_server_peer_unref(peer);
	fp_cm_server_link_close(more);
}

static void a_device_goes(void **state)
{
	struct fp_cm_server_event news = enter(*state);
	struct fp_cm_server_counts counts;
	char byte;

	happens((struct fp_verbs_event){.type = FP_VERBS_EV_DEVICE_GONE});
	happens((struct fp_verbs_event){.type = FP_VERBS_EV_DEVICE_GONE, .conn = last_conn});
	assert_int_equal(next_news(*state).type, FP_CM_SERVER_EVENT_DEVICE);
	assert_int_equal(recv(news.fd, &byte, 1, 0), 0);
	await(&n_listeners, 0);
	fp_cm_server_counts(*state, &counts);
	assert_int_equal(counts.listeners_down, 1);
	leave(&news);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define on(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	    cmocka_unit_test(opening_fails_by_name),
	    on(strangers_get_no_queue_pair),
	    on(no_more_than_allowed),
	    on(the_oldest_unfinished_goes),
	    on(bytes_go_both_ways),
	    on(the_end_of_a_connection),
	    on(what_broke_a_control_connection_is_told),
	    on(the_daemon_closes),
	    on(links_need_the_token),
	    on(a_link_that_breaks_is_told),
	    on(queue_pairs_by_hand),
	    on(a_device_goes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
