/*
 * farpage run: starts a program whose heap and large mappings are far memory. Room: tools.
 *
 * It checks all that it can before the program starts. So a missing node is reported at once, not
 * in the middle of the program. Settings reach the preload library through its environment
 * variables, so a plain LD_PRELOAD= can do the same.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

#include "cleanup.h"
#include "clock.h"
#include "farpage/farpage.h"
#include "launch.h"
#include "lenders.h"
#include "log.h"
#include "stats_dir.h"
#include "install_paths.h"
#include "privnode.h"
#include "program.h"
#include "report.h"
#include "runenv.h"
#include "runstats.h"
#include "settings.h"
#include "tool.h"
#include "transport.h"

#define MIN_POOL_BYTES (1u << 20)
#define TICK_NS        FP_NSEC_PER_SEC

struct run_command {
	char *const *command;
	bool report, print_env, full_core;
	bool user_only;         /* faults inside the kernel are not permitted */
	unsigned options;       /* bit i: the option of row i was given */
	uint64_t pool_bytes;    /* pool size of the private node */
	bool says_pool;         /* the user gave a pool size */
	struct rlimit as, data; /* limits of the program */
	char path[PATH_MAX];    /* of the program */
	char preload[PATH_MAX];
	char dir[PATH_MAX - 16];  /* folder of this run; "": not made */
	char outer_dir[PATH_MAX]; /* folder of the run around this one, if --config is given; or "" */
	int dir_lock_fd;
	struct fp_privnode *node;  /* NULL: the user has named nodes */
	struct fp_runstats *stats; /* NULL: neither a report nor a stats file is wanted */
};

#define VARIABLE_LEN 64

/* "local-memory" gives "FARPAGE_LOCAL_MEMORY". */
static const char *variable_of(const char *option, char buf[VARIABLE_LEN])
{
	snprintf(buf, VARIABLE_LEN, "FARPAGE_%s", option);
	for (char *p = buf; *p; p++)
		*p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
	return buf;
}

/*
 * For a run inside another run: the environment names the outer run's folder. With that folder, the
 * settings ignore a stats file that only a configuration names, because the outer run writes it.
 * But a configuration that is given to this run may name a file of this run. So this takes the
 * folder out of the environment. open_stats puts it back if this run has neither a report nor a
 * file.
 */
static void leave_outer_run(struct run_command *run)
{
	const char *dir = getenv(FP_SETTINGS_STATS_DIR);

	snprintf(run->outer_dir, sizeof(run->outer_dir), "%s", dir ?: "");
	unsetenv(FP_SETTINGS_STATS_DIR);
}

/*
 * Each --node must begin with a scheme. In the variable, a part without one is a further address of
 * the node before it.
 */
static void check_node(const struct fp_tool *tool, const char *text)
{
	const char *scheme_end = strstr(text, "://");
	char reason[FP_EXPLAIN_LEN];

	if (strncmp(text, "shm:", 4) != 0 && (!scheme_end || scheme_end > text + strcspn(text, ",")))
		fp_tool_wrong(tool, "--node %s: %s", text,
		              fp_session_explain(-EINVAL, NULL, NULL, reason, sizeof(reason)));
}

/*
 * Passes an option to the settings, by the environment variable of its name. A switch sets the
 * variable to 1. The first --node replaces the nodes in the environment, and each further --node
 * adds one.
 */
static void set_variable(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                         void *target)
{
	unsigned *given = &((struct run_command *)target)->options, bit = 1u << (option - tool->options);
	bool is_node = strcmp(option->name, "node") == 0;
	fp_autofree char *both = NULL;
	char name[VARIABLE_LEN];

	if (is_node)
		check_node(tool, text);
	if (is_node && *given & bit && asprintf(&both, "%s,%s", getenv("FARPAGE_NODES"), text) < 0)
		both = NULL;
	if (strcmp(option->name, "config") == 0)
		leave_outer_run(target);
	setenv(is_node ? "FARPAGE_NODES" : variable_of(option->name, name), both ?: text ?: "1", 1);
	*given |= bit;
}

static uint64_t memory_total(void)
{
	struct sysinfo info;

	return sysinfo(&info) < 0 ? 0 : (uint64_t)info.totalram * info.mem_unit & ~4095ull;
}

/* Each step below returns 0, or the exit status after a message. */

