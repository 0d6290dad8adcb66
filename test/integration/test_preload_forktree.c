/*
 * Random families of processes with far memory. They write, check, discard, fork, wait and are
 * killed, in an order that depends on a seed. Each process checks its pages against a copy in local
 * memory, which fork copies too. Two threads of the first process start such families at the same
 * time. FP_TEST_SEED=N repeats a run, FP_TEST_STEPS=N makes it longer. Room: test/integration.
 */
#include <pthread.h>
#include <signal.h>
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

#include "cleanup.h"
#include "testrng.h"
#include "underpreload.h"

#define PAGE         4096u
#define PAGES        1024u /* pages of a thread: four times the budget, which both threads share */
#define THREADS      2u
#define DEPTH        3u
#define CHILDREN     2u /* most children at the same time */
#define STEPS        800u
#define CHECKED      16u /* words of a page that are checked */
#define WORDS        (PAGE / sizeof(uint64_t))
#define RUN          24u
#define DEADLINE_S   100u
#define STATUS_WRONG 3

/* The record that a process has of its far memory. It lies in local memory. */
struct member {
	uint64_t rng;
	unsigned depth, n_children;
	uint64_t (*pages)[WORDS];
	uint32_t stamps[PAGES]; /* 0: the page is zeros */
	uint32_t last_stamp;
	pid_t child[CHILDREN];
	bool killed[CHILDREN];
};

static struct member members[THREADS];
static _Atomic unsigned *failures, *n_forks; /* counts of the whole family */
static unsigned steps = STEPS;
/* Every process has the pipe open. So its end of file shows that all processes have ended. */
static int alive[2];

static uint64_t word_of(uint32_t page, uint32_t stamp, unsigned k)
{
	uint64_t state = (uint64_t)stamp << 32 | page << 8 | k;

	return stamp ? test_random(&state) : 0;
}

static size_t place_of(unsigned k)
{
	return k * (WORDS - 1) / (CHECKED - 1);
}

static void write_page(struct member *m, uint32_t page)
{
	m->stamps[page] = ++m->last_stamp;
	for (unsigned k = 0; k < CHECKED; k++)
		m->pages[page][place_of(k)] = word_of(page, m->stamps[page], k);
}

static void wrong(const struct member *m, uint32_t page, unsigned k)
{
	fprintf(stderr, "depth %u: page %u, write %u: word %zu is %#jx\n", m->depth, page, m->stamps[page],
	        place_of(k), (uintmax_t)m->pages[page][place_of(k)]);
	atomic_fetch_add(failures, 1);
	_exit(STATUS_WRONG);
}

static void check_page(struct member *m, uint32_t page)
{
	for (unsigned k = 0; k < CHECKED; k++)
		if (m->pages[page][place_of(k)] != word_of(page, m->stamps[page], k))
			wrong(m, page, k);
}

static void each_page(struct member *m, uint32_t page, uint32_t n,
                      void (*act)(struct member *m, uint32_t page))
{
	for (uint32_t p = page; p < page + n; p++)
		act(m, p);
}

static void advise(struct member *m, uint32_t page, uint32_t n, int advice)
{
	if (madvise(m->pages[page], (size_t)n * PAGE, advice) < 0)
		atomic_fetch_add(failures, 1);
	if (advice == MADV_DONTNEED)
		memset(&m->stamps[page], 0, n * sizeof(m->stamps[0]));
}

static void reap(struct member *m, unsigned i)
{
	int status = -1;

	waitpid(m->child[i], &status, 0);
	if (status != 0 && !(m->killed[i] && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
		fprintf(stderr, "depth %u: a child ended with %#x\n", m->depth, (unsigned)status);
		atomic_fetch_add(failures, 1);
	}
	m->child[i] = m->child[--m->n_children];
	m->killed[i] = m->killed[m->n_children];
}

static void live(struct member *m, unsigned n_steps);

static void beget(struct member *m, unsigned n_steps)
{
	uint64_t fate = test_random(&m->rng);
	pid_t pid;

	if (m->depth == DEPTH || m->n_children == CHILDREN)
		return;
	pid = fork();
	if (pid < 0)
		return;
	if (pid == 0) {
		m->rng = fate;
		m->depth++;
		m->n_children = 0;
		live(m, n_steps / 6);
		_exit(0);
	}
	atomic_fetch_add(n_forks, 1);
	m->child[m->n_children] = pid;
	m->killed[m->n_children++] = false;
}

static void step(struct member *m, unsigned n_steps)
{
	uint32_t page = (uint32_t)(test_random(&m->rng) % PAGES),
	         n = 1 + (uint32_t)(test_random(&m->rng) % RUN);
	unsigned dice = (unsigned)(test_random(&m->rng) % 100);
	unsigned child = m->n_children ? (unsigned)(test_random(&m->rng) % m->n_children) : 0;

	n = FP_MIN(n, PAGES - page);
	if (dice < 45)
		each_page(m, page, n, write_page);
	else if (dice < 85)
		each_page(m, page, n, check_page);
	else if (dice < 88)
		advise(m, page, n, MADV_DONTNEED);
	else if (dice < 90)
		advise(m, page, n, MADV_PAGEOUT);
	else if (dice < 96)
		beget(m, n_steps);
	else if (m->n_children && dice < 98)
		reap(m, child);
	else if (m->n_children)
		m->killed[child] = kill(m->child[child], SIGKILL) == 0;
}

/* Some processes end before their children. */
static void live(struct member *m, unsigned n_steps)
{
	bool leaves = m->depth && test_random(&m->rng) % 4 == 0;

	for (unsigned i = 0; i < n_steps; i++)
		step(m, n_steps);
	each_page(m, 0, PAGES, check_page);
	while (m->n_children && !leaves)
		reap(m, 0);
}

static void *run(void *member)
{
	live(member, steps);
	return NULL;
}

static bool await_family(void)
{
	char byte;

	close(alive[1]);
	return read(alive[0], &byte, 1) == 0; /* an alarm ends a process that hangs */
}

static int tests(void)
{
	uint64_t seed = test_seed("forktree");
	pthread_t thread[THREADS];

	if (getenv("FP_TEST_STEPS"))
		steps = (unsigned)strtoul(getenv("FP_TEST_STEPS"), NULL, 0);
	failures = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	n_forks = failures + 1;
	if (pipe(alive) < 0)
		return 1;
	alarm(DEADLINE_S * (1 + steps / STEPS));
	for (unsigned i = 0; i < THREADS; i++) {
		members[i].rng = seed + i;
		members[i].pages =
		    mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		pthread_create(&thread[i], NULL, run, &members[i]);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	if (!await_family())
		return 1;
	printf("%u forks, %u failures\n", *n_forks, *failures);
	return *failures || *n_forks < 20;
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
