/*
 * Faults and layout calls on the same pages at the same time. Each fault ends, with the right bytes
 * or with the signal that the kernel gives for such memory. Room: test/fault.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <cmocka.h>

#include "agent_priv.h"
#include "audit.h"
#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "testrng.h"
#include "trial.h"

#define SKIP        77
#define LOCAL_PAGES 16u
#define PAGES       600u /* more than one chunk */
#define THREADS     4u
#define DEADLINE_NS (4 * FP_NSEC_PER_SEC)
#define LATE_NS     (DEADLINE_NS / 2) /* a slower operation was probably cut short by its deadline */
#define TIMEOUT_S   60
#define RW          (PROT_READ | PROT_WRITE)

static struct test_daemon shm, tcp;
static uint64_t seed;

struct setting {
	const struct test_daemon *daemon;
	enum fp_capture_mode capture;
};

struct scene {
	const struct test_daemon *daemon;
	struct fp_agent *agent;
	struct fp_space *space;
	char *far;
	_Atomic bool ending;
	pthread_barrier_t barrier;
};

/*
 * One of several threads that touch the same pages. In each page, the byte at offset `id` belongs
 * to this thread.
 */
struct toucher {
	struct scene *scene;
	unsigned id;
	pthread_t thread;
	char last[PAGES]; /* the last value that it wrote to its byte of each page */
};

/* ---- parts of bodies ---- */

static void begin(struct scene *s, const struct setting *setting)
{
	const char *urls[] = {setting->daemon->url};
	const struct fp_agent_options options = {.urls = urls,
	                                         .n_urls = 1,
	                                         .local_bytes = LOCAL_PAGES * FP_PAGE_SIZE,
	                                         .deadline_ns = DEADLINE_NS,
	                                         .capture = setting->capture,
	                                         .readahead_pages = 8};

	trial_catch_signals();
	*s = (struct scene){.daemon = setting->daemon};
	s->agent = trial_agent(&options);
	s->space = fp_agent_space(s->agent);
	pthread_barrier_init(&s->barrier, NULL, THREADS + 1);
}

static char *map(struct scene *s, uint32_t pages)
{
	void *far;

	trial_check(fp_space_map(s->space, (size_t)pages * FP_PAGE_SIZE, 0, RW, 0, &far) == 0, "no mapping");
	return far;
}

static void start(struct toucher *touchers, struct scene *s, void *(*run)(void *arg))
{
	for (unsigned i = 0; i < THREADS; i++) {
		touchers[i] = (struct toucher){.scene = s, .id = i};
		trial_check(pthread_create(&touchers[i].thread, NULL, run, &touchers[i]) == 0, "no thread");
	}
}

static void join(struct toucher *touchers)
{
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(touchers[i].thread, NULL);
}

static int end(struct scene *s)
{
	char text[256];

	trial_check(audit(&s->agent->far, text, sizeof(text)), "%s", text);
	fp_agent_stop(s->agent);
	return 0;
}

static void check_time(uint64_t begun_ns, const char *what)
{
	uint64_t ns = fp_clock_ns() - begun_ns;

	trial_check(ns < LATE_NS, "%s took %d ms", what, (int)(ns / FP_NSEC_PER_MSEC));
}

static char *own_byte(const struct toucher *t, uint32_t page)
{
	return t->scene->far + (size_t)page * FP_PAGE_SIZE + t->id;
}

/* ---- a queue full of unmapped pages ---- */

#define STALE_ENTRIES 8000u /* nearly as many entries as the smallest queue can hold */

/*
 * Unmapped pages leave their entries in the queue. The next thread that needs a token must skip all
 * of them.
 */
static int body_stale_queue(void *arg)
{
	const uint32_t piece = LOCAL_PAGES / 2;
	struct scene s;
	uint64_t begun_ns;

	begin(&s, arg);
	for (uint32_t n = 0; n < STALE_ENTRIES; n += piece) {
		char *far = map(&s, piece);

		memset(far, 1, piece * FP_PAGE_SIZE);
		trial_check(fp_space_unmap(s.space, far, piece * FP_PAGE_SIZE) == 0, "no munmap");
		map(&s, piece); /* stays untouched, so that the next piece is a new mapping */
	}
	s.far = map(&s, 4 * LOCAL_PAGES);
	begun_ns = fp_clock_ns();
	memset(s.far, 2, 4 * LOCAL_PAGES * FP_PAGE_SIZE);
	check_time(begun_ns, "a memset");
	return end(&s);
}

