/*
 * The verbs modules over a real device, with both ends in this process. FARPAGE_TEST_RDMA names an
 * address of the device; skipped without it. Room: test/integration.
 */
#include "verbs_rig.h"

static void reads_and_writes_carry_the_bytes(void **state)
{
	uint64_t seed = test_seed(__func__);
	struct fp_verbs_completion c;
	struct fp_verbs_work chain[16];
	struct pair pair;

	pair_open(&pair);
	assert_true(fp_verbs_conn_max_reads(pair.conn) >= 1);
	fill(pair.remote_bytes, seed);
	for (unsigned i = 0; i < 16; i++) {
		chain[i] = work_of(&pair, FP_VERBS_READ, i * 16384, 16384);
		chain[i].signalled = i == 15;
	}
	assert_int_equal(fp_verbs_post(pair.conn, chain, 16), 0);
	next_completion(pair.conn, &c);
	assert_int_equal(c.status, 0);
	assert_int_equal(c.id, 15 * 16384);
	assert_memory_equal(pair.local_bytes, pair.remote_bytes, REMOTE_BYTES);

	fill(pair.local_bytes, seed + 1);
	for (unsigned round = 0; round < 20; round++) { /* enough rounds that entries are reused */
		for (unsigned i = 0; i < 16; i++) {
			chain[i] = work_of(&pair, FP_VERBS_WRITE, i * 16384, 16384);
			chain[i].signalled = i == 15;
		}
		assert_int_equal(fp_verbs_post(pair.conn, chain, 16), 0);
		next_completion(pair.conn, &c);
		assert_int_equal(c.status, 0);
	}
	assert_memory_equal(pair.local_bytes, pair.remote_bytes, REMOTE_BYTES);
	pair_close(&pair);
}

static void inline_data_arrives(void **state)
{
	struct fp_verbs_completion c;
	struct fp_verbs_work work;
	struct pair pair;

	pair_open(&pair);
	work = work_of(&pair, FP_VERBS_WRITE, 0, FP_MIN(fp_verbs_conn_max_inline(pair.conn), 32u));
	work.inline_data = true;
	work.lkey = 0;
	if (work.len_bytes) {
		fill(pair.local_bytes, 1);
		memset(pair.remote_bytes, 0, 4096);
		assert_int_equal(fp_verbs_post(pair.conn, &work, 1), 0);
		next_completion(pair.conn, &c);
		assert_int_equal(c.status, 0);
		assert_memory_equal(pair.remote_bytes, pair.local_bytes, work.len_bytes);
	}
	pair_close(&pair);
}

#define WINDOW  16 /* requests under way at the same time */
#define BUSY_NS (100 * FP_NSEC_PER_MSEC)

/* Posts a window of requests and collects all completions. */
static void run_window(const struct pair *pair, enum fp_verbs_op op, uint32_t len)
{
	struct fp_verbs_work chain[WINDOW];
	struct fp_verbs_completion c;

	for (unsigned i = 0; i < WINDOW; i++) {
		chain[i] = work_of(pair, op, i * len, len);
		chain[i].signalled = i == WINDOW - 1;
	}
	assert_int_equal(fp_verbs_post(pair->conn, chain, WINDOW), 0);
	next_completion(pair->conn, &c);
	assert_int_equal(c.status, 0);
}

static void run_operation(const struct pair *pair, enum fp_verbs_op op, uint32_t len)
{
	bool reads = op == FP_VERBS_READ;
	uint8_t *from = reads ? pair->remote_bytes : pair->local_bytes;
	uint8_t *to = reads ? pair->local_bytes : pair->remote_bytes;
	uint64_t start_ns, elapsed_ns, n = 0;
	double per_s;

	fill(from, fp_clock_ns());
	memset(to, 0, WINDOW * len);
	start_ns = fp_clock_ns();
	do {
		run_window(pair, op, len);
		n += WINDOW;
		elapsed_ns = fp_clock_ns() - start_ns;
	} while (elapsed_ns < BUSY_NS);
	if (!iwarp || reads) /* on iWARP a WRITE completes as soon as it was sent */
		assert_memory_equal(to, from, WINDOW * len);
	per_s = (double)n * FP_NSEC_PER_SEC / (double)elapsed_ns;
	print_message("%s: %s of %u bytes, %d at a time: %.0f/s, %.2f MiB/s\n",
	              iwarp ? "iWARP" : "RoCE, InfiniBand", reads ? "READ" : "WRITE", len, WINDOW, per_s,
	              per_s * len / (1 << 20));
}

