/*
 * Which thread evicts. In fault mode inline over shm, a thread that faults evicts ahead of its
 * need, so that the reclaim thread need not be woken on another CPU. Room: test/integration.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "agent.h"
#include "cleanup.h"
#include "daemon.h"
#include "space.h"

#define SKIP        77
#define LOCAL_BYTES (4u << 20)
#define FAR_BYTES   (16u << 20)
#define PASSES      3u

static struct test_daemon node;

static void *must_map(struct fp_agent *agent)
{
	void *far;

	assert_int_equal(fp_space_map(fp_agent_space(agent), FAR_BYTES, 0, PROT_READ | PROT_WRITE, 0, &far),
	                 0);
	return far;
}

static void test_faulting_thread_evicts(void **state)
{
	const char *urls[] = {node.url};
	const struct fp_agent_options options = {.urls = urls,
	                                         .n_urls = 1,
	                                         .local_bytes = LOCAL_BYTES,
	                                         .fault_mode = FP_FAULT_MODE_INLINE,
	                                         .pins = true};
	struct fp_agent_error error;
	struct fp_agent *agent;
	struct fp_statspage *stats;
	uint64_t all, on_fault;
	volatile uint64_t *far;

	assert_int_equal(fp_agent_start(&options, &agent, &error), 0);
	far = must_map(agent);
	for (uint64_t pass = 1; pass <= PASSES; pass++)
		for (size_t i = 0; i < FAR_BYTES / sizeof(*far); i += FP_PAGE_SIZE / sizeof(*far)) {
			assert_int_equal(far[i], pass == 1 ? 0 : i + pass - 1);
			far[i] = i + pass;
		}
	stats = fp_agent_stats(agent);
	all = atomic_load(&stats->evicted_clean) + atomic_load(&stats->evicted_dirty) +
	      atomic_load(&stats->evicted_zero);
	on_fault = atomic_load(&stats->evicted_on_fault);
	print_message("%ju pages evicted, %ju by threads that serve faults\n", (uintmax_t)all,
	              (uintmax_t)on_fault);
	fp_agent_stop(agent);
	assert_true(all >= (FAR_BYTES - LOCAL_BYTES) / FP_PAGE_SIZE);
	assert_true(on_fault > all / 2);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_faulting_thread_evicts),
	};
	struct fp_agent_error error;
	int r;

	if (argc != 2)
		return 2;
	if (fp_agent_check_kernel(&error) < 0) {
		fprintf(stderr, "%s\n", error.text);
		return SKIP;
	}
	if (test_daemon_start(argv[1], "shm", 2 * (size_t)FAR_BYTES, &node) < 0)
		return 1;
	r = cmocka_run_group_tests_name("evictonfault", tests, NULL, NULL);
	test_daemon_stop(&node);
	return r;
}
