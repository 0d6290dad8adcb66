/*
 * Connections without rdma_cm, for fabrics without IP addresses. The two ends exchange the
 * addresses of their queue pairs over another channel. Then each end takes its own queue pair from
 * INIT to RTS. Room: transport; see verbs.h. iWARP has no such connections.
 */
#include "verbs.h"

#include <errno.h>
#include <string.h>

#include "auth.h"
#include "cleanup.h"
#include "verbs_internal.h"

#define RETRY_MAX 7

/* ---- devices and their ports ---- */

static int query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *ret_attr)
{
	memset(ret_attr, 0, sizeof(*ret_attr));
	return fp_verbs_api->ibv.query_port(context, port_num, (struct _compat_ibv_port_attr *)ret_attr);
}

/*
 * Returns the number of an active port: `wanted`, or the first one if `wanted` is 0. Returns 0 if
 * there is none.
 */
static uint8_t find_port(struct ibv_context *context, uint8_t wanted, struct ibv_port_attr *ret_attr)
{
	struct ibv_device_attr device;

	if (fp_verbs_api->ibv.query_device(context, &device))
		return 0;
	for (uint8_t port_num = 1; port_num <= device.phys_port_cnt; port_num++)
		if ((!wanted || port_num == wanted) && query_port(context, port_num, ret_attr) == 0 &&
		    ret_attr->state == IBV_PORT_ACTIVE)
			return port_num;
	return 0;
}

/* Opens a device if it has the name and an active port, and is not iWARP. */
static bool device_suits(struct ibv_device *device, const char *name, uint8_t port_num,
                         struct ibv_context **ret_context)
{
	const char *own = fp_verbs_api->ibv.get_device_name(device);
	struct ibv_port_attr port;
	struct ibv_context *context;
	bool open;

	if ((name && strcmp(name, own)) || device->transport_type == IBV_TRANSPORT_IWARP)
		return false;
	open = fp_verbs_device_is_open(own, &context);
	if (!open)
		context = fp_verbs_api->ibv.open_device(device);
	if (!context)
		return false;
	if (find_port(context, port_num, &port)) {
		*ret_context = context;
		return true;
	}
	if (!open)
		fp_verbs_api->ibv.close_device(context);
	return false;
}

int fp_verbs_domain_open(const char *device, uint8_t port_num, struct fp_verbs_domain **ret_domain)
{
	struct ibv_context *context = NULL;
	struct ibv_device **list;
	int n = 0, r = fp_verbs_load();

	*ret_domain = NULL;
	if (r < 0)
		return r;
	list = fp_verbs_api->ibv.get_device_list(&n);
	for (int i = 0; list && i < n; i++)
		if (device_suits(list[i], device, port_num, &context))
			break;
	r = context ? fp_verbs_domain_of(context, ret_domain) : -ENODEV;
	if (list)
		fp_verbs_api->ibv.free_device_list(list);
	return r;
}

/* ---- queue pairs ---- */

static int create_by_hand(struct fp_verbs_conn *conn, struct ibv_qp_init_attr *attr)
{
	conn->qp = fp_verbs_api->ibv.create_qp(conn->domain->pd, attr);
	return conn->qp ? 0 : errno ? -errno : -EIO;
}

/*
 * The address of a port on an Ethernet fabric. Best is a RoCE v2 address with an IPv4 address in
 * it, because every node of a subnet has one. Next best is the first address of RoCE v2, then the
 * first of all.
 */
static int find_gid(struct ibv_context *context, uint8_t port_num, struct ibv_gid_entry *ret_gid)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	struct ibv_gid_entry entry;
	int best = -1;

	for (uint32_t i = 0; i < 64; i++) {
		int rank = 0;

		if (fp_verbs_api->ibv.query_gid_ex(context, port_num, i, &entry, 0, sizeof(entry)))
			continue;
		if (entry.gid_type == IBV_GID_TYPE_ROCE_V2)
			rank = memcmp(entry.gid.raw, mapped, sizeof(mapped)) ? 1 : 2;
		if (rank > best) {
			best = rank;
			*ret_gid = entry;
		}
	}
	return best < 0 ? -EADDRNOTAVAIL : 0;
}

