/*
 * The cost of fork for a program with far memory, compared with a plain program of the same size.
 * It prints the time of the call in the parent, the time until the child runs, and the time until
 * the child has ended. It also measures children that exec another program, and calls that copy no
 * memory (posix_spawn, vfork, system). It prints medians, in µs. Room: test/bench.
 *
 *   forkcost FARPAGE [MIB...]     each size in three rows: plain, all local, a quarter local
 *   forkcost measure MIB          one row, of this process
 */
#include <errno.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

#define ROUNDS 21
#define PAGE   4096u

enum column { RETURNS, RUNS, ENDS, EXEC, SPAWN, VFORK, SYSTEM, COLUMNS };

static const char *const titles[COLUMNS] = {"returns", "child runs", "child ended", "fork+exec",
                                            "spawn",   "vfork+exec", "system"};

static char true_path[] = "/bin/true";
static char *const true_argv[] = {true_path, NULL};
static _Atomic uint64_t *child_ns; /* shared with the children */

static void die(const char *what)
{
	fprintf(stderr, "forkcost: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void reap(pid_t pid)
{
	int status;

	if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
		die("a child");
}

static double us_since(uint64_t begun_ns)
{
	return (double)(fp_clock_ns() - begun_ns) / 1000;
}

static void time_fork(double *row)
{
	uint64_t begun_ns = fp_clock_ns();
	pid_t pid = fork();

	if (pid == 0) {
		atomic_store(child_ns, fp_clock_ns());
		_exit(0);
	}
	row[RETURNS] = us_since(begun_ns);
	reap(pid);
	row[ENDS] = us_since(begun_ns);
	row[RUNS] = (double)(atomic_load(child_ns) - begun_ns) / 1000;
}

static double time_exec(void)
{
	uint64_t begun_ns = fp_clock_ns();
	pid_t pid = fork();

	if (pid == 0) {
		execv(true_path, true_argv);
		_exit(127);
	}
	reap(pid);
	return us_since(begun_ns);
}

static double time_spawn(void)
{
	uint64_t begun_ns = fp_clock_ns();
	pid_t pid = -1;

	if (posix_spawn(&pid, true_path, NULL, NULL, true_argv, environ) != 0)
		die("posix_spawn");
	reap(pid);
	return us_since(begun_ns);
}

static double time_vfork(void)
{
	uint64_t begun_ns = fp_clock_ns();
	pid_t pid = vfork();

	if (pid == 0) {
		execv(true_path, true_argv);
		_exit(127);
	}
	reap(pid);
	return us_since(begun_ns);
}

static double time_system(void)
{
	uint64_t begun_ns = fp_clock_ns();

	if (system(true_path) != 0)
		die("system");
	return us_since(begun_ns);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double (*rows)[COLUMNS], unsigned column)
{
	double values[ROUNDS];

	for (unsigned i = 0; i < ROUNDS; i++)
		values[i] = rows[i][column];
	qsort(values, ROUNDS, sizeof(values[0]), by_value);
	return values[ROUNDS / 2];
}

/*
 * The children run without the shim, because this measures fork and not the start of a program
 * under the shim.
 */
static void measure(size_t bytes)
{
	double rows[ROUNDS][COLUMNS];
	volatile char *mem = malloc(bytes);

	unsetenv("LD_PRELOAD");
	if (!mem)
		die("memory");
	for (size_t i = 0; i < bytes; i += PAGE)
		mem[i] = (char)(1 + i / PAGE);
	for (unsigned i = 0; i < ROUNDS; i++) {
		time_fork(rows[i]);
		rows[i][EXEC] = time_exec();
		rows[i][SPAWN] = time_spawn();
		rows[i][VFORK] = time_vfork();
		rows[i][SYSTEM] = time_system();
	}
	for (unsigned c = 0; c < COLUMNS; c++)
		printf("%12.0f", median(rows, c));
	printf("\n");
}

/* Runs this program again, with argv. */
static void run(const char *title, char *const *argv)
{
	pid_t pid = -1;

	printf("%-24s", title);
	fflush(stdout);
	if (posix_spawn(&pid, argv[0], NULL, NULL, argv, environ) != 0)
		die(argv[0]);
	reap(pid);
}

static void compare(char *self, char *farpage, const char *mib_text)
{
	static char run_word[] = "run", local_word[] = "--local-memory", end_word[] = "--",
	            measure_word[] = "measure";
	unsigned long mib = strtoul(mib_text, NULL, 10);
	char mib_word[24], local[2][24], title[64];
	char *plain[] = {self, measure_word, mib_word, NULL};
	char *far[] = {farpage, run_word, local_word, NULL, end_word, self, measure_word, mib_word, NULL};

	snprintf(mib_word, sizeof(mib_word), "%lu", mib);
	snprintf(title, sizeof(title), "%4lu MiB plain", mib);
	run(title, plain);
	for (unsigned quarter = 0; quarter < 2; quarter++) {
		snprintf(local[quarter], sizeof(local[0]), "%luM", quarter ? mib / 4 : mib + mib / 4 + 64);
		far[3] = local[quarter];
		snprintf(title, sizeof(title), "%4lu MiB far, %s local", mib, quarter ? "1/4" : "all");
		run(title, far);
	}
}

int main(int argc, char **argv)
{
	static char sizes[][8] = {"16", "64", "256"};

	child_ns = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (child_ns == MAP_FAILED)
		die("memory");
	if (argc == 3 && strcmp(argv[1], "measure") == 0) {
		measure(strtoul(argv[2], NULL, 10) << 20);
		return 0;
	}
	if (argc < 2) {
		fprintf(stderr, "usage: forkcost FARPAGE [MIB...]\n");
		return 2;
	}
	printf("%-24s", "median us");
	for (unsigned c = 0; c < COLUMNS; c++)
		printf("%12s", titles[c]);
	printf("\n");
	for (int i = 2; i < argc; i++)
		compare(argv[0], argv[1], argv[i]);
	for (unsigned i = 0; argc == 2 && i < sizeof(sizes) / sizeof(sizes[0]); i++)
		compare(argv[0], argv[1], sizes[i]);
	return 0;
}
