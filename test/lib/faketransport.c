/*
 * The fake transport. Room: test.
 *
 * What nodes know lies in memory that all processes of a test share, under a lock that survives the kill of
 * its holder. The bytes of leases are a file in memory, of which a lease that is read by load and store is a
 * mapping. A connection is a descriptor that locks one byte of that file: the kernel copies it with fork, and
 * drops the lock when the last copy is closed.
 */
#include "faketransport.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "testrng.h"

#define MAX_LEASES      256
#define MAX_IOS         1024
#define MAX_STANDINGS   256
#define MAX_CONNECTIONS 512
#define MAX_MEMORIES    2048
#define ARENA_BYTES     (512ull << 20)
#define SCRIBBLE_BYTE   0xdb

/* Bytes of a node, of one lease of one session or of several. */
struct fake_memory {
	unsigned n_holders; /* 0: none, unused */
	unsigned node_idx;
	uint64_t at, size_bytes; /* in the arena */
};

struct fake_grant {
	unsigned memory; /* index + 1; 0: no lease */
	bool read_only;  /* adopted */
};

/* What a client has at a node, whatever becomes of its connections. */
struct fake_standing {
	uint64_t id; /* 0: none */
	uint64_t token, token_before;
	bool unconfirmed; /* nothing was said by who has the new token */
	bool has_adopted;
	unsigned node_idx;
	struct fake_grant grants[MAX_LEASES];
};

/* A connection as the node sees it. */
struct fake_connection {
	bool used;
	bool cut, frozen;
	bool abandoned; /* by the process that opened it; copies may live */
	unsigned node_idx, n_links;
	uint64_t standing_id;
};

static struct world {
	pthread_mutex_t lock;
	struct fake_node nodes[FAKE_NODES];
	struct fake_standing standings[MAX_STANDINGS];
	struct fake_connection connections[MAX_CONNECTIONS];
	struct fake_memory memories[MAX_MEMORIES];
	uint64_t rng, last_id;
	unsigned calls_to_failure;
	int failure;
} * world;

/* One connection of it, in one process. */
struct fake_session {
	struct fp_session base;
	struct fake_node *node;
	struct fake_standing *standing;
	struct fake_connection *connection;
	int fd;
	pid_t opener;
	unsigned way; /* its bit */
	struct fake_link *links;
	struct fake_session *next; /* of all of the process */
	bool attached[MAX_LEASES];
	struct fp_lease shown[MAX_LEASES];
};

struct fake_link {
	struct fp_link base;
	struct fake_session *session;
	struct fake_link *next;
	pid_t opener;
	struct fp_io *ios[MAX_IOS]; /* outstanding, oldest first */
	unsigned n_ios;
};

struct fake_node *fake_nodes;
static int arena_fd;
static char *arena;
static struct fake_session *sessions;

__attribute__((constructor)) static void world_begin(void)
{
	pthread_mutexattr_t attr;

	arena_fd = memfd_create("fake", MFD_CLOEXEC);
	assert(arena_fd >= 0 && ftruncate(arena_fd, (off_t)ARENA_BYTES) == 0);
	arena = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena_fd, 0);
	world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert(arena != MAP_FAILED && world != MAP_FAILED);
	fake_nodes = world->nodes;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	/* The kernel hands such a mutex on. Of a plain one the wake-up is lost with a waiter that is killed
	 * just woken while a newcomer holds it. */
	pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(&world->lock, &attr);
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
		if (!overlaps(&world->memories[i], at, size_bytes))
			continue;
		at = world->memories[i].at + world->memories[i].size_bytes;
		i = UINT32_MAX; /* from the start again */
	}
	assert(at + size_bytes <= ARENA_BYTES);
	return at;
}

static void memory_hold(unsigned memory, struct fake_standing *standing, uint32_t id, bool read_only)
{
	world->memories[memory].n_holders++;
	standing->grants[id] = (struct fake_grant){.memory = memory + 1, .read_only = read_only};
}

/* The kernel hands out zeros, and mappings that still stand read them: as a real node's would. */
static void memory_end(struct fake_memory *memory)
{
	struct fake_node *node = &world->nodes[memory->node_idx];

	node->leased_bytes -= memory->size_bytes;
	node->n_leases--;
	fallocate(arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)memory->at,
	          (off_t)memory->size_bytes);
}

