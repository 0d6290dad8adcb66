/*
 * How a forked child takes over the store that it inherits, and adopts its parent's leases at each
 * node. Also how a node over shm gets another session after its own has ended. Room: store. The
 * reconnect thread does this work. Exceptions: fp_store_fork_child, which runs while the child has
 * one thread, and the functions that wait for an adoption.
 *
 *   the parent's session ◄── our copy of its connection ──► kept until ...
 *   a session of our own ──► adopts the parent's, by the identity in the map of shared slots,
 *                            which the parent keeps current
 *                        ──► attaches the leases, opens links for the lanes: the node is up
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "clock.h"
#include "fdutil.h"
#include "store_internal.h"

#define IDENTITY_TRIES 4u
#define ADOPT_DELAY_NS (50 * FP_NSEC_PER_MSEC)
#define LEASE_ID_MAX   65535u /* of any session */

/* ---- waiting for a session ---- */

void fp_adoption_init(struct fp_store *store)
{
	pthread_condattr_t attr;

	atomic_store(&store->adoption_until_ns, 0);
	pthread_mutex_init(&store->adoption_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&store->adoption_ended, &attr);
	pthread_condattr_destroy(&attr);
}

void fp_adoption_done(struct fp_store *store)
{
	pthread_cond_destroy(&store->adoption_ended);
	pthread_mutex_destroy(&store->adoption_lock);
}

void fp_adoption_begin(struct fp_store *store, struct fp_node *node, int error)
{
	atomic_store(&node->session_error, error);
	atomic_store(&node->error, error);
	atomic_fetch_add_explicit(&node->failures, 1, memory_order_relaxed);
	node->adopt_at_ns = 0;
	atomic_store(&store->adoption_until_ns, 0); /* the deadline of an earlier outage no longer counts */
	atomic_store(&node->adopting, true);        /* last, because now the reconnect thread begins */
	fp_node_wake(node);
}

void fp_adoption_end(struct fp_store *store, struct fp_node *node)
{
	node->adopt_from = NULL;                    /* the map is freed with its generation */
	atomic_store(&store->adoption_until_ns, 0); /* later waits for other nodes get a new deadline */
	pthread_mutex_lock(&store->adoption_lock);
	atomic_store(&node->adopting, false);
	pthread_cond_broadcast(&store->adoption_ended);
	pthread_mutex_unlock(&store->adoption_lock);
}

bool fp_store_lacks_sessions(const struct fp_store *store)
{
	bool any_adopting = false;

	for (unsigned i = 0; i < store->n_nodes; i++) {
		const struct fp_node *node = &store->nodes[i];

		if (fp_node_is_adopting(node))
			any_adopting = true;
		else if (fp_node_up(node))
			return false;
	}
	return any_adopting;
}

void fp_adoption_want(struct fp_store *store, struct fp_node *node)
{
	if (!fp_node_is_adopting(node) || atomic_load_explicit(&node->adoption_wanted, memory_order_relaxed))
		return;
	if (!atomic_exchange(&node->adoption_wanted, true))
		fp_node_wake(node);
}

/*
 * All waiters share one deadline, set by the first of them. So later waiters do not wait again for
 * a node that is gone.
 */
static uint64_t waits_until_ns(struct fp_store *store)
{
	uint64_t none = 0, until_ns = fp_clock_ns() + store->deadline_ns;

	return atomic_compare_exchange_strong(&store->adoption_until_ns, &none, until_ns) ? until_ns : none;
}

static bool is_worth_waiting(struct fp_store *store, uint64_t until_ns)
{
	return fp_store_lacks_sessions(store) && fp_clock_ns() < until_ns;
}

bool fp_store_adopts(struct fp_store *store, uint64_t wait_ns)
{
	uint64_t now_ns = fp_clock_ns(), until_ns;
	struct timespec until;

	if (!fp_store_lacks_sessions(store))
		return false;
	until_ns = waits_until_ns(store);
	for (unsigned i = 0; i < store->n_nodes; i++)
		fp_adoption_want(store, &store->nodes[i]);
	until = fp_clock_monotonic(wait_ns < until_ns - now_ns ? now_ns + wait_ns : until_ns);
	pthread_mutex_lock(&store->adoption_lock);
	while (is_worth_waiting(store, until_ns) &&
	       pthread_cond_timedwait(&store->adoption_ended, &store->adoption_lock, &until) == 0)
		;
	pthread_mutex_unlock(&store->adoption_lock);
	return is_worth_waiting(store, until_ns);
}

void fp_adoption_await(struct fp_store *store)
{
	while (fp_store_adopts(store, store->deadline_ns))
		;
}

/* ---- adopting ---- */

static bool is_same(const struct fp_session_identity *a, const struct fp_session_identity *b)
{
	return a->id == b->id && memcmp(a->token, b->token, sizeof(a->token)) == 0;
}