static int find_program(struct run_command *run)
{
	char error[768];
	int r = fp_program_find(run->command[0], run->path, sizeof(run->path));

	if (r < 0) {
		fp_log(FP_LOG_ERROR, "run", "%s: %s", *run->command[0] ? run->command[0] : "''",
		       r == -ENOENT ? "command not found" : strerror(-r));
		return r == -ENOENT ? FP_EXIT_NOT_FOUND : FP_EXIT_NOT_EXECUTABLE;
	}
	r = fp_program_check(run->path, error, sizeof(error));
	if (r < 0) {
		fp_log(FP_LOG_ERROR, "run", "%s", error);
		return FP_EXIT_RUN_FAILED;
	}
	return 0;
}

/* A path in LD_PRELOAD can't contain a space or a colon, because both are separators there. */
static int find_preload(struct run_command *run)
{
	if (fp_install_paths_preload(run->preload, sizeof(run->preload)) < 0) {
		fp_log(FP_LOG_ERROR, "run",
		       "libfarpage-preload.so is not installed next to farpage: set FARPAGE_PRELOAD to its "
		       "path");
		return FP_EXIT_RUN_FAILED;
	}
	if (strpbrk(run->preload, ": ")) {
		fp_log(FP_LOG_ERROR, "run",
		       "%s: LD_PRELOAD takes no path with a space or a colon: install Farpage elsewhere",
		       run->preload);
		return FP_EXIT_RUN_FAILED;
	}
	return 0;
}

static int make_dir(struct run_command *run)
{
	int r = fp_stats_dir_run_dir_create("run", run->dir, sizeof(run->dir), &run->dir_lock_fd);

	return r < 0 ? FP_EXIT_RUN_FAILED : 0;
}

static void say_limit(int which, uint64_t enough, const char *what, const char *remedy)
{
	struct rlimit limit;

	if (getrlimit(which, &limit) == 0 && limit.rlim_cur < enough)
		fp_log(FP_LOG_ERROR, "run", "the limit of %s is %llu: `%s` may help", what,
		       (unsigned long long)limit.rlim_cur, remedy);
}

/* Names the limits that are too low. They may cause a failure whose error does not show it. */
static int fail_by_limits(void)
{
	say_limit(RLIMIT_NOFILE, 64, "open files", "ulimit -n 1024");
	say_limit(RLIMIT_AS, 8ull << 30, "address space, in bytes,", "ulimit -v unlimited");
	say_limit(RLIMIT_MEMLOCK, 1 << 20, "locked memory, in bytes,", "ulimit -l 8192");
	return FP_EXIT_RUN_FAILED;
}

/*
 * The size of the private node's pool. Under a limit that we may not raise, the node maps at most
 * half of that limit.
 */
static void fit_pool(struct run_command *run)
{
	static const int kinds[] = {RLIMIT_AS, RLIMIT_DATA};
	struct rlimit limit;

	for (size_t i = 0; i < FP_ARRAY_LEN(kinds) && !run->says_pool; i++)
		if (getrlimit(kinds[i], &limit) == 0 && run->pool_bytes > limit.rlim_cur / 2)
			run->pool_bytes = FP_MAX(limit.rlim_cur / 2 & ~4095ull, (uint64_t)MIN_POOL_BYTES);
}

static int start_node(struct run_command *run)
{
	const struct fp_privnode_options options = {
	    .kind = FP_PRIVNODE_SHM,
	    .dir = run->dir,
	    .pool_bytes = run->pool_bytes,
	    .serves_users = true,
	    .dir_lock_fd = run->dir_lock_fd,
	};
	char error[768];

	if (fp_privnode_start(&options, error, sizeof(error), &run->node) < 0) {
		fp_log(FP_LOG_ERROR, "run", "%s", error);
		return fail_by_limits();
	}
	setenv("FARPAGE_NODES", run->node->url, 1);
	setenv("FARPAGE_SECRET_FILE", FP_SETTINGS_NO_SECRET, 1);
	return 0;
}

/*
 * Prints a message of the settings. It names a variable; if an option set that variable, prints the
 * option's name instead.
 */
static void say_setting(const struct run_command *run, const char *text)
{
	char name[VARIABLE_LEN];

	for (const struct fp_option *option = fp_tool_run.options; option->name; option++) {
		size_t len = strlen(variable_of(option->name, name));

		if (run->options >> (option - fp_tool_run.options) & 1 && strncmp(text, name, len) == 0 &&
		    text[len] == ':') {
			fp_log(FP_LOG_ERROR, "run", "--%s%s", option->name, text + len);
			return;
		}
	}
	fp_log(FP_LOG_ERROR, "run", "%s", text);
}

static int read_settings(struct run_command *run, struct fp_settings *settings)
{
	struct fp_agent_error error;

	if (fp_settings_read(settings, &error) < 0) {
		say_setting(run, error.text);
		return FP_EXIT_RUN_FAILED;
	}
	run->report = settings->report;
	run->full_core = settings->core == FP_CORE_FULL;
	run->says_pool = settings->pool_bytes > 0;
	run->pool_bytes = settings->pool_bytes ?: memory_total();
	return 0;
}

