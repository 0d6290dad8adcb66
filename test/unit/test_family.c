/*
 * Families of processes that share slots: how a child gets a session of its own, and what happens
 * to the leases that it inherits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include "cleanup.h"
#include "forkstore.h"

/* ---- how a child's session begins ---- */

static struct fp_store_node info(unsigned node)
{
	struct fp_store_node ret;

	fp_store_node_info(me.store, node, &ret);
	return ret;
}

static _Noreturn void lose_the_node(void)
{
	uint64_t bytes[PAGE_WORDS];

	check(info(0).state == FP_BREAKER_OPEN);
	tend_now();
	check(info(0).state == FP_BREAKER_LOST && !info(0).adopting);
	check(info(0).error == -ESTALE);
	check(!fp_store_slot_up(me.store, me.page[0].slot));
	check(move_page(FP_IO_READ, me.page[0].slot, bytes) == -EHOSTDOWN);
	check(fp_store_reserve(me.store, 1) == -EHOSTDOWN);
	free_all();
	end();
	_exit(0);
}

/*
 * The child goes on without its parents' sessions. It still has the inherited leases, because their
 * memory is mapped. New leases are of its own session, and it does not confuse the two kinds.
 */
static _Noreturn void go_on_without_the_parents(void)
{
	unsigned n_leases = fake_nodes[0].n_leases;

	check(info(0).state == FP_BREAKER_CLOSED);
	tend_now();
	check(info(0).state == FP_BREAKER_CLOSED && !info(0).adopting && info(0).retired_bytes);
	check_all();
	write_all();
	check(info(0).leased_bytes && fake_nodes[0].n_leases > n_leases);
	n_leases = fake_nodes[0].n_leases;
	tend_now(); /* this gives the inherited leases back */
	check(!info(0).retired_bytes && fake_nodes[0].n_leases == n_leases);
	check_all();
	free_all();
	end();
	_exit(0);
}

static void a_session_that_is_not_known_loses_the_node_but_not_what_is_mapped(void **state)
{
	for (unsigned way = 0; way < 2; way++, reset(NULL)) {
		pid_t pid;

		begin(1, way);
		write_all();
		pid = fork_store();
		if (!pid) {
			fake_nodes[0].forgetful = true;
			check(info(0).adopting && info(0).retired_bytes && !info(0).leased_bytes);
			if (way)
				go_on_without_the_parents();
			lose_the_node();
		}
		await(pid, 0);
		fake_nodes[0].forgetful = false;
		check_all();
		end();
		check_nodes_empty();
	}
}

static void adopting_is_tried_again(void **state)
{
	for (unsigned way = 0; way < 2; way++, reset(NULL)) {
		pid_t pid;

		begin(1, way);
		write_all();
		fake_nodes[0].adopt_errors = 3;
		pid = fork_store();
		if (!pid) {
			for (unsigned i = 0; i < 3; i++) {
				tend_now();
				check(is_adopting() && info(0).last_error == -ECONNREFUSED);
				check(way == 0 || page_holds(i));
			}
			check(fake_tend(me.store) > 0); /* the next attempt is not due yet */
			check(is_adopting());
			tend_now();
			check(!is_adopting() && info(0).up && info(0).reconnects == 0);
			check_all();
			end();
			_exit(0);
		}
		await(pid, 0);
		assert_int_equal(fake_nodes[0].n_adoptions, 1);
		check_all();
		end();
		check_nodes_empty();
	}
}

/*
 * Many children soon exec another program. So a child adopts only when it must, or when it has
 * lived for a while.
 */