static int address_of(struct fp_verbs_conn *conn, struct fp_verbs_address *ret_own)
{
	struct ibv_context *context = conn->domain->device->context;
	struct ibv_port_attr port;
	struct ibv_gid_entry gid;
	int r;

	conn->port_num = find_port(context, conn->options.port_num, &port);
	if (!conn->port_num)
		return -ENODEV;
	r = fp_auth_random(&conn->psn, sizeof(conn->psn));
	if (r < 0)
		return r;
	conn->psn &= 0xffffff;
	*ret_own = (struct fp_verbs_address){
	    .qpn = conn->qp->qp_num,
	    .psn = conn->psn,
	    .lid = port.lid,
	    .mtu = (uint8_t)port.active_mtu,
	    .n_reads = (uint8_t)(conn->options.responder ? conn->domain->device->n_answers : 0),
	};
	r = find_gid(context, conn->port_num, &gid);
	conn->has_gid = r == 0;
	if (conn->has_gid) {
		conn->gid_index = (uint8_t)gid.gid_index;
		memcpy(ret_own->gid, gid.gid.raw, sizeof(ret_own->gid));
	}
	return port.link_layer == IBV_LINK_LAYER_ETHERNET ? r : 0;
}

int fp_verbs_manual_open(struct fp_verbs_domain *domain, const struct fp_verbs_conn_options *options,
                         struct fp_verbs_conn **ret_conn, struct fp_verbs_address *ret_own)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	int r = fp_verbs_conn_new(domain, options, &conn);

	if (r == 0)
		r = fp_verbs_conn_create_qp(conn, create_by_hand);
	if (r == 0)
		r = address_of(conn, ret_own);
	if (r < 0)
		return r;
	attr.port_num = conn->port_num;
	attr.qp_access_flags = options->responder ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0;
	r = fp_verbs_conn_modify(conn, &attr,
	                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (r < 0)
		return r;
	*ret_conn = fp_take_ptr(conn);
	return 0;
}

static int to_rtr(struct fp_verbs_conn *conn, const struct fp_verbs_address *peer, enum ibv_mtu mtu)
{
	static const uint8_t no_gid[sizeof(peer->gid)];
	struct ibv_qp_attr attr = {
	    .qp_state = IBV_QPS_RTR,
	    .path_mtu = FP_MIN(mtu, (enum ibv_mtu)peer->mtu),
	    .dest_qp_num = peer->qpn,
	    .rq_psn = peer->psn,
	    .max_dest_rd_atomic = (uint8_t)(conn->options.responder ? conn->domain->device->n_answers : 0),
	    .min_rnr_timer = 12,
	    .ah_attr = {.dlid = peer->lid, .port_num = conn->port_num},
	};

	if (conn->has_gid && memcmp(peer->gid, no_gid, sizeof(no_gid))) {
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.hop_limit = 64;
		attr.ah_attr.grh.sgid_index = conn->gid_index;
		memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof(peer->gid));
	}
	return fp_verbs_conn_modify(conn, &attr,
	                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
	                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(struct fp_verbs_conn *conn)
{
	struct ibv_qp_attr attr = {
	    .qp_state = IBV_QPS_RTS,
	    .timeout = conn->options.ack_timeout ? conn->options.ack_timeout : 14,
	    .retry_cnt = FP_MIN(conn->options.retry_count, (uint8_t)RETRY_MAX),
	    .rnr_retry = FP_VERBS_RNR_RETRIES,
	    .sq_psn = conn->psn,
	    .max_rd_atomic = (uint8_t)conn->max_reads,
	};

	return fp_verbs_conn_modify(conn, &attr,
	                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int fp_verbs_manual_connect(struct fp_verbs_conn *conn, const struct fp_verbs_address *peer)
{
	struct ibv_port_attr port;
	int r;

	if (peer->mtu < IBV_MTU_256 || peer->mtu > IBV_MTU_4096)
		return -EINVAL;
	if (query_port(conn->domain->device->context, conn->port_num, &port))
		return -EIO;
	conn->max_reads = FP_MIN(conn->domain->device->n_asks, (unsigned)peer->n_reads);
	r = to_rtr(conn, peer, port.active_mtu);
	return r < 0 ? r : to_rts(conn);
}
