/*
 * churn: threads use far memory over real nodes in every way, and check every byte. Their parent
 * measures their resident memory from outside. Room: test/integration. churner.h has the threads,
 * churnwatch.h the parent's measuring.
 *
 *   churn --farpaged build/daemon/farpaged --transport tcp --seconds 600
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "churner.h"
#include "churnwatch.h"
#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "testrng.h"
#include "units.h"

#define SKIP        77
#define SLACK_BYTES (1ull << 20) /* so many resident bytes beyond the budget are allowed */
/*
 * The deadline of a fault is one second longer. So an operation that took longer than STALL_NS
 * probably waited for that deadline.
 */
#define STALL_NS (4 * FP_NSEC_PER_SEC)
#define GRACE_NS (60 * FP_NSEC_PER_SEC) /* time for starting, and for comparing all at the end */

struct settings {
	struct fp_agent_options agent;
	struct churn_options churn;
	uint64_t stall_ns; /* the longest time that an operation may take */
	const char *urls[FP_STORE_MAX_NODES];
	const char *farpaged;
	const char *transports[FP_STORE_MAX_NODES]; /* transports of the nodes that churn starts */
	unsigned n_transports;
};

enum {
	OPT_SEED,
	OPT_SECONDS,
	OPT_OPS,
	OPT_THREADS,
	OPT_LOCAL_PAGES,
	OPT_SIZE,
	OPT_NODE,
	OPT_CAPTURE,
	OPT_FAULT_MODE,
	OPT_OVERCOMMIT,
	OPT_FARPAGED,
	OPT_TRANSPORT,
	OPT_READAHEAD,
	OPT_STALL
};

static const struct option long_options[] = {
    {"seed", required_argument, NULL, OPT_SEED},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"ops", required_argument, NULL, OPT_OPS},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"local-pages", required_argument, NULL, OPT_LOCAL_PAGES},
    {"size", required_argument, NULL, OPT_SIZE},
    {"node", required_argument, NULL, OPT_NODE},
    {"capture", required_argument, NULL, OPT_CAPTURE},
    {"fault-mode", required_argument, NULL, OPT_FAULT_MODE},
    {"overcommit", no_argument, NULL, OPT_OVERCOMMIT},
    {"farpaged", required_argument, NULL, OPT_FARPAGED},
    {"transport", required_argument, NULL, OPT_TRANSPORT},
    {"readahead", required_argument, NULL, OPT_READAHEAD},
    {"stall", required_argument, NULL, OPT_STALL},
    {NULL, 0, NULL, 0},
};

static void usage(void)
{
	fprintf(stderr, "usage: churn (--node URL | --farpaged PATH --transport shm|tcp|rdma)... [--seconds "
	                "N] [--ops N]\n"
	                "             [--threads N] [--local-pages N] [--size SIZE] [--capture move|protect] "
	                "[--fault-mode thread|inline] [--overcommit]\n"
	                "             [--readahead PAGES] [--stall SECONDS] [--seed N]\n");
	exit(2);
}

static uint64_t number(const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 0);

	if (*text == '\0' || *end)
		usage();
	return n;
}

static enum fp_capture_mode capture_mode(const char *text)
{
	if (strcmp(text, "move") == 0)
		return FP_CAPTURE_MOVE;
	if (strcmp(text, "protect") != 0)
		usage();
	return FP_CAPTURE_PROTECT;
}

static enum fp_fault_mode fault_mode(const char *text)
{
	if (strcmp(text, "inline") == 0)
		return FP_FAULT_MODE_INLINE;
	if (strcmp(text, "thread") != 0)
		usage();
	return FP_FAULT_MODE_THREAD;
}

