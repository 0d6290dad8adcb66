/*
 * What a forked child makes of the store that it inherits, and how its nodes adopt its parent's
 * leases; how a node over shm gets another session when its own has ended. Room: store. The
 * reconnect thread's work, but for fp_store_fork_child, which runs while the child has one thread,
 * and whoever waits for it.
 *
 *   the parent's session ◄── our copy of its connection ──► kept until ...
 *   a session of our own ──► adopts the parent's, by the identity that the parent keeps current in the held
 * map ──► attaches the leases, opens links for the lanes: the node is up
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

/* ---- waiting for it ---- */

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
	atomic_store(&store->adoption_until_ns, 0); /* of an outage before */
	atomic_store(&node->adoption,
	             FP_ADOPTION_FIRST); /* from here on the rest is the reconnect thread's */
	fp_node_wake(node);
}

static void adoption_set(struct fp_store *store, struct fp_node *node, enum fp_adoption adoption)
{
	pthread_mutex_lock(&store->adoption_lock);
	atomic_store(&node->adoption, adoption);
	pthread_cond_broadcast(&store->adoption_ended);
	pthread_mutex_unlock(&store->adoption_lock);
}

/* A node whose first attempt is under way is waited for; where it failed only if there is no
 * other. */
bool fp_store_lacks_sessions(const struct fp_store *store)
{
	bool any_usable = false, any_first = false, any_later = false;

	for (unsigned i = 0; i < store->n_nodes; i++) {
		enum fp_adoption adoption = atomic_load(&store->nodes[i].adoption);

		any_first |= adoption == FP_ADOPTION_FIRST;
		any_later |= adoption == FP_ADOPTION_LATER;
		any_usable |= adoption == FP_ADOPTION_NONE && fp_node_up(&store->nodes[i]);
	}
	return any_first || (any_later && !any_usable);
}

void fp_adoption_want(struct fp_store *store, struct fp_node *node)
{
	if (!fp_node_is_adopting(node) || atomic_load_explicit(&node->adoption_wanted, memory_order_relaxed))
		return;
	if (!atomic_exchange(&node->adoption_wanted, true))
		fp_node_wake(node);
}

/*
 * All who wait share one deadline, from the first of them on: who comes later need not find out
 * again that the node is gone.
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
 * What our parent was granted since the fork came along, and would live as long as we do. Of n
 * leases, these go back; their numbers nobody tells, but they are small.
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

/* A node may know no more the session that our parent has resumed since we looked. */
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
 * The session, our parent's or our own, has ended, but what it had is mapped here, and stays as it
 * is: no node gives it to somebody else. Its leases have no ids any more: those of the next session
 * may get the same.
 */
void fp_leases_outlive(struct fp_node *node)
{
	for (struct fp_slots *slots = node->leases; slots; slots = slots->node_next)
		slots->lease_id = FP_SLOTS_NO_LEASE;
	node->n_leases = 0;
	node->has_former = true;
}

/* With node->control held: a session of our own by any way, which has the parent's leases. */
static int adopt(struct fp_store *store, struct fp_node *node, unsigned *ret_way, int *ret_cause)
{
	struct fp_session_options options = fp_store_session_options(store, NULL);
	unsigned node_idx = (unsigned)(node - store->nodes);
	struct fp_session *session;
	int r;

	options.connect_ns = fp_reconnect_connect_ns(store, node);
	r = fp_node_dial(node, &options, &session, ret_way, ret_cause);
	if (r < 0)
		return r;
	r = adopt_parent(node, node_idx, session);
	if (r == -ESTALE && node->load_store) {
		fp_leases_outlive(node);
		r = 0;
	}
	if (r == 0)
		r = fp_node_identify(node, session);
	if (r == 0 && !node->load_store)
		r = fp_reconnect_attach(node, session);
	if (r == 0)
		r = fp_reconnect_enter(store, node, session);
	if (r < 0)
		fp_session_close(session);
	return r;
}

/* node->control held, as by what follows. */
static void adopted(struct fp_store *store, struct fp_node *node)
{
	fp_generations_adopted(store, (unsigned)(node - store->nodes));
	fp_backoff_resumed(&node->backoff, fp_clock_ns());
	node->attempting = false;
	node->next_heartbeat_ns = fp_reconnect_next_heartbeat(store, node);
	if (atomic_exchange(&node->session_error, 0))
		atomic_fetch_add_explicit(&node->reconnects, 1, memory_order_relaxed);
	atomic_store(&store->adoption_until_ns, 0); /* others may be waited for anew */
	adoption_set(store, node, FP_ADOPTION_NONE);
}

static void disown(struct fp_store *store, struct fp_node *node, int error)
{
	fp_generations_adopted(store, (unsigned)(node - store->nodes));
	fp_reconnect_lose(node, error);
	adoption_set(store, node, FP_ADOPTION_NONE);
}

static void refused(struct fp_store *store, struct fp_node *node, int error)
{
	atomic_store(&node->error, error);
	atomic_store(&node->why, NULL);
	fp_backoff_refused(&node->backoff, fp_clock_ns(), fp_reconnect_random(store));
	fp_node_step(node, FP_BREAKER_REFUSED, 0);
	adoption_set(store, node, FP_ADOPTION_LATER);
}

