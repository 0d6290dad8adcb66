/*
 * An agent that is a process: it shares the program's memory and nothing else. Room: test/bench.
 * doc/agent-process.md says what this is for.
 *
 *     agentprocess kills [N [SEED]]   kills program, agent, watcher, or several, N times for each
 *                                     way to hold a second reference to the userfaultfd
 *     agentprocess turns              a fault served by a thread and by a process, by turns
 *
 * "ring": a ring of io_uring has the userfaultfd as a registered file, and is mapped. "watcher":
 * the watcher has a descriptor. "none": only the agent has one. A program that reads a wrong page
 * ends by WRONG.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "uffd.h"

#define PAGE       4096u
#define PAGES      256u
#define BYTES      ((size_t)PAGE * PAGES)
#define STACK      (256u << 10)
#define WRONG      66
#define PROGRAM_FD 900 /* the pidfds, in the tables of agent and watcher */
#define AGENT_FD   901
#define ROUNDS     41
#define DROPS      20

enum reference { RING, WATCHER, NONE };
enum who { AGENT = 1, PROGRAM = 2, WATCH = 4 };

/* What a program tells the process that kills it. */
struct shared {
	_Atomic pid_t agent, watcher;
	_Atomic bool ready;
};

static struct shared *shared;
static struct fp_uffd uffd;
static char *range, *source;
static enum reference held_by;
static _Atomic pid_t watcher_pid;
static _Atomic unsigned n_up;
static _Atomic bool stopping;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "agentprocess: %s: %s\n", what, strerror(errno));
	_exit(EXIT_FAILURE);
}

static char *map(size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

static void make_range(void)
{
	range = map(BYTES);
	source = map(BYTES);
	madvise(range, BYTES, MADV_NOHUGEPAGE);
	for (uint64_t i = 0; i < PAGES; i++)
		memcpy(source + i * PAGE, &(uint64_t){i + 1}, sizeof(uint64_t));
	if (fp_uffd_open(0, &uffd) < 0 || fp_uffd_register(&uffd, range, BYTES) < 0 ||
	    fp_uffd_set_nonblock(&uffd, true) < 0)
		die("userfaultfd");
}

/* After this, only a mapping has the ring, and the ring has the userfaultfd. */
static void hold_by_ring(void)
{
	struct io_uring_params params = {0};
	int ring = (int)syscall(SYS_io_uring_setup, 1, &params);

	if (ring < 0)
		die("io_uring_setup");
	if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &uffd.fd, 1) < 0 ||
	    mmap(NULL, PAGE, PROT_READ, MAP_SHARED, ring, IORING_OFF_SQ_RING) == MAP_FAILED)
		die("the ring");
	close(ring);
}

/* ---- the processes ---- */

/*
 * A process that shares this one's memory. It has no exit signal, so waitpid does not show it. Its
 * thread-local block has the guards of ours at 0x28 and 0x30, and points to itself at 0 and 0x10.
 */
static pid_t start(int (*run)(void *))
{
	void *(*allocate)(void *) = (void *(*)(void *))(uintptr_t)dlsym(RTLD_DEFAULT, "_dl_allocate_tls");
	char *tls = allocate ? allocate(NULL) : NULL, *own = (char *)pthread_self();
	char *stack = map(STACK);
	pid_t pid;

	if (!tls)
		die("_dl_allocate_tls");
	memcpy(tls, &tls, sizeof(tls));
	memcpy(tls + 0x10, &tls, sizeof(tls));
	memcpy(tls + 0x28, own + 0x28, 16);
	pid = clone(run, stack + STACK, CLONE_VM | CLONE_UNTRACED | CLONE_SETTLS, NULL, NULL, tls);
	if (pid < 0)
		die("clone");
	return pid;
}

static void block_signals(void)
{
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
}

static void serve(void)
{
	struct fp_uffd_fault fault;

	while (fp_uffd_read(&uffd, &fault, 1) == 1) {
		size_t at = (size_t)(fault.addr - (uintptr_t)range) & ~(size_t)(PAGE - 1);

		(void)fp_uffd_copy(&uffd, range + at, source + at, PAGE, false);
	}
}

/* PROT_NONE, because SIGKILL does not reach a program that is pid 1 of its namespace. */
static void end_program(void)
{
	mprotect(range, BYTES, PROT_NONE);
	syscall(SYS_pidfd_send_signal, PROGRAM_FD, SIGKILL, NULL, 0);
}

