/*
 * Leases as the node holds them. Room: daemon; see lease.h.
 */
#include "lease.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "units.h"
#include "wire.h"

/*
 * Limits for fp_pools_collect: a call takes some hundred microseconds, and all calls together take
 * at most a tenth of the loop's time.
 */
#define COLLECT_MAX      128u
#define COLLECT_PAUSE_NS FP_NSEC_PER_MSEC

/* How old a look at the host may be. A look takes some 60 µs, so not every LEASE makes one. */
#define HOST_AGE_NS (100 * FP_NSEC_PER_MSEC)
#define TOUCHED_MAX 1024u /* pieces of memory that one look at the host looks at: half a millisecond */

#define LEAST_BYTES (1ull << 20)
#define MAX_LEASES  32768u

uint64_t fp_pools_least_bytes(uint64_t size_bytes)
{
	uint64_t least_bytes = LEAST_BYTES;

	while (size_bytes / least_bytes > MAX_LEASES)
		least_bytes *= 2;
	return least_bytes;
}

static void see_touched(struct fp_node_memory *memory, uint64_t touched_bytes)
{
	memory->pools->touched_bytes += touched_bytes - memory->touched_bytes;
	memory->touched_bytes = touched_bytes;
}

/* Clients that map their leases touch them without this process: see promise.h. */
static void look_at_touched(struct fp_pools *pools)
{
	for (unsigned n = FP_MIN(pools->n_mapped, TOUCHED_MAX); n; n--) {
		struct fp_node_memory *memory = TAILQ_FIRST(&pools->mapped);

		see_touched(memory, fp_chunk_touched(&memory->chunk));
		TAILQ_REMOVE(&pools->mapped, memory, mapped);
		TAILQ_INSERT_TAIL(&pools->mapped, memory, mapped);
	}
}

static void enter_mapped(struct fp_node_memory *memory)
{
	if (!memory->shareable || fp_pool_is_reserved(memory->pool))
		return;
	memory->is_mapped = true;
	TAILQ_INSERT_HEAD(&memory->pools->mapped, memory, mapped);
	memory->pools->n_mapped++;
}

static void leave_mapped(struct fp_node_memory *memory)
{
	if (!memory->is_mapped)
		return;
	see_touched(memory, 0);
	memory->is_mapped = false;
	TAILQ_REMOVE(&memory->pools->mapped, memory, mapped);
	memory->pools->n_mapped--;
}

static struct fp_promised promised(const struct fp_pools *pools)
{
	struct fp_promised sum = {.touched_bytes = pools->touched_bytes};

	for (unsigned i = 0; i < pools->n; i++) {
		const struct fp_pool *pool = pools->items[i];

		if (!fp_pool_is_reserved(pool))
			sum.on_use_bytes += pool->used_bytes;
		else if (pool->backing != FP_BACKING_HUGETLB)
			sum.preallocated_bytes += pool->used_bytes;
		if (pool->backing != FP_BACKING_HUGETLB)
			sum.pools_bytes +=
			    pool->preallocate ? pool->size_bytes : pool->used_bytes + pool->leaving_bytes;
	}
	return sum;
}

static const struct fp_hostmem *look_at_host(struct fp_pools *pools, uint64_t max_age_ns)
{
	uint64_t now_ns = fp_clock_ns();

	if (!pools->host_ns || now_ns - pools->host_ns > max_age_ns) {
		struct fp_promised leased;

		fp_hostmem_read("", &pools->host);
		look_at_touched(pools);
		leased = promised(pools);
		fp_promise_look(&pools->promise, &pools->host, &leased);
		pools->host_ns = now_ns;
	}
	return &pools->host;
}

/*
 * What the host can still give, plus the memory that this node is giving back. That memory is free
 * by the time when a client touches its new lease. But never more than is left to promise.
 */
static uint64_t host_bytes(struct fp_pools *pools)
{
	uint64_t bytes = pools->unlimited ? UINT64_MAX : look_at_host(pools, HOST_AGE_NS)->available_bytes;
	const struct fp_promised leased = promised(pools);

	for (unsigned i = 0; i < pools->n && bytes != UINT64_MAX; i++)
		if (!fp_pool_is_reserved(pools->items[i]))
			bytes += pools->items[i]->leaving_bytes;
	return pools->unlimited ? bytes : FP_MIN(bytes, fp_promise_left(&pools->promise, &leased));
}

