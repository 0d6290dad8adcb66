/*
 * The store over fake nodes. A reservation succeeds as a whole or not at all. A full node does not
 * count as down. Also tests placement, and slots over many leases.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "cleanup.h"
#include "fakestore.h"
#include "testrng.h"

#define LEASE_PAGES (FAKE_LEASE_BYTES / FP_PAGE_SIZE)

static struct fp_store *store_open(unsigned n_nodes, unsigned load_store)
{
	struct fp_store *store = NULL;

	assert_int_equal(fake_store_open(n_nodes, load_store, 0, &store), 0);
	return store;
}

static int reset(void **state)
{
	fake_reset(1);
	return 0;
}

static void open_names_the_url_that_failed(void **state)
{
	const char *urls[] = {"nonsense"}, *failed = NULL;
	struct fp_store_options options = {.urls = urls, .n_urls = 1};
	struct fp_store *store = NULL;

	assert_true(fp_store_open(&options, &store, &failed) < 0);
	assert_ptr_equal(failed, urls[0]);
	assert_true(fp_store_open(&options, &store, NULL) < 0);
	options.n_urls = 0;
	assert_int_equal(fp_store_open(&options, &store, NULL), -EINVAL);
	options = (struct fp_store_options){.urls = urls, .n_urls = 1, .lease_bytes = 4097};
	assert_int_equal(fp_store_open(&options, &store, NULL), -EINVAL);
	assert_null(store);
}

static void reserves_in_whole_leases_and_keeps_them(void **state)
{
	struct fp_store *store = store_open(1, 0);

	assert_int_equal(fp_store_reserve(store, 1), 0);
	assert_int_equal(fake_nodes[0].leased_bytes, FAKE_LEASE_BYTES);
	assert_int_equal(fp_store_slots_total(store), LEASE_PAGES);
	assert_int_equal(fp_store_reserve(store, LEASE_PAGES - 1), 0);
	assert_int_equal(fake_nodes[0].n_leases, 1);
	assert_int_equal(fp_store_reserve(store, 1), 0);
	assert_int_equal(fake_nodes[0].n_leases, 2);
	fp_store_unreserve(store, LEASE_PAGES + 1);
	assert_int_equal(fp_store_reserve(store, 2 * LEASE_PAGES), 0);
	assert_int_equal(fake_nodes[0].n_leases, 2);
	fp_store_close(store);
	assert_int_equal(fake_nodes[0].leased_bytes, 0);
}

static void a_reservation_that_fails_leaves_nothing_behind(void **state)
{
	struct fp_store *store = store_open(2, 0);

	fake_nodes[0].capacity_bytes = 3 * FAKE_LEASE_BYTES;
	fake_nodes[1].capacity_bytes = 2 * FAKE_LEASE_BYTES;
	assert_int_equal(fp_store_reserve(store, 5 * LEASE_PAGES + 1), -ENOSPC);
	assert_int_equal(fp_store_reserve(store, UINT64_MAX), -ENOSPC);
	assert_int_equal(fake_nodes[0].leased_peak_bytes, 0); /* nothing was leased, not even briefly */
	fake_nodes[1].quota_bytes = FAKE_LEASE_BYTES;         /* enough is free, but the quota is too small */
	assert_int_equal(fp_store_reserve(store, 5 * LEASE_PAGES), -ENOSPC);
	assert_int_equal(fp_store_slots_total(store), 0);
	assert_int_equal(fake_nodes[0].leased_bytes + fake_nodes[1].leased_bytes, 0);
	assert_int_equal(fp_store_reserve(store, 4 * LEASE_PAGES), 0);
	fp_store_close(store);
}

struct notices {
	unsigned n;
	char last[1024];
};

static void note(void *user, enum fp_log_level level, const char *text)
{
	struct notices *notices = user;

	notices->n++;
	assert_int_equal(level, FP_LOG_WARNING); /* whoever sees only warnings must see it */
	snprintf(notices->last, sizeof(notices->last), "%s", text);
}

