/*
 * Calls of a thread whose stack is far memory, in fault mode inline, where the kernel can't fault
 * on that memory. The agent must make no ioctl while it runs on that stack. The test makes the
 * whole stack leave before each ioctl. No byte of the stack may be lost or wrong. Room: test/fault.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent_priv.h"
#include "daemon.h"
#include "local_stack.h"
#include "trial.h"

#define SKIP        77
#define TIMEOUT_S   100
#define LOCAL_PAGES 64u
#define PAGES       512u
#define STACK_PAGES 32u

static const char *farpaged;

static struct {
	struct test_daemon daemon;
	struct fp_agent *agent;
	char *far, *stack;
	ucontext_t outside, inside;
} scene;

static char byte_of(uint32_t page)
{
	return (char)(page % 251 + 1);
}

/* ---- what the test does before an ioctl ---- */

static _Atomic bool must_leave, leave_me, ended;
static _Atomic unsigned n_left;
static pthread_t caller;
static char signal_memory[64u << 10];

int __real_ioctl(int fd, unsigned long request, void *arg);
int __wrap_ioctl(int fd, unsigned long request, void *arg);

static void *make_leave(void *unused)
{
	uint32_t page = fp_far_page(&scene.agent->far, (uintptr_t)scene.stack);

	while (!atomic_load(&ended)) {
		if (!atomic_load(&must_leave)) {
			sched_yield();
			continue;
		}
		fp_reclaim_pageout(scene.agent->reclaim, page, STACK_PAGES);
		atomic_fetch_add(&n_left, 1);
		atomic_store(&must_leave, false);
	}
	return NULL;
}

static bool is_within(const void *p, const char *start, size_t len)
{
	return (uintptr_t)p - (uintptr_t)start < len;
}

/*
 * Faults of the thread `caller` are served on its signal stack. While such a fault is served, the
 * far stack is being brought in. So the test does not make the stack leave then.
 */
int __wrap_ioctl(int fd, unsigned long request, void *arg)
{
	const void *here = __builtin_frame_address(0);

	if (atomic_load(&leave_me) && pthread_equal(pthread_self(), caller) &&
	    !is_within(here, signal_memory, sizeof(signal_memory))) {
		if (is_within(here, scene.stack, STACK_PAGES * FP_PAGE_SIZE) ||
		    is_within(arg, scene.stack, STACK_PAGES * FP_PAGE_SIZE))
			_exit(3);
		atomic_store(&must_leave, true);
		while (atomic_load(&must_leave))
			sched_yield();
	}
	return __real_ioctl(fd, request, arg);
}

/* ---- set-up ---- */

static char *map(uint32_t pages)
{
	void *far;

	trial_check(fp_space_map(fp_agent_space(scene.agent), pages * (size_t)FP_PAGE_SIZE, 0,
	                         PROT_READ | PROT_WRITE, 0, &far) == 0,
	            "no mapping");
	return far;
}

static void evict_all(void)
{
	trial_check(
	    fp_space_advise(fp_agent_space(scene.agent), scene.far, PAGES * FP_PAGE_SIZE, MADV_PAGEOUT) == 0,
	    "pageout");
}

static void begin(const char *url)
{
	const stack_t signal_stack = {.ss_sp = signal_memory, .ss_size = sizeof(signal_memory)};
	const struct fp_agent_options options = {.urls = &url,
	                                         .n_urls = 1,
	                                         .local_bytes = LOCAL_PAGES * FP_PAGE_SIZE,
	                                         .fault_mode = FP_FAULT_MODE_INLINE,
	                                         .pins = true};
	struct fp_agent_error error;

	trial_check(sigaltstack(&signal_stack, NULL) == 0, "sigaltstack");
	trial_check(fp_agent_start(&options, &scene.agent, &error) == 0, "%s", error.text);
	scene.stack = map(STACK_PAGES);
	scene.far = map(PAGES);
	for (uint32_t p = 0; p < PAGES; p++)
		memset(scene.far + (size_t)p * FP_PAGE_SIZE, byte_of(p), FP_PAGE_SIZE);
	evict_all();
}

