/*
 * Turns share the loop's time among clients by deficit round robin. Room: daemon. Pure: it counts
 * bytes, and knows neither connections nor sessions.
 *
 *                 ┌─ client A ── turn ── turn ── turn    a client's turns: first come, first served
 *    round ─► line ─ client B ── turn
 *                 └─ strangers ─ turn ── turn
 *
 * In each round a client may use FP_TURN_BYTES. If it uses more, it gets less in the next rounds.
 * Unused bytes are not kept. So all connections of one client together get no more than a single
 * connection of another client. A client that is alone never waits.
 */
#ifndef FP_TURNS_H
#define FP_TURNS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define FP_TURN_BYTES (128u << 10) /* what a client may use in one round: about 50 µs of work */
#define FP_MAX_SHARDS 16           /* so many loops beside the main loop have turns of their own, at most */

/* A client's share. Zero-initialised, it has used nothing, and none of its turns waits. */
struct fp_turn_client {
	TAILQ_ENTRY(fp_turn_client) entry; /* entry in the line of clients, while some of its turns wait */
	TAILQ_HEAD(, fp_turn) waiting;     /* its turns */
	uint64_t round;                    /* the round for which credit_bytes counts */
	int64_t credit_bytes;
};

/* Zero-initialised, it does not wait. */
struct fp_turn {
	TAILQ_ENTRY(fp_turn) entry;
	struct fp_turn_client *client; /* the client in whose list it waits; NULL: it does not wait */
};

struct fp_turns {
	TAILQ_HEAD(, fp_turn_client) line; /* clients whose turns wait */
	unsigned n_clients;                /* in line */
	const struct fp_turn *current;     /* the turn that goes on just now */
	int64_t until_bytes;               /* the turn ends when its client's credit is down to this */
	uint64_t round;
};

void fp_turns_init(struct fp_turns *turns);

/*
 * True: the turn may do a piece of work, charged to its client. False: from now on it waits, and a
 * round will call it.
 */
bool fp_turn_take(struct fp_turns *turns, struct fp_turn *turn, struct fp_turn_client *client);
/*
 * Makes the turn wait until a round calls it, even if its client has credit. It must not wait
 * already.
 */
void fp_turn_wait(struct fp_turns *turns, struct fp_turn *turn, struct fp_turn_client *client);
void fp_turn_charge(const struct fp_turns *turns, struct fp_turn_client *client, uint64_t bytes);
/* Ends the turn's wait, if it waits. Call it before the turn or its client is freed. */
void fp_turn_leave(struct fp_turns *turns, struct fp_turn *turn);

/*
 * Runs a round, which looks at each client in line once. While a client has credit, the round ends
 * the wait of its turns one by one, and calls `go` for each. `go` may call fp_turn_take and
 * fp_turn_leave, and may free turns and clients. True if some turns still wait: then the next round
 * must not wait for events.
 */
bool fp_turns_round(struct fp_turns *turns, void (*go)(struct fp_turn *turn));

#endif
