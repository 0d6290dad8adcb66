/*
 * The store's front: sessions to the nodes, the lease table, reservations and slots. Room: store.
 * Control calls may block and allocate. Calls about slots are lock-free and use memory made
 * beforehand.
 *
 * The lease table only grows. An entry is written once, and then n_leases is raised with release
 * order. So a thread that sees an index in use, or holds a slot of it, sees the entry.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "clock.h"
#include "fdutil.h"
#include "lockedmem.h"
#include "log.h"
#include "store_internal.h"
#include "units.h"

#define DEADLINE_DEFAULT_NS       (5 * FP_NSEC_PER_SEC)
#define HEARTBEAT_DEFAULT_NS      FP_NSEC_PER_SEC
#define HEARTBEAT_DEADLINE_MAX_NS (2 * FP_NSEC_PER_SEC)
#define NOTICE_MAX                960
#define LEASE_DEFAULT_BYTES       (64ull << 20)
#define LEASE_MAX_BYTES           ((uint64_t)FP_LEASE_MAX_PAGES * FP_PAGE_SIZE)
#define LEASES_OF_A_PAGE          (FP_PAGE_SIZE / sizeof(_Atomic(struct fp_slots *)))
#define SLOTS_MAX                 (1ull << FP_SLOT_BITS)

FP_DEFINE_CLEANUP(struct fp_store, store, fp_store_close)

static size_t lease_table_bytes(void)
{
	return FP_STORE_MAX_LEASES * sizeof(_Atomic(struct fp_slots *));
}

/* Copies text, which the caller may free afterwards. The copy of NULL is NULL. */
static int copy_text(const char *text, char **ret_copy)
{
	*ret_copy = text ? strdup(text) : NULL;
	return text && !*ret_copy ? -ENOMEM : 0;
}

void fp_store_options_take(struct fp_store *store, const struct fp_store_options *options)
{
	store->deadline_ns = options->deadline_ns ? options->deadline_ns : DEADLINE_DEFAULT_NS;
	store->patience_ns = options->patience_ns;
	store->connect_ns = options->connect_ns;
	store->lease_bytes = options->lease_bytes ? options->lease_bytes : LEASE_DEFAULT_BYTES;
	store->heartbeat_ns = options->heartbeat_ns ? options->heartbeat_ns : HEARTBEAT_DEFAULT_NS;
	store->reconnect = options->reconnect;
	store->heartbeat_deadline_ns = options->heartbeat_deadline_ns;
	if (!store->heartbeat_deadline_ns)
		store->heartbeat_deadline_ns = FP_MIN(store->deadline_ns / 2, HEARTBEAT_DEADLINE_MAX_NS);
	store->notice = options->notice;
	store->notice_user = options->notice_user;
}

