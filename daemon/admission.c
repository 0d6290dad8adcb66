/*
 * The handshake. Room: daemon; see admission.h.
 */
#include "admission.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "auth.h"
#include "cleanup.h"
#include "clock.h"
#include "request.h"
#include "node_server.h"

#define MAX_LINKS 64 /* links that one session may have */

/*
 * Returns max, or the number of connections that our descriptors allow if that is smaller. Sessions
 * have the same limit, because every session may be resumed, and a RESUME gets a connection without
 * a check of the limit.
 */
static uint64_t limit_by_fds(const struct fp_node_server *server, uint64_t max)
{
	return server->options.private_node ? max : FP_MIN(max, server->max_fds);
}

/*
 * Gives the connection to client. -EUSERS: this client, or all clients together, have too many
 * connections.
 */
static int take_place(struct fp_conn *conn, struct fp_client *client)
{
	uint64_t max = limit_by_fds(conn->server, conn->server->config->limits.max_connections);

	if (conn->client == client)
		return 0;
	if (client->clients->n_conns >= max || client->n_conns >= fp_client_share(client, max))
		return -EUSERS;
	fp_conn_give(conn, client);
	return 0;
}

/*
 * A peer with a session's token counts as a client, not as a stranger. So a flood of strangers
 * can't keep a client from coming back.
 */
static void trust_token(struct fp_conn *conn)
{
	const struct fp_wire_hello *hello = &conn->hello;
	struct fp_node_session *session =
	    fp_node_session_find(&conn->server->sessions, hello->session_id, hello->token);

	if (session && hello->purpose != FP_WIRE_CONTROL)
		(void)take_place(conn, session->client); /* -EUSERS: attach_link refuses it later */
}

int fp_admission_hello(struct fp_conn *conn)
{
	struct fp_wire_challenge *challenge = &conn->challenge;
	uint8_t payload[sizeof(*challenge)];

	if (fp_wire_hello_decode(fp_inbox_payload(&conn->inbox), conn->inbox.header.length, &conn->hello) < 0)
		return -EPROTO;
	if (fp_wire_version_choose(&conn->hello, &challenge->version) < 0) {
		fp_conn_refuse(conn, FP_WIRE_VERSION_GAP, "it speaks no version of the protocol that we do");
		return 0;
	}
	if (fp_auth_random(challenge->nonce, sizeof(challenge->nonce)) < 0) {
		fp_conn_refuse(conn, FP_WIRE_BROKEN, "no random bytes for its challenge");
		return 0;
	}
	challenge->flags = conn->server->config->auth.given ? FP_WIRE_CHALLENGE_AUTH : 0;
	fp_wire_challenge_encode(challenge, payload);
	fp_request_answer(conn, FP_WIRE_CHALLENGE, payload, sizeof(payload));
	conn->state = FP_CONN_AUTH;
	trust_token(conn);
	return 0;
}

/* Returns the client that the secret names, or the peer's address if secret is NULL. The caller
 * holds it. NULL: no memory. */
static struct fp_client *identify(const struct fp_conn *conn, const struct fp_node_secret *secret)
{
	char name[FP_CLIENT_NAME_LEN];

	return fp_client_get(&conn->server->clients,
	                     secret ? secret->name
	                            : fp_client_peer_name(conn->is_unix ? conn->fd : -1, conn->peer, name));
}

/*
 * True if the peer proved the same secret as the session's client. The token alone is not enough,
 * because others can overhear it.
 */
static bool owns(const struct fp_node_secret *secret, const struct fp_node_session *session)
{
	return !secret || strcmp(secret->name, session->client->name) == 0;
}

