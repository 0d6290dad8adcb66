/*
 * Slots of one lease. They are handed out in runs that are as long as possible. No slot is handed
 * out twice, however many threads take and return slots.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "slots.h"
#include "testrng.h"

#define FIRST_SLOT ((uint64_t)7 << FP_SLOT_PAGE_BITS)

static struct fp_slots *slots_new(uint32_t n_pages)
{
	struct fp_slots *slots = fp_slots_new(n_pages);

	assert_non_null(slots);
	slots->first_slot = FIRST_SLOT;
	return slots;
}

static void assert_run(const uint64_t *slots, unsigned n, uint64_t first)
{
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(slots[i], first + i);
}

static void hands_out_every_slot_once(void **state)
{
	static const uint32_t sizes[] = {1, 2, 63, 64, 65, 127, 200, 16384};
	static uint64_t out[16384 + 1];

	for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		struct fp_slots *slots = slots_new(sizes[s]);
		uint8_t *seen = calloc(sizes[s], 1);

		assert_int_equal(fp_slots_take(slots, sizes[s] + 1, out), sizes[s]);
		for (uint32_t i = 0; i < sizes[s]; i++) {
			assert_true(out[i] - FIRST_SLOT < sizes[s]);
			assert_int_equal(seen[out[i] - FIRST_SLOT]++, 0);
		}
		assert_int_equal(slots->n_free, 0);
		assert_int_equal(fp_slots_take(slots, 1, out), 0);
		free(seen);
		fp_slots_free(slots);
	}
}

static void batches_follow_one_another(void **state)
{
	struct fp_slots *slots = slots_new(256);
	uint64_t out[64];

	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(fp_slots_take(slots, 32, out), 32);
		assert_run(out, 32, FIRST_SLOT + 32 * i);
	}
	assert_int_equal(fp_slots_take(slots, 64, out), 64);
	assert_run(out, 64, FIRST_SLOT + 128);
	fp_slots_free(slots);
}

static void prefers_the_longest_hole(void **state)
{
	struct fp_slots *slots = slots_new(128);
	uint64_t out[128];

	assert_int_equal(fp_slots_take(slots, 128, out), 128);
	for (unsigned page = 1; page < 64; page += 2)
		fp_slots_put(slots, FIRST_SLOT + page);
	for (unsigned page = 100; page < 108; page++)
		fp_slots_put(slots, FIRST_SLOT + page);
	assert_int_equal(fp_slots_take(slots, 8, out), 8);
	assert_run(out, 8, FIRST_SLOT + 100);
	assert_int_equal(fp_slots_take(slots, 128, out), 32);
	fp_slots_free(slots);
}

static void tells_when_it_was_full(void **state)
{
	struct fp_slots *slots = slots_new(2);
	uint64_t out[2];

	assert_int_equal(fp_slots_take(slots, 2, out), 2);
	assert_true(fp_slots_put(slots, out[0]));
	assert_false(fp_slots_put(slots, out[1]));
	assert_int_equal(slots->n_free, 2);
	fp_slots_free(slots);
}

/* In a child, puts back a slot that may not be put back. The child must abort. */
static void expect_abort(struct fp_slots *slots, uint64_t slot)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		signal(SIGABRT, SIG_DFL);
		fclose(stderr);
		fp_slots_put(slots, slot);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void aborts_on_double_and_foreign_free(void **state)
{
	struct fp_slots *slots = slots_new(10);
	uint64_t out[10];

	assert_int_equal(fp_slots_take(slots, 10, out), 10);
	fp_slots_put(slots, FIRST_SLOT + 3);
	expect_abort(slots, FIRST_SLOT + 3);
	expect_abort(slots, FIRST_SLOT + 10);
	expect_abort(slots, FIRST_SLOT - 1);
	fp_slots_free(slots);
}

