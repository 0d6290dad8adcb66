/*
 * JSON, read. Room: tools. Recursive descent over RFC 8259; what comes in was written by a node, so nothing
 * of it is believed: depth is bounded, and text that goes to a terminal carries no control characters.
 */
#include "json.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

#define MAX_DEPTH 16

static int parse_value(const char **at, unsigned depth, struct fp_json **ret_json);

FP_DEFINE_CLEANUP(struct fp_json, json, fp_json_free)

static void skip_space(const char **at)
{
	*at += strspn(*at, " \t\r\n");
}

/* Skips space, and c if it is next. */
static int take(const char **at, char c)
{
	skip_space(at);
	if (**at != c)
		return 0;
	(*at)++;
	return 1;
}

/* The character behind a backslash; *at moves behind it. 0: none that JSON knows. */
static char unescape(const char **at)
{
	static const char from[] = "\"\\/", blank[] = "bfnrt";
	char c = *(*at)++;

	if (c && strchr(from, c))
		return c;
	if (c && strchr(blank, c))
		return ' ';
	if (c != 'u' || strspn(*at, "0123456789abcdefABCDEF") < 4)
		return 0;
	c = !strncmp(*at, "00", 2) ? (char)strtoul((char[]){(*at)[2], (*at)[3], '\0'}, NULL, 16) : '?';
	*at += 4;
	return c >= ' ' && c < 0x7f ? c : '?';
}

static int parse_string(const char **at, char **ret_text)
{
	fp_autofree char *text = NULL;
	size_t n = 0;

	if (!take(at, '"'))
		return -EINVAL;
	text = malloc(strcspn(*at, "") + 1);
	if (!text)
		return -ENOMEM;
	while (**at != '"') {
		char c = *(*at)++;

		if (c == '\\')
			c = unescape(at);
		else if (c && ((unsigned char)c < ' ' || c == 0x7f))
			c = '?';
		if (!c)
			return -EINVAL;
		text[n++] = c;
	}
	(*at)++;
	text[n] = '\0';
	*ret_text = fp_take_ptr(text);
	return 0;
}

/* "true", "false", "null" or a number. */
static int parse_word(const char **at, struct fp_json *json)
{
	size_t len = strcspn(*at, ",]} \t\r\n");
	char *end;

	json->text = strndup(*at, len);
	if (!json->text)
		return -ENOMEM;
	if (!strcmp(json->text, "null"))
		json->type = FP_JSON_NULL;
	else if (!strcmp(json->text, "true") || !strcmp(json->text, "false"))
		json->type = FP_JSON_BOOL;
	else
		json->type = FP_JSON_NUMBER;
	if (json->type == FP_JSON_NUMBER) {
		if (len == 0 || strspn(json->text, "0123456789+-.eE") != len)
			return -EINVAL;
		(void)strtod(json->text, &end);
		if (*end)
			return -EINVAL;
	}
	*at += len;
	return 0;
}

static int parse_child(const char **at, unsigned depth, enum fp_json_type type, struct fp_json **ret_json)
{
	FP_CLEANUP(fp_cleanup_json) struct fp_json *child = NULL;
	fp_autofree char *name = NULL;
	int r = 0;

	if (type == FP_JSON_OBJECT) {
		r = parse_string(at, &name);
		if (r == 0 && !take(at, ':'))
			r = -EINVAL;
	}
	if (r == 0)
		r = parse_value(at, depth + 1, &child);
	if (r < 0)
		return r;
	child->name = fp_take_ptr(name);
	*ret_json = fp_take_ptr(child);
	return 0;
}

static int parse_children(const char **at, unsigned depth, struct fp_json *json)
{
	char close = json->type == FP_JSON_OBJECT ? '}' : ']';
	struct fp_json **end = &json->first;

	if (take(at, close))
		return 0;
	do {
		int r = parse_child(at, depth, json->type, end);

		if (r < 0)
			return r;
		end = &(*end)->next;
	} while (take(at, ','));
	return take(at, close) ? 0 : -EINVAL;
}

static int parse_value(const char **at, unsigned depth, struct fp_json **ret_json)
{
	FP_CLEANUP(fp_cleanup_json) struct fp_json *json = calloc(1, sizeof(*json));
	int r;

	if (!json)
		return -ENOMEM;
	if (depth == MAX_DEPTH)
		return -EINVAL;
	skip_space(at);
	if (**at == '"') {
		json->type = FP_JSON_STRING;
		r = parse_string(at, &json->text);
	} else if (**at == '{' || **at == '[') {
		json->type = *(*at)++ == '{' ? FP_JSON_OBJECT : FP_JSON_ARRAY;
		r = parse_children(at, depth, json);
	} else {
		r = parse_word(at, json);
	}
	if (r < 0)
		return r;
	*ret_json = fp_take_ptr(json);
	return 0;
}

int fp_json_parse(const char *text, struct fp_json **ret_json)
{
	FP_CLEANUP(fp_cleanup_json) struct fp_json *json = NULL;
	int r = parse_value(&text, 0, &json);

	skip_space(&text);
	if (r == 0 && *text)
		r = -EINVAL;
	if (r == 0)
		*ret_json = fp_take_ptr(json);
	return r;
}

const struct fp_json *fp_json_member(const struct fp_json *object, const char *name)
{
	if (!object || object->type != FP_JSON_OBJECT)
		return NULL;
	for (const struct fp_json *m = object->first; m; m = m->next)
		if (!strcmp(m->name, name))
			return m;
	return NULL;
}

void fp_json_free(struct fp_json *json)
{
	while (json) {
		struct fp_json *next = json->next;

		fp_json_free(json->first);
		free(json->name);
		free(json->text);
		free(json);
		json = next;
	}
}
