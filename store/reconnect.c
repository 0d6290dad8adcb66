/*
 * The reconnect thread of a node: sends heartbeats, attempts to resume a session that is cut off,
 * moves links in and out of lanes. Room: store. There is one thread for each node. It may block,
 * because no other thread waits for it. It shares node->control with control calls. It shares the
 * exchanges of links with the owners of the lanes.
 *
 *   lane's owner                    reconnect thread
 *   link broken and idle: given ──► closed
 *                                   attempt: session resumed, leases attached,
 *                                            a link for every lane
 *   takes it up      ◄───────────── fresh, then the breaker closes
 */
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "names.h"
#include "store_internal.h"

#define CONNECT_MIN_NS (200 * FP_NSEC_PER_MSEC)
/* Until this many attempts have failed, an attempt may take only half of the deadline. */
#define CONNECT_BRIEFLY 2u
#define CONTROL_BUSY_NS (50 * FP_NSEC_PER_MSEC)
#define MAX_SLEEP_NS    (60 * FP_NSEC_PER_SEC)

/* splitmix64 */
static uint64_t any_bits(struct fp_store *store)
{
	uint64_t z = atomic_fetch_add(&store->random, 0x9e3779b97f4a7c15u);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* Closes the links that lanes' owners have given up. */
static void collect_given(struct fp_store *store, struct fp_node *node)
{
	struct fp_lane_shared *lane;

	fp_store_lanes_share(store);
	LIST_FOREACH (lane, &store->lanes, entry) {
		struct fp_exchange *exchange = &lane->exchange[node - store->nodes];

		fp_session_epoch_link_close(atomic_exchange(&exchange->given, NULL));
	}
	fp_store_lanes_unlock(store);
}

/* Attaches all leases of the node to a session. -ESTALE: the leases are gone. */
static int attach(const struct fp_node *node, struct fp_session *session)
{
	const struct fp_lease *lease;

	for (struct fp_slots *slots = node->leases; slots; slots = slots->node_next) {
		int r = fp_session_attach(session, slots->lease_id, &lease);

		if (r < 0)
			return r == -EACCES ? -ESTALE : r; /* the session lives, but its leases are gone */
		if (lease->size_bytes / FP_PAGE_SIZE < slots->n_pages)
			return -EPROTO;
	}
	return 0;
}

struct fresh {
	struct fp_lane_shared *lane;
	struct fp_session_epoch_link *link;
};

/* Attaches all leases, or fails. After an error the caller still owns the session. */
static int begin_epoch(struct fp_store *store, struct fp_node *node, struct fp_session_epoch *epoch)
{
	size_t idx = (size_t)(node - store->nodes);
	fp_autofree struct fresh *fresh = NULL;
	struct fp_lane_shared *lane;
	unsigned n_lanes = 0, n = 0;
	int r = 0;

	LIST_FOREACH (lane, &store->lanes, entry)
		n_lanes++;
	fresh = calloc(n_lanes + 1, sizeof(*fresh));
	if (!fresh)
		return -ENOMEM;
	LIST_FOREACH (lane, &store->lanes, entry) {
		if (node->load_store)
			break; /* a load/store node needs no links */
		fresh[n].lane = lane;
		r = fp_session_epoch_link_open(epoch, lane, &fresh[n].link);
		if (r < 0)
			break;
		n++;
	}
	if (r < 0) {
		while (n)
			fp_session_epoch_link_close(fresh[--n].link);
		return r;
	}
	for (unsigned i = 0; i < n; i++)
		fp_session_epoch_link_close(
		    atomic_exchange(&fresh[i].lane->exchange[idx].fresh, fresh[i].link));
	fp_node_enter(node, epoch);
	return 0;
}

/*
 * Makes a session the current one of its node, in a new epoch, with a link for every lane. The
 * session before it ends once its last link is closed.
 */
static int enter(struct fp_store *store, struct fp_node *node, struct fp_session *session)
{
	uint64_t number = fp_breaker_epoch(fp_node_breaker(node)) + !node->load_store;
	struct fp_session_epoch *epoch = fp_session_epoch_new(session, number);
	int r;

	if (!epoch)
		return -ENOMEM;
	fp_store_lanes_share(store);
	r = begin_epoch(store, node, epoch);
	if (r == 0 && !node->load_store)
		fp_node_step(node, FP_BREAKER_RESUMED, 0);
	fp_store_lanes_unlock(store);
	if (r < 0)
		free(epoch);
	return r;
}

/* How long one way to a node may take to open a session. */
static uint64_t connect_ns(const struct fp_store *store, const struct fp_node *node)
{
	/* A node that did not answer in time may be slow, so later attempts get more time. */
	uint64_t all_ns =
	    node->backoff.n_failed < CONNECT_BRIEFLY ? store->deadline_ns / 2 : store->deadline_ns;

	return FP_MAX(all_ns / fp_node_n_ways(node), CONNECT_MIN_NS);
}

/*
 * Resumes the node's last session or, if the node waits for a session, opens one that adopts. Tries
 * all ways until one answers. Attaches the leases and opens links for all lanes. The caller holds
 * node->control.
 */
static int open_session(struct fp_store *store, struct fp_node *node, unsigned *ret_way, int *ret_cause)
{
	bool adopts = fp_node_is_adopting(node);
	struct fp_session_options options = fp_store_session_options(store, adopts ? NULL : &node->identity);
	struct fp_refusal refusal = {.cause = FP_REFUSAL_NONE};
	struct fp_session *session;
	int r;

	options.connect_ns = connect_ns(store, node);
	options.refusal = &refusal;
	r = fp_node_dial(node, &options, &session, ret_way, ret_cause);
	if (r < 0) {
		fp_node_set_refusal(node, &refusal);
		return r;
	}
	fp_backoff_heard(&node->backoff, fp_clock_ns(), fp_store_outage_ns(store, node));
	if (adopts)
		r = fp_adoption_adopt(store, node, session);
	if (r == 0) /* the new session replaces the old one: from now on only the new one can be resumed */
		r = fp_node_identify(node, session);
	if (r == 0 && !node->load_store) {
		/* before any other call: until then the node accepts the old identity, too */
		fp_generations_publish(store, (unsigned)(node - store->nodes));
		r = attach(node, session);
	}
	if (r == 0)
		r = enter(store, node, session);
	if (r < 0) /* the node's last refusal: of an ADOPT, ATTACH or LINK */
		fp_session_refusal(session, &refusal);
	fp_node_set_refusal(node, &refusal);
	if (r < 0 && adopts)
		fp_session_close(session);
	else if (r < 0)
		fp_session_abandon(session);
	return r;
}

/* The caller holds node->control, here and in the functions refused and lose below. */
static void succeeded(struct fp_store *store, struct fp_node *node, bool adopted)
{
	if (atomic_exchange(&node->session_error, 0) || !adopted)
		atomic_fetch_add_explicit(&node->reconnects, 1, memory_order_relaxed);
	fp_backoff_resumed(&node->backoff, fp_clock_ns());
	node->attempting = false;
	node->n_missed = 0;
	node->next_heartbeat_ns = fp_reconnect_next_heartbeat(store, node);
	fp_adoption_end(store, node);
}

static void refused(struct fp_store *store, struct fp_node *node, int error)
{
	if (fp_node_is_adopting(node)) { /* else node->error stays as it is: why the breaker opened */
		atomic_store(&node->error, error);
		atomic_store(&node->why, NULL);
	}
	fp_backoff_refused(&node->backoff, fp_clock_ns(), any_bits(store));
	fp_node_step(node, FP_BREAKER_REFUSED, 0);
}

/* The node is lost, for good. */
static void lose(struct fp_store *store, struct fp_node *node, int error)
{
	atomic_store(&node->error, error);
	fp_node_step(node, FP_BREAKER_GONE, 0);
	explicit_bzero(&node->identity, sizeof(node->identity));
	fp_adoption_end(store, node);
}

static void attempt(struct fp_store *store, struct fp_node *node)
{
	bool adopts = fp_node_is_adopting(node);
	unsigned way;
	int r, cause;

	fp_node_step(node, FP_BREAKER_TRY, 0);
	pthread_mutex_lock(&node->control); /* a call that is under way ends by its deadline */
	r = open_session(store, node, &way, &cause);
	if (r == 0)
		succeeded(store, node, adopts);
	else if (r == -ESTALE && !node->load_store) /* no answer of a node can take mapped memory away */
		lose(store, node, r);
	else
		refused(store, node, r);
	pthread_mutex_unlock(&node->control);
	if (r == 0)
		fp_store_way_taken(store, node, way, cause ? cause : atomic_load(&node->error));
}

static bool is_cut_off(const struct fp_node *node)
{
	return fp_node_is_adopting(node) || fp_breaker_state(fp_node_breaker(node)) == FP_BREAKER_OPEN;
}

/*
 * One step of a node that is cut off. Returns when its next attempt is due. The first attempt to
 * adopt is delayed while nothing needs it, because many children soon exec another program.
 */
static uint64_t step_cut_off(struct fp_store *store, struct fp_node *node)
{
	uint64_t now_ns = fp_clock_ns();

	if (!node->attempting) {
		if (fp_node_is_adopting(node) && now_ns < node->adopt_at_ns &&
		    !atomic_load(&node->adoption_wanted))
			return node->adopt_at_ns;
		node->attempting = true;
		fp_backoff_opened(&node->backoff, now_ns, fp_store_outage_ns(store, node), any_bits(store));
	}
	if (now_ns >= node->backoff.give_up_ns) {
		pthread_mutex_lock(&node->control);
		lose(store, node, atomic_load(&node->error));
		pthread_mutex_unlock(&node->control);
	} else if (now_ns >= node->backoff.next_ns) {
		attempt(store, node);
	}
	return is_cut_off(node) ? node->backoff.next_ns : fp_clock_ns();
}

uint64_t fp_reconnect_next_heartbeat(const struct fp_store *store, const struct fp_node *node)
{
	uint64_t idle_ns = node->identity.idle_ns;

	return fp_clock_ns() + (idle_ns ? FP_MIN(store->heartbeat_ns, idle_ns / 4) : store->heartbeat_ns);
}

/* Sends a heartbeat to a node that is up, if one is due. Returns when the next one is due. */
static uint64_t step_heartbeat(struct fp_store *store, struct fp_node *node)
{
	uint64_t now_ns = fp_clock_ns(), number;
	int r;

	if (now_ns < node->next_heartbeat_ns)
		return node->next_heartbeat_ns;
	if (pthread_mutex_trylock(&node->control) != 0) { /* the call under way tells as much */
		node->next_heartbeat_ns = now_ns + CONTROL_BUSY_NS;
		return node->next_heartbeat_ns;
	}
	number = node->epoch->number;
	r = fp_session_ping(node->epoch->session, 0, now_ns + store->heartbeat_deadline_ns);
	pthread_mutex_unlock(&node->control);
	node->n_missed = r < 0 ? node->n_missed + 1 : 0;
	if (r == 0)
		atomic_store_explicit(&node->heartbeat_ns, fp_clock_ns() - now_ns, memory_order_relaxed);
	else if (r != -ETIMEDOUT ||
	         node->n_missed >= (node->backoff.options.missed_heartbeats ?: FP_MISSED_HEARTBEATS))
		fp_node_report(node, number, r, NULL);
	node->next_heartbeat_ns = fp_reconnect_next_heartbeat(store, node);
	return node->next_heartbeat_ns;
}

static uint64_t step_up(struct fp_store *store, struct fp_node *node)
{
	uint64_t due_ns = fp_leases_retire(store, node) ? UINT64_MAX : fp_clock_ns() + CONTROL_BUSY_NS;
	uint64_t next_ns = UINT64_MAX;

	fp_retired_release(store, node);
	if (node->resumable)
		next_ns = step_heartbeat(store, node);
	else if (atomic_load(&node->n_retired))
		next_ns = fp_reconnect_next_heartbeat(store, node);
	return FP_MIN(due_ns, next_ns);
}

static uint64_t step_node(struct fp_store *store, struct fp_node *node)
{
	uint64_t due_ns = UINT64_MAX;

	if (fp_node_up(node) && !fp_node_is_adopting(node))
		due_ns = step_up(store, node);
	return is_cut_off(node) ? step_cut_off(store, node) : due_ns;
}

uint64_t fp_store_reconnect(struct fp_store *store, unsigned node_idx)
{
	struct fp_node *node = &store->nodes[node_idx];
	uint64_t due_ns = fp_clock_ns() + MAX_SLEEP_NS, node_due_ns, now_ns;

	assert(store->opener == getpid());
	atomic_store(&node->has_work, 0); /* first: work that comes later sets it again */
	collect_given(store, node);
	fp_transport_check_devices();
	node_due_ns = step_node(store, node);
	due_ns = FP_MIN(due_ns, node_due_ns);
	now_ns = fp_clock_ns();
	return due_ns > now_ns ? due_ns - now_ns : 0;
}

void fp_store_refresh_names(const struct fp_store *store, unsigned node_idx)
{
	const struct fp_node *node = &store->nodes[node_idx];

	if (fp_node_up(node) && !fp_node_is_adopting(node))
		return;
	for (unsigned way = 0; way < fp_node_n_ways(node); way++)
		fp_names_refresh(fp_node_way(node, way)->host);
}

void fp_store_wake_reconnect(struct fp_store *store, unsigned node_idx)
{
	fp_node_wake(&store->nodes[node_idx]);
}

bool fp_store_await_work(struct fp_store *store, unsigned node_idx, uint64_t wait_ns)
{
	_Atomic uint32_t *has_work = &store->nodes[node_idx].has_work;
	const struct timespec wait = {.tv_sec = (time_t)(wait_ns / FP_NSEC_PER_SEC),
	                              .tv_nsec = (long)(wait_ns % FP_NSEC_PER_SEC)};

	if (!atomic_load(has_work))
		syscall(SYS_futex, has_work, FUTEX_WAIT_PRIVATE, 0, &wait, NULL, 0);
	return atomic_load(has_work);
}
