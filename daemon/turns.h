/*
 * Turns: who goes on when all together want more than one round of the loop can do. Room: daemon. Pure: it
 * counts bytes, and knows neither connections nor sessions.
 *
 *    client A ─┬─ share (session 1) ─┬─ turn (connection) ─┐
 *              │                     └─ turn ──────────────┤   waiting, first come first served:
 *              └─ share (session 2) ─── turn ──────────────┼─► whoever's share has credit goes on
 *    client B ─── share (session 3) ─── turn ──────────────┘
 *
 * Deficit round robin. In each round a client has FP_TURN_BYTES, its shares that want some equal parts of it.
 * What a share used too much is missing in the next rounds; what it did not use is not kept. So it does not
 * matter how many connections or sessions a client has, and a client alone never waits.
 */
#ifndef FP_TURNS_H
#define FP_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#define FP_TURN_BYTES (128u << 10) /* of a client in a round: about 50 µs of work */

/* What the shares of one client have in common. Zero-initialised it has none. */
struct fp_turn_client {
	unsigned n_waiting; /* shares of whose turns some wait */
};

/* Its client outlives it. Zero-initialised, but for client, it has used nothing. */
struct fp_share {
	struct fp_turn_client *client;
	uint64_t round; /* of which credit_bytes is */
	int64_t credit_bytes;
	unsigned n_waiting; /* turns */
};

/* Zero-initialised it does not wait. */
struct fp_turn {
	struct fp_turn *next, **link;
	struct fp_share *share; /* of which it waits; NULL: it does not wait */
};

struct fp_turns {
	struct fp_turn *first, **end;
	struct fp_turn *cursor;        /* the next that a round looks at */
	const struct fp_turn *current; /* goes on just now: nobody of its share is before it */
	uint64_t round;
};

void fp_turns_init(struct fp_turns *turns);

/* True: it may go on, by a piece of work that is charged to its share. False: it waits from now on, and a
 * round will call it. */
bool fp_turn_take(struct fp_turns *turns, struct fp_turn *turn, struct fp_share *share);
/* It waits, whatever credit there is: a round will call it. It must not wait already. */
void fp_turn_wait(struct fp_turns *turns, struct fp_turn *turn, struct fp_share *share);
void fp_turn_charge(struct fp_turns *turns, struct fp_share *share, uint64_t bytes);
/* It waits no longer. Fine if it did not; due before it or its share goes away. */
void fp_turn_leave(struct fp_turns *turns, struct fp_turn *turn);

/*
 * Begins a round. Those that waited and whose share has credit wait no longer: go is called for each, and may
 * take, leave and free turns. Returns whether some wait still: then the next round must not wait for events.
 */
bool fp_turns_round(struct fp_turns *turns, void (*go)(struct fp_turn *turn));

#endif
