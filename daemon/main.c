/*
 * farpaged: the command line. Room: daemon.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "clock.h"
#include "config.h"
#include "listen.h"
#include "log.h"
#include "node_server.h"
#include "units.h"

#define EXIT_USAGE   2
#define MAX_DELAY_US 10000u
#define MANY         65536 /* the greatest value that the configuration allows */

static const char usage[] =
    "Usage: farpaged --config FILE [--check [--user NAME]] [--ready-fd N]\n"
    "       farpaged --private --listen ADDRESS --pool-size SIZE [--ready-fd N]\n"
    "                [--users-fd N] [--link-delay N]\n"
    "\n"
    "Lends this machine's memory to the programs of others; see farpaged(8).\n"
    "\n"
    "  --config FILE     serve as FILE says; see farpaged.yaml(5)\n"
    "  --check           only say whether FILE is valid, for the user that serves\n"
    "  --user NAME       with --check, for root: check as this user; default:\n"
    "                    farpage, if it exists\n"
    "  --private         serve this user alone, with one pool, for as long as the\n"
    "                    parent lives\n"
    "  --listen ADDRESS  unix:PATH, unix:@NAME or tcp://127.0.0.1:PORT (port 0: any)\n"
    "  --pool-size SIZE  memory to lend, taken from the system as it is used;\n"
    "                    K, M, G, T\n"
    "  --ready-fd N      write the addresses as URLs and a newline to descriptor N\n"
    "                    once serving\n"
    "  --users-fd N      descriptor N is a pipe: end with the parent only once its\n"
    "                    other end is closed everywhere\n"
    "  --link-delay N    for measurements: spin N µs before the answer to each READ\n"
    "  -h, --help        print this help\n"
    "  -V, --version     print the version of Farpage\n";

struct arguments {
	const char *config_path;
	const char *user; /* NULL: see become_server */
	const char *listen;
	uint64_t pool_bytes, link_delay_us;
	bool check, private_node;
	int ready_fd, users_fd;
};

static const struct option options[] = {
    {"config", required_argument, NULL, 'c'},     {"check", no_argument, NULL, 'k'},
    {"private", no_argument, NULL, 'p'},          {"listen", required_argument, NULL, 'l'},
    {"pool-size", required_argument, NULL, 's'},  {"ready-fd", required_argument, NULL, 'r'},
    {"users-fd", required_argument, NULL, 'u'},   {"user", required_argument, NULL, 'n'},
    {"link-delay", required_argument, NULL, 'd'}, {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},          {NULL, 0, NULL, 0},
};

__attribute__((format(printf, 1, 2))) static int wrong(const char *format, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	fp_log(FP_LOG_ERROR, "usage", "%s; see farpaged --help", text);
	return -EINVAL;
}

static int empty(const char *option)
{
	return wrong("%s: its value is empty", option);
}

static int parse_fd(const char *option, const char *text, int *ret_fd)
{
	uint64_t fd;

	if (!*text)
		return empty(option);
	if (fp_number_parse(text, 0, 1 << 20, &fd) < 0)
		return wrong("%s %s: not a descriptor", option, text);
	if (fcntl((int)fd, F_GETFD) < 0)
		return wrong("%s %s: this descriptor is not open", option, text);
	*ret_fd = (int)fd;
	return 0;
}

static int parse_pool_size(const char *text, uint64_t *ret_bytes)
{
	uint64_t bytes;
	int r = fp_size_parse(text, &bytes);

	if (!*text)
		return empty("--pool-size");
	if (r == -EINVAL)
		return wrong("--pool-size %s: not a size such as 512M or 1.5G", text);
	if (r < 0 || bytes < FP_POOL_MIN_BYTES || bytes > FP_POOL_MAX_BYTES)
		return wrong("--pool-size %s: it must be from 1M to 64T", text);
	*ret_bytes = bytes & ~4095ull;
	return 0;
}

static int parse_delay(const char *text, uint64_t *ret_us)
{
	if (!*text)
		return empty("--link-delay");
	return fp_number_parse(text, 0, MAX_DELAY_US, ret_us) < 0
	           ? wrong("--link-delay %s: it must be from 0 to %u", text, MAX_DELAY_US)
	           : 0;
}

static int parse_text(const char *option, const char *text, const char **ret_text)
{
	if (!*text)
		return empty(option);
	*ret_text = text;
	return 0;
}

/* How many long options begin like this word, which begins with --. */
static unsigned matches(const char *word)
{
	unsigned n = 0;

	for (const struct option *option = options; option->name; option++)
		n += strncmp(option->name, word + 2, strcspn(word + 2, "=")) == 0;
	return n;
}

/*
 * optopt is 0 for an unknown long option, and the letter of an unknown short option. For a short
 * option, word may be the argument before, because one argument can have several letters.
 */