static void keep_only(int kept)
{
	for (int fd = STDERR_FILENO + 1; fd <= AGENT_FD; fd++)
		if (fd != kept && fd != PROGRAM_FD && fd != AGENT_FD)
			close(fd);
}

static int run_agent(void *unused)
{
	struct pollfd fds[] = {{uffd.fd, POLLIN, 0}, {PROGRAM_FD, POLLIN, 0}, {-1, POLLIN, 0}};

	(void)unused;
	block_signals();
	keep_only(uffd.fd);
	while (!watcher_pid)
		sched_yield();
	fds[2].fd = (int)syscall(SYS_pidfd_open, watcher_pid, 0);
	atomic_fetch_add(&n_up, 1);
	while (!fds[1].revents && !fds[2].revents && fds[2].fd >= 0) {
		poll(fds, FP_ARRAY_LEN(fds), -1);
		serve();
	}
	if (!fds[1].revents)
		end_program();
	_exit(0);
}

static int run_watcher(void *unused)
{
	struct pollfd fds[] = {{PROGRAM_FD, POLLIN, 0}, {AGENT_FD, POLLIN, 0}};

	(void)unused;
	block_signals();
	keep_only(held_by == WATCHER ? uffd.fd : -1);
	atomic_fetch_add(&n_up, 1);
	while (!fds[0].revents && !fds[1].revents)
		poll(fds, FP_ARRAY_LEN(fds), -1);
	if (!fds[0].revents)
		end_program();
	_exit(0);
}

static void open_as(pid_t pid, int number)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	if (fd < 0 || dup2(fd, number) < 0)
		die("pidfd_open");
	close(fd);
}

static void start_both(void)
{
	open_as(getpid(), PROGRAM_FD);
	shared->agent = start(run_agent);
	open_as(shared->agent, AGENT_FD);
	shared->watcher = start(run_watcher);
	watcher_pid = shared->watcher;
	while (atomic_load(&n_up) < 2)
		sched_yield();
	close(PROGRAM_FD);
	close(AGENT_FD);
	close(uffd.fd);
}

/* ---- kills ---- */

static void *churn(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	for (;;) {
		uint64_t i = (unsigned)rand_r(&seed) % PAGES, seen = *(volatile uint64_t *)(range + i * PAGE);

		if (seen != i + 1)
			_exit(WRONG);
		if (rand_r(&seed) % 4 == 0)
			madvise(range + (unsigned)rand_r(&seed) % PAGES * PAGE, PAGE, MADV_DONTNEED);
	}
	return NULL;
}

static _Noreturn void be_program(void)
{
	pthread_t other;

	make_range();
	if (held_by == RING)
		hold_by_ring();
	start_both();
	pthread_create(&other, NULL, churn, (void *)1);
	atomic_store(&shared->ready, true);
	churn((void *)2);
	_exit(0);
}

/* True if the process has ended within a second. Otherwise kills it. */
static bool has_ended(int pidfd)
{
	struct pollfd fd = {pidfd, POLLIN, 0};
	bool ended = poll(&fd, 1, 1000) == 1;

	if (!ended)
		syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	return ended;
}

struct ends {
	unsigned wrong, late;
};

static void kill_once(unsigned whom, unsigned wait_us, struct ends *ends)
{
	pid_t program;
	int fds[3], status;

	memset(shared, 0, sizeof(*shared));
	program = fork();
	if (program == 0)
		be_program();
	while (!atomic_load(&shared->ready))
		usleep(50);
	fds[0] = (int)syscall(SYS_pidfd_open, shared->agent, 0);
	fds[1] = (int)syscall(SYS_pidfd_open, program, 0);
	fds[2] = (int)syscall(SYS_pidfd_open, shared->watcher, 0);
	usleep(wait_us);
	for (unsigned i = 0; i < FP_ARRAY_LEN(fds); i++)
		if (whom & (1u << i))
			syscall(SYS_pidfd_send_signal, fds[i], SIGKILL, NULL, 0);
	for (unsigned i = 0; i < FP_ARRAY_LEN(fds); i++)
		ends->late += !has_ended(fds[i]);
	waitpid(program, &status, 0);
	ends->wrong += WIFEXITED(status) && WEXITSTATUS(status) == WRONG;
	for (unsigned i = 0; i < FP_ARRAY_LEN(fds); i++)
		close(fds[i]);
}

