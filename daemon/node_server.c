/*
 * The server. Room: daemon; see node_server.h.
 */
#include "node_server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "holding.h"
#include "log_throttle.h"
#include "node_listeners.h"
#include "notify.h"
#include "node_server_rdma.h"
#include "status.h"
#include "units.h"

#define TICK_NS  (250 * FP_NSEC_PER_MSEC)
#define STALL_NS (4 * TICK_NS) /* a tick that comes so late: the node stood still */
#define MIN_FDS  8ull
/* A tick ends sessions until they had so many leases. The rest wait for the next tick. */
#define EXPIRE_LEASES 2048u
#define TRIM_DELAY_NS (5 * FP_NSEC_PER_SEC)

void fp_node_server_log_peer(struct fp_node_server *server, const struct fp_conn *conn, const char *what)
{
	fp_log(FP_LOG_WARNING, conn->session ? "peer" : "stranger",
	       "%s%s%s: %s: its connection ends, others go on", conn->peer,
	       conn->hello.client_name[0] ? " " : "", conn->hello.client_name, what);
}

static const char *client_name(const struct fp_conn *conn)
{
	if (conn->session)
		return conn->session->client->name;
	if (conn->client_name[0])
		return conn->client_name;
	return conn->client ? conn->client->name : "unknown";
}

void fp_node_server_refused(struct fp_node_server *server, const struct fp_conn *conn,
                            const struct fp_refusal *refusal, const char *what)
{
	char text[FP_REFUSAL_TEXT_LEN], more[64] = "";
	const char *bound = refusal->cause == FP_REFUSAL_HOST_MEMORY ? server->pools.host.bound : "";
	uint64_t now_ns = fp_clock_ns(), untold;

	fp_refusal_counts_add(&server->refusals, refusal->cause, client_name(conn), now_ns);
	/* the stderr of a private node is the program's, and the program itself says what it met */
	if (!what || server->options.private_node ||
	    !fp_refusal_counts_due(&server->refusals, refusal->cause, now_ns, &untold))
		return;
	fp_refusal_explain(refusal, text, sizeof(text));
	if (untold)
		snprintf(more, sizeof(more), " (and %llu time%s since the last such line)",
		         (unsigned long long)untold, fp_plural(untold));
	fp_log(FP_LOG_WARNING, "refused", "%s to %s at %s, client %s: %s%s%s%s%s", what,
	       conn->hello.client_name, conn->peer, client_name(conn), *text ? text : "out of memory",
	       *bound ? " (" : "", bound, *bound ? ")" : "", more);
}

/* Starts the tick, because something has begun that may become overdue. */
static void watch(struct fp_node_server *server)
{
	static struct __kernel_timespec interval = {.tv_nsec = TICK_NS};

	if (server->ticking)
		return;
	fp_loop_timeout(&server->own.loop, &server->tick_op, &interval);
	server->tick_ns = fp_clock_ns();
	server->ticking = true;
}

/* Accepts one connection in each round, so that a flood of them does not keep others waiting. */
static void start_accept(struct fp_listener *listener)
{
	struct io_uring_sqe *sqe = fp_loop_sqe(&listener->server->own.loop);

	io_uring_prep_accept(sqe, listener->fd, NULL, NULL, SOCK_CLOEXEC);
	fp_loop_sqe_set(sqe, &listener->accept_op);
	listener->accepting = true;
}

static bool is_own_user(int fd)
{
	uid_t uid = fp_listen_peer_cred(fd).uid;

	return uid == (uid_t)-1 || uid == geteuid() || uid == 0;
}

