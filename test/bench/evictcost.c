/*
 * What the parts of the eviction of a dirty page cost, without a pager: the same calls of the
 * kernel and the same copy, each timed alone. Room: test/bench. It prints medians of ROUNDS rounds,
 * in µs a page. Columns: UFFDIO_MOVE to a stage, the zero test, the copy to shared memory by
 * memcpy, the same past the cache (streamcopy.h), as the pager copies, and the drop of the stage.
 * Batches are copied in the one way and in the other by turns. The last column is the sum without
 * memcpy.
 *
 * Each row is for a batch of pages, in runs of neighbours. The rows come twice. In the second half
 * another thread of the program runs on another CPU, so each call that takes pages away interrupts
 * that CPU (TLB shootdown).
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "streamcopy.h"
#include "uffd.h"

#define PAGE      4096u
#define PAGES     8192u
#define BATCH_MAX 64u
#define ROUNDS    5u

enum part { MOVE, TEST, COPY, STREAM, DROP, PARTS };

static const struct row {
	unsigned batch, run;
} rows[] = {{1, 1}, {4, 1}, {8, 1}, {16, 1}, {32, 1}, {64, 1}, {64, 4}, {64, 16}, {64, 64}};

static struct fp_uffd uffd;
static char *memory, *stage, *slots;
static uint32_t order[PAGES]; /* the runs, shuffled */
static uint64_t ns[PARTS];
static uint32_t n_pages[PARTS]; /* how many the part was done to */
static _Atomic bool stopping;

static void die(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

static void *occupy(void *arg)
{
	const cpu_set_t *cpus = arg;

	sched_setaffinity(0, sizeof(*cpus), cpus);
	while (!atomic_load_explicit(&stopping, memory_order_relaxed))
		;
	return NULL;
}

static void open_memory(void)
{
	const size_t bytes = (size_t)(PAGES + BATCH_MAX) * PAGE;
	int fd = memfd_create("evictcost", MFD_CLOEXEC);

	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fd < 0 || ftruncate(fd, PAGES * PAGE) < 0 || memory == MAP_FAILED)
		die("memory");
	slots = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (slots == MAP_FAILED)
		die("slots");
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	stage = memory + (size_t)PAGES * PAGE;
	if (fp_uffd_open(FP_UFFD_SIGBUS | FP_UFFD_USER_ONLY, &uffd) < 0 || !uffd.has_move ||
	    fp_uffd_register(&uffd, stage, (size_t)BATCH_MAX * PAGE) < 0) {
		printf("evictcost: needs a userfaultfd with UFFDIO_MOVE (Linux 6.8)\n");
		exit(EXIT_SUCCESS);
	}
}

/* Writes all pages, then registers them: from then on a missing page would fault. */
static void fill(unsigned run)
{
	const size_t bytes = (size_t)PAGES * PAGE;
	unsigned n = PAGES / run;

	fp_uffd_unregister(&uffd, memory, bytes);
	memset(memory, 1, bytes);
	if (fp_uffd_register(&uffd, memory, bytes) < 0)
		die("register");
	for (unsigned i = 0; i < n; i++)
		order[i] = i * run;
	for (unsigned i = n - 1; i > 0; i--) {
		unsigned k = (unsigned)rand() % (i + 1);
		uint32_t page = order[i];

		order[i] = order[k];
		order[k] = page;
	}
}

static void add(enum part part, unsigned n, uint64_t *since_ns)
{
	uint64_t now_ns = fp_clock_ns();

	n_pages[part] += n;
	ns[part] += now_ns - *since_ns;
	*since_ns = now_ns;
}

/* As the evictor does it (is_zero in evict.c). */
static bool is_zero(const char *page)
{
	uint64_t first;

	memcpy(&first, page, sizeof(first));
	return first == 0 && memcmp(page, page + sizeof(first), PAGE - sizeof(first)) == 0;
}

