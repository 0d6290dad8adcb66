/*
 * Queue pairs and devices, without a real device. This file stands in for libibverbs and librdmacm,
 * as far as the tests need. They arm and close a connection, and open and remove a device.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

#include "clock.h"
#include "rdma_options.h"
#include "verbs_internal.h"

static struct fp_verbs_device device;
static struct fp_verbs_domain domain;
static struct rdma_event_channel events;
static struct ibv_comp_channel channel;
static struct rdma_cm_event said[4]; /* events that rdma_cm will report, in order */
static unsigned n_said, n_asked, n_flushed, n_disconnected, n_rejected, n_destroyed;

static int get_cm_event(struct rdma_event_channel *from, struct rdma_cm_event **ret_event)
{
	eventfd_t n;

	n_asked++;
	if (n_said == 0) {
		errno = EAGAIN;
		return -1;
	}
	*ret_event = malloc(sizeof(**ret_event)); /* librdmacm allocates even if there is no event */
	assert_non_null(*ret_event);
	**ret_event = said[0];
	memmove(said, said + 1, --n_said * sizeof(said[0]));
	if (n_said == 0)
		eventfd_read(from->fd, &n);
	return 0;
}

static int ack_cm_event(struct rdma_cm_event *event)
{
	free(event);
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *from, struct ibv_cq **ret_cq, void **ret_user)
{
	return -1;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return 0;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	n_flushed += attr->qp_state == IBV_QPS_ERR;
	return 0;
}

static int disconnect(struct rdma_cm_id *id)
{
	n_disconnected++;
	return 0;
}

static int reject(struct rdma_cm_id *id, const void *reply, uint8_t len)
{
	n_rejected++;
	return 0;
}

static int destroy_id(struct rdma_cm_id *id)
{
	n_destroyed++;
	return 0;
}

static void destroy_event_channel(struct rdma_event_channel *closed)
{
}

static int registered_for; /* the access rights of the last registration */

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *base, size_t len, int access)
{
	static struct ibv_mr mr;

	registered_for = access;
	return &mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
	return 0;
}

/* An open device: its descriptors, and its entry in the kernel's list. */
static struct ibv_device listed = {.name = "played0", .dev_name = "uverbs77"};
static struct ibv_context opened;
static struct ibv_pd pd;

static int query_device(struct ibv_context *context, struct ibv_device_attr *ret_attr)
{
	*ret_attr = (struct ibv_device_attr){.phys_port_cnt = 3};
	return 0;
}

#define ACTIVE_PORT 2

static int query_port(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *ret_attr)
{
	((struct ibv_port_attr *)ret_attr)->state = port_num == ACTIVE_PORT ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
	return 0;
}

static struct ibv_device **get_device_list(int *ret_n)
{
	static struct ibv_device *list[] = {&listed, NULL};

	*ret_n = 1;
	return list;
}

static void free_device_list(struct ibv_device **list)
{
}

static struct ibv_context *open_device(struct ibv_device *of)
{
	return &opened;
}

static int close_device(struct ibv_context *context)
{
	return 0;
}

static const char *get_device_name(struct ibv_device *of)
{
	return of->name;
}

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	return &pd;
}

static int dealloc_pd(struct ibv_pd *freed)
{
	return 0;
}

static struct rdma_event_channel *create_event_channel(void)
{
	return &events;
}

static int create_id(struct rdma_event_channel *from, struct rdma_cm_id **ret_id, void *context,
                     enum rdma_port_space ps)
{
	static struct rdma_cm_id id;

	id = (struct rdma_cm_id){.channel = from, .context = context};
	*ret_id = &id;
	return 0;
}

static int bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
	id->verbs = &opened;
	return 0;
}

static int listen_for(struct rdma_cm_id *id, int backlog)
{
	said[0].id = id; /* the next event concerns this id */
	return 0;
}

static uint8_t rnr_retries, ack_timeout; /* the last values set for a queue pair */

static int set_option(struct rdma_cm_id *id, int level, int option, void *value, size_t len)
{
	assert_int_equal(level, RDMA_OPTION_ID);
	assert_int_equal(option, RDMA_OPTION_ID_ACK_TIMEOUT);
	assert_int_equal(len, 1);
	ack_timeout = *(uint8_t *)value;
	return 0;
}

static int accept_with(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	rnr_retries = param->rnr_retry_count;
	return 0;
}

