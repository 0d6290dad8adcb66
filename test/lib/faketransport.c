/* The fake transport: its sessions, their control calls, and their breaks. Room: test/lib. */
#include "fakeworld.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "testrng.h"

static struct fake_session *sessions;

/* ---- breaks ---- */

/* Ends the connection. Now its outstanding writes have their last effect. */
static void session_cut(struct fake_session *session)
{
	if (session->connection->cut)
		return;
	session->connection->cut = true;
	for (struct fake_link *link = session->links; link; link = link->next)
		for (unsigned i = 0; i < link->n_ios; i++)
			fake_scribble(session, link->ios[i]);
}

static void node_break(struct fake_node *node, unsigned ways, enum fake_break how)
{
	for (struct fake_session *session = sessions; session; session = session->next) {
		if (session->node != node || !(session->way & ways) || session->opener != getpid())
			continue;
		if (how == FAKE_CUT)
			session_cut(session);
		else
			session->connection->frozen = true;
	}
}

void fake_break(unsigned node_idx, enum fake_break how)
{
	fake_lock();
	node_break(&fake_nodes[node_idx], ~0u, how);
	fake_unlock();
}

void fake_close_ways(unsigned node_idx, unsigned ways)
{
	fake_lock();
	fake_nodes[node_idx].closed_ways |= ways;
	node_break(&fake_nodes[node_idx], ways, FAKE_CUT);
	fake_unlock();
}

/* Every call begins here. 0, or the error that the call must return. */
int fake_call(struct fake_node *node)
{
	if (node->dead)
		return -ECONNRESET;
	if (fake_world->calls_to_failure == 0 || --fake_world->calls_to_failure)
		return 0;
	if (fake_world->failure == -ECONNRESET || fake_world->failure == -EPIPE) {
		if (node->resumable)
			node_break(node, ~0u, FAKE_CUT);
		else
			node->dead = true;
	}
	return fake_world->failure;
}

int fake_session_call(struct fake_session *session)
{
	int r = fake_call(session->node);

	if (r < 0)
		return r;
	if (session->connection->frozen || session->connection->cut)
		return session->connection->frozen ? -ETIMEDOUT : -ECONNRESET;
	session->standing->unconfirmed = false;
	return 0;
}

/* ---- sessions ---- */

/*
 * Cuts all connections of a session. Only connections of this process can spoil the undefined
 * bytes.
 */
static void connections_cut(uint64_t standing_id)
{
	for (struct fake_session *session = sessions; session; session = session->next)
		if (session->standing->id == standing_id && session->opener == getpid())
			session_cut(session);
	for (unsigned i = 0; i < MAX_CONNECTIONS; i++)
		if (fake_world->connections[i].used && fake_world->connections[i].standing_id == standing_id)
			fake_world->connections[i].cut = true;
}

/* Resumes a session: its old connections end before the answer. */
static int standing_resume(struct fake_node *node, const struct fp_session_identity *identity,
                           struct fake_standing **ret_standing)
{
	struct fake_standing *standing;

	node->n_resume_attempts++;
	if (node->resume_errors) {
		node->resume_errors--;
		return node->resume_error ? node->resume_error : -ECONNREFUSED;
	}
	standing = fake_standing_find(node, identity);
	if (!standing)
		return -ESTALE;
	connections_cut(standing->id);
	if (!standing->unconfirmed)
		standing->token_before = standing->token;
	standing->token = test_random(&fake_world->rng);
	standing->unconfirmed = true;
	node->n_resumes++;
	*ret_standing = standing;
	return 0;
}

static int session_open(const struct fp_url *url, const struct fp_session_options *options,
                        struct fp_session **ret_session)
{
	struct fake_node *node = &fake_nodes[url->port % FAKE_NODES];
	unsigned way = fake_way(!strcmp(url->transport->scheme, "fakeslow"), url->port / FAKE_NODES);
	struct fake_standing *standing = NULL;
	struct fake_session *session;
	int r;

	fake_lock();
	fake_reap_locked();
	r = fake_call(node);
	if (r == 0 && node->closed_ways & way)
		r = node->closed_error ? node->closed_error : -EHOSTUNREACH;
	if (r == 0 && options->resume)
		r = standing_resume(node, options->resume, &standing);
	if (r == 0) {
		session = calloc(1, sizeof(*session));
		assert(session);
		session->base.transport = url->transport;
		session->node = node;
		session->way = way;
		session->opener = getpid();
		session->standing = standing ? standing : fake_standing_new(node);
		session->connection = fake_connection_open(node, session->standing, &session->fd);
		session->next = sessions;
		sessions = session;
		*ret_session = &session->base;
	}
	fake_unlock();
	return r;
}

