/*
 * Generations, as seen by the process that forks. Room: store. See generation.h.
 *
 * A slot that was in use at a fork is shared. Nobody writes it until a sweep finds that no living
 * generation holds it. When its owner has given it up, the slot is in limbo. A sweep frees it when
 * it is in limbo and no living generation holds it. So a slot has a bit of its owner, and one of
 * each generation. While the slot is shared, each bit changes only once. Whichever process ends
 * first, a slot that somebody reads is never freed. The first sweep after the end of the last
 * holder frees it.
 */
#include "generation.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "fdutil.h"
#include "lockedmem.h"
#include "store_internal.h"
#include "units.h"

static_assert(FP_SHARED_SLOTS_MAX_NODES >= FP_STORE_MAX_NODES, "an identity for each node");

void fp_generations_init(struct fp_generations *gens)
{
	pthread_mutex_init(&gens->lock, NULL);
}

static void fd_end(int *fd)
{
	if (*fd < 0)
		return;
	fp_fd_close(*fd);
	*fd = -1;
}

static void generation_end(struct fp_generation *gen)
{
	fd_end(&gen->alive_fd);
	fd_end(&gen->descendants_fd);
	fp_shared_slots_free(gen->map);
	fp_lockedmem_free(gen, sizeof(*gen));
}

static void list_end(struct fp_generation **list)
{
	while (*list) {
		struct fp_generation *gen = *list;

		*list = gen->next;
		generation_end(gen);
	}
}

void fp_generations_done(struct fp_generations *gens)
{
	list_end(&gens->pending);
	list_end(&gens->living);
	list_end(&gens->ancestors);
	pthread_mutex_destroy(&gens->lock);
}

/* ---- room for the copies ---- */

/* How many of our own slots no page uses and no mapping has reserved. */
static uint64_t spare_slots(const struct fp_store *store)
{
	uint64_t total = fp_store_slots_total(store), taken = 0;

	for (uint32_t i = store->gens.n_inherited + 1; i <= store->n_leases; i++) {
		const struct fp_slots *slots = store->leases[i];

		taken += atomic_load(&slots->retired) ? 0 : slots->n_pages - atomic_load(&slots->n_free);
	}
	taken = FP_MAX(taken, atomic_load(&store->reserved_pages));
	return total > taken ? total - taken : 0;
}

/*
 * How many pages may need a second slot: those that have one now, except in limbo, and those in
 * local memory. A page counts once, whoever writes it: if both do, the shared slot becomes free.
 */
static uint64_t most_copies(const struct fp_store *store, uint64_t n_resident, uint64_t n_inherited)
{
	uint64_t limbo = atomic_load(&store->gens.n_limbo), used = fp_store_slots_used(store);

	used = used > limbo ? used - limbo : 0;
	return FP_MIN(used + n_resident, n_inherited);
}

static int look_for_room(struct fp_store *store, uint64_t n, char *why, size_t len)
{
	uint64_t spare;
	int r;

	pthread_mutex_lock(&store->reserve_lock);
	spare = spare_slots(store);
	r = n > spare ? fp_placement_look(store, n - spare) : 0;
	if (r < 0)
		fp_shortage_explain(&store->shortage, store, why, len);
	pthread_mutex_unlock(&store->reserve_lock);
	return r;
}

int fp_store_fork_room(struct fp_store *store, uint64_t n_resident, uint64_t n_inherited)
{
	uint64_t n = most_copies(store, n_resident, n_inherited);
	char why[FP_SHORTAGE_TEXT_LEN], size[16];
	int r = look_for_room(store, n, why, sizeof(why));

	if (r < 0 && !atomic_exchange(&store->told_fork, true))
		fp_store_notice(store, FP_LOG_WARNING,
		                "a fork was refused (ENOMEM): parent and child may have to keep %s twice: "
		                "%s. Or use posix_spawn, or run with --overcommit",
		                fp_size_format(n * FP_PAGE_SIZE, size, sizeof(size)), why);
	return r;
}

/* ---- before the fork ---- */

static int pipe_open(struct fp_generation *gen)
{
	bool locked = fp_fd_lock_exclusive();
	struct stat st;
	int ends[2], r = pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0 ? -errno : 0;

	if (r == 0 && fstat(ends[0], &st) == 0)
		gen->pipe = st.st_ino;
	if (r == 0) {
		gen->alive_fd = fp_fd_move_high(ends[0]);
		gen->descendants_fd = fp_fd_move_high(ends[1]);
	}
	fp_fd_unlock(locked);
	return r;
}

static int generation_new(uint64_t n_words, struct fp_generation **ret_gen)
{
	struct fp_generation *gen = fp_lockedmem_new(sizeof(*gen));
	int r;

	if (!gen)
		return -ENOMEM;
	gen->alive_fd = gen->descendants_fd = -1;
	r = fp_shared_slots_new(n_words, &gen->map);
	if (r == 0)
		r = pipe_open(gen);
	if (r < 0)
		generation_end(gen);
	else
		*ret_gen = gen;
	return r;
}

