/*
 * See handover.h. A request is one word, which a single atomic instruction sets or clears. So a
 * guest that is killed at any moment leaves nothing half done, at worst a request for which nobody
 * waits.
 */
#include "handover.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "end.h"
#include "inline.h"
#include "lockedmem.h"
#include "thread.h"

#define REQUESTS 16u
#define LOW_PIDS 300 /* a process number below this may exist again in a new namespace, which counts from 1 */
#define YIELDS   64u /* how often a guest yields before it sleeps */
#define NAP_NS   (50 * FP_NSEC_PER_USEC)
#define TURN_NS  FP_NSEC_PER_MSEC /* time between two looks at a page that is on its way */

/* The low bits of a request; its other bits are the page's address. */
#define WANTED    1ull
#define WRITES    2ull
#define PROTECTED 4ull

struct fp_handover {
	struct fp_inline *servers;
	pid_t pid;
	_Atomic uint64_t requests[REQUESTS]; /* 0: free */
	sem_t asked;
	_Atomic bool stopping;
	sem_t begun;
	struct fp_thread thread;
	pthread_mutex_t alive; /* robust: the thread holds it, and the kernel marks it when the thread ends */
};

static uint64_t pack(const struct fp_uffd_fault *fault)
{
	return fault->addr | WANTED | (fault->write ? WRITES : 0) | (fault->wp ? PROTECTED : 0);
}

static struct fp_uffd_fault unpack(uint64_t request)
{
	return (struct fp_uffd_fault){.addr = request & ~(WANTED | WRITES | PROTECTED),
	                              .write = request & WRITES,
	                              .wp = request & PROTECTED};
}

/* ---- the thread ---- */

/*
 * Returns false if the request must be tried again: the page is on its way, or another thread owns
 * it.
 */
static bool serve(struct fp_handover *h, _Atomic uint64_t *request)
{
	uint64_t wanted = atomic_load(request);
	struct fp_uffd_fault fault = unpack(wanted);

	if (!wanted)
		return true;
	if (fp_inline_serve(h->servers, &fault) == FP_INLINE_BUSY)
		return false;
	atomic_store(request, 0);
	return true;
}

/*
 * Sleeps until a guest makes a request, or for TURN_NS if a request must be tried again. The page
 * of one guest may wait for a node that is cut off. While one of the REQUESTS places is free, other
 * guests need not wait for that page.
 */
static void wait_for_guests(struct fp_handover *h, bool again)
{
	struct timespec until;

	if (!again) {
		sem_wait(&h->asked);
		return;
	}
	fp_inline_tend(h->servers);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += TURN_NS;
	until.tv_sec += until.tv_nsec / (long)FP_NSEC_PER_SEC;
	until.tv_nsec %= (long)FP_NSEC_PER_SEC;
	sem_clockwait(&h->asked, CLOCK_MONOTONIC, &until);
}

static void *run(void *arg)
{
	struct fp_handover *h = arg;
	bool again = false;

	pthread_mutex_lock(&h->alive);
	sem_post(&h->begun);
	while (!atomic_load(&h->stopping)) {
		wait_for_guests(h, again);
		again = false;
		for (unsigned i = 0; i < REQUESTS; i++)
			again |= !serve(h, &h->requests[i]);
	}
	pthread_mutex_unlock(&h->alive);
	return NULL;
}

/* ---- guests ---- */

/*
 * In a new pid namespace, a guest may have the same low number as the process whose memory it
 * shares. But in that namespace tgkill does not find the thread that serves requests.
 */
bool fp_handover_is_guest(const struct fp_handover *h)
{
	int saved_errno = errno;
	bool is_guest = getpid() != h->pid;

	if (!is_guest && h->pid < LOW_PIDS)
		is_guest = syscall(SYS_tgkill, h->pid, fp_thread_tid(&h->thread), 0) < 0 && errno == ESRCH;
	errno = saved_errno;
	return is_guest;
}

/* Makes a request. Returns NULL if no place for it is free. */
static _Atomic uint64_t *ask(struct fp_handover *h, uint64_t wanted)
{
	for (unsigned i = 0; i < REQUESTS; i++) {
		uint64_t none = 0;

		if (atomic_compare_exchange_strong(&h->requests[i], &none, wanted)) {
			sem_post(&h->asked);
			return &h->requests[i];
		}
	}
	return NULL;
}

/*
 * The guest may be in another namespace, without descriptors, so it can't name the process. But the
 * kernel marks a robust mutex when its owner ends.
 */
void fp_handover_end_if_left(const struct fp_handover *h)
{
	if (*(const volatile int *)&h->alive.__data.__lock & FUTEX_OWNER_DIED)
		fp_end_refused("pager", "the process whose memory this child of vfork shares has ended, and "
		                        "with it what serves far memory. Execute a program, or end, before "
		                        "the parent does");
}

static void pause_guest(const struct fp_handover *h, unsigned n)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};

	if (n < YIELDS) {
		sched_yield();
		return;
	}
	fp_handover_end_if_left(h);
	nanosleep(&nap, NULL);
}

void fp_handover_serve(struct fp_handover *h, const struct fp_uffd_fault *fault)
{
	uint64_t wanted = pack(fault);
	_Atomic uint64_t *request;
	unsigned n = 0;

	while (!(request = ask(h, wanted)))
		pause_guest(h, n++);
	while (atomic_load(request) == wanted)
		pause_guest(h, n++);
}

/* ---- life ---- */

static void make_robust(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(mutex, &attr);
	pthread_mutexattr_destroy(&attr);
}

/*
 * The thread must hold the mutex, and its number be known, before the first guest. A process that
 * is killed earlier leaves no mark, and its guest would wait for ever.
 */
static void await_thread(struct fp_handover *h)
{
	while (sem_wait(&h->begun) < 0)
		;
}

int fp_handover_start(struct fp_inline *servers, struct fp_handover **ret_handover)
{
	struct fp_handover *h = fp_lockedmem_new(sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	h->servers = servers;
	h->pid = getpid();
	sem_init(&h->asked, 0, 0);
	sem_init(&h->begun, 0, 0);
	make_robust(&h->alive);
	r = fp_thread_start(&h->thread, "farpage-guests", run, h);
	if (r < 0) {
		fp_lockedmem_free(h, sizeof(*h));
		return r;
	}
	await_thread(h);
	*ret_handover = h;
	return 0;
}

void fp_handover_stop(struct fp_handover *h)
{
	if (!h)
		return;
	atomic_store(&h->stopping, true);
	sem_post(&h->asked);
	fp_thread_join(&h->thread);
	fp_lockedmem_free(h, sizeof(*h));
}

void fp_handover_abandon(struct fp_handover *h)
{
	if (!h)
		return;
	fp_thread_abandon(&h->thread);
	fp_lockedmem_free(h, sizeof(*h));
}
