/*
 * The rdma_cm server: what it admits, refuses, reports and destroys. No device: see
 * cm_server_rig.h.
 */
#include "cm_server_rig.h"

static void opening_fails_by_name(void **state)
{
	const struct sockaddr_storage addresses[2] = {address_of(OWN, 7461), address_of(OWN + 1, 7461)};
	const struct fp_cm_server_options options = {.listen = addresses, .n_listen = 2};
	struct fp_cm_server *server = NULL;
	unsigned failed;

	n_devices = 0;
	load_result = -ELIBACC;
	assert_int_equal(fp_cm_server_open(&options, &server, &failed), -ELIBACC);
	load_result = 0;
	assert_int_equal(fp_cm_server_open(&options, &server, &failed), -ENODEV);
	assert_int_equal(failed, 2);
	n_devices = 1;
	listen_result = -EADDRINUSE;
	assert_int_equal(fp_cm_server_open(&options, &server, &failed), -EADDRINUSE);
	assert_int_equal(failed, 0);
	assert_null(server);
	listen_result = 0;
}

static void strangers_get_no_queue_pair(void **state)
{
	struct fp_verbs_event nonsense = {.type = FP_VERBS_EV_REQUEST, .private_len = 48};
	struct fp_cm_server_counts counts;

	assert_int_equal(ask(*state, 7, token), FP_WIRE_DENIED);
	assert_int_equal(told.type, FP_CM_SERVER_EVENT_REJECTED);
	memset(nonsense.private_data, 0xff, sizeof(nonsense.private_data));
	happens(*state, nonsense);
	assert_int_equal(last_answer, FP_WIRE_MALFORMED);
	assert_non_null(strstr(told.why, "protocol"));
	fp_cm_server_counts(*state, &counts);
	assert_int_equal(counts.rejected, 2);
	assert_int_equal(counts.queue_pairs, 0);
}

static void sessions_come_by_its_addresses(void **state)
{
	const struct sockaddr_storage other = address_of(OWN + 1, 7461);
	struct fp_cm_server_peer *peer;

	assert_int_equal(fp_cm_server_port(*state), 7462);
	assert_int_equal(fp_cm_server_peer_new(*state, (const struct sockaddr *)&other, "10.0.0.2:4", &peer),
	                 -EOPNOTSUPP);
	leave(enter(*state, 7));
}

static void links_need_the_token(void **state)
{
	static const uint8_t wrong[FP_WIRE_TOKEN_BYTES] = {2};
	struct fp_cm_server_peer *peer = enter(*state, 7);

	assert_int_equal(ask(*state, 7, wrong), FP_WIRE_DENIED);
	assert_int_equal(ask(*state, 8, token), FP_WIRE_DENIED);
	assert_int_equal(ask(*state, 7, token), -2);
	assert_int_equal(fp_cm_server_peer_queue_pairs(peer), 1);
	fp_cm_server_peer_end(peer);
	assert_int_equal(fp_cm_server_peer_queue_pairs(peer), 0);
	assert_int_equal(n_conns, 0);
	assert_int_equal(ask(*state, 7, token), FP_WIRE_DENIED);
	leave(peer);
}

static void no_more_links_than_allowed(void **state)
{
	struct fp_cm_server_peer *peer = enter(*state, 7), *other = enter(*state, 8);

	for (unsigned i = 0; i < FP_WIRE_MAX_LINKS; i++)
		assert_int_equal(ask(*state, 7, token), -2);
	assert_int_equal(ask(*state, 7, token), FP_WIRE_BUSY);
	assert_int_equal(ask(*state, 8, token), -2);
	leave(peer);
	assert_int_equal(n_conns, 1);
	leave(other);
}

