/*
 * farpage node: shows the status of a memory node, and asks it to grant no more leases, or to grant
 * again. Room: tools; speaks the wire protocol, through a session of its own.
 */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "connect.h"
#include "log.h"
#include "node_status.h"
#include "printable.h"
#include "secret.h"
#include "tool.h"
#include "transport.h"
#include "units.h"

#define DEADLINE_NS   5000000000ull
#define DEFAULT_WIDTH 80

struct node_options {
	bool json;
	bool all;     /* sessions and columns, however many and wide */
	char *secret; /* NULL: none */
	int (*act)(struct fp_session *session, const struct node_options *options);
	const char *url;
};

static int show_status(struct fp_session *session, const struct node_options *options)
{
	fp_autofree char *text = NULL;
	int r = fp_session_status(session, &text);

	if (r == 0)
		fp_printable_blank(text, strlen(text), ' ', true); /* it may go to a terminal */
	if (r == 0 &&
	    (options->json || fp_node_status_print(text, options->all, fp_tool_width(stdout) ?: DEFAULT_WIDTH,
	                                           fp_tool_height(stdout), stdout) < 0))
		puts(text);
	return r;
}

static int drain(struct fp_session *session, const struct node_options *options)
{
	struct fp_drain_info info;
	char leased[16];
	int r = fp_session_drain(session, &info);

	if (r < 0)
		return r;
	if (options->json)
		printf("{\"leased_bytes\": %llu, \"sessions\": %u}\n", (unsigned long long)info.leased_bytes,
		       info.sessions);
	else
		printf("no further leases are granted; still leased: %s, %u session%s\n",
		       fp_size_format(info.leased_bytes, leased, sizeof(leased)), info.sessions,
		       info.sessions == 1 ? "" : "s");
	return 0;
}

static int undrain(struct fp_session *session, const struct node_options *options)
{
	int r = fp_session_undrain(session);

	if (r == 0)
		puts(options->json ? "{}" : "leases are granted again");
	return r;
}

static const struct {
	const char *name;
	int (*act)(struct fp_session *session, const struct node_options *options);
} commands[] = {{"status", show_status}, {"drain", drain}, {"undrain", undrain}};

static int ask(const struct node_options *options)
{
	const struct fp_session_options session_options = {
	    .secret = options->secret, .deadline_ns = DEADLINE_NS, .is_operator = true};
	struct fp_refusal refusal;
	struct fp_connect connect;
	char error[FP_EXPLAIN_LEN], reason[FP_EXPLAIN_LEN];
	int r = fp_connect_open(&connect, options->url, &session_options, error, sizeof(error));

	if (r < 0) {
		fp_log(FP_LOG_ERROR, "node", "%s: %s", options->url, error);
		return 1;
	}
	r = options->act(connect.session, options);
	if (r < 0) {
		fp_session_refusal(connect.session, &refusal);
		fp_log(FP_LOG_ERROR, "node", "%s: %s", options->url,
		       fp_session_explain(r, &refusal, &connect.rdma, reason, sizeof(reason)));
	}
	fp_connect_close(&connect);
	return r < 0 ? 1 : fp_tool_flush(&fp_tool_node);
}

static int node_main(int argc, char **argv)
{
	struct node_options options = {0};
	int first = fp_option_parse(&fp_tool_node, argc, argv, &options), status;

	if (argc - first > 2)
		fp_tool_wrong(&fp_tool_node, "%s: unexpected argument", argv[first + 2]);
	if (argc - first < 2)
		fp_tool_wrong(&fp_tool_node, "wanted are status, drain or undrain, and the URL of a node");
	options.url = argv[first + 1];
	for (size_t i = 0; i < FP_ARRAY_LEN(commands); i++)
		if (strcmp(argv[first], commands[i].name) == 0)
			options.act = commands[i].act;
	if (!options.act)
		fp_tool_wrong(&fp_tool_node, "%s: allowed are status, drain, undrain", argv[first]);
	if (options.all && options.act != show_status)
		fp_tool_wrong(&fp_tool_node, "--sessions goes with status alone");
	status = ask(&options);
	fp_secret_free(options.secret);
	return status;
}

static const struct fp_option options[] = {
    {"json", NULL, "what the node says, as it says it: farpage-json(5)", .read = fp_option_switch,
     .at = offsetof(struct node_options, json)},
    {"sessions", NULL, "status: all sessions and all columns, in lines of any width",
     .read = fp_option_switch, .at = offsetof(struct node_options, all)},
    {"secret-file", "FILE", "a secret of the node with the right status, or admin to drain",
     .read = fp_option_secret, .at = offsetof(struct node_options, secret)},
    {.name = NULL},
};

const struct fp_tool fp_tool_node = {
    .name = "node",
    .label = "node",
    .summary = "what a memory node says of itself; drain it",
    .help = "usage: farpage node status|drain|undrain URL [--json] [--sessions] [--secret-file FILE]\n"
            "\n"
            "  status  devices, pools, sessions and traffic of the node\n"
            "          at URL: shm:PATH, tcp://HOST[:PORT],\n"
            "          rdma://HOST[:PORT], rdma+tcp://HOST[:PORT] or\n"
            "          auto://HOST; A,B for hosts. It fits the terminal,\n"
            "          or 80 columns\n"
            "  drain   asks it to grant no further leases to anyone, and\n"
            "          prints how much is still leased; that stays usable\n"
            "  undrain takes that back\n"
            "\n",
    .options = options,
    .takes_arguments = true,
    .main = node_main,
};
