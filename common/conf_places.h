/*
 * Where the values of a configuration file stand, so that a check after the reading can name line
 * and column, too. Room: common. yamlconf.h fills it.
 */
#ifndef FP_CONF_PLACES_H
#define FP_CONF_PLACES_H

#include <stddef.h>

struct fp_conf_place {
	char *path; /* of the value: "pools[0].size" */
	size_t line, column;
};

/* Zero-initialised, it knows no place. */
struct fp_conf_places {
	char *file;
	struct fp_conf_place *items;
	size_t n;
};

/* Notes where the value of path stands. 0 or -ENOMEM. */
int fp_conf_places_add(struct fp_conf_places *places, const char *path, size_t line, size_t column);

/*
 * "node.yaml:3:9: listen[1]": the place of path, or else of the nearest value that encloses it.
 * Only the path if none is known. Returns buf.
 */
const char *fp_conf_places_name(const struct fp_conf_places *places, const char *path, char *buf, size_t len);

void fp_conf_places_done(struct fp_conf_places *places);

#endif