static void a_link_that_breaks_is_told(void **state)
{
	struct fp_cm_server_peer *peer = enter(*state, 7);
	struct fp_cm_server_counts counts;

	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ask(*state, 7, token), -2);
		last_conn->flushed = true;
		told = (struct fp_cm_server_event){0};
		if (i == 0) {
			eventfd_write(last_conn->fd, 1);
			fp_cm_server_serve(*state);
		} else {
			/* The break is noticed also if the client disconnects at once. */
			happens(*state,
			        (struct fp_verbs_event){.type = FP_VERBS_EV_DISCONNECTED, .conn = last_conn});
		}
		assert_int_equal(told.type, FP_CM_SERVER_EVENT_DENIED);
		assert_int_equal(told.session_id, 7);
		assert_int_equal(n_conns, 0);
	}
	assert_int_equal(ask(*state, 7, token), -2);
	happens(*state, (struct fp_verbs_event){.type = FP_VERBS_EV_DISCONNECTED, .conn = last_conn});
	assert_int_equal(n_conns, 0);
	fp_cm_server_counts(*state, &counts);
	assert_int_equal(counts.denied, 2);
	leave(peer);
}

static void queue_pairs_by_hand(void **state)
{
	static const enum fp_verbs_access kinds[] = {FP_VERBS_REMOTE, FP_VERBS_REMOTE_READ};
	struct fp_verbs_address client = {.qpn = 66}, own;
	struct fp_verbs_region region = {0};
	struct fp_cm_server_link *link, *more;
	struct fp_cm_server_peer *peer;
	char memory[8];

	assert_int_equal(fp_cm_server_peer_new(*state, NULL, "10.0.0.3:9", &peer), 0);
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

/* A session connects its queue pairs in one of two ways. The other way gives no access to it. */
static void the_two_ways_are_apart(void **state)
{
	struct fp_verbs_address client = {.qpn = 66}, own;
	struct fp_cm_server_link *link;
	struct fp_cm_server_peer *by_cm = enter(*state, 7), *by_hand;

	assert_int_equal(fp_cm_server_peer_connect(by_cm, &client, &own, &link), -EPERM);
	assert_int_equal(fp_cm_server_peer_new(*state, NULL, "10.0.0.3:9", &by_hand), 0);
	fp_cm_server_peer_admit(by_hand, 8, token);
	assert_int_equal(ask(*state, 8, token), FP_WIRE_DENIED);
	leave(by_cm);
	leave(by_hand);
}

static void a_device_goes(void **state)
{
	struct fp_cm_server_peer *peer = enter(*state, 7);
	struct fp_cm_server_counts counts;

	assert_int_equal(ask(*state, 7, token), -2);
	happens(*state, (struct fp_verbs_event){.type = FP_VERBS_EV_DEVICE_GONE});
	assert_int_equal(told.type, FP_CM_SERVER_EVENT_DEVICE);
	assert_int_equal(n_listeners, 0);
	fp_cm_server_counts(*state, &counts);
	assert_int_equal(counts.listeners_down, 1);
	happens(*state, (struct fp_verbs_event){.type = FP_VERBS_EV_DEVICE_GONE, .conn = last_conn});
	assert_int_equal(n_conns, 0);
	device_dead = true;
	happens(*state, (struct fp_verbs_event){.type = FP_VERBS_EV_NONE});
	assert_int_equal(told.type, FP_CM_SERVER_EVENT_LOST);
	assert_int_equal(told.session_id, 7);
	n_told = 0;
	happens(*state, (struct fp_verbs_event){.type = FP_VERBS_EV_NONE});
	assert_int_equal(n_told, 0); /* told only once */
	leave(peer);
}

/* A failure of rdma_cm stays, so each later look meets it again. It is told only once. */
static void a_failure_is_told_once(void **state)
{
	struct fp_cm_server_peer *peer = enter(*state, 7);

	assert_int_equal(ask(*state, 7, token), -2);
	next_result = -EIO;
	happens(*state, (struct fp_verbs_event){.type = FP_VERBS_EV_NONE});
	assert_int_equal(told.type, FP_CM_SERVER_EVENT_DEVICE);
	eventfd_write(last_conn->domain->fd, 1);
	fp_cm_server_serve(*state);
	assert_int_equal(n_told, 1);
	leave(peer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define on(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	    cmocka_unit_test(opening_fails_by_name),
	    on(strangers_get_no_queue_pair),
	    on(sessions_come_by_its_addresses),
	    on(links_need_the_token),
	    on(no_more_links_than_allowed),
	    on(a_link_that_breaks_is_told),
	    on(queue_pairs_by_hand),
	    on(the_two_ways_are_apart),
	    on(a_device_goes),
	    on(a_failure_is_told_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