/*
 * Shares each slot of our own that is in use. Inherited slots are shared already; our parent frees
 * them.
 */
static void share_all(struct fp_store *store, struct fp_shared_slots *map)
{
	for (uint32_t i = store->gens.n_inherited + 1; i <= store->n_leases; i++) {
		struct fp_slots *slots = store->leases[i];

		for (uint32_t w = 0; w < fp_slots_n_words(slots); w++) {
			uint64_t used = fp_slots_share(slots, w);

			if (used)
				fp_shared_slots_set(map, slots->shared_word + w, used);
		}
	}
}

/*
 * Writes the identities by which the child adopts. If this process itself has not adopted yet, the
 * child uses the same map as this process.
 */
static void set_identities(const struct fp_store *store, struct fp_shared_slots *map)
{
	for (unsigned i = 0; i < store->n_nodes; i++)
		if (!fp_node_is_adopting(&store->nodes[i]) && !fp_node_is_lost(&store->nodes[i]))
			fp_shared_slots_set_identity(map, i, &store->nodes[i].identity);
}

static int prepare(struct fp_store *store, struct fp_generation **ret_gen)
{
	struct fp_generation *gen;
	int r;

	for (unsigned i = 0; i < store->n_nodes; i++) {
		struct fp_node *node = &store->nodes[i];

		if (!node->adoptable && !fp_node_is_lost(node))
			return -EOPNOTSUPP;
	}
	r = generation_new(store->gens.n_shared_words, &gen);
	if (r < 0)
		return r;
	share_all(store, gen->map);
	set_identities(store, gen->map);
	*ret_gen = gen;
	return 0;
}

/*
 * Takes all locks under which other threads change data that the child inherits. Exception:
 * lanes_lock, whose holder may wait for the allocator.
 */
static void lock_all(struct fp_store *store)
{
	pthread_mutex_lock(&store->reserve_lock);
	for (unsigned i = 0; i < store->n_nodes; i++)
		pthread_mutex_lock(&store->nodes[i].control);
	pthread_mutex_lock(&store->gens.lock);
}

void fp_generations_unlock(struct fp_store *store)
{
	pthread_mutex_unlock(&store->gens.lock);
	for (unsigned i = store->n_nodes; i-- > 0;)
		pthread_mutex_unlock(&store->nodes[i].control);
	pthread_mutex_unlock(&store->reserve_lock);
}

int fp_store_fork_prepare(struct fp_store *store)
{
	struct fp_generations *gens = &store->gens;

	lock_all(store);
	gens->prepare_error = prepare(store, &gens->pending);
	if (gens->prepare_error == 0)
		atomic_store(&gens->has_forked, true);
	return gens->prepare_error;
}

/* ---- in the parent ---- */

/*
 * True if the generation's processes have all ended: the pipe, to which nobody ever writes, is at
 * end of file. If the program has put another file at that descriptor number, the generation counts
 * as living, and its slots stay shared.
 */
static bool has_ended(const struct fp_generation *gen)
{
	struct stat st;
	char byte;

	if (gen->alive_fd < 0)
		return true;
	if (fstat(gen->alive_fd, &st) < 0 || !S_ISFIFO(st.st_mode) || st.st_ino != gen->pipe)
		return false;
	return read(gen->alive_fd, &byte, 1) == 0;
}

static bool end_dead(struct fp_generations *gens)
{
	struct fp_generation **p = &gens->living;
	bool any = false;

	while (*p) {
		struct fp_generation *gen = *p;

		if (!has_ended(gen)) {
			p = &gen->next;
			continue;
		}
		*p = gen->next;
		generation_end(gen);
		atomic_fetch_sub(&gens->n_living, 1);
		any = true;
	}
	return any;
}

/*
 * Returns the slots that any living generation holds, as bits. word is the index of a word in the
 * bitmaps of our own leases.
 */
static uint64_t held_by_any(const struct fp_generations *gens, uint64_t word)
{
	uint64_t held = 0;

	for (const struct fp_generation *gen = gens->living; gen; gen = gen->next)
		held |= fp_shared_slots_get(gen->map, word);
	return held;
}

/*
 * Returns a number that changes when there may be something to settle. Read it before the words of
 * the bitmaps.
 */
static uint64_t sweep_mark(const struct fp_generations *gens)
{
	uint64_t mark = atomic_load_explicit(&gens->n_let_go, memory_order_acquire);

	for (const struct fp_generation *gen = gens->living; gen; gen = gen->next)
		mark += fp_shared_slots_n_cleared(gen->map);
	return mark;
}

static unsigned settle(struct fp_store *store, struct fp_slots *slots)
{
	unsigned n_freed = 0;

	fp_store_freeing(store);
	for (uint32_t w = 0; w < fp_slots_n_words(slots); w++)
		n_freed += fp_slots_settle(slots, w, held_by_any(&store->gens, slots->shared_word + w));
	fp_store_freed(store);
	atomic_fetch_sub(&store->gens.n_limbo, n_freed);
	return n_freed;
}