/* Frees this process' copy of the session. In a forked child nothing else happens. */
static void session_free(struct fake_session *session)
{
	struct fake_session **p = &sessions;

	assert(!session->links); /* links must be closed first */
	while (*p != session)
		p = &(*p)->next;
	*p = session->next;
	close(session->fd);
	fake_reap_locked();
	free(session);
}

static void session_close(struct fp_session *base)
{
	struct fake_session *session = (struct fake_session *)base;

	fake_lock();
	if (session->opener == getpid()) {
		for (uint32_t id = 0; id < MAX_LEASES; id++)
			if (session->shown[id].base)
				munmap(session->shown[id].base, session->shown[id].size_bytes);
		session->connection->abandoned = true; /* the session ends now; fake_reap has nothing to do */
		fake_standing_end(session->standing);
	}
	session_free(session);
	fake_unlock();
}

/* Leaves the leases mapped, as the real transports do: the store may use them on, and unmaps
 * them. */
static void session_abandon(struct fp_session *base)
{
	struct fake_session *session = (struct fake_session *)base;

	fake_lock();
	if (session->opener == getpid())
		session->connection->abandoned = true;
	session_free(session);
	fake_unlock();
}

static int identity(struct fp_session *base, struct fp_session_identity *ret_identity)
{
	struct fake_session *session = (struct fake_session *)base;

	if (!session->node->resumable)
		return -EOPNOTSUPP;
	*ret_identity = (struct fp_session_identity){.id = session->standing->id,
	                                             .idle_ns = session->node->idle_ns,
	                                             .grace_ns = session->node->grace_ns};
	memcpy(ret_identity->token, &session->standing->token, sizeof(uint64_t));
	return 0;
}

static void lease_show(struct fake_session *session, uint32_t id, const struct fp_lease **ret_lease)
{
	const struct fake_memory *memory = fake_memory_of(session, id);
	struct fp_lease *shown = &session->shown[id];

	session->attached[id] = true;
	*shown = (struct fp_lease){.id = id, .size_bytes = memory->size_bytes};
	if (session->base.transport->load_store) {
		shown->base = mmap(NULL, memory->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
		                   fake_arena_fd, (off_t)memory->at);
		assert(shown->base != MAP_FAILED);
	}
	*ret_lease = shown;
}

static int attach(struct fp_session *base, uint32_t id, const struct fp_lease **ret_lease)
{
	struct fake_session *session = (struct fake_session *)base;
	int r;

	fake_lock();
	r = fake_session_call(session);
	session->node->n_attaches++;
	if (r == 0 && !fake_memory_of(session, id))
		r = -EACCES;
	if (r == 0 && base->transport->load_store)
		r = -EPERM;
	if (r == 0)
		lease_show(session, id, ret_lease);
	fake_unlock();
	return r;
}

static bool has_all_leases(const struct fake_session *session)
{
	unsigned n = 0;

	for (uint32_t id = 0; id < MAX_LEASES; id++)
		n += session->standing->grants[id].memory != 0;
	return session->node->max_leases && n >= session->node->max_leases;
}

static int lease_make(struct fake_session *session, uint64_t size_bytes, const struct fp_lease **ret_lease)
{
	struct fake_standing *standing = session->standing;
	struct fake_node *node = session->node;
	uint32_t id = 0;
	int r = fake_session_call(session);

	if (r < 0)
		return r;
	assert(size_bytes && size_bytes % 4096 == 0);
	if (node->leased_bytes + size_bytes > node->capacity_bytes)
		return -ENOSPC;
	if (node->quota_bytes && node->leased_bytes + size_bytes > node->quota_bytes)
		return -EDQUOT;
	if (has_all_leases(session))
		return -EUSERS;
	while (standing->grants[id].memory)
		assert(++id < MAX_LEASES);
	fake_memory_hold(fake_memory_new(node, size_bytes), standing, id, false);
	lease_show(session, id, ret_lease);
	return 0;
}

static bool has_leases(const struct fake_standing *standing)
{
	for (uint32_t id = 0; id < MAX_LEASES; id++)
		if (standing->grants[id].memory)
			return true;
	return false;
}