static void copy(const uint32_t *runs, struct row row)
{
	for (unsigned i = 0; i < row.batch; i++)
		memcpy(slots + (size_t)(runs[i / row.run] + i % row.run) * PAGE, stage + (size_t)i * PAGE,
		       PAGE);
}

static void stream(const uint32_t *runs, struct row row)
{
	for (unsigned i = 0; i < row.batch; i++)
		fp_stream_copy(slots + (size_t)(runs[i / row.run] + i % row.run) * PAGE,
		               stage + (size_t)i * PAGE, stage + (size_t)(i + (i + 1 < row.batch)) * PAGE,
		               PAGE);
	fp_stream_end();
}

static void evict(const uint32_t *runs, struct row row, bool streams)
{
	size_t run_bytes = (size_t)row.run * PAGE;
	uint64_t since_ns = fp_clock_ns();

	for (unsigned i = 0; i < row.batch / row.run; i++)
		if (fp_uffd_move(&uffd, -1, stage + i * run_bytes, memory + (size_t)runs[i] * PAGE,
		                 run_bytes) != (ssize_t)run_bytes)
			die("UFFDIO_MOVE");
	add(MOVE, row.batch, &since_ns);
	for (unsigned i = 0; i < row.batch; i++)
		if (is_zero(stage + (size_t)i * PAGE))
			die("a page lost its bytes");
	add(TEST, row.batch, &since_ns);
	if (streams)
		stream(runs, row);
	else
		copy(runs, row);
	add(streams ? STREAM : COPY, row.batch, &since_ns);
	if (madvise(stage, (size_t)row.batch * PAGE, MADV_DONTNEED) < 0)
		die("madvise");
	add(DROP, row.batch, &since_ns);
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void print_row(struct row row)
{
	double values[PARTS + 1][ROUNDS];

	for (unsigned r = 0; r < ROUNDS; r++) {
		memset(ns, 0, sizeof(ns));
		memset(n_pages, 0, sizeof(n_pages));
		fill(row.run);
		for (unsigned i = 0; i < PAGES / row.run; i += row.batch / row.run)
			evict(order + i, row, i / (row.batch / row.run) % 2);
		values[PARTS][r] = 0;
		for (unsigned part = 0; part < PARTS; part++) {
			values[part][r] = (double)ns[part] / n_pages[part] / 1000;
			values[PARTS][r] += part == COPY ? 0 : values[part][r];
		}
	}
	printf("%5u %4u", row.batch, row.run);
	for (unsigned part = 0; part <= PARTS; part++) {
		qsort(values[part], ROUNDS, sizeof(double), by_value);
		printf(" %6.2f", values[part][ROUNDS / 2]);
	}
	printf("\n");
}

static void print_rows(const char *title)
{
	printf("%s\nbatch  run   move   test memcpy stream   drop    all\n", title);
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		print_row(rows[i]);
}

/* Splits the CPUs: this thread gets the first one, and the other thread gets the rest. */
static void split_cpus(cpu_set_t *ret_rest)
{
	cpu_set_t own;
	int cpu = 0;

	sched_getaffinity(0, sizeof(*ret_rest), ret_rest);
	while (!CPU_ISSET(cpu, ret_rest))
		cpu++;
	CPU_CLR(cpu, ret_rest);
	CPU_ZERO(&own);
	CPU_SET(cpu, &own);
	sched_setaffinity(0, sizeof(own), &own);
}

int main(void)
{
	cpu_set_t rest;
	pthread_t other;

	open_memory();
	split_cpus(&rest);
	print_rows("no other thread of the program runs");
	if (CPU_COUNT(&rest) == 0)
		return EXIT_SUCCESS;
	if (pthread_create(&other, NULL, occupy, &rest) != 0)
		die("pthread_create");
	print_rows("another thread runs on another CPU");
	atomic_store(&stopping, true);
	pthread_join(other, NULL);
	return EXIT_SUCCESS;
}