static int unknown(const char *word)
{
	if (!optopt)
		return wrong(matches(word) > 1 ? "%s: several options begin like this"
		                               : "%s: there is no such option",
		             word);
	if (strncmp(word, "--", 2) == 0 && strchr(word, '='))
		return wrong("%s: this option takes no value", word);
	return wrong("-%c: there is no such option", optopt);
}

/* word: the argument that getopt_long looked at last. */
static int parse_option(int option, const char *word, struct arguments *args)
{
	switch (option) {
	case 'c':
		return parse_text("--config", optarg, &args->config_path);
	case 'k':
		args->check = true;
		return 0;
	case 'n':
		return parse_text("--user", optarg, &args->user);
	case 'p':
		args->private_node = true;
		return 0;
	case 'l':
		return parse_text("--listen", optarg, &args->listen);
	case 's':
		return parse_pool_size(optarg, &args->pool_bytes);
	case 'r':
		return parse_fd("--ready-fd", optarg, &args->ready_fd);
	case 'd':
		return parse_delay(optarg, &args->link_delay_us);
	case 'u':
		return parse_fd("--users-fd", optarg, &args->users_fd);
	case 'h':
		fputs(usage, stdout);
		exit(EXIT_SUCCESS);
	case 'V':
		puts("farpaged " FP_VERSION);
		exit(EXIT_SUCCESS);
	case ':':
		return wrong("%s: its value is missing", word);
	default:
		return unknown(word);
	}
}

static int parse(int argc, char **argv, struct arguments *args)
{
	int option, r = 0;

	opterr = 0;
	while (r == 0 && (option = getopt_long(argc, argv, ":hV", options, NULL)) != -1)
		r = parse_option(option, argv[optind - 1], args);
	if (r < 0)
		return r;
	if (optind < argc)
		return wrong("'%s' is one argument too many", argv[optind]);
	if (args->private_node && (args->config_path || args->check || !args->listen || !args->pool_bytes))
		return wrong("--private goes with --listen and --pool-size, not with --config");
	if (args->user && !args->check)
		return wrong("--user is for --check");
	if (!args->private_node && args->users_fd >= 0)
		return wrong("--users-fd is for --private");
	if (!args->private_node && args->link_delay_us)
		return wrong("--link-delay is for --private");
	if (!args->private_node && (!args->config_path || args->listen || args->pool_bytes))
		return wrong("--config FILE is needed (--listen and --pool-size are for --private)");
	return 0;
}

/*
 * Makes this node, which is private, end together with its parent. Returns false if the parent has
 * ended already, before prctl asked for the signal. Then nobody reads the pipe ready_fd any more.
 */
static bool follow_parent(int ready_fd)
{
	struct pollfd pipe_end = {.fd = ready_fd};

	return prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 &&
	       !(poll(&pipe_end, 1, 0) == 1 && pipe_end.revents & POLLERR);
}

static int private_config(const struct arguments *args, struct fp_config **ret_config,
                          struct fp_conf_error *error)
{
	struct fp_config *config = fp_config_new();
	struct fp_pool_config *pool = config ? fp_config_add_pool(config) : NULL;
	int r = -ENOMEM;

	snprintf(error->text, sizeof(error->text), "out of memory");
	if (pool) {
		pool->name = strdup("private");
		pool->size_bytes = args->pool_bytes;
		r = pool->name ? fp_config_add_listen(config, args->listen) : -ENOMEM;
	}
	if (r == 0) {
		config->log_level = FP_LOG_WARNING - FP_LOG_ERROR;
		config->link_delay_ns = args->link_delay_us * FP_NSEC_PER_USEC;
		config->limits.grace_ns = 0; /* no grace is needed: its client is its parent */
		config->limits.max_sessions = config->limits.max_connections = MANY; /* all are of one user */
		r = fp_config_check(config, error);
	}
	if (r == 0)
		*ret_config = config;
	else
		fp_config_free(config);
	return r;
}

/*
 * Removes the folder that `farpage run` made for our socket. It is still there if that command
 * ended before us.
 */
static void remove_folder(const struct arguments *args)
{
	static const char scheme[] = "unix:/";
	char *path;

	if (args->users_fd < 0 || strncmp(args->listen, scheme, sizeof(scheme) - 1) != 0)
		return;
	path = strdup(args->listen + strlen("unix:"));
	if (path && strrchr(path, '/') != path) {
		*strrchr(path, '/') = '\0';
		rmdir(path); /* fails if it holds anything */
	}
	free(path);
}

/*
 * The user to check for: the one that --user names, or else farpage, as whom farpaged.service runs.
 */
static const struct passwd *server_user(const struct arguments *args)
{
	return getpwnam(args->user ? args->user : "farpage");
}

