/*
 * A session at a node, by whichever way works. Room: tools.
 */
#include "connect.h"

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

int fp_connect_open(const char *url, const struct fp_session_options *options,
                    struct fp_session **ret_session, struct fp_url *ret_way)
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
