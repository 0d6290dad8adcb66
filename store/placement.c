/*
 * Placement: which nodes lend leases, and of which size. Room: store. For control threads: it
 * blocks on the nodes, and allocates.
 */
#include <errno.h>

#include "cleanup.h"
#include "store_internal.h"

#define ASKED_MAX_BYTES (1ull << 46) /* a lease of the protocol has no more */
#define ASK_NS          FP_NSEC_PER_SEC
/* A lease is at most this part of what its node has left, unless it is this small. */
#define LEASE_PART  8u
#define SMALL_BYTES (8ull << 20)

/* How much one node may still lend in one reservation. */
struct offer {
	uint64_t free_bytes; /* the same for all ports of one node, which share its pools */
	unsigned n_leases;   /* leases that this port has */
	/* size of the next lease, at most free_bytes; 0: the node can't lend any more */
	uint64_t lease_bytes;
};

struct placement {
	struct fp_store *store;
	struct fp_shortage shortage;
	struct offer offers[FP_STORE_MAX_NODES];
	struct fp_slots *taken, **tail; /* in the order in which they were taken */
	uint64_t taken_pages;
	uint32_t n_taken;
	int cause; /* why the placement fails, if it does */
};

/* True if the error of a control call says nothing about the pages at the node. */
static bool is_passing(int error)
{
	return error == -ETIMEDOUT || /* control calls may time out while reads and writes still work */
	       error == -ENOMEM || error == -EMFILE || error == -ENFILE; /* this host ran out of something */
}

/*
 * Begins a control call to a node. 0: this thread holds node->control, and *ret_epoch is valid
 * until control_end. -EHOSTDOWN: the node is not up. Never waits for an attempt to resume, because
 * a node is not up during such an attempt.
 */
static int control_begin(struct fp_node *node, struct fp_session_epoch **ret_epoch)
{
	if (!fp_node_up(node) || fp_node_is_adopting(node))
		return -EHOSTDOWN;
	pthread_mutex_lock(&node->control);
	if (!fp_node_up(node)) {
		pthread_mutex_unlock(&node->control);
		return -EHOSTDOWN;
	}
	*ret_epoch = node->epoch;
	return 0;
}

/* Ends a control call that returned r. */
static int control_end(struct fp_node *node, int r)
{
	uint64_t number = node->epoch->number;

	pthread_mutex_unlock(&node->control);
	if (r < 0 && fp_node_is_fatal(r) && !is_passing(r))
		fp_node_report(node, number, r, NULL);
	return r;
}

/* Notes why a node could not help, unless the reason is that it is full. */
static void node_failed(struct placement *p, unsigned node_idx, int error)
{
	p->offers[node_idx].lease_bytes = 0;
	p->shortage.nodes[node_idx].error = error;
	if (error == -EHOSTDOWN)
		p->shortage.nodes[node_idx].refusal = fp_node_refusal(&p->store->nodes[node_idx]);
	p->cause = error;
}

/* Stores in the shortage why a node gave no lease. The caller holds node->control. */
static void keep_reason(struct placement *p, unsigned node_idx, int error, struct fp_session *session)
{
	p->shortage.nodes[node_idx].error = error;
	if (fp_session_is_refusal(error))
		fp_session_refusal(session, &p->shortage.nodes[node_idx].refusal);
}

static uint64_t half(uint64_t lease_bytes)
{
	return lease_bytes / 2 & ~(uint64_t)(FP_PAGE_SIZE - 1);
}

/*
 * The size of the next leases of a node. One client must not take most of a small pool for a few
 * pages: its forked children, and other clients, need leases, too.
 */
static uint64_t fair_bytes(uint64_t lease_bytes, uint64_t free_bytes)
{
	while (lease_bytes > SMALL_BYTES && lease_bytes > free_bytes / LEASE_PART)
		lease_bytes = half(lease_bytes);
	return lease_bytes;
}

/* Sets how much a node still has, and halves its next lease until it fits. */
static void offer_set_free(struct offer *offer, uint64_t free_bytes)
{
	offer->free_bytes = free_bytes;
	while (offer->lease_bytes > free_bytes)
		offer->lease_bytes = half(offer->lease_bytes);
}

/*
 * 0: *ret_offer is valid. Its lease_bytes are 0 if the port's session has as many leases as it may.
 */
