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
#include "holding.h"
#include "request.h"
#include "units.h"
#include "node_server.h"

static int refuse(struct fp_conn *conn, int r, struct fp_refusal refusal)
{
	conn->refusal = refusal;
	return r;
}

/* A number of places that a client wants one of. */
struct places {
	enum fp_refusal_cause cause;
	uint64_t max;         /* as configured */
	uint64_t n, n_client; /* that are taken, by all and by the client */
};

/*
 * Each connection takes a descriptor and memory, so their limit may be lower than max. Sessions
 * have the same limit, because every session may be resumed, and a RESUME gets a connection without
 * a check of the limit. -EUSERS: no place is left for the client.
 */
static int check_places(struct fp_conn *conn, const struct fp_client *client, const struct places *places)
{
	const struct fp_node_server *server = conn->server;
	struct fp_refusal refusal = {.cause = places->cause, .limit = places->max, .used = places->n};
	uint64_t share, room = fp_holding_places(server);

	if (!server->options.private_node && server->max_fds < places->max) {
		refusal.limit = server->max_fds;
		refusal.by_files = true;
	}
	if (places->n >= room)
		return refuse(conn, -EUSERS,
		              (struct fp_refusal){.cause = FP_REFUSAL_HOST_MEMORY, .used = places->n});
	if (places->n_client >= fp_client_share(client, room))
		return refuse(conn, -EUSERS,
		              (struct fp_refusal){.cause = FP_REFUSAL_HOST_MEMORY,
		                                  .is_share = true,
		                                  .used = places->n_client});
	if (places->n >= refusal.limit)
		return refuse(conn, -EUSERS, refusal);
	share = fp_client_share(client, refusal.limit);
	if (places->n_client < share)
		return 0;
	refusal.is_share = true;
	refusal.limit = share;
	refusal.used = places->n_client;
	return refuse(conn, -EUSERS, refusal);
}

/*
 * Gives the connection to client. -EUSERS: this client, or all clients together, have too many
 * connections. Those of operators do not count.
 */
static int take_place(struct fp_conn *conn, struct fp_client *client)
{
	const struct places places = {.cause = FP_REFUSAL_CONNECTIONS,
	                              .max = conn->server->config->limits.max_connections,
	                              .n = client->clients->n_conns,
	                              .n_client = client->n_conns};
	int r;

	if (conn->client == client)
		return 0;
	r = check_places(conn, client, &places);
	if (r == 0)
		fp_conn_give(conn, client, FP_CONN_PLACE_CONNECTION);
	return r;
}

/*
 * A peer with a session's token counts as a client, not as a stranger. So a flood of strangers
 * can't keep a client from coming back. Others may have overheard the token. So only a few such
 * peers of each session take a place of the client before they have proved its secret.
 */
static void trust_token(struct fp_conn *conn)
{
	const struct fp_wire_hello *hello = &conn->hello;
	struct fp_node_session *session =
	    fp_node_session_find(&conn->server->sessions, hello->session_id, hello->token);

	/* -EUSERS: attach_link refuses it later */
	if (session && hello->purpose != FP_WIRE_CONTROL && session->n_trusted < FP_MAX_TRUSTED &&
	    take_place(conn, session->client) == 0) {
		session->n_trusted++;
		conn->trusted_by = session->id;
	}
}

void fp_admission_end_trust(struct fp_conn *conn)
{
	struct fp_node_session *session = fp_node_session_by_id(&conn->server->sessions, conn->trusted_by);

	if (conn->trusted_by && session)
		session->n_trusted--;
	conn->trusted_by = 0;
}

static void refuse_version(struct fp_conn *conn)
{
	const struct fp_refusal refusal = {
	    .cause = FP_REFUSAL_VERSION, .limit = FP_WIRE_VERSION, .used = conn->hello.max_version};

	fp_conn_refuse(conn, FP_WIRE_VERSION_GAP, &refusal, NULL);
}

