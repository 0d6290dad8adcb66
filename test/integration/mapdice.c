/*
 * mapdice: makes random calls of the mapping family. A plain process makes the same calls, and
 * mapdice compares the answers and the pages' bytes of both. Room: test/integration.
 *
 *   mapdice --farpaged F --preload LIB --transport T --capture C [--fault-mode M]
 *           [--local SIZE] [--seconds S] [--steps N] [--exact]
 *
 * Both processes are this program. Their steps depend only on the seed and on answers that are
 * compared. By default the process with far memory has 256K of local memory, which is half of what
 * it uses. If --local is larger than what it uses, the kernel fills fresh pages. Two kinds of steps
 * are left out. One is a step whose answer depends on how the kernel happened to merge mappings.
 * The other is mremap of locked memory, which is refused. FP_TEST_SEED=N repeats a run. --exact
 * finds a step that ends the process or never ends.
 */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "mapplayer.h"
#include "testrng.h"
#include "underpreload.h"

#define HISTORY  4096u
#define STUCK_MS 120000

struct options {
	const char *farpaged, *preload, *transport, *capture, *fault_mode, *local;
	uint64_t seed, seconds, steps;
	bool exact;
};

struct player {
	const char *name;
	pid_t pid;
	int fd;
	size_t n, next; /* counts of records */
	struct record records[MAP_BATCH];
};

struct history {
	uint64_t n;
	struct record records[HISTORY];
};