/*
 * Gives this process, which is root's, another user and the groups of that user. A negative errno:
 * it stays who it is, because a user namespace lacks the user or the groups. So what can fail comes
 * first, and is undone.
 */
static int become(const struct passwd *user)
{
	if (seteuid(user->pw_uid) < 0 || seteuid(0) < 0 || initgroups(user->pw_name, user->pw_gid) < 0)
		return -errno;
	if (setgid(user->pw_gid) < 0 || setuid(user->pw_uid) < 0) { /* it would be half another user */
		wrong("--user %s: %s", user->pw_name, strerror(errno));
		exit(EXIT_USAGE);
	}
	return 0;
}

/*
 * Becomes the user that will serve, so that the check meets what that user meets: files that it
 * can't read, folders that it can't enter. *ret_user: that user; NULL: this process stays who it
 * is. Where it can't become the user farpage, it warns and stays who it is.
 */
static int become_server(const struct arguments *args, const char **ret_user)
{
	const struct passwd *user = server_user(args);
	char reason[64];
	int r;

	*ret_user = NULL;
	if (!user && args->user)
		return wrong("--user %s: there is no such user", args->user);
	if (!user || user->pw_uid == geteuid())
		return 0;
	if (geteuid() != 0)
		return args->user ? wrong("--user %s: only root can check for another user", args->user) : 0;
	r = become(user);
	if (r < 0 && args->user)
		return wrong("--user %s: this process cannot become that user: %s", user->pw_name,
		             fp_strerror(r, reason, sizeof(reason)));
	if (r < 0) {
		fp_log(FP_LOG_WARNING, "config",
		       "checked for the present user: this process cannot become the user %s: %s",
		       user->pw_name, fp_strerror(r, reason, sizeof(reason)));
		return 0;
	}
	*ret_user = user->pw_name;
	return 0;
}

static void warn_addresses(const struct fp_config *config)
{
	struct fp_listen_address address;

	for (size_t i = 0; i < config->listen.n; i++)
		if (fp_listen_parse(config->listen.items[i], &address) == 0 && !fp_listen_is_here(&address))
			fp_log(FP_LOG_WARNING, "config",
			       "listen[%zu]: this machine does not have the address of '%s' now: without it, "
			       "the node does not start",
			       i, config->listen.items[i]);
}

/* Returns the exit status. */
static int check(const struct arguments *args)
{
	struct fp_config *config;
	struct fp_conf_error error;
	const char *user;
	int r = become_server(args, &user);

	if (r < 0)
		return EXIT_USAGE;
	r = fp_config_read(args->config_path, &config, &error);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, "config", "%s%s%s%s", error.text, user ? " (checked for the user " : "",
		       user ? user : "", user ? ", who will serve; --user names another)" : "");
		return EXIT_FAILURE;
	}
	fp_pools_warn(config->pools, config->n_pools, false);
	fp_pools_warn_preallocated(config->pools, config->n_pools);
	warn_addresses(config);
	r = fp_pools_check(config->pools, config->n_pools, &error);
	if (r < 0)
		fp_log(FP_LOG_ERROR, "config", "%s: %s", args->config_path, error.text);
	else
		printf("%s: valid%s%s\n", args->config_path, user ? " for the user " : "", user ? user : "");
	fp_config_free(config);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int run(const struct arguments *args)
{
	struct fp_node_server_options server = {
	    .config_path = args->config_path,
	    .private_node = args->private_node,
	    .ready_fd = args->ready_fd,
	    .users_fd = args->users_fd,
	};
	struct fp_conf_error error;
	int r;

	if (args->private_node && !follow_parent(args->ready_fd))
		return 0;
	r = args->private_node ? private_config(args, &server.config, &error)
	                       : fp_config_read(args->config_path, &server.config, &error);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, "config", "%s", error.text);
		return r;
	}
	fp_log_init("farpaged", fp_config_log_level(server.config));
	r = fp_node_server_run(&server);
	remove_folder(args);
	fp_config_free(server.config);
	return r;
}

int main(int argc, char **argv)
{
	struct arguments args = {.ready_fd = -1, .users_fd = -1};

	signal(SIGPIPE, SIG_IGN);
	signal(SIGIO, SIG_IGN); /* sent if a process opens a memfd during is_open_once */
	/*
	 * RLIMIT_FSIZE holds for memfds too. With the signal ignored, a lease beyond the limit
	 * fails by an error.
	 */
	signal(SIGXFSZ, SIG_IGN);
	fp_log_init("farpaged", FP_LOG_INFO);
	if (parse(argc, argv, &args) < 0)
		return EXIT_USAGE;
	if (args.check)
		return check(&args);
	if (!args.private_node)
		fp_log_show_times();
	return run(&args) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