/* Serves a connection, or refuses it and logs why. Owns fd from then on. */
static void welcome(struct fp_node_server *server, int fd)
{
	const char *why = NULL;
	char peer[FP_PEER_LEN];

	server->own.counters.connections++;
	if (server->stopping)
		why = "the node is stopping";
	else if (server->options.private_node && !is_own_user(fd))
		why = "this node serves one user only";
	else if (fp_conn_start(server, fd) < 0)
		fd = -1;
	else {
		watch(server);
		return;
	}
	fp_log(FP_LOG_WARNING, "stranger", "%s: turned away: %s",
	       fd >= 0 ? fp_listen_peer_name(fd, peer, sizeof(peer)) : "a connection",
	       why ? why : "out of memory");
	if (fd >= 0)
		close(fd);
}

static void on_accept(struct fp_op *op, int res, unsigned flags)
{
	struct fp_listener *listener = fp_container_of(op, struct fp_listener, accept_op);
	struct fp_node_server *server = listener->server;
	char reason[64];

	if (res >= 0)
		welcome(server, res);
	listener->accepting = false;
	if (res >= 0) {
		start_accept(listener);
		return;
	}
	/* Without descriptors or memory, a retry at once would fail too. So the tick retries. */
	fp_log(FP_LOG_WARNING, "stranger", "cannot accept a connection: %s",
	       fp_strerror(res, reason, sizeof(reason)));
	watch(server);
}

/*
 * Ends all links of a session. A killed connection handles no more of the bytes that it has
 * received. A WRITE that arrived in part stays incomplete.
 */
static void end_links(struct fp_node_session *session)
{
	for (struct fp_conn *conn; (conn = LIST_FIRST(&session->conns));) {
		fp_conn_enter(conn, NULL);
		fp_conn_kill(conn);
	}
}

/*
 * A little later, a trim of the heap returns freed memory to the system. Without a trim, the
 * allocator keeps freed memory that lies below a piece still in use. The loop stands still during a
 * trim: for 10 ms if thousands of connections have ended. So all connections that end within some
 * seconds share one trim.
 */
static void trim_soon(struct fp_node_server *server)
{
	if (!server->trim_ns)
		server->trim_ns = fp_clock_ns() + TRIM_DELAY_NS;
	watch(server);
}

static void end_session(struct fp_node_server *server, struct fp_node_session *session)
{
	unsigned long long leases = session->leases.n, mib = session->leases.leased_bytes >> 20;

	fp_log(session->is_operator ? FP_LOG_DEBUG : FP_LOG_INFO, "session",
	       "%llu: %s at %s ends: it gives back %llu lease%s, %llu MiB; read %llu MiB, wrote %llu MiB",
	       (unsigned long long)session->id, session->name, session->peer, leases, fp_plural(leases), mib,
	       (unsigned long long)session->read_bytes >> 20,
	       (unsigned long long)session->written_bytes >> 20);
	end_links(session);
	fp_node_session_end(&server->sessions, session);
	/*
	 * The end of the connection had a trim of its own, but the session may end long after that.
	 */
	trim_soon(server);
}

void fp_node_server_fence(struct fp_node_server *server, struct fp_node_session *session)
{
	end_links(session);
	fp_node_session_disarm(session);
	session->n_links = 0;
	session->cut_off = false;
}

/* Ends sessions that nobody resumed in time: not all at once, because the loop stands still. */
static void end_expired(struct fp_node_server *server, uint64_t now_ns)
{
	uint64_t n = 0;

	for (struct fp_node_session *s = server->sessions.first, *next; s && n < EXPIRE_LEASES; s = next) {
		next = s->next;
		if (!s->cut_off || s->expires_ns > now_ns)
			continue;
		fp_log(FP_LOG_NOTICE, "session", "%llu: %s at %s did not come back",
		       (unsigned long long)s->id, s->name, s->peer);
		server->own.counters.expired++;
		n += 1 + s->leases.n;
		end_session(server, s);
	}
}

/*
 * If the tick comes late, the node did not run: it was stopped, or its machine was. What peers sent
 * meanwhile is still unread. So all times that run out begin later by that much, and peers are
 * judged after their messages have been read.
 */
