/*
 * Nodes that are full. Without overcommit, a mapping larger than their free memory is refused. With
 * overcommit, a page that finds no slot raises SIGBUS within the deadline, and no other page is
 * harmed. If a forked child writes inherited pages, these find no slot either, and stay local.
 * Room: test/fault.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent_priv.h"
#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "testrng.h"
#include "trial.h"

#define SKIP        77
#define MIB         (1u << 20)
#define POOL_BYTES  (8u * MIB)
#define POOL_PAGES  (POOL_BYTES / FP_PAGE_SIZE)
#define LOCAL_PAGES 64u
#define DEADLINE_NS FP_NSEC_PER_SEC
#define LATE_NS     (DEADLINE_NS + FP_NSEC_PER_SEC)
#define TIMEOUT_S   40
#define RW          (PROT_READ | PROT_WRITE)

/*
 * The bytes that a child inherits: many times the local memory, and more pages than the eviction
 * queue can hold at first.
 */
#define INHERITED    (44u * MIB)
#define FAMILY_BYTES (48u * MIB) /* not enough for parent and child */

static struct test_daemon shm, tcp, family;

static struct fp_agent *start(const struct test_daemon *daemon, bool overcommit)
{
	const char *urls[] = {daemon->url};
	const struct fp_agent_options options = {.urls = urls,
	                                         .n_urls = 1,
	                                         .local_bytes = LOCAL_PAGES * FP_PAGE_SIZE,
	                                         .deadline_ns = DEADLINE_NS,
	                                         .overcommit = overcommit};

	trial_catch_signals();
	return trial_agent(&options);
}

/* ---- without overcommit ---- */

static int body_refused(void *arg)
{
	struct fp_agent *agent = start(arg, false);
	struct fp_space *space = fp_agent_space(agent);
	void *a, *b;

	trial_check(fp_space_map(space, 2 * POOL_BYTES, 0, RW, 0, &a) == -ENOMEM,
	            "more than the pool was mapped");
	trial_check(fp_space_map(space, 5 * MIB, 0, RW, 0, &a) == 0, "5 MiB were refused");
	trial_check(fp_space_map(space, 4 * MIB, 0, RW, 0, &b) == -ENOMEM, "5 + 4 MiB were mapped");
	memset(a, 'a', 5 * MIB);
	trial_check(fp_space_remap_to(space, &(struct fp_remap){a, 5 * MIB, 9 * MIB, FP_REMAP_MAYMOVE, NULL},
	                              &a) == -ENOMEM,
	            "it grew to 9 MiB");
	trial_check(fp_space_remap_to(space, &(struct fp_remap){a, 5 * MIB, 7 * MIB, FP_REMAP_MAYMOVE, NULL},
	                              &a) == 0,
	            "it did not grow to 7 MiB");
	memset((char *)a + 5 * MIB, 'a', 2 * MIB);
	for (size_t i = 0; i < 7 * MIB; i++)
		trial_check(((char *)a)[i] == 'a', "byte %zu is %d", i, ((char *)a)[i]);
	trial_check(fp_space_unmap(space, a, 4 * MIB) == 0, "unmap");
	trial_check(fp_space_map(space, 5 * MIB, 0, RW, 0, &b) == 0,
	            "what was unmapped can't be mapped again");
	memset(b, 'b', 5 * MIB);
	trial_check(fp_space_map(space, 4 * MIB, 0, RW, 0, &a) == -ENOMEM, "8 + 4 MiB were mapped");
	trial_check(fp_space_map(space, 64 * MIB, 0, RW, FP_MAP_LAZY, &a) == 0, "MAP_NORESERVE was refused");
	fp_agent_stop(agent);
	return 0;
}

/* ---- with overcommit ---- */

static void write_page(char *far, uint32_t page)
{
	uint64_t rng = page + 1;

	for (size_t at = 0; at < FP_PAGE_SIZE; at += sizeof(uint64_t)) {
		uint64_t word = test_random(&rng);

		memcpy(far + (size_t)page * FP_PAGE_SIZE + at, &word, sizeof(word));
	}
}

static void check_page(const char *far, uint32_t page)
{
	uint64_t rng = page + 1;

	for (size_t at = 0; at < FP_PAGE_SIZE; at += sizeof(uint64_t)) {
		uint64_t word = test_random(&rng);

		trial_check(memcmp(far + (size_t)page * FP_PAGE_SIZE + at, &word, sizeof(word)) == 0,
		            "page %u has a wrong word at %zu", page, at);
	}
}

/* Writes pages until one finds no slot. Returns its number. */
static uint32_t fill_up(char *far, uint32_t n)
{
	for (uint32_t p = 0; p < n; p++) {
		uint64_t ns;
		int signal = trial_write(far + (size_t)p * FP_PAGE_SIZE, 1, &ns);

		trial_check(ns < LATE_NS, "page %u took %d ms", p, (int)(ns / FP_NSEC_PER_MSEC));
		trial_check(signal == 0 || signal == SIGBUS, "signal %d", signal);
		if (signal)
			return p;
		write_page(far, p);
	}
	trial_check(false, "twice the pool found room");
	return n;
}