static void lease_drop(struct fake_standing *standing, uint32_t id)
{
	struct fake_memory *memory = &world->memories[standing->grants[id].memory - 1];

	standing->grants[id].memory = 0;
	if (--memory->n_holders == 0)
		memory_end(memory);
}

static void standing_end(struct fake_standing *standing)
{
	for (uint32_t id = 0; id < MAX_LEASES; id++)
		if (standing->grants[id].memory)
			lease_drop(standing, id);
	standing->id = 0;
}

static struct fake_memory *memory_of(const struct fake_session *session, uint32_t id)
{
	unsigned memory = id < MAX_LEASES ? session->standing->grants[id].memory : 0;

	return memory ? &world->memories[memory - 1] : NULL;
}

/* ---- one process at a time ---- */

/* A process was killed in here: what is counted is counted anew. */
static void recount(void)
{
	for (unsigned i = 0; i < FAKE_NODES; i++)
		world->nodes[i].leased_bytes = world->nodes[i].n_leases = world->nodes[i].n_sessions =
		    world->nodes[i].n_links = 0;
	for (unsigned i = 0; i < MAX_MEMORIES; i++)
		world->memories[i].n_holders = 0;
	for (unsigned i = 0; i < MAX_STANDINGS * MAX_LEASES; i++) {
		struct fake_standing *standing = &world->standings[i / MAX_LEASES];
		unsigned memory = standing->grants[i % MAX_LEASES].memory;

		if (!standing->id || !memory || world->memories[memory - 1].n_holders++)
			continue;
		world->nodes[standing->node_idx].leased_bytes += world->memories[memory - 1].size_bytes;
		world->nodes[standing->node_idx].n_leases++;
	}
	for (unsigned i = 0; i < MAX_CONNECTIONS; i++) {
		const struct fake_connection *connection = &world->connections[i];

		world->nodes[connection->node_idx].n_sessions += connection->used;
		world->nodes[connection->node_idx].n_links += connection->used ? connection->n_links : 0;
	}
}

static void lock_world(void)
{
	if (pthread_mutex_lock(&world->lock) == EOWNERDEAD) {
		recount();
		pthread_mutex_consistent(&world->lock);
	}
}

static void unlock_world(void)
{
	pthread_mutex_unlock(&world->lock);
}

/* ---- connections ---- */

static struct flock byte_of(const struct fake_connection *connection)
{
	return (struct flock){.l_type = F_WRLCK,
	                      .l_whence = SEEK_SET,
	                      .l_start = (off_t)(connection - world->connections),
	                      .l_len = 1};
}

static bool is_open(const struct fake_connection *connection)
{
	struct flock byte = byte_of(connection);

	assert(fcntl(arena_fd, F_OFD_GETLK, &byte) == 0);
	return byte.l_type != F_UNLCK;
}

static struct fake_standing *standing_by_id(uint64_t id)
{
	for (unsigned i = 0; id && i < MAX_STANDINGS; i++)
		if (world->standings[i].id == id)
			return &world->standings[i];
	return NULL;
}

static struct fake_connection *connection_open(struct fake_node *node, struct fake_standing *standing,
                                               int *ret_fd)
{
	struct fake_connection *connection = world->connections;
	struct flock byte;
	char path[32];

	/* a process that is killed lets go of the lock of the world before it lets go of its descriptors */
	while (connection->used || is_open(connection))
		assert(++connection < world->connections + MAX_CONNECTIONS);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", arena_fd);
	*ret_fd = open(path, O_RDWR | O_CLOEXEC);
	byte = byte_of(connection);
	assert(*ret_fd >= 0 && fcntl(*ret_fd, F_OFD_SETLK, &byte) == 0);
	*connection = (struct fake_connection){
	    .used = true, .node_idx = (unsigned)(node - world->nodes), .standing_id = standing->id};
	node->n_sessions++;
	return connection;
}

static void reap(void)
{
	for (unsigned i = 0; i < MAX_CONNECTIONS; i++) {
		struct fake_connection *connection = &world->connections[i];
		struct fake_standing *standing = standing_by_id(connection->standing_id);

		if (!connection->used || is_open(connection))
			continue;
		connection->used = false;
		world->nodes[connection->node_idx].n_sessions--;
		world->nodes[connection->node_idx].n_links -= connection->n_links;
		if (standing && !connection->cut && !connection->frozen && !connection->abandoned)
			standing_end(standing);
	}
}

void fake_reap(void)
{
	lock_world();
	reap();
	unlock_world();
}