uint64_t fp_pools_free(struct fp_pools *pools, const struct fp_pool *pool)
{
	uint64_t free_bytes = pool->size_bytes - pool->used_bytes;

	return fp_pool_is_reserved(pool) ? free_bytes : FP_MIN(free_bytes, host_bytes(pools));
}

struct fp_pool *fp_pools_choose(struct fp_pools *pools, uint64_t size_bytes, bool shareable)
{
	struct fp_pool *best = NULL;
	uint64_t best_bytes = 0;

	for (unsigned i = 0; i < pools->n; i++) {
		struct fp_pool *pool = pools->items[i];
		uint64_t free_bytes = fp_pools_free(pools, pool);
		uint64_t room_bytes = free_bytes - FP_MIN(free_bytes, pool->leaving_bytes);

		if ((shareable && !fp_pool_is_shareable(pool)) ||
		    free_bytes < fp_pool_round(pool, size_bytes))
			continue;
		if (!best || room_bytes > best_bytes) {
			best = pool;
			best_bytes = room_bytes;
		}
	}
	return best;
}

void fp_pools_sum(struct fp_pools *pools, bool shareable, uint64_t *ret_size_bytes, uint64_t *ret_free_bytes)
{
	uint64_t size_bytes = 0, reserved_bytes = 0, promised_bytes = 0;

	for (unsigned i = 0; i < pools->n; i++) {
		const struct fp_pool *pool = pools->items[i];

		if (shareable && !fp_pool_is_shareable(pool))
			continue;
		size_bytes += pool->size_bytes;
		*(fp_pool_is_reserved(pool) ? &reserved_bytes : &promised_bytes) +=
		    pool->size_bytes - pool->used_bytes;
	}
	*ret_size_bytes = size_bytes;
	*ret_free_bytes = reserved_bytes + FP_MIN(promised_bytes, host_bytes(pools));
}

void fp_pools_leased(const struct fp_pools *pools, uint64_t *ret_leases, uint64_t *ret_bytes)
{
	uint64_t leases = 0, bytes = 0;

	for (unsigned i = 0; i < pools->n; i++) {
		leases += pools->items[i]->n_leases;
		bytes += pools->items[i]->used_bytes - pools->items[i]->kept_bytes;
	}
	*ret_leases = leases;
	*ret_bytes = bytes;
}

static struct fp_node_lease *lease_of(struct fp_worker_job *job)
{
	return fp_container_of(job, struct fp_node_lease, job);
}

static void charge(struct fp_node_memory *memory)
{
	uint64_t *host_bytes = &memory->pools->host.available_bytes;

	if (!fp_pool_is_reserved(memory->pool) && *host_bytes != UINT64_MAX)
		*host_bytes -= FP_MIN(*host_bytes, memory->size_bytes); /* the last look did not count it */
	memory->pool->used_bytes += memory->size_bytes;
	memory->pool->n_leases++;
	memory->pools->n_shared += memory->shareable;
	fp_client_ref(memory->client)->leased_bytes += memory->size_bytes;
	memory->client->n_shared += memory->shareable;
}

static void uncharge(struct fp_node_memory *memory)
{
	memory->pool->used_bytes -= memory->size_bytes;
	memory->client->leased_bytes -= memory->size_bytes;
}

static void memory_free(struct fp_node_memory *memory)
{
	memory->pools->n_shared -= memory->shareable;
	memory->client->n_shared -= memory->shareable;
	fp_client_put(memory->client);
	free(memory);
}

static bool run_give(struct fp_worker_job *job)
{
	struct fp_node_memory *memory = fp_container_of(job, struct fp_node_memory, give);

	memory->status = fp_pool_give(memory->pool, &memory->chunk);
	return memory->status > 0;
}

