/*
 * Keys of leases: for READ and WRITE by a client's rdma device. Room: daemon; see lease.h.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"
#include "lease.h"

/*
 * Registers the memory, which pins all its pages at once. The pages were populated before, in
 * slices, because clearing them takes longest.
 */
static bool run_make(struct fp_worker_job *job)
{
	struct fp_lease_key *key = fp_container_of(job, struct fp_lease_key, make);
	struct fp_node_memory *memory = key->lease->memory;
	enum fp_verbs_access access = key->lease->read_only ? FP_VERBS_REMOTE_READ : FP_VERBS_REMOTE;

	key->status = fp_pool_populate(memory->pool, &memory->chunk);
	key->populated = key->status == 0;
	if (key->status == 0)
		key->status = fp_cm_server_peer_register(key->peer, memory->chunk.base,
		                                         memory->chunk.size_bytes, access, &key->region);
	return key->status > 0;
}

/*
 * The lease still exists, because the job that gives its memory back comes later in the same line.
 */
static void done_make(struct fp_worker_job *job)
{
	struct fp_lease_key *key = fp_container_of(job, struct fp_lease_key, make);

	key->made = key->status == 0;
	key->done(key->lease, key->revoked ? -ECANCELED : key->status, key->user);
}

static bool run_revoke(struct fp_worker_job *job)
{
	struct fp_lease_key *key = fp_container_of(job, struct fp_lease_key, revoke);

	fp_cm_server_peer_deregister(key->peer, &key->region);
	return false;
}

static void done_revoke(struct fp_worker_job *job)
{
	struct fp_lease_key *key = fp_container_of(job, struct fp_lease_key, revoke);

	fp_cm_server_peer_unref(key->peer);
	free(key);
}

int fp_node_lease_key_make(struct fp_node_lease *lease, struct fp_cm_server_peer *peer,
                           void (*done)(struct fp_node_lease *lease, int status, void *user), void *user)
{
	struct fp_lease_key *key = calloc(1, sizeof(*key));

	assert(lease->granted);
	if (!key)
		return -ENOMEM;
	fp_node_lease_key_revoke(lease);
	*key = (struct fp_lease_key){
	    .peer = fp_cm_server_peer_ref(peer),
	    .lease = lease,
	    .make = {.run = run_make, .done = done_make, .awaited = true},
	    .revoke = {.run = run_revoke, .done = done_revoke},
	    .done = done,
	    .user = user,
	};
	lease->key = key;
	lease->had_key = true;
	fp_worker_post(lease->memory->pools->worker, &lease->memory->line, &key->make);
	return 0;
}

void fp_node_lease_key_revoke(struct fp_node_lease *lease)
{
	struct fp_lease_key *key = fp_take_ptr(lease->key);

	if (!key)
		return;
	key->revoked = true;
	fp_worker_post(lease->memory->pools->worker, &lease->memory->line, &key->revoke);
}

void fp_node_leases_revoke(struct fp_node_leases *leases)
{
	for (uint32_t i = 0; i < leases->capacity; i++)
		if (leases->by_id[i])
			fp_node_lease_key_revoke(leases->by_id[i]);
}