static void each_operation_carries_the_bytes(void **state)
{
	static const uint32_t lens[] = {64, 4096, REMOTE_BYTES / WINDOW};
	struct pair pair;

	pair_open(&pair);
	for (unsigned k = 0; k < FP_ARRAY_LEN(lens); k++) {
		run_operation(&pair, FP_VERBS_READ, lens[k]);
		run_operation(&pair, FP_VERBS_WRITE, lens[k]);
	}
	pair_close(&pair);
}

static unsigned count_completions(struct fp_verbs_conn *conn)
{
	struct fp_verbs_completion c;

	if (fp_verbs_poll(conn, &c, 1) == 0)
		return 0;
	assert_int_equal(c.status, 0);
	return 1;
}

static void a_full_queue_pushes_back(void **state)
{
	unsigned n_posted = 0, n_done = 0;
	struct fp_verbs_work work;
	struct pair pair;
	int r;

	pair_open(&pair);
	work = work_of(&pair, FP_VERBS_READ, 0, 64);
	while ((r = fp_verbs_post(pair.conn, &work, 1)) == 0)
		n_posted++;
	assert_int_equal(r, -EAGAIN);
	assert_int_equal(n_posted, options.send_depth);
	while (n_done < n_posted)
		n_done += count_completions(pair.conn);
	assert_int_equal(fp_verbs_post(pair.conn, &work, 1), 0);
	while (n_done < n_posted + 1)
		n_done += count_completions(pair.conn);
	pair_close(&pair);
}

/* The node's end notices the break. Over rxe its receive is flushed; over siw an event tells. */
static void node_notices(const struct pair *thief)
{
	struct pollfd p = {.fd = fp_verbs_domain_event_fd(thief->node_domain), .events = POLLIN};
	struct fp_verbs_completion c;
	const char *text;
	uint32_t qpn;

	if (!iwarp) {
		next_completion(thief->node, &c);
		assert_int_equal(c.id, 9);
		assert_int_equal(c.status, -ECANCELED);
		return;
	}
	/* the thief may see its requests flushed before the node's device reports the event */
	assert_int_equal(poll(&p, 1, 20000), 1);
	assert_int_equal(fp_verbs_domain_event(thief->node_domain, &qpn, &text), 1);
	assert_int_equal(qpn, fp_verbs_conn_qpn(thief->node));
}

/* Law 6: tries keys of another session's domain, and of a lease that was given back. */
static void foreign_and_stale_keys_open_nothing(void **state)
{
	struct pair victim, thief = {0};
	struct fp_verbs_completion c;
	struct fp_verbs_event event;
	struct fp_verbs_work work, recv;

	pair_open(&victim);
	thief.listener = victim.listener;
	connect_both(&thief, &options);
	pair_memory(&thief);
	memset(victim.remote_bytes, 's', 4096);
	memset(thief.local_bytes, 0, 4096);
	recv = recv_of(&thief.remote, 9);
	assert_int_equal(fp_verbs_post_recv(thief.node, &recv), 0);
	work = work_of(&thief, FP_VERBS_READ, 0, 4096);
	work.remote = (uintptr_t)victim.remote_bytes;
	work.rkey = victim.remote.rkey;
	assert_int_equal(fp_verbs_post(thief.conn, &work, 1), 0);
	next_completion(thief.conn, &c);
	print_message("a foreign key: %s\n", fp_verbs_status_text(c.wc_status));
	assert_true(c.status < 0);
	if (!iwarp)
		assert_int_equal(c.status, -EACCES);
	assert_int_equal(thief.local_bytes[0], 0);
	node_notices(&thief);
	/* The victim's connection goes on. A revoked key gives no access either. */
	work = work_of(&victim, FP_VERBS_READ, 0, 4096);
	assert_int_equal(fp_verbs_post(victim.conn, &work, 1), 0);
	next_completion(victim.conn, &c);
	assert_int_equal(c.status, 0);
	assert_int_equal(victim.local_bytes[0], 's');
	fp_verbs_deregister(&victim.remote);
	assert_int_equal(fp_verbs_post(victim.conn, &work, 1), 0);
	next_completion(victim.conn, &c);
	print_message("a stale key: %s\n", fp_verbs_status_text(c.wc_status));
	assert_true(c.status < 0);

	while (fp_verbs_listener_next(victim.listener, &event) == 0 && event.type != FP_VERBS_EV_NONE)
		;
	thief.listener = NULL;
	pair_close(&thief);
	pair_close(&victim);
}