void fake_grace_over(unsigned node_idx)
{
	lock_world();
	reap();
	for (unsigned i = 0; i < MAX_STANDINGS; i++) {
		struct fake_standing *standing = &world->standings[i];
		bool connected = false;

		for (unsigned k = 0; k < MAX_CONNECTIONS; k++)
			connected |= world->connections[k].used && !world->connections[k].cut &&
			             world->connections[k].standing_id == standing->id;
		if (standing->id && standing->node_idx == node_idx && !connected)
			standing_end(standing);
	}
	unlock_world();
}

unsigned fake_n_standings(unsigned node_idx)
{
	unsigned n = 0;

	lock_world();
	reap();
	for (unsigned i = 0; i < MAX_STANDINGS; i++)
		n += world->standings[i].id && world->standings[i].node_idx == node_idx;
	unlock_world();
	return n;
}

void fake_reset(uint64_t seed)
{
	lock_world();
	reap();
	world->rng = seed;
	fake_fail_nth(0, 0);
	for (unsigned i = 0; i < MAX_STANDINGS; i++)
		if (world->standings[i].id)
			standing_end(&world->standings[i]);
	for (unsigned i = 0; i < FAKE_NODES; i++) {
		assert(fake_nodes[i].n_sessions == 0 && fake_nodes[i].n_links == 0);
		fake_nodes[i] = (struct fake_node){.capacity_bytes = 1ull << 30};
	}
	unlock_world();
}

void fake_fail_nth(unsigned nth, int error)
{
	world->calls_to_failure = nth;
	world->failure = error;
}

bool fake_failed(void)
{
	return world->calls_to_failure == 0;
}

/* A write that fails leaves the remote bytes undefined. */
static void scribble_remote(struct fake_session *session, const struct fp_io *io)
{
	for (unsigned i = 0; i < io->n_segs && io->op == FP_IO_WRITE; i++) {
		uint32_t id = io->segs[i].lease_id;

		if (memory_of(session, id) && !session->standing->grants[id].read_only)
			memset(arena + memory_of(session, id)->at + io->segs[i].offset_bytes, SCRIBBLE_BYTE,
			       io->segs[i].len_bytes);
	}
}

/* The connection is over: the last that its writes do, they do now. */
static void session_cut(struct fake_session *session)
{
	if (session->connection->cut)
		return;
	session->connection->cut = true;
	for (struct fake_link *link = session->links; link; link = link->next)
		for (unsigned i = 0; i < link->n_ios; i++)
			scribble_remote(session, link->ios[i]);
}

static void node_break(struct fake_node *node, unsigned ways, enum fake_break how)
{
	for (struct fake_session *session = sessions; session; session = session->next) {
		if (session->node != node || !(session->way & ways) || session->opener != getpid())
			continue;
		if (how == FAKE_CUT)
			session_cut(session);
		else
			session->connection->frozen = true;
	}
}

void fake_break(unsigned node_idx, enum fake_break how)
{
	lock_world();
	node_break(&fake_nodes[node_idx], ~0u, how);
	unlock_world();
}

void fake_close_ways(unsigned node_idx, unsigned ways)
{
	lock_world();
	fake_nodes[node_idx].closed_ways |= ways;
	node_break(&fake_nodes[node_idx], ways, FAKE_CUT);
	unlock_world();
}

/* Every call begins here: 0, or the error it must end with. */
static int call(struct fake_node *node)
{
	if (node->dead)
		return -ECONNRESET;
	if (world->calls_to_failure == 0 || --world->calls_to_failure)
		return 0;
	if (world->failure == -ECONNRESET || world->failure == -EPIPE) {
		if (node->resumable)
			node_break(node, ~0u, FAKE_CUT);
		else
			node->dead = true;
	}
	return world->failure;
}

static int session_call(struct fake_session *session)
{
	int r = call(session->node);

	if (r < 0)
		return r;
	if (session->connection->frozen || session->connection->cut)
		return session->connection->frozen ? -ETIMEDOUT : -ECONNRESET;
	session->standing->unconfirmed = false;
	return 0;
}

static struct fake_standing *standing_new(struct fake_node *node)
{
	for (unsigned i = 0; i < MAX_STANDINGS; i++) {
		if (world->standings[i].id)
			continue;
		world->standings[i] = (struct fake_standing){.id = ++world->last_id,
		                                             .token = test_random(&world->rng),
		                                             .node_idx = (unsigned)(node - world->nodes)};
		return &world->standings[i];
	}
	assert(!"too many sessions");
	return NULL;
}

