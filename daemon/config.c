/*
 * The configuration of farpaged. Room: daemon; see config.h.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "listen.h"
#include "turns.h"
#include "wire.h"

#define NAME_MAX_BYTES 63

static const char *const backing_names[] = {"memfd", "anonymous", "hugetlb", NULL};
static const char name_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
static const char *const level_names[] = {"error", "warning", "notice", "info", "debug", NULL};

static void *new_pool(void *config)
{
	return fp_config_add_pool(config);
}

static void *begin_auth(void *target)
{
	struct fp_config *config = target;

	config->auth.given = true;
	return &config->auth;
}

static void *new_secret(void *auth)
{
	return fp_secrets_add(&((struct fp_auth_config *)auth)->secrets);
}

static void *begin_rdma(void *target)
{
	struct fp_config *config = target;

	config->by_hand = true;
	return &config->rdma;
}

static const struct fp_conf_field pool_fields[] = {
    FP_CONF_KEY("name", STRING, fp_pool_config, name, .required = true),
    FP_CONF_KEY("size", SIZE, fp_pool_config, size_bytes, .min = FP_POOL_MIN_BYTES, .max = FP_POOL_MAX_BYTES,
                .required = true),
    FP_CONF_KEY("backing", ENUM, fp_pool_config, backing, .choices = backing_names),
    FP_CONF_KEY("numa_node", U64, fp_pool_config, numa_node, .max = 1023),
    FP_CONF_KEY("preallocate", BOOL, fp_pool_config, preallocate),
    {0},
};

static const struct fp_conf_field limit_fields[] = {
    FP_CONF_KEY("client_quota", SIZE, fp_limits, client_quota_bytes, .min = 4096, .max = FP_POOL_MAX_BYTES),
    FP_CONF_KEY("max_sessions", U64, fp_limits, max_sessions, .min = 1, .max = 65536),
    FP_CONF_KEY("max_leases", U64, fp_limits, max_leases, .min = 1, .max = FP_WIRE_MAX_LEASE_ID),
    FP_CONF_KEY("max_connections", U64, fp_limits, max_connections, .min = 1, .max = 65536),
    FP_CONF_KEY("max_requests", U64, fp_limits, max_requests, .min = 1, .max = 4096),
    FP_CONF_KEY("handshake_timeout", TIME, fp_limits, handshake_timeout_ns, .min = 10 * FP_NSEC_PER_MSEC,
                .max = 3600 * FP_NSEC_PER_SEC),
    FP_CONF_KEY("grace", TIME, fp_limits, grace_ns, .max = 24 * 3600 * FP_NSEC_PER_SEC),
    FP_CONF_KEY("idle_timeout", TIME, fp_limits, idle_timeout_ns, .max = 24 * 3600 * FP_NSEC_PER_SEC),
    {.key = "drain_timeout", .type = FP_CONF_NOTHING, .min = FP_LOG_WARNING},
    {0},
};

static const struct fp_conf_field secret_fields[] = {
    FP_CONF_KEY("name", STRING, fp_node_secret, name, .required = true),
    FP_CONF_KEY("file", STRING, fp_node_secret, file, .required = true),
    FP_CONF_KEY("rights", STRINGS, fp_node_secret, rights_said),
    FP_CONF_KEY("quota", SIZE, fp_node_secret, quota_bytes, .min = 4096, .max = FP_POOL_MAX_BYTES),
    {0},
};

static const struct fp_conf_field auth_fields[] = {
    FP_CONF_KEY("secret_file", STRING, fp_auth_config, secret_file),
    FP_CONF_KEY("secrets", LIST, fp_auth_config, secrets, .fields = secret_fields, .item = new_secret),
    {0},
};

static const struct fp_conf_field config_fields[] = {
    FP_CONF_KEY("listen", STRINGS, fp_config, listen, .required = true),
    FP_CONF_KEY("pools", LIST, fp_config, pools, .fields = pool_fields, .item = new_pool, .required = true),
    FP_CONF_KEY("limits", MAP, fp_config, limits, .fields = limit_fields),
    FP_CONF_KEY("auth", MAP, fp_config, auth, .fields = auth_fields, .item = begin_auth),
    FP_CONF_KEY("rdma", MAP, fp_config, rdma, .fields = fp_rdma_node_fields, .item = begin_rdma),
    FP_CONF_KEY("shards", U64, fp_config, shards, .min = 1, .max = FP_MAX_SHARDS),
    FP_CONF_KEY("log_level", ENUM, fp_config, log_level, .choices = level_names),
    {0},
};

struct fp_config *fp_config_new(void)
{
	struct fp_config *config = calloc(1, sizeof(*config));

	if (!config)
		return NULL;
	config->limits = (struct fp_limits){
	    .client_quota_bytes = FP_QUOTA_NONE,
	    .max_sessions = 4096, /* one for each program, and one for each of its forked children */
	    .max_leases = 16384,
	    .max_connections = 32768,
	    .max_requests = 256,
	    .handshake_timeout_ns = 5 * FP_NSEC_PER_SEC,
	    .grace_ns = 30 * FP_NSEC_PER_SEC,
	    .idle_timeout_ns = 30 * FP_NSEC_PER_SEC,
	};
	config->shards = 1;
	config->rdma = fp_rdma_defaults;
	config->log_level = FP_LOG_INFO - FP_LOG_ERROR;
	fp_secrets_init(&config->auth.secrets);
	return config;
}