/*
 * If faults inside the kernel are not permitted, chooses fault mode inline, which needs only faults
 * of user mode. Then the preload library brackets the program's calls. A program that uses
 * libfarpage in fault mode inline must do so itself.
 */
static int open_memory(struct far_options *options, bool *ret_user_only, char *error, size_t error_len,
                       struct far_memory **ret_memory)
{
	int r = far_open(options, error, error_len, ret_memory);

#if defined(__x86_64__) /* elsewhere calls can't be bracketed */
	if (r == -EPERM) {
		options->fault_mode = FAR_FAULT_INLINE;
		r = far_open(options, error, error_len, ret_memory);
		*ret_user_only = r == 0;
	}
#endif
	return r;
}

static bool is_given(const struct run_command *run, const char *name)
{
	for (const struct fp_option *option = fp_tool_run.options; option->name; option++)
		if (strcmp(option->name, name) == 0)
			return run->options >> (option - fp_tool_run.options) & 1;
	return false;
}

/*
 * Opens far memory once, as the preload library will. So an error of a node or the kernel shows
 * before the program starts. If no budget is fixed, this uses the smallest one.
 */
static int probe(struct run_command *run, const struct fp_settings *settings)
{
	const char *nodes[FP_STORE_MAX_NODES + 1] = {NULL};
	struct far_options options = {
	    .size = sizeof(options),
	    .local_bytes = settings->local_bytes ? settings->local_bytes : FP_BUDGET_MIN_PAGES * FP_PAGE_SIZE,
	    .nodes = nodes,
	    .secret = run->node ? NULL : settings->secret,
	    .deadline_ms = settings->deadline_ns / FP_NSEC_PER_MSEC,
	    .rdma_device = settings->rdma.device,
	    .rdma_device_port = (uint32_t)settings->rdma.device_port,
	};
	struct far_memory *memory;
	char error[768] = "";
	int r;

	if (run->node)
		nodes[0] = run->node->url;
	for (unsigned i = 0; i < settings->n_urls && i < FP_STORE_MAX_NODES; i++)
		nodes[i] = settings->urls[i];
	r = open_memory(&options, &run->user_only, error, sizeof(error), &memory);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, "run", "%s", error[0] ? error : strerror(-r));
		if (r == -EUSERS) /* a limit of the node, not of this process */
			return FP_EXIT_RUN_FAILED;
		return fail_by_limits();
	}
	far_close(memory);
	/* with overcommit, the program may start although no node has room */
	r = run->node ? 0 : fp_lenders_check(settings, "run");
	return r < 0 && !(r == -ENOSPC && settings->overcommit) ? FP_EXIT_RUN_FAILED : 0;
}

/*
 * Each process of the program leaves its own stats page in the folder of the run, where
 * `farpage ps` finds it. The user's stats file has the sum of all pages. pattern: its name; NULL:
 * there is none.
 */
static int open_stats(struct run_command *run, const char *pattern)
{
	char file[PATH_MAX] = "", reason[FP_STATSPAGE_EXPLAIN_LEN];
	int r = 0;

	if (!run->report && !pattern) {
		if (run->outer_dir[0])
			setenv(FP_SETTINGS_STATS_DIR, run->outer_dir, 1);
		return 0;
	}
	if (pattern)
		r = fp_statspage_expand(pattern, getpid(), file, sizeof(file));
	if (r == 0)
		r = fp_runstats_open(run->dir_lock_fd, pattern ? file : NULL, &run->stats);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, "run", "stats file %s: %s", pattern ? pattern : run->dir,
		       fp_statspage_explain(r, reason, sizeof(reason)));
		return FP_EXIT_RUN_FAILED;
	}
	unsetenv("FARPAGE_STATS_FILE"); /* both are done by this run: not by a run or program inside it */
	unsetenv("FARPAGE_REPORT");
	setenv(FP_SETTINGS_STATS_DIR, run->dir, 1);
	return 0;
}

static void tick(void *user)
{
	fp_runstats_update(user);
}

/*
 * After a core dump: says how many far pages it may lack. Some that have left were unmapped since;
 * and the agent counts slots only now and then. The program's stats page outlives it, in the folder
 * that its environment names, or in the user's.
 */
