/*
 * Turns share the loop's time among clients by deficit round robin. Room: daemon. Pure: it counts
 * bytes, and knows neither connections nor sessions.
 *
 *                 ┌─ client A ── turn ── turn ── turn    a client's turns: first come, first served
 *    round ─► line ─ client B ── turn
 *                 └─ strangers ─ turn ── turn
 *
 * In each round a client has FP_TURN_BYTES. If it used more, it has less in the next rounds. Unused
 * bytes are not kept. So all connections of one client together get no more than one
 * connection of another client. A client that is alone never waits.
 */
#ifndef FP_TURNS_H
#define FP_TURNS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define FP_TURN_BYTES (128u << 10) /* of a client in a round: about 50 µs of work */

/* Zero-initialised, it has used nothing, and none of its turns waits. */
struct fp_turn_client {
	TAILQ_ENTRY(fp_turn_client) entry; /* in the line, while some of its turns wait */
	TAILQ_HEAD(, fp_turn) waiting;     /* its turns */
	uint64_t round;                    /* the round for which credit_bytes counts */
	int64_t credit_bytes;
};

/* Zero-initialised, it does not wait. */
struct fp_turn {
	TAILQ_ENTRY(fp_turn) entry;
	struct fp_turn_client *client; /* in whose list it waits; NULL: it does not wait */
};

struct fp_turns {
	TAILQ_HEAD(, fp_turn_client) line; /* clients whose turns wait */
	unsigned n_clients;                /* in line */
	const struct fp_turn *current;     /* the turn that goes on just now */
	int64_t until_bytes;               /* the current turn ends when its client's credit falls to this */
	uint64_t round;
};

void fp_turns_init(struct fp_turns *turns);

/* True: it may do a piece of work, charged to its client. False: it waits from now on, and a round
 * will call it. */
bool fp_turn_take(struct fp_turns *turns, struct fp_turn *turn, struct fp_turn_client *client);
/* Makes it wait for a round to call it, whatever credit there is. It must not wait already. */
void fp_turn_wait(struct fp_turns *turns, struct fp_turn *turn, struct fp_turn_client *client);
void fp_turn_charge(const struct fp_turns *turns, struct fp_turn_client *client, uint64_t bytes);
/* Ends its wait, if it waits. Call it before the turn or its client goes away. */
void fp_turn_leave(struct fp_turns *turns, struct fp_turn *turn);

/*
 * Begins a round. It looks at each client in line once. While a client has credit, it calls go for
 * its turns, which wait no longer. go may take, leave and free turns, and free clients. Returns
 * whether some wait still: then the next round must not wait for events.
 */
bool fp_turns_round(struct fp_turns *turns, void (*go)(struct fp_turn *turn));

#endif
