/*
 * The node's state in words. Room: daemon; see status.h. Names need no escapes in JSON: config.c
 * and the wire's decoder refuse names that would need them.
 */
#include "status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cleanup.h"
#include "clock.h"
#include "node_server.h"
#include "units.h"

#define SESSION_MAX_BYTES 768 /* the most that one session's object takes */
#define PERIOD_NS         (100 * FP_NSEC_PER_MSEC)
#define MADE_A_PERIOD     20u
#define CLIENT_BYTES      (2ull << 20) /* of texts made for one client in a period */
#define MAX_DEVICES       32u

typedef unsigned long long ull;

static void print_pools(struct fp_node_server *server, FILE *out)
{
	fprintf(out, "\"pools\":[");
	for (unsigned i = 0; i < server->pools.n; i++) {
		const struct fp_pool *pool = server->pools.items[i];

		fprintf(out,
		        "%s{\"name\":\"%s\",\"backing\":\"%s\",\"numa_node\":%lld,\"preallocate\":%s,"
		        "\"size_bytes\":%llu,\"used_bytes\":%llu,\"kept_bytes\":%llu,\"free_bytes\":%llu,"
		        "\"leases\":%llu}",
		        i ? "," : "", pool->name, fp_backing_name(pool->backing),
		        pool->numa_node == FP_NUMA_ANY ? -1ll : (long long)pool->numa_node,
		        pool->preallocate ? "true" : "false", (ull)pool->size_bytes, (ull)pool->used_bytes,
		        (ull)pool->kept_bytes, (ull)fp_pools_free(&server->pools, pool), (ull)pool->n_leases);
	}
	fprintf(out, "],");
}

static uint64_t printable_quota(const struct fp_node_server *server, const struct fp_client *client)
{
	uint64_t quota_bytes = fp_config_quota(server->config, client->name);

	return quota_bytes == FP_QUOTA_NONE ? 0 : quota_bytes;
}

/* Prints as many clients as fit into half of the message. The other half is for sessions. */
static void print_clients(const struct fp_node_server *server, FILE *out)
{
	unsigned omitted = server->clients.n;
	const char *comma = "";

	fprintf(out, "\"clients\":[");
	for (const struct fp_client *c = server->clients.first; c && ftell(out) < FP_WIRE_MAX_STATUS / 2;
	     c = c->next) {
		fprintf(out, "%s{\"name\":\"%s\",\"sessions\":%u,\"leased_bytes\":%llu,\"quota_bytes\":%llu}",
		        comma, c->name, c->n_sessions, (ull)c->leased_bytes, (ull)printable_quota(server, c));
		comma = ",";
		omitted--;
	}
	fprintf(out, "],\"clients_omitted\":%u,", omitted);
}

static ull grace_left_ms(const struct fp_node_session *session)
{
	uint64_t now_ns = fp_clock_ns();

	return session->cut_off && session->expires_ns > now_ns
	           ? (session->expires_ns - now_ns) / FP_NSEC_PER_MSEC
	           : 0;
}

static unsigned regions(const struct fp_node_session *session)
{
	return session->cm_peer ? fp_cm_server_peer_regions(session->cm_peer) : 0;
}

static void print_session(const struct fp_node_session *session, FILE *out)
{
	fprintf(out,
	        "{\"id\":%llu,\"client\":\"%s\",\"name\":\"%s\",\"peer\":\"%s\",\"state\":\"%s\",\"grace_"
	        "left_ms\":%llu,"
	        "\"resumes\":%u,\"age_s\":%llu,\"transport\":\"%s\",\"memfd\":%s,\"links\":%u,"
	        "\"queue_pairs\":%u,\"regions\":%u,\"leases\":%u,\"adopted_leases\":%u,\"parent\":%llu,"
	        "\"leased_bytes\":%llu,\"read_bytes\":%llu,\"written_bytes\":%llu}",
	        (ull)session->id, session->client->name, session->name, session->peer,
	        session->cut_off ? "cut off" : "connected", grace_left_ms(session), session->n_resumes,
	        (ull)((fp_clock_ns() - session->opened_ns) / FP_NSEC_PER_SEC), session->transport,
	        session->memfd ? "true" : "false", session->n_links,
	        session->cm_peer ? fp_cm_server_peer_queue_pairs(session->cm_peer) : 0, regions(session),
	        session->leases.n, session->leases.n_adopted, (ull)session->parent_id,
	        (ull)session->leases.leased_bytes, (ull)session->read_bytes, (ull)session->written_bytes);
}

