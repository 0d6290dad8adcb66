/*
 * A JSON text as a tree: as much of it as what a memory node says of itself needs. Room: tools. Pure.
 */
#ifndef FP_JSON_H
#define FP_JSON_H

enum fp_json_type {
	FP_JSON_NULL,
	FP_JSON_BOOL,
	FP_JSON_NUMBER,
	FP_JSON_STRING,
	FP_JSON_ARRAY,
	FP_JSON_OBJECT
};

struct fp_json {
	enum fp_json_type type;
	char *name;            /* of a member of an object; else NULL */
	char *text;            /* "true", "-1.5", the string without quotes; NULL: array, object */
	struct fp_json *first; /* of array and object */
	struct fp_json *next;  /* of the same array or object */
};

/*
 * Parses a whole text. 0 and *ret_json, the caller's to free; -EINVAL: not JSON, or nested deeper than 16;
 * -ENOMEM. Escapes of characters that are not printable ASCII become "?".
 */
int fp_json_parse(const char *text, struct fp_json **ret_json);

/* The member of an object; NULL: no such, or no object. */
const struct fp_json *fp_json_member(const struct fp_json *object, const char *name);

/* NULL is fine. */
void fp_json_free(struct fp_json *json);

#endif