static int open_session(struct fp_conn *conn, const struct fp_node_secret *secret)
{
	struct fp_node_server *server = conn->server;
	struct fp_client *client = identify(conn, secret);
	uint64_t max = limit_by_fds(server, server->config->limits.max_sessions);
	struct fp_node_session *session;
	int r;

	if (!client)
		return -ENOMEM;
	r = -EUSERS;
	if (server->sessions.n < max && client->n_sessions < fp_client_share(client, max))
		r = take_place(conn, client);
	if (r == 0)
		r = fp_node_session_open(&server->sessions, client, conn->hello.client_name, conn->peer,
		                         &session);
	fp_client_put(client); /* the connection holds the client now */
	if (r < 0)
		return r;
	fp_conn_enter(conn, session);
	session->memfd = conn->is_unix && conn->hello.features & FP_WIRE_FEATURE_MEMFD;
	server->counters.sessions++;
	fp_log(FP_LOG_INFO, "session", "%llu: %s at %s begins, of client %s", (unsigned long long)session->id,
	       session->name, conn->peer, session->client->name);
	return 0;
}

static int attach_link(struct fp_conn *conn, const struct fp_node_secret *secret)
{
	struct fp_node_session *session =
	    fp_node_session_find(&conn->server->sessions, conn->hello.session_id, conn->hello.token);
	int r;

	if (!session || !owns(secret, session))
		return -EACCES;
	if (session->memfd)
		/* a client that maps its leases could free the pages while we read or write them */
		return -EPERM;
	r = session->n_links < MAX_LINKS ? take_place(conn, session->client) : -EUSERS;
	if (r < 0)
		return r;
	session->unconfirmed = false;
	session->n_links++;
	fp_conn_enter(conn, session);
	return 0;
}

/*
 * Gives a session a new control connection. When the node answers, each WRITE on the old
 * connections has taken effect, or never will. No limit is checked, because the new connection
 * takes the place of the session's old control connection.
 */
static int resume_session(struct fp_conn *conn, const struct fp_node_secret *secret)
{
	struct fp_node_server *server = conn->server;
	struct fp_node_session *session =
	    fp_node_session_find(&server->sessions, conn->hello.session_id, conn->hello.token);

	if (!session || !owns(secret, session))
		return -ESTALE;
	if (session->memfd)
		return -EPERM;
	session->unconfirmed = true;
	fp_node_server_fence(server, session);
	fp_conn_give(conn, session->client);
	session->n_resumes++;
	snprintf(session->peer, sizeof(session->peer), "%s", conn->peer);
	fp_conn_enter(conn, session);
	server->counters.resumed++;
	fp_log(FP_LOG_NOTICE, "session", "%llu: %s at %s is back: it has %u leases",
	       (unsigned long long)session->id, session->name, conn->peer, session->leases.n);
	return 0;
}

/*
 * Prepares keys for the leases of the session, if the client asked for keys and a device can reach
 * it. A session without keys stays open: the client itself decides whether it goes on.
 */
static void arm_session(struct fp_conn *conn)
{
	struct fp_cm_server *cm_server = conn->server->cm_server;
	struct fp_node_session *session = conn->session;
	bool by_cm = conn->hello.features & FP_WIRE_FEATURE_CM;
	struct sockaddr_storage own;
	char reason[64];
	int r;

	session->transport = conn->is_unix ? "shm" : "tcp";
	if (!(conn->hello.features & FP_WIRE_FEATURE_KEYS) || conn->is_unix || !cm_server)
		return;
	fp_listen_own_address(conn->fd, &own);
	/*
	 * Clears the port, because it is the port of TCP, and rdma_cm uses another one. The port of
	 * an IPv6 address lies at the same place.
	 */
	((struct sockaddr_in *)&own)->sin_port = 0;
	r = fp_cm_server_peer_new(cm_server, by_cm ? (struct sockaddr *)&own : NULL, conn->peer,
	                          &session->cm_peer);
	if (r == 0)
		session->transport = by_cm ? "rdma" : "rdma+tcp";
	else
		fp_log(FP_LOG_WARNING, "stranger", "%s: its session has no rdma: %s", conn->peer,
		       fp_strerror(r, reason, sizeof(reason)));
}

