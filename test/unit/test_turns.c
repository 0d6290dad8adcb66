/*
 * Turns: every client gets the same share, however many connections it has. A client with little
 * work never waits, and every waiting client gets its turn.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cleanup.h"
#include "testrng.h"
#include "turns.h"

#define MAX_CONNS 3000

/* A connection with endless work. It does the work in pieces. */
struct conn {
	struct fp_turn turn; /* the first member, so that a turn's address is that of its conn */
	struct fp_turn_client *client;
	uint64_t piece_bytes, done_bytes;
};

static struct fp_turns turns;
static struct conn conns[MAX_CONNS];
static unsigned n_conns;

static void work(struct fp_turn *turn)
{
	struct conn *conn = (struct conn *)(void *)turn;

	while (fp_turn_take(&turns, turn, conn->client)) {
		fp_turn_charge(&turns, conn->client, conn->piece_bytes);
		conn->done_bytes += conn->piece_bytes;
	}
}

static void add(struct fp_turn_client *client, uint64_t piece_bytes)
{
	struct conn *conn = &conns[n_conns++];

	*conn = (struct conn){.client = client, .piece_bytes = piece_bytes};
	work(&conn->turn);
}

static int begin(void **state)
{
	fp_turns_init(&turns);
	n_conns = 0;
	return 0;
}

static void run(unsigned n_rounds)
{
	while (n_rounds--)
		assert_true(fp_turns_round(&turns, work));
}

static uint64_t done_by(const struct fp_turn_client *client)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < n_conns; i++)
		sum += conns[i].client == client ? conns[i].done_bytes : 0;
	return sum;
}

static void assert_like(uint64_t a, uint64_t b)
{
	assert_true(a * 20 > b * 19 && b * 20 > a * 19);
}

static void connections_do_not_multiply_a_share(void **state)
{
	struct fp_turn_client one = {0}, other = {0};

	for (unsigned i = 0; i < 40; i++)
		add(&one, 48 << 10);
	add(&other, 4096);
	run(2000);
	assert_like(done_by(&one), done_by(&other));
	for (unsigned i = 1; i < 40; i++)
		assert_like(conns[i].done_bytes, conns[0].done_bytes);
}

/* However many connections of one client ask at once, others wait only for that client's share. */
static void a_round_serves_no_more_than_a_share(void **state)
{
	struct fp_turn_client one = {0};
	uint64_t before;

	for (unsigned i = 0; i < MAX_CONNS; i++)
		add(&one, 18 << 10);
	for (unsigned i = 0; i < MAX_CONNS; i++) {
		before = done_by(&one);
		run(1);
		assert_true(done_by(&one) - before <= FP_TURN_BYTES + (18 << 10));
	}
	for (unsigned i = 0; i < MAX_CONNS; i++)
		assert_true(conns[i].done_bytes > 0);
}

static void who_wants_little_goes_at_once(void **state)
{
	struct fp_turn_client greedy = {0}, modest = {0};
	struct fp_turn turn = {0};

	for (unsigned i = 0; i < 40; i++)
		add(&greedy, 128 << 10);
	for (unsigned i = 0; i < 100; i++) {
		run(1);
		assert_true(fp_turn_take(&turns, &turn, &modest));
		fp_turn_charge(&turns, &modest, 16 << 10);
	}
}

/*
 * Turns are short. So a connection with little work waits for few rounds, even beside other
 * connections of its client.
 */
static void a_turn_is_short(void **state)
{
	struct fp_turn_client client = {0};

	for (unsigned i = 0; i < 40; i++)
		add(&client, 2048);
	add(&client, 2048);
	run(6);
	assert_true(conns[40].done_bytes > 0);
}

/* Every round serves somebody, even if one piece of work takes as much as many rounds. */
static void every_round_lets_somebody_go_on(void **state)
{
	struct fp_turn_client client = {0};

	add(&client, 64 << 20);
	for (unsigned i = 1; i <= 100; i++) {
		run(1);
		assert_int_equal(done_by(&client), (uint64_t)(i + 1) * (64 << 20));
	}
}

/* Connections leave in any order, also during a round. The next in line is still called. */
static void leave_others(struct fp_turn *turn)
{
	work(turn);
	for (unsigned i = 0; i < n_conns; i += 3)
		fp_turn_leave(&turns, &conns[i].turn);
}

static void who_leaves_is_not_called(void **state)
{
	struct fp_turn_client client = {0};
	uint64_t before[30];

	for (unsigned i = 0; i < 30; i++)
		add(&client, 30000);
	fp_turns_round(&turns, leave_others);
	for (unsigned i = 0; i < n_conns; i++)
		before[i] = conns[i].done_bytes;
	run(100);
	for (unsigned i = 0; i < n_conns; i++)
		assert_int_equal(conns[i].done_bytes > before[i], i % 3 != 0);
	for (unsigned i = 0; i < n_conns; i++)
		fp_turn_leave(&turns, &conns[i].turn);
	assert_false(fp_turns_round(&turns, work));
}

#define turns_test(f) cmocka_unit_test_setup(f, begin)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    turns_test(connections_do_not_multiply_a_share),
	    turns_test(a_round_serves_no_more_than_a_share),
	    turns_test(who_wants_little_goes_at_once),
	    turns_test(every_round_lets_somebody_go_on),
	    turns_test(a_turn_is_short),
	    turns_test(who_leaves_is_not_called),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
