/*
 * Queue pairs without a device: libibverbs and librdmacm are played by this file, as far as a connection
 * needs them that is armed, and closed.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "verbs_internal.h"

static struct fp_verbs_device device;
static struct fp_verbs_domain domain;
static struct rdma_event_channel events;
static struct ibv_comp_channel channel;
static struct rdma_cm_event said[4]; /* what rdma_cm has to say, the next first */
static unsigned n_said, n_asked, n_flushed, n_disconnected;

static int get_cm_event(struct rdma_event_channel *from, struct rdma_cm_event **ret_event)
{
	eventfd_t n;

	n_asked++;
	if (n_said == 0) {
		errno = EAGAIN;
		return -1;
	}
	*ret_event = malloc(sizeof(**ret_event)); /* as librdmacm does, whether or not there is one */
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

static int destroy_id(struct rdma_cm_id *id)
{
	return 0;
}

static void destroy_event_channel(struct rdma_event_channel *closed)
{
}

static int registered_for; /* what a device was asked to allow */

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

static const struct fp_verbs_api played = {
    .ibv = {.reg_mr = reg_mr,
            .dereg_mr = dereg_mr,
            .get_cq_event = get_cq_event,
            .req_notify_cq = req_notify_cq,
            .modify_qp = modify_qp},
    .rdma = {.get_cm_event = get_cm_event,
             .ack_cm_event = ack_cm_event,
             .disconnect = disconnect,
             .destroy_id = destroy_id,
             .destroy_event_channel = destroy_event_channel},
};

static void say(enum rdma_cm_event_type type)
{
	said[n_said++] = (struct rdma_cm_event){.event = type};
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
	n_said = n_asked = n_flushed = n_disconnected = 0;
	return events.fd < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
	return close(events.fd);
}

/* Fault threads arm. librdmacm allocates whenever it is asked for an event, and a fork holds the allocator's
 * locks while it waits for them. */
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

/* A device that is taken away waits until it was let go of, and perhaps only this connection is told. */
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

static int access_of(enum fp_verbs_access access)
{
	struct fp_verbs_region region;
	char byte;

	registered_for = -1;
	assert_int_equal(fp_verbs_register(&domain, &byte, 1, access, &region), 0);
	fp_verbs_deregister(&region);
	return registered_for;
}

/* A key allows what it is for, and nothing more. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(arming_does_not_ask_rdma_cm, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(closing_hears_of_a_device_that_goes, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(closing_says_goodbye, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(keys_allow_no_more, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
