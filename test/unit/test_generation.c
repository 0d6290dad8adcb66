/*
 * Forks that share slots, over fake nodes and with real processes. Each process sees the bytes as
 * of its fork, whichever process writes, frees, ends or is killed. No shared slot is written or
 * handed out. In the end all slots are free again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "cleanup.h"
#include "forkstore.h"

/* Runs a test twice: once the pages are read by requests, once by copies from mapped leases. */
#define EACH_WAY(way) for (unsigned way = 0; way < 2; way++, reset(NULL))

/* ---- which process frees slots first ---- */

static void the_child_sees_the_fork_and_the_parent_goes_on(void **state)
{
	EACH_WAY(way)
	{
		struct point written = point_new(), checked = point_new();
		pid_t pid;

		begin(1, way);
		write_all();
		pid = fork_store();
		if (!pid) {
			wait_for(&written);
			check(n_shared() == N_PAGES);
			check(fp_store_slots_used(me.store) == N_PAGES);
			check_all();
			write_all();
			check_all();
			check(n_shared() == 0);
			check(fp_store_slots_used(me.store) == N_PAGES);
			reach(&checked);
			pause();
		}
		assert_int_equal(n_shared(), N_PAGES);
		write_all();
		assert_int_equal(n_shared(), 0);
		check_all();
		reach(&written);
		wait_for(&checked);
		check_all();
		assert_int_equal(used_after_sweep(), N_PAGES); /* the child lives, but has freed its slots */
		kill_and_await(pid);
		assert_int_equal(used_after_sweep(), N_PAGES);
		point_end(&written);
		point_end(&checked);
		end();
		check_nodes_empty();
	}
}

static void a_slot_is_free_when_both_have_left_it(void **state)
{
	EACH_WAY(way)
	{
		struct point go = point_new(), done = point_new();
		pid_t pid;

		begin(1, way);
		write_all();
		pid = fork_store();
		if (!pid) {
			for (unsigned i = 0; i < 20; i++)
				page_free(i); /* the first part needs no session */
			reach(&done);
			wait_for(&go);
			for (unsigned i = 20; i < 40; i++)
				page_free(i); /* the second part */
			reach(&done);
			wait_for(&go);
			check_all();
			_exit(0);
		}
		wait_for(&done);
		assert_int_equal(used_after_sweep(), N_PAGES);
		for (unsigned i = 0; i < 40; i++)
			page_free(i);
		assert_int_equal(used_after_sweep(), N_PAGES - 20);
		reach(&go);
		wait_for(&done);
		assert_int_equal(used_after_sweep(), N_PAGES - 40);
		for (unsigned i = 40; i < 60; i++)
			page_free(i); /* the child ends without freeing these */
		assert_int_equal(used_after_sweep(), N_PAGES - 40);
		reach(&go);
		await(pid, 0);
		assert_int_equal(used_after_sweep(), N_PAGES - 60);
		assert_int_equal(n_shared(), 0);
		point_end(&go);
		point_end(&done);
		end();
		check_nodes_empty();
	}
}

static void a_killed_child_holds_nothing(void **state)
{
	EACH_WAY(way)
	{
		unsigned fds;
		pid_t pid;

		begin(1, way);
		write_all();
		fds = n_fds();
		for (unsigned round = 0; round < 3; round++) {
			pid = fork_store();
			if (!pid) {
				check_all();
				pause();
			}
			for (unsigned i = 0; i < N_PAGES; i += 2)
				page_write(i);
			kill_and_await(pid);
			assert_int_equal(used_after_sweep(), N_PAGES);
			assert_int_equal(n_shared(), 0);
			assert_int_equal(n_fds(), fds);
		}
		check_all();
		end();
		check_nodes_empty();
	}
}

static void full_stores_take_what_a_dead_child_held(void **state)
{
	uint64_t slots[64];
	unsigned n;
	pid_t pid;

	begin(1, 1);
	write_all();
	while (fp_store_slot_alloc(me.store, 64, slots) > 0)
		;
	pid = fork_store();
	if (!pid)
		pause();
	for (unsigned i = 0; i < 30; i++)
		page_free(i);
	assert_int_equal(fp_store_slot_alloc(me.store, 64, slots), 0);
	kill_and_await(pid);
	n = fp_store_slot_alloc(me.store, 64, slots); /* the allocation sweeps */
	assert_int_equal(n, 30);
	for (unsigned i = 0; i < n; i++)
		check_unheld(slots[i]);
	end();
	check_nodes_empty();
}

static void a_fork_that_fails_leaves_nothing(void **state)
{
	unsigned fds;

	begin(1, 0);
	write_all();
	fds = n_fds();
	assert_int_equal(fp_store_fork_prepare(me.store), 0);
	assert_int_equal(n_shared(), N_PAGES);
	fp_store_fork_parent(me.store, false);
	assert_int_equal(n_shared(), 0);
	assert_int_equal(n_fds(), fds);
	assert_int_equal(fp_store_fork_prepare(me.store), 0);
	fp_store_fork_parent(me.store, true); /* acts as if a child had been forked */
	page_write(0);
	assert_int_equal(used_after_sweep(), N_PAGES);
	assert_int_equal(n_shared(), 0);
	assert_int_equal(n_fds(), fds);
	end();
	check_nodes_empty();
}