int fp_store_new(const struct fp_store_options *options, struct fp_store **ret_store)
{
	FP_CLEANUP(fp_cleanup_store) struct fp_store *store = NULL;
	void *table;

	if (options->lease_bytes % FP_PAGE_SIZE || options->lease_bytes > LEASE_MAX_BYTES)
		return -EINVAL;
	store = fp_lockedmem_new(sizeof(*store));
	if (!store)
		return -ENOMEM;
	pthread_mutex_init(&store->reserve_lock, NULL);
	pthread_rwlock_init(&store->lanes_lock, NULL);
	fp_generations_init(&store->gens);
	fp_adoption_init(store);
	LIST_INIT(&store->lanes);
	fp_store_options_take(store, options);
	store->opener = getpid();
	store->random = fp_clock_ns() ^ (uint64_t)getpid() << 32;
	store->direct = true;
	store->cursor = 1;
	store->secret = options->secret;
	store->rdma = options->rdma;
	if (copy_text(options->client_name, &store->client_name) < 0)
		return -ENOMEM;
	table = mmap(NULL, lease_table_bytes(), PROT_READ | PROT_WRITE,
	             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (table == MAP_FAILED)
		return -ENOMEM;
	store->leases = table;
	*ret_store = fp_take_ptr(store);
	return 0;
}

struct fp_session_options fp_store_session_options(const struct fp_store *store,
                                                   const struct fp_session_identity *resume)
{
	return (struct fp_session_options){
	    .client_name = store->client_name,
	    .secret = store->secret,
	    .rdma = store->rdma,
	    .deadline_ns = store->deadline_ns,
	    .connect_ns = resume ? 0 : store->connect_ns,
	    .resume = resume,
	};
}

/* Makes a node for an open session. Takes over the session, also on failure. */
static int node_begin(struct fp_store *store, struct fp_node *node, struct fp_session *session)
{
	int r;

	node->load_store = session->transport->load_store;
	node->epoch = fp_session_epoch_new(session, 0);
	if (!node->epoch) {
		fp_session_close(session);
		return -ENOMEM;
	}
	pthread_mutex_init(&node->control, NULL);
	store->direct = store->direct && node->load_store;
	store->n_nodes++;
	r = fp_node_identify(node, session);
	node->adoptable = r == 0;
	node->resumable = r == 0 && !node->load_store;
	node->backoff.options = store->reconnect;
	node->next_heartbeat_ns = fp_reconnect_next_heartbeat(store, node);
	return r == -EOPNOTSUPP ? 0 : r;
}

static int add_port(struct fp_store *store, unsigned set_idx, unsigned address)
{
	struct fp_session_options options = fp_store_session_options(store, NULL);
	struct fp_node *node = &store->nodes[store->n_nodes];
	struct fp_session *session;
	unsigned way;
	int r, cause;

	if (store->n_nodes == FP_STORE_MAX_NODES)
		return -E2BIG;
	node->set = store->sets[set_idx];
	node->group = set_idx;
	node->address = address;
	options.refusal = &store->refusal;
	r = fp_node_dial(node, &options, &session, &way, &cause);
	if (r == 0)
		r = node_begin(store, node, session);
	if (r == 0)
		fp_store_way_taken(store, node, way, cause);
	return r;
}

int fp_store_add(struct fp_store *store, const struct fp_url_set *set)
{
	unsigned set_idx = store->n_sets;
	struct fp_url_set *copy;
	int r = 0;

	if (set_idx == FP_STORE_MAX_NODES)
		return -E2BIG;
	copy = malloc(sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	*copy = *set;
	store->sets[store->n_sets++] = copy;
	for (unsigned i = 0; i < set->n_addresses && r == 0; i++)
		r = add_port(store, set_idx, i);
	return r;
}

static bool has_default_port(const struct fp_url *url)
{
	return url->port == url->transport->default_port;
}

/*
 * True if both URLs lead to the same node: they name the same host and the same port. rdma has
 * ports of its own. A port of rdma and a port of tcp lead to the same node if both are the default.
 */
static bool same_way(const struct fp_url *a, const struct fp_url *b)
{
	bool same_kind = a->transport->default_port == b->transport->default_port;

	return strcmp(a->host, b->host) == 0 &&
	       (same_kind ? a->port == b->port : has_default_port(a) && has_default_port(b));
}

/*
 * True if an address of set leads to the same node as the URL way. Leaves out the address with the
 * index `except`.
 */
static bool has_way(const struct fp_url_set *set, const struct fp_url *way, unsigned except)
{
	for (unsigned transport = 0; transport < set->n_transports; transport++)
		for (unsigned address = 0; address < set->n_addresses; address++)
			if (address != except && same_way(&set->urls[transport][address], way))
				return true;
	return false;
}

/*
 * True if an address of a leads to the same node as an address of b. If a and b are the same set,
 * this is about two different addresses of it.
 */
static bool overlap(const struct fp_url_set *a, const struct fp_url_set *b)
{
	for (unsigned transport = 0; transport < a->n_transports; transport++)
		for (unsigned address = 0; address < a->n_addresses; address++)
			if (has_way(b, &a->urls[transport][address], a == b ? address : UINT_MAX))
				return true;
	return false;
}

/*
 * Parses all URLs before the store connects to any node. If two URLs named the same node, its
 * memory would count twice. 0, or an error and *ret_failed.
 */
static int parse_urls(const struct fp_store_options *options, struct fp_url_set *sets,
                      const char **ret_failed)
{
	for (unsigned i = 0; i < options->n_urls; i++) {
		int r = fp_url_parse_set(options->urls[i], &sets[i]);

		for (unsigned j = 0; r == 0 && j <= i; j++)
			r = overlap(&sets[i], &sets[j]) ? -ENOTUNIQ : 0;
		if (r < 0) {
			*ret_failed = options->urls[i];
			return r;
		}
	}
	return 0;
}

int fp_store_open(const struct fp_store_options *options, struct fp_store **ret_store,
                  const char **ret_failed)
{
	FP_CLEANUP(fp_cleanup_store) struct fp_store *store = NULL;
	fp_autofree struct fp_url_set *sets = NULL;
	const char *failed = NULL;
	int r;

	if (options->n_urls == 0 || options->n_urls > FP_STORE_MAX_NODES)
		return -EINVAL;
	sets = calloc(options->n_urls, sizeof(*sets));
	if (!sets)
		return -ENOMEM;
	r = parse_urls(options, sets, &failed);
	if (r == 0)
		r = fp_store_new(options, &store);
	for (unsigned i = 0; r == 0 && i < options->n_urls; i++) {
		failed = options->urls[i];
		r = fp_store_add(store, &sets[i]);
	}
	if (r < 0 && ret_failed)
		*ret_failed = failed;
	if (r < 0 && store && options->refusal)
		*options->refusal = store->refusal;
	if (r < 0)
		return r;
	*ret_store = fp_take_ptr(store);
	return 0;
}

/*
 * True if a node's session must end without BYE, the frame that gives the leases back. A broken
 * connection cannot carry BYE, and nobody would answer. If a child may still have to adopt the
 * leases, the session must last: it ends with the last copy of its connection, or with its grace.
 */
static bool leaves_silently(struct fp_store *store, const struct fp_node *node)
{
	return fp_node_is_adopting(node) || (node->resumable && !fp_node_up(node)) ||
	       fp_generations_any_living(store);
}

static void node_end(struct fp_store *store, struct fp_node *node)
{
	/*
	 * All lanes are closed, so this is the last reference. A forked child can't assert that: it
	 * may have copied the count while the reconnect thread changed it.
	 */
	assert(store->opener != getpid() || node->epoch->n_refs == 1);
	if (leaves_silently(store, node)) {
		fp_leases_outlive(node);
		fp_session_abandon(node->epoch->session);
	} else {
		fp_session_close(node->epoch->session);
	}
	free(node->epoch);
	pthread_mutex_destroy(&node->control);
	explicit_bzero(&node->identity, sizeof(node->identity));
}

static void leases_end(struct fp_store *store)
{
	for (uint32_t i = 1; i <= store->n_leases; i++) {
		struct fp_slots *slots = store->leases[i];

		if (slots->inherited || slots->lease_id == FP_SLOTS_NO_LEASE)
			fp_lease_unmap(slots);
		fp_slots_free(slots);
	}
}

void fp_store_close(struct fp_store *store)
{
	if (!store)
		return;
	for (unsigned i = 0; i < store->n_nodes; i++)
		node_end(store, &store->nodes[i]);
	leases_end(store);
	fp_generations_done(&store->gens);
	fp_adoption_done(store);
	for (unsigned i = 0; i < store->n_sets; i++)
		free(store->sets[i]);
	if (store->leases) {
		for (uint32_t i = 0; i < store->n_leases; i += LEASES_OF_A_PAGE)
			fp_lockedmem_forget(FP_PAGE_SIZE);
		munmap(store->leases, lease_table_bytes());
	}
	free(store->client_name);
	pthread_rwlock_destroy(&store->lanes_lock);
	pthread_mutex_destroy(&store->reserve_lock);
	if (store->opener != getpid())
		fp_transport_forked();
	fp_lockedmem_free(store, sizeof(*store));
}

void fp_store_notice(const struct fp_store *store, enum fp_log_level level, const char *format, ...)
{
	char text[NOTICE_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (store->notice)
		store->notice(store->notice_user, level, text);
	else
		fp_log(level, "store", "%s", text);
}

/*
 * True if a way failed because this machine lacks the device or the library. No warning is due
 * then, because the user left the choice of the way to us.
 */
static bool is_not_for_us(int cause)
{
	return cause == -ENODEV || cause == -ELIBACC;
}

void fp_store_way_taken(struct fp_store *store, struct fp_node *node, unsigned way, int cause)
{
	bool was_lesser = fp_node_way_is_lesser(node, atomic_exchange(&node->way, way));
	bool is_lesser = fp_node_way_is_lesser(node, way);
	bool was_best = atomic_load(&node->had_best);
	char why[64];

	if (!is_lesser)
		atomic_store(&node->had_best, true);
	if (is_lesser && !was_lesser && (was_best || !is_not_for_us(cause)))
		fp_store_notice(store, FP_LOG_NOTICE, "node %s: goes on over %s: %s",
		                fp_node_way(node, 0)->text, fp_node_way(node, way)->text,
		                fp_strerror(cause, why, sizeof(why)));
	else if (was_lesser && !is_lesser)
		fp_store_notice(store, FP_LOG_NOTICE, "node %s: is reached over %s again",
		                fp_node_way(node, 0)->text, fp_node_way(node, way)->text);
}

/* Makes leases visible to slot allocation. Under reserve_lock. */
static void publish(struct fp_store *store, struct fp_slots *list)
{
	uint32_t index = store->n_leases;

	for (struct fp_slots *slots = list; slots; slots = slots->next) {
		slots->first_slot = (uint64_t)++index << FP_SLOT_PAGE_BITS;
		slots->shared_word = store->gens.n_shared_words;
		store->gens.n_shared_words += fp_slots_n_words(slots);
		atomic_store_explicit(&store->leases[index], slots, memory_order_release);
		if (index % LEASES_OF_A_PAGE == 1)
			fp_lockedmem_lock(&store->leases[index - 1], FP_PAGE_SIZE, false);
		atomic_fetch_add_explicit(&store->nodes[slots->node].n_slots, slots->n_pages,
		                          memory_order_relaxed);
	}
	fp_store_freeing(store);
	atomic_store_explicit(&store->n_leases, index, memory_order_release);
	fp_store_freed(store);
}

int fp_store_grow(struct fp_store *store, uint64_t n_pages)
{
	struct fp_slots *list;
	int r = fp_placement_take(store, n_pages, &list);

	if (r == 0)
		publish(store, list);
	return r;
}

/*
 * fp_store_grow for any thread but the reconnect thread. First waits for the sessions that the
 * reconnect thread is about to open.
 */
static int await_and_grow(struct fp_store *store, uint64_t n_pages)
{
	fp_adoption_await(store);
	return fp_store_grow(store, n_pages);
}

/* Like await_and_grow. Where a session has ended, this also waits for the next session. */
static int grow_patiently(struct fp_store *store, uint64_t n_pages)
{
	int r = await_and_grow(store, n_pages);

	if (r == 0 || r == -ENOSPC)
		return r;
	fp_store_check_sessions(store);
	return fp_store_lacks_sessions(store) ? await_and_grow(store, n_pages) : r;
}

/* fp_store_reserve under reserve_lock. */
static int reserve(struct fp_store *store, uint64_t n_pages)
{
	uint64_t wanted = store->reserved_pages + n_pages; /* others can only lower the sum now */
	uint64_t total = fp_store_slots_total(store);
	int r = 0;

	if (wanted > total)
		r = grow_patiently(store, wanted - total);
	if (r == 0)
		atomic_fetch_add(&store->reserved_pages, n_pages);
	return r;
}

/* Tells people, because the program only sees that it gets no memory although there is enough. */
static void tell_if_short(struct fp_store *store, int r)
{
	if ((r == -EMFILE || r == -ENFILE) && !atomic_exchange(&store->told_short, true))
		fp_store_notice(
		    store, FP_LOG_WARNING,
		    "a node can lend no more: each lease is handed over as a descriptor, and this "
		    "process has too many open files. Raise the limit, `ulimit -n 1024` at least");
}

/*
 * Writes to buf why the nodes gave no slots, unless people were told already: then buf is empty.
 * The caller holds reserve_lock.
 */
static void explain_refusal(struct fp_store *store, int r, char *buf, size_t len)
{
	_Atomic bool *told = r == -ENOSPC ? &store->told_full : &store->told_away;

	buf[0] = '\0';
	if (r == 0 || r == -EMFILE || r == -ENFILE || r == -ENOMEM || atomic_load(told))
		return;
	fp_shortage_explain(&store->shortage, store, buf, len);
	atomic_store(told, buf[0] != '\0');
}

int fp_store_reserve(struct fp_store *store, uint64_t n_pages)
{
	char why[FP_SHORTAGE_TEXT_LEN], size[16];
	int r;

	if (n_pages > SLOTS_MAX)
		return -ENOSPC;
	pthread_mutex_lock(&store->reserve_lock);
	r = reserve(store, n_pages);
	explain_refusal(store, r, why, sizeof(why));
	pthread_mutex_unlock(&store->reserve_lock);
	tell_if_short(store, r);
	if (why[0])
		fp_store_notice(store, FP_LOG_WARNING,
		                "a request for %s of far memory was refused (ENOMEM): %s",
		                fp_size_format(n_pages * FP_PAGE_SIZE, size, sizeof(size)), why);
	return r;
}

int fp_store_extend(struct fp_store *store)
{
	char why[FP_SHORTAGE_TEXT_LEN];
	int r;

	if (pthread_mutex_trylock(&store->reserve_lock) != 0)
		return -EBUSY;
	r = await_and_grow(store, 1);
	explain_refusal(store, r, why, sizeof(why));
	pthread_mutex_unlock(&store->reserve_lock);
	tell_if_short(store, r);
	if (why[0])
		fp_store_notice(store, FP_LOG_WARNING,
		                "no room for pages that leave local memory: they stay, and the program "
		                "stalls or gets SIGBUS once it needs their room: %s",
		                why);
	return r;
}

void fp_store_unreserve(struct fp_store *store, uint64_t n_pages)
{
	uint64_t before = atomic_fetch_sub(&store->reserved_pages, n_pages);

	assert(before >= n_pages);
	(void)before;
}

/* Takes up to n slots, from one lease after another, starting at the cursor. */
static unsigned slots_scan(struct fp_store *store, unsigned n, uint64_t *ret_slots)
{
	uint32_t n_leases = atomic_load_explicit(&store->n_leases, memory_order_acquire);
	uint32_t index = atomic_load_explicit(&store->cursor, memory_order_relaxed);
	unsigned got = 0;

	for (uint32_t i = 0; i < n_leases && got < n; i++, index++) {
		struct fp_slots *slots;

		if (index > n_leases)
			index = 1;
		slots = atomic_load_explicit(&store->leases[index], memory_order_acquire);
		if (atomic_load_explicit(&slots->retired, memory_order_acquire) ||
		    !fp_node_up(&store->nodes[slots->node]))
			continue;
		got += fp_slots_take(slots, n - got, ret_slots + got);
		if (got == n)
			atomic_store_explicit(&store->cursor, index, memory_order_relaxed);
	}
	return got;
}

/*
 * A scan looks at one lease after another. Behind it slots may become free, while other threads
 * take the slots ahead of it: then it finds none. But a caller with a reservation must get its
 * slots. So a failed scan counts only if no slot was returned during it. No return may be under way
 * when the scan begins, and none may begin before it ends. To count only finished returns is not
 * enough: a thread may have cleared its bit behind the scan, and not have counted it yet.
 */
unsigned fp_store_slot_alloc(struct fp_store *store, unsigned n, uint64_t *ret_slots)
{
	unsigned got = 0;
	uint64_t n_freed;

	for (bool swept = false;;) {
		n_freed = atomic_load_explicit(&store->n_freed, memory_order_acquire);
		got += slots_scan(store, n - got, ret_slots + got);
		atomic_thread_fence(memory_order_seq_cst);
		if (got == n)
			return got;
		if (n_freed != atomic_load_explicit(&store->n_freeing, memory_order_acquire)) {
			sched_yield(); /* the thread that returns a slot may need this very CPU to go on */
		} else if (!swept && atomic_load(&store->gens.n_limbo)) {
			fp_store_sweep(store); /* a sweep may free slots for the next scan */
			swept = true;
		} else {
			return got;
		}
	}
}

void fp_store_slot_free(struct fp_store *store, uint64_t slot)
{
	struct fp_slots *slots = fp_store_lease_of(store, slot);

	if (fp_slots_is_shared(slots, slot)) {
		fp_generations_let_go(store, slots, slot);
		return;
	}
	fp_store_freeing(store);
	if (fp_slots_put(slots, slot))
		atomic_store_explicit(&store->cursor, (uint32_t)(slot >> FP_SLOT_PAGE_BITS),
		                      memory_order_relaxed);
	fp_store_freed(store);
}

bool fp_store_slot_is_shared(const struct fp_store *store, uint64_t slot)
{
	return fp_slots_is_shared(fp_store_lease_of(store, slot), slot);
}

bool fp_store_slot_up(const struct fp_store *store, uint64_t slot)
{
	return fp_node_up(&store->nodes[fp_store_slot_node(store, slot)]);
}

bool fp_store_is_blocked(const struct fp_store *store)
{
	for (unsigned i = 0; i < store->n_nodes; i++)
		if (atomic_load(&store->nodes[i].n_blocked))
			return true;
	return false;
}

void fp_store_hurry(struct fp_store *store, bool hurried)
{
	atomic_store(&store->hurried_ns, hurried ? fp_clock_ns() : 0);
}

unsigned fp_store_slot_node(const struct fp_store *store, uint64_t slot)
{
	return fp_store_lease_of(store, slot)->node;
}

void *fp_store_slot_direct(const struct fp_store *store, uint64_t slot)
{
	const struct fp_slots *slots = fp_store_lease_of(store, slot);

	return slots->base ? slots->base + fp_store_offset_of(slot) : NULL;
}

void fp_store_slot_count(struct fp_store *store, uint64_t slot, enum fp_io_op op)
{
	fp_node_count(&store->nodes[fp_store_slot_node(store, slot)], op, FP_PAGE_SIZE);
}

bool fp_store_is_direct(const struct fp_store *store)
{
	return store->direct;
}

unsigned fp_store_n_nodes(const struct fp_store *store)
{
	return store->n_nodes;
}

void fp_store_node_info(const struct fp_store *store, unsigned node_idx, struct fp_store_node *ret_info)
{
	const struct fp_node *node = &store->nodes[node_idx];
	uint64_t word = fp_node_breaker(node);
	unsigned way = atomic_load_explicit(&node->way, memory_order_relaxed);

	assert(node_idx < store->n_nodes);
	*ret_info = (struct fp_store_node){
	    .url = fp_node_way(node, way)->text,
	    .state = fp_breaker_state(word),
	    .up = fp_breaker_state(word) == FP_BREAKER_CLOSED,
	    .spent = fp_breaker_spent(word),
	    .patience_ns = fp_store_patience_ns(store, node),
	    .last_error = atomic_load(&node->error),
	    .why = atomic_load(&node->why),
	    .refusal = fp_node_refusal(node),
	    .session_error = atomic_load(&node->session_error),
	    .adopting = fp_node_is_adopting(node),
	    .leased_bytes = atomic_load_explicit(&node->n_slots, memory_order_relaxed) * FP_PAGE_SIZE,
	    .retired_bytes = atomic_load_explicit(&node->n_retired, memory_order_relaxed) * FP_PAGE_SIZE,
	    .read_bytes = atomic_load_explicit(&node->read_bytes, memory_order_relaxed),
	    .written_bytes = atomic_load_explicit(&node->written_bytes, memory_order_relaxed),
	    .reconnects = atomic_load_explicit(&node->reconnects, memory_order_relaxed),
	    .failures = atomic_load_explicit(&node->failures, memory_order_relaxed),
	    .heartbeat_ns = atomic_load_explicit(&node->heartbeat_ns, memory_order_relaxed),
	};
	ret_info->degraded = ret_info->up && fp_node_way_is_lesser(node, way);
	if (!ret_info->up) /* the breaker may open a moment before its error is stored */
		ret_info->error = ret_info->last_error ? ret_info->last_error : -EHOSTDOWN;
}

static void check_session(struct fp_store *store, struct fp_node *node)
{
	int r;

	if (!node->load_store || fp_node_is_lost(node) || fp_node_is_adopting(node) ||
	    pthread_mutex_trylock(&node->control) != 0) /* a call is under way: look again next time */
		return;
	r = fp_session_check(node->epoch->session);
	if (r < 0 && !fp_node_is_adopting(node))
		fp_adoption_begin(store, node, r);
	pthread_mutex_unlock(&node->control);
}

void fp_store_check_sessions(struct fp_store *store)
{
	for (unsigned i = 0; i < store->n_nodes; i++)
		check_session(store, &store->nodes[i]);
}

uint64_t fp_store_slots_used(const struct fp_store *store)
{
	uint32_t n_leases = atomic_load_explicit(&store->n_leases, memory_order_acquire);
	uint64_t used = 0;

	for (uint32_t i = 1; i <= n_leases; i++) {
		struct fp_slots *slots = atomic_load_explicit(&store->leases[i], memory_order_acquire);

		used += slots->n_pages - atomic_load_explicit(&slots->n_free, memory_order_relaxed);
	}
	return used;
}

uint64_t fp_store_slots_total(const struct fp_store *store)
{
	uint64_t total = 0;

	for (unsigned i = 0; i < store->n_nodes; i++)
		if (fp_node_may_be_back(&store->nodes[i]))
			total += atomic_load_explicit(&store->nodes[i].n_slots, memory_order_relaxed);
	return total;
}