static void set(struct settings *s, int option, const char *arg)
{
	uint64_t size;

	switch (option) {
	case OPT_SEED:
		s->churn.seed = number(arg);
		break;
	case OPT_SECONDS:
		s->churn.duration_ns = number(arg) * FP_NSEC_PER_SEC;
		break;
	case OPT_OPS:
		s->churn.ops = number(arg);
		break;
	case OPT_THREADS:
		s->churn.n_threads = (unsigned)number(arg);
		break;
	case OPT_LOCAL_PAGES:
		s->agent.local_bytes = number(arg) * FP_PAGE_SIZE;
		break;
	case OPT_SIZE:
		if (fp_size_parse(arg, &size) < 0)
			usage();
		s->churn.bytes = size;
		break;
	case OPT_NODE:
		if (s->agent.n_urls == FP_STORE_MAX_NODES)
			usage();
		s->urls[s->agent.n_urls++] = arg;
		break;
	case OPT_CAPTURE:
		s->agent.capture = capture_mode(arg);
		break;
	case OPT_FAULT_MODE:
		s->agent.fault_mode = fault_mode(arg);
		break;
	case OPT_OVERCOMMIT:
		s->agent.overcommit = true;
		break;
	case OPT_FARPAGED:
		s->farpaged = arg;
		break;
	case OPT_TRANSPORT:
		if (s->n_transports == FP_STORE_MAX_NODES)
			usage();
		s->transports[s->n_transports++] = arg;
		break;
	case OPT_READAHEAD:
		s->agent.readahead_pages = (unsigned)number(arg);
		break;
	case OPT_STALL:
		s->stall_ns = number(arg) * FP_NSEC_PER_SEC;
		s->agent.deadline_ns = s->stall_ns + FP_NSEC_PER_SEC;
		break;
	default:
		usage();
	}
}

static void parse(int argc, char **argv, struct settings *s)
{
	int option;

	while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
		set(s, option, optarg);
	if (optind != argc || (s->n_transports && !s->farpaged) || s->n_transports + s->agent.n_urls == 0 ||
	    s->n_transports + s->agent.n_urls > FP_STORE_MAX_NODES || s->churn.n_threads == 0 ||
	    s->churn.n_threads > CHURN_MAX_THREADS)
		usage();
}

/*
 * The pools have twice the bytes that are mapped, because a mapping that moves has slots at both
 * places.
 */
static int start_daemons(struct settings *s, struct test_daemon *daemons)
{
	uint64_t pool_bytes = 2 * s->churn.bytes + (128ull << 20);

	for (unsigned i = 0; i < s->n_transports; i++) {
		int r = test_daemon_start(s->farpaged, s->transports[i], pool_bytes, &daemons[i]);

		if (r < 0) {
			fprintf(stderr, "churn: %s: %s\n", s->farpaged, strerror(-r));
			return r;
		}
		s->urls[s->agent.n_urls++] = daemons[i].url;
		if (daemons[i].secret)
			s->agent.secret = daemons[i].secret;
	}
	return 0;
}

/* ---- the child ---- */

static void report(const struct fp_statspage *stats, const struct churn_result *result)
{
	char p50[32], p99[32], max[32];
	struct fp_hist latency;

	fp_statspage_sum_kinds(stats, &latency);
	printf("churn: %" PRIu64 " operations, %" PRIu64 " refused, longest %s\n", result->ops,
	       result->refused, fp_time_format(result->longest_ns, max, sizeof(max)));
	printf("churn: faults:");
	for (int i = 0; i < FP_FAULT_KINDS; i++)
		printf(" %s %" PRIu64, fp_fault_kind_name(i), atomic_load(&stats->faults[i]));
	printf("; p50 %s, p99 %s\n", fp_time_format(fp_hist_quantile(&latency, 0.5), p50, sizeof(p50)),
	       fp_time_format(fp_hist_quantile(&latency, 0.99), p99, sizeof(p99)));
	printf("churn: evicted: clean %" PRIu64 ", dirty %" PRIu64 ", zero %" PRIu64 ", refused %" PRIu64
	       "; prefetched %" PRIu64 ", waits for room %" PRIu64 "\n",
	       atomic_load(&stats->evicted_clean), atomic_load(&stats->evicted_dirty),
	       atomic_load(&stats->evicted_zero), atomic_load(&stats->evict_refused),
	       atomic_load(&stats->prefetched_pages), atomic_load(&stats->waits_for_room));
}

