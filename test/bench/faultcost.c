/*
 * Where the time of a fault goes, without a pager: each part between two looks at the clock. Room:
 * test/bench. It prints medians, in µs. Columns: the way from the touch into the handler,
 * UFFDIO_COPY with the waking of the thread, the way back until the touch has ended, and the whole.
 * The last column is the mean of the whole, with all that the kernel does meanwhile.
 * `farpage bench fault` prints what the pager adds.
 *
 * Rows: the kernel's own zero page; inline, where a handler of SIGBUS copies the page; and a fault
 * thread that blocks in read, on the CPU of the touching thread and on another one. "and drops":
 * after BATCH faults, whoever copies also drops the BATCH pages that came before them, by one call.
 * So this is the least that a random read of clean pages costs, evictions included.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "clock.h"
#include "uffd.h"

#define PAGE  4096u
#define PAGES 16384u
#define BATCH 64u

enum part { WAY_IN, COPY, WAY_BACK, WHOLE, PARTS };

static struct fp_uffd uffd;
static char *memory, *source;
static uint64_t begin_ns[PAGES], entered_ns[PAGES], copied_ns[PAGES], end_ns[PAGES]; /* by fault */
static double us[PARTS][PAGES];
static bool drops;
static int pidfd;
static struct iovec recent[2 * BATCH]; /* the pages copied last, a ring */
static unsigned n_served;

static void die(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

/* Notes a copied page. Each BATCH pages, drops the BATCH pages before them. */
static void note(char *page)
{
	recent[n_served++ % (2 * BATCH)] = (struct iovec){.iov_base = page, .iov_len = PAGE};
	if (drops && n_served % BATCH == 0 && n_served >= 2 * BATCH &&
	    syscall(SYS_process_madvise, pidfd, &recent[n_served % (2 * BATCH)], (size_t)BATCH, MADV_DONTNEED,
	            0) < 0)
		die("process_madvise");
}

static void serve(uint64_t addr)
{
	char *page = memory + ((addr - (uintptr_t)memory) & ~(uint64_t)(PAGE - 1));

	entered_ns[n_served] = fp_clock_ns();
	if (fp_uffd_copy(&uffd, page, source + (page - memory), PAGE, false) != PAGE)
		die("UFFDIO_COPY");
	copied_ns[n_served] = fp_clock_ns();
	note(page);
}

static void on_bus(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	serve((uintptr_t)info->si_addr);
}

static void stay_on(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus) < 0)
		die("sched_setaffinity");
}

/* Serves faults until the thread is cancelled, which happens inside read. */
static void *serve_all(void *arg)
{
	struct fp_uffd_fault fault;

	stay_on(*(const int *)arg);
	while (fp_uffd_read(&uffd, &fault, 1) == 1)
		serve(fault.addr);
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static double between(uint64_t from_ns, uint64_t to_ns)
{
	return (double)(int64_t)(to_ns - from_ns) / FP_NSEC_PER_USEC;
}

static double median(enum part part)
{
	qsort(us[part], PAGES, sizeof(double), by_value);
	return us[part][PAGES / 2];
}

/* Touches each page once, in an order without neighbours. */
static void touch_all(void)
{
	for (uint32_t i = 0; i < PAGES; i++) {
		begin_ns[i] = fp_clock_ns();
		((volatile char *)memory)[(i * 9973u % PAGES) * (size_t)PAGE];
		end_ns[i] = fp_clock_ns();
	}
}

/* served: the faults were served here. name: NULL prints nothing. */
static void print_row(const char *name, bool served)
{
	for (uint32_t i = 0; i < PAGES; i++) {
		us[WAY_IN][i] = between(begin_ns[i], entered_ns[i]);
		us[COPY][i] = between(entered_ns[i], copied_ns[i]);
		us[WAY_BACK][i] = between(copied_ns[i], end_ns[i]);
		us[WHOLE][i] = between(begin_ns[i], end_ns[i]);
	}
	if (!name)
		return;
	printf("%-28s", name);
	for (enum part part = WAY_IN; part < WHOLE; part++)
		if (served)
			printf(" %8.2f", median(part));
		else
			printf(" %8s", "-");
	printf(" %8.2f %8.2f\n", median(WHOLE), between(begin_ns[0], end_ns[PAGES - 1]) / PAGES);
}

static void map_memory(void)
{
	memory = mmap(NULL, PAGES * (size_t)PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	madvise(memory, PAGES * (size_t)PAGE, MADV_NOHUGEPAGE);
}

static void unmap_memory(void)
{
	munmap(memory, PAGES * (size_t)PAGE);
}

static void open_uffd(unsigned flags)
{
	map_memory();
	if (fp_uffd_open(flags | FP_UFFD_USER_ONLY, &uffd) < 0) {
		printf("faultcost: needs userfaultfd\n");
		exit(EXIT_SUCCESS);
	}
	if (fp_uffd_register(&uffd, memory, PAGES * (size_t)PAGE) < 0)
		die("register");
}

static void measure_kernel(void)
{
	map_memory();
	touch_all();
	print_row("the kernel's own", false);
	unmap_memory();
}

static void measure_inline(const char *name, bool and_drops)
{
	struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};

	drops = and_drops;
	n_served = 0;
	open_uffd(FP_UFFD_SIGBUS);
	if (sigaction(SIGBUS, &action, NULL) < 0)
		die("sigaction");
	touch_all();
	print_row(name, true);
	fp_uffd_close(&uffd);
	unmap_memory();
}

static void measure_thread(const char *name, int cpu, bool and_drops)
{
	pthread_t thread;

	drops = and_drops;
	n_served = 0;
	open_uffd(0);
	if (pthread_create(&thread, NULL, serve_all, &cpu) != 0)
		die("pthread_create");
	touch_all();
	pthread_cancel(thread);
	pthread_join(thread, NULL);
	print_row(name, true);
	fp_uffd_close(&uffd);
	unmap_memory();
}

int main(void)
{
	cpu_set_t cpus;
	int first = 0, last = CPU_SETSIZE - 1;

	sched_getaffinity(0, sizeof(cpus), &cpus);
	while (!CPU_ISSET(first, &cpus))
		first++;
	while (!CPU_ISSET(last, &cpus))
		last--;
	stay_on(first);
	source = malloc(PAGES * (size_t)PAGE);
	if (!source)
		die("malloc");
	memset(source, 1, PAGES * (size_t)PAGE);
	pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	measure_inline(NULL, false); /* the kernel's first read of a source page may cost more than others */
	printf("%-28s %8s %8s %8s %8s %8s\n", "µs", "way in", "copy", "back", "whole", "mean");
	measure_kernel();
	measure_inline("inline", false);
	measure_inline("inline, and drops", true);
	measure_thread("thread, same CPU", first, false);
	measure_thread("thread, same CPU, and drops", first, true);
	if (last != first)
		measure_thread("thread, another CPU", last, false);
	return EXIT_SUCCESS;
}
