/*
 * Clients. Room: daemon; see client.h.
 */
#include "client.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "listen.h"

/*
 * True if the peer is on this machine. Whoever reached a loopback address is, whatever address of
 * the machine it sends from.
 */
static bool is_local(int fd, const char *peer)
{
	static const char *const prefixes[] = {"127.", "[::1]", "[::ffff:127."};
	struct sockaddr_storage own;

	for (unsigned i = 0; i < FP_ARRAY_LEN(prefixes); i++)
		if (strncmp(peer, prefixes[i], strlen(prefixes[i])) == 0)
			return true;
	fp_listen_own_address(fd, &own);
	if (own.ss_family == AF_INET)
		return ntohl(((struct sockaddr_in *)&own)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return own.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&own)->sin6_addr);
}

const char *fp_client_peer_name(int fd, bool is_unix, const char *peer, char buf[FP_CLIENT_NAME_LEN])
{
	const char *port = strrchr(peer, ':');

	if (is_unix) {
		snprintf(buf, FP_CLIENT_NAME_LEN, "uid %u", fp_listen_peer_cred(fd).uid);
	} else if (is_local(fd, peer)) {
		snprintf(buf, FP_CLIENT_NAME_LEN, "loopback");
	} else {
		snprintf(buf, FP_CLIENT_NAME_LEN, "%.*s", port ? (int)(port - peer) : FP_CLIENT_NAME_LEN,
		         peer);
	}
	return buf;
}

struct fp_client *fp_client_ref(struct fp_client *client)
{
	client->refs++;
	return client;
}

/* FNV-1a. Who chooses names so that they meet in one bucket slows only the search of that
 * bucket. */
static struct fp_client **bucket_of(struct fp_clients *clients, const char *name)
{
	uint32_t hash = 2166136261u;

	for (; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 16777619u;
	return &clients->buckets[hash % FP_CLIENT_BUCKETS];
}

static void enter(struct fp_clients *clients, struct fp_client **bucket, struct fp_client *client)
{
	client->clients = clients;
	client->next = clients->first;
	client->at = &clients->first;
	client->bucket_next = *bucket;
	client->bucket_at = bucket;
	if (client->next)
		client->next->at = &client->next;
	if (client->bucket_next)
		client->bucket_next->bucket_at = &client->bucket_next;
	clients->first = *bucket = client;
	clients->n++;
}

static void leave(struct fp_client *client)
{
	*client->at = client->next;
	*client->bucket_at = client->bucket_next;
	if (client->next)
		client->next->at = client->at;
	if (client->bucket_next)
		client->bucket_next->bucket_at = client->bucket_at;
	client->clients->n--;
}

struct fp_client *fp_client_get(struct fp_clients *clients, const char *name)
{
	struct fp_client **bucket = bucket_of(clients, name), *client = *bucket;

	while (client && strcmp(client->name, name) != 0)
		client = client->bucket_next;
	if (!client) {
		client = calloc(1, sizeof(*client));
		if (!client)
			return NULL;
		snprintf(client->name, sizeof(client->name), "%s", name);
		enter(clients, bucket, client);
	}
	return fp_client_ref(client);
}

void fp_client_put(struct fp_client *client)
{
	if (--client->refs)
		return;
	leave(client);
	free(client);
}

uint64_t fp_client_share(const struct fp_client *client, uint64_t max)
{
	return client->clients->alone ? max : max - max / 4;
}