static const struct fp_verbs_api played = {
    .ibv = {.query_device = query_device,
            .query_port = query_port,
            .get_device_list = get_device_list,
            .free_device_list = free_device_list,
            .open_device = open_device,
            .close_device = close_device,
            .get_device_name = get_device_name,
            .alloc_pd = alloc_pd,
            .dealloc_pd = dealloc_pd,
            .reg_mr = reg_mr,
            .dereg_mr = dereg_mr,
            .get_cq_event = get_cq_event,
            .req_notify_cq = req_notify_cq,
            .modify_qp = modify_qp},
    .rdma = {.get_cm_event = get_cm_event,
             .ack_cm_event = ack_cm_event,
             .create_event_channel = create_event_channel,
             .create_id = create_id,
             .bind_addr = bind_addr,
             .listen = listen_for,
             .accept = accept_with,
             .set_option = set_option,
             .disconnect = disconnect,
             .reject = reject,
             .destroy_id = destroy_id,
             .destroy_event_channel = destroy_event_channel},
};

static void say(enum rdma_cm_event_type type)
{
	said[n_said++].event = type;
	eventfd_write(events.fd, 1);
}

static struct fp_verbs_conn connected(void)
{
	return (struct fp_verbs_conn){
	    .domain = &domain, .channel = &channel, .events = &events, .wait_fd = -1};
}

static int set_up(void **state)
{
	fp_verbs_api = &played;
	events.fd = eventfd(0, EFD_NONBLOCK);
	device.dead = false;
	domain = (struct fp_verbs_domain){.device = &device, .n_refs = 1};
	n_said = n_asked = n_flushed = n_disconnected = n_rejected = n_destroyed = 0;
	memset(said, 0, sizeof(said));
	return events.fd < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
	return close(events.fd);
}

/*
 * Fault threads arm connections. They must not ask librdmacm for events, because it allocates then.
 * A fork holds the allocator's locks while it waits for fault threads.
 */
static void arming_does_not_ask_rdma_cm(void **state)
{
	struct fp_verbs_conn conn = connected();
	struct pollfd p;

	assert_int_equal(fp_verbs_arm(&conn, &p), 0);
	assert_int_equal(n_flushed, 0);
	say(RDMA_CM_EVENT_DISCONNECTED);
	assert_int_equal(fp_verbs_arm(&conn, &p), 0);
	assert_int_equal(n_flushed, 1);
	assert_int_equal(fp_verbs_arm(&conn, &p), 0);
	assert_int_equal(n_flushed, 1);
	assert_int_equal(n_asked, 0);
	assert_int_equal(fp_verbs_conn_check(&conn), -ECONNRESET);
}

/*
 * The removal of a device waits until nobody uses it. Perhaps only this connection gets the event
 * that tells of it.
 */
static void closing_hears_of_a_device_that_goes(void **state)
{
	struct fp_verbs_conn conn = connected();

	say(RDMA_CM_EVENT_DISCONNECTED);
	say(RDMA_CM_EVENT_DEVICE_REMOVAL);
	assert_false(fp_verbs_domain_dead(&domain));
	fp_verbs_cm_close(&conn);
	assert_true(fp_verbs_domain_dead(&domain));
	assert_int_equal(n_disconnected, 0);
}

static void closing_says_goodbye(void **state)
{
	struct fp_verbs_conn conn = connected();

	fp_verbs_cm_close(&conn);
	assert_int_equal(n_disconnected, 1);
}

/* In InfiniBand seven RNR retries mean no limit. With that value -ENOBUFS could never come. */
static void who_is_never_ready_is_not_waited_for(void **state)
{
	struct fp_verbs_conn conn = connected();

	conn.options = fp_rdma_conn_options(NULL);
	ack_timeout = 0;
	assert_int_equal(fp_verbs_admit(&conn, NULL, 0), 0);
	assert_in_range(rnr_retries, 1, 6);
	assert_int_equal(ack_timeout, 0); /* the fabric's default */
}

static void a_device_is_asked_for_what_was_chosen(void **state)
{
	const struct fp_rdma_options rdma = {.retry_count = 3, .ack_timeout_ns = 20 * FP_NSEC_PER_MSEC};
	struct fp_verbs_conn conn = connected();

	conn.options = fp_rdma_conn_options(&rdma);
	assert_int_equal(conn.options.retry_count, 3);
	assert_int_equal(fp_verbs_admit(&conn, NULL, 0), 0);
	assert_int_equal(ack_timeout, 13); /* 4.096 µs << 13 is 33.6 ms */
}