/* Whose identity it is; NULL: nobody's. */
static struct fake_standing *standing_find(struct fake_node *node, const struct fp_session_identity *identity)
{
	struct fake_standing *standing = standing_by_id(identity->id);
	uint64_t token;

	memcpy(&token, identity->token, sizeof(token));
	if (node->forgetful || !standing || &world->nodes[standing->node_idx] != node)
		return NULL;
	if (token != standing->token && !(standing->unconfirmed && token == standing->token_before))
		return NULL;
	return standing;
}

/* The connections of other processes can't be asked to spoil what they leave undefined. */
static void connections_cut(uint64_t standing_id)
{
	for (struct fake_session *session = sessions; session; session = session->next)
		if (session->standing->id == standing_id && session->opener == getpid())
			session_cut(session);
	for (unsigned i = 0; i < MAX_CONNECTIONS; i++)
		if (world->connections[i].used && world->connections[i].standing_id == standing_id)
			world->connections[i].cut = true;
}

/* A session that goes on: what there was of it ends before it is answered. */
static int standing_resume(struct fake_node *node, const struct fp_session_identity *identity,
                           struct fake_standing **ret_standing)
{
	struct fake_standing *standing;

	node->n_resume_attempts++;
	if (node->resume_errors) {
		node->resume_errors--;
		return node->resume_error ? node->resume_error : -ECONNREFUSED;
	}
	standing = standing_find(node, identity);
	if (!standing)
		return -ESTALE;
	connections_cut(standing->id);
	if (!standing->unconfirmed)
		standing->token_before = standing->token;
	standing->token = test_random(&world->rng);
	standing->unconfirmed = true;
	node->n_resumes++;
	*ret_standing = standing;
	return 0;
}

static int session_open(const struct fp_url *url, const struct fp_session_options *options,
                        struct fp_session **ret_session)
{
	struct fake_node *node = &fake_nodes[url->port % FAKE_NODES];
	unsigned way = fake_way(!strcmp(url->transport->scheme, "fakeslow"), url->port / FAKE_NODES);
	struct fake_standing *standing = NULL;
	struct fake_session *session;
	int r;

	lock_world();
	reap();
	r = call(node);
	if (r == 0 && node->closed_ways & way)
		r = node->closed_error ? node->closed_error : -EHOSTUNREACH;
	if (r == 0 && options->resume)
		r = standing_resume(node, options->resume, &standing);
	if (r == 0) {
		session = calloc(1, sizeof(*session));
		assert(session);
		session->base.transport = url->transport;
		session->node = node;
		session->way = way;
		session->opener = getpid();
		session->standing = standing ? standing : standing_new(node);
		session->connection = connection_open(node, session->standing, &session->fd);
		session->next = sessions;
		sessions = session;
		*ret_session = &session->base;
	}
	unlock_world();
	return r;
}

/* This process' copy goes; in a forked child that is all. */
static void session_free(struct fake_session *session)
{
	struct fake_session **p = &sessions;

	assert(!session->links); /* closed after its links */
	while (*p != session)
		p = &(*p)->next;
	*p = session->next;
	for (uint32_t id = 0; id < MAX_LEASES && session->opener == getpid(); id++)
		if (session->shown[id].base)
			munmap(session->shown[id].base, session->shown[id].size_bytes);
	close(session->fd);
	reap();
	free(session);
}

static void session_close(struct fp_session *base)
{
	struct fake_session *session = (struct fake_session *)base;

	lock_world();
	if (session->opener == getpid()) {
		session->connection->abandoned = true; /* it has ended already */
		standing_end(session->standing);
	}
	session_free(session);
	unlock_world();
}

static void session_abandon(struct fp_session *base)
{
	struct fake_session *session = (struct fake_session *)base;

	lock_world();
	if (session->opener == getpid())
		session->connection->abandoned = true;
	session_free(session);
	unlock_world();
}

static int identity(struct fp_session *base, struct fp_session_identity *ret_identity)
{
	struct fake_session *session = (struct fake_session *)base;

	if (!session->node->resumable)
		return -EOPNOTSUPP;
	*ret_identity =
	    (struct fp_session_identity){.id = session->standing->id, .grace_ns = session->node->grace_ns};
	memcpy(ret_identity->token, &session->standing->token, sizeof(uint64_t));
	return 0;
}