static void random_ops_match_a_shadow(void **state)
{
	enum { N = 700 };
	uint64_t rng = test_seed(__func__), out[N];
	struct fp_slots *slots = slots_new(N);
	bool used[N] = {false};
	unsigned n_used = 0;

	for (unsigned op = 0; op < 20000; op++) {
		uint64_t page = test_random(&rng) % N;

		if (used[page]) {
			assert_int_equal(fp_slots_put(slots, FIRST_SLOT + page), n_used == N);
			used[page] = false;
			n_used--;
			continue;
		}
		unsigned n = (unsigned)(test_random(&rng) % 40), got = fp_slots_take(slots, n, out);

		assert_int_equal(got, n < N - n_used ? n : N - n_used);
		for (unsigned i = 0; i < got; i++) {
			assert_true(out[i] - FIRST_SLOT < N && !used[out[i] - FIRST_SLOT]);
			used[out[i] - FIRST_SLOT] = true;
		}
		n_used += got;
		assert_int_equal(slots->n_free, N - n_used);
	}
	fp_slots_free(slots);
}

#define CROWD       4
#define CROWD_PAGES 500

struct crowd {
	struct fp_slots *slots;
	/* Not atomic on purpose: so TSan also sees a slot that is handed out twice. */
	uint8_t owner[CROWD_PAGES];
};

struct member {
	struct crowd *crowd;
	uint64_t rng;
	uint8_t id;
	unsigned n_stolen;
};

/* Takes slots, writes its signature into them, checks the signatures, and returns the slots. */
static void *crowd_member(void *arg)
{
	struct member *m = arg;
	uint64_t out[100];

	for (unsigned round = 0; round < 3000; round++) {
		unsigned n = fp_slots_take(m->crowd->slots, 1 + (unsigned)(test_random(&m->rng) % 100), out);

		for (unsigned i = 0; i < n; i++) {
			m->n_stolen += m->crowd->owner[out[i] - FIRST_SLOT] != 0;
			m->crowd->owner[out[i] - FIRST_SLOT] = m->id;
		}
		for (unsigned i = 0; i < n; i++) {
			m->n_stolen += m->crowd->owner[out[i] - FIRST_SLOT] != m->id;
			m->crowd->owner[out[i] - FIRST_SLOT] = 0;
			fp_slots_put(m->crowd->slots, out[i]);
		}
	}
	return NULL;
}

static void threads_never_share_a_slot(void **state)
{
	struct crowd crowd = {.slots = slots_new(CROWD_PAGES)};
	uint64_t seed = test_seed(__func__);
	struct member members[CROWD];
	pthread_t threads[CROWD];

	for (unsigned i = 0; i < CROWD; i++) {
		members[i] = (struct member){&crowd, seed + i, (uint8_t)(i + 1), 0};
		assert_int_equal(pthread_create(&threads[i], NULL, crowd_member, &members[i]), 0);
	}
	for (unsigned i = 0; i < CROWD; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(members[i].n_stolen, 0);
	}
	assert_int_equal(crowd.slots->n_free, CROWD_PAGES);
	for (unsigned w = 0; w < CROWD_PAGES / 64; w++)
		assert_int_equal(crowd.slots->word[w], 0);
	fp_slots_free(crowd.slots);
}

/* Slots of a closed lease can't be taken. A lease with a slot in use can't be closed. */
static void closes_when_nothing_is_in_use(void **state)
{
	for (uint32_t n_pages = 1; n_pages <= 200; n_pages++) {
		struct fp_slots *slots = slots_new(n_pages);
		uint64_t out[200], last;

		assert_int_equal(fp_slots_take(slots, n_pages, out), n_pages);
		last = out[n_pages - 1];
		for (uint32_t i = 0; i + 1 < n_pages; i++)
			fp_slots_put(slots, out[i]);
		assert_false(fp_slots_close(slots));
		assert_int_equal(fp_slots_take(slots, n_pages, out), n_pages - 1);
		for (uint32_t i = 0; i + 1 < n_pages; i++)
			fp_slots_put(slots, out[i]);
		fp_slots_put(slots, last);
		assert_true(fp_slots_close(slots));
		assert_int_equal(fp_slots_take(slots, n_pages, out), 0);
		fp_slots_free(slots);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(hands_out_every_slot_once),
	    cmocka_unit_test(batches_follow_one_another),
	    cmocka_unit_test(prefers_the_longest_hole),
	    cmocka_unit_test(tells_when_it_was_full),
	    cmocka_unit_test(aborts_on_double_and_foreign_free),
	    cmocka_unit_test(random_ops_match_a_shadow),
	    cmocka_unit_test(threads_never_share_a_slot),
	    cmocka_unit_test(closes_when_nothing_is_in_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
