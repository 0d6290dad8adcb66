/*
 * Clients. Room: daemon; see client.h.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "listen.h"

static bool is_loopback(const char *peer)
{
	static const char *const prefixes[] = {"127.", "[::1]", "[::ffff:127."};

	for (unsigned i = 0; i < FP_ARRAY_LEN(prefixes); i++)
		if (strncmp(peer, prefixes[i], strlen(prefixes[i])) == 0)
			return true;
	return false;
}

const char *fp_client_peer_name(int unix_fd, const char *peer, char buf[FP_CLIENT_NAME_LEN])
{
	const char *port = strrchr(peer, ':');

	if (unix_fd >= 0) {
		snprintf(buf, FP_CLIENT_NAME_LEN, "uid %u", fp_listen_peer_cred(unix_fd).uid);
	} else if (is_loopback(peer)) {
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

struct fp_client *fp_client_get(struct fp_clients *clients, const char *name)
{
	struct fp_client *client = clients->first;

	while (client && strcmp(client->name, name) != 0)
		client = client->next;
	if (!client) {
		client = calloc(1, sizeof(*client));
		if (!client)
			return NULL;
		snprintf(client->name, sizeof(client->name), "%s", name);
		client->clients = clients;
		client->next = clients->first;
		clients->first = client;
		clients->n++;
	}
	return fp_client_ref(client);
}

void fp_client_put(struct fp_client *client)
{
	struct fp_client **p = &client->clients->first;

	if (--client->refs)
		return;
	while (*p != client)
		p = &(*p)->next;
	*p = client->next;
	client->clients->n--;
	free(client);
}

uint64_t fp_client_share(const struct fp_client *client, uint64_t max)
{
	return client->clients->alone ? max : max - max / 4;
}