/* ---- several messages about one page ---- */

#define ROUNDS_TOGETHER 200u

static void *touch_together(void *arg)
{
	struct toucher *t = arg;

	for (unsigned round = 1; round <= ROUNDS_TOGETHER; round++) {
		pthread_barrier_wait(&t->scene->barrier);
		for (uint32_t p = 0; p < 2 * LOCAL_PAGES; p++) {
			volatile char *byte = own_byte(t, p);

			trial_check(*byte == t->last[p], "round %u, page %u reads %d, not %d", round, p,
			            *byte, t->last[p]);
			*byte = t->last[p] = (char)round;
		}
	}
	return NULL;
}

static int body_together(void *arg)
{
	struct toucher touchers[THREADS];
	struct scene s;

	begin(&s, arg);
	s.far = map(&s, 2 * LOCAL_PAGES);
	start(touchers, &s, touch_together);
	for (unsigned round = 1; round <= ROUNDS_TOGETHER; round++) {
		pthread_barrier_wait(&s.barrier);
		fp_space_advise(s.space, s.far, 2 * LOCAL_PAGES * FP_PAGE_SIZE, MADV_PAGEOUT);
	}
	join(touchers);
	return end(&s);
}

/* ---- a mapping that is removed under faults ---- */

#define ROUNDS_GONE 100u
#define PAGES_GONE  32u

static void *touch_until_gone(void *arg)
{
	struct toucher *t = arg;
	uint64_t ns;
	char byte;

	for (unsigned round = 0; round < ROUNDS_GONE; round++) {
		pthread_barrier_wait(&t->scene->barrier);
		for (uint32_t p = 0;; p = (p + 1) % PAGES_GONE) {
			int signal = trial_read(own_byte(t, p), &byte, &ns);

			trial_check(ns < LATE_NS, "a read took %d ms", (int)(ns / FP_NSEC_PER_MSEC));
			if (signal) {
				trial_check(signal == SIGSEGV, "signal %d", signal);
				break;
			}
			trial_check(byte == 'x', "page %u reads %d", p, byte);
		}
		pthread_barrier_wait(&t->scene->barrier);
	}
	return NULL;
}

static int body_gone(void *arg)
{
	struct toucher touchers[THREADS];
	uint64_t rng = seed;
	struct scene s;

	begin(&s, arg);
	start(touchers, &s, touch_until_gone);
	for (unsigned round = 0; round < ROUNDS_GONE; round++) {
		const struct timespec moment = {.tv_nsec =
		                                    (long)(test_random(&rng) % (2 * FP_NSEC_PER_MSEC))};
		uint64_t begun_ns;

		s.far = map(&s, PAGES_GONE);
		memset(s.far, 'x', PAGES_GONE * FP_PAGE_SIZE);
		pthread_barrier_wait(&s.barrier);
		nanosleep(&moment, NULL);
		begun_ns = fp_clock_ns();
		trial_check(fp_space_unmap(s.space, s.far, PAGES_GONE * FP_PAGE_SIZE) == 0, "unmap");
		check_time(begun_ns, "unmap");
		pthread_barrier_wait(&s.barrier);
	}
	join(touchers);
	return end(&s);
}

/* ---- the same, while the page is being fetched ---- */

struct unmapping {
	struct scene *scene;
	int result;
};

static void *unmap_all(void *arg)
{
	struct unmapping *u = arg;

	u->result = fp_space_unmap(u->scene->space, u->scene->far, PAGES * FP_PAGE_SIZE);
	return NULL;
}

static void *touch_once(void *arg)
{
	struct toucher *t = arg;
	uint64_t ns;
	char byte = 'x';
	int signal = trial_read(t->scene->far, &byte, &ns);

	trial_check(signal == SIGSEGV || signal == SIGBUS || (signal == 0 && byte == 'x'),
	            "signal %d, byte %d", signal, byte);
	return NULL;
}

