/*
 * Shards: threads that serve links, so that a node can move pages on several cores. Each has an
 * io_uring of its own. The main loop does everything else. With one shard (the default) there is no
 * such thread, and the main loop serves the links too. Room: daemon; see doc/shards.md.
 *
 *   main loop:  accept ─► handshake ─► move ─► arrived ─┐         ┌─► left ─► fp_conn_return
 *                                                       ▼         │
 *   shard:                                              READ, WRITE, end of the link
 *
 * One read-write lock makes this right. A shard holds it for reading while it looks at the
 * completions of a round. The main loop holds it for writing during each of its own rounds. Neither
 * holds it while it waits, nor while the kernel copies bytes.
 *
 * - So the shards stand still while the main loop works. It may change everything, as it does
 *   without shards: leases, sessions, limits, even the connections of a shard.
 * - A shard changes only its own links, loop, turns and counters. It reads sessions, lease tables
 *   and the configuration, which then do not change.
 * - Four things that a shard changes belong to several threads. The uses of a lease and the bytes
 *   of a session are atomic. The return of a lease that was released (fp_node_lease_put) and the
 *   counts of refusals have a mutex each.
 * - Only a loop's own thread may submit to its io_uring. So a thread never settles a connection of
 *   another loop.
 */
#ifndef FP_SHARD_H
#define FP_SHARD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "loop.h"
#include "turns.h"
#include "yamlconf.h"

struct fp_conn;
struct fp_shards;

/* Counts over all connections since the start. The shards count only those of requests. */
struct fp_counters {
	uint64_t connections;
	uint64_t sessions;
	uint64_t cut_off, resumed, expired; /* sessions; an expired one counts as cut off too */
	uint64_t refused;                   /* connections that fp_conn_refuse ended */
	uint64_t leases_refused;            /* LEASEs */
	uint64_t evicted;                   /* strangers */
	uint64_t reads, writes;
	uint64_t read_bytes, written_bytes;
	uint64_t denied; /* READs and WRITEs that the leases of their session do not allow */
};

STAILQ_HEAD(fp_conn_queue, fp_conn);

/* What a loop needs to serve connections. The main loop has one too: idx is 0, it has no thread. */
struct fp_shard {
	struct fp_loop loop;
	struct fp_turns turns;
	struct fp_turn_client nobody; /* the share of all connections that have no session */
	struct fp_counters counters;
	unsigned idx;
	/* of shards with a thread */
	struct fp_shards *shards;
	struct fp_conn_queue arrived; /* the main loop has moved them here; the next round takes them */
	struct fp_conn_queue left;    /* they have ended; the main loop's next round frees them */
	unsigned n_links;             /* the main loop's count */
	pthread_t thread;
	int event_fd; /* wakes the shard */
	uint64_t events;
	struct fp_op event_op;
	sem_t started;
	int status; /* of the start; later, the errno with which its loop failed */
	struct fp_conf_error error;
};

/* Zero-initialised, there are none. */
struct fp_shards {
	struct fp_shard items[FP_MAX_SHARDS];
	unsigned n;
	bool running;
	pthread_rwlock_t rounds;
	int event_fd; /* wakes the main loop */
	bool stopping;
};

/*
 * Starts n threads, at most FP_MAX_SHARDS. 0, or a negative errno: then none runs, and error->text
 * says why. The calling thread's signal mask is that of the threads.
 */
int fp_shards_start(struct fp_shards *shards, unsigned n, struct fp_conf_error *error);
/*
 * Ends the threads. Call it when no link is left, or when the node fails. Links that are left still
 * refer to their shard, so its turns remain usable.
 */
void fp_shards_stop(struct fp_shards *shards);

/*
 * For the main loop: fp_shards_hold waits until no shard is in a round, and takes back the
 * connections that have ended. No shard begins a round before fp_shards_release. Both do nothing if
 * there are no shards.
 */
void fp_shards_hold(struct fp_shards *shards);
void fp_shards_release(struct fp_shards *shards);

/* An eventfd: readable if a connection has ended or a shard has failed. -1 if there are no
 * shards. */
int fp_shards_fd(const struct fp_shards *shards);
/* 0, or the negative errno with which a shard's loop failed. For the main loop, in a round. */
int fp_shards_status(const struct fp_shards *shards);

/*
 * Moves a link from the main loop to the shard that has the fewest. No operation of the link may be
 * under way. For the main loop, in a round.
 */
void fp_shards_move(struct fp_shards *shards, struct fp_conn *conn);
/* Gives an ended connection back to the main loop. For its shard, in a round. */
void fp_shard_give_back(struct fp_conn *conn);

/* Adds the shards' counts of requests to *sum. For the main loop, in a round. */
void fp_shards_add_counters(const struct fp_shards *shards, struct fp_counters *sum);

#endif