static void adopting_is_put_off_until_something_wants_it(void **state)
{
	enum { READ, RESERVE, NOTHING };

	for (unsigned want = READ; want <= NOTHING; want++, reset(NULL)) {
		struct fp_page_io io, *p = &io, *done;
		uint64_t bytes[PAGE_WORDS], slot, far_ns = WAIT_NS;
		pid_t pid;

		begin(2, 2); /* the second node's memory is mapped */
		write_all();
		pid = fork_store();
		if (!pid) {
			for (unsigned i = 0; i < 2; i++)
				if (want != NOTHING)
					me.store->nodes[i].adopt_at_ns = fp_clock_ns() + far_ns;
			for (unsigned i = 0; i < 3; i++)
				check(fake_tend(me.store) > 0 || want == NOTHING);
			check(want == NOTHING || (info(0).adopting && info(1).adopting));
			check(want == NOTHING || fake_nodes[0].n_adoptions + fake_nodes[1].n_adoptions == 0);
			for (slot = 0; fp_store_slot_direct(me.store, me.page[slot].slot);)
				slot++;
			if (want == READ) {
				io = (struct fp_page_io){.slot = me.page[slot].slot, .buf = bytes};
				check(fp_lane_read(me.lane, &p, 1) == 0);
				check(fp_store_await_work(
				    me.store, 0, 0)); /* the reconnect thread's sleep must end at once */
				fake_tend(me.store);
				check(!info(0).adopting && info(1).adopting);
				while (fp_lane_poll(me.lane, &done, 1) == 0)
					fake_tend(me.store);
				check(io.status == 0 && bytes[0] == me.page[slot].stamp);
			} else if (want == RESERVE) {
				/* No wait, because this thread itself does the reconnecting. */
				me.store->deadline_ns = 0;
				check(fp_store_reserve(me.store, 1) == -EHOSTDOWN);
				check(fp_store_await_work(me.store, 0, 0));
				fake_tend(me.store);
				check(!is_adopting() && fp_store_reserve(me.store, 1) == 0);
			}
			while (want == NOTHING && is_adopting())
				(void)fp_store_await_work(me.store, 0,
				                          fake_tend(me.store) + FP_NSEC_PER_MSEC);
			check_all();
			_exit(0);
		}
		await(pid, 0);
		check_all();
		end();
		check_nodes_empty();
	}
}

/*
 * Leases that a parent gets after the fork do not belong to the child, so it does not keep them
 * alive.
 */
static void a_lease_of_after_the_fork_is_not_kept(void **state)
{
	for (unsigned way = 0; way < 2; way++, reset(NULL)) {
		struct point forked = point_new(), go = point_new(), done = point_new();
		unsigned n_leases;
		pid_t parent;

		prctl(PR_SET_CHILD_SUBREAPER, 1);
		parent = fork();
		if (!parent) {
			me.is_child = true;
			begin(1, way);
			write_all();
			if (fork_store()) {
				for (unsigned i = 0; i < N_PAGES; i++)
					page_write(i); /* each write goes to a fresh slot */
				check(fp_store_extend(me.store) == 0);
				reach(&forked);
				pause();
			}
			n_leases = me.store->nodes[0].n_leases;
			wait_for(&go);
			adopt();
			check(me.store->nodes[0].n_leases == n_leases);
			reach(&done);
			wait_for(&go);
			check(fake_nodes[0].n_leases == n_leases);
			check_all();
			end();
			_exit(0);
		}
		wait_for(&forked);
		n_leases = fake_nodes[0].n_leases;
		reach(&go);
		wait_for(&done);
		assert_int_equal(fake_nodes[0].n_leases, n_leases); /* the parent still has them */
		kill_and_await(parent);
		fake_grace_over(0);
		assert_true(fake_nodes[0].n_leases < n_leases);
		reach(&go);
		await(-1, 0);
		point_end(&forked);
		point_end(&go);
		point_end(&done);
		check_nodes_empty();
	}
}

static _Atomic bool stop_tending;

static void *tender(void *arg)
{
	while (!stop_tending) {
		uint64_t sleep_ns = fake_tend(me.store);
		fp_store_await_work(me.store, 0, FP_MIN(sleep_ns, 5 * FP_NSEC_PER_MSEC));
	}
	return NULL;
}

static void reserve_with_a_tender(void)
{
	pthread_t thread;

	me.store->deadline_ns = WAIT_NS;
	check(pthread_create(&thread, NULL, tender, NULL) == 0);
	check(fp_store_reserve(me.store, 1) == 0);
	stop_tending = true;
	pthread_join(thread, NULL);
}

