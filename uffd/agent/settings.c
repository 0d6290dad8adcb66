/* See settings.h. One table of keys serves the file and the environment. */
#include "settings.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "secret.h"
#include "clock.h"
#include "readahead.h"
#include "units.h"
#include "yamlconf.h"

#define LOCAL_MEMORY_DEFAULT "50%"
#define MIN_POOL_BYTES       (1u << 20)
#define MAX_POOL_BYTES       (1ull << 46) /* the daemon's limit */

static const char *const fault_modes[] = {"thread", "inline", NULL};
static const char *const captures[] = {"auto", "move", "protect", NULL};
static const char *const on_losses[] = {"sigbus", "wait", NULL}; /* in the order of enum fp_on_loss */
static const char *const affinities[] = {"auto", "off", NULL};
static const char *const cores[] = {"local", "full", NULL};        /* in the order of enum fp_core_mode */
static const char *const heaps[] = {"all", "large", "none", NULL}; /* in the order of enum fp_heap_mode */
static const char *const places[] = {"far", "local", NULL};
static const char *const rules_of[] = {"all", "heap", "mappings", NULL};
static const char *const log_levels[] = {"error", "warning", "notice", "info", "debug", NULL};

/*
 * The settings as they were written. A value that needs more checks than the table has is still
 * text.
 */
struct raw {
	struct fp_settings settings;
	char *local_memory, *secret_file, *heap;
	struct fp_conf_strings nodes;
	int log_level;
	struct fp_conf_places places; /* where the values of the file stand */
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
	return fp_rules_add(&((struct raw *)raw)->settings.rules);
}

static const struct fp_conf_field keys[] = {
    FP_CONF_KEY("local_memory", STRING, raw, local_memory),
    FP_CONF_KEY("nodes", STRINGS, raw, nodes),
    FP_CONF_KEY("secret_file", STRING, raw, secret_file),
    FP_CONF_KEY("stats_file", STRING, raw, settings.stats_path),
    FP_CONF_KEY("deadline", TIME, raw, settings.deadline_ns, .min = FP_NSEC_PER_MSEC,
                .max = 3600 * FP_NSEC_PER_SEC),
    FP_CONF_KEY("patience", TIME, raw, settings.patience_ns, .min = FP_NSEC_PER_MSEC,
                .max = 24 * 3600 * FP_NSEC_PER_SEC),
    FP_CONF_KEY("on_loss", ENUM, raw, settings.on_loss, .choices = on_losses),
    FP_CONF_KEY("heartbeat", TIME, raw, settings.heartbeat_ns, .min = 10 * FP_NSEC_PER_MSEC,
                .max = 3600 * FP_NSEC_PER_SEC),
    FP_CONF_KEY("readahead", U64, raw, settings.readahead_pages, .max = FP_READAHEAD_MAX),
    FP_CONF_KEY("min_mapping", SIZE, raw, settings.min_mapping_bytes, .min = FP_PAGE_SIZE),
    FP_CONF_KEY("overcommit", BOOL, raw, settings.overcommit),
    FP_CONF_KEY("pool_size", SIZE, raw, settings.pool_bytes, .min = MIN_POOL_BYTES, .max = MAX_POOL_BYTES),
    FP_CONF_KEY("report", BOOL, raw, settings.report),
    FP_CONF_KEY("fault_mode", ENUM, raw, settings.fault_mode, .choices = fault_modes),
    FP_CONF_KEY("capture", ENUM, raw, settings.capture, .choices = captures),
    FP_CONF_KEY("affinity", ENUM, raw, settings.affinity, .choices = affinities),
    FP_CONF_KEY("core", ENUM, raw, settings.core, .choices = cores),
    FP_CONF_KEY("heap", STRING, raw, heap),
    FP_CONF_KEY("reconnect", MAP, raw, settings.reconnect, .fields = reconnect_keys),
    FP_CONF_KEY("rdma", MAP, raw, settings.rdma, .fields = fp_rdma_fields),
    FP_CONF_KEY("log", ENUM, raw, log_level, .choices = log_levels),
    FP_CONF_KEY("rules", LIST, raw, settings.rules, .fields = rule_keys, .item = new_rule),
    {.key = NULL},
};