static void done_give(struct fp_worker_job *job)
{
	struct fp_node_memory *memory = fp_container_of(job, struct fp_node_memory, give);

	if (memory->status < 0)
		fp_log(FP_LOG_WARNING, "pool",
		       "%s: the host had no memory to preallocate again what a lease gave back; it is tried "
		       "again with every lease",
		       memory->pool->name);
	memory->pool->leaving_bytes -= memory->size_bytes;
	memory_free(memory);
}

/*
 * Begins to give back memory. Its bytes count as free from here on. A later lease that needs them
 * waits until they are scrubbed.
 */
static void give(struct fp_node_memory *memory)
{
	leave_mapped(memory);
	uncharge(memory);
	memory->pool->leaving_bytes += memory->size_bytes;
	memory->give = (struct fp_worker_job){.run = run_give, .done = done_give};
	fp_worker_post(memory->pools->worker, &memory->line, &memory->give);
}

static void keep(struct fp_node_memory *memory)
{
	struct fp_client *client = memory->client;

	if (TAILQ_EMPTY(&client->kept)) {
		TAILQ_INIT(&client->kept);
		TAILQ_INSERT_TAIL(&memory->pools->keepers, client, keeper);
	}
	TAILQ_INSERT_TAIL(&client->kept, memory, kept);
	memory->pools->n_kept++;
	memory->pool->kept_bytes += memory->size_bytes;
}

static void unkeep(struct fp_node_memory *memory)
{
	struct fp_client *client = memory->client;

	TAILQ_REMOVE(&client->kept, memory, kept);
	if (TAILQ_EMPTY(&client->kept))
		TAILQ_REMOVE(&memory->pools->keepers, client, keeper);
	memory->pools->n_kept--;
	memory->pool->kept_bytes -= memory->size_bytes;
}

/* Returns the first kept memory of the next client, whose turn comes again after all others. */
static struct fp_node_memory *next_kept(struct fp_pools *pools)
{
	struct fp_client *client = TAILQ_FIRST(&pools->keepers);

	if (!client)
		return NULL;
	TAILQ_REMOVE(&pools->keepers, client, keeper);
	TAILQ_INSERT_TAIL(&pools->keepers, client, keeper);
	return TAILQ_FIRST(&client->kept);
}

void fp_pools_init(struct fp_pools *pools, unsigned max_shared)
{
	*pools = (struct fp_pools){.max_shared = max_shared};
	pthread_mutex_init(&pools->leaving, NULL);
	TAILQ_INIT(&pools->keepers);
	TAILQ_INIT(&pools->mapped);
}

void fp_pools_done(struct fp_pools *pools)
{
	struct fp_node_memory *memory;

	while ((memory = next_kept(pools))) {
		unkeep(memory);
		leave_mapped(memory);
		uncharge(memory);
		fp_pool_leave(memory->pool, &memory->chunk);
		memory_free(memory);
	}
}

/* Memory that a client still has moves to the end of that client's list. */
bool fp_pools_collect(struct fp_pools *pools)
{
	unsigned n = FP_MIN(pools->n_kept, COLLECT_MAX);
	uint64_t now_ns = fp_clock_ns();
	bool any = false;

	if (now_ns - pools->collected_ns < COLLECT_PAUSE_NS)
		return false;
	pools->collected_ns = now_ns;
	while (n--) {
		struct fp_node_memory *memory = next_kept(pools);

		unkeep(memory);
		if (!fp_chunk_is_alone(&memory->chunk)) {
			keep(memory);
			continue;
		}
		give(memory);
		any = true;
	}
	return any;
}

static void put_adoption(struct fp_adoption *adoption)
{
	if (!adoption || --adoption->holders)
		return;
	adoption->client->adopted_places -= adoption->places;
	fp_client_put(adoption->client);
	free(adoption);
}

static void lease_free(struct fp_node_lease *lease)
{
	put_adoption(lease->adoption);
	free(lease);
}

static void done_leave(struct fp_worker_job *job)
{
	lease_free(lease_of(job));
}

/*
 * One holder leaves. A lease that had a key is freed only after the worker's jobs for the key,
 * because these point at the lease. All others are freed at once: a client can let go of leases
 * faster than the worker gets to them. When the last holder leaves, the memory is given back.
 */
