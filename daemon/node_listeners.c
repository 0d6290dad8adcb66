/*
 * The listeners of the server. Room: daemon; see node_listeners.h.
 */
#include "node_listeners.h"

#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"
#include "listen.h"
#include "log.h"
#include "node_server.h"

/* What to do, or NULL if the error says it. */
static const char *listen_remedy(int r)
{
	switch (r) {
	case -EADDRINUSE:
		return "it is in use: stop who listens there (ss -lp), or choose another address";
	case -ENOTSOCK:
		return "that file is not a socket: remove it, or choose another path";
	case -EADDRNOTAVAIL:
		return "this machine does not have that address (ip address): choose one that it has";
	case -ENOENT:
		return "the folder of the socket does not exist: make it, or choose another path";
	case -EACCES:
		return "this user may not listen there: a socket's folder must be writable for it, a port "
		       "below 1024 takes CAP_NET_BIND_SERVICE";
	default:
		return NULL;
	}
}

static int open_listener(struct fp_listener *listener, const char *text)
{
	char reason[64];
	const char *remedy;
	int r = fp_listen_parse(text, &listener->address);

	if (r == 0)
		r = fp_listen_open(&listener->address, &listener->fd);
	remedy = listen_remedy(r);
	if (r < 0)
		fp_log(FP_LOG_ERROR, "listen", "%s: %s", text,
		       remedy ? remedy : fp_strerror(r, reason, sizeof(reason)));
	return r;
}

int fp_node_listeners_open(struct fp_node_server *server,
                           void (*on_accept)(struct fp_op *op, int res, unsigned flags))
{
	const struct fp_conf_strings *listen = &server->config->listen;
	int r;

	server->listeners = calloc(listen->n, sizeof(*server->listeners));
	if (!server->listeners) {
		fp_log(FP_LOG_ERROR, "listen", "out of memory");
		return -ENOMEM;
	}
	for (size_t i = 0; i < listen->n; i++) {
		struct fp_listener *listener = &server->listeners[i];

		*listener = (struct fp_listener){.server = server, .fd = -1};
		listener->accept_op.done = on_accept;
		r = open_listener(listener, listen->items[i]);
		if (r < 0)
			return r;
		server->n_listeners++;
	}
	return 0;
}

void fp_node_listeners_close(struct fp_node_server *server)
{
	for (unsigned i = 0; i < server->n_listeners; i++)
		if (server->listeners[i].fd >= 0)
			fp_listen_close(&server->listeners[i].address, fp_take_fd(server->listeners[i].fd));
	free(server->listeners);
}