static int ask_free(struct placement *p, struct fp_node *node, struct offer *ret_offer)
{
	struct fp_node_info info;
	struct fp_session_epoch *epoch;
	int r = control_begin(node, &epoch);

	if (r < 0)
		return r;
	r = fp_session_info(epoch->session, &info);
	if (r == 0) {
		uint64_t free_bytes = fp_node_info_room(&info);
		bool is_full = info.refusal.cause == FP_REFUSAL_LEASES;

		*ret_offer = (struct offer){.free_bytes = free_bytes,
		                            .n_leases = node->n_leases,
		                            .lease_bytes =
		                                is_full ? 0 : fair_bytes(p->store->lease_bytes, free_bytes)};
	}
	return control_end(node, r);
}

/* Sets how much a node still has, in the offers of all its ports. */
static void group_set_free(struct placement *p, unsigned group, uint64_t free_bytes)
{
	for (unsigned i = 0; i < p->store->n_nodes; i++)
		if (p->store->nodes[i].group == group)
			offer_set_free(&p->offers[i], free_bytes);
}

/*
 * Asks every node how much it has left. Returns the sum in bytes. A port whose session may have no
 * more leases says nothing about its node: each port has a session of its own.
 */
static uint64_t offers_collect(struct placement *p)
{
	uint64_t group_free[FP_STORE_MAX_NODES], total = 0;

	for (unsigned i = 0; i < p->store->n_sets; i++)
		group_free[i] = UINT64_MAX;
	for (unsigned i = 0; i < p->store->n_nodes; i++) {
		unsigned group = p->store->nodes[i].group;
		int r = ask_free(p, &p->store->nodes[i], &p->offers[i]);

		if (r < 0)
			node_failed(p, i, r);
		else if (p->offers[i].lease_bytes)
			group_free[group] = FP_MIN(group_free[group], p->offers[i].free_bytes);
	}
	for (unsigned i = 0; i < p->store->n_sets; i++) {
		if (group_free[i] == UINT64_MAX)
			continue; /* no port lends */
		group_set_free(p, i, group_free[i]);
		total += FP_MIN(group_free[i], UINT64_MAX - total);
	}
	return total;
}

static bool offer_is_better(const struct offer *a, const struct offer *b)
{
	if (a->lease_bytes != b->lease_bytes)
		return a->lease_bytes > b->lease_bytes;
	if (a->free_bytes != b->free_bytes)
		return a->free_bytes > b->free_bytes;
	return a->n_leases < b->n_leases;
}

/*
 * Returns the offer of the node whose next lease is the largest. Among equal ones it takes the node
 * with the most free memory, then the node with the fewest leases. So a node that refused a size
 * comes after nodes that may still grant it. NULL if no node has anything left.
 */
static struct offer *offers_best(struct placement *p)
{
	struct offer none = {.n_leases = UINT32_MAX}, *best = &none;

	for (struct offer *offer = p->offers; offer < p->offers + p->store->n_nodes; offer++)
		if (offer->lease_bytes && offer_is_better(offer, best))
			best = offer;
	return best->lease_bytes ? best : NULL;
}

/* Takes a lease of an epoch. The caller holds node->control. */
static int epoch_lease(struct fp_node *node, struct fp_session_epoch *epoch, uint64_t lease_bytes,
                       struct fp_slots **ret_slots)
{
	const struct fp_lease *lease;
	struct fp_slots *slots;
	int r = fp_session_lease(epoch->session, lease_bytes, &lease);

	if (r < 0)
		return r;
	slots = fp_slots_new((uint32_t)FP_MIN(lease->size_bytes / FP_PAGE_SIZE, FP_LEASE_MAX_PAGES));
	if (!slots) {
		/* if this fails, the node takes the lease back when the session ends */
		(void)fp_session_release(epoch->session, lease->id);
		return -ENOMEM;
	}
	slots->lease_id = lease->id;
	slots->base = lease->base;
	slots->node_next = node->leases;
	node->leases = slots;
	node->n_leases++;
	*ret_slots = slots;
	return 0;
}

/* Takes one lease of the offered size. */
static int lease_take(struct placement *p, unsigned node_idx)
{
	struct fp_node *node = &p->store->nodes[node_idx];
	struct fp_slots *slots = NULL;
	struct fp_session_epoch *epoch;
	int r = control_begin(node, &epoch);

	if (r < 0)
		return r;
	r = epoch_lease(node, epoch, p->offers[node_idx].lease_bytes, &slots);
	if (r < 0)
		keep_reason(p, node_idx, r, epoch->session);
	r = control_end(node, r);
	if (r < 0)
		return r;
	slots->node = node_idx;
	*p->tail = slots;
	p->tail = &slots->next;
	p->taken_pages += slots->n_pages;
	p->n_taken++;
	p->offers[node_idx].n_leases++;
	return 0;
}