static void tell_of_core(pid_t pid)
{
	const char *dir = getenv(FP_SETTINGS_STATS_DIR);
	const struct fp_statspage *page;
	struct fp_statsview *view;
	char path[PATH_MAX];
	uint64_t n;

	if (dir)
		snprintf(path, sizeof(path), "%s/%d" FP_STATSPAGE_SUFFIX, dir, (int)pid);
	else if (fp_statspage_path(pid, path, sizeof(path)) < 0)
		return;
	if (fp_statsview_open(path, &view) < 0)
		return;
	page = &view->page;
	n = page->evicted_clean + page->evicted_dirty;
	n -= FP_MIN(n, page->fetched_bytes >> FP_PAGE_SHIFT);
	n = FP_MAX(n, page->remote_bytes >> FP_PAGE_SHIFT);
	if (n)
		fp_log(FP_LOG_NOTICE, "run",
		       "the core dump of process %d has zeros in the place of up to %" PRIu64
		       " far pages: --core full brings them in first",
		       (int)pid, n);
	fp_statsview_close(view);
}

static int launch(struct run_command *run, int *ret_wait_status)
{
	const struct fp_launch launch = {
	    .argv = run->command,
	    .path = run->path,
	    .ld_preload = run->preload,
	    .tick_ns = run->stats ? TICK_NS : 0,
	    .tick = tick,
	    .user = run->stats,
	    .as = run->as,
	    .data = run->data,
	    .kept_fd = run->node ? run->node->users_fds[1] : -1,
	};
	uint64_t start_ns = fp_clock_ns();
	pid_t pid;
	int r = fp_launch_run(&launch, &pid, ret_wait_status);

	if (r < 0) {
		fp_log(FP_LOG_ERROR, "run", "cannot start a process: %s", strerror(-r));
		return FP_EXIT_RUN_FAILED;
	}
	if (WCOREDUMP(*ret_wait_status) && !run->full_core)
		tell_of_core(pid);
	if (run->stats)
		fp_runstats_update(run->stats);
	if (run->report)
		fp_report_print(run->stats, run->command[0], fp_clock_ns() - start_ns, stderr);
	if (run->report && run->user_only)
		fputs("  only user-mode faults are permitted to this user: system calls took a detour, see "
		      "farpage-run(1)\n",
		      stderr);
	return 0;
}

/*
 * Processes that the program left behind keep their memory. The last of them ends the node and
 * removes the folder.
 */
static void clean_up(struct run_command *run)
{
	fp_runstats_close(run->stats);
	if (fp_privnode_leave(run->node)) {
		if (run->report)
			fputs(
			    "  processes that it left behind go on; their private node ends with the last\n",
			    stderr);
		return;
	}
	fp_privnode_stop(run->node);
	/* First, because reading the folder takes a descriptor, and this may be the last one. */
	fp_cleanup_close(&run->dir_lock_fd);
	if (run->dir[0])
		fp_stats_dir_run_dir_remove(run->dir);
}

/*
 * Does everything from the checks to the program's end. Returns 0 and the program's wait status. On
 * a failure, prints a message and returns the status with which farpage exits.
 */
static int run_program(struct run_command *run, int *ret_wait_status)
{
	struct fp_settings settings = {0};
	int status;

	fp_runenv_warn();
	if ((status = find_program(run)) || (status = find_preload(run)) ||
	    (status = read_settings(run, &settings)))
		return status;
	if (settings.n_urls && is_given(run, "pool-size")) {
		fp_log(FP_LOG_ERROR, "run",
		       "--pool-size: no private node is started, because nodes are named (by --node, "
		       "FARPAGE_NODES or nodes in the configuration): leave one of the two out");
		status = FP_EXIT_RUN_FAILED;
	}
	if (status || (status = make_dir(run))) {
		fp_settings_done(&settings);
		return status;
	}
	fp_launch_lift(RLIMIT_AS, &run->as);
	fp_launch_lift(RLIMIT_DATA, &run->data);
	if (settings.n_urls == 0) {
		fit_pool(run);
		status = start_node(run);
	}
	if (status == 0)
		status = probe(run, &settings);
	if (status == 0)
		status = open_stats(run, settings.stats_path);
	fp_settings_done(&settings);
	return status ?: launch(run, ret_wait_status);
}

