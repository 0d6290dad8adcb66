/*
 * A session at a node, over the first transport and address that works. Room: tools.
 */
#include "connect.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "settings.h"

/* True if another address or transport of the same node may work better. */
static bool worth_another_way(int error)
{
	switch (error) {
	case -EACCES:
	case -EKEYREJECTED:
	case -EUSERS:
	case -ENOMEM:
	case -EMFILE:
		return false;
	default:
		return true;
	}
}

static int try_all(struct fp_connect *connect, const char *url, const struct fp_session_options *options)
{
	struct fp_url_set set;
	int r = fp_url_parse_set(url, &set);

	if (r < 0)
		return r;
	r = -ENODEV;
	for (unsigned t = 0; t < set.n_transports; t++)
		for (unsigned a = 0; a < set.n_addresses; a++) {
			connect->way = set.urls[t][a];
			r = fp_session_open(&connect->way, options, &connect->session);
			if (r == 0 || !worth_another_way(r))
				return r;
		}
	return r;
}

int fp_connect_open(struct fp_connect *connect, const char *url, const struct fp_session_options *options,
                    char *error, size_t error_len)
{
	struct fp_session_options session_options = *options;
	struct fp_refusal refusal = {.cause = FP_REFUSAL_NONE};
	struct fp_agent_error wrong;
	char reason[FP_EXPLAIN_LEN];
	int r;

	*connect = (struct fp_connect){.session = NULL};
	r = fp_settings_read_rdma(&connect->rdma, &wrong);
	if (r < 0) {
		snprintf(error, error_len, "%s", wrong.text);
		return r;
	}
	session_options.rdma = &connect->rdma;
	session_options.refusal = &refusal;
	r = try_all(connect, url, &session_options);
	if (r < 0) {
		snprintf(error, error_len, "%s",
		         fp_session_explain(r, &refusal, &connect->rdma, reason, sizeof(reason)));
		fp_connect_close(connect);
	}
	return r;
}

void fp_connect_close(struct fp_connect *connect)
{
	fp_session_close(connect->session);
	free(connect->rdma.device);
	*connect = (struct fp_connect){.session = NULL};
}
