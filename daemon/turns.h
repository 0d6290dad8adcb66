/*
 * Turns share the loop's time among clients by deficit round robin. Room: daemon. Pure: it counts
 * bytes, and knows neither connections nor sessions.
 *
 *                 ┌─ client A ── turn ── turn ── turn    a client's turns: first come, first served
 *    round ─► line ─ client B ── turn
 *                 └─ strangers ─ turn ── turn
 *
 * In each round a client has FP_TURN_BYTES. If it used more, it has less in the next rounds. What
 * it did not use is not kept. So all connections of one client together get no more than one
 * connection of another client. A client that is alone never waits.
 */
#ifndef FP_TURNS_H
#define FP_TURNS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define FP_TURN_BYTES (128u << 10) /* of a client in a round: about 50 µs of work */

/* Zero-initialised it has used nothing, and none of its turns waits. */
struct fp_turn_client {
	TAILQ_ENTRY(fp_turn_client) entry; /* in the line, while turns of its wait */
	TAILQ_HEAD(, fp_turn) waiting;     /* its turns */
	uint64_t round;                    /* of which credit_bytes is */
	int64_t credit_bytes;
};

/* Zero-initialised it does not wait. */
struct fp_turn {
	TAILQ_ENTRY(fp_turn) entry;
	struct fp_turn_client *client; /* of which it waits; NULL: it does not wait */
};

struct fp_turns {
	TAILQ_HEAD(, fp_turn_client) line; /* of which turns wait */
	unsigned n_clients;                /* in line */
	const struct fp_turn *current;     /* goes on just now */
	int64_t until_bytes;               /* of its client's credit: then it is the next one's turn */
	uint64_t round;
};

void fp_turns_init(struct fp_turns *turns);

/* True: it may go on, by a piece of work that is charged to its client. False: it waits from now
 * on, and a round will call it. */
bool fp_turn_take(struct fp_turns *turns, struct fp_turn *turn, struct fp_turn_client *client);
/* It waits, whatever credit there is: a round will call it. It must not wait already. */
void fp_turn_wait(struct fp_turns *turns, struct fp_turn *turn, struct fp_turn_client *client);
void fp_turn_charge(const struct fp_turns *turns, struct fp_turn_client *client, uint64_t bytes);
/* It waits no longer. Fine if it did not; due before it or its client goes away. */
void fp_turn_leave(struct fp_turns *turns, struct fp_turn *turn);

/*
 * Begins a round. It looks at each client in line once, and calls go for his turns, which wait no
 * longer, while he has credit. go may take, leave and free turns, and free clients. Returns whether
 * some wait still: then the next round must not wait for events.
 */
bool fp_turns_round(struct fp_turns *turns, void (*go)(struct fp_turn *turn));

#endif
