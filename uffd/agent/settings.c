/* See settings.h. One table of keys serves the file and the environment. */
#include "settings.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "secret.h"
#include "clock.h"
#include "readahead.h"
#include "units.h"
#include "yamlconf.h"

#define LOCAL_MEMORY_DEFAULT "50%"
#define MIN_POOL_BYTES       (1u << 20)

static const char *const fault_modes[] = {"thread", "inline", NULL};
static const char *const captures[] = {"auto", "move", "protect", NULL};
static const char *const on_losses[] = {"sigbus", "wait", NULL}; /* as enum fp_on_loss */
static const char *const affinities[] = {"auto", "off", NULL};
static const char *const heaps[] = {"all", "large", "none", NULL}; /* as enum fp_heap_mode */
static const char *const places[] = {"far", "local", NULL};
static const char *const rules_of[] = {"all", "heap", "mappings", NULL};
static const char *const log_levels[] = {"error", "warning", "notice", "info", "debug", NULL};

/* The settings as they are written. */
struct raw {
	char *local_memory, *secret_file, *stats_file, *heap;
	struct fp_rules rules;
	struct fp_rdma_options rdma;
	struct fp_reconnect_options reconnect;
	struct fp_conf_strings nodes;
	uint64_t deadline_ns, patience_ns, heartbeat_ns, readahead_pages, min_mapping_bytes;
	uint64_t pool_bytes;
	bool overcommit, report;
	int fault_mode, capture, affinity, log_level, on_loss;
};

static const struct fp_conf_field rule_keys[] = {
    FP_CONF_KEY("place", ENUM, fp_rule, place, .choices = places, .required = true),
    FP_CONF_KEY("of", ENUM, fp_rule, of, .choices = rules_of),
    FP_CONF_KEY("min", SIZE, fp_rule, min_bytes),
    FP_CONF_KEY("max", SIZE, fp_rule, max_bytes, .min = 1),
    FP_CONF_KEY("library", STRING, fp_rule, library),
    {.key = NULL},
};

static const struct fp_conf_field reconnect_keys[] = {
    FP_CONF_KEY("missed_heartbeats", U64, fp_reconnect_options, missed_heartbeats, .min = 1, .max = 100),
    FP_CONF_KEY("backoff_first", TIME, fp_reconnect_options, backoff_first_ns, .min = FP_NSEC_PER_MSEC,
                .max = 60 * FP_NSEC_PER_SEC),
    FP_CONF_KEY("backoff_max", TIME, fp_reconnect_options, backoff_max_ns, .min = FP_NSEC_PER_MSEC,
                .max = 3600 * FP_NSEC_PER_SEC),
    {.key = NULL},
};

static void *new_rule(void *raw)
{
	return fp_rules_add(&((struct raw *)raw)->rules);
}

static const struct fp_conf_field keys[] = {
    FP_CONF_KEY("local_memory", STRING, raw, local_memory),
    FP_CONF_KEY("nodes", STRINGS, raw, nodes),
    FP_CONF_KEY("secret_file", STRING, raw, secret_file),
    FP_CONF_KEY("stats_file", STRING, raw, stats_file),
    FP_CONF_KEY("deadline", TIME, raw, deadline_ns, .min = FP_NSEC_PER_MSEC, .max = 3600 * FP_NSEC_PER_SEC),
    FP_CONF_KEY("patience", TIME, raw, patience_ns, .min = FP_NSEC_PER_MSEC,
                .max = 24 * 3600 * FP_NSEC_PER_SEC),
    FP_CONF_KEY("on_loss", ENUM, raw, on_loss, .choices = on_losses),
    FP_CONF_KEY("heartbeat", TIME, raw, heartbeat_ns, .min = 10 * FP_NSEC_PER_MSEC,
                .max = 3600 * FP_NSEC_PER_SEC),
    FP_CONF_KEY("readahead", U64, raw, readahead_pages, .max = FP_READAHEAD_MAX),
    FP_CONF_KEY("min_mapping", SIZE, raw, min_mapping_bytes, .min = FP_PAGE_SIZE),
    FP_CONF_KEY("overcommit", BOOL, raw, overcommit),
    FP_CONF_KEY("pool_size", SIZE, raw, pool_bytes, .min = MIN_POOL_BYTES),
    FP_CONF_KEY("report", BOOL, raw, report),
    FP_CONF_KEY("fault_mode", ENUM, raw, fault_mode, .choices = fault_modes),
    FP_CONF_KEY("capture", ENUM, raw, capture, .choices = captures),
    FP_CONF_KEY("affinity", ENUM, raw, affinity, .choices = affinities),
    FP_CONF_KEY("heap", STRING, raw, heap),
    FP_CONF_KEY("reconnect", MAP, raw, reconnect, .fields = reconnect_keys),
    FP_CONF_KEY("rdma", MAP, raw, rdma, .fields = fp_rdma_fields),
    FP_CONF_KEY("log", ENUM, raw, log_level, .choices = log_levels),
    FP_CONF_KEY("rules", LIST, raw, rules, .fields = rule_keys, .item = new_rule),
    {.key = NULL},
};