static void a_shortage_is_told_once(void **state)
{
	struct fp_store *store = store_open(2, 0);
	struct notices notices = {.n = 0};

	store->notice = note;
	store->notice_user = &notices;
	fake_nodes[0].capacity_bytes = FAKE_LEASE_BYTES;
	fake_nodes[1].quota_bytes = FP_PAGE_SIZE;
	assert_int_equal(fp_store_reserve(store, LEASE_PAGES), 0);
	assert_int_equal(notices.n, 0);
	assert_int_equal(fp_store_reserve(store, LEASE_PAGES), -ENOSPC);
	assert_int_equal(notices.n, 1);
	assert_non_null(strstr(notices.last, "a request for 256.0 KiB of far memory was refused (ENOMEM)"));
	assert_non_null(strstr(notices.last, "node fake://0: the node has no memory to lend"));
	assert_non_null(strstr(notices.last, "node fake://1: the client's quota at the node is used up"));
	assert_int_equal(fp_store_reserve(store, LEASE_PAGES), -ENOSPC);
	assert_int_equal(fp_store_extend(store), 0); /* node 1 has one page */
	assert_int_equal(fp_store_extend(store), -ENOSPC);
	assert_int_equal(notices.n, 1);
	fake_nodes[1].dead = true; /* a node that may have room is away: this is told, too */
	assert_true(fp_store_reserve(store, LEASE_PAGES) < 0);
	assert_int_equal(notices.n, 2);
	assert_non_null(strstr(notices.last, "node fake://1: "));
	assert_true(fp_store_reserve(store, LEASE_PAGES) < 0);
	assert_int_equal(notices.n, 2);
	fp_store_close(store);
}

/* The first call that meets a shortage may be one that tells nobody. A later call tells it. */
static void a_shortage_is_told_after_others_have_met_it(void **state)
{
	struct fp_store *store = store_open(1, 0);
	struct notices notices = {.n = 0};

	store->notice = note;
	store->notice_user = &notices;
	fake_nodes[0].capacity_bytes = FAKE_LEASE_BYTES;
	assert_int_equal(fp_store_grow(store, 2 * LEASE_PAGES), -ENOSPC);
	assert_int_equal(notices.n, 0);
	assert_int_equal(fp_store_reserve(store, 2 * LEASE_PAGES), -ENOSPC); /* in the same second */
	assert_int_equal(notices.n, 1);
	assert_non_null(strstr(notices.last, "node fake://0: the node has no memory to lend"));
	fp_store_close(store);
}

/* What kept a node from answering before is no reason once it answers, not even in the same
 * second. */
static void a_shortage_is_not_told_by_an_old_error(void **state)
{
	struct fp_store *store;
	struct notices notices = {.n = 0};

	fake_nodes[0].resumable = true;
	fake_nodes[0].grace_ns = 60 * FP_NSEC_PER_SEC;
	store = store_open(2, 0);
	fake_nodes[0].capacity_bytes = fake_nodes[1].capacity_bytes = FAKE_LEASE_BYTES;
	fake_break(0, FAKE_CUT);
	assert_int_equal(fp_store_grow(store, 3 * LEASE_PAGES), -ECONNRESET);
	store->nodes[0].backoff.next_ns = 0;
	fake_tend(store);
	assert_true(fp_node_up(&store->nodes[0]));
	store->notice = note;
	store->notice_user = &notices;
	assert_int_equal(fp_store_reserve(store, 3 * LEASE_PAGES), -ENOSPC);
	assert_int_equal(notices.n, 1);
	assert_non_null(strstr(notices.last, "node fake://0: the node has no memory to lend"));
	assert_non_null(strstr(notices.last, "node fake://1: the node has no memory to lend"));
	fp_store_close(store);
}

/* All that fits is told, and how many nodes are left out. */
static void a_shortage_of_many_nodes_fits(void **state)
{
	struct fp_store *store = store_open(4, 0);
	struct fp_shortage shortage = {0};
	char text[130];

	for (unsigned i = 0; i < 4; i++)
		shortage.nodes[i].error = -EDQUOT;
	fp_shortage_explain(&shortage, store, text, sizeof(text));
	assert_non_null(strstr(text, "node fake://0: the client's quota"));
	assert_string_equal(strstr(text, " more") ?: "", " more");
	fp_store_close(store);
}

static void the_node_with_the_most_free_comes_first(void **state)
{
	struct fp_store *store = store_open(3, 0);

	fake_nodes[0].capacity_bytes = 2 * FAKE_LEASE_BYTES;
	fake_nodes[1].capacity_bytes = 5 * FAKE_LEASE_BYTES;
	fake_nodes[2].capacity_bytes = 3 * FAKE_LEASE_BYTES;
	assert_int_equal(fp_store_reserve(store, 2 * LEASE_PAGES), 0);
	assert_int_equal(fake_nodes[1].n_leases, 2);
	assert_int_equal(fp_store_reserve(store, 5 * LEASE_PAGES), 0);
	assert_int_equal(fake_nodes[0].n_leases, 1);
	assert_int_equal(fake_nodes[1].n_leases, 4);
	assert_int_equal(fake_nodes[2].n_leases, 2);
	fp_store_close(store);
}

