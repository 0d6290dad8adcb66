/*
 * The functions through which verbs*.c call libibverbs and librdmacm. dlsym found them, or a test
 * replaced them to get errors that no device gives on demand. Room: transport; only verbs*.c and
 * their tests include it.
 *
 * ibv_post_send, ibv_post_recv, ibv_poll_cq and ibv_req_notify_cq are inline in the header, and
 * dispatch through the device's context. The table has wrappers of them, so that a test can replace
 * them too.
 */
#ifndef FP_VERBS_API_H
#define FP_VERBS_API_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* clang-format off */
#define FP_VERBS_API_IBV(X) \
	X(struct ibv_device **, get_device_list, (int *)) \
	X(void, free_device_list, (struct ibv_device **)) \
	X(const char *, get_device_name, (struct ibv_device *)) \
	X(struct ibv_context *, open_device, (struct ibv_device *)) \
	X(int, close_device, (struct ibv_context *)) \
	X(int, query_device, (struct ibv_context *, struct ibv_device_attr *)) \
	X(int, query_port, (struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *)) \
	X(struct ibv_pd *, alloc_pd, (struct ibv_context *)) \
	X(int, dealloc_pd, (struct ibv_pd *)) \
	X(struct ibv_mr *, reg_mr, (struct ibv_pd *, void *, size_t, int)) \
	X(int, dereg_mr, (struct ibv_mr *)) \
	X(struct ibv_comp_channel *, create_comp_channel, (struct ibv_context *)) \
	X(int, destroy_comp_channel, (struct ibv_comp_channel *)) \
	X(struct ibv_cq *, create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
	X(int, destroy_cq, (struct ibv_cq *)) \
	X(int, get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **)) \
	X(void, ack_cq_events, (struct ibv_cq *, unsigned)) \
	X(struct ibv_qp *, create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *)) \
	X(int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int)) \
	X(int, destroy_qp, (struct ibv_qp *)) \
	X(int, get_async_event, (struct ibv_context *, struct ibv_async_event *)) \
	X(void, ack_async_event, (struct ibv_async_event *)) \
	X(const char *, wc_status_str, (enum ibv_wc_status))

#define FP_VERBS_API_RDMA(X) \
	X(struct rdma_event_channel *, create_event_channel, (void)) \
	X(void, destroy_event_channel, (struct rdma_event_channel *)) \
	X(int, create_id, (struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space)) \
	X(int, destroy_id, (struct rdma_cm_id *)) \
	X(int, bind_addr, (struct rdma_cm_id *, struct sockaddr *)) \
	X(int, listen, (struct rdma_cm_id *, int)) \
	X(int, resolve_addr, (struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int)) \
	X(int, resolve_route, (struct rdma_cm_id *, int)) \
	X(int, create_qp, (struct rdma_cm_id *, struct ibv_pd *, struct ibv_qp_init_attr *)) \
	X(void, destroy_qp, (struct rdma_cm_id *)) \
	X(int, connect, (struct rdma_cm_id *, struct rdma_conn_param *)) \
	X(int, accept, (struct rdma_cm_id *, struct rdma_conn_param *)) \
	X(int, reject, (struct rdma_cm_id *, const void *, uint8_t)) \
	X(int, disconnect, (struct rdma_cm_id *)) \
	X(int, set_option, (struct rdma_cm_id *, int, int, void *, size_t)) \
	X(int, get_cm_event, (struct rdma_event_channel *, struct rdma_cm_event **)) \
	X(int, ack_cm_event, (struct rdma_cm_event *)) \
	X(__be16, get_src_port, (struct rdma_cm_id *))

#define FP_VERBS_API_MEMBER(type, name, args) type (*name) args;
/* clang-format on */

struct fp_verbs_api {
	struct {
		FP_VERBS_API_IBV(FP_VERBS_API_MEMBER)
		/* these are inline in the header, or have another name there */
		int (*query_gid_ex)(struct ibv_context *, uint32_t port, uint32_t index,
		                    struct ibv_gid_entry *ret, uint32_t flags, size_t entry_size);
		int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
		int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
		int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
		int (*req_notify_cq)(struct ibv_cq *, int solicited_only);
	} ibv;
	struct {
		FP_VERBS_API_RDMA(FP_VERBS_API_MEMBER)
	} rdma;
};

/* The table. Valid once fp_verbs_load has succeeded, or once a test has set it. */
extern const struct fp_verbs_api *fp_verbs_api;

#endif