static void leave(struct fp_node_lease *lease)
{
	struct fp_node_memory *memory = lease->memory;

	lease->job = (struct fp_worker_job){.done = done_leave};
	if (lease->had_key)
		fp_worker_post(memory->pools->worker, &memory->line, &lease->job);
	else
		lease_free(lease);
	if (--memory->n_holders)
		return;
	memory->pool->n_leases--;
	if (fp_chunk_is_alone(&memory->chunk))
		give(memory);
	else
		keep(memory);
}

static void detach(struct fp_node_lease *lease)
{
	struct fp_node_leases *leases = lease->leases;

	fp_node_lease_key_revoke(lease);
	leases->by_id[lease->id - 1] = NULL;
	leases->n--;
	leases->n_adopted -= lease->read_only;
	leases->leased_bytes -= lease->memory->size_bytes;
	lease->leases = NULL;
	if (!leases->n) { /* who gives back thousands of leases shall not keep a table for them */
		free(leases->by_id);
		leases->by_id = NULL;
		leases->capacity = 0;
	}
}

static bool run_take(struct fp_worker_job *job)
{
	struct fp_node_lease *lease = lease_of(job);
	struct fp_node_memory *memory = lease->memory;

	lease->status = fp_pool_take(memory->pool, memory->size_bytes, memory->shareable, &memory->chunk);
	return lease->status > 0;
}

static void done_take(struct fp_worker_job *job)
{
	struct fp_node_lease *lease = lease_of(job);
	bool session_ended = !lease->leases;
	int r = lease->status;

	if (r == 0)
		enter_mapped(lease->memory);
	lease->granted = r == 0 && !session_ended;
	lease->done(lease, session_ended ? -ECANCELED : r, lease->user);
	if (r == 0) {
		if (session_ended)
			leave(lease);
		return;
	}
	if (lease->leases) /* the call of `done` may have ended the session */
		detach(lease);
	lease->memory->pool->n_leases--;
	give(lease->memory); /* the reserve gave up pages for it */
	free(lease);
}

/* The lowest free id: low ids keep the clients' tables short. */
static int find_id(struct fp_node_leases *leases, uint32_t *ret_id)
{
	uint32_t idx = 0, capacity;
	struct fp_node_lease **by_id;

	while (idx < leases->capacity && leases->by_id[idx])
		idx++;
	if (idx == leases->capacity) {
		capacity = FP_MIN(FP_MAX(2 * leases->capacity, 16u), FP_WIRE_MAX_LEASE_ID);
		if (idx == capacity)
			return -EUSERS;
		by_id = reallocarray(leases->by_id, capacity, sizeof(struct fp_node_lease *));
		if (!by_id)
			return -ENOMEM;
		memset(by_id + leases->capacity, 0, (capacity - leases->capacity) * sizeof(*by_id));
		leases->by_id = by_id;
		leases->capacity = capacity;
	}
	*ret_id = idx + 1;
	return 0;
}

/* Makes a lease with memory of its own, which has no pages yet. NULL: not enough memory. */
static struct fp_node_lease *lease_new(struct fp_pools *pools, struct fp_pool *pool,
                                       const struct fp_lease_request *request)
{
	fp_autofree struct fp_node_lease *lease = calloc(1, sizeof(*lease));
	struct fp_node_memory *memory = calloc(1, sizeof(*memory));

	if (!lease || !memory) {
		free(memory);
		return NULL;
	}
	*memory = (struct fp_node_memory){.pools = pools,
	                                  .pool = pool,
	                                  .shareable = request->shareable,
	                                  .client = request->client,
	                                  .size_bytes = fp_pool_round(pool, request->size_bytes),
	                                  .line.share = &request->client->work,
	                                  .n_holders = 1};
	lease->memory = memory;
	lease->done = request->done;
	lease->user = request->user;
	return fp_take_ptr(lease);
}

static void enter(struct fp_node_leases *leases, struct fp_node_lease *lease)
{
	lease->leases = leases;
	leases->by_id[lease->id - 1] = lease;
	leases->n++;
	leases->n_adopted += lease->read_only;
	leases->leased_bytes += lease->memory->size_bytes;
}