void fp_config_free(struct fp_config *config)
{
	if (!config)
		return;
	fp_conf_strings_done(&config->listen);
	for (unsigned i = 0; i < config->n_pools; i++)
		free(config->pools[i].name);
	free(config->pools);
	fp_secrets_done(&config->auth.secrets);
	free(config->auth.secret_file);
	free(config->rdma.device);
	fp_conf_places_done(&config->places);
	free(config);
}

FP_DEFINE_CLEANUP(struct fp_config, config, fp_config_free)

int fp_config_add_listen(struct fp_config *config, const char *address)
{
	struct fp_conf_strings *listen = &config->listen;
	char **items = reallocarray(listen->items, listen->n + 1, sizeof(*items));

	if (!items)
		return -ENOMEM;
	listen->items = items;
	items[listen->n] = strdup(address);
	if (!items[listen->n])
		return -ENOMEM;
	listen->n++;
	return 0;
}

struct fp_pool_config *fp_config_add_pool(struct fp_config *config)
{
	struct fp_pool_config *pools = reallocarray(config->pools, config->n_pools + 1, sizeof(*pools));

	if (!pools)
		return NULL;
	config->pools = pools;
	pools[config->n_pools] = (struct fp_pool_config){.numa_node = FP_NUMA_ANY};
	return &pools[config->n_pools++];
}

static int refuse_address(const struct fp_config *config, const char *path, const char *text, int r,
                          struct fp_conf_error *error)
{
	if (r == -ENAMETOOLONG)
		return fp_conf_refuse(error, &config->places, path,
		                      "the path of a UNIX socket may have 107 bytes, not %zu as in '%.120s'",
		                      strlen(text) - strlen("unix:"), text);
	return fp_conf_refuse(error, &config->places, path,
	                      "'%.120s' is not unix:PATH, unix:@NAME, tcp://ADDRESS:PORT or "
	                      "rdma://ADDRESS:PORT (a numeric address or localhost)",
	                      text);
}