static void lease_show(struct fake_session *session, uint32_t id, const struct fp_lease **ret_lease)
{
	const struct fake_memory *memory = memory_of(session, id);
	struct fp_lease *shown = &session->shown[id];

	session->attached[id] = true;
	*shown = (struct fp_lease){.id = id, .size_bytes = memory->size_bytes};
	if (session->base.transport->load_store) {
		shown->base = mmap(NULL, memory->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena_fd,
		                   (off_t)memory->at);
		assert(shown->base != MAP_FAILED);
	}
	*ret_lease = shown;
}

static int attach(struct fp_session *base, uint32_t id, const struct fp_lease **ret_lease)
{
	struct fake_session *session = (struct fake_session *)base;
	int r;

	lock_world();
	r = session_call(session);
	session->node->n_attaches++;
	if (r == 0 && !memory_of(session, id))
		r = -EACCES;
	if (r == 0 && base->transport->load_store)
		r = -EPERM;
	if (r == 0)
		lease_show(session, id, ret_lease);
	unlock_world();
	return r;
}

static unsigned memory_new(struct fake_node *node, uint64_t size_bytes)
{
	unsigned i = 0;

	while (world->memories[i].n_holders)
		assert(++i < MAX_MEMORIES);
	world->memories[i] = (struct fake_memory){.node_idx = (unsigned)(node - world->nodes),
	                                          .at = arena_find(size_bytes),
	                                          .size_bytes = size_bytes};
	node->leased_bytes += size_bytes;
	if (node->leased_peak_bytes < node->leased_bytes)
		node->leased_peak_bytes = node->leased_bytes;
	node->n_leases++;
	return i;
}

static int lease_make(struct fake_session *session, uint64_t size_bytes, const struct fp_lease **ret_lease)
{
	struct fake_standing *standing = session->standing;
	struct fake_node *node = session->node;
	uint32_t id = 0;
	int r = session_call(session);

	if (r < 0)
		return r;
	assert(size_bytes && size_bytes % 4096 == 0);
	if (node->leased_bytes + size_bytes > node->capacity_bytes)
		return -ENOSPC;
	if (node->quota_bytes && node->leased_bytes + size_bytes > node->quota_bytes)
		return -EDQUOT;
	while (standing->grants[id].memory)
		assert(++id < MAX_LEASES);
	memory_hold(memory_new(node, size_bytes), standing, id, false);
	lease_show(session, id, ret_lease);
	return 0;
}

static bool has_leases(const struct fake_standing *standing)
{
	for (uint32_t id = 0; id < MAX_LEASES; id++)
		if (standing->grants[id].memory)
			return true;
	return false;
}

static int adopt_from(struct fake_session *session, const struct fp_session_identity *identity,
                      unsigned *ret_n_leases)
{
	struct fake_standing *standing = session->standing, *parent;
	int r = session_call(session);
	unsigned n = 0;

	if (r < 0)
		return r;
	if (session->node->adopt_errors) {
		session->node->adopt_errors--;
		return -ECONNREFUSED;
	}
	parent = standing_find(session->node, identity);
	if (!parent)
		return -ESTALE;
	if (parent == standing || standing->has_adopted || has_leases(standing))
		return -EINVAL;
	for (uint32_t id = 0; id < MAX_LEASES; id++)
		if (parent->grants[id].memory) {
			memory_hold(parent->grants[id].memory - 1, standing, id, true);
			n++;
		}
	standing->has_adopted = true;
	session->node->n_adoptions++;
	if (ret_n_leases)
		*ret_n_leases = n;
	return 0;
}

static int adopt(struct fp_session *base, const struct fp_session_identity *parent, unsigned *ret_n_leases)
{
	int r;

	lock_world();
	reap();
	r = adopt_from((struct fake_session *)base, parent, ret_n_leases);
	unlock_world();
	return r;
}

static int lease(struct fp_session *base, uint64_t size_bytes, const struct fp_lease **ret_lease)
{
	int r;

	lock_world();
	r = lease_make((struct fake_session *)base, size_bytes, ret_lease);
	unlock_world();
	return r;
}

