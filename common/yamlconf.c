/*
 * The strict reader of YAML files. Room: common. It walks libyaml's events along the caller's
 * table, and stops at the first event that does not fit. So a file can nest no deeper than the
 * table.
 */
#include "yamlconf.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "cleanup.h"
#include "log.h"
#include "printable.h"
#include "units.h"

#define MAX_FILE_BYTES (1u << 20)

#define autoevent FP_CLEANUP(yaml_event_delete)

struct reader {
	yaml_parser_t parser;
	const char *file;
	char *text; /* the file's contents, len bytes */
	size_t len;
	char path[256];                /* names the value being read, "pools[0].size"; cut if longer */
	struct fp_conf_places *places; /* NULL: nobody asks */
	struct fp_conf_error *error;
};

/* Writes "FILE:LINE:COLUMN: PATH: message" and returns -EINVAL. */
__attribute__((format(printf, 3, 4))) static int fail(struct reader *r, const yaml_mark_t *at,
                                                      const char *format, ...)
{
	char *text = r->error->text;
	size_t size = sizeof(r->error->text);
	int n = snprintf(text, size, "%s:%zu:%zu: %s%s", r->file, at->line + 1, at->column + 1, r->path,
	                 r->path[0] ? ": " : "");
	va_list args;

	if ((size_t)n < size) {
		va_start(args, format);
		vsnprintf(text + n, size - (size_t)n, format, args);
		va_end(args);
	}
	fp_printable_blank(text, strlen(text), '?', 0);
	return -EINVAL;
}

/* Appends to the path. Returns its former length, which path_pop takes. */
__attribute__((format(printf, 2, 3))) static size_t path_push(struct reader *r, const char *format, ...)
{
	size_t len = strlen(r->path);
	va_list args;

	va_start(args, format);
	vsnprintf(r->path + len, sizeof(r->path) - len, format, args);
	va_end(args);
	return len;
}

static void path_pop(struct reader *r, size_t len)
{
	r->path[len] = '\0';
}

/*
 * Finds the line and column of an offset. For a byte that libyaml can't decode, libyaml tells only
 * the offset.
 */
static yaml_mark_t mark_of_offset(const char *text, size_t offset)
{
	yaml_mark_t mark = {.index = offset};

	for (size_t i = 0; i < offset; i++) {
		mark.column++;
		if (text[i] == '\n') {
			mark.line++;
			mark.column = 0;
		}
	}
	return mark;
}

static int fail_syntax(struct reader *r)
{
	const yaml_parser_t *p = &r->parser;
	yaml_mark_t at = p->problem_mark;

	if (p->error == YAML_MEMORY_ERROR)
		return -ENOMEM;
	if (p->error == YAML_READER_ERROR)
		at = mark_of_offset(r->text, p->problem_offset);
	path_pop(r, 0); /* libyaml reads ahead, so the mistake is not in the value that our path names */
	return fail(r, &at, "not valid YAML: %s", p->problem);
}

/*
 * Reads the next event, which the caller deletes. Refuses features of YAML that our files do not
 * need.
 */
static int next_event(struct reader *r, yaml_event_t *ret_event)
{
	const yaml_event_t *e = ret_event;
	bool fancy = false;

	if (!yaml_parser_parse(&r->parser, ret_event))
		return fail_syntax(r);
	if (e->type == YAML_ALIAS_EVENT)
		fancy = true;
	else if (e->type == YAML_SCALAR_EVENT)
		fancy = e->data.scalar.anchor || e->data.scalar.tag;
	else if (e->type == YAML_SEQUENCE_START_EVENT)
		fancy = e->data.sequence_start.anchor || e->data.sequence_start.tag;
	else if (e->type == YAML_MAPPING_START_EVENT)
		fancy = e->data.mapping_start.anchor || e->data.mapping_start.tag;
	if (fancy)
		return fail(r, &e->start_mark, "anchors, aliases and tags are not allowed");
	if (e->type == YAML_SCALAR_EVENT && memchr(e->data.scalar.value, '\0', e->data.scalar.length))
		return fail(r, &e->start_mark, "must not hold a NUL character");
	return 0;
}

