/*
 * Client sessions as the node holds them. Room: daemon; see session.h.
 */
#include "session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auth.h"
#include "cleanup.h"
#include "clock.h"

static void count(struct fp_node_sessions *sessions, struct fp_node_session *session, int by)
{
	if (session->is_operator) {
		sessions->n_operators += (unsigned)by;
	} else {
		sessions->n += (unsigned)by;
		session->client->n_sessions += (unsigned)by;
	}
}

static void enter(struct fp_node_sessions *sessions, struct fp_node_session *session)
{
	struct fp_node_session **bucket = &sessions->buckets[session->id % FP_SESSION_BUCKETS];

	session->next = sessions->first;
	session->at = &sessions->first;
	session->bucket_next = *bucket;
	session->bucket_at = bucket;
	if (session->next)
		session->next->at = &session->next;
	if (session->bucket_next)
		session->bucket_next->bucket_at = &session->bucket_next;
	sessions->first = *bucket = session;
}

static void leave(struct fp_node_session *session)
{
	*session->at = session->next;
	*session->bucket_at = session->bucket_next;
	if (session->next)
		session->next->at = session->at;
	if (session->bucket_next)
		session->bucket_next->bucket_at = session->bucket_at;
}

int fp_node_session_open(struct fp_node_sessions *sessions, struct fp_client *client, const char *name,
                         const char *peer, struct fp_node_session **ret_session)
{
	fp_autofree struct fp_node_session *session = calloc(1, sizeof(*session));
	int r;

	if (!session)
		return -ENOMEM;
	r = fp_auth_random(session->token, sizeof(session->token));
	if (r < 0)
		return r;
	session->client = fp_client_ref(client);
	snprintf(session->name, sizeof(session->name), "%s", name);
	snprintf(session->peer, sizeof(session->peer), "%s", peer);
	session->transport = "tcp";
	session->id = ++sessions->last_id;
	session->opened_ns = fp_clock_ns();
	enter(sessions, session);
	count(sessions, session, 1);
	*ret_session = fp_take_ptr(session);
	return 0;
}

void fp_node_session_set_operator(struct fp_node_sessions *sessions, struct fp_node_session *session)
{
	count(sessions, session, -1);
	session->is_operator = true;
	count(sessions, session, 1);
}

void fp_node_session_disarm(struct fp_node_session *session)
{
	struct fp_cm_server_peer *cm_peer = fp_take_ptr(session->cm_peer);

	if (!cm_peer)
		return;
	fp_cm_server_peer_end(cm_peer);
	fp_node_leases_revoke(&session->leases);
	fp_cm_server_peer_unref(cm_peer);
}

int fp_node_session_adopt(struct fp_node_session *session, const struct fp_node_session *parent)
{
	int r;

	if (session == parent || session->parent_id || session->leases.n)
		return -EINVAL;
	if (session->client->adopted_places + parent->leases.capacity > FP_MAX_ADOPTED)
		return -ENOSPC;
	r = fp_node_leases_adopt(&session->leases, &parent->leases, session->client);
	if (r == 0)
		session->parent_id = parent->id;
	return r;
}

void fp_node_session_end(struct fp_node_sessions *sessions, struct fp_node_session *session)
{
	leave(session);
	count(sessions, session, -1);
	fp_node_session_disarm(session);
	fp_node_leases_done(&session->leases);
	fp_client_put(session->client);
	explicit_bzero(session, sizeof(*session));
	free(session);
}

struct fp_node_session *fp_node_session_by_id(const struct fp_node_sessions *sessions, uint64_t id)
{
	struct fp_node_session *session = sessions->buckets[id % FP_SESSION_BUCKETS];

	while (session && session->id != id)
		session = session->bucket_next;
	return session;
}

struct fp_node_session *fp_node_session_find(const struct fp_node_sessions *sessions, uint64_t id,
                                             const uint8_t token[FP_WIRE_TOKEN_BYTES])
{
	struct fp_node_session *session = fp_node_session_by_id(sessions, id);

	return session && fp_auth_equal(session->token, token, FP_WIRE_TOKEN_BYTES) ? session : NULL;
}

const char *fp_node_session_name(const struct fp_node_sessions *sessions, uint64_t id)
{
	const struct fp_node_session *session = fp_node_session_by_id(sessions, id);

	return session ? session->name : "gone";
}