static int check_address(const struct fp_config *config, size_t idx, struct fp_conf_error *error)
{
	const char *text = config->listen.items[idx];
	struct fp_listen_address address, other;
	char path[32];
	int r = fp_listen_parse(text, &address);

	snprintf(path, sizeof(path), "listen[%zu]", idx);
	if (r < 0)
		return refuse_address(config, path, text, r, error);
	if (!config->auth.given && !fp_listen_is_local(&address))
		return fp_conf_refuse(
		    error, &config->places, path,
		    "'%s' can be reached from other machines: add an auth: section with secret_file, or "
		    "listen on 127.0.0.1, [::1] or a UNIX socket",
		    text);
	if (fp_listen_is_taken_by_file(&address))
		return fp_conf_refuse(error, &config->places, path,
		                      "'%s': that file is not a socket: remove it, or choose another path",
		                      text);
	for (size_t i = 0; i < idx; i++)
		if (fp_listen_parse(config->listen.items[i], &other) == 0 &&
		    fp_listen_overlaps(&address, &other))
			return fp_conf_refuse(error, &config->places, path,
			                      "'%s' is taken by listen[%zu], '%s': remove one of them", text,
			                      i, config->listen.items[i]);
	return 0;
}

static int check_listen(const struct fp_config *config, struct fp_conf_error *error)
{
	int r = 0;

	if (!config->listen.n)
		return fp_conf_refuse(error, &config->places, "listen",
		                      "no address; say for example unix:/run/farpaged/socket");
	for (size_t i = 0; r == 0 && i < config->listen.n; i++)
		r = check_address(config, i, error);
	return r;
}

static bool numa_node_exists(uint64_t node)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%llu", (unsigned long long)node);
	return access(path, F_OK) == 0;
}

static int check_pool(const struct fp_config *config, unsigned idx, struct fp_conf_error *error)
{
	const struct fp_pool_config *pool = &config->pools[idx];
	const char *name = pool->name;
	char path[40];

	snprintf(path, sizeof(path), "pools[%u].name", idx);
	if (!name[0] || strlen(name) > NAME_MAX_BYTES || name[strspn(name, name_chars)])
		return fp_conf_refuse(error, &config->places, path,
		                      "must be 1 to %d letters, digits, '.', '_' or '-'", NAME_MAX_BYTES);
	for (unsigned i = 0; i < idx; i++)
		if (strcmp(config->pools[i].name, name) == 0)
			return fp_conf_refuse(error, &config->places, path, "'%s' is taken by pools[%u]",
			                      name, i);
	snprintf(path, sizeof(path), "pools[%u].size", idx);
	if (pool->size_bytes % 4096)
		return fp_conf_refuse(error, &config->places, path, "must be a multiple of 4096 bytes");
	snprintf(path, sizeof(path), "pools[%u].numa_node", idx);
	if (pool->numa_node != FP_NUMA_ANY && !numa_node_exists(pool->numa_node))
		return fp_conf_refuse(error, &config->places, path,
		                      "this machine has no node %llu; see /sys/devices/system/node",
		                      (unsigned long long)pool->numa_node);
	return 0;
}

int fp_config_check(const struct fp_config *config, struct fp_conf_error *error)
{
	int r = check_listen(config, error);

	if (r == 0 && !config->n_pools)
		r = fp_conf_refuse(error, &config->places, "pools",
		                   "none; at least one with a name and a size is needed");
	if (r == 0 && config->n_pools > FP_MAX_POOLS)
		r = fp_conf_refuse(error, &config->places, "pools", "there are %u; a node has at most %u",
		                   config->n_pools, FP_MAX_POOLS);
	for (unsigned i = 0; r == 0 && i < config->n_pools; i++)
		r = check_pool(config, i, error);
	return r;
}