static void run_on_far_stack(void (*body)(void))
{
	pthread_t thread;

	caller = pthread_self();
	pthread_create(&thread, NULL, make_leave, NULL);
	getcontext(&scene.inside);
	scene.inside.uc_stack = (stack_t){.ss_sp = scene.stack, .ss_size = STACK_PAGES * FP_PAGE_SIZE};
	scene.inside.uc_link = &scene.outside;
	makecontext(&scene.inside, body, 0);
	trial_check(swapcontext(&scene.outside, &scene.inside) == 0, "swapcontext");
	atomic_store(&leave_me, false);
	atomic_store(&ended, true);
	pthread_join(thread, NULL);
	trial_check(atomic_load(&n_left) > 0, "the stack never left");
	trial_check(atomic_load(&scene.agent->far.stats->lost_pages) == 0, "pages are lost");
	for (uint32_t p = 0; p < PAGES; p++)
		for (uint32_t at = 0; at < FP_PAGE_SIZE; at += 512)
			trial_check(scene.far[(size_t)p * FP_PAGE_SIZE + at] == byte_of(p), "page %u", p);
}

/* ---- calls on that stack ---- */

/* Pins pages, like calls that read or write them. */
static void hold_pages(void)
{
	atomic_store(&leave_me, true);
	for (uint32_t p = 0; p < PAGES; p++) {
		const struct fp_pin_range range = {
		    .addr = scene.far + (size_t)p * FP_PAGE_SIZE, .len_bytes = 1, .write = p % 2};
		struct fp_pin hold;

		trial_check(fp_agent_pin(scene.agent, &range, 1, &hold) == 0, "page %u is not held", p);
		fp_agent_unpin(scene.agent, &hold);
	}
	atomic_store(&leave_me, false);
}

/*
 * Reads the first four pages of each 16 pages, so that these are resident. Then moves the mapping.
 */
static void move_pages(void)
{
	struct fp_space *space = fp_agent_space(scene.agent);
	struct fp_remap what = {.old_len = PAGES * FP_PAGE_SIZE,
	                        .new_len = PAGES * FP_PAGE_SIZE,
	                        .flags = FP_REMAP_MAYMOVE | FP_REMAP_FIXED};
	char byte;

	for (unsigned i = 0; i < 2; i++) {
		void *moved = map(PAGES);

		for (uint32_t p = 0; p < PAGES; p += p % 16 == 3 ? 13 : 1) {
			byte = scene.far[(size_t)p * FP_PAGE_SIZE];
			trial_check(byte == byte_of(p), "page %u reads %d", p, byte);
		}
		atomic_store(&leave_me, true);
		what.old_addr = scene.far;
		what.new_addr = moved;
		trial_check((int)FP_ON_LOCAL_STACK(fp_space_remap_to, space, &what, &moved, 0, 0, 0) == 0,
		            "remap");
		atomic_store(&leave_me, false);
		scene.far = moved;
	}
}

static int body_hold(void *arg)
{
	begin(scene.daemon.url);
	run_on_far_stack(hold_pages);
	fp_agent_stop(scene.agent);
	return 0;
}

static int body_move(void *arg)
{
	begin(scene.daemon.url);
	run_on_far_stack(move_pages);
	fp_agent_stop(scene.agent);
	return 0;
}

/* ---- tests ---- */

static void run(const char *scheme, int (*body)(void *arg))
{
	struct trial trial;

	assert_int_equal(test_daemon_start(farpaged, scheme, 128u << 20, &scene.daemon), 0);
	trial_run(body, NULL, TIMEOUT_S, &trial);
	test_daemon_stop(&scene.daemon);
	trial_assert_good(&trial);
}

static void test_holds_over_shm(void **state)
{
	run("shm", body_hold);
}

static void test_holds_over_tcp(void **state)
{
	run("tcp", body_hold);
}

static void test_moves_over_shm(void **state)
{
	run("shm", body_move);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_holds_over_shm),
	    cmocka_unit_test(test_holds_over_tcp),
	    cmocka_unit_test(test_moves_over_shm),
	};
	struct fp_agent_error error;

	if (argc < 2)
		return 2;
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	farpaged = argv[1];
	if (fp_agent_check_kernel(&error) < 0) {
		fprintf(stderr, "%s\n", error.text);
		return SKIP;
	}
#if !defined(__x86_64__)
	fprintf(stderr, "fault mode inline is for x86-64 only\n");
	return SKIP;
#endif
	return cmocka_run_group_tests_name("farstack", tests, NULL, NULL);
}