static void leases_shrink_to_what_a_node_has(void **state)
{
	struct fp_store *store = store_open(2, 0);

	fake_nodes[0].capacity_bytes = FAKE_LEASE_BYTES / 2 + 3 * FP_PAGE_SIZE + 100;
	fake_nodes[1].capacity_bytes = 1ull << 30;
	fake_nodes[1].quota_bytes = FAKE_LEASE_BYTES + FP_PAGE_SIZE;
	assert_int_equal(fp_store_reserve(store, LEASE_PAGES + 1 + LEASE_PAGES / 2 + 3), 0);
	assert_int_equal(fake_nodes[0].leased_bytes, FAKE_LEASE_BYTES / 2 + 3 * FP_PAGE_SIZE);
	assert_int_equal(fake_nodes[1].leased_bytes, FAKE_LEASE_BYTES + FP_PAGE_SIZE);
	assert_int_equal(fp_store_reserve(store, 1), -ENOSPC);
	fp_store_close(store);
}

static void a_lease_is_an_eighth_of_a_small_pool(void **state)
{
	const uint64_t mib = 1 << 20;
	struct fp_store *store = store_open(1, 0);

	store->lease_bytes = 64 * mib;
	fake_nodes[0].capacity_bytes = 512 * mib;
	assert_int_equal(fp_store_reserve(store, 1), 0);
	assert_int_equal(fake_nodes[0].leased_bytes, 64 * mib);
	fake_nodes[0].capacity_bytes = (64 + 128) * mib;
	assert_int_equal(fp_store_reserve(store, 64 * mib / FP_PAGE_SIZE), 0);
	assert_int_equal(fake_nodes[0].leased_bytes, (64 + 16) * mib);
	fake_nodes[0].capacity_bytes = (80 + 20) * mib; /* no part of it is smaller than 8 MiB */
	assert_int_equal(fp_store_reserve(store, 36 * mib / FP_PAGE_SIZE - 1), 0);
	assert_int_equal(fake_nodes[0].leased_bytes, 100 * mib);
	fp_store_close(store);
}

static void full_is_not_down(void **state)
{
	struct fp_store *store = store_open(2, 0);
	struct fp_store_node info;

	fake_nodes[0].capacity_bytes = FAKE_LEASE_BYTES;
	fake_nodes[1].capacity_bytes = 2 * FAKE_LEASE_BYTES;
	assert_int_equal(fp_store_reserve(store, 2 * LEASE_PAGES), 0);
	assert_int_equal(fp_store_reserve(store, 2 * LEASE_PAGES), -ENOSPC);
	fake_nodes[1].dead = true;
	assert_int_equal(fp_store_reserve(store, 2 * LEASE_PAGES), -ECONNRESET);
	assert_int_equal(fp_store_reserve(store, 1), -EHOSTDOWN);
	fp_store_node_info(store, 1, &info);
	assert_string_equal(info.url, "fake://1");
	assert_false(info.up);
	assert_int_equal(info.error, -ECONNRESET);
	fp_store_node_info(store, 0, &info);
	assert_true(info.up);
	fp_store_close(store);
}

static void an_answer_is_not_the_end_of_a_node(void **state)
{
	static const int errors[] = {-EUSERS, -EPERM, -EREMOTEIO, -EMFILE, -ETIMEDOUT};

	for (unsigned e = 0; e < FP_ARRAY_LEN(errors); e++) {
		struct fp_store *store = store_open(1, 0);

		fake_fail_nth(
		    2, errors[e]); /* the first call asks for free memory and works; the second fails */
		assert_int_equal(fp_store_reserve(store, 1), errors[e] == -EUSERS ? -ENOSPC : errors[e]);
		assert_int_equal(fp_store_reserve(store, 1), 0);
		fp_store_close(store);
	}
}

