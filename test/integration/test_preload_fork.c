/*
 * Children of fork that share their parent's remote pages. Each process sees its own bytes,
 * whichever of them writes, ends or is killed. The parent and the node keep nothing of a child that
 * ended. Room: test/integration.
 */
#include "preload_fork_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "clock.h"
#include "statsmap.h"
#include "testrng.h"
#include "transport.h"
#include "underpreload.h"

/* ---- the moment of the fork ---- */

#define WRITERS      2
#define WRITER_PAGES 1024u
#define WORDS        512u /* in a page */

/* Writes 1, 2, 3, ... into its pages in turn. */
struct writer {
	uint64_t (*pages)[WORDS];
	_Atomic uint64_t written;
	atomic_bool stop;
	pthread_t thread;
};

static void *write_on(void *arg)
{
	struct writer *w = arg;

	for (uint64_t n = 1; !atomic_load(&w->stop); n++) {
		uint64_t *page = w->pages[n % WRITER_PAGES];

		page[0] = n;
		page[WORDS - 1] = n;
		atomic_store(&w->written, n);
	}
	return NULL;
}

/*
 * Returns the number of the last write, if the pages hold exactly the writes up to that one; else
 * 0.
 */
static uint64_t last_write(const struct writer *w)
{
	uint64_t last = 0;

	for (unsigned i = 0; i < WRITER_PAGES; i++)
		if (w->pages[i][0] > last)
			last = w->pages[i][0];
	for (uint64_t n = last; n > 0 && n + WRITER_PAGES > last; n--) {
		const uint64_t *page = w->pages[n % WRITER_PAGES];

		if (page[0] != n ||
		    (page[WORDS - 1] != n && (n < last || page[WORDS - 1] + WRITER_PAGES != n)))
			return 0;
	}
	return last;
}

static _Noreturn void check_moment(const struct writer *writers, const uint64_t *before)
{
	for (unsigned i = 0; i < WRITERS; i++) {
		uint64_t last = last_write(&writers[i]);

		if (last < before[i] || last < atomic_load(&writers[i].written))
			_exit(2);
		if (last > atomic_load(&writers[i].written) + 1)
			_exit(3);
	}
	_exit(all_filled(filled, 1) ? 0 : 4);
}

static void the_child_sees_the_moment(void **state)
{
	struct writer writers[WRITERS] = {0};
	uint64_t before[WRITERS];

	for (unsigned i = 0; i < WRITERS; i++) {
		writers[i].pages = aligned_alloc(4096, WRITER_PAGES * sizeof(*writers[i].pages));
		pthread_create(&writers[i].thread, NULL, write_on, &writers[i]);
	}
	for (unsigned round = 0; round < 8; round++) {
		pid_t pid;

		for (unsigned i = 0; i < WRITERS; i++)
			while ((before[i] = atomic_load(&writers[i].written)) < (round + 2) * WRITER_PAGES)
				sched_yield();
		pid = fork();
		if (pid == 0)
			check_moment(writers, before);
		assert_int_equal(status_of(pid), 0);
	}
	for (unsigned i = 0; i < WRITERS; i++) {
		atomic_store(&writers[i].stop, true);
		pthread_join(writers[i].thread, NULL);
		assert_int_equal(last_write(&writers[i]), atomic_load(&writers[i].written));
		free(writers[i].pages);
	}
}

/* ---- which process lives longest ---- */

/*
 * A process fills memory, forks and ends. Its child then checks all the memory and reports the
 * result.
 */
static void orphan(bool by_kill, bool twice)
{
	char *own;
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		own = malloc(BIG);
		fill_all(own, 2);
		if (fork() != 0) {
			if (by_kill)
				kill(getpid(), SIGKILL);
			_exit(0);
		}
		if (twice && fork() != 0)
			_exit(0);
		say(ends[1], all_filled(own, 2) && all_filled(filled, 1));
		fill_all(own, 3);
		fill_all(filled, 4);
		say(ends[1], all_filled(own, 3) && all_filled(filled, 4));
		_exit(0);
	}
	close(ends[1]);
	assert_int_equal(status_of(pid), by_kill ? 128 + SIGKILL : 0);
	assert_int_equal(await_word(ends[0]), 'y');
	assert_int_equal(await_word(ends[0]), 'y');
	assert_int_equal(await_word(ends[0]), 0);
	close(ends[0]);
}