static void forgive_stall(struct fp_node_server *server, uint64_t now_ns)
{
	uint64_t passed_ns = now_ns - server->tick_ns;
	struct fp_conn *conn;

	if (passed_ns < STALL_NS)
		return;
	fp_log(FP_LOG_NOTICE, "node", "it did not run for %llu ms: this time counts for no limit",
	       (unsigned long long)(passed_ns / FP_NSEC_PER_MSEC));
	for (struct fp_node_session *s = server->sessions.first; s; s = s->next)
		s->expires_ns += passed_ns;
	LIST_FOREACH (conn, &server->conns, in_server)
		fp_conn_forgive(conn, now_ns, passed_ns);
}

static bool outlives(const struct fp_conn *conn)
{
	return (conn->cut || conn->session->unconfirmed) && !conn->is_unix && conn->session->grace_ns;
}

static void cut_off_session(struct fp_node_server *server, struct fp_node_session *session)
{
	uint64_t grace_ns = session->grace_ns;

	fp_log(FP_LOG_NOTICE, "session", "%llu: %s at %s is cut off: its leases (%u) are kept for %llu ms",
	       (unsigned long long)session->id, session->name, session->peer, session->leases.n,
	       (unsigned long long)(grace_ns / FP_NSEC_PER_MSEC));
	fp_node_session_disarm(session);
	session->cut_off = true;
	session->expires_ns = fp_clock_ns() + grace_ns;
	server->own.counters.cut_off++;
}

void fp_node_server_end_session(struct fp_node_server *server, struct fp_conn *conn)
{
	struct fp_node_session *session = conn->session;

	fp_conn_enter(conn, NULL);
	end_session(server, session);
}

void fp_node_server_session_left(struct fp_node_server *server, struct fp_conn *conn)
{
	struct fp_node_session *session = conn->session;
	bool stays = session && fp_conn_is_control(conn) && outlives(conn);

	if (!session)
		return;
	fp_conn_enter(conn, NULL);
	if (stays)
		cut_off_session(server, session);
	else if (fp_conn_is_control(conn))
		end_session(server, session);
	else
		session->n_links--;
}

void fp_node_server_conn_ended(struct fp_node_server *server, struct fp_conn *conn)
{
	server->n_conns--;
	trim_soon(server);
	fp_node_server_session_left(server, conn);
	if (server->stopping && !server->n_conns)
		fp_loop_stop(&server->own.loop);
}

/* Ends what is overdue, and looks for changes that no event reports. */
static void on_tick(struct fp_op *op, int res, unsigned flags)
{
	struct fp_node_server *server = fp_container_of(op, struct fp_node_server, tick_op);
	uint64_t now_ns = fp_clock_ns();
	struct fp_conn *conn;
	char line[128];

	server->ticking = false;
	forgive_stall(server, now_ns);
	end_expired(server, now_ns);
	fp_pools_collect(&server->pools); /* no event tells that a client released memory */
	LIST_FOREACH (conn, &server->conns, in_server)
		fp_conn_tick(conn, now_ns);
	for (unsigned i = 0; i < server->n_listeners && !server->stopping; i++)
		if (server->listeners[i].fd >= 0 && !server->listeners[i].accepting)
			start_accept(&server->listeners[i]);
	if (server->n_told != server->sessions.n)
		fp_notify(&server->notify, "STATUS=%s", fp_status_line(server, line, sizeof(line)));
	server->n_told = server->sessions.n;
	if (server->trim_ns && server->trim_ns <= now_ns) {
		server->trim_ns = 0;
		malloc_trim(0);
	}
	if (fp_notify_flush(&server->notify) || server->n_conns || server->sessions.n ||
	    server->pools.n_kept || server->trim_ns)
		watch(server);
}

/*
 * Stops the node. Requests under way get no answer. That loses no page: a client keeps the page of
 * a WRITE until the node confirms the WRITE.
 */