/* Once one fault has waited in vain, later faults do not wait. */
static void reserve_without(void)
{
	uint64_t begun_ns = fp_clock_ns();

	me.store->deadline_ns = 30 * FP_NSEC_PER_MSEC;
	check(fp_store_reserve(me.store, 1) == -EHOSTDOWN);
	check(fp_clock_ns() - begun_ns >= 30 * FP_NSEC_PER_MSEC);
	check(!fp_store_adopts(me.store, WAIT_NS) && fp_store_lacks_sessions(me.store));
	me.store->deadline_ns = UINT64_MAX / 2; /* without a shared deadline this would wait without end */
	check(fp_store_reserve(me.store, 1) == -EHOSTDOWN);
	check(fp_store_extend(me.store) == -EHOSTDOWN);
	me.store->deadline_ns = WAIT_NS;
	adopt();
	check(!fp_store_lacks_sessions(me.store) && fp_store_reserve(me.store, 1) == 0);
}

static void what_needs_a_lease_waits_for_the_session(void **state)
{
	for (unsigned way = 0; way < 4; way++, reset(NULL)) {
		pid_t pid;

		begin(1, way / 2);
		write_all();
		fake_nodes[0].adopt_errors = 2;
		pid = fork_store();
		if (!pid) {
			uint64_t slot;

			check(fp_store_slots_total(me.store) == 0);
			way % 2 ? reserve_without() : reserve_with_a_tender();
			check(fp_store_slot_alloc(me.store, 1, &slot) == 1);
			check(!fp_store_slot_is_shared(me.store, slot));
			fp_store_slot_free(me.store, slot);
			check_all();
			_exit(0);
		}
		await(pid, 0);
		check_all();
		end();
		check_nodes_empty();
	}
}

static void a_child_resumes_as_anybody(void **state)
{
	pid_t pid;

	begin(1, 0);
	write_all();
	pid = fork_store();
	if (!pid) {
		adopt();
		for (unsigned i = 0; i < N_PAGES; i += 2)
			page_write(i);
		for (unsigned i = 0; i < 3; i++) {
			fake_break(0, i % 2 ? FAKE_FREEZE : FAKE_CUT);
			me.store->nodes[0].next_heartbeat_ns = 0;
			fake_tend(me.store);
			check_all();
			page_write(i + 1);
		}
		check(info(0).reconnects == 3);
		check_all();
		end();
		_exit(0);
	}
	await(pid, 0);
	assert_int_equal(fake_nodes[0].n_adoptions, 1);
	check_all();
	end();
	check_nodes_empty();
}

/* A child outlives its parent. Meanwhile slots of the parent that nobody needs are freed. */
static void an_inherited_lease_goes_back_when_it_is_empty(void **state)
{
	for (unsigned way = 0; way < 2; way++, reset(NULL)) {
		struct point forked = point_new(), go = point_new(), done = point_new();
		unsigned n_leases;
		pid_t parent;

		prctl(PR_SET_CHILD_SUBREAPER, 1);
		parent = fork();
		if (!parent) {
			me.is_child = true;
			begin(1, way);
			write_all();
			if (fork_store()) {
				reach(&forked);
				pause();
			}
			adopt();
			reach(&done);
			wait_for(&go);
			for (unsigned i = 0; i < N_PAGES; i++)
				page_write(i);
			fake_tend(me.store);
			check(info(0).retired_bytes == 0);
			fake_tend(me.store);
			check_all();
			reach(&done);
			wait_for(&go);
			check_all();
			end();
			_exit(0);
		}
		wait_for(&forked);
		n_leases = fake_nodes[0].n_leases;
		wait_for(&done);
		kill_and_await(parent);
		fake_grace_over(0);
		assert_int_equal(fake_nodes[0].n_leases, n_leases);
		reach(&go);
		wait_for(&done);
		assert_int_equal(fake_nodes[0].n_leases, n_leases); /* now only the child has them */
		reach(&go);
		await(-1, 0);
		point_end(&forked);
		point_end(&go);
		point_end(&done);
		check_nodes_empty();
	}
}