static void children_outlive_parents(void **state)
{
	for (int i = 0; i < 4; i++)
		orphan(i & 1, i & 2);
	assert_true(all_filled(filled, 1));
}

static void daemons_run_on(void **state)
{
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		char *own = malloc(BIG);

		fill_all(own, 2);
		if (daemon(0, 0) < 0)
			_exit(1);
		say(ends[1], all_filled(own, 2) && all_filled(filled, 1));
		_exit(0);
	}
	close(ends[1]);
	assert_int_equal(status_of(pid), 0);
	assert_int_equal(await_word(ends[0]), 'y');
	assert_int_equal(await_word(ends[0]), 0);
	close(ends[0]);
}

/* Parent and child write all their pages again and again, at the same time and to the same node. */
static void both_write_on(void **state)
{
	char *common = malloc(BIG);
	pid_t pid;

	fill_all(common, 10);
	pid = fork();
	for (unsigned seed = pid ? 20 : 30, end = seed + 4; seed < end; seed++) {
		if (!all_filled(common, seed == 20 || seed == 30 ? 10 : seed - 1))
			pid ? fail() : _exit(1);
		fill_all(common, seed);
	}
	if (pid == 0)
		_exit(all_filled(common, 33) ? 0 : 2);
	assert_int_equal(status_of(pid), 0);
	assert_true(all_filled(common, 23));
	free(common);
}

/*
 * A family tree: each process has the bytes of its parent, and changes a part of them before it
 * forks.
 */
static int generation(unsigned depth, unsigned id)
{
	int bad = !are_filled(filled, depth, PARTS, 1);
	pid_t pid[2];

	if (depth == 4)
		return bad;
	for (unsigned i = 0; i < 2; i++) {
		fill_parts(filled, depth, depth + 1, 100 + 2 * id + i);
		pid[i] = fork();
		if (pid[i] == 0) {
			bad |= !are_filled(filled, depth, depth + 1, 100 + 2 * id + i);
			_exit(bad | generation(depth + 1, 2 * id + i));
		}
	}
	for (unsigned i = 0; i < 2; i++)
		bad |= status_of(pid[i]);
	return bad | !are_filled(filled, depth, depth + 1, 100 + 2 * id + 1);
}

static void children_fork_again(void **state)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(generation(0, 1));
	assert_int_equal(status_of(pid), 0);
	assert_true(all_filled(filled, 1));
}

