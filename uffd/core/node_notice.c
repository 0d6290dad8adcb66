/* See node_notice.h. */
#include "node_notice.h"

#include <errno.h>
#include <stdio.h>

#include "clock.h"
#include "log.h"
#include "units.h"

enum fp_node_news fp_node_notice_step(struct fp_node_said *said, enum fp_breaker_state state, uint64_t now_ns,
                                      uint64_t *ret_outage_ns)
{
	enum fp_breaker_state before = said->state;

	if (state == FP_BREAKER_HALF_OPEN)
		state = FP_BREAKER_OPEN;
	if (state != FP_BREAKER_OPEN)
		*ret_outage_ns = said->cut_ns ? now_ns - said->cut_ns : 0;
	said->cut_ns = state != FP_BREAKER_OPEN ? 0 : said->cut_ns ? said->cut_ns : now_ns;
	if (state == before || before == FP_BREAKER_LOST)
		return FP_NEWS_NONE;
	if (state == FP_BREAKER_OPEN && said->back_ns && now_ns - said->back_ns < FP_NODE_NOTICE_FLAP_NS &&
	    now_ns - said->cut_ns < FP_NODE_NOTICE_LONG_NS)
		return FP_NEWS_NONE;
	said->state = state;
	switch (state) {
	case FP_BREAKER_CLOSED:
		said->back_ns = now_ns;
		return FP_NEWS_BACK;
	case FP_BREAKER_LOST:
		return FP_NEWS_LOST;
	default:
		return FP_NEWS_CUT_OFF;
	}
}

const char *fp_node_notice_reason(const struct fp_store_node *info, int error, char *buf, size_t len)
{
	const char *text, *why = error == info->last_error ? info->why : NULL;
	char reason[64];

	if (error == -ESTALE)
		return "it has given our leases up: it was restarted, or we were cut off beyond its grace "
		       "period";
	if (error == -EBADF)
		return "its socket was closed by the program";
	if (info->refusal.cause != FP_REFUSAL_NONE && error == info->last_error &&
	    error != info->session_error)
		return fp_refusal_explain(&info->refusal, buf, len);
	text = fp_strerror(error, reason, sizeof(reason));
	snprintf(buf, len, why ? "%s (%s)" : "%s", text, why);
	return buf;
}

/* Writes how long threads wait for a node that they need. */
static const char *format_patience(uint64_t patience_ns, char *buf, size_t len)
{
	char time[24];

	if (patience_ns == UINT64_MAX)
		return "until it is back";
	snprintf(buf, len, "up to %s", fp_time_format(patience_ns, time, sizeof(time)));
	return buf;
}

static void say(enum fp_node_news news, const struct fp_store_node *info, uint64_t outage_ns)
{
	char why[FP_NODE_NOTICE_REASON_LEN], time[40];

	switch (news) {
	case FP_NEWS_CUT_OFF:
		if (info->session_error) {
			fp_log(FP_LOG_WARNING, "store",
			       "node %s: the session has ended: %s; no byte is lost, but it lends no further "
			       "memory to this process until it is back",
			       info->url, fp_node_notice_reason(info, info->session_error, why, sizeof(why)));
			break;
		}
		fp_log(FP_LOG_WARNING, "store", "node %s is cut off: %s; what needs it waits %s", info->url,
		       fp_node_notice_reason(info, info->last_error, why, sizeof(why)),
		       format_patience(info->patience_ns, time, sizeof(time)));
		break;
	case FP_NEWS_BACK:
		fp_log(FP_LOG_NOTICE, "store", "node %s is back after %s", info->url,
		       fp_time_format(outage_ns, time, sizeof(time)));
		break;
	case FP_NEWS_LOST:
		fp_log(FP_LOG_ERROR, "store",
		       "node %s is lost: %s; pages that only it holds raise SIGBUS when touched", info->url,
		       fp_node_notice_reason(info, info->error, why, sizeof(why)));
		break;
	case FP_NEWS_NONE:
		break;
	}
}

void fp_node_notice_look(struct fp_node_said *said, const struct fp_store *store, unsigned node)
{
	struct fp_store_node info;
	uint64_t outage_ns = 0;
	enum fp_node_news news;

	fp_store_node_info(store, node, &info);
	if (info.adopting && !info.last_error)
		return;    /* this node is not used yet */
	if (info.adopting) /* its pages can be read, but no page can be written to it yet */
		info.state = FP_BREAKER_OPEN;
	news = fp_node_notice_step(said, info.state, fp_clock_ns(), &outage_ns);
	if (news != FP_NEWS_NONE)
		say(news, &info, outage_ns);
}