/* gens.lock held. */
static void sweep(struct fp_store *store)
{
	struct fp_generations *gens = &store->gens;
	bool ended = end_dead(gens);
	uint64_t mark = sweep_mark(gens);

	if (!ended && mark == gens->swept)
		return;
	gens->swept = mark;
	for (uint32_t i = gens->n_inherited + 1; i <= atomic_load(&store->n_leases); i++) {
		struct fp_slots *slots = store->leases[i];

		/* a lease without slots in limbo is settled only when a generation has ended */
		if (ended || atomic_load(&slots->n_limbo))
			settle(store, slots);
	}
}

void fp_store_fork_parent(struct fp_store *store, bool forked)
{
	struct fp_generations *gens = &store->gens;
	struct fp_generation *gen = fp_take_ptr(gens->pending);

	if (gen) {
		fd_end(&gen->descendants_fd);
		gen->next = gens->living;
		gens->living = gen;
		atomic_fetch_add(&gens->n_living, 1);
		if (!forked) {
			fd_end(&gen->alive_fd);
			sweep(store);
		}
	}
	fp_generations_unlock(store);
}

void fp_store_sweep(struct fp_store *store)
{
	struct fp_generations *gens = &store->gens;

	if (!atomic_load(&gens->n_living) && !atomic_load(&gens->n_limbo))
		return;
	if (pthread_mutex_trylock(&gens->lock) != 0)
		return; /* another thread sweeps, or forks */
	sweep(store);
	pthread_mutex_unlock(&gens->lock);
}

void fp_generations_let_go(struct fp_store *store, struct fp_slots *slots, uint64_t slot)
{
	struct fp_generations *gens = &store->gens;

	if (!slots->inherited) {
		atomic_fetch_add(&gens->n_limbo, 1);
		fp_slots_let_go(slots, slot);
		atomic_fetch_add_explicit(&gens->n_let_go, 1, memory_order_release);
		return;
	}
	fp_slots_put(slots, slot);
	if (slot >> FP_SLOT_PAGE_BITS >= gens->parents_first && !atomic_load(&gens->has_forked))
		fp_shared_slots_clear(gens->ancestors->map,
		                      slots->shared_word + fp_slots_word_of(slots, slot),
		                      fp_slots_bit_of(slots, slot));
}

void fp_generations_publish(struct fp_store *store, unsigned node_idx)
{
	struct fp_generations *gens = &store->gens;

	pthread_mutex_lock(&gens->lock);
	for (struct fp_generation *gen = gens->living; gen; gen = gen->next)
		fp_shared_slots_set_identity(gen->map, node_idx, &store->nodes[node_idx].identity);
	pthread_mutex_unlock(&gens->lock);
}

bool fp_generations_any_living(struct fp_store *store)
{
	end_dead(&store->gens);
	return store->gens.living;
}

/* ---- in the child ---- */

static bool is_adopted_from(const struct fp_store *store, const struct fp_shared_slots *map)
{
	for (unsigned i = 0; i < store->n_nodes; i++)
		if (store->nodes[i].adopt_from == map)
			return true;
	return false;
}

/*
 * True if the reading end is closed: then every process that would free slots after our end has
 * ended.
 */
static bool is_orphaned(const struct fp_generation *gen)
{
	struct pollfd fd = {.fd = gen->descendants_fd};

	return gen->descendants_fd < 0 || (poll(&fd, 1, 0) == 1 && fd.revents & POLLERR);
}

/* Forgets ancestors that have ended. Only a living ancestor needs to know that we live. */
static void forget_ancestors(struct fp_store *store, struct fp_generation **p)
{
	while (*p) {
		struct fp_generation *gen = *p;

		if (gen->map && !is_adopted_from(store, gen->map)) {
			fp_shared_slots_free(gen->map);
			gen->map = NULL;
		}
		if (is_orphaned(gen))
			fd_end(&gen->descendants_fd);
		if (gen->map || gen->descendants_fd >= 0) {
			p = &gen->next;
			continue;
		}
		*p = gen->next;
		generation_end(gen);
	}
}

void fp_generations_enter_child(struct fp_store *store)
{
	struct fp_generations *gens = &store->gens;
	struct fp_generation *gen = fp_take_ptr(gens->pending);

	list_end(&gens->living);
	fd_end(&gen->alive_fd);
	gen->next = gens->ancestors;
	gens->ancestors = gen;
	forget_ancestors(store, &gen->next);
	gens->parents_first = gens->n_inherited + 1;
	gens->n_inherited = store->n_leases;
	for (uint32_t i = gens->parents_first; i <= gens->n_inherited; i++)
		fp_slots_inherit(store->leases[i]);
	gens->n_shared_words = gens->swept = 0;
	gens->has_forked = false;
	gens->n_living = 0;
	gens->n_limbo = gens->n_let_go = 0;
}

void fp_store_mark_vital_fds(const struct fp_store *store, uint8_t mark)
{
	for (const struct fp_generation *gen = store->gens.ancestors; gen; gen = gen->next)
		fp_fd_make_vital(gen->descendants_fd, mark);
}