static void a_peer_that_goes_is_noticed(void **state)
{
	struct fp_verbs_event event;
	struct fp_verbs_completion c;
	struct fp_verbs_work recv;
	uint64_t until;
	struct pair pair;

	pair_open(&pair);
	next_event(pair.listener, FP_VERBS_EV_ESTABLISHED, &event);
	assert_ptr_equal(event.conn, pair.node);
	recv = recv_of(&pair.local, 5);
	assert_int_equal(fp_verbs_post_recv(pair.conn, &recv), 0);
	fp_verbs_conn_close(pair.node);
	pair.node = NULL;
	next_completion(pair.conn, &c); /* flushed when the disconnect arrives */
	assert_int_equal(c.status, -ECANCELED);
	until = fp_clock_ns() + PATIENCE_NS; /* soft iWARP flushes before it reports the disconnect */
	while (fp_verbs_conn_check(pair.conn) == 0)
		assert_true(fp_clock_ns() < until);
	assert_int_equal(fp_verbs_post(pair.conn, &(struct fp_verbs_work){.op = FP_VERBS_WRITE}, 1),
	                 -ECONNRESET);
	pair_close(&pair);

	pair_open(&pair);
	next_event(pair.listener, FP_VERBS_EV_ESTABLISHED, &event);
	fp_verbs_conn_close(pair.conn);
	pair.conn = NULL;
	next_event(pair.listener, FP_VERBS_EV_DISCONNECTED, &event);
	assert_ptr_equal(event.conn, pair.node);
	pair_close(&pair);
}

static void refusals_say_why(void **state)
{
	struct connecting c = {.options = &options};
	struct fp_verbs_domain *domain;
	struct fp_verbs_event event;
	struct pair pair = {0};
	pthread_t thread;
	uint16_t port;

	listen_there(&pair.listener);
	port = c.port = fp_verbs_listener_port(pair.listener, 0);
	assert_int_equal(fp_verbs_domain_to(address, fp_clock_ns() + PATIENCE_NS, &domain), 0);
	c.domain = domain;
	assert_int_equal(pthread_create(&thread, NULL, connect_main, &c), 0);
	next_event(pair.listener, FP_VERBS_EV_REQUEST, &event);
	fp_verbs_reject(&event.request, "no", 3);
	pthread_join(thread, NULL);
	assert_int_equal(c.status, -ECONNREFUSED);
	fp_verbs_listener_close(pair.listener);

	c = (struct connecting){.options = &options, .port = port, .domain = domain};
	connect_main(&c);
	assert_int_equal(c.status, -ECONNREFUSED);
	fp_verbs_domain_unref(domain);
}

static void flushed_work_ends_at_once(void **state)
{
	struct fp_verbs_completion c;
	struct fp_verbs_work recv;
	struct pair pair;

	pair_open(&pair);
	recv = recv_of(&pair.local, 1);
	assert_int_equal(fp_verbs_post_recv(pair.conn, &recv), 0);
	assert_int_equal(fp_verbs_conn_flush(pair.conn), 0);
	next_completion(pair.conn, &c);
	assert_int_equal(c.status, -ECANCELED);
	assert_int_equal(fp_verbs_post(pair.conn, &(struct fp_verbs_work){.op = FP_VERBS_WRITE}, 1),
	                 -ECONNRESET);
	pair_close(&pair);
}

static void connected_by_hand(void **state)
{
	struct fp_verbs_address own, node;
	struct fp_verbs_completion c;
	struct fp_verbs_work work;
	struct pair pair = {0};
	int r = fp_verbs_domain_open(NULL, 0, &pair.domain);

	if (r == -ENODEV) {
		print_message("no device here can be connected by hand\n");
		skip();
	}
	assert_int_equal(r, 0);
	assert_int_equal(fp_verbs_domain_open(NULL, 0, &pair.node_domain), 0);
	assert_int_equal(fp_verbs_manual_open(pair.domain, &options, &pair.conn, &own), 0);
	assert_int_equal(fp_verbs_manual_open(pair.node_domain, &options, &pair.node, &node), 0);
	assert_int_equal(fp_verbs_manual_connect(pair.node, &own), 0);
	assert_int_equal(fp_verbs_manual_connect(pair.conn, &node), 0);
	pair_memory(&pair);
	fill(pair.remote_bytes, 3);
	work = work_of(&pair, FP_VERBS_READ, 0, REMOTE_BYTES);
	assert_int_equal(fp_verbs_post(pair.conn, &work, 1), 0);
	next_completion(pair.conn, &c);
	assert_int_equal(c.status, 0);
	assert_memory_equal(pair.local_bytes, pair.remote_bytes, REMOTE_BYTES);
	pair_close(&pair);
}

