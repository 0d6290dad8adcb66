/* See names.h. */
#include "names.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

/*
 * After so many failures in a row the name is looked up again: it may have other addresses by now.
 */
#define FAILURES_MAX 4u

struct name {
	struct name *next;
	char *host;
	unsigned n_failed; /* how often in a row no address answered */
	struct fp_addresses addresses;
};

static struct name *names; /* never freed: there is one for each host in the settings */
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER; /* not held during a look-up */

static int look_up(const char *host, struct fp_addresses *ret_addresses)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct fp_addresses found = {0};
	struct addrinfo *list;

	switch (getaddrinfo(host, NULL, &hints, &list)) {
	case 0:
		break;
	case EAI_MEMORY:
		return -ENOMEM;
	case EAI_SYSTEM:
		return errno ? -errno : -ENXIO;
	default:
		return -ENXIO;
	}
	for (const struct addrinfo *a = list; a && found.n < FP_ADDRESSES_MAX; a = a->ai_next) {
		if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
			continue;
		memcpy(&found.list[found.n].room, a->ai_addr, a->ai_addrlen);
		found.list[found.n++].len = a->ai_addrlen;
	}
	freeaddrinfo(list);
	if (!found.n)
		return -ENXIO;
	*ret_addresses = found;
	return 0;
}

/* Call it with names_lock held. */
static struct name *known(const char *host)
{
	struct name *name = names;

	while (name && strcmp(name->host, host) != 0)
		name = name->next;
	return name;
}

/* Call it with names_lock held. NULL: no memory; then the name is looked up again next time. */
static struct name *name_new(const char *host)
{
	struct name *name = calloc(1, sizeof(*name));

	if (name)
		name->host = strdup(host);
	if (!name || !name->host) {
		free(name);
		return NULL;
	}
	name->next = names;
	names = name;
	return name;
}

static void keep(const char *host, const struct fp_addresses *addresses)
{
	struct name *name;

	pthread_mutex_lock(&names_lock);
	name = known(host);
	if (!name)
		name = name_new(host);
	if (name)
		name->addresses = *addresses;
	pthread_mutex_unlock(&names_lock);
}

static void take_kept(const char *host, struct fp_addresses *ret_addresses)
{
	struct name *name;

	pthread_mutex_lock(&names_lock);
	name = known(host);
	if (name)
		*ret_addresses = name->addresses;
	pthread_mutex_unlock(&names_lock);
}

static void set_port(struct sockaddr *address, uint16_t port)
{
	if (address->sa_family == AF_INET)
		((struct sockaddr_in *)address)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)address)->sin6_port = htons(port);
}

int fp_names_find(const char *host, uint16_t port, struct fp_addresses *ret_addresses)
{
	struct fp_addresses addresses = {0};
	int r;

	take_kept(host, &addresses);
	if (!addresses.n) {
		r = look_up(host, &addresses);
		if (r < 0)
			return r;
		keep(host, &addresses);
	}
	for (unsigned i = 0; i < addresses.n; i++)
		set_port(&addresses.list[i].any, port);
	*ret_addresses = addresses;
	return 0;
}

void fp_names_tried(const char *host, bool answered)
{
	struct name *name;

	pthread_mutex_lock(&names_lock);
	name = known(host);
	if (name)
		name->n_failed = answered ? 0 : name->n_failed + 1;
	pthread_mutex_unlock(&names_lock);
}

void fp_names_refresh(const char *host)
{
	struct fp_addresses addresses;
	struct name *name;
	bool stale;

	pthread_mutex_lock(&names_lock);
	name = known(host);
	stale = name && name->n_failed >= FAILURES_MAX;
	if (stale)
		name->n_failed = 0;
	pthread_mutex_unlock(&names_lock);
	if (stale && look_up(host, &addresses) == 0)
		keep(host, &addresses);
}

void fp_names_forked(void)
{
	pthread_mutex_init(&names_lock, NULL);
}
