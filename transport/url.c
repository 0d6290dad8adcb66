/*
 * Parses node URLs: "shm:PATH", "tcp://HOST[:PORT]", "auto://HOST,HOST". Room: transport. It
 * resolves no names.
 */
#include "transport.h"
#include "units.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cleanup.h"

/* All transports that this build has. */
static const struct fp_transport *const transports[] = {&fp_transport_shm, &fp_transport_tcp,
                                                        &fp_transport_rdma, &fp_transport_rdma_tcp};

/*
 * The transports of auto, best first. rdma has a port of its own, because soft iWARP takes its port
 * from the kernel's TCP.
 */
static const struct {
	const char *scheme;
	unsigned port_offset;
} automatic[] = {{"rdma", 1}, {"tcp", 0}};

static_assert(FP_ARRAY_LEN(automatic) <= FP_URL_MAX_TRANSPORTS, "each has its row");

#define HOSTS_MAX 512 /* longest text of a URL with several addresses */

static const struct fp_transport *find_transport(const char *scheme, size_t len)
{
	for (size_t i = 0; i < FP_ARRAY_LEN(transports); i++)
		if (strlen(transports[i]->scheme) == len && !memcmp(transports[i]->scheme, scheme, len))
			return transports[i];
	return NULL;
}

/* Parses "" (0) and ":1" to ":65535". */
static int parse_port(const char *text, unsigned *ret_port)
{
	uint64_t port = 0;

	if (*text && (*text != ':' || strlen(text) > strlen(":65535") ||
	              fp_number_parse(text + 1, 1, UINT16_MAX, &port) < 0))
		return -EINVAL;
	*ret_port = (unsigned)port;
	return 0;
}

static int copy_host(struct fp_url *url, const char *host, size_t len)
{
	if (len == 0)
		return -EINVAL;
	if (len >= sizeof(url->host))
		return -ENAMETOOLONG;
	memcpy(url->host, host, len);
	return 0;
}

/* Parses one host. Removes the brackets around an IPv6 address. Moves *text behind the host. */
static int parse_host(struct fp_url *url, const char **text)
{
	const char *host = *text, *end;
	int r;

	if (*host == '[') {
		host++;
		end = host + strspn(host, "0123456789abcdefABCDEF:.");
		if (*end != ']')
			return -EINVAL;
		r = copy_host(url, host, (size_t)(end - host));
		*text = end + 1;
	} else {
		end = host + strcspn(host, ":,/@?#[] \t\n");
		r = copy_host(url, host, (size_t)(end - host));
		*text = end;
	}
	return r;
}

/*
 * Parses "//HOST[,HOST]...[:PORT]" into the hosts of one row. *ret_port is 0 if no port is given.
 */
static int parse_authority(const char *text, struct fp_url *row, unsigned *ret_n, unsigned *ret_port)
{
	unsigned n = 0;
	int r;

	if (strncmp(text, "//", 2))
		return -EINVAL;
	text += 2;
	for (;; text++) {
		if (n == FP_URL_MAX_ADDRESSES)
			return -E2BIG;
		r = parse_host(&row[n++], &text);
		if (r < 0)
			return r;
		if (*text != ',')
			break;
	}
	*ret_n = n;
	return parse_port(text, ret_port);
}

/* Makes the text of a URL for one of the ways that a longer URL names. */
static void compose_text(struct fp_url *url, unsigned port)
{
	bool v6 = strchr(url->host, ':');
	char number[8] = "";
	int n;

	static_assert(sizeof("rdma+tcp://[]:65535") + sizeof(url->host) <= sizeof(url->text), "each fits");
	if (port)
		snprintf(number, sizeof(number), ":%u", port & UINT16_MAX);
	n = snprintf(url->text, sizeof(url->text), "%s://%s%s%s%s", url->transport->scheme, v6 ? "[" : "",
	             url->host, v6 ? "]" : "", number);
	assert(n > 0 && (size_t)n < sizeof(url->text));
	(void)n;
}

/*
 * Fills the row of one transport with the hosts of the set's first row. If port is 0, uses the
 * transport's default port.
 */
static void fill_row(struct fp_url_set *set, struct fp_url *row, const struct fp_transport *transport,
                     unsigned port)
{
	for (unsigned i = 0; i < set->n_addresses; i++) {
		memcpy(row[i].host, set->urls[0][i].host, sizeof(row[i].host));
		row[i].transport = transport;
		row[i].port = (uint16_t)(port ? port : transport->default_port);
		compose_text(&row[i], port);
	}
}

static int parse_auto(const char *text, struct fp_url_set *set)
{
	unsigned port;
	int r = parse_authority(text, set->urls[0], &set->n_addresses, &port);

	if (r < 0)
		return r;
	for (size_t i = 0; i < FP_ARRAY_LEN(automatic); i++) {
		const char *scheme = automatic[i].scheme;
		const struct fp_transport *transport = find_transport(scheme, strlen(scheme));

		if (port && port + automatic[i].port_offset > UINT16_MAX)
			return -EINVAL;
		if (transport)
			fill_row(set, set->urls[set->n_transports++], transport,
			         port ? port + automatic[i].port_offset : 0);
	}
	return set->n_transports ? 0 : -EINVAL;
}

static int parse_given(const char *text, const struct fp_transport *transport, struct fp_url_set *set)
{
	unsigned port;
	int r;

	set->n_transports = 1;
	if (!transport->default_port) {
		set->n_addresses = 1;
		set->urls[0][0].transport = transport;
		return copy_host(&set->urls[0][0], text, strlen(text));
	}
	r = parse_authority(text, set->urls[0], &set->n_addresses, &port);
	if (r == 0)
		fill_row(set, set->urls[0], transport, port);
	return r;
}

int fp_url_parse_set(const char *text, struct fp_url_set *ret_set)
{
	const char *colon = strchr(text, ':');
	struct fp_url_set set = {0};
	const struct fp_transport *transport;
	int r;

	if (!colon || colon == text)
		return -EINVAL;
	if (strlen(text) >= HOSTS_MAX)
		return -ENAMETOOLONG;
	transport = find_transport(text, (size_t)(colon - text));
	if (transport)
		r = parse_given(colon + 1, transport, &set);
	else if ((size_t)(colon - text) == strlen("auto") && !memcmp(text, "auto", strlen("auto")))
		r = parse_auto(colon + 1, &set);
	else
		r = -EINVAL;
	if (r < 0)
		return r;
	if (set.n_addresses == 1 && transport) {
		if (strlen(text) >= sizeof(set.urls[0][0].text))
			return -ENAMETOOLONG;
		strcpy(set.urls[0][0].text, text);
	}
	*ret_set = set;
	return 0;
}

int fp_url_parse(const char *text, struct fp_url *ret_url)
{
	struct fp_url_set set;
	int r = fp_url_parse_set(text, &set);

	/* A URL with too many addresses for a set also names more than one way. */
	if (r < 0)
		return r == -E2BIG ? -EINVAL : r;
	if (set.n_addresses * set.n_transports != 1 || !strncmp(text, "auto:", 5))
		return -EINVAL; /* auto names no single transport, even if this build has only one */
	*ret_url = set.urls[0][0];
	return 0;
}
