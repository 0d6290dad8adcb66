/* Where the values of a configuration file stand. Room: common; see conf_places.h. */
#include "conf_places.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fp_conf_places_add(struct fp_conf_places *places, const char *path, size_t line, size_t column)
{
	struct fp_conf_place *items = reallocarray(places->items, places->n + 1, sizeof(*items));

	if (!items)
		return -ENOMEM;
	places->items = items;
	items[places->n] = (struct fp_conf_place){.path = strdup(path), .line = line, .column = column};
	if (!items[places->n].path)
		return -ENOMEM;
	places->n++;
	return 0;
}

static const struct fp_conf_place *find(const struct fp_conf_places *places, const char *path, size_t len)
{
	for (size_t i = 0; i < places->n; i++)
		if (strlen(places->items[i].path) == len && memcmp(places->items[i].path, path, len) == 0)
			return &places->items[i];
	return NULL;
}

/*
 * "pools[0].size" is enclosed by "pools[0]", and that by "pools". Returns the length of the path
 * that encloses the first len bytes of path, or 0 if none does.
 */
static size_t enclosing(const char *path, size_t len)
{
	while (len > 0 && path[len - 1] != '.' && path[len - 1] != '[')
		len--;
	return len ? len - 1 : 0;
}

const char *fp_conf_places_name(const struct fp_conf_places *places, const char *path, char *buf, size_t len)
{
	size_t path_len = strlen(path);
	const struct fp_conf_place *place = NULL;

	for (; path_len && !place; path_len = enclosing(path, path_len))
		place = find(places, path, path_len);
	if (place)
		snprintf(buf, len, "%s:%zu:%zu: %s", places->file, place->line, place->column, path);
	else if (places->file)
		snprintf(buf, len, "%s: %s", places->file, path);
	else
		snprintf(buf, len, "%s", path);
	return buf;
}

void fp_conf_places_done(struct fp_conf_places *places)
{
	for (size_t i = 0; i < places->n; i++)
		free(places->items[i].path);
	free(places->items);
	free(places->file);
	*places = (struct fp_conf_places){.n = 0};
}