static void slots_of_a_lost_node_no_longer_count(void **state)
{
	struct fp_store *store = store_open(2, 0);
	uint64_t out[4 * LEASE_PAGES];

	assert_int_equal(fp_store_reserve(store, 2 * LEASE_PAGES), 0); /* equal nodes: one lease on each */
	assert_int_equal(fp_store_slot_alloc(store, 2, out), 2);
	assert_int_equal(fp_store_slot_node(store, out[0]), 0);
	fp_node_report(&store->nodes[0], 0, -EPIPE, NULL);
	assert_false(fp_store_slot_up(store, out[0]));
	assert_int_equal(fp_store_slots_total(store), LEASE_PAGES);
	assert_int_equal(fp_store_slots_used(store), 2);
	assert_int_equal(fp_store_slot_alloc(store, 2 * LEASE_PAGES, out + 2), LEASE_PAGES);
	for (unsigned i = 2; i < 2 + LEASE_PAGES; i++)
		assert_true(fp_store_slot_up(store, out[i]));
	assert_int_equal(fp_store_slot_alloc(store, 1, out), 0);
	for (unsigned i = 0; i < 2 + LEASE_PAGES; i++)
		fp_store_slot_free(store, out[i]);
	assert_int_equal(fp_store_reserve(store, 1), 0); /* this must also replace the lost leases */
	assert_true(fake_nodes[1].n_leases >= 3);
	fp_store_close(store);
}

static void load_and_store_outlive_the_daemon(void **state)
{
	struct fp_store *store = store_open(1, 1);
	uint64_t slot;

	assert_true(fp_store_is_direct(store));
	assert_int_equal(fp_store_reserve(store, 1), 0);
	assert_int_equal(fp_store_slot_alloc(store, 1, &slot), 1);
	fake_nodes[0].dead = true;
	assert_int_equal(fp_store_reserve(store, LEASE_PAGES), -ECONNRESET);
	assert_true(fp_store_slot_up(store, slot));
	memset(fp_store_slot_direct(store, slot), 1, FP_PAGE_SIZE);
	fp_store_close(store);
}

static void slots_have_distinct_places(void **state)
{
	struct fp_store *store = store_open(2, 2);
	uint64_t out[4 * LEASE_PAGES];
	unsigned n_direct = 0;

	assert_false(fp_store_is_direct(store));
	assert_int_equal(fp_store_n_nodes(store), 2);
	assert_int_equal(fp_store_reserve(store, 4 * LEASE_PAGES), 0);
	assert_int_equal(fp_store_slot_alloc(store, 4 * LEASE_PAGES, out), 4 * LEASE_PAGES);
	assert_int_equal(fp_store_slots_used(store), 4 * LEASE_PAGES);
	for (unsigned i = 0; i < 4 * LEASE_PAGES; i++) {
		char *direct = fp_store_slot_direct(store, out[i]);

		assert_true(out[i] != FP_SLOT_NONE && out[i] >> FP_SLOT_BITS == 0);
		assert_int_equal(fp_store_slot_node(store, out[i]), direct != NULL);
		if (!direct)
			continue;
		n_direct++;
		assert_int_equal(*(uint64_t *)direct, 0);
		*(uint64_t *)direct = out[i];
		*(uint64_t *)(direct + FP_PAGE_SIZE - 8) = out[i];
	}
	assert_int_equal(n_direct, 2 * LEASE_PAGES);
	for (unsigned i = 0; i < 4 * LEASE_PAGES; i++) {
		char *direct = fp_store_slot_direct(store, out[i]);

		assert_true(!direct || *(uint64_t *)direct == out[i]);
		fp_store_slot_count(store, out[i], FP_IO_READ);
		fp_store_slot_free(store, out[i]);
	}
	assert_int_equal(fp_store_slots_used(store), 0);
	assert_int_equal(store->nodes[0].read_bytes, 2 * FAKE_LEASE_BYTES);
	fp_store_close(store);
}

static void a_slot_freed_in_a_full_store_is_found_at_once(void **state)
{
	struct fp_store *store = store_open(1, 0);
	uint64_t out[8 * LEASE_PAGES], again;

	assert_int_equal(fp_store_reserve(store, 8 * LEASE_PAGES), 0);
	assert_int_equal(fp_store_slot_alloc(store, 8 * LEASE_PAGES, out), 8 * LEASE_PAGES);
	fp_store_slot_free(store, out[200]);
	assert_int_equal(store->cursor, out[200] >> FP_SLOT_PAGE_BITS);
	assert_int_equal(fp_store_slot_alloc(store, 1, &again), 1);
	assert_int_equal(again, out[200]);
	fp_store_close(store);
}

/* The sum of leased bytes of the nodes that still answer. */
static uint64_t leased_bytes(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < FAKE_NODES; i++)
		sum += fake_nodes[i].dead ? 0 : fake_nodes[i].leased_bytes;
	return sum;
}