/* The timeout is never shorter than the chosen time. */
static void timeouts_are_powers_of_two(void **state)
{
	static const struct {
		uint64_t ns;
		uint8_t exponent;
	} cases[] = {{0, 0},          {8192, 1}, {8193, 2}, {4096ull << 16, 16}, {(4096ull << 16) + 1, 17},
	             {UINT64_MAX, 31}};

	for (size_t i = 0; i < FP_ARRAY_LEN(cases); i++) {
		struct fp_rdma_options rdma = {.ack_timeout_ns = cases[i].ns};

		assert_int_equal(fp_rdma_conn_options(&rdma).ack_timeout, cases[i].exponent);
	}
}

static int access_of(enum fp_verbs_access access)
{
	struct fp_verbs_region region;
	char byte;

	registered_for = -1;
	assert_int_equal(fp_verbs_register(&domain, &byte, 1, access, &region), 0);
	fp_verbs_deregister(&region);
	return registered_for;
}

/* A key permits only the access for which it was made. */
static void keys_allow_no_more(void **state)
{
	const int read = IBV_ACCESS_REMOTE_READ, write = IBV_ACCESS_REMOTE_WRITE;

	for (unsigned iwarp = 0; iwarp < 2; iwarp++) {
		device.limits.iwarp = iwarp;
		assert_int_equal(access_of(FP_VERBS_LOCAL), IBV_ACCESS_LOCAL_WRITE | (iwarp ? write : 0));
		assert_int_equal(access_of(FP_VERBS_REMOTE), IBV_ACCESS_LOCAL_WRITE | read | write);
		assert_int_equal(access_of(FP_VERBS_REMOTE_READ), read);
	}
	device.limits.iwarp = false;
}

/* ---- devices ---- */

static void device_opens(void)
{
	snprintf(listed.dev_path, sizeof(listed.dev_path), "/tmp/farpage-test.XXXXXX");
	assert_non_null(mkdtemp(listed.dev_path));
	opened = (struct ibv_context){.device = &listed,
	                              .cmd_fd = open("/dev/zero", O_RDWR | O_CLOEXEC),
	                              .async_fd = eventfd(0, EFD_CLOEXEC)};
	assert_true(opened.cmd_fd >= 0 && opened.async_fd >= 0);
}

/* The device is closed, but its descriptors' numbers stay in use until librdmacm closes them. */
static bool is_let_go_of(void)
{
	struct stat now;

	assert_int_equal(fstat(opened.cmd_fd, &now), 0);
	return now.st_rdev == makedev(1, 3);
}

static void device_closes(void)
{
	rmdir(listed.dev_path);
	close(opened.cmd_fd);
	close(opened.async_fd);
}

/* No connection exists, so none can get the event. */
static void a_listener_hears_of_a_device_that_goes(void **state)
{
	const struct sockaddr_in own = {.sin_family = AF_INET};
	struct fp_verbs_listener *listener;
	struct fp_verbs_event event;

	device_opens();
	assert_int_equal(fp_verbs_listener_open(&listener), 0);
	assert_int_equal(fp_verbs_listen(listener, 0, (const struct sockaddr *)&own), 0);
	assert_false(is_let_go_of());
	say(RDMA_CM_EVENT_DEVICE_REMOVAL);
	assert_int_equal(fp_verbs_listener_next(listener, &event), 0);
	assert_int_equal(event.type, FP_VERBS_EV_DEVICE_GONE);
	assert_true(is_let_go_of());
	fp_verbs_listener_close(listener);
	device_closes();
}

/*
 * Destroying an id waits until its rejection is sent. The node's loop must not wait for that, and
 * must not keep ids without limit either.
 */