static void wait_for_state(const struct scene *s, enum fp_page_state state)
{
	const struct fp_far *far = &s->agent->far;
	uint32_t page = fp_far_page(far, (uintptr_t)s->far);

	while (fp_page_state(atomic_load(&far->words[page])) != state)
		sched_yield();
}

/*
 * The node is stopped while a page is fetched and its mapping is removed. Then the node goes on, or
 * dies.
 */
static int gone_in_flight(const struct setting *setting, int signal)
{
	struct unmapping unmapping = {.result = 1};
	struct toucher toucher;
	pthread_t unmapper;
	struct scene s;

	begin(&s, setting);
	s.far = map(&s, PAGES);
	memset(s.far, 'x', PAGES * FP_PAGE_SIZE);
	fp_space_advise(s.space, s.far, PAGES * FP_PAGE_SIZE, MADV_PAGEOUT);
	wait_for_state(&s, FP_PAGE_REMOTE);
	kill(setting->daemon->pid, SIGSTOP);
	toucher = (struct toucher){.scene = &s};
	pthread_create(&toucher.thread, NULL, touch_once, &toucher);
	wait_for_state(&s, FP_PAGE_ARRIVING);
	unmapping.scene = &s;
	pthread_create(&unmapper, NULL, unmap_all, &unmapping);
	kill(setting->daemon->pid, signal);
	pthread_join(toucher.thread, NULL);
	pthread_join(unmapper, NULL);
	trial_check(unmapping.result == 0, "unmap: %d", unmapping.result);
	return end(&s);
}

static int body_gone_in_flight(void *arg)
{
	return gone_in_flight(arg, SIGCONT);
}

static int body_gone_with_the_node(void *arg)
{
	return gone_in_flight(arg, SIGKILL);
}

/* ---- discarded under faults, with little local memory ---- */

static void *touch_until_end(void *arg)
{
	struct toucher *t = arg;
	uint64_t rng = seed + t->id;

	while (!atomic_load(&t->scene->ending)) {
		volatile char *byte = own_byte(t, (uint32_t)(test_random(&rng) % PAGES));
		char before = *byte;

		trial_check(before == 0 || before == 'y', "a byte is %d", before);
		*byte = 'y';
	}
	return NULL;
}

static int body_discarded(void *arg)
{
	struct toucher touchers[THREADS];
	struct scene s;

	begin(&s, arg);
	s.far = map(&s, PAGES);
	start(touchers, &s, touch_until_end);
	for (unsigned round = 0; round < 200; round++) {
		uint64_t begun_ns = fp_clock_ns();

		trial_check(fp_space_advise(s.space, s.far, PAGES * FP_PAGE_SIZE, MADV_DONTNEED) == 0,
		            "discard");
		check_time(begun_ns, "discard");
	}
	atomic_store(&s.ending, true);
	join(touchers);
	return end(&s);
}

/* ---- protected and unprotected under writes ---- */

static void *write_until_end(void *arg)
{
	struct toucher *t = arg;
	uint64_t rng = seed + t->id, ns;

	while (!atomic_load(&t->scene->ending)) {
		uint32_t page = (uint32_t)(test_random(&rng) % (4 * LOCAL_PAGES));
		char value = (char)test_random(&rng), byte;
		int signal = trial_read(own_byte(t, page), &byte, &ns);

		trial_check(signal || byte == t->last[page], "page %u reads %d, not %d", page, byte,
		            t->last[page]);
		signal = trial_write(own_byte(t, page), value, &ns);
		trial_check(signal == 0 || signal == SIGSEGV, "signal %d", signal);
		if (!signal)
			t->last[page] = value;
	}
	return NULL;
}

