/*
 * The server's side of the rdma_cm server. Room: daemon; see node_server_rdma.h.
 */
#include "node_server_rdma.h"

#include <errno.h>

#include "cleanup.h"
#include "transport.h"

/* ---- opening ---- */

static int explain_cm_server(const struct fp_node_server *server, const struct fp_listener *failed, int r)
{
	char url[FP_LISTEN_URL_LEN] = "rdma", reason[64], devices[FP_EXPLAIN_LEN];
	uint16_t port;

	if (failed) {
		fp_listen_host(&failed->address, reason, sizeof(reason), &port);
		fp_listen_rdma_url(&failed->address, port, url, sizeof(url));
	}
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
		fp_log(
		    FP_LOG_ERROR, "rdma",
		    "%s is in use: stop who listens there (rdma resource show cm_id), or choose another port",
		    url);
	else
		fp_log(FP_LOG_ERROR, "rdma", "%s: %s", url, fp_strerror(r, reason, sizeof(reason)));
	return r;
}

int fp_node_server_rdma_open(struct fp_node_server *server)
{
	struct fp_cm_server_address listen[FP_CM_SERVER_MAX_LISTENERS];
	struct fp_listener *listeners[FP_CM_SERVER_MAX_LISTENERS + 1] = {NULL};
	char hosts[FP_CM_SERVER_MAX_LISTENERS][64];
	unsigned max_strangers = fp_strangers_max(server);
	struct fp_cm_server_options options = {
	    .listen = listen,
	    .admits = fp_secrets_admit,
	    .user = &server->config->auth.secrets,
	    .rdma = &server->config->rdma,
	    .by_hand = server->config->by_hand,
	    .max_peers = (unsigned)server->config->limits.max_connections + 2 * max_strangers,
	    .max_unfinished = max_strangers,
	};
	unsigned failed;
	int r;

	for (unsigned i = 0; i < server->n_listeners; i++) {
		struct fp_listener *listener = &server->listeners[i];
		unsigned n = options.n_listen;

		if (!listener->address.rdma)
			continue;
		if (n == FP_CM_SERVER_MAX_LISTENERS || server->options.private_node) {
			fp_log(FP_LOG_ERROR, "rdma", "%s",
			       n ? "too many rdma addresses to listen on" : "a private node has no rdma");
			return -EINVAL;
		}
		listener->cm_idx = n;
		listeners[n] = listener;
		listen[n].host =
		    fp_listen_host(&listener->address, hosts[n], sizeof(hosts[n]), &listen[n].port);
		options.n_listen++;
	}
	if (!options.n_listen && !options.by_hand)
		return 0;
	r = fp_cm_server_open(&options, &server->cm_server, &failed);
	return r < 0 ? explain_cm_server(server, listeners[failed], r) : 0;
}

/* ---- what it tells ---- */

static void log_cm_news(struct fp_node_server *server, const struct fp_cm_server_event *news)
{
	switch (news->type) {
	case FP_CM_SERVER_EVENT_DENIED:
		fp_log(FP_LOG_WARNING, "peer",
		       "%s %s: session %llu used an address or key that is not its own: %s: its link ends, "
		       "others go "
		       "on",
		       news->who, fp_node_session_name(&server->sessions, news->session_id),
		       (unsigned long long)news->session_id, news->why);
		return;
	case FP_CM_SERVER_EVENT_REJECTED:
		fp_log(FP_LOG_WARNING, "stranger", "%s: turned away: %s", news->who, news->why);
		return;
	case FP_CM_SERVER_EVENT_BROKEN:
		fp_log(FP_LOG_WARNING, "peer", "%s: its control connection broke: %s", news->who, news->why);
		return;
	default:
		fp_log(FP_LOG_WARNING, "rdma", "%s: %s", news->who, news->why);
	}
}

static void on_cm_news(struct fp_op *op, int res, unsigned flags)
{
	struct fp_node_server *server = fp_container_of(op, struct fp_node_server, cm_op);
	struct fp_cm_server_event news = server->cm_news;

	if (res == -EINTR || res == -EAGAIN) {
		fp_node_server_rdma_read(server);
		return;
	}
	if (res != sizeof(news))
		return;
	fp_node_server_rdma_read(server);
	if (news.type == FP_CM_SERVER_EVENT_PEER)
		fp_node_server_welcome(server, news.fd, news.peer);
	else
		log_cm_news(server, &news);
}

void fp_node_server_rdma_read(struct fp_node_server *server)
{
	server->cm_op.done = on_cm_news;
	fp_loop_read(&server->loop, &server->cm_op, fp_cm_server_event_fd(server->cm_server),
	             &server->cm_news, sizeof(server->cm_news));
}