static uint32_t milliseconds(uint64_t ns)
{
	return (uint32_t)FP_MIN((ns + FP_NSEC_PER_MSEC - 1) / FP_NSEC_PER_MSEC, UINT32_MAX);
}

static int welcome(struct fp_conn *conn, const struct fp_node_secret *secret)
{
	const struct fp_limits *limits = &conn->server->config->limits;
	struct fp_node_session *session = conn->session;
	struct fp_wire_welcome welcome = {
	    .version = conn->challenge.version,
	    .features = session->memfd ? FP_WIRE_FEATURE_MEMFD : 0,
	    .session_id = session->id,
	    .max_payload = FP_WIRE_MAX_PAYLOAD,
	    .max_outstanding = (uint32_t)limits->max_requests,
	};
	uint8_t payload[sizeof(welcome)];
	int r;

	if (!conn->is_unix) {
		if (fp_conn_is_control(conn)) {
			session->grace_ns = limits->grace_ns;
			session->idle_timeout_ns = limits->idle_timeout_ns;
		}
		welcome.grace_ms = milliseconds(session->grace_ns);
		welcome.idle_ms = milliseconds(session->idle_timeout_ns);
	}
	if (session->cm_peer)
		welcome.features |= conn->hello.features & (FP_WIRE_FEATURE_KEYS | FP_WIRE_FEATURE_CM);
	if (welcome.features & FP_WIRE_FEATURE_CM)
		welcome.cm_port = fp_cm_server_port(conn->server->cm_server);
	if (fp_conn_is_control(conn))
		memcpy(welcome.token, session->token, sizeof(welcome.token));
	if (fp_conn_is_control(conn) && session->cm_peer)
		fp_cm_server_peer_admit(session->cm_peer, session->id, session->token);
	r = fp_auth_prove_server(secret ? secret->text : NULL, &conn->hello, &conn->challenge, &welcome,
	                         welcome.proof);
	if (r < 0)
		return r;
	fp_wire_welcome_encode(&welcome, payload);
	fp_request_answer(conn, FP_WIRE_WELCOME, payload, sizeof(payload));
	return 0;
}

static const char *refusal(int r)
{
	switch (r) {
	case -EUSERS:
		return "max_sessions or max_connections are open, or a quarter of LimitNOFILE=, or its "
		       "client has three quarters of one of these, or its session has 64 links";
	case -EACCES:
		return "it named a session that is not there, or its wrong token";
	case -EPERM:
		return "its session maps its leases: there is no LINK and no RESUME";
	case -ESTALE:
		return "it came back for a session that is not there any more, or with the wrong token";
	default:
		return "out of memory";
	}
}

/* Opens, resumes or joins a session, as HELLO asked. */
static int enter(struct fp_conn *conn, const struct fp_node_secret *secret)
{
	switch (conn->hello.purpose) {
	case FP_WIRE_CONTROL:
		return open_session(conn, secret);
	case FP_WIRE_RESUME:
		return resume_session(conn, secret);
	default:
		return attach_link(conn, secret);
	}
}

int fp_admission_auth(struct fp_conn *conn)
{
	const struct fp_auth_config *auth = &conn->server->config->auth;
	const struct fp_node_secret *secret =
	    fp_secrets_proven(&auth->secrets, &conn->hello, &conn->challenge, fp_inbox_payload(&conn->inbox));
	int r;

	if (auth->given && !secret) {
		fp_conn_refuse(conn, FP_WIRE_DENIED, "it knows no secret of this node");
		return 0;
	}
	r = enter(conn, secret);
	if (r == 0 && fp_conn_is_control(conn))
		arm_session(conn);
	if (r == 0)
		r = welcome(conn, secret);
	if (r < 0)
		fp_conn_refuse(conn, fp_wire_status_from_errno(r), refusal(r));
	else if (conn->state != FP_CONN_KILLED)
		conn->state = FP_CONN_OPEN;
	return 0;
}