/* Writes which limit refused the request. Returns error. */
static int refuse(const struct fp_lease_request *request, int error, struct fp_refusal refusal)
{
	if (request->refusal)
		*request->refusal = refusal;
	return error;
}

/* Refuses what no pool can back: either the pools are full, or the host lacks the memory. */
static int refuse_pools(struct fp_pools *pools, const struct fp_lease_request *request)
{
	struct fp_refusal refusal = {.cause = FP_REFUSAL_POOLS};
	uint64_t most_bytes = 0; /* a lease comes from one pool */

	for (unsigned i = 0; i < pools->n; i++) {
		const struct fp_pool *pool = pools->items[i];

		if (request->shareable && !fp_pool_is_shareable(pool))
			continue;
		refusal.limit += pool->size_bytes;
		most_bytes = FP_MAX(most_bytes, pool->size_bytes - pool->used_bytes);
		if (pool->size_bytes - pool->used_bytes >= fp_pool_round(pool, request->size_bytes))
			refusal.cause = FP_REFUSAL_HOST_MEMORY;
	}
	refusal.used = refusal.limit - most_bytes;
	if (refusal.cause == FP_REFUSAL_HOST_MEMORY)
		refusal = (struct fp_refusal){.cause = refusal.cause, .limit = host_bytes(pools)};
	return refuse(request, -ENOSPC, refusal);
}

/* Memories that clients map: each takes a descriptor of ours. */
static int check_shared(const struct fp_pools *pools, const struct fp_lease_request *request)
{
	uint64_t share = fp_client_share(request->client, pools->max_shared);
	struct fp_refusal refusal = {.cause = FP_REFUSAL_MAPPED_LEASES,
	                             .by_files = true,
	                             .limit = pools->max_shared,
	                             .used = pools->n_shared};

	if (!request->shareable)
		return 0;
	if (pools->n_shared >= pools->max_shared)
		return refuse(request, -ENOSPC, refusal);
	if (request->client->n_shared < share)
		return 0;
	refusal.is_share = true;
	refusal.limit = share;
	refusal.used = request->client->n_shared;
	return refuse(request, -ENOSPC, refusal);
}

/* Checks the limits and chooses the pool for a request. */
static int admit(const struct fp_node_leases *leases, struct fp_pools *pools,
                 const struct fp_lease_request *request, struct fp_pool **ret_pool)
{
	struct fp_pool *pool = fp_pools_choose(pools, request->size_bytes, request->shareable);
	uint64_t charged_bytes = request->client->leased_bytes;
	int r;

	if (!pool) { /* clients may have released memory since the last look */
		look_at_host(pools, FP_NSEC_PER_MSEC);
		pool = fp_pools_choose(pools, request->size_bytes, request->shareable);
	}
	if (!pool)
		return refuse_pools(pools, request);
	r = check_shared(pools, request);
	if (r < 0)
		return r;
	if (charged_bytes > request->quota_bytes ||
	    fp_pool_round(pool, request->size_bytes) > request->quota_bytes - charged_bytes)
		return refuse(request, -EDQUOT,
		              (struct fp_refusal){.cause = FP_REFUSAL_QUOTA,
		                                  .limit = request->quota_bytes,
		                                  .used = charged_bytes});
	if (leases->n >= request->max_leases)
		return refuse(request, -EUSERS,
		              (struct fp_refusal){.cause = FP_REFUSAL_LEASES,
		                                  .limit = request->max_leases,
		                                  .used = leases->n});
	*ret_pool = pool;
	return 0;
}

/* The same, after a look for memory that clients have released meanwhile. */
static int admit_or_collect(const struct fp_node_leases *leases, struct fp_pools *pools,
                            const struct fp_lease_request *request, struct fp_pool **ret_pool)
{
	int r = admit(leases, pools, request, ret_pool);

	if (r < 0 && fp_pools_collect(pools))
		r = admit(leases, pools, request, ret_pool);
	return r < 0 ? r : refuse(request, 0, (struct fp_refusal){.cause = FP_REFUSAL_NONE});
}

int fp_node_lease_check(const struct fp_node_leases *leases, struct fp_pools *pools,
                        const struct fp_lease_request *request)
{
	struct fp_pool *pool;

	return admit_or_collect(leases, pools, request, &pool);
}