static void stop(struct fp_node_server *server)
{
	struct fp_conn *conn;
	char line[128];

	server->stopping = true;
	for (unsigned i = 0; i < server->pools.n; i++)
		fp_pool_end(server->pools.items[i]);
	fp_notify(&server->notify, "STOPPING=1");
	fp_log(FP_LOG_NOTICE, "node", "stopping: %s", fp_status_line(server, line, sizeof(line)));
	while (server->sessions.first)
		end_session(server, server->sessions.first);
	LIST_FOREACH (conn, &server->conns, in_server)
		fp_conn_kill(conn);
	if (!server->n_conns)
		fp_loop_stop(&server->own.loop);
}

static void reload(struct fp_node_server *server)
{
	struct fp_config *next;
	struct fp_conf_error error;
	char changes[64];

	if (!server->options.config_path) {
		fp_log(FP_LOG_NOTICE, "config",
		       "nothing to read again: this node was started without a file");
		return;
	}
	fp_notify(&server->notify, "RELOADING=1\nMONOTONIC_USEC=%llu",
	          (unsigned long long)(fp_clock_ns() / FP_NSEC_PER_USEC));
	if (fp_config_read(server->options.config_path, &next, &error) < 0) {
		fp_log(FP_LOG_ERROR, "config", "%s: the node goes on with what it had", error.text);
	} else {
		fp_config_changes(server->config, next, changes, sizeof(changes));
		fp_config_reload(server->config, next);
		fp_log_init("farpaged", fp_config_log_level(server->config));
		fp_log(*changes ? FP_LOG_WARNING : FP_LOG_NOTICE, "config",
		       "%s: limits, secrets and log level read again%s%s", server->options.config_path,
		       *changes ? "; these have changed too, and wait for a restart of the node: " : "",
		       changes);
		fp_config_free(next);
	}
	fp_notify(&server->notify, "READY=1");
	watch(server); /* the tick sends what waits */
}

static void read_signal(struct fp_node_server *server)
{
	fp_loop_read(&server->own.loop, &server->signal_op, server->signal_fd, &server->signal,
	             sizeof(server->signal));
}

static void on_users_gone(struct fp_op *op, int res, unsigned flags)
{
	struct fp_node_server *server = fp_container_of(op, struct fp_node_server, users_op);

	if (!server->stopping)
		stop(server);
}

/*
 * Other processes may still need this node. So it waits until the last of them has closed its end
 * of the pipe, which may be at once.
 */
static void wait_for_users(struct fp_node_server *server)
{
	fp_autoclose int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct io_uring_sqe *sqe = fp_loop_sqe(&server->own.loop);

	server->waiting = true;
	if (null_fd >= 0)
		dup2(null_fd, STDERR_FILENO); /* a reader of stderr shall not wait for our end */
	io_uring_prep_poll_add(sqe, server->options.users_fd, POLLHUP);
	fp_loop_sqe_set(sqe, &server->users_op);
}

static void on_signal(struct fp_op *op, int res, unsigned flags)
{
	struct fp_node_server *server = fp_container_of(op, struct fp_node_server, signal_op);
	uint32_t number = server->signal.ssi_signo;

	read_signal(server);
	if (res != sizeof(server->signal))
		return;
	if (number == SIGHUP)
		reload(server);
	else if (number == SIGTERM && server->options.users_fd >= 0 && !server->waiting)
		wait_for_users(server);
	else if (!server->stopping)
		stop(server);
}

static void read_worker(struct fp_node_server *server)
{
	fp_loop_read(&server->own.loop, &server->worker_op, fp_worker_fd(server->worker),
	             &server->worker_events, sizeof(server->worker_events));
}

static void on_worker(struct fp_op *op, int res, unsigned flags)
{
	struct fp_node_server *server = fp_container_of(op, struct fp_node_server, worker_op);

	read_worker(server);
	fp_worker_reap(server->worker);
	trim_soon(server); /* the worker may free a lease after the trim for its connection */
}