/* A secret_file becomes a secret named "default" with all rights. */
static int settle_auth(struct fp_config *config, struct fp_conf_error *error)
{
	struct fp_auth_config *auth = &config->auth;
	struct fp_node_secret *secret;

	if (auth->secret_file && auth->secrets.n)
		return fp_conf_refuse(error, &config->places, "auth",
		                      "give secret_file or secrets, not both");
	if (auth->secret_file) {
		secret = fp_secrets_add(&auth->secrets);
		if (!secret)
			return -ENOMEM;
		secret->name = strdup("default");
		secret->file = fp_take_ptr(auth->secret_file);
		secret->rights = FP_RIGHTS_ALL;
		secret->is_only = true;
		if (!secret->name)
			return -ENOMEM;
	}
	if (auth->given && !auth->secrets.n)
		return fp_conf_refuse(error, &config->places, "auth", "give a secret_file, or secrets");
	return fp_secrets_read(&auth->secrets, &config->places, error);
}

int fp_config_read(const char *path, struct fp_config **ret_config, struct fp_conf_error *error)
{
	FP_CLEANUP(fp_cleanup_config) struct fp_config *config = fp_config_new();
	int r = -ENOMEM;

	error->text[0] = '\0';
	if (config)
		r = fp_conf_read(path, config_fields, config, &config->places, error);
	if (r == 0)
		r = settle_auth(config, error);
	if (r == 0)
		r = fp_config_check(config, error);
	if (r < 0 && !error->text[0])
		snprintf(error->text, sizeof(error->text), "%s: out of memory", path);
	if (r == 0)
		*ret_config = fp_take_ptr(config);
	return r;
}

uint64_t fp_config_quota(const struct fp_config *config, const char *client)
{
	const struct fp_node_secret *secret = fp_secrets_find(&config->auth.secrets, client);

	return secret && secret->quota_bytes ? secret->quota_bytes : config->limits.client_quota_bytes;
}

/* NULL equals only NULL. */
static bool same_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_listen(const struct fp_conf_strings *a, const struct fp_conf_strings *b)
{
	for (size_t i = 0; a->n == b->n && i < a->n; i++)
		if (strcmp(a->items[i], b->items[i]) != 0)
			return false;
	return a->n == b->n;
}

static bool same_pools(const struct fp_config *a, const struct fp_config *b)
{
	for (unsigned i = 0; a->n_pools == b->n_pools && i < a->n_pools; i++) {
		const struct fp_pool_config *p = &a->pools[i], *q = &b->pools[i];

		if (strcmp(p->name, q->name) != 0 || p->size_bytes != q->size_bytes ||
		    p->backing != q->backing || p->numa_node != q->numa_node ||
		    p->preallocate != q->preallocate)
			return false;
	}
	return a->n_pools == b->n_pools;
}

const char *fp_config_changes(const struct fp_config *running, const struct fp_config *next, char *buf,
                              size_t len)
{
	const struct fp_rdma_options *a = &running->rdma, *b = &next->rdma;
	const struct {
		bool differs;
		const char *section;
	} sections[] = {
	    {!same_listen(&running->listen, &next->listen), "listen"},
	    {!same_pools(running, next), "pools"},
	    {running->auth.given != next->auth.given, "auth (on or off)"},
	    {running->by_hand != next->by_hand || a->device_port != b->device_port ||
	         !same_text(a->device, b->device),
	     "rdma"},
	    {running->shards != next->shards, "shards"},
	};
	size_t at = 0;

	*buf = '\0';
	for (size_t i = 0; i < FP_ARRAY_LEN(sections) && at < len; i++)
		if (sections[i].differs)
			at +=
			    (size_t)snprintf(buf + at, len - at, "%s%s", at ? ", " : "", sections[i].section);
	return buf;
}

/* Secrets may change, but a reload never turns them on or off. Off would let everybody in. */
void fp_config_reload(struct fp_config *running, struct fp_config *next)
{
	running->limits = next->limits;
	if (running->auth.given && next->auth.given)
		fp_secrets_swap(&running->auth.secrets, &next->auth.secrets);
	running->log_level = next->log_level;
}

enum fp_log_level fp_config_log_level(const struct fp_config *config)
{
	return (enum fp_log_level)(FP_LOG_ERROR + config->log_level);
}

const char *fp_backing_name(int backing)
{
	return backing_names[backing];
}