static int adopt_from(struct fake_session *session, const struct fp_session_identity *identity,
                      unsigned *ret_n_leases)
{
	struct fake_standing *standing = session->standing, *parent;
	int r = fake_session_call(session);
	unsigned n = 0;

	if (r < 0)
		return r;
	if (session->node->adopt_errors) {
		session->node->adopt_errors--;
		return -ECONNREFUSED;
	}
	parent = fake_standing_find(session->node, identity);
	if (!parent)
		return -ESTALE;
	if (parent == standing || standing->has_adopted || has_leases(standing))
		return -EINVAL;
	for (uint32_t id = 0; id < MAX_LEASES; id++)
		if (parent->grants[id].memory) {
			fake_memory_hold(parent->grants[id].memory - 1, standing, id, true);
			n++;
		}
	standing->has_adopted = true;
	session->node->n_adoptions++;
	if (ret_n_leases)
		*ret_n_leases = n;
	return 0;
}

static int adopt(struct fp_session *base, const struct fp_session_identity *parent, unsigned *ret_n_leases)
{
	int r;

	fake_lock();
	fake_reap_locked();
	r = adopt_from((struct fake_session *)base, parent, ret_n_leases);
	fake_unlock();
	return r;
}

static int lease(struct fp_session *base, uint64_t size_bytes, const struct fp_lease **ret_lease)
{
	int r;

	fake_lock();
	r = lease_make((struct fake_session *)base, size_bytes, ret_lease);
	fake_unlock();
	return r;
}

static int release(struct fp_session *base, uint32_t id)
{
	struct fake_session *session = (struct fake_session *)base;
	int r = 0;

	fake_lock();
	if (session->node->dead || session->connection->cut) {
		r = -ECONNRESET;
	} else if (session->standing->has_adopted && !fake_memory_of(session, id)) {
		r = -EACCES;
	} else {
		assert(fake_memory_of(session, id));
		assert(session->attached[id] || session->standing->has_adopted);
		if (session->shown[id].base)
			munmap(session->shown[id].base, session->shown[id].size_bytes);
		session->shown[id].base = NULL;
		session->attached[id] = false;
		fake_lease_drop(session->standing, id);
	}
	fake_unlock();
	return r;
}

static int info(struct fp_session *base, struct fp_node_info *ret_info)
{
	struct fake_session *session = (struct fake_session *)base;
	struct fake_node *node = session->node;
	int r;

	fake_lock();
	fake_reap_locked();
	r = fake_session_call(session);
	if (r == 0)
		*ret_info = (struct fp_node_info){.capacity_bytes = node->capacity_bytes,
		                                  .free_bytes = node->capacity_bytes - node->leased_bytes,
		                                  .quota_bytes = UINT64_MAX, /* it shows when it is met */
		                                  .refusal.cause = has_all_leases(session) ? FP_REFUSAL_LEASES
		                                                                           : FP_REFUSAL_NONE};
	fake_unlock();
	return r;
}

static int ping(struct fp_session *base, size_t len_bytes, uint64_t deadline_ns)
{
	struct fake_session *session = (struct fake_session *)base;
	int r;

	assert(deadline_ns > fp_clock_ns());
	fake_lock();
	session->node->n_pings++;
	r = fake_session_call(session);
	fake_unlock();
	return r;
}

#define FAKE_OPERATIONS                                                                                      \
	.session_open = session_open, .session_close = session_close, .lease = lease, .release = release,    \
	.info = info, .ping = ping, .identity = identity, .attach = attach, .adopt = adopt,                  \
	.abandon = session_abandon, .link_open = fake_link_open, .link_close = fake_link_close,              \
	.link_break = fake_link_break, .link_register = fake_link_register, .submit = fake_link_submit,      \
	.poll = fake_link_poll, .pollfd = fake_link_pollfd

static const struct fp_transport by_request = {.scheme = "fake", FAKE_OPERATIONS};
static const struct fp_transport by_slow_request = {.scheme = "fakeslow", FAKE_OPERATIONS};
static const struct fp_transport by_load_store = {.scheme = "fakemem", .load_store = true, FAKE_OPERATIONS};

struct fp_url fake_url(unsigned node_idx, bool load_store)
{
	struct fp_url url = {.transport = load_store ? &by_load_store : &by_request,
	                     .port = (uint16_t)node_idx};

	snprintf(url.text, sizeof(url.text), "%s://%u", url.transport->scheme, node_idx);
	return url;
}

struct fp_url_set fake_ways(unsigned node_idx, unsigned n_transports, unsigned n_addresses)
{
	struct fp_url_set set = {.n_transports = n_transports, .n_addresses = n_addresses};

	for (unsigned t = 0; t < n_transports; t++) {
		for (unsigned a = 0; a < n_addresses; a++) {
			struct fp_url *url = &set.urls[t][a];

			url->transport = t ? &by_slow_request : &by_request;
			url->port = (uint16_t)(node_idx + FAKE_NODES * a);
			snprintf(url->text, sizeof(url->text), "%s://%u.%u", url->transport->scheme, node_idx,
			         a);
		}
	}
	return set;
}