static void without_descriptors_the_child_is_refused(void **state)
{
	struct rlimit limit, none;
	pid_t pid;

	begin(1, 0);
	write_all();
	getrlimit(RLIMIT_NOFILE, &limit);
	none = (struct rlimit){0, limit.rlim_max};
	setrlimit(RLIMIT_NOFILE, &none);
	assert_int_equal(fp_store_fork_prepare(me.store), -EMFILE);
	setrlimit(RLIMIT_NOFILE, &limit);
	assert_int_equal(n_shared(), 0);
	pid = fork();
	if (!pid) {
		me.is_child = true;
		fp_lane_close(me.lane);
		check(fp_store_fork_child(me.store, NULL) == -EMFILE);
		fp_store_close(me.store);
		_exit(0);
	}
	fp_store_fork_parent(me.store, true);
	await(pid, 0);
	check_all();
	write_all();
	end();
	check_nodes_empty();
}

static void what_cannot_be_adopted_is_refused(void **state)
{
	fake_nodes[1].resumable = false;
	begin(2, 2);
	write_all();
	assert_int_equal(fp_store_fork_prepare(me.store), -EOPNOTSUPP);
	fp_store_fork_parent(me.store, true);
	assert_int_equal(n_shared(), 0);
	check_all();
	end();
	check_nodes_empty();
}

/* ---- more than two processes ---- */

static void each_generation_sees_its_own_fork(void **state)
{
	EACH_WAY(way)
	{
		pid_t pids[4];
		struct point go = point_new();

		begin(2, way * 3);
		write_all();
		for (unsigned k = 0; k < FP_ARRAY_LEN(pids); k++) {
			pids[k] = fork_store();
			if (!pids[k]) {
				wait_for(&go);
				check_all();
				for (unsigned i = k; i < N_PAGES; i += 3)
					page_write(i);
				check_all();
				_exit(0);
			}
			for (unsigned i = 0; i < N_PAGES; i += k + 1)
				page_write(i);
			for (unsigned i = k; i < N_PAGES; i += 11)
				page_free(i);
			fp_store_sweep(me.store);
		}
		free_all();
		kill_and_await(pids[1]);
		fp_store_sweep(me.store);
		write_all();
		for (unsigned k = 0; k < FP_ARRAY_LEN(pids) - 1; k++)
			reach(&go);
		await(pids[3], 0);
		fp_store_sweep(me.store);
		write_all();
		await(pids[0], 0);
		await(pids[2], 0);
		check_all();
		assert_int_equal(used_after_sweep(), N_PAGES);
		assert_int_equal(me.store->gens.n_living, 0);
		point_end(&go);
		end();
		check_nodes_empty();
	}
}

static void a_grandchild_keeps_what_its_parent_left(void **state)
{
	EACH_WAY(way)
	{
		struct point forked = point_new(), go = point_new(), done = point_new();
		pid_t pid;

		begin(1, way);
		write_all();
		pid = fork_store();
		if (!pid) {
			adopt();
			for (unsigned i = 0; i < 50; i++)
				page_write(i);
			if (!fork_store()) {
				reach(&forked);
				wait_for(&go);
				check_all();
				for (unsigned i = 0; i < N_PAGES; i += 2)
					page_write(i);
				check_all();
				reach(&done);
				wait_for(&go);
				_exit(0);
			}
			_exit(0);
		}
		wait_for(&forked);
		await(pid, 0); /* its own child lives on */
		free_all();
		assert_true(used_after_sweep() >= N_PAGES - 50);
		write_all();
		reach(&go);
		wait_for(&done);
		check_all();
		reach(&go);
		for (uint64_t until_ns = fp_clock_ns() + WAIT_NS; used_after_sweep() != N_PAGES;)
			assert_true(fp_clock_ns() < until_ns); /* not a child of ours, so wait by polling */
		assert_int_equal(n_shared(), 0);
		point_end(&forked);
		point_end(&go);
		point_end(&done);
		end();
		check_nodes_empty();
	}
}

/*
 * Children of a child may read slots that the child has freed. These slots are free again only when
 * the child and its children have ended.
 */
