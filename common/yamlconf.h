/*
 * A strict reader of YAML configuration files, on libyaml. The caller describes the keys in a
 * table. An unknown key, a wrong type or a value out of range is an error that names file, line,
 * column and the allowed values. Room: common. It knows no key of any program.
 */
#ifndef FP_YAMLCONF_H
#define FP_YAMLCONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conf_places.h"

enum fp_conf_type {
	FP_CONF_BOOL,    /* bool */
	FP_CONF_U64,     /* uint64_t within min..max */
	FP_CONF_SIZE,    /* uint64_t bytes, as fp_size_parse, within min..max */
	FP_CONF_TIME,    /* uint64_t ns, as fp_time_parse, within min..max */
	FP_CONF_STRING,  /* char *, malloc'd, owned by the target struct; an earlier value is freed */
	FP_CONF_ENUM,    /* int: index into choices */
	FP_CONF_STRINGS, /* struct fp_conf_strings: a sequence of scalars, or one scalar */
	FP_CONF_MAP,     /* a nested mapping: its keys are in the member fields, its struct is at offset */
	FP_CONF_NOTHING, /* an old key: one scalar, without effect; a line at log level min says so */
	FP_CONF_LIST,    /* a sequence of mappings: for each, item() gives the struct to fill */
};

struct fp_conf_strings {
	char **items; /* each malloc'd; freed by fp_conf_strings_done */
	size_t n;
	bool given; /* true: the key was there, even if with an empty list */
};

struct fp_conf_field {
	const char *key;
	enum fp_conf_type type;
	size_t offset;                      /* the field's place in the enclosing mapping's struct */
	uint64_t min, max;                  /* U64, SIZE, TIME; max 0: no upper bound */
	const char *const *choices;         /* ENUM: the allowed words, then NULL */
	const struct fp_conf_field *fields; /* MAP, LIST: the mapping's keys; ends with .key == NULL */
	/*
	 * LIST: appends an element with default values to the list in *enclosing, and returns the
	 * element; NULL: no memory. MAP: returns the mapping's struct. It is called if the file has
	 * the mapping, even an empty one. A MAP may have NULL here.
	 */
	void *(*item)(void *enclosing);
	bool required;
};

/* A row of a table: the key, its type without FP_CONF_, the member of struct target that it fills,
 * and initialisers of further members. */
#define FP_CONF_KEY(name, kind, target, member, ...)                                                         \
	{                                                                                                    \
		.key = (name), .type = FP_CONF_##kind, .offset = offsetof(struct target, member),            \
		__VA_ARGS__                                                                                  \
	}

/* Where and why reading failed, as text for a person. */
struct fp_conf_error {
	char text[512]; /* "node.yaml:12:7: pools[0].size: ..." */
};

/*
 * Reads the file at path into target, by the table fields. A key that is not in the file leaves its
 * field as it was. No key may come twice. A file may have 1 MiB at most. A FIFO or a device is
 * refused, because it could keep the caller waiting. Returns 0; -ENOENT and the like if the file
 * cannot be read (-EISDIR for a directory); -EINVAL if its contents are not valid. After -EINVAL,
 * error->text names the mistake and its place, and target holds the values read so far. If places
 * is not NULL, it must be empty. It gets the place of each value, also if the call fails, and the
 * caller releases it. Only for the control plane, because it allocates.
 */
int fp_conf_read(const char *path, const struct fp_conf_field *fields, void *target,
                 struct fp_conf_places *places, struct fp_conf_error *error);

/*
 * Parses one scalar, as written in a file, into its field of the struct target. Not for STRINGS,
 * MAP or LIST. Returns 0, -EINVAL (text is not of the field's type), -ERANGE (the value is not
 * within min..max), -EOVERFLOW (the value is too large for 64 bits) or -ENOMEM.
 */
int fp_conf_parse(const struct fp_conf_field *field, const char *text, void *target);
/*
 * Writes to buf why fp_conf_parse refused text: "must be ..., not '...'". r is the error that
 * fp_conf_parse returned.
 */
void fp_conf_explain(const struct fp_conf_field *field, int r, const char *text, char *buf, size_t len);

/* Appends a copy of len bytes of text. Returns 0 or -ENOMEM. */
int fp_conf_strings_add(struct fp_conf_strings *strings, const char *text, size_t len);

/*
 * Called by the caller's own checks, which the table cannot express, with the path of the value
 * that is wrong: "listen[1]". Writes error->text, "node.yaml:3:9: listen[1]: ...", and returns
 * -EINVAL.
 */
__attribute__((format(printf, 4, 5))) int fp_conf_refuse(struct fp_conf_error *error,
                                                         const struct fp_conf_places *places,
                                                         const char *path, const char *format, ...);

void fp_conf_strings_done(struct fp_conf_strings *strings);

#endif