static bool is_known(const struct fp_node *node, uint32_t lease_id)
{
	for (const struct fp_slots *slots = node->leases; slots; slots = slots->node_next)
		if (slots->lease_id == lease_id)
			return true;
	return false;
}

/*
 * Gives back leases that our parent was granted after the fork. An adoption takes these leases too,
 * and they would last as long as this process. No call lists their ids, but ids are small. So this
 * releases each unknown id, from 0 on, until as many leases are left as are known.
 */
static int release_strangers(const struct fp_node *node, struct fp_session *session, unsigned n)
{
	int r;

	for (uint32_t id = 0; n > node->n_leases && id <= LEASE_ID_MAX; id++) {
		if (is_known(node, id))
			continue;
		r = fp_session_release(session, id);
		if (r < 0 && r != -EACCES)
			return r;
		n -= r == 0;
	}
	return 0;
}

/*
 * Adopts the parent's session. The parent may resume its session meanwhile, and then the node
 * rejects the old identity. So this tries again if the identity has changed.
 */
static int adopt_parent(const struct fp_node *node, unsigned node_idx, struct fp_session *session)
{
	struct fp_session_identity parent, now = {0};
	unsigned n_leases = 0;
	int r = -ESTALE;

	if (!node->adopt_from || !fp_shared_slots_identity(node->adopt_from, node_idx, &now))
		return r;
	for (unsigned i = 0; i < IDENTITY_TRIES && r == -ESTALE && (i == 0 || !is_same(&parent, &now)); i++) {
		parent = now;
		r = fp_session_adopt(session, &parent, &n_leases);
		(void)fp_shared_slots_identity(node->adopt_from, node_idx, &now);
	}
	explicit_bzero(&parent, sizeof(parent));
	explicit_bzero(&now, sizeof(now));
	return r < 0 ? r : release_strangers(node, session, n_leases);
}

/*
 * The leases' session (our parent's or our own) has ended. The leases are mapped here and keep
 * their bytes: no node gives that memory to others. They lose their ids, because leases of the next
 * session may get the same ids.
 */
void fp_leases_outlive(struct fp_node *node)
{
	for (struct fp_slots *slots = node->leases; slots; slots = slots->node_next)
		slots->lease_id = FP_SLOTS_NO_LEASE;
	node->n_leases = 0;
	node->has_former = true;
}

/* A session of our own takes over the parent's leases. The caller holds node->control. */
int fp_adoption_adopt(struct fp_store *store, struct fp_node *node, struct fp_session *session)
{
	int r = adopt_parent(node, (unsigned)(node - store->nodes), session);

	if (r == -ESTALE && node->load_store) {
		fp_leases_outlive(node);
		r = 0;
	}
	return r;
}

/* ---- giving back ---- */

void fp_lease_unmap(struct fp_slots *slots)
{
	if (!slots->base)
		return;
	munmap(slots->base, (size_t)slots->n_pages * FP_PAGE_SIZE);
	slots->base = NULL;
}

/*
 * Ends a lease of this process. Tells the node if the node is up. A node that is not up takes the
 * lease back when the session ends.
 */
void fp_lease_end(struct fp_node *node, struct fp_slots *slots)
{
	struct fp_slots **p;

	for (p = &node->leases; *p != slots; p = &(*p)->node_next)
		;
	*p = slots->node_next;
	if (slots->inherited || slots->lease_id == FP_SLOTS_NO_LEASE) /* else its session unmaps it */
		fp_lease_unmap(slots); /* first: once the node is told, the memory is the node's again */
	if (slots->lease_id == FP_SLOTS_NO_LEASE)
		return;
	node->n_leases--;
	if (fp_node_up(node))
		(void)fp_session_release(node->epoch->session, slots->lease_id);
}

static bool is_former(const struct fp_slots *slots)
{
	return slots->lease_id == FP_SLOTS_NO_LEASE && !atomic_load(&slots->retired);
}

/* The caller holds reserve_lock, so no other thread adds or ends leases of this node. */
static bool retire(struct fp_store *store, struct fp_node *node)
{
	uint64_t n_pages = 0;

	for (const struct fp_slots *slots = node->leases; slots; slots = slots->node_next)
		n_pages += is_former(slots) ? slots->n_pages : 0;
	if (n_pages && fp_store_grow(store, n_pages) < 0)
		return false;
	for (struct fp_slots *slots = node->leases; slots; slots = slots->node_next) {
		if (!is_former(slots))
			continue;
		atomic_store(&slots->retired, true); /* last: the new leases are published (slots_scan) */
		atomic_fetch_sub(&node->n_slots, slots->n_pages);
		atomic_fetch_add(&node->n_retired, slots->n_pages);
	}
	return true;
}