static void print_sessions(const struct fp_node_server *server, FILE *out)
{
	unsigned omitted = 0;
	const char *comma = "";

	fprintf(out, "\"sessions\":[");
	for (const struct fp_node_session *s = server->sessions.first; s; s = s->next) {
		if (s->is_operator)
			continue;
		if (ftell(out) > (long)(FP_WIRE_MAX_STATUS - 2 * SESSION_MAX_BYTES)) {
			omitted++;
			continue;
		}
		fprintf(out, "%s", comma);
		print_session(s, out);
		comma = ",";
	}
	fprintf(out, "],\"sessions_omitted\":%u", omitted);
}

static void print_devices(FILE *out)
{
	struct fp_rdma_device devices[MAX_DEVICES];
	unsigned n = fp_rdma_devices(devices, MAX_DEVICES);

	fprintf(out, "\"devices\":[");
	for (unsigned i = 0; i < n; i++)
		fprintf(out, "%s{\"name\":\"%s\",\"state\":\"%s\",\"iwarp\":%s}", i ? "," : "",
		        devices[i].name, devices[i].state, devices[i].iwarp ? "true" : "false");
	fprintf(out, "]");
}

static void print_rdma(const struct fp_node_server *server, FILE *out)
{
	struct fp_cm_server_counts c;
	unsigned n_regions = 0;

	if (!server->cm_server)
		return;
	fp_cm_server_counts(server->cm_server, &c);
	for (const struct fp_node_session *s = server->sessions.first; s; s = s->next)
		n_regions += regions(s);
	fprintf(out,
	        "\"rdma\":{\"listeners\":%u,\"listeners_down\":%u,\"connections\":%u,\"queue_pairs\":%u,"
	        "\"regions\":%u,\"rejected\":%llu,\"denied\":%llu,",
	        c.listeners, c.listeners_down, c.peers, c.queue_pairs, n_regions, (ull)c.rejected,
	        (ull)c.denied);
	print_devices(out);
	fprintf(out, "},");
}

/* Counts the requests that we denied, and the one-sided requests that the device denied. */
static uint64_t denied(const struct fp_node_server *server, const struct fp_counters *counters)
{
	struct fp_cm_server_counts c = {0};

	if (server->cm_server)
		fp_cm_server_counts(server->cm_server, &c);
	return counters->denied + c.denied;
}

/* Of the threads that serve links. */
static void print_shards(const struct fp_node_server *server, FILE *out)
{
	fprintf(out, "\"shards\":[");
	for (unsigned i = 0; i < server->shards.n; i++) {
		const struct fp_shard *shard = &server->shards.items[i];

		fprintf(out, "%s{\"links\":%u,\"reads\":%llu,\"writes\":%llu}", i ? "," : "", shard->n_links,
		        (ull)shard->counters.reads, (ull)shard->counters.writes);
	}
	fprintf(out, "],");
}

static void print_counters(const struct fp_node_server *server, FILE *out)
{
	struct fp_counters sum = server->own.counters, *c = &sum;

	fp_shards_add_counters(&server->shards, c);
	fprintf(out,
	        "\"counters\":{\"connections\":%llu,\"sessions\":%llu,\"sessions_cut_off\":%llu,"
	        "\"sessions_resumed\":%llu,\"sessions_expired\":%llu,\"refused\":%llu,"
	        "\"leases_refused\":%llu,\"evicted\":%llu,"
	        "\"denied\":%llu,\"reads\":%llu,"
	        "\"writes\":%llu,\"read_bytes\":%llu,\"written_bytes\":%llu},",
	        (ull)c->connections, (ull)c->sessions, (ull)c->cut_off, (ull)c->resumed, (ull)c->expired,
	        (ull)c->refused, (ull)c->leases_refused, (ull)c->evicted, (ull)denied(server, c),
	        (ull)c->reads, (ull)c->writes, (ull)c->read_bytes, (ull)c->written_bytes);
}

/* The causes that have occurred. */
static void print_refusals(const struct fp_node_server *server, FILE *out)
{
	uint64_t now_ns = fp_clock_ns();
	const char *comma = "";

	fprintf(out, "\"refusals\":[");
	for (unsigned i = 0; i < FP_REFUSAL_CAUSES; i++) {
		const struct fp_refusal_count *count = &server->refusals.causes[i];

		if (!count->n)
			continue;
		fprintf(out, "%s{\"cause\":\"%s\",\"count\":%llu,\"last_client\":\"%s\",\"last_age_s\":%llu}",
		        comma, fp_refusal_name((enum fp_refusal_cause)i), (ull)count->n, count->last_client,
		        (ull)((now_ns - count->last_ns) / FP_NSEC_PER_SEC));
		comma = ",";
	}
	fprintf(out, "],");
}