static void raw_done(struct raw *raw)
{
	free(raw->local_memory);
	free(raw->secret_file);
	free(raw->stats_file);
	free(raw->heap);
	free(raw->rdma.device);
	fp_rules_done(&raw->rules);
	fp_conf_strings_done(&raw->nodes);
}

__attribute__((format(printf, 3, 4))) static int fail(struct fp_agent_error *error, int r, const char *format,
                                                      ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(error->text, sizeof(error->text), format, args);
	va_end(args);
	return r;
}

/* ---- the environment ---- */

#define VARIABLE_LEN 64

static const char *variable_name(const char *key, char buf[VARIABLE_LEN])
{
	snprintf(buf, VARIABLE_LEN, "FARPAGE_%s", key);
	for (char *p = buf; *p; p++)
		*p = (char)toupper((unsigned char)*p);
	return buf;
}

/* An empty variable says nothing. */
static const char *variable(const char *key)
{
	char name[VARIABLE_LEN];
	const char *value = getenv(variable_name(key, name));

	return value && *value ? value : NULL;
}

/* "FARPAGE_HEAP: must be one of all, large, none, not 'x'" */
static int fail_value(const char *key, const struct fp_conf_field *field, const char *text,
                      struct fp_agent_error *error)
{
	char name[VARIABLE_LEN], low[24], high[24], allowed[128] = "";
	size_t len = 0;

	variable_name(key, name);
	switch (field->type) {
	case FP_CONF_BOOL:
		return fail(error, -EINVAL, "%s: must be 1 or 0 (true or false), not '%.60s'", name, text);
	case FP_CONF_ENUM:
		for (const char *const *c = field->choices; *c; c++)
			len += (size_t)snprintf(allowed + len, sizeof(allowed) - len, "%s%s", len ? ", " : "",
			                        *c);
		return fail(error, -EINVAL, "%s: must be one of %s, not '%.60s'", name, allowed, text);
	case FP_CONF_TIME:
		return fail(error, -EINVAL,
		            "%s: must be a time such as 5s or 200ms, within %s..%s, not '%.60s'", name,
		            fp_time_format(field->min, low, sizeof(low)),
		            fp_time_format(field->max, high, sizeof(high)), text);
	case FP_CONF_SIZE:
		return fail(error, -EINVAL, "%s: must be a size such as 64K, at least %s, not '%.60s'", name,
		            fp_size_format(field->min, low, sizeof(low)), text);
	default:
		return fail(error, -EINVAL,
		            "%s: must be a whole number within %" PRIu64 "..%" PRIu64 ", not '%.60s'", name,
		            field->min, field->max, text);
	}
}

static int parse_bool(const char *text, bool *ret_value)
{
	bool yes = strcmp(text, "1") == 0 || strcmp(text, "true") == 0;

	if (!yes && strcmp(text, "0") != 0 && strcmp(text, "false") != 0)
		return -EINVAL;
	*ret_value = yes;
	return 0;
}

static int parse_enum(const char *text, const char *const *choices, int *ret_value)
{
	for (int i = 0; choices[i]; i++)
		if (strcmp(text, choices[i]) == 0) {
			*ret_value = i;
			return 0;
		}
	return -EINVAL;
}

