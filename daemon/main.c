/*
 * farpaged: the command line. Room: daemon.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "config.h"
#include "log.h"
#include "node_server.h"
#include "units.h"

#define MANY 65536 /* the greatest value that the configuration allows */

static const char usage[] =
    "Usage: farpaged --config FILE [--check] [--ready-fd N]\n"
    "       farpaged --private --listen ADDRESS --pool-size SIZE [--ready-fd N] [--users-fd N]\n"
    "\n"
    "Lends this machine's memory to the programs of others; see farpaged(8).\n"
    "\n"
    "  --config FILE     serve as FILE says; see farpaged.yaml(5)\n"
    "  --check           only say whether FILE is valid\n"
    "  --private         serve this user alone, with one pool, for as long as the parent lives\n"
    "  --listen ADDRESS  unix:PATH, unix:@NAME or tcp://127.0.0.1:PORT (port 0: any)\n"
    "  --pool-size SIZE  memory to lend, taken from the system as it is used; K, M, G, T\n"
    "  --ready-fd N      write the addresses as URLs and a newline to descriptor N once serving\n"
    "  --users-fd N      descriptor N is a pipe: end with the parent only once its other end is closed\n"
    "                    everywhere\n"
    "  --help, --version\n";

struct arguments {
	const char *config_path;
	const char *listen;
	uint64_t pool_bytes;
	bool check, private_node;
	int ready_fd, users_fd;
};

static const struct option options[] = {
    {"config", required_argument, NULL, 'c'},    {"check", no_argument, NULL, 'k'},
    {"private", no_argument, NULL, 'p'},         {"listen", required_argument, NULL, 'l'},
    {"pool-size", required_argument, NULL, 's'}, {"ready-fd", required_argument, NULL, 'r'},
    {"users-fd", required_argument, NULL, 'u'},  {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'v'},         {NULL, 0, NULL, 0},
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

static int parse_fd(const char *option, const char *text, int *ret_fd)
{
	uint64_t fd;

	if (fp_number_parse(text, 0, 1 << 20, &fd) < 0)
		return wrong("%s: '%s' is not a descriptor", option, text);
	*ret_fd = (int)fd;
	return 0;
}

static int parse_pool_size(const char *text, uint64_t *ret_bytes)
{
	uint64_t bytes;

	if (fp_size_parse(text, &bytes) < 0 || bytes < FP_POOL_MIN_BYTES || bytes > FP_POOL_MAX_BYTES)
		return wrong("--pool-size: '%s' is not a size from 1M to 64T", text);
	*ret_bytes = bytes & ~4095ull;
	return 0;
}

static int parse_option(int option, const char *text, struct arguments *args)
{
	switch (option) {
	case 'c':
		args->config_path = optarg;
		return 0;
	case 'k':
		args->check = true;
		return 0;
	case 'p':
		args->private_node = true;
		return 0;
	case 'l':
		args->listen = optarg;
		return 0;
	case 's':
		return parse_pool_size(optarg, &args->pool_bytes);
	case 'r':
		return parse_fd("--ready-fd", optarg, &args->ready_fd);
	case 'u':
		return parse_fd("--users-fd", optarg, &args->users_fd);
	case 'h':
		fputs(usage, stdout);
		exit(EXIT_SUCCESS);
	case 'v':
		puts("farpaged " FP_VERSION);
		exit(EXIT_SUCCESS);
	default:
		return wrong("%s: it is unknown, or lacks its value, or has one too many", text);
	}
}

static int parse(int argc, char **argv, struct arguments *args)
{
	int option, r = 0;

	opterr = 0;
	while (r == 0 && (option = getopt_long(argc, argv, "", options, NULL)) != -1)
		r = parse_option(option, argv[optind - 1], args);
	if (r < 0)
		return r;
	if (optind < argc)
		return wrong("'%s' is one argument too many", argv[optind]);
	if (args->private_node && (args->config_path || args->check || !args->listen || !args->pool_bytes))
		return wrong("--private goes with --listen and --pool-size, not with --config");
	if (!args->private_node && args->users_fd >= 0)
		return wrong("--users-fd is for --private");
	if (!args->private_node && (!args->config_path || args->listen || args->pool_bytes))
		return wrong("--config FILE is needed (--listen and --pool-size are for --private)");
	return 0;
}

/*
 * Lets a private node end with its parent. False: the parent ended before prctl could ask for the
 * signal, so the pipe that waits for our addresses has no reader.
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
	if (args->check)
		printf("%s: valid\n", args->config_path);
	else
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
		return 2;
	return run(&args) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