static int release(struct fp_session *base, uint32_t id)
{
	struct fake_session *session = (struct fake_session *)base;
	int r = 0;

	lock_world();
	if (session->node->dead || session->connection->cut) {
		r = -ECONNRESET;
	} else if (session->standing->has_adopted && !memory_of(session, id)) {
		r = -EACCES;
	} else {
		assert(memory_of(session, id));
		assert(session->attached[id] || session->standing->has_adopted);
		if (session->shown[id].base)
			munmap(session->shown[id].base, session->shown[id].size_bytes);
		session->shown[id].base = NULL;
		session->attached[id] = false;
		lease_drop(session->standing, id);
	}
	unlock_world();
	return r;
}

static int info(struct fp_session *base, struct fp_node_info *ret_info)
{
	struct fake_session *session = (struct fake_session *)base;
	struct fake_node *node = session->node;
	int r;

	lock_world();
	reap();
	r = session_call(session);
	if (r == 0)
		*ret_info =
		    (struct fp_node_info){node->capacity_bytes, node->capacity_bytes - node->leased_bytes};
	unlock_world();
	return r;
}

static int ping(struct fp_session *base, size_t len_bytes, uint64_t deadline_ns)
{
	struct fake_session *session = (struct fake_session *)base;
	int r;

	assert(deadline_ns > fp_clock_ns());
	lock_world();
	session->node->n_pings++;
	r = session_call(session);
	unlock_world();
	return r;
}

static int link_open(struct fp_session *base, struct fp_link **ret_link)
{
	struct fake_session *session = (struct fake_session *)base;
	struct fake_link *link;
	int r;

	lock_world();
	r = session_call(session);
	if (r == 0) {
		assert(!base->transport->load_store);
		link = calloc(1, sizeof(*link));
		assert(link);
		link->base.transport = base->transport;
		link->session = session;
		link->opener = getpid();
		link->next = session->links;
		session->links = link;
		session->connection->n_links++;
		session->node->n_links++;
		*ret_link = &link->base;
	}
	unlock_world();
	return r;
}

static void link_close(struct fp_link *base)
{
	struct fake_link *link = (struct fake_link *)base, **p;

	lock_world();
	for (unsigned i = 0; i < link->n_ios; i++)
		link->ios[i]->tag = 0; /* abandoned */
	for (p = &link->session->links; *p != link; p = &(*p)->next)
		;
	*p = link->next;
	if (link->opener == getpid()) {
		link->session->connection->n_links--;
		link->session->node->n_links--;
	}
	unlock_world();
	free(link);
}

static int link_register(struct fp_link *base, void *region, size_t len_bytes)
{
	struct fake_link *link = (struct fake_link *)base;

	assert(region && len_bytes && link->n_ios == 0);
	lock_world();
	link->session->node->n_registered++;
	unlock_world();
	return 0;
}

static int submit_locked(struct fake_link *link, struct fp_io *io)
{
	struct fake_session *session = link->session;
	struct fake_node *node = session->node;
	int r;

	assert(io->n_segs >= 1 && io->n_segs <= FP_IO_MAX_SEGS && io->deadline_ns);
	assert(io->tag == 0); /* else another link has it still */
	if (node->link_depth && link->n_ios >= node->link_depth && !node->dead && !session->connection->cut)
		return -EAGAIN;
	r = call(node);
	if (r < 0 && !node->dead)
		return r;
	assert(link->n_ios < MAX_IOS);
	for (unsigned i = 0; i < io->n_segs; i++)
		assert(session->attached[io->segs[i].lease_id]);
	io->tag = 1;
	node->n_ios++;
	node->n_segs += io->n_segs;
	link->ios[link->n_ios++] = io;
	return 0;
}

static int submit(struct fp_link *base, struct fp_io *io)
{
	int r;

	lock_world();
	r = submit_locked((struct fake_link *)base, io);
	unlock_world();
	return r;
}

/* Moves a segment, or spoils the side that a failure leaves undefined. */
static void seg_move(struct fake_session *session, const struct fp_io *io, const struct fp_seg *seg)
{
	const struct fake_memory *memory = memory_of(session, seg->lease_id);
	char *remote = arena + (memory ? memory->at : 0) + seg->offset_bytes;

	assert(seg->len_bytes >= 1 && seg->len_bytes <= FP_SEG_MAX_BYTES);
	assert(memory ? seg->offset_bytes + seg->len_bytes <= memory->size_bytes : io->status != 0);
	if (io->op == FP_IO_READ && io->status)
		memset(seg->buf, SCRIBBLE_BYTE, seg->len_bytes);
	else if (io->op == FP_IO_READ)
		memcpy(seg->buf, remote, seg->len_bytes);
	else if (!io->status)
		memcpy(remote, seg->buf, seg->len_bytes);
}