/* The state of a queue pair as the device reports it. The product never reads it. */
static struct ibv_qp_attr queried(struct fp_verbs_conn *conn)
{
	int (*query_qp)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	query_qp = (typeof(query_qp))dlsym(dlopen("libibverbs.so.1", RTLD_NOW), "ibv_query_qp");
	assert_non_null(query_qp);
	assert_int_equal(query_qp(conn->qp, &attr,
	                          IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_CAP, &init),
	                 0);
	return attr;
}

/*
 * A queue pair has the retries, timeout and depth of its options, also if it is connected without
 * rdma_cm.
 */
static void queue_pairs_are_as_chosen(void **state)
{
	const struct fp_rdma_options mine = {
	    .retry_count = 3, .ack_timeout_ns = 20 * FP_NSEC_PER_MSEC, .send_depth = 33};
	struct fp_verbs_conn_options how = fp_rdma_link_conn_options(&mine);
	struct fp_verbs_address own, node;
	struct pair pair = {0};

	listen_there(&pair.listener);
	how.recv_depth = 1;
	how.responder = true;
	connect_both(&pair, &how);
	pair_memory(&pair);
	assert_true(queried(pair.conn).cap.max_send_wr >= 33);
	if (!fp_verbs_domain_limits(pair.domain)->iwarp) {
		for (unsigned i = 0; i < 2; i++) {
			struct ibv_qp_attr attr = queried(i ? pair.node : pair.conn);

			assert_int_equal(attr.retry_cnt, 3);
			assert_int_equal(attr.rnr_retry, 6);
			assert_int_equal(attr.timeout, 13);
		}
		fp_verbs_conn_close(fp_take_ptr(pair.conn));
		fp_verbs_conn_close(fp_take_ptr(pair.node));
		assert_int_equal(fp_verbs_manual_open(pair.domain, &how, &pair.conn, &own), 0);
		assert_int_equal(fp_verbs_manual_open(pair.node_domain, &options, &pair.node, &node), 0);
		assert_int_equal(fp_verbs_manual_connect(pair.conn, &node), 0);
		assert_int_equal(queried(pair.conn).retry_cnt, 3);
		assert_int_equal(queried(pair.conn).timeout, 13);
	}
	pair_close(&pair);
}

/* Opens the device by name and port, even if the first device would be the same. */
static void a_device_is_chosen_by_name(void **state)
{
	struct fp_verbs_domain *first, *named;
	char device[64], text[512];

	if (fp_verbs_domain_open(NULL, 0, &first) == -ENODEV)
		skip();
	snprintf(device, sizeof(device), "%s", fp_verbs_domain_limits(first)->device);
	assert_int_equal(fp_verbs_domain_open(device, 1, &named), 0);
	assert_string_equal(fp_verbs_domain_limits(named)->device, device);
	fp_verbs_domain_unref(named);
	assert_int_equal(fp_verbs_domain_open(device, 2, &named), -ENODEV);
	assert_int_equal(fp_verbs_domain_open("nosuch0", 0, &named), -ENODEV);
	fp_rdma_explain_device(&(struct fp_rdma_options){.device = (char *)"nosuch0"}, text, sizeof(text));
	print_message("%s\n", text);
	assert_non_null(strstr(text, "no RDMA device 'nosuch0'"));
	assert_non_null(strstr(text, device));
	fp_verbs_domain_unref(first);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(reads_and_writes_carry_the_bytes),
	    cmocka_unit_test(inline_data_arrives),
	    cmocka_unit_test(each_operation_carries_the_bytes),
	    cmocka_unit_test(a_full_queue_pushes_back),
	    cmocka_unit_test(foreign_and_stale_keys_open_nothing),
	    cmocka_unit_test(a_peer_that_goes_is_noticed),
	    cmocka_unit_test(refusals_say_why),
	    cmocka_unit_test(flushed_work_ends_at_once),
	    cmocka_unit_test(connected_by_hand),
	    cmocka_unit_test(queue_pairs_are_as_chosen),
	    cmocka_unit_test(a_device_is_chosen_by_name),
	};

	address = getenv("FARPAGE_TEST_RDMA");
	if (!address) {
		printf("no RDMA device: FARPAGE_TEST_RDMA is not set\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