static int body_protected(void *arg)
{
	static const int prots[] = {PROT_NONE, RW, PROT_READ, RW};
	struct toucher touchers[THREADS];
	uint64_t rng = seed;
	struct scene s;

	begin(&s, arg);
	s.far = map(&s, 4 * LOCAL_PAGES);
	start(touchers, &s, write_until_end);
	for (unsigned round = 0; round < 2000; round++) {
		uint32_t first = (uint32_t)(test_random(&rng) % (4 * LOCAL_PAGES)),
		         n = 4 * LOCAL_PAGES - first;
		char *at = s.far + (size_t)first * FP_PAGE_SIZE;

		trial_check(fp_space_protect(s.space, at, (size_t)n * FP_PAGE_SIZE,
		                             prots[round % FP_ARRAY_LEN(prots)]) == 0,
		            "protect");
	}
	trial_check(fp_space_protect(s.space, s.far, 4 * LOCAL_PAGES * FP_PAGE_SIZE, RW) == 0, "protect");
	atomic_store(&s.ending, true);
	join(touchers);
	for (unsigned i = 0; i < THREADS; i++)
		for (uint32_t p = 0; p < 4 * LOCAL_PAGES; p++)
			trial_check(*own_byte(&touchers[i], p) == touchers[i].last[p],
			            "page %u, byte %u: %d, not %d", p, i, *own_byte(&touchers[i], p),
			            touchers[i].last[p]);
	return end(&s);
}

/* ---- dropped by a bare call ---- */

static int body_dropped(void *arg)
{
	uint64_t rng = seed;
	struct scene s;

	begin(&s, arg);
	s.far = map(&s, PAGES);
	for (unsigned round = 0; round < 50; round++) {
		uint32_t first = (uint32_t)(test_random(&rng) % (PAGES - LOCAL_PAGES));
		char *at = s.far + (size_t)first * FP_PAGE_SIZE;

		memset(at, 'z', LOCAL_PAGES / 2 * FP_PAGE_SIZE);
		trial_check(madvise(at, LOCAL_PAGES / 4 * FP_PAGE_SIZE, MADV_DONTNEED) == 0, "madvise");
		if (round % 2)
			fp_space_advise(s.space, at, LOCAL_PAGES / 2 * FP_PAGE_SIZE, MADV_PAGEOUT);
		for (uint32_t i = 0; i < LOCAL_PAGES / 2 * FP_PAGE_SIZE; i++)
			trial_check(at[i] == 'z' || (at[i] == 0 && i < LOCAL_PAGES / 4 * FP_PAGE_SIZE),
			            "byte %u is %d", i, at[i]);
	}
	memset(s.far, 'z', PAGES * FP_PAGE_SIZE);
	return end(&s);
}

/* ---- tests ---- */

struct race {
	int (*body)(void *arg);
	struct setting setting;
};

static void run(void **state)
{
	struct race *race = *state;
	struct trial trial;

	trial_run(race->body, &race->setting, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
}

#define RACE(name, body, daemon, capture)                                                                    \
	{                                                                                                    \
		name, run, NULL, NULL, &(struct race)                                                        \
		{                                                                                            \
			body,                                                                                \
			{                                                                                    \
				daemon, capture                                                              \
			}                                                                                    \
		}                                                                                            \
	}
#define RACES(name, body)                                                                                    \
	RACE(name ", shm, move", body, &shm, FP_CAPTURE_MOVE),                                               \
	    RACE(name ", shm, protect", body, &shm, FP_CAPTURE_PROTECT),                                     \
	    RACE(name ", tcp, move", body, &tcp, FP_CAPTURE_MOVE),                                           \
	    RACE(name ", tcp, protect", body, &tcp, FP_CAPTURE_PROTECT)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    RACE("stale queue", body_stale_queue, &shm, FP_CAPTURE_MOVE),
	    RACES("together", body_together),
	    RACES("gone", body_gone),
	    RACES("discarded", body_discarded),
	    RACES("protected", body_protected),
	    RACES("dropped", body_dropped),
	    RACE("gone in flight", body_gone_in_flight, &tcp, FP_CAPTURE_MOVE),
	    RACE("gone with the node", body_gone_with_the_node, &tcp,
	         FP_CAPTURE_MOVE), /* the last one, because it kills the node */
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
	seed = test_seed("races");
	if (test_daemon_start(argv[1], "shm", 128u << 20, &shm) < 0 ||
	    test_daemon_start(argv[1], "tcp", 128u << 20, &tcp) < 0)
		return 1;
	r = cmocka_run_group_tests_name("races", tests, NULL, NULL);
	test_daemon_stop(&shm);
	test_daemon_stop(&tcp);
	return r;
}