static void attempt(struct fp_store *store, struct fp_node *node)
{
	unsigned way;
	int r, cause;

	fp_node_step(node, FP_BREAKER_TRY, 0);
	pthread_mutex_lock(&node->control);
	r = adopt(store, node, &way, &cause);
	if (r == 0)
		adopted(store, node);
	else if (r == -ESTALE && !node->load_store) /* what is mapped here no answer takes away */
		disown(store, node, r);
	else
		refused(store, node, r);
	pthread_mutex_unlock(&node->control);
	if (r == 0)
		fp_store_way_taken(store, node, way, cause);
}

/*
 * As for a node that was cut off, but that what is mapped here needs no node to be read; and the
 * first attempt is put off while nothing wants it, since many a child soon becomes another program.
 */
uint64_t fp_adoption_step(struct fp_store *store, struct fp_node *node)
{
	uint64_t now_ns = fp_clock_ns();

	if (!node->attempting && now_ns < node->adopt_at_ns && !atomic_load(&node->adoption_wanted))
		return node->adopt_at_ns;
	if (!node->attempting) {
		node->attempting = true;
		fp_backoff_opened(&node->backoff, now_ns, fp_store_outage_ns(store, node),
		                  fp_reconnect_random(store));
		if (node->load_store)
			node->backoff.give_up_ns = UINT64_MAX;
	}
	if (now_ns >= node->backoff.give_up_ns) {
		pthread_mutex_lock(&node->control);
		disown(store, node, atomic_load(&node->error));
		pthread_mutex_unlock(&node->control);
		return UINT64_MAX;
	}
	if (now_ns >= node->backoff.next_ns)
		attempt(store, node);
	return fp_node_is_adopting(node) ? node->backoff.next_ns : fp_clock_ns();
}

/* ---- giving back ---- */

void fp_lease_unmap(struct fp_slots *slots)
{
	if (!slots->base)
		return;
	munmap(slots->base, (size_t)slots->n_pages * FP_PAGE_SIZE);
	slots->base = NULL;
}

/* What can't be said to the node it learns when the session ends. */
void fp_lease_end(struct fp_node *node, struct fp_slots *slots)
{
	struct fp_slots **p;

	for (p = &node->leases; *p != slots; p = &(*p)->node_next)
		;
	*p = slots->node_next;
	if (slots->inherited || slots->lease_id == FP_SLOTS_NO_LEASE) /* else its session does it */
		fp_lease_unmap(slots); /* by the time that the node is told it has its memory back */
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

/* Under reserve_lock leases come and go at our hands alone. */
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
		atomic_store(&slots->retired, true); /* after the new ones are there: see slots_scan */
		atomic_fetch_sub(&node->n_slots, slots->n_pages);
		atomic_fetch_add(&node->n_retired, slots->n_pages);
	}
	return true;
}

/*
 * Until the nodes have lent as much anew, the slots that there are go on being taken: some are
 * reserved. Who has the lock may wait for the reconnect thread to adopt: it waits for nobody.
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
 * Children of ours that have not adopted need the leases that they had at their fork and can adopt:
 * none of these goes while any child lives.
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

/*
 * Our copies of the parent's connections. Those over queue pairs keep nothing alive, as these do
 * not survive their process, and have to be gone before the devices are.
 */
static void drop_sessions(struct fp_node *node)
{
	struct fp_session *session = node->epoch->session;

	while (node->ended) {
		struct fp_session_epoch *epoch = node->ended;

		node->ended = epoch->next;
		fp_session_abandon(epoch->session);
		free(epoch);
	}
	if (session && session->transport == &fp_transport_rdma) {
		fp_session_abandon(session);
		node->epoch->session = NULL;
	}
}

static void reset_counters(struct fp_node *node)
{
	atomic_store(&node->read_bytes, 0);
	atomic_store(&node->written_bytes, 0);
	atomic_store(&node->reconnects, 0);
	atomic_store(&node->failures, 0);
	atomic_store(&node->degradations, 0);
	atomic_store(&node->heartbeat_ns, 0);
	atomic_store(&node->error, 0);
	atomic_store(&node->why, NULL);
	atomic_store(&node->session_error, 0);
}

/*
 * How long the first attempt may be put off. A parent may end meanwhile: then its leases last as
 * long as our copy of its connection, or, where that keeps nothing alive, as its grace. No node
 * that was in trouble.
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

	assert(node->epoch->n_links == 0); /* the parent's lanes are closed */
	node->attempting = false;
	node->backoff = (struct fp_backoff){.options = node->backoff.options};
	node->n_retired += node->n_slots;
	node->n_slots = 0;
	drop_sessions(node);
	reset_counters(node);
	if (fp_node_is_lost(node))
		return;
	if (!fp_node_is_adopting(node)) /* else what the parent adopts by, it does */
		node->adopt_from = store->gens.pending->map;
	node->adoption = FP_ADOPTION_FIRST;
	node->n_blocked = 0;
	node->adoption_wanted = false;
	node->adopt_at_ns = fp_clock_ns() + delay_ns(node, word);
	if (!node->load_store)
		atomic_store(&node->breaker, fp_breaker_inherit(word));
}

static void protect_inherited(const struct fp_store *store)
{
	for (uint32_t i = store->gens.parents_first; i <= store->gens.n_inherited; i++) {
		struct fp_slots *slots = store->leases[i];

		if (slots->base) /* else a bug of ours would be our parent's corruption */
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