static int body_overcommitted(void *arg)
{
	struct fp_agent *agent = start(arg, true);
	struct fp_space *space = fp_agent_space(agent);
	uint32_t n;
	void *far;

	trial_check(fp_space_map(space, 2 * POOL_BYTES, 0, RW, 0, &far) == 0, "it was refused");
	n = fill_up(far, 2 * POOL_PAGES);
	trial_check(n >= POOL_PAGES && n <= POOL_PAGES + LOCAL_PAGES, "page %u was the first without room",
	            n);
	for (uint32_t p = 0; p < n; p++)
		check_page(far, p);
	/* After memory was given back, all pages can be used, also the page that failed. */
	trial_check(fp_space_advise(space, (char *)far + POOL_BYTES / 2, POOL_BYTES / 2 + POOL_BYTES,
	                            MADV_DONTNEED) == 0,
	            "discard");
	for (uint32_t p = n; p < n + POOL_PAGES / 4; p++)
		write_page(far, p);
	for (uint32_t p = 0; p < POOL_PAGES / 2; p++)
		check_page(far, p);
	for (uint32_t p = n; p < n + POOL_PAGES / 4; p++)
		check_page(far, p);
	fp_agent_stop(agent);
	return 0;
}

/* ---- a fork ---- */

static void rewrite(char *far, uint32_t first, uint32_t end)
{
	for (uint32_t p = first; p < end; p++) {
		check_page(far, p);
		write_page(far, p);
	}
}

/*
 * No page of the child can leave, and soon it knows that. Then each fault tries two batches before
 * it exceeds the budget. Inline, a fault also tries one ahead of its need, but only once for each
 * millisecond.
 */
static _Noreturn void be_child(struct fp_agent *agent, char *far)
{
	struct fp_statspage *stats = fp_agent_stats(agent);
	uint32_t half = INHERITED / FP_PAGE_SIZE / 2;
	uint64_t faults, tries, ms;

	rewrite(far, 0, half);
	faults = atomic_load(&stats->waits_for_room);
	tries = atomic_load(&stats->evict_refused);
	ms = fp_clock_ns();
	rewrite(far, half, 2 * half);
	faults = atomic_load(&stats->waits_for_room) - faults;
	tries = (atomic_load(&stats->evict_refused) - tries) / fp_budget_batch(&agent->far.budget);
	ms = (fp_clock_ns() - ms) / FP_NSEC_PER_MSEC;
	trial_check(faults > 0 && tries <= 3 * faults + ms, "%d faults in %d ms tried %d batches",
	            (int)faults, (int)ms, (int)tries);
	_exit(0);
}

static int body_forked(void *arg)
{
	struct fp_agent *agent = start(arg, false);
	int status;
	void *far;
	pid_t pid;

	trial_check(fp_space_map(fp_agent_space(agent), INHERITED, 0, RW, 0, &far) == 0, "it was refused");
	for (uint32_t p = 0; p < INHERITED / FP_PAGE_SIZE; p++)
		write_page(far, p);
	fp_agent_fork_quiet(agent);
	fp_agent_fork_prepare(agent);
	pid = fork();
	if (pid == 0) {
		fp_agent_fork_child(agent);
		alarm(TIMEOUT_S / 2);
		be_child(agent, far);
	}
	fp_agent_fork_parent(agent);
	trial_check(waitpid(pid, &status, 0) == pid, "waitpid");
	trial_check(status == 0, "the child's status is %x", status);
	fp_agent_stop(agent);
	return 0;
}

/* ---- tests ---- */

static void test_refused(void **state)
{
	struct trial trial;

	trial_run(body_refused, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	/* one line, whatever is refused after that */
	assert_non_null(
	    strstr(trial.text, "store: a request for 16.0 MiB of far memory was refused (ENOMEM)"));
	assert_ptr_equal(strchr(trial.text, '\n'), trial.text + strlen(trial.text) - 1);
}

static void test_overcommitted(void **state)
{
	struct trial trial;

	trial_run(body_overcommitted, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_non_null(strstr(trial.text, "page 0x"));
	assert_non_null(strstr(trial.text, "full"));
	assert_non_null(strstr(trial.text, "store: no room for pages that leave local memory"));
}

static void test_forked(void **state)
{
	struct trial trial;

	trial_run(body_forked, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    {"refused, shm", test_refused, NULL, NULL, &shm},
	    {"refused, tcp", test_refused, NULL, NULL, &tcp},
	    {"overcommitted, shm", test_overcommitted, NULL, NULL, &shm},
	    {"overcommitted, tcp", test_overcommitted, NULL, NULL, &tcp},
	    {"forked", test_forked, NULL, NULL, &family},
	};
	struct fp_agent_error error;
	int r;

	if (argc < 2)
		return 2;
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	if (fp_agent_check_kernel(&error) < 0) {
		fprintf(stderr, "%s\n", error.text);
		return SKIP;
	}
	if (test_daemon_start(argv[1], "shm", POOL_BYTES, &shm) < 0 ||
	    test_daemon_start(argv[1], "tcp", POOL_BYTES, &tcp) < 0 ||
	    test_daemon_start(argv[1], "shm", FAMILY_BYTES, &family) < 0)
		return 1;
	r = cmocka_run_group_tests_name("poolfull", tests, NULL, NULL);
	test_daemon_stop(&shm);
	test_daemon_stop(&tcp);
	test_daemon_stop(&family);
	return r;
}