/* What is adopted is not written, whoever asks. */
static bool is_denied(const struct fake_session *session, const struct fp_io *io)
{
	for (unsigned i = 0; i < io->n_segs && io->op == FP_IO_WRITE; i++)
		if (session->standing->grants[io->segs[i].lease_id].read_only)
			return true;
	return false;
}

static void io_finish(struct fake_link *link, struct fp_io *io, int status)
{
	struct fake_session *session = link->session;

	if (!status && is_denied(session, io)) {
		status = -EACCES;
		session->node->n_denied++;
	}
	io->status = status;
	io->tag = 0;
	if (status && !session->connection->cut)
		scribble_remote(session, io);
	for (unsigned i = 0; i < io->n_segs; i++)
		seg_move(session, io, &io->segs[i]);
}

/* The index of the io that completes next, with its status; -1: none does. */
static int io_next(struct fake_link *link, int *ret_status)
{
	struct fake_session *session = link->session;
	struct fake_node *node = session->node;

	if (link->n_ios == 0)
		return -1;
	*ret_status = node->dead || session->connection->cut ? -ECONNRESET : 0;
	if (!node->dead && (session->connection->frozen || (node->silent && !session->connection->cut))) {
		*ret_status = -ETIMEDOUT;
		return fp_clock_ns() >= link->ios[0]->deadline_ns ? 0 : -1;
	}
	switch (node->order) {
	case FAKE_FIFO:
		return 0;
	case FAKE_LIFO:
		return (int)link->n_ios - 1;
	case FAKE_RANDOM:
		break;
	}
	return (int)(test_random(&world->rng) % link->n_ios);
}

static int poll_link(struct fp_link *base, struct fp_io **ret_done, unsigned max)
{
	struct fake_link *link = (struct fake_link *)base;
	struct fake_node *node = link->session->node;
	unsigned n = 0;
	int k, status;

	lock_world();
	while (n < max && (!node->completions || n < node->completions) &&
	       (k = io_next(link, &status)) >= 0) {
		struct fp_io *io = link->ios[k];

		link->n_ios--;
		memmove(&link->ios[k], &link->ios[k + 1], (link->n_ios - (unsigned)k) * sizeof(io));
		io_finish(link, io, status);
		ret_done[n++] = io;
	}
	unlock_world();
	return (int)n;
}

static int pollfd_link(struct fp_link *base, struct pollfd *ret_pollfd)
{
	*ret_pollfd = (struct pollfd){.fd = 0, .events = POLLIN};
	return 1;
}

#define FAKE_OPERATIONS                                                                                      \
	.session_open = session_open, .session_close = session_close, .lease = lease, .release = release,    \
	.info = info, .ping = ping, .identity = identity, .attach = attach, .adopt = adopt,                  \
	.abandon = session_abandon, .link_open = link_open, .link_close = link_close,                        \
	.link_register = link_register, .submit = submit, .poll = poll_link, .pollfd = pollfd_link

static const struct fp_transport by_request = {.scheme = "fake", FAKE_OPERATIONS};
static const struct fp_transport by_slow_request = {.scheme = "fakeslow", FAKE_OPERATIONS};
static const struct fp_transport by_load_store = {.scheme = "fakemem", .load_store = true, FAKE_OPERATIONS};

struct fp_url fake_url(unsigned node_idx, bool load_store)
{
	struct fp_url url = {.transport = load_store ? &by_load_store : &by_request,
	                     .port = (uint16_t)node_idx};

	snprintf(url.text, sizeof(url.text), "%s://%u", url.transport->scheme, node_idx);
	return url;
}

struct fp_url_set fake_ways(unsigned node_idx, unsigned n_transports, unsigned n_addresses)
{
	struct fp_url_set set = {.n_transports = n_transports, .n_addresses = n_addresses};

	for (unsigned t = 0; t < n_transports; t++) {
		for (unsigned a = 0; a < n_addresses; a++) {
			struct fp_url *url = &set.urls[t][a];

			url->transport = t ? &by_slow_request : &by_request;
			url->port = (uint16_t)(node_idx + FAKE_NODES * a);
			snprintf(url->text, sizeof(url->text), "%s://%u.%u", url->transport->scheme, node_idx,
			         a);
		}
	}
	return set;
}