/* True if pages left and came back. A run without that proves nothing. */
static bool was_a_churn(const struct settings *s, const struct fp_statspage *stats)
{
	if (s->agent.local_bytes >= s->churn.bytes / 4)
		return true;
	return atomic_load(&stats->evicted_dirty) && atomic_load(&stats->evicted_clean) &&
	       atomic_load(&stats->evicted_zero) && atomic_load(&stats->fetched_bytes);
}

static bool judge(const struct settings *s, const struct fp_statspage *stats,
                  const struct churn_result *result)
{
	const char *wrong = NULL;

	if (result->refused)
		wrong = "layout calls were refused though the nodes have room for everything";
	else if (result->longest_ns > s->stall_ns)
		wrong = "an operation took longer than any should";
	else if (atomic_load(&stats->lost_pages))
		wrong = "pages were lost though no node was";
	else if (!was_a_churn(s, stats))
		wrong = "nothing was evicted and fetched again: more bytes or fewer local pages are needed";
	if (wrong)
		fprintf(stderr, "churn: %s; seed %" PRIu64 "\n", wrong, s->churn.seed);
	return !wrong;
}

static int run_child(struct settings *s)
{
	struct churn_result result;
	struct fp_agent_error error;
	bool good;
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	s->agent.urls = s->urls;
	r = fp_agent_start(&s->agent, &s->churn.agent, &error);
	if (r < 0) {
		fprintf(stderr, "churn: %s\n", error.text);
		return 1;
	}
	churn_run(&s->churn, &result);
	report(fp_agent_stats(s->churn.agent), &result);
	good = judge(s, fp_agent_stats(s->churn.agent), &result);
	fp_agent_stop(s->churn.agent);
	return good ? 0 : 1;
}

/* ---- the parent ---- */

static int watch_child(struct settings *s)
{
	struct churnwatch watch;
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		return 1;
	if (pid == 0)
		exit(run_child(s));
	status =
	    churnwatch_run(pid, s->agent.local_bytes + SLACK_BYTES, s->churn.duration_ns + GRACE_NS, &watch);
	printf("churn: resident at most %" PRIu64 " KiB with a budget of %" PRIu64 " KiB, in %" PRIu64
	       " samples\n",
	       watch.peak_bytes >> 10, s->agent.local_bytes >> 10, watch.samples);
	if (WIFSIGNALED(status))
		fprintf(stderr, "churn: it was ended by signal %d; seed %" PRIu64 "\n", WTERMSIG(status),
		        s->churn.seed);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
	struct settings s = {
	    .agent = {.local_bytes = 64 * FP_PAGE_SIZE,
	              .pins = true,
	              .readahead_pages = 32,
	              .secret = getenv("FARPAGE_TEST_SECRET")}, /* only for nodes that --node names */
	    .stall_ns = STALL_NS,
	    .churn = {.n_threads = 4, .bytes = 32u << 20, .duration_ns = 10 * FP_NSEC_PER_SEC},
	};
	struct test_daemon daemons[FP_STORE_MAX_NODES] = {0};
	struct fp_agent_error error;
	int r;

	parse(argc, argv, &s);
	if (!s.churn.seed)
		s.churn.seed = test_seed("churn");
	if (!getenv("FP_TEST_USER_ONLY") && fp_agent_check_kernel(&error) < 0) {
		fprintf(stderr, "churn: %s\n", error.text);
		return SKIP;
	}
	r = start_daemons(&s, daemons) < 0 ? 1 : watch_child(&s);
	for (unsigned i = 0; i < s.n_transports; i++)
		test_daemon_stop(&daemons[i]);
	return r;
}