static bool start(struct player *p, const struct options *o, const char *preload)
{
	char seed[32], batch[8];
	int fds[2];

	snprintf(seed, sizeof(seed), "%" PRIu64, o->seed);
	snprintf(batch, sizeof(batch), "%u", o->exact ? 1 : MAP_BATCH);
	if (pipe2(fds, O_CLOEXEC) < 0)
		return false;
	p->pid = fork();
	if (p->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(fds[1], STDOUT_FILENO);
		if (preload)
			setenv("LD_PRELOAD", preload, 1);
		execl("/proc/self/exe", "mapdice", "--play", seed, batch,
		      strcmp(o->fault_mode, "inline") == 0 ? "1" : "0", (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	p->fd = fds[0];
	p->name = preload ? "far" : "plain";
	return p->pid > 0;
}

static void stop(struct player *p)
{
	int status;

	if (p->pid <= 0)
		return;
	kill(p->pid, SIGKILL);
	waitpid(p->pid, &status, 0);
	close(p->fd);
}

/* Waits for the end of a process that sends no more records, and prints how it ended. */
static void tell_end(struct player *p)
{
	int status = 0;

	if (waitpid(p->pid, &status, 0) != p->pid)
		return;
	p->pid = 0;
	if (WIFSIGNALED(status))
		printf("%s: ended by signal %d\n", p->name, WTERMSIG(status));
	else
		printf("%s: ended with status %d\n", p->name, WEXITSTATUS(status));
}

/* Returns the process's next record. NULL: the process has ended or hangs. */
static const struct record *next(struct player *p, uint64_t step)
{
	size_t got = 0;

	if (p->next < p->n)
		return &p->records[p->next++];
	do {
		struct pollfd pollfd = {.fd = p->fd, .events = POLLIN};
		int ready = poll(&pollfd, 1, STUCK_MS);
		ssize_t r = ready > 0 ? read(p->fd, (char *)p->records + got, sizeof(p->records) - got) : -1;

		if (r <= 0) {
			printf("%s: no step %" PRIu64 ", nor %u more\n", p->name, step, MAP_BATCH - 1);
			if (r == 0)
				tell_end(p);
			else
				printf("%s: stuck\n", p->name);
			return NULL;
		}
		got += (size_t)r;
	} while (got % sizeof(struct record));
	p->n = got / sizeof(struct record);
	p->next = 1;
	return &p->records[0];
}

static void tell(const char *who, uint64_t step, const struct record *r)
{
	printf("%s: step %" PRIu64 ": op %u start %u n %u arg %#x: %" PRId64 ", errno %d, hash %" PRIx64 "\n",
	       who, step, r->op, r->start, r->n, r->arg, r->ret, r->error, r->hash);
}

/* Prints the history of the pages of a step, and of a few around them. */
static void tell_history(const struct history *h, const struct record *at)
{
	uint64_t first = h->n > HISTORY ? h->n - HISTORY : 0;

	for (uint64_t i = first; i < h->n; i++) {
		const struct record *r = &h->records[i % HISTORY];
		uint32_t to = r->op == OP_REMAP ? r->arg >> 8 & 0xff : r->start;
		bool meets = (r->start < at->start + at->n && at->start < r->start + r->n) ||
		             (to < at->start + at->n && at->start < to + (r->arg & 0xff));

		if (h->n - i < 8 || (h->n - i < 400 && meets && r->op != OP_WRITE && r->op != OP_MINCORE))
			tell("before", i + 1, r);
	}
}

static bool is_same(const struct record *a, const struct record *b, uint64_t step, const struct history *h)
{
	if (memcmp(a, b, sizeof(*a)) == 0)
		return true;
	tell_history(h, a);
	tell("plain", step, a);
	tell("far", step, b);
	return false;
}

static uint64_t compare(struct player *plain, struct player *far, const struct options *o, bool *ret_same)
{
	uint64_t until_ns = fp_clock_ns() + o->seconds * FP_NSEC_PER_SEC, i = 0;
	static struct history history;

	*ret_same = true;
	while (*ret_same && i < o->steps && (i % 64 || fp_clock_ns() < until_ns)) {
		const struct record *a = next(plain, i + 1), *b = a ? next(far, i + 1) : NULL;

		i++;
		*ret_same = b && is_same(a, b, i, &history);
		if (*ret_same)
			history.records[history.n++ % HISTORY] = *a;
	}
	return i;
}

/* ---- the command line ---- */

static void set_environment(const struct test_daemon *node, const struct options *o)
{
	setenv("FARPAGE_LOCAL_MEMORY", o->local, 1);
	setenv("FARPAGE_NODES", node->url, 1);
	setenv("FARPAGE_HEAP", "none", 1);
	setenv("FARPAGE_CAPTURE", o->capture, 1);
	setenv("FARPAGE_FAULT_MODE", o->fault_mode, 1);
	test_stats_use(node);
}

static int run(const struct options *o, const char *self)
{
	struct player plain = {.pid = 0}, far = {.pid = 0};
	struct test_daemon node;
	bool same = false;
	uint64_t steps = 0;

	if (test_daemon_start(o->farpaged, o->transport, 64ull << 20, &node) < 0)
		return 1;
	set_environment(&node, o);
	if (start(&plain, o, NULL) && start(&far, o, o->preload))
		steps = compare(&plain, &far, o, &same);
	stop(&far);
	stop(&plain);
	test_stats_remove(&node);
	test_daemon_stop(&node);
	printf("%s: %" PRIu64 " steps, %s, %s, %s, %s\n", same ? "the same" : "DIFFERENT", steps,
	       o->transport, o->capture, o->fault_mode, o->local);
	if (!same)
		printf("again: FP_TEST_SEED=%" PRIu64 " %s --farpaged %s --preload %s --transport %s "
		       "--capture %s --fault-mode %s --local %s --steps %" PRIu64 " --exact\n",
		       o->seed, self, o->farpaged, o->preload, o->transport, o->capture, o->fault_mode,
		       o->local, steps + MAP_BATCH);
	return same ? 0 : 1;
}

static bool parse(int argc, char **argv, struct options *o)
{
	static const struct option long_options[] = {{"farpaged", required_argument, NULL, 'f'},
	                                             {"preload", required_argument, NULL, 'p'},
	                                             {"transport", required_argument, NULL, 't'},
	                                             {"capture", required_argument, NULL, 'c'},
	                                             {"fault-mode", required_argument, NULL, 'm'},
	                                             {"local", required_argument, NULL, 'l'},
	                                             {"seconds", required_argument, NULL, 's'},
	                                             {"steps", required_argument, NULL, 'n'},
	                                             {"exact", no_argument, NULL, 'e'},
	                                             {NULL, 0, NULL, 0}};
	int c;

	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1)
		switch (c) {
		case 'f':
			o->farpaged = optarg;
			break;
		case 'p':
			o->preload = optarg;
			break;
		case 't':
			o->transport = optarg;
			break;
		case 'c':
			o->capture = optarg;
			break;
		case 'm':
			o->fault_mode = optarg;
			break;
		case 'l':
			o->local = optarg;
			break;
		case 's':
			o->seconds = strtoull(optarg, NULL, 0);
			break;
		case 'n':
			o->steps = strtoull(optarg, NULL, 0);
			break;
		case 'e':
			o->exact = true;
			break;
		default:
			return false;
		}
	return o->farpaged && o->preload && optind == argc;
}

int main(int argc, char **argv)
{
	struct options o = {.transport = "shm",
	                    .capture = "move",
	                    .fault_mode = "thread",
	                    .local = "256K",
	                    .seconds = 365ull * 24 * 3600,
	                    .steps = UINT64_MAX};

	if (argc == 5 && strcmp(argv[1], "--play") == 0)
		return map_play(argv);
	if (!parse(argc, argv, &o)) {
		fprintf(stderr,
		        "usage: %s --farpaged F --preload LIB [--transport T] [--capture C] "
		        "[--fault-mode M] [--local SIZE] [--seconds S] [--steps N] [--exact]\n",
		        argv[0]);
		return 2;
	}
	if (test_cannot_run())
		return TEST_SKIPPED;
	o.seed = test_seed("mapdice");
	return run(&o, argv[0]);
}
