/*
 * Whether nodes lend anything. Room: tools; see lenders.h.
 */
#include "lenders.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

#include "cleanup.h"
#include "connect.h"
#include "log.h"
#include "settings.h"

#define LEAST_BYTES (FP_BUDGET_MIN_PAGES * (uint64_t)FP_PAGE_SIZE)

/*
 * Asks one node. 0, or an error and its text. Also asks a node without room for a lease: so the
 * node counts and logs the refusal.
 */
static int ask(const char *url, const struct fp_session_options *options, char *error, size_t error_len)
{
	struct fp_refusal refusal = {.cause = FP_REFUSAL_NONE};
	const struct fp_lease *lease;
	struct fp_node_info info;
	struct fp_connect connect;
	const char *what = "";
	char reason[FP_EXPLAIN_LEN];
	int r = fp_connect_open(&connect, url, options, error, error_len);

	if (r < 0)
		return r;
	r = fp_session_info(connect.session, &info);
	if (r == 0 && fp_node_info_room(&info) < LEAST_BYTES) {
		r = fp_session_lease(connect.session, LEAST_BYTES, &lease);
		if (fp_session_is_refusal(r))
			fp_session_refusal(connect.session, &refusal);
		if (refusal.cause == FP_REFUSAL_QUOTA || refusal.cause == FP_REFUSAL_POOLS)
			what = "it refuses the smallest lease (1 MiB at least): ";
	}
	if (r < 0)
		snprintf(error, error_len, "%s%s", what,
		         fp_session_explain(r, &refusal, &connect.rdma, reason, sizeof(reason)));
	fp_connect_close(&connect);
	return r;
}

int fp_lenders_check(const struct fp_settings *settings, const char *label)
{
	const struct fp_session_options options = {.secret = settings->secret,
	                                           .deadline_ns = settings->deadline_ns};
	char error[FP_EXPLAIN_LEN];
	unsigned lenders = 0;

	for (unsigned i = 0; i < settings->n_urls; i++) {
		int r = ask(settings->urls[i], &options, error, sizeof(error));

		lenders += r == 0;
		if (r < 0)
			fp_log(FP_LOG_ERROR, label, "node %s: %s", settings->urls[i], error);
		if (r < 0 && !fp_session_is_refusal(r))
			return r;
	}
	return lenders ? 0 : -ENOSPC;
}