static int parse_whole(const char *text, uint64_t *ret_value)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	*ret_value = strtoull(text, &end, 10);
	return *end || errno ? -EINVAL : 0;
}

static int parse_number(const struct fp_conf_field *field, const char *text, uint64_t *ret_value)
{
	uint64_t value = 0;
	int r = field->type == FP_CONF_SIZE   ? fp_size_parse(text, &value)
	        : field->type == FP_CONF_TIME ? fp_time_parse(text, &value)
	                                      : parse_whole(text, &value);

	if (r < 0 || value < field->min || (field->max && value > field->max))
		return -EINVAL;
	*ret_value = value;
	return 0;
}

static int parse_string(const char *text, char **ret_value)
{
	char *copy = strdup(text);

	if (!copy)
		return -ENOMEM;
	free(*ret_value);
	*ret_value = copy;
	return 0;
}

/* The length of the URL that text begins with. A comma ends it where another URL follows, or
 * nothing: what has no scheme is a further address of the same node. */
static size_t url_len(const char *text)
{
	size_t len = strcspn(text, ",");

	while (len > 0 && text[len] == ',') {
		const char *next = text + len + 1;
		size_t next_len = strcspn(next, ",");

		if (next_len == 0 || strncmp(next, "shm:", 4) == 0 || memmem(next, next_len, "://", 3))
			break;
		len += 1 + next_len;
	}
	return len;
}

/* URLs between commas; what the file had goes. */
static int parse_strings(const char *text, struct fp_conf_strings *strings)
{
	fp_conf_strings_done(strings);
	while (*text) {
		size_t len = url_len(text);
		char **items = reallocarray(strings->items, strings->n + 1, sizeof(*items));

		if (!items)
			return -ENOMEM;
		strings->items = items;
		if (len > 0 && !(items[strings->n++] = strndup(text, len)))
			return -ENOMEM;
		text += len + (text[len] == ',');
	}
	return 0;
}

static int parse_variable(const struct fp_conf_field *field, const char *text, void *into)
{
	void *target = (char *)into + field->offset;

	switch (field->type) {
	case FP_CONF_BOOL:
		return parse_bool(text, target);
	case FP_CONF_ENUM:
		return parse_enum(text, field->choices, target);
	case FP_CONF_STRING:
		return parse_string(text, target);
	case FP_CONF_STRINGS:
		return parse_strings(text, target);
	default:
		return parse_number(field, text, target);
	}
}

/* A key in a mapping has both names: FARPAGE_RDMA_DEVICE. */
static int read_environment(const char *prefix, const struct fp_conf_field *fields, void *into,
                            struct fp_agent_error *error)
{
	for (const struct fp_conf_field *field = fields; field->key; field++) {
		bool map = field->type == FP_CONF_MAP;
		char key[VARIABLE_LEN - sizeof("FARPAGE_")];
		const char *text;
		int r = 0;

		snprintf(key, sizeof(key), "%s%s%s", prefix, field->key, map ? "_" : "");
		text = map || field->type == FP_CONF_LIST ? NULL : variable(key);
		if (map)
			r = read_environment(key, field->fields, (char *)into + field->offset, error);
		else if (text)
			r = parse_variable(field, text, into);
		if (r < 0)
			return map            ? r
			       : r == -EINVAL ? fail_value(key, field, text, error)
			                      : fail(error, r, "no memory");
	}
	return 0;
}

static int read_file(struct raw *raw, struct fp_agent_error *error)
{
	const char *path = variable("config");
	struct fp_conf_error why;
	int r = path ? fp_conf_read(path, keys, raw, &why) : 0;

	return r < 0 ? fail(error, r, "%s", why.text) : 0;
}

/* ---- from what is written to what is meant ---- */

/* How a message names a setting that the table can't judge: by the variable, or by the file and the
 * key. */
static const char *origin(const char *key, char *buf, size_t len)
{
	if (variable(key))
		return variable_name(key, buf);
	snprintf(buf, len, "%s: %s", variable("config"), key);
	return buf;
}