/* Tells the caller where the value at the path stands. */
static int note_place(struct reader *r, const yaml_mark_t *at)
{
	return r->places ? fp_conf_places_add(r->places, r->path, at->line + 1, at->column + 1) : 0;
}

static const char *scalar(const yaml_event_t *e)
{
	return (const char *)e->data.scalar.value;
}

static bool is_plain(const yaml_event_t *e)
{
	return e->type == YAML_SCALAR_EVENT && e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* True for "key:" without a value, or with a YAML word for null. */
static bool is_null(const yaml_event_t *e)
{
	return is_plain(e) && (!*scalar(e) || strcmp(scalar(e), "~") == 0 || strcmp(scalar(e), "null") == 0);
}

static bool is_text(const yaml_event_t *e)
{
	return e->type == YAML_SCALAR_EVENT && !is_null(e);
}

/* Appends word to a list of words, ", " between them. */
static void list_add(char *list, size_t size, const char *word)
{
	size_t len = strlen(list);

	snprintf(list + len, size - len, "%s%s", len ? ", " : "", word);
}

static const char *format_number(enum fp_conf_type type, uint64_t value, char *buf, size_t len)
{
	if (type == FP_CONF_SIZE)
		return fp_size_format(value, buf, len);
	if (type == FP_CONF_TIME)
		return fp_time_format(value, buf, len);
	snprintf(buf, len, "%" PRIu64, value);
	return buf;
}

/* Describes the values that the field takes: "one of a, b". */
static const char *wanted(const struct fp_conf_field *field, char *buf, size_t len)
{
	static const char *const texts[] = {
	    [FP_CONF_BOOL] = "true or false",
	    [FP_CONF_U64] = "a whole number",
	    [FP_CONF_SIZE] = "a size such as 512M or 1.5G",
	    [FP_CONF_TIME] = "a time such as 5s or 200ms",
	    [FP_CONF_STRING] = "text",
	    [FP_CONF_NOTHING] = "one value",
	    [FP_CONF_STRINGS] = "text or a list of texts",
	    [FP_CONF_MAP] = "a mapping (key: value)",
	    [FP_CONF_LIST] = "a list of mappings (- key: value)",
	};
	char choices[256] = "";

	if (field->type != FP_CONF_ENUM)
		return texts[field->type];
	for (const char *const *c = field->choices; *c; c++)
		list_add(choices, sizeof(choices), *c);
	snprintf(buf, len, "one of %s", choices);
	return buf;
}

void fp_conf_explain(const struct fp_conf_field *field, int r, const char *text, char *buf, size_t len)
{
	char low[24], high[24], what[280];

	format_number(field->type, field->min, low, sizeof(low));
	format_number(field->type, field->max ? field->max : UINT64_MAX, high, sizeof(high));
	if (r == -EINVAL)
		snprintf(buf, len, "must be %s, not '%.60s'", wanted(field, what, sizeof(what)), text);
	else if (r == -ERANGE && !field->max)
		snprintf(buf, len, "must be at least %s, not %.60s", low, text);
	else
		snprintf(buf, len, "must be within %s..%s, not %.60s", low, high, text);
}

static int fail_type(struct reader *r, const yaml_event_t *e, const struct fp_conf_field *field)
{
	char what[512];

	if (is_text(e)) {
		fp_conf_explain(field, -EINVAL, scalar(e), what, sizeof(what));
		return fail(r, &e->start_mark, "%s", what);
	}
	return fail(r, &e->start_mark, "must be %s, not %s", wanted(field, what, sizeof(what)),
	            e->type == YAML_SEQUENCE_START_EVENT  ? "a list"
	            : e->type == YAML_MAPPING_START_EVENT ? "a mapping"
	                                                  : "empty");
}

static int parse_number(const struct fp_conf_field *field, const char *text, uint64_t *ret_value)
{
	uint64_t value = 0;
	int r = field->type == FP_CONF_SIZE   ? fp_size_parse(text, &value)
	        : field->type == FP_CONF_TIME ? fp_time_parse(text, &value)
	                                      : fp_number_parse(text, 0, UINT64_MAX, &value);

	if (r < 0)
		return r == -ERANGE ? -EOVERFLOW : r;
	if (value < field->min || (field->max && value > field->max))
		return -ERANGE;
	*ret_value = value;
	return 0;
}

static int parse_bool(const char *text, bool *ret_value)
{
	bool yes = strcmp(text, "true") == 0;

	if (!yes && strcmp(text, "false") != 0)
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

static int parse_string(const char *text, char **ret_value)
{
	char *copy = strdup(text);

	if (!copy)
		return -ENOMEM;
	free(*ret_value);
	*ret_value = copy;
	return 0;
}

int fp_conf_parse(const struct fp_conf_field *field, const char *text, void *target)
{
	void *into = (char *)target + field->offset;

	switch (field->type) {
	case FP_CONF_BOOL:
		return parse_bool(text, into);
	case FP_CONF_ENUM:
		return parse_enum(text, field->choices, into);
	case FP_CONF_STRING:
		return parse_string(text, into);
	default:
		return parse_number(field, text, into);
	}
}

/* Reads a scalar into its field. A number or truth value in quotes is text. */
static int read_scalar(struct reader *r, const yaml_event_t *e, const struct fp_conf_field *field,
                       void *enclosing)
{
	bool is_bare = field->type == FP_CONF_BOOL || field->type == FP_CONF_U64;
	char what[512];
	int ret;

	if (!is_text(e) || (is_bare && !is_plain(e)))
		return fail_type(r, e, field);
	ret = fp_conf_parse(field, scalar(e), enclosing);
	if (ret == 0 || ret == -ENOMEM)
		return ret;
	fp_conf_explain(field, ret, scalar(e), what, sizeof(what));
	return fail(r, &e->start_mark, "%s", what);
}

int fp_conf_strings_add(struct fp_conf_strings *strings, const char *text, size_t len)
{
	char **items = reallocarray(strings->items, strings->n + 1, sizeof(*items));

	if (!items)
		return -ENOMEM;
	strings->items = items;
	items[strings->n] = strndup(text, len);
	if (!items[strings->n])
		return -ENOMEM;
	strings->n++;
	return 0;
}

void fp_conf_strings_done(struct fp_conf_strings *strings)
{
	for (size_t i = 0; i < strings->n; i++)
		free(strings->items[i]);
	free(strings->items);
	*strings = (struct fp_conf_strings){0};
}

static int read_strings(struct reader *r, const yaml_event_t *start, const struct fp_conf_field *field,
                        struct fp_conf_strings *strings)
{
	fp_conf_strings_done(strings);
	strings->given = true;
	if (is_text(start))
		return fp_conf_strings_add(strings, scalar(start), SIZE_MAX);
	if (start->type != YAML_SEQUENCE_START_EVENT)
		return fail_type(r, start, field);
	for (;;) {
		autoevent yaml_event_t e = {0};
		size_t parent;
		int ret = next_event(r, &e);

		if (ret < 0 || e.type == YAML_SEQUENCE_END_EVENT)
			return ret;
		parent = path_push(r, "[%zu]", strings->n);
		ret = note_place(r, &e.start_mark);
		if (ret == 0)
			ret = is_text(&e) ? fp_conf_strings_add(strings, scalar(&e), SIZE_MAX)
			                  : fail(r, &e.start_mark, "must be text");
		if (ret < 0)
			return ret;
		path_pop(r, parent);
	}
}

static int read_map(struct reader *r, const yaml_event_t *start, const struct fp_conf_field *fields,
                    void *target);

static int read_list(struct reader *r, const yaml_event_t *start, const struct fp_conf_field *field,
                     void *enclosing)
{
	if (start->type != YAML_SEQUENCE_START_EVENT)
		return fail_type(r, start, field);
	for (size_t n = 0;; n++) {
		autoevent yaml_event_t e = {0};
		size_t parent;
		void *item;
		int ret = next_event(r, &e);

		if (ret < 0 || e.type == YAML_SEQUENCE_END_EVENT)
			return ret;
		item = field->item(enclosing);
		if (!item)
			return -ENOMEM;
		parent = path_push(r, "[%zu]", n);
		ret = note_place(r, &e.start_mark);
		if (ret == 0)
			ret = read_map(r, &e, field->fields, item);
		if (ret < 0)
			return ret;
		path_pop(r, parent);
	}
}

/* A file of an older version goes on working, but its owner learns what to remove. */
static int skip_value(struct reader *r, const yaml_event_t *e, const struct fp_conf_field *field)
{
	if (!is_text(e))
		return fail_type(r, e, field);
	fp_log((enum fp_log_level)field->min, "config", "%s:%zu:%zu: %s has no effect: remove this line",
	       r->file, e->start_mark.line + 1, e->start_mark.column + 1, r->path);
	return 0;
}

static int read_value(struct reader *r, const yaml_event_t *e, const struct fp_conf_field *field,
                      void *enclosing)
{
	void *target = (char *)enclosing + field->offset;
	int ret = note_place(r, &e->start_mark);

	if (ret < 0)
		return ret;
	switch (field->type) {
	case FP_CONF_MAP:
		return read_map(r, e, field->fields, field->item ? field->item(enclosing) : target);
	case FP_CONF_LIST:
		return read_list(r, e, field, enclosing);
	case FP_CONF_STRINGS:
		return read_strings(r, e, field, target);
	case FP_CONF_NOTHING:
		return skip_value(r, e, field);
	default:
		return read_scalar(r, e, field, enclosing);
	}
}

static int fail_unknown(struct reader *r, const yaml_event_t *key, const struct fp_conf_field *fields)
{
	char allowed[256] = "";

	for (; fields->key; fields++)
		if (fields->type != FP_CONF_NOTHING)
			list_add(allowed, sizeof(allowed), fields->key);
	return fail(r, &key->start_mark, "unknown key '%.60s'; allowed here: %s", scalar(key), allowed);
}

/*
 * Reads one "key: value". The parameter seen has one bit for each field whose key this mapping has
 * had.
 */
static int read_entry(struct reader *r, const yaml_event_t *key, const struct fp_conf_field *fields,
                      void *target, uint64_t *seen)
{
	autoevent yaml_event_t value = {0};
	size_t parent;
	unsigned i = 0;
	int ret;

	if (key->type != YAML_SCALAR_EVENT)
		return fail(r, &key->start_mark, "a key must be a word, not a list or a mapping");
	while (fields[i].key && strcmp(fields[i].key, scalar(key)) != 0)
		i++;
	if (!fields[i].key)
		return fail_unknown(r, key, fields);
	assert(i < 64);
	parent = path_push(r, "%s%s", r->path[0] ? "." : "", fields[i].key);
	if (*seen & 1ull << i)
		return fail(r, &key->start_mark, "is given twice");
	*seen |= 1ull << i;
	ret = next_event(r, &value);
	if (ret == 0)
		ret = read_value(r, &value, &fields[i], target);
	if (ret == 0)
		path_pop(r, parent);
	return ret;
}

static int check_required(struct reader *r, const yaml_mark_t *at, const struct fp_conf_field *fields,
                          uint64_t seen)
{
	for (unsigned i = 0; fields[i].key; i++)
		if (fields[i].required && !(seen & 1ull << i))
			return fail(r, at, "key '%s' is missing", fields[i].key);
	return 0;
}

static int read_map(struct reader *r, const yaml_event_t *start, const struct fp_conf_field *fields,
                    void *target)
{
	static const struct fp_conf_field map = {.type = FP_CONF_MAP};
	uint64_t seen = 0;

	if (start->type != YAML_MAPPING_START_EVENT)
		return fail_type(r, start, &map);
	for (;;) {
		autoevent yaml_event_t key = {0};
		int ret = next_event(r, &key);

		if (ret < 0)
			return ret;
		if (key.type == YAML_MAPPING_END_EVENT)
			return check_required(r, &start->start_mark, fields, seen);
		ret = read_entry(r, &key, fields, target, &seen);
		if (ret < 0)
			return ret;
	}
}

/* Reads the content of a document: our mapping, or nothing at all. */
static int read_root(struct reader *r, const struct fp_conf_field *fields, void *target)
{
	autoevent yaml_event_t e = {0};
	int ret = next_event(r, &e);

	if (ret < 0)
		return ret;
	return is_null(&e) ? check_required(r, &e.start_mark, fields, 0) : read_map(r, &e, fields, target);
}

/* Takes an event that has no contents, and returns its type and place. */
static int next_mark(struct reader *r, yaml_event_type_t *ret_type, yaml_mark_t *ret_at)
{
	autoevent yaml_event_t e = {0};
	int ret = next_event(r, &e);

	*ret_type = e.type;
	*ret_at = e.start_mark;
	return ret;
}

/* Reads the whole file: stream start, [document start, root, document end], stream end. */
static int read_stream(struct reader *r, const struct fp_conf_field *fields, void *target)
{
	yaml_event_type_t type;
	yaml_mark_t at;
	int ret = next_mark(r, &type, &at);

	if (ret == 0)
		ret = next_mark(r, &type, &at);
	if (ret < 0)
		return ret;
	if (type == YAML_STREAM_END_EVENT)
		return check_required(r, &at, fields, 0);
	ret = read_root(r, fields, target);
	if (ret == 0)
		ret = next_mark(r, &type, &at);
	if (ret == 0)
		ret = next_mark(r, &type, &at);
	if (ret == 0 && type != YAML_STREAM_END_EVENT)
		ret = fail(r, &at, "a second document is not allowed");
	return ret;
}

static int read_file(struct reader *r)
{
	fp_autoclose int fd = open(r->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) { /* a read of a FIFO may wait for ever */
		snprintf(r->error->text, sizeof(r->error->text), "%s: not a regular file", r->file);
		return -EINVAL;
	}
	r->text = malloc(MAX_FILE_BYTES + 1);
	if (!r->text)
		return -ENOMEM;
	do {
		n = read(fd, r->text + r->len, MAX_FILE_BYTES + 1 - r->len);
		if (n < 0)
			return -errno;
		r->len += (size_t)n;
		if (r->len > MAX_FILE_BYTES)
			return -EFBIG;
	} while (n > 0);
	return 0;
}

static int parse_file(struct reader *r, const struct fp_conf_field *fields, void *target)
{
	int ret = read_file(r);

	if (ret < 0)
		return ret;
	if (!yaml_parser_initialize(&r->parser))
		return -ENOMEM;
	yaml_parser_set_input_string(&r->parser, (const unsigned char *)r->text, r->len);
	ret = read_stream(r, fields, target);
	yaml_parser_delete(&r->parser);
	return ret;
}

int fp_conf_refuse(struct fp_conf_error *error, const struct fp_conf_places *places, const char *path,
                   const char *format, ...)
{
	size_t size = sizeof(error->text), len;
	va_list args;

	fp_conf_places_name(places, path, error->text, size);
	len = strlen(error->text);
	len += (size_t)snprintf(error->text + len, size - len, ": ");
	if (len < size) {
		va_start(args, format);
		vsnprintf(error->text + len, size - len, format, args);
		va_end(args);
	}
	fp_printable_blank(error->text, strlen(error->text), '?', 0);
	return -EINVAL;
}

int fp_conf_read(const char *path, const struct fp_conf_field *fields, void *target,
                 struct fp_conf_places *places, struct fp_conf_error *error)
{
	struct reader r = {.file = path, .places = places, .error = error};
	char why[64];
	int ret = 0;

	error->text[0] = '\0';
	if (places && !(places->file = strdup(path)))
		ret = -ENOMEM;
	if (ret == 0)
		ret = parse_file(&r, fields, target);
	if (ret < 0 && !error->text[0])
		snprintf(error->text, sizeof(error->text), "%s: %s", path,
		         fp_strerror(ret, why, sizeof(why)));
	free(r.text);
	return ret;
}
