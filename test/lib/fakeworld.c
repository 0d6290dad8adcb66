/*
 * The state of the fake transport's nodes. Room: test/lib. It lies in memory that all processes of
 * a test share. Its lock still works after a process is killed while it holds the lock. The bytes
 * of leases are in a memfd. A lease used by load and store is a mapping of this memfd. A connection
 * is a descriptor that locks one byte of the memfd. fork copies the descriptor, and the kernel
 * drops the lock with the last copy.
 */
#include "fakeworld.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "testrng.h"

struct fake_world *fake_world;
struct fake_node *fake_nodes;
int fake_arena_fd;
char *fake_arena;

__attribute__((constructor)) static void world_begin(void)
{
	pthread_mutexattr_t attr;

	fake_arena_fd = memfd_create("fake", MFD_CLOEXEC);
	assert(fake_arena_fd >= 0 && ftruncate(fake_arena_fd, (off_t)ARENA_BYTES) == 0);
	fake_arena =
	    mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fake_arena_fd, 0);
	fake_world =
	    mmap(NULL, sizeof(*fake_world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert(fake_arena != MAP_FAILED && fake_world != MAP_FAILED);
	fake_nodes = fake_world->nodes;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	/*
	 * The kernel itself passes a mutex with priority inheritance on to the next waiter. A plain
	 * mutex loses a wake-up if the woken waiter is killed while a newcomer has the mutex.
	 */
	pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(&fake_world->lock, &attr);
	pthread_mutexattr_destroy(&attr);
}

/* ---- leases and their memory ---- */

static bool overlaps(const struct fake_memory *memory, uint64_t at, uint64_t size_bytes)
{
	return memory->n_holders && memory->at < at + size_bytes && at < memory->at + memory->size_bytes;
}

static uint64_t arena_find(uint64_t size_bytes)
{
	uint64_t at = 0;

	for (unsigned i = 0; i < MAX_MEMORIES; i++) {
		if (!overlaps(&fake_world->memories[i], at, size_bytes))
			continue;
		at = fake_world->memories[i].at + fake_world->memories[i].size_bytes;
		i = UINT32_MAX; /* start again from the first one */
	}
	assert(at + size_bytes <= ARENA_BYTES);
	return at;
}

void fake_memory_hold(unsigned memory, struct fake_standing *standing, uint32_t id, bool read_only)
{
	fake_world->memories[memory].n_holders++;
	standing->grants[id] = (struct fake_grant){.memory = memory + 1, .read_only = read_only};
}

/* Punches a hole. So mappings that still exist read zeros, as they do with a real node. */
static void memory_end(struct fake_memory *memory)
{
	struct fake_node *node = &fake_world->nodes[memory->node_idx];

	node->leased_bytes -= memory->size_bytes;
	node->n_leases--;
	fallocate(fake_arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)memory->at,
	          (off_t)memory->size_bytes);
}

void fake_lease_drop(struct fake_standing *standing, uint32_t id)
{
	struct fake_memory *memory = &fake_world->memories[standing->grants[id].memory - 1];

	standing->grants[id].memory = 0;
	if (--memory->n_holders == 0)
		memory_end(memory);
}

void fake_standing_end(struct fake_standing *standing)
{
	for (uint32_t id = 0; id < MAX_LEASES; id++)
		if (standing->grants[id].memory)
			fake_lease_drop(standing, id);
	standing->id = 0;
}

struct fake_memory *fake_memory_of(const struct fake_session *session, uint32_t id)
{
	unsigned memory = id < MAX_LEASES ? session->standing->grants[id].memory : 0;

	return memory ? &fake_world->memories[memory - 1] : NULL;
}

unsigned fake_memory_new(struct fake_node *node, uint64_t size_bytes)
{
	unsigned i = 0;

	while (fake_world->memories[i].n_holders)
		assert(++i < MAX_MEMORIES);
	fake_world->memories[i] = (struct fake_memory){.node_idx = (unsigned)(node - fake_world->nodes),
	                                               .at = arena_find(size_bytes),
	                                               .size_bytes = size_bytes};
	node->leased_bytes += size_bytes;
	if (node->leased_peak_bytes < node->leased_bytes)
		node->leased_peak_bytes = node->leased_bytes;
	node->n_leases++;
	return i;
}

/* ---- one process at a time ---- */

/* Called after a process was killed while it held the lock: counts everything again. */
static void recount(void)
{
	for (unsigned i = 0; i < FAKE_NODES; i++)
		fake_world->nodes[i].leased_bytes = fake_world->nodes[i].n_leases =
		    fake_world->nodes[i].n_sessions = fake_world->nodes[i].n_links = 0;
	for (unsigned i = 0; i < MAX_MEMORIES; i++)
		fake_world->memories[i].n_holders = 0;
	for (unsigned i = 0; i < MAX_STANDINGS * MAX_LEASES; i++) {
		struct fake_standing *standing = &fake_world->standings[i / MAX_LEASES];
		unsigned memory = standing->grants[i % MAX_LEASES].memory;

		if (!standing->id || !memory || fake_world->memories[memory - 1].n_holders++)
			continue;
		fake_world->nodes[standing->node_idx].leased_bytes +=
		    fake_world->memories[memory - 1].size_bytes;
		fake_world->nodes[standing->node_idx].n_leases++;
	}
	for (unsigned i = 0; i < MAX_CONNECTIONS; i++) {
		const struct fake_connection *connection = &fake_world->connections[i];

		fake_world->nodes[connection->node_idx].n_sessions += connection->used;
		fake_world->nodes[connection->node_idx].n_links += connection->used ? connection->n_links : 0;
	}
}

