/*
 * The node server is the whole of a running farpaged. It opens the listeners, handles signals,
 * divides the limits and ends everything. Room: daemon, its root.
 */
#ifndef FP_NODE_SERVER_H
#define FP_NODE_SERVER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/signalfd.h>

#include "config.h"
#include "conn.h"
#include "worker.h"
#include "lease.h"
#include "listen.h"
#include "log.h"
#include "loop.h"
#include "notify.h"
#include "refusal_counts.h"
#include "session.h"
#include "status.h"
#include "stranger.h"
#include "turns.h"
#include "cm_server.h"

struct fp_listener {
	struct fp_node_server *server;
	struct fp_listen_address address;
	int fd;
	bool accepting;
	struct fp_op accept_op;
};

struct fp_node_server_options {
	struct fp_config *config; /* owned by the caller; reloads change it */
	const char *config_path;  /* the file that SIGHUP reads; NULL: none */
	bool private_node;        /* serves only processes of its own user */
	int ready_fd;             /* gets one line with the URLs, then is closed; -1: none */
	int users_fd;             /* a pipe: SIGTERM waits until its writing end is closed; -1: none */
};

struct fp_node_server {
	struct fp_shard own; /* the main loop */
	struct fp_shards shards;
	struct fp_worker *worker;
	struct fp_cm_server *cm_server; /* NULL: no rdma is configured */
	struct fp_node_server_options options;
	struct fp_config *config; /* same as options.config */
	struct fp_pools pools;
	struct fp_listener *listeners;
	unsigned n_listeners;
	LIST_HEAD(, fp_conn) conns;
	unsigned n_conns;
	struct fp_strangers strangers;
	unsigned max_fds; /* limit of connections: a quarter of RLIMIT_NOFILE */
	/* Memory that is kept back from grants for clients: see holding.h. 0: no bound is known. */
	uint64_t keeping_bytes;
	struct fp_node_sessions sessions;
	struct fp_clients clients;
	struct fp_refusal_counts refusals;
	struct fp_status_recent status;
	uint64_t start_ns;
	bool draining;           /* no new leases: DRAIN */
	bool stopping;           /* no new connections either: SIGTERM */
	bool waiting;            /* SIGTERM came, and the server waits for options.users_fd */
	struct fp_notify notify; /* tells systemd */
	unsigned n_told;         /* number of sessions last told to systemd */
	int signal_fd;
	struct signalfd_siginfo signal;
	uint64_t worker_events;
	uint64_t shards_events;
	struct fp_op signal_op, worker_op, cm_op, users_op, tick_op, shards_op;
	bool ticking;     /* a tick is set, because something may become overdue: see on_tick */
	uint64_t tick_ns; /* when the tick was set */
	/* When to give freed memory back to the system. 0: none was freed since the last time. */
	uint64_t trim_ns;
};

/*
 * Makes pools and listeners, serves until SIGTERM or SIGINT, then frees everything. Returns 0, or a
 * negative errno after it has logged why. Blocks SIGTERM, SIGINT and SIGHUP in the calling thread.
 */
int fp_node_server_run(const struct fp_node_server_options *options);

/*
 * Called when a connection is done with its session, if it has one. The end of a control connection
 * ends the session. If the control connection was cut, the session is only cut off, and ends after
 * its grace period.
 */
void fp_node_server_session_left(struct fp_node_server *server, struct fp_conn *conn);
/* Called when a connection has ended and is about to be freed. Removes it from its session. */
void fp_node_server_conn_ended(struct fp_node_server *server, struct fp_conn *conn);

/*
 * Ends the control connection and all links of a session, on behalf of a RESUME. When this returns,
 * no unfinished operation of theirs changes memory any more.
 */
void fp_node_server_fence(struct fp_node_server *server, struct fp_node_session *session);

/*
 * Ends the session of a control connection: ends its links, gives its leases back. The connection
 * stays open.
 */
void fp_node_server_end_session(struct fp_node_server *server, struct fp_conn *conn);

/*
 * Counts a refusal by its cause, and logs it. The parameter what names the thing that was refused,
 * such as "a lease of 64.0 MiB". Each cause has a limited rate of log lines; a private node logs no
 * refusals. FP_REFUSAL_NONE is logged as a lack of memory. If what is NULL, the refusal is only
 * counted: the caller writes a line of its own, or only the client is to blame.
 */
void fp_node_server_refused(struct fp_node_server *server, const struct fp_conn *conn,
                            const struct fp_refusal *refusal, const char *what);

/* Logs why the connection of a peer ends. */
void fp_node_server_log_peer(struct fp_node_server *server, const struct fp_conn *conn, const char *what);

#endif
