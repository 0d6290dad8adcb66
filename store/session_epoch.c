/*
 * Session epochs: the sessions that a node has had, and the links that belong to them. Room: store.
 * Called by control threads and reconnect threads, with lanes_lock held.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "store_internal.h"

void fp_store_lanes_lock(struct fp_store *store)
{
	if (store->opener == getpid())
		pthread_rwlock_wrlock(&store->lanes_lock);
}

void fp_store_lanes_share(struct fp_store *store)
{
	if (store->opener == getpid())
		pthread_rwlock_rdlock(&store->lanes_lock);
}

void fp_store_lanes_unlock(struct fp_store *store)
{
	if (store->opener == getpid())
		pthread_rwlock_unlock(&store->lanes_lock);
}

struct fp_session_epoch *fp_session_epoch_new(struct fp_session *session, uint64_t number)
{
	struct fp_session_epoch *epoch = calloc(1, sizeof(*epoch));

	if (epoch)
		*epoch = (struct fp_session_epoch){.session = session, .number = number, .n_refs = 1};
	return epoch;
}

static void epoch_put(struct fp_session_epoch *epoch)
{
	if (--epoch->n_refs)
		return;
	fp_session_abandon(epoch->session);
	free(epoch);
}

void fp_node_enter(struct fp_node *node, struct fp_session_epoch *epoch)
{
	struct fp_session_epoch *before = node->epoch;

	node->epoch = epoch;
	epoch_put(before);
}

int fp_session_epoch_link_open(struct fp_session_epoch *epoch, const struct fp_lane_shared *shared,
                               struct fp_session_epoch_link **ret_link)
{
	struct fp_session_epoch_link *link = calloc(1, sizeof(*link));
	int r;

	if (!link)
		return -ENOMEM;
	r = fp_link_open(epoch->session, &link->link);
	if (r < 0) {
		free(link);
		return r;
	}
	link->epoch = epoch;
	epoch->n_refs++;
	for (unsigned i = 0; i < shared->n_regions; i++)
		fp_link_register(link->link, shared->regions[i].base, shared->regions[i].len_bytes);
	*ret_link = link;
	return 0;
}

void fp_session_epoch_link_close(struct fp_session_epoch_link *link)
{
	if (!link)
		return;
	fp_link_close(link->link);
	epoch_put(link->epoch);
	free(link);
}