void fake_lock(void)
{
	if (pthread_mutex_lock(&fake_world->lock) == EOWNERDEAD) {
		recount();
		pthread_mutex_consistent(&fake_world->lock);
	}
}

void fake_unlock(void)
{
	pthread_mutex_unlock(&fake_world->lock);
}

/* ---- connections ---- */

static struct flock byte_of(const struct fake_connection *connection)
{
	return (struct flock){.l_type = F_WRLCK,
	                      .l_whence = SEEK_SET,
	                      .l_start = (off_t)(connection - fake_world->connections),
	                      .l_len = 1};
}

static bool is_open(const struct fake_connection *connection)
{
	struct flock byte = byte_of(connection);

	assert(fcntl(fake_arena_fd, F_OFD_GETLK, &byte) == 0);
	return byte.l_type != F_UNLCK;
}

struct fake_standing *fake_standing_by_id(uint64_t id)
{
	for (unsigned i = 0; id && i < MAX_STANDINGS; i++)
		if (fake_world->standings[i].id == id)
			return &fake_world->standings[i];
	return NULL;
}

struct fake_connection *fake_connection_open(struct fake_node *node, struct fake_standing *standing,
                                             int *ret_fd)
{
	struct fake_connection *connection = fake_world->connections;
	struct flock byte;
	char path[32];

	/* A killed process releases the world's lock before the kernel closes its descriptors. */
	while (connection->used || is_open(connection))
		assert(++connection < fake_world->connections + MAX_CONNECTIONS);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fake_arena_fd);
	*ret_fd = open(path, O_RDWR | O_CLOEXEC);
	byte = byte_of(connection);
	assert(*ret_fd >= 0 && fcntl(*ret_fd, F_OFD_SETLK, &byte) == 0);
	*connection = (struct fake_connection){
	    .used = true, .node_idx = (unsigned)(node - fake_world->nodes), .standing_id = standing->id};
	node->n_sessions++;
	return connection;
}

void fake_reap_locked(void)
{
	for (unsigned i = 0; i < MAX_CONNECTIONS; i++) {
		struct fake_connection *connection = &fake_world->connections[i];
		struct fake_standing *standing = fake_standing_by_id(connection->standing_id);

		if (!connection->used || is_open(connection))
			continue;
		connection->used = false;
		fake_world->nodes[connection->node_idx].n_sessions--;
		fake_world->nodes[connection->node_idx].n_links -= connection->n_links;
		if (standing && !connection->cut && !connection->frozen && !connection->abandoned)
			fake_standing_end(standing);
	}
}

void fake_reap(void)
{
	fake_lock();
	fake_reap_locked();
	fake_unlock();
}

void fake_grace_over(unsigned node_idx)
{
	fake_lock();
	fake_reap_locked();
	for (unsigned i = 0; i < MAX_STANDINGS; i++) {
		struct fake_standing *standing = &fake_world->standings[i];
		bool connected = false;

		for (unsigned k = 0; k < MAX_CONNECTIONS; k++)
			connected |= fake_world->connections[k].used && !fake_world->connections[k].cut &&
			             fake_world->connections[k].standing_id == standing->id;
		if (standing->id && standing->node_idx == node_idx && !connected)
			fake_standing_end(standing);
	}
	fake_unlock();
}

unsigned fake_n_standings(unsigned node_idx)
{
	unsigned n = 0;

	fake_lock();
	fake_reap_locked();
	for (unsigned i = 0; i < MAX_STANDINGS; i++)
		n += fake_world->standings[i].id && fake_world->standings[i].node_idx == node_idx;
	fake_unlock();
	return n;
}

void fake_reset(uint64_t seed)
{
	fake_lock();
	fake_reap_locked();
	fake_world->rng = seed;
	fake_fail_nth(0, 0);
	for (unsigned i = 0; i < MAX_STANDINGS; i++)
		if (fake_world->standings[i].id)
			fake_standing_end(&fake_world->standings[i]);
	for (unsigned i = 0; i < FAKE_NODES; i++) {
		assert(fake_nodes[i].n_sessions == 0 && fake_nodes[i].n_links == 0);
		fake_nodes[i] = (struct fake_node){.capacity_bytes = 1ull << 30};
	}
	fake_unlock();
}

void fake_fail_nth(unsigned nth, int error)
{
	fake_world->calls_to_failure = nth;
	fake_world->failure = error;
}

bool fake_failed(void)
{
	return fake_world->calls_to_failure == 0;
}

/* ---- holders ---- */

struct fake_standing *fake_standing_new(struct fake_node *node)
{
	for (unsigned i = 0; i < MAX_STANDINGS; i++) {
		if (fake_world->standings[i].id)
			continue;
		fake_world->standings[i] =
		    (struct fake_standing){.id = ++fake_world->last_id,
		                           .token = test_random(&fake_world->rng),
		                           .node_idx = (unsigned)(node - fake_world->nodes)};
		return &fake_world->standings[i];
	}
	assert(!"too many sessions");
	return NULL;
}

/* The session with this identity. NULL: none. */
struct fake_standing *fake_standing_find(struct fake_node *node, const struct fp_session_identity *identity)
{
	struct fake_standing *standing = fake_standing_by_id(identity->id);
	uint64_t token;

	memcpy(&token, identity->token, sizeof(token));
	if (node->forgetful || !standing || &fake_world->nodes[standing->node_idx] != node)
		return NULL;
	if (token != standing->token && !(standing->unconfirmed && token == standing->token_before))
		return NULL;
	return standing;
}