int fp_status_json(struct fp_node_server *server, char **ret_text, size_t *ret_len)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return -ENOMEM;
	fprintf(out,
	        "{\"version\":\"%s\",\"pid\":%d,\"uptime_s\":%llu,\"state\":\"%s\",\"connections\":%u,"
	        "\"strangers\":%u,\"operators\":%u,",
	        FP_VERSION, getpid(), (ull)((fp_clock_ns() - server->start_ns) / FP_NSEC_PER_SEC),
	        server->stopping   ? "stopping"
	        : server->draining ? "draining"
	                           : "serving",
	        server->n_conns, server->strangers.origins.n_conns, server->sessions.n_operators);
	print_pools(server, out);
	print_counters(server, out);
	print_shards(server, out);
	print_refusals(server, out);
	print_rdma(server, out);
	print_clients(server, out);
	print_sessions(server, out);
	fprintf(out, "}");
	if (fclose(out) != 0) {
		free(text);
		return -ENOMEM;
	}
	/* Every list above has a limit, so this is for the list that somebody adds later. */
	if (len > FP_WIRE_MAX_STATUS) {
		fp_log(FP_LOG_ERROR, "node", "STATUS has %zu bytes, %u are allowed", len, FP_WIRE_MAX_STATUS);
		free(text);
		return -EREMOTEIO;
	}
	*ret_text = text;
	*ret_len = len;
	return 0;
}

static void hash_number(uint64_t *hash, uint64_t number)
{
	*hash = (*hash ^ number) * 1099511628211ull;
	*hash ^= *hash >> 32;
}

/* A hash of what the text says, without the details of sessions: n_acts stands for these. */
static uint64_t hash_state(const struct fp_node_server *server)
{
	const struct fp_counters *c = &server->own.counters;
	const uint64_t numbers[] = {
	    server->status.n_acts,
	    server->draining,
	    server->stopping,
	    server->n_conns,
	    server->strangers.origins.n_conns,
	    server->sessions.n,
	    server->sessions.n_operators,
	    server->clients.n,
	    c->connections,
	    c->sessions,
	    c->cut_off,
	    c->resumed,
	    c->expired,
	    c->refused,
	    c->leases_refused,
	    c->evicted,
	};
	uint64_t hash = 0;

	for (unsigned i = 0; i < FP_ARRAY_LEN(numbers); i++)
		hash_number(&hash, numbers[i]);
	for (unsigned i = 0; i < server->pools.n; i++) {
		hash_number(&hash, server->pools.items[i]->used_bytes);
		hash_number(&hash, server->pools.items[i]->kept_bytes);
		hash_number(&hash, server->pools.items[i]->n_leases);
	}
	return hash;
}

static bool is_new_text_due(struct fp_status_recent *recent, struct fp_client *client, uint64_t state)
{
	uint64_t period = fp_clock_ns() / PERIOD_NS;

	if (recent->period < period) {
		recent->period = period;
		recent->n = 0;
	}
	if (client->status_period < period) {
		client->status_period = period;
		client->status_bytes = 0;
	}
	if (!recent->text || recent->n < MADE_A_PERIOD)
		return true;
	return recent->state != state && client->status_bytes < CLIENT_BYTES;
}

int fp_status_recent(struct fp_node_server *server, struct fp_client *client, const char **ret_text,
                     size_t *ret_len, int *ret_made)
{
	struct fp_status_recent *recent = &server->status;
	uint64_t state = hash_state(server);
	char *text;
	int r;

	*ret_made = is_new_text_due(recent, client, state);
	if (*ret_made) {
		r = fp_status_json(server, &text, &recent->len);
		if (r < 0)
			return r;
		free(recent->text);
		recent->text = text;
		recent->state = state;
		recent->n++;
		client->status_bytes += recent->len;
	}
	*ret_text = recent->text;
	*ret_len = recent->len;
	return 0;
}

const char *fp_status_line(struct fp_node_server *server, char *buf, size_t len)
{
	uint64_t leases, leased_bytes, size_bytes, free_bytes;
	char leased[16], size[16];

	fp_pools_leased(&server->pools, &leases, &leased_bytes);
	fp_pools_sum(&server->pools, false, &size_bytes, &free_bytes);
	snprintf(buf, len, "%s%u session%s hold%s %llu lease%s, %s of %s",
	         server->draining ? "draining: " : "", server->sessions.n, fp_plural(server->sessions.n),
	         server->sessions.n == 1 ? "s" : "", (ull)leases, fp_plural(leases),
	         fp_size_format(leased_bytes, leased, sizeof(leased)),
	         fp_size_format(size_bytes, size, sizeof(size)));
	return buf;
}