static void a_child_that_forked_lets_go_in_the_end(void **state)
{
	EACH_WAY(way)
	{
		struct point go = point_new(), done = point_new();
		pid_t pid;

		begin(1, way);
		write_all();
		pid = fork_store();
		if (!pid) {
			pid_t grandchild = fork_store();

			if (!grandchild) {
				wait_for(&go);
				check_all();
				_exit(0);
			}
			for (unsigned i = 0; i < 100; i++)
				page_free(i);
			reach(&done);
			await(grandchild, 0);
			fp_store_sweep(me.store);
			page_free(100);
			reach(&done);
			wait_for(&go);
			check_all();
			_exit(0);
		}
		wait_for(&done);
		free_all();
		assert_int_equal(used_after_sweep(), N_PAGES);
		reach(&go);
		wait_for(&done);
		assert_int_equal(used_after_sweep(), N_PAGES);
		reach(&go);
		await(pid, 0);
		assert_int_equal(used_after_sweep(), 0);
		point_end(&go);
		point_end(&done);
		end();
		check_nodes_empty();
	}
}

/*
 * The parent frees slots that an earlier child still uses, and forks again. The later child does
 * not have these slots, so it does not keep them in use.
 */
static void a_later_child_keeps_no_slot_of_an_earlier_child(void **state)
{
	pid_t first, second;

	begin(1, 1);
	write_all();
	first = fork_store();
	if (!first)
		pause();
	for (unsigned i = 0; i < 30; i++)
		page_free(i);
	second = fork_store();
	if (!second) {
		check(fp_store_slots_used(me.store) == N_PAGES - 30);
		check_all();
		pause();
	}
	assert_int_equal(used_after_sweep(), N_PAGES);
	kill_and_await(first);
	assert_int_equal(used_after_sweep(), N_PAGES - 30);
	assert_int_equal(n_shared(), N_PAGES - 30);
	kill_and_await(second);
	assert_int_equal(n_shared(), N_PAGES - 30); /* they stay shared until a sweep */
	fp_store_sweep(me.store);
	assert_int_equal(n_shared(), 0);
	end();
	check_nodes_empty();
}

/* ---- sessions ---- */

/* How a parent can end before its child has adopted. */
enum farewell { KILLED, CLOSED, RESUMED_AND_KILLED, CUT_AND_KILLED, N_FAREWELLS };

static void parent_goes(enum farewell how, const struct point *gone)
{
	if (how == CLOSED) {
		end();
		reach(gone);
		_exit(0);
	}
	if (how >= RESUMED_AND_KILLED)
		fake_break(0, FAKE_CUT);
	if (how == RESUMED_AND_KILLED) {
		check(page_holds(0)); /* the lane sees the break, the reconnect thread resumes */
		check(me.store->nodes[0].reconnects == 1);
		reach(gone);
		pause(); /* the session lives until this process is killed */
	}
	reach(gone);
	kill(getpid(), SIGKILL);
}

static void a_child_adopts_though_its_parent_is_gone(void **state)
{
	for (enum farewell how = KILLED; how < N_FAREWELLS; how++) {
		EACH_WAY(way)
		{
			struct point forked = point_new(), go = point_new(), adopted = point_new();
			pid_t parent;

			if (way == 1 && how >= RESUMED_AND_KILLED)
				continue; /* a mapping can't break */
			prctl(PR_SET_CHILD_SUBREAPER, 1);
			parent = fork();
			if (!parent) {
				me.is_child = true;
				begin(1, way);
				write_all();
				if (!fork_store()) {
					wait_for(&go);
					adopt();
					check_all();
					reach(&adopted);
					wait_for(&go);
					check_all();
					write_all();
					check_all();
					_exit(0);
				}
				parent_goes(how, &forked);
			}
			wait_for(&forked);
			if (how == RESUMED_AND_KILLED) {
				reach(&go);
				wait_for(&adopted);
				kill(parent, SIGKILL);
			}
			await(parent, how == CLOSED ? 0 : SIGKILL);
			if (how != RESUMED_AND_KILLED) {
				reach(&go);
				wait_for(&adopted);
			}
			fake_grace_over(0); /* the parent's session ends while nobody needs it */
			reach(&go);
			await(-1, 0);
			point_end(&forked);
			point_end(&go);
			point_end(&adopted);
			check_nodes_empty();
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(the_child_sees_the_fork_and_the_parent_goes_on, reset),
	    cmocka_unit_test_setup(a_slot_is_free_when_both_have_left_it, reset),
	    cmocka_unit_test_setup(a_killed_child_holds_nothing, reset),
	    cmocka_unit_test_setup(full_stores_take_what_a_dead_child_held, reset),
	    cmocka_unit_test_setup(a_fork_that_fails_leaves_nothing, reset),
	    cmocka_unit_test_setup(without_descriptors_the_child_is_refused, reset),
	    cmocka_unit_test_setup(what_cannot_be_adopted_is_refused, reset),
	    cmocka_unit_test_setup(each_generation_sees_its_own_fork, reset),
	    cmocka_unit_test_setup(a_grandchild_keeps_what_its_parent_left, reset),
	    cmocka_unit_test_setup(a_child_that_forked_lets_go_in_the_end, reset),
	    cmocka_unit_test_setup(a_later_child_keeps_no_slot_of_an_earlier_child, reset),
	    cmocka_unit_test_setup(a_child_adopts_though_its_parent_is_gone, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
