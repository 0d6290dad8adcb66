/*
 * Families of processes that share slots. Many processes make random steps, and are killed at any
 * moment. Each checks its pages against a model in its own memory, which fork copies. Another test
 * has threads that go on between forks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "cleanup.h"
#include "forkstore.h"

/* ---- random lives ---- */

#define MAX_CHILDREN 3
#define MAX_DEPTH    3
#define STEPS        200

static struct {
	uint64_t rng;
	pid_t child[MAX_CHILDREN]; /* 0: none */
	unsigned n_children, depth;
} life;

/* Counters that all processes share. */
static struct {
	_Atomic unsigned n_forks, n_kills, n_ends, n_steps;
} * census;

static unsigned pick(unsigned n)
{
	return (unsigned)(test_random(&life.rng) % n);
}

static void live(void);

/*
 * Brings the nodes up before a fork. A program, too, forks only when no node is cut off: its
 * reconnect thread waits for that. The child has a copy of its parent's connection. So until the
 * child has adopted, its parent must not resume the session and then end.
 */
static void settle_nodes(void)
{
	for (unsigned i = 0; i < me.store->n_nodes; i++) {
		struct fp_node *node = &me.store->nodes[i];

		node->next_heartbeat_ns = 0;
		for (unsigned k = 0;
		     node->resumable && !fp_node_is_adopting(node) && (k == 0 || !fp_node_up(node)); k++)
			tend_now();
	}
}

static void bear(void)
{
	uint64_t seed = test_random(&life.rng);
	unsigned k = 0;
	pid_t pid;

	while (k < MAX_CHILDREN && life.child[k])
		k++;
	if (k == MAX_CHILDREN || life.depth == MAX_DEPTH)
		return;
	settle_nodes();
	pid = fork_store();
	if (!pid) {
		life.rng = seed;
		life.depth++;
		memset(life.child, 0, sizeof(life.child));
		if (pick(2)) /* otherwise the child's first request waits for the adoption, or fails */
			adopt();
		live();
	}
	life.child[k] = pid;
	census->n_forks++;
}

static void fork_in_vain(void)
{
	check(fp_store_fork_prepare(me.store) == 0);
	fp_store_fork_parent(me.store, pick(2));
}