static int parse_local_memory(const char *text, struct fp_settings *settings)
{
	size_t len = strlen(text);
	uint64_t percent;
	char digits[8];

	if (len == 0 || text[len - 1] != '%') {
		settings->local_percent = 0;
		return fp_size_parse(text, &settings->local_bytes);
	}
	if (len > sizeof(digits))
		return -EINVAL;
	memcpy(digits, text, len - 1);
	digits[len - 1] = '\0';
	if (parse_whole(digits, &percent) < 0 || percent < 1 || percent > 100)
		return -EINVAL;
	settings->local_bytes = 0;
	settings->local_percent = (unsigned)percent;
	return 0;
}

static int take_local_memory(const struct raw *raw, struct fp_settings *settings,
                             struct fp_agent_error *error)
{
	const uint64_t min_bytes = FP_BUDGET_MIN_PAGES * FP_PAGE_SIZE;
	char name[512];
	int r = parse_local_memory(raw->local_memory ?: LOCAL_MEMORY_DEFAULT, settings);

	if (r == 0 && !settings->local_percent && settings->local_bytes < min_bytes)
		r = -ERANGE;
	if (r < 0)
		return fail(error, -EINVAL,
		            "%s: must be a size of at least %" PRIu64
		            "K, such as 64M, or 1%% to 100%%, not '%.60s'",
		            origin("local_memory", name, sizeof(name)), min_bytes >> 10, raw->local_memory);
	return 0;
}

static int take_secret(const struct raw *raw, struct fp_settings *settings, struct fp_agent_error *error)
{
	char name[512];
	int r = raw->secret_file ? fp_secret_read(raw->secret_file, &settings->secret) : 0;

	if (r == 0)
		return 0;
	return fail(error, r, "%s: %s: %s", origin("secret_file", name, sizeof(name)), raw->secret_file,
	            r == -ENODATA    ? "its first line, which is the secret, is empty"
	            : r == -EMSGSIZE ? "its first line, which is the secret, is longer than 1024 bytes"
	                             : strerror(-r));
}

/* all, none, large, or large:SIZE. */
static int parse_heap(const char *text, struct fp_settings *settings)
{
	static const char large[] = "large:";
	const size_t prefix_len = sizeof(large) - 1;

	if (strncmp(text, large, prefix_len) == 0) {
		settings->heap = FP_HEAP_LARGE;
		return fp_size_parse(text + prefix_len, &settings->large_bytes) == 0 &&
		               settings->large_bytes >= FP_PAGE_SIZE
		           ? 0
		           : -EINVAL;
	}
	for (int i = 0; heaps[i]; i++)
		if (strcmp(text, heaps[i]) == 0) {
			settings->heap = (enum fp_heap_mode)i;
			return 0;
		}
	return -EINVAL;
}

static int take_heap(struct raw *raw, struct fp_settings *settings, struct fp_agent_error *error)
{
	char name[512];
	size_t bad;

	settings->large_bytes = raw->min_mapping_bytes;
	if (raw->heap && parse_heap(raw->heap, settings) < 0)
		return fail(error, -EINVAL,
		            "%s: must be one of all, large, large:SIZE (of at least 4K, such as large:1M), "
		            "none, not '%.60s'",
		            origin("heap", name, sizeof(name)), raw->heap);
	if (fp_rules_check(&raw->rules, &bad) < 0)
		return fail(error, -EINVAL, "%s[%zu]: %s", origin("rules", name, sizeof(name)), bad,
		            bad >= FP_RULES_MAX ? "there can be 64 rules at most"
		            : raw->rules.items[bad].library && !*raw->rules.items[bad].library
		                ? "library must be a name such as libfoo.so*, or be left out"
		                : "min must not be above max");
	return 0;
}

static int take_modes(const struct raw *raw, struct fp_settings *settings, struct fp_agent_error *error)
{
	settings->fault_mode = (enum fp_fault_mode)raw->fault_mode;
	settings->capture = (enum fp_capture_mode)raw->capture;
	settings->affinity = (enum fp_affinity_mode)raw->affinity;
	settings->on_loss = (enum fp_on_loss)raw->on_loss;
	settings->log_level = (enum fp_log_level)(FP_LOG_ERROR + raw->log_level);
	return 0;
}