int fp_node_lease_grant(struct fp_node_leases *leases, struct fp_pools *pools,
                        const struct fp_lease_request *request)
{
	struct fp_node_lease *lease;
	struct fp_pool *pool;
	uint32_t id = 0;
	int r = admit_or_collect(leases, pools, request, &pool);

	if (r == 0)
		r = find_id(leases, &id);
	if (r < 0)
		return r;
	lease = lease_new(pools, pool, request);
	if (!lease)
		return -ENOMEM;
	lease->id = id;
	lease->job = (struct fp_worker_job){.run = run_take, .done = done_take, .awaited = true};
	charge(lease->memory);
	enter(leases, lease);
	fp_worker_post(pools->worker, &lease->memory->line, &lease->job);
	return 0;
}

static struct fp_node_lease *adopt(const struct fp_node_lease *from, struct fp_adoption *adoption)
{
	struct fp_node_lease *lease = calloc(1, sizeof(*lease));

	if (!lease)
		return NULL;
	*lease = (struct fp_node_lease){
	    .id = from->id, .granted = true, .read_only = true, .adoption = adoption, .memory = from->memory};
	lease->memory->n_holders++;
	adoption->holders++;
	return lease;
}

static struct fp_adoption *adoption_new(struct fp_client *client, uint32_t places)
{
	struct fp_adoption *adoption = calloc(1, sizeof(*adoption));

	if (!adoption)
		return NULL;
	*adoption = (struct fp_adoption){.client = fp_client_ref(client), .places = places, .holders = 1};
	client->adopted_places += places;
	return adoption;
}

int fp_node_leases_adopt(struct fp_node_leases *leases, const struct fp_node_leases *from,
                         struct fp_client *client)
{
	assert(!leases->n && !leases->adoption);
	free(leases->by_id);
	*leases = (struct fp_node_leases){.by_id = calloc(from->capacity, sizeof(struct fp_node_lease *)),
	                                  .adoption = adoption_new(client, from->capacity),
	                                  .capacity = from->capacity};
	if ((from->capacity && !leases->by_id) || !leases->adoption) {
		if (!leases->by_id)
			leases->capacity = 0;
		fp_node_leases_done(leases);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < from->capacity; i++) {
		struct fp_node_lease *parents = fp_node_lease_find(from, i + 1);
		struct fp_node_lease *lease = parents ? adopt(parents, leases->adoption) : NULL;

		if (lease)
			enter(leases, lease);
		else if (parents) {
			fp_node_leases_done(leases);
			return -ENOMEM;
		}
	}
	return 0;
}

struct fp_node_lease *fp_node_lease_find(const struct fp_node_leases *leases, uint32_t id)
{
	struct fp_node_lease *lease = id && id <= leases->capacity ? leases->by_id[id - 1] : NULL;

	return lease && lease->granted ? lease : NULL;
}

void fp_node_lease_get(struct fp_node_lease *lease)
{
	atomic_fetch_add_explicit(&lease->uses, 1, memory_order_relaxed); /* it is in the table */
}

/*
 * Several shards may end uses of the same lease at once. Only one of them ends the last. The main
 * loop, to which the counts of leases belong, stands outside meanwhile, so a mutex among the shards
 * is enough.
 */
void fp_node_lease_put(struct fp_node_lease *lease)
{
	pthread_mutex_t *leaving;

	if (atomic_fetch_sub(&lease->uses, 1) > 1 || lease->leases)
		return;
	leaving = &lease->memory->pools->leaving;
	pthread_mutex_lock(leaving);
	leave(lease);
	pthread_mutex_unlock(leaving);
}

void fp_node_lease_release(struct fp_node_lease *lease)
{
	detach(lease);
	if (lease->granted && lease->uses == 0)
		leave(lease);
}

void fp_node_leases_done(struct fp_node_leases *leases)
{
	for (uint32_t i = 0; i < leases->capacity; i++)
		if (leases->by_id[i])
			fp_node_lease_release(leases->by_id[i]);
	free(leases->by_id);
	put_adoption(leases->adoption);
	*leases = (struct fp_node_leases){0};
}