/* Starts as a program does, step by step, until a step fails. */
static int open_and_reserve(void)
{
	struct fp_store *store = NULL;
	uint64_t before;
	int r = fake_store_open(3, 4, 0, &store);

	if (r < 0)
		return r;
	for (unsigned i = 0; i < 3 && r == 0; i++) {
		before = leased_bytes();
		r = fp_store_reserve(store, 4 * LEASE_PAGES);
		if (r < 0)
			assert_true(leased_bytes() <= before);
	}
	fp_store_close(store);
	return r;
}

static void every_call_may_be_the_one_that_fails(void **state)
{
	static const int errors[] = {-ECONNRESET, -ETIMEDOUT, -ENOMEM, -ENOSPC, -EACCES};

	for (unsigned e = 0; e < FP_ARRAY_LEN(errors); e++) {
		unsigned nth = 0, n_failed = 0;

		do {
			fake_reset(1);
			for (unsigned i = 0; i < FAKE_NODES; i++)
				fake_nodes[i].capacity_bytes = 5 * FAKE_LEASE_BYTES;
			fake_fail_nth(++nth, errors[e]);
			n_failed += open_and_reserve() < 0;
			for (unsigned i = 0; i < FAKE_NODES; i++)
				assert_int_equal(fake_nodes[i].n_leases + fake_nodes[i].n_sessions, 0);
		} while (fake_failed());
		assert_true(nth > 12 && n_failed >= 3);
	}
}

#define CROWD 4

struct member {
	struct fp_store *store;
	uint64_t rng;
	unsigned n_stolen;
};

/*
 * Reserves, takes slots, writes signatures into their memory, checks them, and returns everything.
 */
static void *crowd_member(void *arg)
{
	struct member *m = arg;
	uint64_t out[96];

	for (unsigned round = 0; round < 400; round++) {
		unsigned n = 1 + (unsigned)(test_random(&m->rng) % FP_ARRAY_LEN(out));

		if (fp_store_reserve(m->store, n) < 0)
			continue;
		m->n_stolen += fp_store_slot_alloc(m->store, n, out) != n; /* the slots were reserved */
		for (unsigned i = 0; i < n; i++)
			*(void **)fp_store_slot_direct(m->store, out[i]) = m;
		for (unsigned i = 0; i < n; i++) {
			m->n_stolen += *(void **)fp_store_slot_direct(m->store, out[i]) != m;
			fp_store_slot_free(m->store, out[i]);
		}
		fp_store_unreserve(m->store, n);
	}
	return NULL;
}

static void threads_never_share_a_slot(void **state)
{
	struct fp_store *store = store_open(2, 3);
	uint64_t seed = test_seed(__func__);
	struct member members[CROWD];
	pthread_t threads[CROWD];

	for (unsigned i = 0; i < CROWD; i++) {
		members[i] = (struct member){store, seed + i, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, crowd_member, &members[i]), 0);
	}
	for (unsigned i = 0; i < CROWD; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(members[i].n_stolen, 0);
	}
	assert_int_equal(fp_store_slots_used(store), 0);
	fp_store_close(store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(open_names_the_url_that_failed, reset),
	    cmocka_unit_test_setup(reserves_in_whole_leases_and_keeps_them, reset),
	    cmocka_unit_test_setup(a_reservation_that_fails_leaves_nothing_behind, reset),
	    cmocka_unit_test_setup(a_shortage_is_told_once, reset),
	    cmocka_unit_test_setup(a_shortage_is_told_after_others_have_met_it, reset),
	    cmocka_unit_test_setup(a_shortage_is_not_told_by_an_old_error, reset),
	    cmocka_unit_test_setup(a_shortage_of_many_nodes_fits, reset),
	    cmocka_unit_test_setup(the_node_with_the_most_free_comes_first, reset),
	    cmocka_unit_test_setup(leases_shrink_to_what_a_node_has, reset),
	    cmocka_unit_test_setup(a_lease_is_an_eighth_of_a_small_pool, reset),
	    cmocka_unit_test_setup(full_is_not_down, reset),
	    cmocka_unit_test_setup(an_answer_is_not_the_end_of_a_node, reset),
	    cmocka_unit_test_setup(slots_of_a_lost_node_no_longer_count, reset),
	    cmocka_unit_test_setup(load_and_store_outlive_the_daemon, reset),
	    cmocka_unit_test_setup(slots_have_distinct_places, reset),
	    cmocka_unit_test_setup(a_slot_freed_in_a_full_store_is_found_at_once, reset),
	    cmocka_unit_test_setup(every_call_may_be_the_one_that_fails, reset),
	    cmocka_unit_test_setup(threads_never_share_a_slot, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
