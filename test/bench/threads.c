/*
 * Threads of an unmodified program read random pages of 256 MiB together. For each kind, and for
 * each number of threads, prints one line: the µs a page took, all threads together, and the µs of
 * CPU that all threads of the process spent on it. threads.py runs it in far memory and compares.
 * Room: test/bench.
 *
 *   threads KIND,... N_THREADS,... [PARTS]
 *
 * A KIND is the µs that a thread computes between two reads, or "rest": it sleeps half of the time.
 * With a "p" at its end, the threads are pinned, by turns to each CPU; with an "s", all to the
 * same. With PARTS the program is not meant for far memory: it serves its faults itself, with so
 * many userfaultfds (barefaults.h). That is the floor.
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
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "barefaults.h"
#include "cleanup.h"
#include "clock.h"

#define PAGE        4096u
#define N_PAGES     (256u << 8)
#define LOCAL_PAGES (64u << 8) /* of the floor */
#define THREADS_MAX 64u
#define TRIES       20u
#define LOOPS       100000u
#define SETTLE_US   60000u /* how long threads run before their reads count */
#define COUNT_US    150000u
#define REST_EVERY  16u /* reads from one rest to the next */
#define REST_US     200u

struct reader {
	pthread_t thread;
	unsigned index;
	_Atomic uint64_t n_read;
};

static const char *memory;
static uint64_t loops_a_us;
static uint64_t compute_us;
static bool rests, pinned, same;
static atomic_bool stop;

static void die(const char *what)
{
	fprintf(stderr, "threads: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Counts loops and not time: a thread that another one keeps from its CPU computes no faster. */
static void compute(uint64_t loops)
{
	volatile uint64_t x = 1;

	while (loops-- > 0)
		x = x * 6364136223846793005u + 1;
}

static void calibrate(void)
{
	for (unsigned i = 0; i < TRIES; i++) {
		uint64_t began_ns = fp_clock_ns();

		compute(LOOPS);
		loops_a_us =
		    FP_MAX(loops_a_us, LOOPS * FP_NSEC_PER_USEC / FP_MAX(fp_clock_ns() - began_ns, 1u));
	}
}

static void pin(unsigned index)
{
	cpu_set_t all, one;
	unsigned nth;
	int cpu = -1;

	sched_getaffinity(0, sizeof(all), &all);
	nth = same ? 0 : index % (unsigned)CPU_COUNT(&all);
	do {
		cpu++;
	} while (!CPU_ISSET(cpu, &all) || nth-- > 0);
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(0, sizeof(one), &one) < 0)
		die("sched_setaffinity");
}

static void *read_pages(void *arg)
{
	struct reader *reader = arg;
	uint64_t x = 88172645463325252u + 7919ull * reader->index;

	if (pinned)
		pin(reader->index);
	for (uint64_t n = 1; !atomic_load(&stop); n++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		(void)*(volatile const char *)(memory + x % N_PAGES * PAGE);
		atomic_store_explicit(&reader->n_read, n, memory_order_relaxed);
		compute(compute_us * loops_a_us);
		if (rests && n % REST_EVERY == 0)
			usleep(REST_US);
	}
	return NULL;
}

static uint64_t sum(struct reader *readers, unsigned n)
{
	uint64_t n_read = 0;

	for (unsigned i = 0; i < n; i++)
		n_read += atomic_load(&readers[i].n_read);
	return n_read;
}

/* The CPU time of all threads of the process, also those of Farpage. */
static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * FP_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static double us_a_page(unsigned n, double *ret_cpu_us)
{
	struct reader readers[THREADS_MAX] = {0};
	uint64_t began_ns, began_cpu_ns, n_read;
	double us;

	atomic_store(&stop, false);
	for (unsigned i = 0; i < n; i++) {
		readers[i].index = i;
		if (pthread_create(&readers[i].thread, NULL, read_pages, &readers[i]) != 0)
			die("pthread_create");
	}
	usleep(SETTLE_US);
	began_ns = fp_clock_ns();
	began_cpu_ns = cpu_ns();
	n_read = sum(readers, n);
	usleep(COUNT_US);
	n_read = FP_MAX(sum(readers, n) - n_read, 1u);
	us = (double)(fp_clock_ns() - began_ns) / FP_NSEC_PER_USEC / (double)n_read;
	*ret_cpu_us = (double)(cpu_ns() - began_cpu_ns) / FP_NSEC_PER_USEC / (double)n_read;
	atomic_store(&stop, true);
	for (unsigned i = 0; i < n; i++)
		pthread_join(readers[i].thread, NULL);
	return us;
}

/*
 * Each page is written, so that a read fetches its bytes. Then each is read once, so that the
 * written pages have left: otherwise the first measurements would pay for that.
 */
static void fill(unsigned n_parts)
{
	char *mem =
	    mmap(NULL, (size_t)N_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		die("memory");
	for (size_t i = 0; i < N_PAGES; i++)
		memset(mem + i * PAGE, (int)(1 + i % 255), PAGE);
	memory = n_parts ? barefaults_map(mem, N_PAGES, LOCAL_PAGES, n_parts) : mem;
	for (size_t i = 0; i < N_PAGES; i++)
		(void)*(volatile const char *)(memory + i * PAGE);
}

static void measure(const char *kind, const char *numbers)
{
	rests = strncmp(kind, "rest", 4) == 0;
	same = kind[strlen(kind) - 1] == 's';
	pinned = same || kind[strlen(kind) - 1] == 'p';
	compute_us = strtoul(kind, NULL, 10);
	for (const char *at = numbers; at; at = strchr(at, ',')) {
		unsigned n = (unsigned)strtoul(at += *at == ',', NULL, 10);
		double us, cpu_us;

		if (n == 0 || n > THREADS_MAX)
			exit(2);
		us = us_a_page(n, &cpu_us);
		printf("%s %u %.3f %.3f\n", kind, n, us, cpu_us);
	}
}

int main(int argc, char **argv)
{
	unsigned n_parts = argc == 4 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;

	if (argc != 3 && n_parts == 0) {
		fprintf(stderr, "usage: threads KIND,... N_THREADS,... [PARTS]\n");
		return 2;
	}
	calibrate();
	fill(n_parts);
	for (char *kind = strtok(argv[1], ","); kind; kind = strtok(NULL, ","))
		measure(kind, argv[2]);
	return 0;
}