static void rejecting_does_not_wait(void **state)
{
	const unsigned n_kept = 64;
	struct rdma_cm_id id = {.verbs = &opened};
	struct fp_verbs_listener *listener;
	struct fp_verbs_request request;
	struct fp_verbs_event event;

	device_opens();
	assert_int_equal(fp_verbs_listener_open(&listener), 0);
	said[0].id = &id;
	say(RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_int_equal(fp_verbs_listener_next(listener, &event), 0);
	assert_int_equal(event.type, FP_VERBS_EV_REQUEST);
	for (unsigned i = 1; i <= n_kept + 1; i++) {
		request = event.request;
		fp_verbs_reject(&request, "no", 3);
		assert_int_equal(n_rejected, i);
		assert_int_equal(n_destroyed, i > n_kept);
	}
	fp_verbs_listener_sweep(listener); /* these may be on their way yet */
	assert_int_equal(n_destroyed, 1);
	fp_verbs_listener_sweep(listener);
	assert_int_equal(n_destroyed, n_kept + 1);
	request = event.request;
	fp_verbs_reject(&request, "no", 3);
	assert_int_equal(n_destroyed, n_kept + 1);
	say(RDMA_CM_EVENT_DEVICE_REMOVAL);
	assert_int_equal(fp_verbs_listener_next(listener, &event), 0);
	assert_int_equal(n_destroyed, n_kept + 2);
	fp_verbs_listener_close(listener);
	assert_int_equal(n_destroyed, n_kept + 2);
	device_closes();
	fp_verbs_devices_check();
}

/* Opens a device by its name and port, or the first one with an active port. */
static void a_device_and_a_port_are_chosen(void **state)
{
	static const struct {
		const char *device;
		uint8_t port_num;
		int error;
	} cases[] = {{NULL, 0, 0},          {NULL, ACTIVE_PORT, 0},  {NULL, 1, -ENODEV},
	             {"played0", 0, 0},     {"played0", 3, -ENODEV}, {"played0", 9, -ENODEV},
	             {"played", 0, -ENODEV}};

	for (size_t i = 0; i < FP_ARRAY_LEN(cases); i++) {
		struct fp_verbs_domain *chosen;

		device_opens();
		assert_int_equal(fp_verbs_domain_open(cases[i].device, cases[i].port_num, &chosen),
		                 cases[i].error);
		fp_verbs_domain_unref(chosen);
		device_closes();
		fp_verbs_devices_check();
	}
}

static void remove_from_list(void)
{
	assert_int_equal(rmdir(listed.dev_path), 0);
	fp_verbs_devices_check();
}

/* Gives the device's name to another device. */
static void replace_in_list(void)
{
	char other[] = "/tmp/farpage-test.XXXXXX";

	assert_non_null(mkdtemp(other));
	assert_int_equal(rename(other, listed.dev_path), 0);
	fp_verbs_devices_check();
}

/* A device that left the kernel's list is closed with its last user, and gets no new users. */
static void what_is_not_listed_goes(void **state)
{
	void (*const ways[])(void) = {remove_from_list, replace_in_list};

	for (unsigned i = 0; i < FP_ARRAY_LEN(ways); i++) {
		for (unsigned n_used = 0; n_used < 2; n_used++) {
			struct fp_verbs_domain *used = NULL, *late = NULL;

			device_opens();
			fp_verbs_device_note(&opened);
			fp_verbs_devices_check();
			if (n_used)
				assert_int_equal(fp_verbs_domain_of(&opened, &used), 0);
			assert_false(is_let_go_of());
			ways[i]();
			if (n_used) {
				assert_true(fp_verbs_domain_dead(used));
				assert_false(is_let_go_of());
				assert_int_equal(fp_verbs_domain_of(&opened, &late), -ENODEV);
				fp_verbs_domain_unref(used);
			}
			assert_true(is_let_go_of());
			device_closes();
		}
	}
}

/* librdmacm has closed the descriptors, and their numbers belong to other files. */
static void closed_by_others(void **state)
{
	struct stat now;
	int cmd_fd, other;

	device_opens();
	fp_verbs_device_note(&opened);
	cmd_fd = opened.cmd_fd;
	other = open("/dev/full", O_RDWR | O_CLOEXEC);
	assert_int_equal(dup2(other, cmd_fd), cmd_fd);
	close(other);
	remove_from_list();
	assert_int_equal(fstat(cmd_fd, &now), 0);
	assert_int_equal(now.st_rdev, makedev(1, 7));
	device_closes();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(arming_does_not_ask_rdma_cm, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(closing_hears_of_a_device_that_goes, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(closing_says_goodbye, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(who_is_never_ready_is_not_waited_for, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_device_is_asked_for_what_was_chosen, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(timeouts_are_powers_of_two, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(keys_allow_no_more, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_device_and_a_port_are_chosen, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_listener_hears_of_a_device_that_goes, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(rejecting_does_not_wait, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(what_is_not_listed_goes, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(closed_by_others, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
