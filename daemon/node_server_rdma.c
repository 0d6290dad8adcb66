/*
 * The server's side of rdma. Room: daemon; see node_server_rdma.h.
 */
#include "node_server_rdma.h"

#include <errno.h>
#include <poll.h>

#include "cleanup.h"
#include "transport.h"

/* ---- opening ---- */

static int explain_cm_server(const struct fp_node_server *server, const struct fp_listener *failed, int r)
{
	char url[FP_LISTEN_URL_LEN] = "rdma", reason[64], devices[FP_EXPLAIN_LEN];

	if (failed)
		fp_listen_url(&failed->address, failed->fd, url, sizeof(url));
	if (r == -ELIBACC)
		fp_log(
		    FP_LOG_ERROR, "rdma",
		    "libibverbs.so.1 or librdmacm.so.1 is not installed: install libibverbs1, librdmacm1 and "
		    "ibverbs-providers (Debian), or libibverbs and librdmacm (Fedora)");
	else if (r == -ENODEV && !failed)
		fp_log(FP_LOG_ERROR, "rdma",
		       "%s (a soft one: rdma link add rxe0 type rxe netdev eth0); or listen on unix: or "
		       "tcp:// only",
		       fp_rdma_explain_device(&server->config->rdma, devices, sizeof(devices)));
	else if (r == -ENODEV || r == -EADDRNOTAVAIL)
		fp_log(FP_LOG_ERROR, "rdma",
		       "%s: no rdma device here has this address or an active port; see ibv_devinfo and rdma "
		       "link "
		       "(a soft one: rdma link add rxe0 type rxe netdev eth0)",
		       url);
	else if (r == -EADDRINUSE)
		fp_log(FP_LOG_ERROR, "rdma",
		       "%s: the port after it, which links take, is in use: stop who listens there "
		       "(rdma resource show cm_id; ss -lt), or choose another port",
		       url);
	else
		fp_log(FP_LOG_ERROR, "rdma", "%s: %s", url, fp_strerror(r, reason, sizeof(reason)));
	return r;
}

static void on_news(void *user, const struct fp_cm_server_event *news);

int fp_node_server_rdma_open(struct fp_node_server *server)
{
	struct sockaddr_storage listen[FP_VERBS_MAX_ADDRESSES];
	struct fp_listener *listeners[FP_VERBS_MAX_ADDRESSES + 1] = {NULL};
	struct fp_cm_server_options options = {
	    .listen = listen,
	    .tell = on_news,
	    .user = server,
	    .rdma = &server->config->rdma,
	    .by_hand = server->config->by_hand,
	};
	unsigned failed;
	int r;

	for (unsigned i = 0; i < server->n_listeners; i++) {
		struct fp_listener *listener = &server->listeners[i];
		unsigned n = options.n_listen;

		if (!listener->address.rdma)
			continue;
		if (n == FP_VERBS_MAX_ADDRESSES || server->options.private_node) {
			fp_log(FP_LOG_ERROR, "rdma", "%s",
			       n ? "too many rdma addresses to listen on" : "a private node has no rdma");
			return -EINVAL;
		}
		listeners[n] = listener;
		listen[options.n_listen++] = listener->address.sockaddr;
	}
	if (!options.n_listen && !options.by_hand)
		return 0;
	r = fp_cm_server_open(&options, &server->cm_server, &failed);
	return r < 0 ? explain_cm_server(server, listeners[failed], r) : 0;
}

/* ---- its events ---- */

/*
 * Cuts the session's control connection, which revokes the keys of the session. The client may
 * resume the session when there is a device again.
 */
static void cut_off(struct fp_node_server *server, uint64_t session_id)
{
	struct fp_conn *conn;

	LIST_FOREACH (conn, &server->conns, in_server)
		if (conn->session && conn->session->id == session_id && fp_conn_is_control(conn))
			fp_conn_cut(conn);
}

static void on_news(void *user, const struct fp_cm_server_event *news)
{
	struct fp_node_server *server = user;

	switch (news->type) {
	case FP_CM_SERVER_EVENT_DENIED:
		fp_log(FP_LOG_WARNING, "peer",
		       "%s %s: session %llu used an address or key that is not its own: %s: its link ends, "
		       "others go on",
		       news->who, fp_node_session_name(&server->sessions, news->session_id),
		       (unsigned long long)news->session_id, news->why);
		return;
	case FP_CM_SERVER_EVENT_REJECTED:
		fp_log(FP_LOG_WARNING, "stranger", "%s: turned away: %s", news->who, news->why);
		return;
	case FP_CM_SERVER_EVENT_DEVICE:
		fp_log(FP_LOG_WARNING, "rdma", "%s: %s", news->who, news->why);
		return;
	case FP_CM_SERVER_EVENT_LOST:
		fp_log(FP_LOG_WARNING, "rdma", "%s: session %llu is cut off: %s", news->who,
		       (unsigned long long)news->session_id, news->why);
		cut_off(server, news->session_id);
	}
}

static void on_readable(struct fp_op *op, int res, unsigned flags)
{
	struct fp_node_server *server = fp_container_of(op, struct fp_node_server, cm_op);

	if (res < 0 && res != -EINTR && res != -EAGAIN)
		return;
	fp_cm_server_serve(server->cm_server);
	fp_node_server_rdma_start(server);
}

void fp_node_server_rdma_start(struct fp_node_server *server)
{
	struct io_uring_sqe *sqe = fp_loop_sqe(&server->own.loop);

	server->cm_op.done = on_readable;
	io_uring_prep_poll_add(sqe, fp_cm_server_fd(server->cm_server), POLLIN);
	fp_loop_sqe_set(sqe, &server->cm_op);
}