/* Children obey the program's advice about fork (madvise). They inherit no locked memory. */
static void advice_for_children(void **state)
{
	size_t len = BIG / PARTS;
	char *kept = mmap(NULL, 3 * len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *wiped = kept + len, *locked = wiped + len;
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	for (unsigned i = 0; i < 3; i++)
		test_fill(kept + i * len, len, 2 + i);
	assert_int_equal(madvise(kept, len, MADV_DONTFORK), 0);
	assert_int_equal(madvise(wiped, len, MADV_WIPEONFORK), 0);
	assert_int_equal(mlock(locked, 4 * 4096), 0);
	pid = fork();
	if (pid == 0) {
		for (size_t i = 0; i < len; i++)
			if (wiped[i])
				_exit(1);
		if (write(ends[1], kept, 1) >= 0 || errno != EFAULT)
			_exit(2);
		test_fill(wiped, len, 7);
		if (!test_is_filled(locked, len, 4) || !all_filled(filled, 1) ||
		    !test_is_filled(wiped, len, 7))
			_exit(3);
		_exit(0);
	}
	assert_int_equal(status_of(pid), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_true(test_is_filled(kept + i * len, len, 2 + i));
	munmap(kept, 3 * len);
	close(ends[0]);
	close(ends[1]);
}

/* ---- what is left at the node ---- */

static uint64_t node_leased_bytes(void)
{
	const struct fp_session_options options = {.deadline_ns = DEADLINE_NS};
	struct fp_session *session;
	struct fp_node_info info;
	struct fp_url url;

	assert_int_equal(fp_url_parse(getenv("FARPAGE_NODES"), &url), 0);
	assert_int_equal(fp_session_open(&url, &options, &session), 0);
	assert_int_equal(fp_session_info(session, &info), 0);
	fp_session_close(session);
	return info.capacity_bytes - info.free_bytes;
}

static void await_at_most(uint64_t (*gauge)(void), uint64_t bytes)
{
	uint64_t until_ns = fp_clock_ns() + DEADLINE_NS;

	while (gauge() > bytes) {
		if (fp_clock_ns() > until_ns)
			fail_msg("still %llu bytes, at most %llu should be left", (unsigned long long)gauge(),
			         (unsigned long long)bytes);
		poll(NULL, 0, 10);
	}
}

static uint64_t remote_bytes(void)
{
	return atomic_load(&stats->remote_bytes);
}

/*
 * Children end in every way, while the parent writes pages that they share. Each written page needs
 * a new slot, so even a leak of a few slots a fork would show.
 */
static void slots_come_back(void **state)
{
	uint64_t mapped = atomic_load(&stats->mapped_bytes), leased = node_leased_bytes();
	uint64_t rng = test_seed("slots_come_back");
	unsigned seed = 1;

	for (unsigned i = 0; i < MANY; i++) {
		pid_t pid = fork();
		int status;

		if (pid == 0) {
			if (test_random(&rng) % 4 == 0)
				fill_parts(filled, 0, PARTS / 4, 5);
			if (test_random(&rng) % 4 == 0 && fork() == 0)
				_exit(are_filled(filled, PARTS / 2, PARTS, seed) ? 0 : 1);
			_exit(i % 8 || are_filled(filled, PARTS / 2, PARTS, seed) ? 0 : 1);
		}
		if (test_random(&rng) % 3 == 0)
			kill(pid, SIGKILL);
		if (i % 8 == 0)
			fill_all(filled, ++seed);
		status = status_of(pid);
		assert_true(status == 0 || status == 128 + SIGKILL);
	}
	assert_true(all_filled(filled, seed));
	fill_all(filled, 1);
	await_at_most(remote_bytes, mapped);
	/* leases added by forks may stay for the next fork */
	await_at_most(node_leased_bytes, leased + 3 * (64ull << 20));
}

static void the_node_gets_it_back(void **state)
{
	uint64_t leased = node_leased_bytes();
	pid_t pid[3];
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	for (unsigned i = 0; i < 3; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			char *own = malloc(BIG);

			fill_all(own, 2);
			say(ends[1], all_filled(own, 2));
			pause();
		}
	}
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(await_word(ends[0]), 'y');
	assert_true(node_leased_bytes() > leased);
	for (unsigned i = 0; i < 3; i++) {
		kill(pid[i], i ? SIGKILL : SIGTERM);
		status_of(pid[i]);
	}
	await_at_most(node_leased_bytes, leased);
	close(ends[0]);
	close(ends[1]);
}

/* Maps memory until the nodes can lend no more. Returns how many mappings that took. */
static unsigned use_up_the_pool(char **ret_maps, size_t *ret_len, unsigned max)
{
	size_t len = (size_t)512 << 20;
	unsigned n = 0;

	while (n < max && len >= 65536) {
		char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED) {
			len /= 2;
			continue;
		}
		ret_maps[n] = p;
		ret_len[n++] = len;
	}
	return n;
}

/* `filled` may be needed twice while a child lives, and there is no room: fork says so at once. */
static void no_room_for_copies(void **state)
{
	char *maps[64], name[] = "true", *args[] = {name, NULL};
	size_t lens[64];
	unsigned n = use_up_the_pool(maps, lens, 64);
	pid_t pid;

	fill_all(filled, 9);
	errno = 0;
	assert_int_equal(fork(), -1);
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(posix_spawnp(&pid, "true", NULL, NULL, args, environ), 0);
	assert_int_equal(status_of(pid), 0);
	while (n--)
		munmap(maps[n], lens[n]);
	pid = fork(); /* the program's own spare slots are room enough */
	if (pid == 0)
		_exit(0);
	assert_int_equal(status_of(pid), 0);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(the_child_sees_the_moment),
	    cmocka_unit_test(children_outlive_parents),
	    cmocka_unit_test(daemons_run_on),
	    cmocka_unit_test(both_write_on),
	    cmocka_unit_test(children_fork_again),
	    cmocka_unit_test(advice_for_children),
	    cmocka_unit_test(slots_come_back),
	    cmocka_unit_test(the_node_gets_it_back),
	    cmocka_unit_test(no_room_for_copies), /* the last: the program keeps the whole pool */
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