/*
 * Logs an error that has no message of its own. The likely cause is a limit of the process that is
 * too low.
 */
static int explain_start(const char *what, int r)
{
	char reason[64];

	if (r == -EMFILE)
		fp_log(FP_LOG_ERROR, "node",
		       "%s: the limit of open files is too low: raise it, `ulimit -n 1024` at least", what);
	else if (r < 0)
		fp_log(FP_LOG_ERROR, "node", "%s: %s", what, fp_strerror(r, reason, sizeof(reason)));
	return r;
}

static int open_signals(struct fp_node_server *server)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	server->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
	return explain_start("signals", server->signal_fd < 0 ? -errno : 0);
}

/*
 * Divides the limit of open files: a quarter for connections, and half for memfds that clients map.
 * The last quarter is for memfds in flight in sockets. They are not open here, but the kernel
 * counts them against the same limit.
 */
static void raise_descriptor_limit(struct fp_node_server *server)
{
	struct rlimit limit = {0};

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	server->max_fds = (unsigned)FP_MIN(FP_MAX(limit.rlim_cur / 4, MIN_FDS), UINT_MAX);
	fp_pools_init(&server->pools, (unsigned)FP_MIN(limit.rlim_cur / 2, UINT_MAX));
}

static int open_pools(struct fp_node_server *server)
{
	struct fp_conf_error error;
	uint64_t size_bytes, free_bytes;
	int r;

	server->pools.unlimited = server->options.private_node;
	server->pools.items = calloc(server->config->n_pools, sizeof(server->pools.items[0]));
	if (!server->pools.items)
		return explain_start("pools", -ENOMEM);
	for (unsigned i = 0; i < server->config->n_pools; i++) {
		r = fp_pool_open(&server->config->pools[i], &server->pools.items[i], &error);
		if (r < 0) {
			fp_log(FP_LOG_ERROR, "pool", "%s", error.text);
			return r;
		}
		server->pools.n++;
	}
	fp_pools_sum(&server->pools, false, &size_bytes, &free_bytes);
	for (unsigned i = 0; i < server->pools.n; i++)
		fp_pool_set_least(server->pools.items[i], fp_pools_least_bytes(size_bytes));
	fp_pools_warn(server->config->pools, server->config->n_pools, server->options.private_node);
	return 0;
}

/* Writes the node's URLs to the log, and as one line to ready_fd. */
static void announce(struct fp_node_server *server)
{
	char url[FP_LISTEN_URL_LEN], line[128];

	for (unsigned i = 0; i < server->n_listeners; i++) {
		fp_listen_url(&server->listeners[i].address, server->listeners[i].fd, url, sizeof(url));
		fp_log(FP_LOG_INFO, "node", "farpaged %s serves %s", FP_VERSION, url);
		if (server->options.ready_fd >= 0)
			dprintf(server->options.ready_fd, "%s%s", i ? " " : "", url);
	}
	if (server->options.ready_fd >= 0) {
		dprintf(server->options.ready_fd, "\n");
		close(fp_take_fd(server->options.ready_fd));
	}
	fp_notify(&server->notify, "READY=1\nSTATUS=%s", fp_status_line(server, line, sizeof(line)));
	watch(server); /* the tick sends what waits */
}

static void begin_round(struct fp_loop *loop)
{
	fp_shards_hold(&fp_container_of(loop, struct fp_node_server, own.loop)->shards);
}

static bool end_round(struct fp_loop *loop)
{
	struct fp_node_server *server = fp_container_of(loop, struct fp_node_server, own.loop);
	bool busy = fp_turns_round(&server->own.turns, fp_conn_go_on);

	fp_shards_release(&server->shards);
	return busy;
}

static void read_shards(struct fp_node_server *server)
{
	fp_loop_read(&server->own.loop, &server->shards_op, fp_shards_fd(&server->shards),
	             &server->shards_events, sizeof(server->shards_events));
}