/*
 * Retires the leases of an ended session, but only once the nodes have lent as many pages again.
 * Before that, the store still gives out slots of these leases, because mappings may have reserved
 * them. The holder of reserve_lock may wait until the reconnect thread has adopted. So the
 * reconnect thread must not wait for that lock.
 */
bool fp_leases_retire(struct fp_store *store, struct fp_node *node)
{
	if (!node->has_former)
		return true;
	if (pthread_mutex_trylock(&store->reserve_lock) != 0)
		return false;
	node->has_former = !retire(store, node);
	pthread_mutex_unlock(&store->reserve_lock);
	return true;
}

/*
 * While any child lives, ends only leases without an id. A child that has not adopted yet needs the
 * leases that it had at its fork, and it adopts them by their ids.
 */
void fp_retired_release(struct fp_store *store, struct fp_node *node)
{
	bool any_child = atomic_load(&store->gens.n_living);

	if (!atomic_load_explicit(&node->n_retired, memory_order_relaxed))
		return;
	pthread_mutex_lock(&node->control);
	for (struct fp_slots *slots = node->leases, *next; slots; slots = next) {
		next = slots->node_next;
		if (any_child && slots->lease_id != FP_SLOTS_NO_LEASE)
			continue;
		if (!atomic_load(&slots->retired) || !fp_slots_close(slots))
			continue;
		atomic_fetch_sub(&node->n_retired, slots->n_pages);
		fp_lease_end(node, slots);
	}
	pthread_mutex_unlock(&node->control);
}

/* ---- in the child ---- */

static void reset_counters(struct fp_node *node)
{
	atomic_store(&node->read_bytes, 0);
	atomic_store(&node->written_bytes, 0);
	atomic_store(&node->reconnects, 0);
	atomic_store(&node->failures, 0);
	atomic_store(&node->heartbeat_ns, 0);
	atomic_store(&node->error, 0);
	atomic_store(&node->why, NULL);
	atomic_store(&node->session_error, 0);
}

/*
 * How long the first attempt to adopt may be delayed. If the parent ends meanwhile, its leases last
 * as long as our copy of its connection. Where we have no copy, they last for the session's grace.
 * A node that was in trouble is tried at once.
 */
static uint64_t delay_ns(const struct fp_node *node, uint64_t breaker)
{
	if (fp_breaker_state(breaker) != FP_BREAKER_CLOSED)
		return 0;
	return node->load_store ? ADOPT_DELAY_NS : FP_MIN(ADOPT_DELAY_NS, node->identity.grace_ns / 4);
}

static void node_inherit(struct fp_store *store, struct fp_node *node)
{
	uint64_t word = fp_node_breaker(node);

	assert(node->epoch->n_refs == 1); /* the parent's lanes are closed */
	node->attempting = false;
	node->backoff = (struct fp_backoff){.options = node->backoff.options};
	node->n_retired += node->n_slots;
	node->n_slots = 0;
	reset_counters(node);
	if (fp_node_is_lost(node))
		return;
	/* otherwise adopt_from stays as it was in our parent, which has not adopted yet */
	if (!fp_node_is_adopting(node))
		node->adopt_from = store->gens.pending->map;
	node->adopting = true;
	node->n_blocked = 0;
	node->adoption_wanted = false;
	node->adopt_at_ns = fp_clock_ns() + delay_ns(node, word);
	if (fp_breaker_state(word) == FP_BREAKER_CLOSED)
		atomic_store(&node->error, 0); /* an outage of our parent, which is over */
	if (!node->load_store)
		atomic_store(&node->breaker, fp_breaker_inherit(word));
}

static void protect_inherited(const struct fp_store *store)
{
	for (uint32_t i = store->gens.parents_first; i <= store->gens.n_inherited; i++) {
		struct fp_slots *slots = store->leases[i];

		/* Read-only, so that a bug here can't corrupt our parent's pages. */
		if (slots->base)
			(void)mprotect(slots->base, (size_t)slots->n_pages * FP_PAGE_SIZE, PROT_READ);
	}
}

int fp_store_fork_child(struct fp_store *store, const struct fp_store_options *options)
{
	assert(LIST_EMPTY(&store->lanes));
	fp_generations_unlock(store);
	if (!store->gens.pending)
		return store->gens.prepare_error ? store->gens.prepare_error : -EINVAL;
	store->opener = getpid();
	store->random = fp_clock_ns() ^ (uint64_t)getpid() << 32;
	store->reserved_pages = 0;
	store->hurried_ns = 0;
	pthread_rwlock_init(&store->lanes_lock, NULL);
	fp_adoption_init(store);
	if (options)
		fp_store_options_take(store, options);
	for (unsigned i = 0; i < store->n_nodes; i++)
		node_inherit(store, &store->nodes[i]);
	fp_transport_forked();
	fp_generations_enter_child(store);
	protect_inherited(store);
	return 0;
}
