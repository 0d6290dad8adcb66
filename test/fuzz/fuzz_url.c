/*
 * Fuzz target: any text as the URL of a node.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "fuzz.h"
#include "transport.h"

/* The text of an accepted URL must be accepted again, and mean the same node. */
static void check(const struct fp_url *url)
{
	struct fp_url again;

	assert(memchr(url->text, '\0', sizeof(url->text)) && memchr(url->host, '\0', sizeof(url->host)));
	assert(url->transport && url->host[0]);
	assert((url->port != 0) == (url->transport->default_port != 0));
	assert(fp_url_parse(url->text, &again) == 0);
	assert(again.transport == url->transport && again.port == url->port &&
	       !strcmp(again.host, url->host));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	fp_autofree char *text = strndup((const char *)bytes, len);
	struct fp_url_set set;
	struct fp_url url;
	int r = fp_url_parse(text, &url);

	assert(r == 0 || r == -EINVAL || r == -ENAMETOOLONG);
	if (r == 0)
		check(&url);
	r = fp_url_parse_set(text, &set);
	assert(r == 0 || r == -EINVAL || r == -ENAMETOOLONG || r == -E2BIG);
	if (r < 0)
		return 0;
	assert(set.n_transports >= 1 && set.n_transports <= FP_URL_MAX_TRANSPORTS);
	assert(set.n_addresses >= 1 && set.n_addresses <= FP_URL_MAX_ADDRESSES);
	for (unsigned t = 0; t < set.n_transports; t++)
		for (unsigned a = 0; a < set.n_addresses; a++)
			check(&set.urls[t][a]);
	return 0;
}