/* Checks how a child ended: by itself and without a failure, or because we killed it. */
static void bury(unsigned k, bool kill_it)
{
	int status;

	if (!life.child[k])
		return;
	if (kill_it)
		kill(life.child[k], SIGKILL);
	if (waitpid(life.child[k], &status, kill_it ? 0 : WNOHANG) <= 0)
		return;
	check(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
	life.child[k] = 0;
	census->n_kills += kill_it;
}

static void disturb(void)
{
	unsigned node = pick(me.store->n_nodes);

	if (!me.store->nodes[node].load_store && !fp_generations_any_living(me.store))
		fake_break(node, FAKE_CUT);
}

static void step(void)
{
	unsigned i = pick(N_PAGES), dice = pick(100);

	census->n_steps++;
	if (dice < 40)
		page_write(i);
	else if (dice < 55)
		page_free(i);
	else if (dice < 75)
		check(!me.page[i].slot || page_holds(i));
	else if (dice < 80)
		bear();
	else if (dice < 83)
		bury(pick(MAX_CHILDREN), true);
	else if (dice < 88)
		bury(pick(MAX_CHILDREN), false);
	else if (dice < 93)
		fp_store_sweep(me.store);
	else if (dice < 97)
		tend_now();
	else if (dice < 98)
		fork_in_vain();
	else
		disturb();
}

/* Makes some random steps, then ends. Never returns. */
static void live(void)
{
	unsigned n = pick(STEPS);

	for (unsigned k = 0; k < n; k++)
		step();
	check_all();
	census->n_ends++;
	switch (pick(3)) {
	case 0:
		_exit(0);
	case 1:
		free_all();
		end();
		_exit(0);
	default:
		kill(getpid(), SIGKILL);
	}
}

/* The first process of a family ends last, so that it can check that all slots are free again. */
static void found_family(unsigned n_nodes, unsigned load_store)
{
	me.is_child = true;
	begin(n_nodes, load_store);
	write_all();
	for (unsigned k = 0; k < STEPS; k++)
		step();
	check_all();
	for (unsigned k = 0; k < MAX_CHILDREN; k++)
		bury(k, true);
	check(used_after_sweep() >= n_pages());
	if (me.store->gens.n_living == 0) { /* no descendant lives */
		check(used_after_sweep() == n_pages());
		check(n_shared() == 0);
	}
	check_all();
	free_all();
	end();
	_exit(0);
}

/* Waits for all descendants, also those whose parents have ended. */
static void await_all(void)
{
	int status;

	while (wait(&status) > 0)
		assert_true(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
}

static void random_families_lose_no_byte_and_no_slot(void **state)
{
	const char *given = getenv("FP_TEST_SECONDS");
	uint64_t seconds = given ? strtoull(given, NULL, 0) : 0;
	uint64_t until_ns = fp_clock_ns() + (seconds ? seconds * FP_NSEC_PER_SEC : 300 * FP_NSEC_PER_MSEC);
	static const unsigned ways[][2] = {{1, 0}, {1, 1}, {2, 0}, {3, 7}, {2, 2}};
	uint64_t seed = test_seed(__func__);

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	census = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(census != MAP_FAILED);
	for (unsigned round = 0; fp_clock_ns() < until_ns || round < FP_ARRAY_LEN(ways); round++) {
		const unsigned *way = ways[round % FP_ARRAY_LEN(ways)];

		life.rng = seed + round;
		if (fork() == 0)
			found_family(way[0], way[1]);
		await_all();
		check_nodes_empty();
		reset(NULL);
	}
	printf("%u steps, %u forks, %u kills, %u other ends\n", census->n_steps, census->n_forks,
	       census->n_kills, census->n_ends);
	munmap(census, 4096);
}

/* ---- threads ---- */

#define CROWD       3
#define CROWD_SET   40
#define CROWD_FORKS 8
#define CROWD_NS    (200 * FP_NSEC_PER_MSEC)

static struct {
	/* Taken shared to take, free or write slots, and exclusively for a fork. */
	pthread_rwlock_t running;
	_Atomic bool stop;
	_Atomic unsigned n_bad;
	uint64_t seed;
} crowd;

static void *sweeper(void *arg)
{
	while (!crowd.stop) {
		fp_store_sweep(me.store);
		usleep(200);
	}
	return NULL;
}

/*
 * Each thread has slots of its own, and writes its signature into them. No signature may be
 * overwritten.
 */
static void *member(void *arg)
{
	uint64_t rng = crowd.seed + (uintptr_t)arg, slots[CROWD_SET] = {0}, stamps[CROWD_SET];

	while (!crowd.stop) {
		unsigned i = (unsigned)(test_random(&rng) % CROWD_SET);
		uint64_t old = slots[i], *bytes;

		pthread_rwlock_rdlock(&crowd.running);
		if (old) {
			bytes = fp_store_slot_direct(me.store, old);
			crowd.n_bad += *bytes != stamps[i];
		}
		if (!old || fp_store_slot_is_shared(me.store, old) || test_random(&rng) % 4 == 0) {
			if (old)
				fp_store_slot_free(me.store, old);
			slots[i] = 0;
			if (fp_store_slot_alloc(me.store, 1, &slots[i]) != 1)
				(void)fp_store_extend(me.store);
		}
		if (slots[i]) {
			crowd.n_bad += fp_store_slot_is_shared(me.store, slots[i]);
			stamps[i] = test_random(&rng);
			bytes = fp_store_slot_direct(me.store, slots[i]);
			*bytes = stamps[i];
		}
		pthread_rwlock_unlock(&crowd.running);
	}
	for (unsigned i = 0; i < CROWD_SET; i++)
		if (slots[i])
			fp_store_slot_free(me.store, slots[i]);
	return NULL;
}

/* The child checks for a while that its inherited slots stay the same. It frees them one by one. */
static void watch(uint64_t seed)
{
	unsigned n_pages = 0;
	uint64_t slots[CROWD * CROWD_SET], bytes[CROWD * CROWD_SET];

	for (uint32_t l = 1; l <= me.store->gens.n_inherited; l++) {
		const struct fp_slots *lease = me.store->leases[l];

		for (unsigned p = 0; p < lease->n_pages; p++) {
			uint64_t slot = lease->first_slot + p;

			if (!(lease->word[p / 64] >> (p % 64) & 1))
				continue;
			check(n_pages < FP_ARRAY_LEN(slots));
			slots[n_pages] = slot;
			bytes[n_pages++] = *(uint64_t *)fp_store_slot_direct(me.store, slot);
		}
	}
	while (n_pages) {
		unsigned i = (unsigned)(test_random(&seed) % n_pages);

		check(*(uint64_t *)fp_store_slot_direct(me.store, slots[i]) == bytes[i]);
		if (test_random(&seed) % 8 == 0) {
			fp_store_slot_free(me.store, slots[i]);
			slots[i] = slots[--n_pages];
			bytes[i] = bytes[n_pages];
		}
		usleep(50);
	}
	_exit(0);
}

static void threads_go_on_between_forks(void **state)
{
	uint64_t until_ns = fp_clock_ns() + CROWD_NS;
	pthread_t threads[CROWD + 1];
	pthread_rwlockattr_t attr;
	unsigned n_forks = 0;

	crowd.seed = test_seed(__func__);
	crowd.stop = false;
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&crowd.running, &attr);
	pthread_rwlockattr_destroy(&attr);
	begin(2, 3);
	assert_int_equal(fp_store_reserve(me.store, CROWD * CROWD_SET), 0);
	for (unsigned i = 0; i < CROWD; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, member, (void *)(uintptr_t)i), 0);
	assert_int_equal(pthread_create(&threads[CROWD], NULL, sweeper, NULL), 0);
	while (fp_clock_ns() < until_ns || n_forks < CROWD_FORKS) {
		pid_t pid;

		pthread_rwlock_wrlock(&crowd.running);
		pid = fork_store();
		if (!pid)
			watch(crowd.seed + n_forks);
		pthread_rwlock_unlock(&crowd.running);
		usleep(2000);
		if (n_forks++ % 3 == 0)
			kill(pid, SIGKILL);
		if (n_forks % 4 == 0)
			await_all();
	}
	await_all();
	crowd.stop = true;
	for (unsigned i = 0; i < CROWD + 1; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(crowd.n_bad, 0);
	assert_int_equal(used_after_sweep(), 0);
	fp_store_unreserve(me.store, CROWD * CROWD_SET);
	end();
	check_nodes_empty();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(random_families_lose_no_byte_and_no_slot, reset),
	    cmocka_unit_test_setup(threads_go_on_between_forks, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