static int kills(unsigned n, unsigned seed)
{
	static const char *const names[] = {[RING] = "ring", [WATCHER] = "watcher", [NONE] = "none"};
	static const char *const whoms[] = {
	    [AGENT] = "agent",
	    [PROGRAM] = "program",
	    [AGENT | PROGRAM] = "agent and program",
	    [WATCH] = "watcher",
	    [AGENT | WATCH] = "agent and watcher",
	};

	printf("seed %u, %u kills of each\n%-10s %-18s %6s %6s\n", seed, n, "reference", "killed", "wrong",
	       "late");
	for (unsigned reference = RING; reference <= NONE; reference++)
		for (unsigned whom = AGENT; whom <= (AGENT | WATCH); whom++) {
			struct ends ends = {0};

			held_by = reference;
			for (unsigned i = 0; i < n; i++)
				kill_once(whom, (unsigned)rand_r(&seed) % 4000, &ends);
			printf("%-10s %-18s %6u %6u\n", names[reference], whoms[whom], ends.wrong, ends.late);
		}
	return 0;
}

/* ---- turns ---- */

static void stay_on(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

static int server_cpu;

static int serve_until_stop(void *unused)
{
	struct pollfd fd = {uffd.fd, POLLIN, 0};

	(void)unused;
	stay_on(server_cpu);
	while (!atomic_load(&stopping)) {
		poll(&fd, 1, 20);
		serve();
	}
	return 0;
}

static int process_until_stop(void *unused)
{
	serve_until_stop(unused);
	_exit(0);
}

static void *thread_until_stop(void *unused)
{
	serve_until_stop(unused);
	return NULL;
}

static void touch_all(void)
{
	for (uint64_t i = 0; i < PAGES; i++)
		if (*(volatile uint64_t *)(range + i * PAGE) != i + 1)
			die("a wrong page");
}

/* µs a fault */
static double measure(bool by_process)
{
	pthread_t thread;
	pid_t process = 0;
	uint64_t began_ns;
	double us;

	atomic_store(&stopping, false);
	if (by_process)
		process = start(process_until_stop);
	else
		pthread_create(&thread, NULL, thread_until_stop, NULL);
	touch_all();
	began_ns = fp_clock_ns();
	for (unsigned i = 0; i < DROPS; i++) {
		madvise(range, BYTES, MADV_DONTNEED);
		touch_all();
	}
	us = (double)(fp_clock_ns() - began_ns) / 1e3 / (DROPS * PAGES);
	atomic_store(&stopping, true);
	if (by_process)
		waitpid(process, NULL, __WALL);
	else
		pthread_join(thread, NULL);
	return us;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print(const char *what, double *values)
{
	qsort(values, ROUNDS, sizeof(*values), by_size);
	printf("  %-15s median %.2f, %.2f to %.2f\n", what, values[ROUNDS / 2], values[0],
	       values[ROUNDS - 1]);
}

static int turns(void)
{
	static double us[2][ROUNDS], ratios[ROUNDS];

	make_range();
	stay_on(0);
	for (server_cpu = 0; server_cpu < 2; server_cpu++) {
		for (unsigned i = 0; i < ROUNDS; i++) {
			us[i % 2][i] = measure(i % 2);
			us[!(i % 2)][i] = measure(!(i % 2));
			ratios[i] = us[1][i] / us[0][i];
		}
		printf("server on %s\n", server_cpu ? "another CPU" : "the same CPU");
		print("thread, µs", us[0]);
		print("process, µs", us[1]);
		print("process/thread", ratios);
	}
	return 0;
}

int main(int argc, char **argv)
{
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("mmap");
	setlinebuf(stdout);
	if (argc > 1 && strcmp(argv[1], "kills") == 0)
		return kills(argc > 2 ? (unsigned)atoi(argv[2]) : 50,
		             argc > 3 ? (unsigned)atoi(argv[3]) : (unsigned)getpid());
	if (argc > 1 && strcmp(argv[1], "turns") == 0)
		return turns();
	fprintf(stderr, "usage: agentprocess kills [N [SEED]] | turns\n");
	return 2;
}
