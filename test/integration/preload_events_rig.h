/*
 * Bare system calls, and the stats page that shows their effect. Room: test/integration,
 * test_preload_events.c.
 */
#ifndef FP_PRELOAD_EVENTS_RIG_H
#define FP_PRELOAD_EVENTS_RIG_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmocka.h>

#include "barecall.h"
#include "clock.h"
#include "statsmap.h"
#include "testrng.h"
#include "underpreload.h"

#define PAGE    4096u
#define BIG     (4 * (size_t)TEST_LOCAL_BYTES)
#define REFUSED 125

/* Older headers lack it. */
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

#define FAULT_DEADLINE_S 20 /* seconds; a fault's deadline: no other step of a test takes so long */
#define SECONDS_(n)      #n "s"
#define SECONDS(n)       SECONDS_(n)

/* ---- bare calls ---- */

#ifndef NO_BARE_CALLS

static inline void bare_munmap(void *addr, size_t len)
{
	assert_int_equal(bare(SYS_munmap, addr, len, 0, 0, 0, 0), 0);
}

static inline char *bare_mmap(void *addr, size_t len, int flags)
{
	return (char *)bare(SYS_mmap, addr, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags,
	                    -1, 0);
}

/* ---- the agent's statistics ---- */

static const struct fp_statspage *stats;

static inline int open_stats(void **state)
{
	stats = fp_statsmap_own();
	return stats ? 0 : -1;
}

static inline char *map_filled(size_t len, unsigned seed)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	if (atomic_load(&stats->budget_bytes) <
	    BIG) /* with a larger budget the kernel may fill the chunk already */
		assert_true(test_is_far(p));
	test_fill(p, len, seed);
	return p;
}

/* ---- SIGSEGV ---- */

static __thread sigjmp_buf back;

static inline void on_segv(int sig)
{
	siglongjmp(back, 1);
}

static inline bool is_unmapped(const char *p)
{
	volatile bool caught;

	signal(SIGSEGV, on_segv);
	caught = sigsetjmp(back, 1) != 0;
	if (!caught)
		(void)*(const volatile char *)p;
	signal(SIGSEGV, SIG_DFL);
	return caught;
}

/* ---- pressure: pages come and go during the test ---- */

struct churner {
	pthread_t thread;
	atomic_bool stop;
	atomic_bool failed;
};

static inline void *churn(void *arg)
{
	struct churner *churner = arg;
	char *p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (unsigned seed = 1; !atomic_load(&churner->stop); seed++) {
		test_fill(p, BIG, seed);
		if (!test_is_filled(p, BIG, seed))
			atomic_store(&churner->failed, true);
	}
	munmap(p, BIG);
	return NULL;
}

static inline void churn_begin(struct churner *churner)
{
	memset(churner, 0, sizeof(*churner));
	assert_int_equal(pthread_create(&churner->thread, NULL, churn, churner), 0);
}

static inline void churn_end(struct churner *churner)
{
	atomic_store(&churner->stop, true);
	assert_int_equal(pthread_join(churner->thread, NULL), 0);
	assert_false(atomic_load(&churner->failed));
}

#endif /* NO_BARE_CALLS */

#endif
