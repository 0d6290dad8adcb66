/*
 * Threads of an unmodified program touch fresh pages. For each order and each number of threads,
 * prints one line: the µs a page took, all threads together. firsttouch.py runs it plain and in far
 * memory, and compares. Room: test/bench.
 *
 *   firsttouch MIB ORDER,... N_THREADS,...
 *
 * An ORDER is "forward", where each thread has a part of its own, or "mixed": the pages come in a
 * random order, and threads take them by turns. The memory is mapped anew each time.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "clock.h"

#define PAGE        4096u
#define THREADS_MAX 64u
#define REPEATS     3u /* the median of these counts */

struct toucher {
	pthread_t thread;
	size_t first, step, n;
};

static char *memory;
static size_t n_pages;
static uint32_t *order; /* NULL: forward */
static pthread_barrier_t begin, end;

static void die(const char *what)
{
	fprintf(stderr, "firsttouch: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void *touch(void *arg)
{
	const struct toucher *t = arg;

	pthread_barrier_wait(&begin);
	for (size_t i = 0; i < t->n; i++) {
		size_t page = t->first + i * t->step;

		*(volatile char *)(memory + (order ? order[page] : page) * PAGE) = 1;
	}
	pthread_barrier_wait(&end);
	return NULL;
}

static void map(void)
{
	memory = mmap(NULL, n_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("memory");
	madvise(memory, n_pages * PAGE, MADV_NOHUGEPAGE); /* as far memory has none */
}

static double us_a_page(unsigned n)
{
	struct toucher touchers[THREADS_MAX];
	uint64_t began_ns, took_ns;

	map();
	pthread_barrier_init(&begin, NULL, n + 1);
	pthread_barrier_init(&end, NULL, n + 1);
	for (unsigned i = 0; i < n; i++) {
		struct toucher *t = &touchers[i];

		t->n = n_pages / n;
		t->first = order ? i : i * t->n;
		t->step = order ? n : 1;
		if (pthread_create(&t->thread, NULL, touch, t) != 0)
			die("pthread_create");
	}
	pthread_barrier_wait(&begin);
	began_ns = fp_clock_ns();
	pthread_barrier_wait(&end);
	took_ns = fp_clock_ns() - began_ns;
	for (unsigned i = 0; i < n; i++)
		pthread_join(touchers[i].thread, NULL);
	pthread_barrier_destroy(&begin);
	pthread_barrier_destroy(&end);
	munmap(memory, n_pages * PAGE);
	return (double)took_ns / FP_NSEC_PER_USEC / (double)n_pages;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(unsigned n)
{
	double us[REPEATS];

	for (unsigned i = 0; i < REPEATS; i++)
		us[i] = us_a_page(n);
	qsort(us, REPEATS, sizeof(us[0]), by_value);
	return us[REPEATS / 2];
}

static uint32_t *shuffled(void)
{
	uint32_t *pages = malloc(n_pages * sizeof(*pages));

	if (!pages)
		die("memory");
	for (size_t i = 0; i < n_pages; i++) {
		size_t k = (size_t)random() % (i + 1);

		pages[i] = pages[k];
		pages[k] = (uint32_t)i;
	}
	return pages;
}

static void measure(const char *kind, const char *numbers)
{
	order = strcmp(kind, "mixed") == 0 ? shuffled() : NULL;
	for (const char *at = numbers; at; at = strchr(at, ',')) {
		unsigned n = (unsigned)strtoul(at += *at == ',', NULL, 10);

		if (n == 0 || n > THREADS_MAX)
			exit(2);
		printf("%s %u %.3f\n", kind, n, median(n));
	}
	free(order);
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: firsttouch MIB ORDER,... N_THREADS,...\n");
		return 2;
	}
	n_pages = strtoul(argv[1], NULL, 10) << 8;
	for (char *kind = strtok(argv[2], ","); kind; kind = strtok(NULL, ","))
		measure(kind, argv[3]);
	return 0;
}