/*
 * A child forks before it has adopted. The grandchild adopts what the child itself would have
 * adopted.
 */
static void a_grandchild_adopts_from_who_has_a_session(void **state)
{
	struct point go = point_new();
	pid_t pid;

	begin(1, 0);
	write_all();
	pid = fork_store();
	if (!pid) {
		pid_t grandchild = fork_store();

		if (!grandchild) {
			wait_for(&go);
			adopt();
			check_all();
			write_all();
			check_all();
			_exit(0);
		}
		await(grandchild, 0);
		check(is_adopting());
		adopt();
		check_all();
		_exit(0);
	}
	fake_break(0, FAKE_CUT);
	check(page_holds(0)); /* the parent has resumed, so its old identity is invalid */
	reach(&go);
	await(pid, 0);
	assert_int_equal(fake_nodes[0].n_adoptions, 2);
	point_end(&go);
	check_all();
	end();
	check_nodes_empty();
}

/*
 * A child ends before its own child has adopted. So the child does not end its session at the node,
 * and its leases last until the grace is over.
 */
static void who_ends_before_its_child_says_nothing(void **state)
{
	struct point done = point_new(), go = point_new();
	pid_t pid;

	begin(1, 0);
	write_all();
	pid = fork_store();
	if (!pid) {
		adopt();
		reach(&done);
		wait_for(&go);
		check_all();
		end();
		_exit(0);
	}
	wait_for(&done);
	end();
	assert_int_equal(fake_n_standings(0), 2);
	fake_grace_over(0);
	assert_int_equal(fake_n_standings(0), 1);
	reach(&go);
	await(pid, 0);
	point_end(&done);
	point_end(&go);
	check_nodes_empty();
}

/* A child keeps an empty lease while its own child may still have to adopt it. */
static void a_lease_is_kept_for_the_grandchild(void **state)
{
	for (unsigned way = 0; way < 2; way++, reset(NULL)) {
		pid_t pid;

		begin(1, way);
		write_all();
		pid = fork_store();
		if (!pid) {
			struct point go = point_new();
			pid_t grandchild;

			adopt();
			grandchild = fork_store();
			if (!grandchild) {
				wait_for(&go);
				adopt();
				check_all();
				end();
				_exit(0);
			}
			free_all();
			fake_tend(me.store);
			check(info(0).retired_bytes > 0);
			reach(&go);
			await(grandchild, 0);
			fp_store_sweep(me.store);
			fake_tend(me.store);
			check(info(0).retired_bytes == 0);
			end();
			_exit(0);
		}
		await(pid, 0);
		check_all();
		end();
		check_nodes_empty();
	}
}

/* ---- the shared identity ---- */

static struct fp_session_identity identity_of(uint64_t n)
{
	struct fp_session_identity identity = {.id = n, .grace_ns = ~n};

	memset(identity.token, (int)(n % 251), sizeof(identity.token));
	return identity;
}

static bool is_whole(const struct fp_session_identity *identity)
{
	struct fp_session_identity whole = identity_of(identity->id);

	return identity->grace_ns == whole.grace_ns &&
	       memcmp(identity->token, whole.token, sizeof(whole.token)) == 0;
}

/*
 * The writer is killed between any two of its stores. A reader never sees a mix of two identities.
 */
static void an_identity_is_never_torn(void **state)
{
	uint64_t rng = test_seed(__func__), last = 0;
	struct fp_session_identity identity;
	struct fp_shared_slots *map;

	assert_int_equal(fp_shared_slots_new(1, &map), 0);
	assert_false(fp_shared_slots_identity(map, 3, &identity));
	for (unsigned round = 0; round < 40; round++) {
		uint64_t span_ns = FP_NSEC_PER_MSEC + test_random(&rng) % 1000000;
		uint64_t before = last,
		         until_ns = 0; /* set with the writer's first identity: it may start late */
		pid_t pid = fork();

		if (pid == 0) {
			for (uint64_t n = last;;) {
				identity = identity_of(++n);
				fp_shared_slots_set_identity(map, 3, &identity);
			}
		}
		while (until_ns == 0 || fp_clock_ns() < until_ns) {
			if (fp_shared_slots_identity(map, 3, &identity)) {
				assert_true(is_whole(&identity));
				assert_true(identity.id >= last);
				last = identity.id;
			}
			if (until_ns == 0 && last > before)
				until_ns = fp_clock_ns() + span_ns;
			else if (until_ns == 0)
				sched_yield();
		}
		kill_and_await(pid);
		if (fp_shared_slots_identity(map, 3, &identity))
			last = identity.id;
		assert_true(last == 0 || is_whole(&identity));
	}
	assert_true(last > 0);
	fp_shared_slots_free(map);
}