int fp_admission_hello(struct fp_conn *conn)
{
	struct fp_wire_challenge *challenge = &conn->challenge;
	uint8_t payload[sizeof(*challenge)];

	if (fp_wire_hello_decode(fp_inbox_payload(&conn->inbox), conn->inbox.header.length, &conn->hello) < 0)
		return -EPROTO;
	if (fp_wire_version_choose(&conn->hello, &challenge->version) < 0) {
		refuse_version(conn);
		return 0;
	}
	if (fp_auth_random(challenge->nonce, sizeof(challenge->nonce)) < 0) {
		fp_conn_refuse(conn, FP_WIRE_BROKEN, &(struct fp_refusal){.cause = FP_REFUSAL_NONE},
		               "no random bytes for its challenge");
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
static struct fp_client *identify(struct fp_conn *conn, const struct fp_node_secret *secret)
{
	if (secret)
		snprintf(conn->client_name, sizeof(conn->client_name), "%s", secret->name);
	else
		fp_client_peer_name(conn->fd, conn->is_unix, conn->peer, conn->client_name);
	return fp_client_get(&conn->server->clients, conn->client_name);
}

/*
 * True if the peer proved the same secret as the session's client. The token alone is not enough,
 * because others can overhear it.
 */
static bool owns(const struct fp_node_secret *secret, const struct fp_node_session *session)
{
	return !secret || strcmp(secret->name, session->client->name) == 0;
}

static bool is_operator(const struct fp_conn *conn)
{
	return conn->hello.features & FP_WIRE_FEATURE_OPERATOR;
}

/*
 * Operators have places of their own, so that no crowd of programs keeps them out. Whoever owns the
 * node needs no place and takes none, so that no crowd of operators keeps it out. A connection
 * keeps its place after BYE, until it is freed.
 */
static int take_operator_place(struct fp_conn *conn, struct fp_client *client,
                               const struct fp_node_secret *secret)
{
	const unsigned rights = FP_RIGHT_STATUS | FP_RIGHT_ADMIN;
	const struct places places = {.cause = FP_REFUSAL_OPERATORS,
	                              .max = FP_MAX_OPERATORS,
	                              .n = client->clients->n_operators,
	                              .n_client = client->n_operators};
	bool is_owner = fp_listen_peer_is_owner(conn->fd);
	int r;

	if (secret && !(secret->rights & rights))
		return refuse(conn, -EPERM, (struct fp_refusal){.cause = FP_REFUSAL_RIGHT, .limit = rights});
	r = is_owner ? 0 : check_places(conn, client, &places);
	if (r == 0)
		fp_conn_give(conn, client, is_owner ? FP_CONN_PLACE_NONE : FP_CONN_PLACE_OPERATOR);
	return r;
}

static int take_session_place(struct fp_conn *conn, struct fp_client *client)
{
	const struct places places = {.cause = FP_REFUSAL_SESSIONS,
	                              .max = conn->server->config->limits.max_sessions,
	                              .n = conn->server->sessions.n,
	                              .n_client = client->n_sessions};
	int r = check_places(conn, client, &places);

	return r < 0 ? r : take_place(conn, client);
}

static int open_session(struct fp_conn *conn, const struct fp_node_secret *secret)
{
	struct fp_node_server *server = conn->server;
	struct fp_client *client = identify(conn, secret);
	struct fp_node_session *session;
	int r;

	if (!client)
		return -ENOMEM;
	r = is_operator(conn) ? take_operator_place(conn, client, secret) : take_session_place(conn, client);
	if (r == 0)
		r = fp_node_session_open(&server->sessions, client, conn->hello.client_name, conn->peer,
		                         &session);
	fp_client_put(client); /* the connection holds the client now */
	if (r < 0)
		return r;
	fp_conn_enter(conn, session);
	session->memfd = conn->is_unix && conn->hello.features & FP_WIRE_FEATURE_MEMFD;
	if (is_operator(conn))
		fp_node_session_set_operator(&server->sessions, session);
	else
		server->own.counters.sessions++;
	fp_log(session->is_operator ? FP_LOG_DEBUG : FP_LOG_INFO, "session",
	       "%llu: %s at %s begins, of client %s", (unsigned long long)session->id, session->name,
	       conn->peer, session->client->name);
	return 0;
}

/*
 * A client that maps its leases could free the pages while we read or write them. An operator's
 * session has no leases.
 */
static bool has_links(const struct fp_node_session *session)
{
	return !session->memfd && !session->is_operator;
}

static int attach_link(struct fp_conn *conn, const struct fp_node_secret *secret)
{
	struct fp_node_session *session =
	    fp_node_session_find(&conn->server->sessions, conn->hello.session_id, conn->hello.token);
	int r;

	if (!session || !owns(secret, session))
		return refuse(conn, -EACCES, (struct fp_refusal){.cause = FP_REFUSAL_SESSION});
	if (!has_links(session))
		return -EPERM;
	if (session->n_links >= FP_WIRE_MAX_LINKS)
		return refuse(conn, -EUSERS,
		              (struct fp_refusal){.cause = FP_REFUSAL_LINKS,
		                                  .limit = FP_WIRE_MAX_LINKS,
		                                  .used = FP_WIRE_MAX_LINKS});
	r = take_place(conn, session->client);
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
		return refuse(conn, -ESTALE, (struct fp_refusal){.cause = FP_REFUSAL_SESSION});
	if (!has_links(session))
		return -EPERM;
	session->unconfirmed = true;
	fp_node_server_fence(server, session);
	fp_conn_give(conn, session->client, FP_CONN_PLACE_CONNECTION);
	session->n_resumes++;
	snprintf(session->peer, sizeof(session->peer), "%s", conn->peer);
	fp_conn_enter(conn, session);
	server->own.counters.resumed++;
	fp_log(FP_LOG_NOTICE, "session", "%llu: %s at %s is back: it has %u lease%s",
	       (unsigned long long)session->id, session->name, conn->peer, session->leases.n,
	       fp_plural(session->leases.n));
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
	if (!(conn->hello.features & FP_WIRE_FEATURE_KEYS) || !has_links(session) || conn->is_unix ||
	    !cm_server)
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
	    .features = (session->memfd ? FP_WIRE_FEATURE_MEMFD : 0) |
	                (session->is_operator ? FP_WIRE_FEATURE_OPERATOR : 0),
	    .session_id = session->id,
	    .max_payload = FP_WIRE_MAX_PAYLOAD,
	    .max_outstanding = (uint32_t)limits->max_requests,
	};
	uint8_t payload[sizeof(welcome)];
	int r;

	if (!conn->is_unix) {
		if (fp_conn_is_control(conn)) {
			session->grace_ns = session->is_operator ? 0 : limits->grace_ns;
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

/* Returns the reason for the log, or NULL if the limit that was met is reason enough. */
static const char *reason_of(int r)
{
	switch (r) {
	case -EUSERS:
		return NULL;
	case -EACCES:
		return "the session that it named does not exist, or its token was wrong";
	case -EPERM:
		return "sessions that map their leases, and operators' sessions, have no LINK and no RESUME";
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

static void refuse_secret(struct fp_conn *conn)
{
	static const uint8_t none[FP_WIRE_PROOF_BYTES];
	bool given = memcmp(fp_inbox_payload(&conn->inbox), none, sizeof(none)) != 0;
	const struct fp_refusal refusal = {.cause = FP_REFUSAL_SECRET, .limit = given};

	fp_conn_refuse(conn, FP_WIRE_DENIED, &refusal,
	               given ? "it knows no secret of this node" : "it gave no secret");
}

int fp_admission_auth(struct fp_conn *conn)
{
	const struct fp_auth_config *auth = &conn->server->config->auth;
	const struct fp_node_secret *secret =
	    fp_secrets_proven(&auth->secrets, &conn->hello, &conn->challenge, fp_inbox_payload(&conn->inbox));
	int r;

	if (auth->given && !secret) { /* it is trusted, and keeps its place, until it is gone */
		refuse_secret(conn);
		return 0;
	}
	fp_admission_end_trust(conn);
	r = enter(conn, secret);
	if (r == 0 && fp_conn_is_control(conn))
		arm_session(conn);
	if (r == 0)
		r = welcome(conn, secret);
	if (r < 0)
		fp_conn_refuse(conn, fp_wire_status_from_errno(r), &conn->refusal,
		               conn->refusal.cause == FP_REFUSAL_RIGHT ? NULL : reason_of(r));
	else if (conn->state != FP_CONN_KILLED)
		conn->state = FP_CONN_OPEN;
	return 0;
}