/* The round itself has freed what the shards gave back. */
static void on_shards(struct fp_op *op, int res, unsigned flags)
{
	struct fp_node_server *server = fp_container_of(op, struct fp_node_server, shards_op);

	if (fp_shards_status(&server->shards) < 0)
		fp_loop_stop(&server->own.loop);
	else
		read_shards(server);
}

static int run_loop(struct fp_node_server *server)
{
	char reason[64];
	int r;

	for (unsigned i = 0; i < server->n_listeners; i++)
		start_accept(&server->listeners[i]);
	server->own.loop.begin_round = begin_round;
	server->own.loop.between_rounds = end_round;
	read_signal(server);
	read_worker(server);
	if (server->cm_server)
		fp_node_server_rdma_start(server);
	if (server->shards.n)
		read_shards(server);
	announce(server);
	r = fp_loop_run(&server->own.loop);
	if (r == 0)
		r = fp_shards_status(&server->shards);
	if (r < 0)
		fp_log(FP_LOG_ERROR, "node", "io_uring failed: %s", fp_strerror(r, reason, sizeof(reason)));
	return r;
}

static int start_shards(struct fp_node_server *server)
{
	struct fp_conf_error error;
	int r = fp_shards_start(&server->shards, (unsigned)server->config->shards, &error);

	if (r < 0)
		fp_log(FP_LOG_ERROR, "node", "%s", error.text);
	return r;
}

static int serve(struct fp_node_server *server)
{
	struct fp_conf_error error;
	int r;

	r = fp_loop_init(&server->own.loop, &error);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, "node", "%s", error.text);
		return r;
	}
	r = explain_start("the thread that keeps leases", fp_worker_start(&server->worker));
	server->pools.worker = server->worker;
	if (r == 0 && server->config->shards > 1)
		r = start_shards(server);
	if (r == 0)
		r = run_loop(server);
	fp_shards_stop(&server->shards);
	/* Its last jobs may still answer, so the loop and the shards' turns are usable until
	 * then. */
	fp_worker_stop(server->worker);
	fp_loop_done(&server->own.loop);
	return r;
}

static void done(struct fp_node_server *server)
{
	fp_cm_server_close(server->cm_server); /* the worker has stopped: no memory is registered */
	fp_node_listeners_close(server);
	fp_pools_done(&server->pools);
	for (unsigned i = 0; i < server->pools.n; i++)
		fp_pool_close(server->pools.items[i]);
	free(server->pools.items);
	free(server->status.text);
	fp_notify_close(&server->notify);
	fp_cleanup_close(&server->signal_fd);
}

int fp_node_server_run(const struct fp_node_server_options *options)
{
	struct fp_node_server server = {
	    .options = *options,
	    .config = options->config,
	    .start_ns = fp_clock_ns(),
	    .signal_fd = -1,
	    .signal_op.done = on_signal,
	    .worker_op.done = on_worker,
	    .tick_op.done = on_tick,
	    .shards_op.done = on_shards,
	    .users_op.done = on_users_gone,
	};
	char line[128];
	int r;

	if (options->private_node) /* the socket in the environment is the program's */
		server.notify = (struct fp_notify){.fd = -1};
	else
		fp_notify_open(&server.notify);
	fp_turns_init(&server.own.turns);
	TAILQ_INIT(&server.strangers.list);
	server.clients.alone = options->private_node;
	raise_descriptor_limit(&server);
	fp_holding_init(&server);
	r = open_signals(&server);
	fp_log_throttle_start();
	if (r == 0)
		r = open_pools(&server);
	if (r == 0)
		r = fp_node_listeners_open(&server, on_accept);
	if (r == 0)
		r = fp_node_server_rdma_open(&server);
	if (r == 0)
		r = serve(&server);
	if (r == 0)
		fp_log(FP_LOG_NOTICE, "node", "stopped: %s", fp_status_line(&server, line, sizeof(line)));
	done(&server);
	fp_log_throttle_stop();
	return r;
}
