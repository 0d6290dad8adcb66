/*
 * Turns. Room: daemon; see turns.h.
 */
#include "turns.h"

#include <stddef.h>

#include "cleanup.h"

void fp_turns_init(struct fp_turns *turns)
{
	*turns = (struct fp_turns){.round = 1};
	TAILQ_INIT(&turns->line);
}

static bool has_credit(const struct fp_turns *turns, struct fp_turn_client *client)
{
	int64_t rounds = (int64_t)(turns->round - client->round);

	client->round = turns->round;
	if (rounds)
		client->credit_bytes = FP_MIN(client->credit_bytes + rounds * FP_TURN_BYTES, FP_TURN_BYTES);
	return client->credit_bytes > 0;
}

void fp_turn_wait(struct fp_turns *turns, struct fp_turn *turn, struct fp_turn_client *client)
{
	if (TAILQ_EMPTY(&client->waiting)) {
		TAILQ_INIT(&client->waiting);
		TAILQ_INSERT_TAIL(&turns->line, client, entry);
		turns->n_clients++;
	}
	TAILQ_INSERT_TAIL(&client->waiting, turn, entry);
	turn->client = client;
}

void fp_turn_leave(struct fp_turns *turns, struct fp_turn *turn)
{
	struct fp_turn_client *client = turn->client;

	if (!client)
		return;
	turn->client = NULL;
	TAILQ_REMOVE(&client->waiting, turn, entry);
	if (TAILQ_EMPTY(&client->waiting)) {
		TAILQ_REMOVE(&turns->line, client, entry);
		turns->n_clients--;
	}
}

/* True: the current turn may go on before other turns of the same client. */
static bool may_go_on(const struct fp_turns *turns, const struct fp_turn *turn,
                      const struct fp_turn_client *client)
{
	return turn == turns->current && client->credit_bytes > turns->until_bytes;
}

bool fp_turn_take(struct fp_turns *turns, struct fp_turn *turn, struct fp_turn_client *client)
{
	if (turn->client)
		return false;
	if ((may_go_on(turns, turn, client) || TAILQ_EMPTY(&client->waiting)) && has_credit(turns, client))
		return true;
	fp_turn_wait(turns, turn, client);
	return false;
}

void fp_turn_charge(const struct fp_turns *turns, struct fp_turn_client *client, uint64_t bytes)
{
	/*
	 * First has_credit gives the client its bytes of this round. Then the charge counts in this
	 * round.
	 */
	(void)has_credit(turns, client);
	client->credit_bytes -= (int64_t)bytes;
}

static void go_on(struct fp_turns *turns, struct fp_turn_client *client, void (*go)(struct fp_turn *turn))
{
	struct fp_turn *turn = TAILQ_FIRST(&client->waiting);

	fp_turn_leave(turns, turn);
	turns->current = turn;
	turns->until_bytes = client->credit_bytes - FP_TURN_BYTES / 8;
	go(turn);
	turns->current = NULL;
}

/* Returns how many rounds must pass until some turn goes on: 0 if one did. */
static uint64_t look_at_all(struct fp_turns *turns, void (*go)(struct fp_turn *turn))
{
	struct fp_turn_client *client;
	uint64_t rounds = UINT64_MAX;

	for (unsigned n = turns->n_clients; n && (client = TAILQ_FIRST(&turns->line)); n--) {
		/* once a client is not the first any more, it may have been freed */
		for (; client == TAILQ_FIRST(&turns->line) && has_credit(turns, client); rounds = 0)
			go_on(turns, client, go);
		if (client != TAILQ_FIRST(&turns->line))
			continue;
		rounds = FP_MIN(rounds, (uint64_t)(-client->credit_bytes / FP_TURN_BYTES) + 1);
		TAILQ_REMOVE(&turns->line, client, entry);
		TAILQ_INSERT_TAIL(&turns->line, client, entry);
	}
	return rounds;
}

/* Skips rounds in which no turn can go on: a client's debt may last for thousands of rounds. */
bool fp_turns_round(struct fp_turns *turns, void (*go)(struct fp_turn *turn))
{
	uint64_t rounds = 1;

	do
		turns->round += rounds;
	while (turns->n_clients && (rounds = look_at_all(turns, go)));
	return turns->n_clients;
}
