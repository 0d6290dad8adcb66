/*
 * A session at a node, by whichever way works. Room: tools.
 */
#include "reach.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "log.h"

/* True if another address or transport of the same node may do better. */
static bool worth_another_way(int error)
{
	switch (error) {
	case -EACCES:
	case -EKEYREJECTED:
	case -ENOMEM:
	case -EMFILE:
		return false;
	default:
		return true;
	}
}

int fp_reach_open(const char *url, const struct fp_session_options *options, struct fp_session **ret_session,
                  struct fp_url *ret_way)
{
	struct fp_url_set set;
	int r = fp_url_parse_set(url, &set);

	if (r < 0)
		return r;
	r = -ENODEV;
	for (unsigned t = 0; t < set.n_transports; t++)
		for (unsigned a = 0; a < set.n_addresses; a++) {
			r = fp_session_open(&set.urls[t][a], options, ret_session);
			if (r == 0)
				*ret_way = set.urls[t][a];
			if (r == 0 || !worth_another_way(r))
				return r;
		}
	return r;
}

const char *fp_reach_explain(int error, char *buf, size_t len)
{
	switch (error) {
	case -ECONNREFUSED:
	case -ENOENT:
		return "nothing listens there: is farpaged running, and is the address right?";
	case -ETIMEDOUT:
		return "no answer within the deadline";
	case -EPROTO:
		return "what answers there is no memory node";
	case -EPROTONOSUPPORT:
		return "no protocol version (or transport) in common: update the older side";
	case -EACCES:
		return "the node refused the secret: give the one of its auth section with --secret-file";
	case -EKEYREJECTED:
		return "the node could not prove that it knows the secret: it is not to be trusted";
	case -EPERM:
		return "this user may not connect to it: a private node serves one user, others whom their "
		       "socket's "
		       "group admits";
	case -ELIBACC:
		return "rdma needs libibverbs.so.1 and librdmacm.so.1: install libibverbs1, "
		       "ibverbs-providers "
		       "and librdmacm1 (rdma-core)";
	case -ENODEV:
		return "there is no RDMA device with an active port here: see `rdma link`";
	case -EINVAL:
		return "not a node URL: use shm:PATH, tcp://HOST[:PORT], rdma://HOST[:PORT] or auto://HOST";
	default:
		return fp_strerror(error, buf, len);
	}
}
