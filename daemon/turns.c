/*
 * Turns. Room: daemon; see turns.h.
 */
#include "turns.h"

#include <stddef.h>

#include "cleanup.h"

#define MAX_ROUNDS 65536u /* that a share may have missed and is paid for: more than any overdraft takes */

void fp_turns_init(struct fp_turns *turns)
{
	*turns = (struct fp_turns){.round = 1};
	turns->end = &turns->first;
}

/* A share of which nobody waits counts as one more of its client's that want some. */
static int64_t part_bytes(const struct fp_share *share)
{
	unsigned n = share->client->n_waiting + !share->n_waiting;

	return FP_MAX(FP_TURN_BYTES / n, 1u);
}

static bool has_credit(const struct fp_turns *turns, struct fp_share *share)
{
	int64_t rounds = (int64_t)FP_MIN(turns->round - share->round, MAX_ROUNDS);
	int64_t part = part_bytes(share);

	if (rounds) {
		share->round = turns->round;
		share->credit_bytes = FP_MIN(share->credit_bytes + rounds * part, part);
	}
	return share->credit_bytes > 0;
}

void fp_turn_wait(struct fp_turns *turns, struct fp_turn *turn, struct fp_share *share)
{
	turn->share = share;
	share->client->n_waiting += !share->n_waiting++;
	turn->next = NULL;
	turn->link = turns->end;
	*turns->end = turn;
	turns->end = &turn->next;
}

void fp_turn_leave(struct fp_turns *turns, struct fp_turn *turn)
{
	if (!turn->share)
		return;
	turn->share->client->n_waiting -= !--turn->share->n_waiting;
	turn->share = NULL;
	*turn->link = turn->next;
	if (turn->next)
		turn->next->link = turn->link;
	else
		turns->end = turn->link;
	if (turns->cursor == turn)
		turns->cursor = turn->next;
}

bool fp_turn_take(struct fp_turns *turns, struct fp_turn *turn, struct fp_share *share)
{
	if (turn->share)
		return false;
	if ((turn == turns->current || !share->n_waiting) && has_credit(turns, share))
		return true;
	fp_turn_wait(turns, turn, share);
	return false;
}

void fp_turn_charge(struct fp_turns *turns, struct fp_share *share, uint64_t bytes)
{
	(void)has_credit(turns, share); /* what is used now is of this round */
	share->credit_bytes -= (int64_t)bytes;
}

static uint64_t rounds_to_credit(const struct fp_share *share)
{
	return (uint64_t)(-share->credit_bytes / part_bytes(share)) + 1;
}

/*
 * Those that begin to wait meanwhile come in the next round. Returns how many rounds pass until somebody goes
 * on: 0 if somebody did.
 */
static uint64_t look_at_all(struct fp_turns *turns, void (*go)(struct fp_turn *turn))
{
	struct fp_turn end = {0}, *turn;
	struct fp_turn_client nobody = {0};
	struct fp_share none = {.client = &nobody};
	uint64_t rounds = UINT64_MAX;

	fp_turn_wait(turns, &end, &none);
	turns->cursor = turns->first;
	while ((turn = turns->cursor) != &end) {
		turns->cursor = turn->next;
		if (!has_credit(turns, turn->share)) {
			rounds = FP_MIN(rounds, rounds_to_credit(turn->share));
			continue;
		}
		fp_turn_leave(turns, turn);
		turns->current = turn;
		go(turn);
		turns->current = NULL;
		rounds = 0;
	}
	fp_turn_leave(turns, &end);
	turns->cursor = NULL;
	return rounds;
}

/* Rounds in which nobody can go on pass at once: a debt may be worth thousands. */
bool fp_turns_round(struct fp_turns *turns, void (*go)(struct fp_turn *turn))
{
	uint64_t rounds = 1;

	do
		turns->round += rounds;
	while (turns->first && (rounds = look_at_all(turns, go)));
	return turns->first;
}