static int take(struct raw *raw, struct fp_settings *settings, struct fp_agent_error *error)
{
	int r = take_local_memory(raw, settings, error);

	if (r == 0)
		r = take_modes(raw, settings, error);
	if (r == 0)
		r = take_heap(raw, settings, error);
	if (r == 0)
		r = take_secret(raw, settings, error);
	if (r < 0)
		return r;
	settings->deadline_ns = raw->deadline_ns;
	settings->patience_ns = raw->patience_ns;
	settings->heartbeat_ns = raw->heartbeat_ns;
	settings->reconnect = raw->reconnect;
	settings->readahead_pages = raw->readahead_pages;
	settings->min_mapping_bytes = raw->min_mapping_bytes;
	settings->overcommit = raw->overcommit;
	settings->report = raw->report;
	settings->pool_bytes = raw->pool_bytes;
	settings->rdma = raw->rdma;
	raw->rdma.device = NULL;
	settings->stats_path = fp_take_ptr(raw->stats_file);
	settings->n_urls = (unsigned)raw->nodes.n;
	settings->urls = raw->nodes.items;
	raw->nodes = (struct fp_conf_strings){0};
	settings->rules = raw->rules;
	raw->rules = (struct fp_rules){.n = 0};
	return 0;
}

/* *ret_raw is to be released in any case. */
static int read_raw(struct raw *ret_raw, struct fp_agent_error *error)
{
	int r;

	*ret_raw = (struct raw){
	    .deadline_ns = 5 * FP_NSEC_PER_SEC,
	    .heartbeat_ns = FP_NSEC_PER_SEC,
	    .readahead_pages = 32,
	    .min_mapping_bytes = 64 << 10,
	    .rdma = fp_rdma_defaults,
	    .reconnect = {FP_MISSED_HEARTBEATS, FP_BACKOFF_FIRST_NS, FP_BACKOFF_MAX_NS},
	    .log_level = FP_LOG_NOTICE - FP_LOG_ERROR,
	};
	r = read_file(ret_raw, error);
	return r < 0 ? r : read_environment("", keys, ret_raw, error);
}

int fp_settings_read_rdma(struct fp_rdma_options *ret_rdma, struct fp_agent_error *error)
{
	FP_CLEANUP(raw_done) struct raw raw;
	int r = read_raw(&raw, error);

	if (r < 0)
		return r;
	*ret_rdma = raw.rdma;
	raw.rdma.device = NULL;
	return 0;
}

int fp_settings_read(struct fp_settings *ret_settings, struct fp_agent_error *error)
{
	FP_CLEANUP(raw_done) struct raw raw;
	struct fp_settings settings = {0};
	int r = read_raw(&raw, error);

	if (r == 0)
		r = take(&raw, &settings, error);
	if (r == 0)
		*ret_settings = settings;
	return r;
}

void fp_settings_done(struct fp_settings *settings)
{
	for (unsigned i = 0; i < settings->n_urls; i++)
		free(settings->urls[i]);
	free(settings->urls);
	free(settings->stats_path);
	free(settings->rdma.device);
	fp_rules_done(&settings->rules);
	fp_secret_free(settings->secret);
	*settings = (struct fp_settings){0};
}

struct fp_agent_options fp_settings_agent_options(const struct fp_settings *settings)
{
	return (struct fp_agent_options){
	    .local_bytes = settings->local_bytes,
	    .local_percent = settings->local_percent,
	    .urls = (const char *const *)settings->urls,
	    .n_urls = settings->n_urls,
	    .secret = settings->secret,
	    .rdma = &settings->rdma,
	    .deadline_ns = settings->deadline_ns,
	    .patience_ns = settings->patience_ns,
	    .on_loss = settings->on_loss,
	    .heartbeat_ns = settings->heartbeat_ns,
	    .reconnect = settings->reconnect,
	    .fault_mode = settings->fault_mode,
	    .capture = settings->capture,
	    .affinity = settings->affinity,
	    .readahead_pages = (unsigned)settings->readahead_pages,
	    .overcommit = settings->overcommit,
	    .stats_path = settings->stats_path,
	};
}