/*
 * Takes one lease from the best node. If that node refuses, notes what it may still lend. -ENOSPC:
 * no node has any memory left.
 */
static int placement_step(struct placement *p)
{
	struct offer *offer = offers_best(p);
	unsigned node_idx;
	int r;

	if (!offer || p->store->n_leases + p->n_taken + 1 >= FP_STORE_MAX_LEASES)
		return -ENOSPC;
	node_idx = (unsigned)(offer - p->offers);
	r = lease_take(p, node_idx);
	if (r == 0)
		group_set_free(p, p->store->nodes[node_idx].group, offer->free_bytes - offer->lease_bytes);
	else if (r == -ENOSPC || r == -EDQUOT)
		offer->lease_bytes = half(offer->lease_bytes);
	else if (r == -EUSERS)
		offer->lease_bytes = 0; /* it grants this session no lease of any size */
	else
		node_failed(p, node_idx, r);
	return 0;
}

static void give_back(struct placement *p)
{
	for (struct fp_slots *slots = p->taken, *next; slots; slots = next) {
		next = slots->next;
		pthread_mutex_lock(&p->store->nodes[slots->node].control);
		fp_lease_end(&p->store->nodes[slots->node], slots);
		pthread_mutex_unlock(&p->store->nodes[slots->node].control);
		fp_slots_free(slots);
	}
}

/* Asks one port for a lease that it can't grant, so that its answer names the limit. */
static void ask_why(struct placement *p, unsigned node_idx, uint64_t bytes)
{
	struct fp_node *node = &p->store->nodes[node_idx];
	struct fp_session_epoch *epoch;
	const struct fp_lease *lease;
	int r = control_begin(node, &epoch);

	if (r < 0)
		return;
	r = fp_session_lease(epoch->session, bytes, &lease);
	if (r == 0) /* it got room meanwhile */
		(void)fp_session_release(epoch->session, lease->id);
	else
		keep_reason(p, node_idx, r, epoch->session);
	(void)control_end(node, r);
}

/*
 * Asks each node that has too little room for all of the pages. The node refuses, and its answer
 * names the limit. It also counts and logs the refusal for its operator. If a node refused less
 * than a second ago, this takes its answer of that time. Other errors of that time are not taken:
 * the node was away then, but has answered since.
 */
static void ask_nodes_why(struct placement *p, uint64_t n_pages)
{
	uint64_t bytes = FP_MIN(n_pages * FP_PAGE_SIZE, ASKED_MAX_BYTES), now_ns = fp_clock_ns();
	const struct fp_shortage *last = &p->store->shortage;
	bool is_recent = now_ns < p->store->next_ask_ns;
	bool asked[FP_STORE_MAX_NODES] = {false}; /* by group: ports of one node share its pools */

	if (!is_recent)
		p->store->next_ask_ns = now_ns + ASK_NS;
	for (unsigned i = 0; i < p->store->n_nodes; i++) {
		unsigned group = p->store->nodes[i].group;

		if (p->shortage.nodes[i].error)
			continue;
		if (is_recent && fp_session_is_refusal(last->nodes[i].error))
			p->shortage.nodes[i] = last->nodes[i];
		else if (!asked[group] && p->offers[i].free_bytes < bytes)
			ask_why(p, i, bytes);
		else
			continue;
		asked[group] = true;
	}
}

/* Collects the nodes' reasons, gives the leases back, and returns the error. */
static int fail(struct placement *p, uint64_t n_pages)
{
	ask_nodes_why(p, n_pages);
	p->store->shortage = p->shortage;
	give_back(p);
	return p->cause;
}

int fp_placement_take(struct fp_store *store, uint64_t n_pages, struct fp_slots **ret_list)
{
	struct placement p = {.store = store, .tail = &p.taken, .cause = -ENOSPC};

	/*
	 * Refuses a reservation that is too large before it takes any lease. Otherwise it would
	 * drain the pools before it fails, and other clients would find them empty.
	 */
	if (offers_collect(&p) / FP_PAGE_SIZE < n_pages)
		return fail(&p, n_pages);
	while (p.taken_pages < n_pages)
		if (placement_step(&p) < 0)
			return fail(&p, n_pages - p.taken_pages);
	*ret_list = p.taken;
	return 0;
}

int fp_placement_look(struct fp_store *store, uint64_t n_pages)
{
	struct placement p = {.store = store, .tail = &p.taken, .cause = -ENOSPC};

	if (offers_collect(&p) / FP_PAGE_SIZE >= n_pages || p.cause != -ENOSPC)
		return 0;
	return fail(&p, n_pages);
}