static void raw_done(struct raw *raw)
{
	fp_settings_done(&raw->settings);
	free(raw->local_memory);
	free(raw->secret_file);
	free(raw->heap);
	fp_conf_strings_done(&raw->nodes);
	fp_conf_places_done(&raw->places);
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

/* An empty variable counts as not set. */
static const char *variable(const char *key)
{
	char name[VARIABLE_LEN];
	const char *value = getenv(variable_name(key, name));

	return value && *value ? value : NULL;
}

/* In the environment a bool may also be 1 or 0. */
static int parse_bool_variable(const struct fp_conf_field *field, const char *text, void *into)
{
	return fp_conf_parse(field,
	                     strcmp(text, "1") == 0   ? "true"
	                     : strcmp(text, "0") == 0 ? "false"
	                                              : text,
	                     into);
}

/*
 * The length of the first URL in text. The URL ends at the end of text, or at a comma before
 * another URL. A part without a scheme is a further address of the same node.
 */
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

/* Reads URLs with commas between them. They replace those of the file. */
static int parse_strings(const char *text, struct fp_conf_strings *strings)
{
	fp_conf_strings_done(strings);
	while (*text) {
		size_t len = url_len(text);
		int r = len > 0 ? fp_conf_strings_add(strings, text, len) : 0;

		if (r < 0)
			return r;
		text += len + (text[len] == ',');
	}
	return 0;
}

static int parse_variable(const struct fp_conf_field *field, const char *text, void *into)
{
	if (field->type == FP_CONF_STRINGS)
		return parse_strings(text, (void *)((char *)into + field->offset));
	if (field->type == FP_CONF_BOOL)
		return parse_bool_variable(field, text, into);
	return fp_conf_parse(field, text, into);
}

/* Writes a message like "FARPAGE_HEAP: must be one of all, large, none, not 'x'". */
static int fail_variable(const char *key, const struct fp_conf_field *field, int r, const char *text,
                         struct fp_agent_error *error)
{
	char name[VARIABLE_LEN], what[sizeof(error->text) - VARIABLE_LEN];

	if (r == -ENOMEM)
		return fail(error, r, "no memory");
	if (field->type == FP_CONF_BOOL)
		snprintf(what, sizeof(what), "must be 1 or 0 (true or false), not '%.60s'", text);
	else
		fp_conf_explain(field, r, text, what, sizeof(what));
	return fail(error, -EINVAL, "%s: %s", variable_name(key, name), what);
}

/* A key that a variable can set. */
static bool has_variable(const struct fp_conf_field *field)
{
	return field->type != FP_CONF_MAP && field->type != FP_CONF_LIST && field->type != FP_CONF_NOTHING;
}

/*
 * Reads the variables of fields. A key inside another key has both keys in its variable:
 * FARPAGE_RDMA_DEVICE.
 */
static int read_environment(const char *prefix, const struct fp_conf_field *fields, void *into,
                            struct fp_agent_error *error)
{
	for (const struct fp_conf_field *field = fields; field->key; field++) {
		bool map = field->type == FP_CONF_MAP;
		char key[VARIABLE_LEN - sizeof("FARPAGE_")];
		const char *text;
		int r = 0;

		snprintf(key, sizeof(key), "%s%s%s", prefix, field->key, map ? "_" : "");
		text = has_variable(field) ? variable(key) : NULL;
		if (map)
			r = read_environment(key, field->fields, (char *)into + field->offset, error);
		else if (text && (r = parse_variable(field, text, into)) < 0)
			r = fail_variable(key, field, r, text, error);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- misspelt variables ---- */

#define MAX_TYPOS 2
#define PART_LEN  4 /* a shorter part is in too many names */

/* Further variables that Farpage reads. They are no settings. */
static const struct fp_conf_field other_keys[] = {
    {.key = "config"},  {.key = "runtime_dir"}, {.key = "preload"}, {.key = "daemon"},
    {.key = "kept_fd"}, {.key = "run_dir"},     {.key = NULL},
};

/* The variable whose name is nearest to a given one. */
struct nearest {
	const char *name;
	unsigned typos;
	char variable[VARIABLE_LEN];
};

/* How many letters of a must be added, removed or replaced to get b. Stops at max + 1. */
static unsigned count_typos(const char *a, const char *b, unsigned max)
{
	unsigned added, removed, replaced;

	while (*a && *a == *b)
		a++, b++;
	if (max == 0 || (!*a && !*b))
		return *a || *b ? 1 : 0;
	added = *b ? count_typos(a, b + 1, max - 1) : max;
	removed = *a ? count_typos(a + 1, b, max - 1) : max;
	replaced = *a && *b ? count_typos(a + 1, b + 1, max - 1) : max;
	return 1 + FP_MIN(FP_MIN(added, removed), replaced);
}

/* A name that is a part of the right one, such as FARPAGE_LOCAL, counts as one typo. */
static unsigned typos_in(const char *name, const char *variable)
{
	const char *part = name + strlen("FARPAGE_");

	if (strcmp(name, variable) == 0)
		return 0;
	return strlen(part) >= PART_LEN && strstr(variable + strlen("FARPAGE_"), part)
	           ? 1
	           : count_typos(name, variable, MAX_TYPOS);
}

static void look_for_nearest(const char *prefix, const struct fp_conf_field *fields, struct nearest *nearest)
{
	for (const struct fp_conf_field *field = fields; field->key; field++) {
		char key[VARIABLE_LEN - sizeof("FARPAGE_")], name[VARIABLE_LEN];
		unsigned typos;

		snprintf(key, sizeof(key), "%s%s%s", prefix, field->key,
		         field->type == FP_CONF_MAP ? "_" : "");
		if (field->type == FP_CONF_MAP)
			look_for_nearest(key, field->fields, nearest);
		if (!has_variable(field))
			continue;
		typos = typos_in(nearest->name, variable_name(key, name));
		if (typos < nearest->typos) {
			nearest->typos = typos;
			snprintf(nearest->variable, sizeof(nearest->variable), "%s", name);
		}
	}
}

void fp_settings_find_typos(void (*found)(const char *name, const char *meant))
{
	for (char **entry = environ; *entry; entry++) {
		struct nearest nearest = {.typos = MAX_TYPOS + 1};
		char name[VARIABLE_LEN];

		if (strncmp(*entry, "FARPAGE_", strlen("FARPAGE_")) != 0)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(*entry, "="), *entry);
		nearest.name = name;
		look_for_nearest("", keys, &nearest);
		look_for_nearest("", other_keys, &nearest);
		if (nearest.typos > 0 && nearest.typos <= MAX_TYPOS)
			found(name, nearest.variable);
	}
}

/* ---- the file ---- */

static int read_file(struct raw *raw, struct fp_agent_error *error)
{
	const char *path = variable("config");
	struct fp_conf_error why;
	int r = path ? fp_conf_read(path, keys, raw, &raw->places, &why) : 0;

	return r < 0 ? fail(error, r, "%s", why.text) : 0;
}

/* ---- from text to settings ---- */

/*
 * The name of a setting in a message: the variable, or the file and the key. For settings that the
 * table does not check.
 */
static const char *origin(const struct raw *raw, const char *key, char *buf, size_t len)
{
	return variable(key) ? variable_name(key, buf) : fp_conf_places_name(&raw->places, key, buf, len);
}

static int parse_local_memory(const char *text, struct fp_settings *settings)
{
	static const struct fp_conf_field percent_field = {.type = FP_CONF_U64, .min = 1, .max = 100};
	size_t len = strlen(text);
	uint64_t percent;
	char digits[8];

	settings->local_percent = 0;
	if (len == 0 || text[len - 1] != '%')
		return fp_size_parse(text, &settings->local_bytes);
	if (len > sizeof(digits))
		return -EINVAL;
	memcpy(digits, text, len - 1);
	digits[len - 1] = '\0';
	if (fp_conf_parse(&percent_field, digits, &percent) < 0)
		return -EINVAL;
	settings->local_percent = (unsigned)percent;
	return 0;
}

static int take_local_memory(struct raw *raw, struct fp_agent_error *error)
{
	const uint64_t min_bytes = FP_BUDGET_MIN_PAGES * FP_PAGE_SIZE;
	struct fp_settings *settings = &raw->settings;
	char name[512];
	int r = parse_local_memory(raw->local_memory ?: LOCAL_MEMORY_DEFAULT, settings);

	if (r == 0 && !settings->local_percent && settings->local_bytes < min_bytes)
		r = -ERANGE;
	if (r < 0)
		return fail(
		    error, -EINVAL,
		    "%s: must be a size of at least %" PRIu64 "K, such as 64M, or 1%% to 100%%, not '%.60s'",
		    origin(raw, "local_memory", name, sizeof(name)), min_bytes >> 10, raw->local_memory);
	return 0;
}

static int take_secret(struct raw *raw, struct fp_agent_error *error)
{
	char name[512], why[256];
	bool given = raw->secret_file && strcmp(raw->secret_file, FP_SETTINGS_NO_SECRET) != 0;
	int r = given ? fp_secret_read(raw->secret_file, &raw->settings.secret) : 0;

	if (r == 0)
		return 0;
	return fail(error, r, "%s: %s: %s", origin(raw, "secret_file", name, sizeof(name)), raw->secret_file,
	            fp_secret_explain(r, raw->secret_file, "this user", why, sizeof(why)));
}

/* Reads "all", "none", "large" or "large:SIZE". */
static int parse_heap(const char *text, struct fp_settings *settings)
{
	static const struct fp_conf_field field =
	    FP_CONF_KEY("heap", ENUM, fp_settings, heap, .choices = heaps);
	static const char large[] = "large:";
	const size_t prefix_len = sizeof(large) - 1;

	settings->large_bytes = settings->min_mapping_bytes;
	if (!text)
		return 0;
	if (strncmp(text, large, prefix_len) != 0)
		return fp_conf_parse(&field, text, settings);
	settings->heap = FP_HEAP_LARGE;
	return fp_size_parse(text + prefix_len, &settings->large_bytes) == 0 &&
	               settings->large_bytes >= FP_PAGE_SIZE
	           ? 0
	           : -EINVAL;
}

/* Only the file can have rules. */
static const char *origin_of_rule(const struct raw *raw, size_t idx, char *buf, size_t len)
{
	char path[40];

	snprintf(path, sizeof(path), "rules[%zu]", idx);
	return fp_conf_places_name(&raw->places, path, buf, len);
}

static int take_heap(struct raw *raw, struct fp_agent_error *error)
{
	const struct fp_rules *rules = &raw->settings.rules;
	char name[512];
	size_t bad;

	if (parse_heap(raw->heap, &raw->settings) < 0)
		return fail(error, -EINVAL,
		            "%s: must be one of all, large, large:SIZE (of at least 4K, such as large:1M), "
		            "none, not '%.60s'",
		            origin(raw, "heap", name, sizeof(name)), raw->heap);
	if (fp_rules_check(rules, &bad) < 0)
		return fail(error, -EINVAL, "%s: %s", origin_of_rule(raw, bad, name, sizeof(name)),
		            bad >= FP_RULES_MAX ? "there can be 64 rules at most"
		            : rules->items[bad].library && !*rules->items[bad].library
		                ? "library must be a name such as libfoo.so*, or be left out"
		                : "min must not be above max");
	return 0;
}

/*
 * FARPAGE_RUN_DIR names the folder of the `farpage run` that started this program. That run sums up
 * the pages in the folder, and writes the file of the key stats_file itself. It has removed its own
 * FARPAGE_STATS_FILE. So if this variable is set, it is for this program alone.
 */
static int take_stats(struct fp_settings *settings, struct fp_agent_error *error)
{
	const char *dir = variable("run_dir");

	if (!dir)
		return 0;
	if (!variable("stats_file"))
		free(fp_take_ptr(settings->stats_path));
	settings->stats_dir = strdup(dir);
	return settings->stats_dir ? 0 : fail(error, -ENOMEM, "no memory");
}

static int take(struct raw *raw, struct fp_settings *ret_settings, struct fp_agent_error *error)
{
	struct fp_settings *settings = &raw->settings;
	int r = take_local_memory(raw, error);

	if (r == 0)
		r = take_heap(raw, error);
	if (r == 0)
		r = take_secret(raw, error);
	if (r == 0)
		r = take_stats(settings, error);
	if (r < 0)
		return r;
	settings->log_level = (enum fp_log_level)(FP_LOG_ERROR + raw->log_level);
	settings->n_urls = (unsigned)raw->nodes.n;
	settings->urls = raw->nodes.items;
	raw->nodes = (struct fp_conf_strings){0};
	*ret_settings = *settings;
	*settings = (struct fp_settings){0};
	return 0;
}

/* The caller releases *ret_raw even after an error. */
static int read_raw(struct raw *ret_raw, struct fp_agent_error *error)
{
	int r;

	*ret_raw = (struct raw){
	    .settings =
	        {
	            .deadline_ns = 5 * FP_NSEC_PER_SEC,
	            .heartbeat_ns = FP_NSEC_PER_SEC,
	            .readahead_pages = FP_READAHEAD_DEFAULT,
	            .min_mapping_bytes = 64 << 10,
	            .rdma = fp_rdma_defaults,
	            .reconnect = {FP_MISSED_HEARTBEATS, FP_BACKOFF_FIRST_NS, FP_BACKOFF_MAX_NS},
	        },
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
	*ret_rdma = raw.settings.rdma;
	raw.settings.rdma.device = NULL;
	return 0;
}

int fp_settings_read_secret(char **ret_secret, struct fp_agent_error *error)
{
	FP_CLEANUP(raw_done) struct raw raw;
	int r = read_raw(&raw, error);

	if (r == 0)
		r = take_secret(&raw, error);
	if (r < 0)
		return r;
	*ret_secret = fp_take_ptr(raw.settings.secret);
	return 0;
}

int fp_settings_read(struct fp_settings *ret_settings, struct fp_agent_error *error)
{
	FP_CLEANUP(raw_done) struct raw raw;
	int r = read_raw(&raw, error);

	return r < 0 ? r : take(&raw, ret_settings, error);
}

void fp_settings_done(struct fp_settings *settings)
{
	for (unsigned i = 0; i < settings->n_urls; i++)
		free(settings->urls[i]);
	free(settings->urls);
	free(settings->stats_path);
	free(settings->stats_dir);
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
	    .stats_dir = settings->stats_dir,
	};
}