/* ---- a session of this process ends ---- */

static void session_ends(void)
{
	struct fp_node *node = &me.store->nodes[0];

	pthread_mutex_lock(&node->control);
	fp_adoption_begin(me.store, node, -ECONNRESET);
	pthread_mutex_unlock(&node->control);
}

/*
 * A thread that adds leases may wait for the reconnect thread. So the reconnect thread must not
 * wait for that thread, and not for itself either.
 */
static void the_tender_waits_for_nobody_who_waits_for_it(void **state)
{
	uint64_t begun_ns = fp_clock_ns();

	begin(1, 1);
	write_all();
	me.store->deadline_ns = WAIT_NS;
	session_ends();
	adopt();
	pthread_mutex_lock(&me.store->reserve_lock);
	check(fake_tend(me.store) <= 50 * FP_NSEC_PER_MSEC);
	pthread_mutex_unlock(&me.store->reserve_lock);
	session_ends();
	check(fp_leases_retire(me.store, &me.store->nodes[0]));
	check(fp_clock_ns() - begun_ns < WAIT_NS / 2);
	check(!info(0).retired_bytes);
	adopt();
	fake_tend(me.store);
	check(info(0).retired_bytes);
	end();
	check_nodes_empty();
}

static void each_session_that_ends_is_waited_for(void **state)
{
	begin(1, 1);
	atomic_store(&me.store->adoption_until_ns, 1); /* a late request of an earlier outage left this */
	session_ends();
	check(fp_store_adopts(me.store, FP_NSEC_PER_MSEC));
	adopt();
	check(!fp_store_lacks_sessions(me.store));
	end();
	check_nodes_empty();
}

static void no_answer_takes_away_what_is_mapped(void **state)
{
	begin(1, 1);
	write_all();
	fake_nodes[0].closed_ways = ~0u;
	fake_nodes[0].closed_error = -ESTALE;
	session_ends();
	tend_now();
	check(info(0).adopting && info(0).state == FP_BREAKER_CLOSED);
	check_all();
	fake_nodes[0].closed_ways = 0;
	adopt();
	check(info(0).state == FP_BREAKER_CLOSED);
	end();
	check_nodes_empty();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(a_session_that_is_not_known_loses_the_node_but_not_what_is_mapped, reset),
	    cmocka_unit_test_setup(adopting_is_tried_again, reset),
	    cmocka_unit_test_setup(adopting_is_put_off_until_something_wants_it, reset),
	    cmocka_unit_test_setup(a_lease_of_after_the_fork_is_not_kept, reset),
	    cmocka_unit_test_setup(what_needs_a_lease_waits_for_the_session, reset),
	    cmocka_unit_test_setup(a_child_resumes_as_anybody, reset),
	    cmocka_unit_test_setup(an_inherited_lease_goes_back_when_it_is_empty, reset),
	    cmocka_unit_test_setup(a_grandchild_adopts_from_who_has_a_session, reset),
	    cmocka_unit_test_setup(who_ends_before_its_child_says_nothing, reset),
	    cmocka_unit_test_setup(a_lease_is_kept_for_the_grandchild, reset),
	    cmocka_unit_test_setup(an_identity_is_never_torn, reset),
	    cmocka_unit_test_setup(the_tender_waits_for_nobody_who_waits_for_it, reset),
	    cmocka_unit_test_setup(each_session_that_ends_is_waited_for, reset),
	    cmocka_unit_test_setup(no_answer_takes_away_what_is_mapped, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
