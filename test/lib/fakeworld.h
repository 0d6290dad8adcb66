/*
 * Shared by the files of the fake transport: the world, which all processes of a test see, and the
 * sessions and links of one process. Room: test/lib; only for the fake transport. All functions but
 * fake_lock are called under the world's lock.
 */
#ifndef FP_FAKEWORLD_H
#define FP_FAKEWORLD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "faketransport.h"

#define MAX_LEASES      256
#define MAX_IOS         1024
#define MAX_STANDINGS   256
#define MAX_CONNECTIONS 512
#define MAX_MEMORIES    2048
#define ARENA_BYTES     (512ull << 20)
#define SCRIBBLE_BYTE   0xdb

/* A piece of a node's memory. It is the lease of one session, or, after an adoption, of several. */
struct fake_memory {
	unsigned n_holders; /* 0: unused */
	unsigned node_idx;
	uint64_t at, size_bytes; /* its place in the arena */
};

struct fake_grant {
	unsigned memory; /* index + 1; 0: no lease */
	bool read_only;  /* adopted */
};

/* A session's state at a node. It remains when the session's connections end. */
struct fake_standing {
	uint64_t id; /* 0: none */
	uint64_t token, token_before;
	bool unconfirmed; /* nobody has used the new token yet */
	bool has_adopted;
	unsigned node_idx;
	struct fake_grant grants[MAX_LEASES];
};

/* A connection from the node's point of view. */
struct fake_connection {
	bool used;
	bool cut, frozen;
	bool abandoned; /* the process that opened it has closed it; copies may be open */
	unsigned node_idx, n_links;
	uint64_t standing_id;
};

struct fake_world {
	pthread_mutex_t lock;
	struct fake_node nodes[FAKE_NODES];
	struct fake_standing standings[MAX_STANDINGS];
	struct fake_connection connections[MAX_CONNECTIONS];
	struct fake_memory memories[MAX_MEMORIES];
	uint64_t rng, last_id;
	unsigned calls_to_failure;
	int failure;
};

/* A connection of a session, in one process. */
struct fake_session {
	struct fp_session base;
	struct fake_node *node;
	struct fake_standing *standing;
	struct fake_connection *connection;
	int fd;
	pid_t opener;
	unsigned way; /* the bit of its way */
	struct fake_link *links;
	struct fake_session *next; /* the next session of this process */
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
	bool broken; /* its user called break */
};

extern struct fake_world *fake_world;
extern int fake_arena_fd; /* a memfd: the bytes of all leases */
extern char *fake_arena;  /* a mapping of this memfd */

/* ---- fakeworld.c ---- */

void fake_lock(void);
void fake_unlock(void);
/* Does the same as fake_reap. */
void fake_reap_locked(void);

unsigned fake_memory_new(struct fake_node *node, uint64_t size_bytes);
void fake_memory_hold(unsigned memory, struct fake_standing *standing, uint32_t id, bool read_only);
struct fake_memory *fake_memory_of(const struct fake_session *session, uint32_t id);
void fake_lease_drop(struct fake_standing *standing, uint32_t id);

struct fake_standing *fake_standing_new(struct fake_node *node);
struct fake_standing *fake_standing_by_id(uint64_t id);
/* The session with this identity. NULL: none. */
struct fake_standing *fake_standing_find(struct fake_node *node, const struct fp_session_identity *identity);
void fake_standing_end(struct fake_standing *standing);
struct fake_connection *fake_connection_open(struct fake_node *node, struct fake_standing *standing,
                                             int *ret_fd);

/* ---- faketransport.c ---- */

/* Every call begins here. 0, or the error that the call must return. */
int fake_call(struct fake_node *node);
int fake_session_call(struct fake_session *session);

/* ---- fakelink.c ---- */

/* Spoils the remote bytes of a failed write: the contract leaves them undefined. */
void fake_scribble(struct fake_session *session, const struct fp_io *io);
int fake_link_open(struct fp_session *base, struct fp_link **ret_link);
void fake_link_close(struct fp_link *base);
void fake_link_break(struct fp_link *base);
int fake_link_register(struct fp_link *base, void *region, size_t len_bytes);
int fake_link_submit(struct fp_link *base, struct fp_io *io);
int fake_link_poll(struct fp_link *base, struct fp_io **ret_done, unsigned max);
int fake_link_pollfd(struct fp_link *base, struct pollfd *ret_pollfd);

#endif