/* Prints the environment for a program that is started without `farpage run`. */
static int print_env(struct run_command *run)
{
	struct fp_settings settings;
	int status, r;

	if (*run->command)
		fp_tool_wrong(&fp_tool_run, "--print-env: takes no command, it starts none");
	if (is_given(run, "report") || is_given(run, "pool-size"))
		fp_tool_wrong(&fp_tool_run,
		              "--print-env: --report and --pool-size need `farpage run` itself");
	fp_runenv_warn();
	if ((status = find_preload(run)) || (status = read_settings(run, &settings)))
		return status;
	r = settings.n_urls ? fp_runenv_print(run->preload, &settings, stdout) : 0;
	if (settings.n_urls == 0)
		fp_log(FP_LOG_ERROR, "run",
		       "--print-env: name the memory nodes with --node: a private node lives only as long as "
		       "its `farpage run`");
	if (r < 0)
		fp_log(FP_LOG_ERROR, "run", "--print-env: %s", strerror(-r));
	status = settings.n_urls == 0 || r < 0 || fp_tool_flush(&fp_tool_run) ? FP_EXIT_RUN_FAILED : 0;
	fp_settings_done(&settings);
	return status;
}

static int run_main(int argc, char **argv)
{
	fp_autofree struct run_command *run = calloc(1, sizeof(*run));
	int status, wait_status = 0;

	if (!run)
		return FP_EXIT_RUN_FAILED;
	run->dir_lock_fd = -1;
	run->command = argv + fp_option_parse(&fp_tool_run, argc, argv, run);
	if (run->print_env)
		return print_env(run);
	if (!*run->command)
		fp_tool_wrong(&fp_tool_run, "no command was given");
	status = run_program(run, &wait_status);
	clean_up(run);
	if (status)
		return status;
	fp_launch_end_as(wait_status);
}

static const struct fp_option options[] = {
    {"local-memory", "SIZE",
     "how much far memory may be local at once: 64M, 4G; or of the most that the program has had so far: 50% "
     "(default), never below 16M",
     .read = set_variable},
    {"node", "URL",
     "keep the rest there: tcp://HOST[:PORT], rdma://HOST[:PORT], auto://HOST (rdma where both ends have it, "
     "else tcp), rdma+tcp://HOST[:PORT], shm:PATH; A,B for HOST: one node at several addresses; may be "
     "repeated. Without it, a memory node of this machine is started for the life of the command and of what "
     "it leaves behind",
     .read = set_variable},
    {"pool-size", "SIZE", "how much that one may hold; default: as much as this machine has memory",
     .read = set_variable},
    {"secret-file", "FILE", "the nodes' shared secret", .read = set_variable},
    {"config", "FILE", "read what options and environment do not say from here (YAML)", .read = set_variable},
    {"heap", "WHAT",
     "far for all (default) of the heap, for none, or for large allocations: large, large:SIZE",
     .read = set_variable},
    {"fault-mode", "MODE",
     "who serves faults: thread (default), one of the agent's; or inline, the faulting one",
     .read = set_variable},
    {"deadline", "TIME", "of one remote operation; default 5s", .read = set_variable},
    {"patience", "TIME",
     "how long a page waits for a node that is cut off; default: as long as the node keeps what it has (its "
     "grace, 30s)",
     .read = set_variable},
    {"on-loss", "WHAT", "when that is over: sigbus (default); or wait, without end", .read = set_variable},
    {"heartbeat", "TIME", "between two looks whether a node is there; default 1s", .read = set_variable},
    {"overcommit", NULL, "let the program map more than the nodes can back", .read = set_variable},
    {"capture", "HOW", "how pages are taken out: auto (default), move, protect", .read = set_variable},
    {"readahead", "N", "most pages that are read ahead, 0 to 63; default 32", .read = set_variable},
    {"affinity", "HOW", "auto (default): hold threads that fault on one CPU while that is faster; or off",
     .read = set_variable},
    {"core", "WHAT",
     "what a core dump has of far memory: local (default), what is local then; or full, all, brought in "
     "first",
     .read = set_variable},
    {"report", NULL, "print faults, traffic and latencies on stderr at the end", .read = set_variable},
    {"stats-file", "FILE", "keep the counters there, for `farpage hist`", .read = set_variable},
    {"print-env", NULL,
     "start nothing, but print the environment that makes a program run like this without this command: for "
     "a service's EnvironmentFile=, or for a shell: set -a; . FILE; exec COMMAND",
     .read = fp_option_switch, .at = offsetof(struct run_command, print_env)},
    {.name = NULL},
};

const struct fp_tool fp_tool_run = {
    .name = "run",
    .label = "run",
    .summary = "run a program whose heap and large mappings are far memory",
    .help = "usage: farpage run [OPTION...] [--] COMMAND [ARG...]\n"
            "       farpage run [OPTION...] --print-env\n\n"
            "Runs COMMAND with its heap and large mappings in far memory. Its stdin, stdout, stderr, "
            "signals and exit status are its own; 125 means that farpage could not start it, 126 and 127 "
            "are as with env(1).\n\n",
    .options = options,
    .runs_command = true,
    .main = run_main,
};
