/*
 * What it costs that faults share memory. Threads, each pinned to a CPU of its own, do what a fault
 * does in user space to the memory that all faults share: counters, budget, eviction queue. Once
 * they all do it to the same objects, once each to objects of its own. Prints the ns of each part,
 * of one fault and one thread. The difference between "shared" and "own" is what more cores would
 * have to save. Room: test/bench.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "clock.h"
#include "evict_queue.h"
#include "hist.h"

#define THREADS_MAX 64u
#define N_PAGES     (THREADS_MAX * THREADS_MAX * FP_BUDGET_BATCH_MAX) /* no page is twice in the queue */
#define FAULTS      100000u
#define ROUNDS      5u
#define PAUSE       300u /* loops of private work between two faults: about a microsecond */

/* What far memory has once, as far as a fault in steady state writes it. */
struct shared {
	_Alignas(64) _Atomic uint64_t faults;
	_Alignas(64) _Atomic uint64_t fetched_bytes;
	_Alignas(64) _Atomic uint64_t node_bytes;
	_Alignas(64) struct fp_hist latency;
	_Alignas(64) struct fp_budget budget;
	_Alignas(64) struct fp_evict_queue queue;
};

struct worker {
	pthread_t thread;
	unsigned index;
	struct shared *shared;
	double ns;
};

static void die(const char *what)
{
	fprintf(stderr, "sharecost: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void count(struct shared *s, unsigned i, uint32_t page)
{
	(void)page;
	atomic_fetch_add_explicit(&s->faults, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&s->fetched_bytes, 4096, memory_order_relaxed);
	atomic_fetch_add_explicit(&s->node_bytes, 4096, memory_order_relaxed);
	fp_hist_record(&s->latency, 5000 + i % 64);
}

/* Gives back a batch for each batch of faults, as evictions do. So the peak seldom grows. */
static void take_token(struct shared *s, unsigned i, uint32_t page)
{
	(void)page;
	(void)fp_budget_take(&s->budget, 1);
	if (i % FP_BUDGET_BATCH_MAX == 0)
		fp_budget_leave(&s->budget, FP_BUDGET_BATCH_MAX);
}

/* Evicts a batch for each batch of faults, so that the lists keep their length. */
static void push(struct shared *s, unsigned i, uint32_t page)
{
	struct fp_evict_entry entries[FP_BUDGET_BATCH_MAX];

	fp_evict_queue_push(&s->queue, page, 0);
	if (i % FP_BUDGET_BATCH_MAX == 0)
		(void)fp_evict_queue_pop(&s->queue, entries, FP_BUDGET_BATCH_MAX);
}

static void all(struct shared *s, unsigned i, uint32_t page)
{
	take_token(s, i, page);
	push(s, i, page);
	count(s, i, page);
}

static const struct {
	const char *name;
	void (*run)(struct shared *shared, unsigned i, uint32_t page);
} parts[] = {{"counters", count}, {"token", take_token}, {"queue", push}, {"all", all}};

static void (*part)(struct shared *shared, unsigned i, uint32_t page);
static pthread_barrier_t begin;

static void pin(unsigned index)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(index, &one);
	if (sched_setaffinity(0, sizeof(one), &one) < 0)
		die("sched_setaffinity");
}

static void work(void)
{
	volatile uint64_t x = 1;

	for (unsigned i = 0; i < PAUSE; i++)
		x = x * 6364136223846793005u + 1;
}

static double ns_a_fault(const struct worker *w, bool with_part)
{
	uint64_t began_ns = fp_clock_ns();
	uint32_t page = w->index * (N_PAGES / THREADS_MAX);

	for (unsigned i = 1; i <= FAULTS; i++) {
		work();
		if (with_part)
			part(w->shared, i, page + i % (N_PAGES / THREADS_MAX));
	}
	return (double)(fp_clock_ns() - began_ns) / FAULTS;
}

static void *run(void *arg)
{
	struct worker *w = arg;
	double bare_ns;

	pin(w->index);
	pthread_barrier_wait(&begin);
	bare_ns = ns_a_fault(w, false);
	pthread_barrier_wait(&begin);
	w->ns = ns_a_fault(w, true) - bare_ns;
	return NULL;
}

static struct shared *new_shared(void)
{
	struct shared *s = aligned_alloc(64, sizeof(*s));
	uint32_t *next = calloc(N_PAGES, sizeof(*next));

	if (!s || !next)
		die("memory");
	memset(s, 0, sizeof(*s));
	if (fp_budget_init(&s->budget, 1ull << 40) < 0)
		die("budget");
	fp_evict_queue_init(&s->queue, next);
	fp_evict_queue_set_budget(&s->queue, N_PAGES);
	return s;
}

static void free_shared(struct shared *s)
{
	free(s->queue.next);
	fp_evict_queue_done(&s->queue);
	fp_budget_done(&s->budget);
	free(s);
}

static double measure_once(unsigned n, bool own)
{
	struct worker workers[THREADS_MAX];
	struct shared *one = new_shared();
	double ns = 0;

	pthread_barrier_init(&begin, NULL, n);
	for (unsigned i = 0; i < n; i++) {
		workers[i] = (struct worker){.index = i, .shared = own ? new_shared() : one};
		if (pthread_create(&workers[i].thread, NULL, run, &workers[i]) != 0)
			die("pthread_create");
	}
	for (unsigned i = 0; i < n; i++) {
		pthread_join(workers[i].thread, NULL);
		ns += workers[i].ns / n;
		if (own)
			free_shared(workers[i].shared);
	}
	pthread_barrier_destroy(&begin);
	free_shared(one);
	return ns;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median of some rounds, as other programs may disturb one. */
static double measure(unsigned n, bool own)
{
	double ns[ROUNDS];

	for (unsigned i = 0; i < ROUNDS; i++)
		ns[i] = measure_once(n, own);
	qsort(ns, ROUNDS, sizeof(ns[0]), by_value);
	return ns[ROUNDS / 2];
}

int main(void)
{
	unsigned n_cpus = FP_MIN((unsigned)FP_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L), THREADS_MAX);

	printf("%-10s%-10s%-10s%-10s\n", "threads", "part", "shared", "own");
	for (unsigned n = 1; n <= n_cpus; n = n < n_cpus ? FP_MIN(2 * n, n_cpus) : n + 1)
		for (unsigned i = 0; i < FP_ARRAY_LEN(parts); i++) {
			part = parts[i].run;
			printf("%-10u%-10s%-10.0f%-10.0f\n", n, parts[i].name, measure(n, false),
			       measure(n, true));
		}
	return 0;
}
