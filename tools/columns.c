/*
 * The columns of a table. Room: tools; see columns.h.
 */
#include "columns.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "character.h"
#include "cleanup.h"

/* The next column by rank that is neither chosen nor too wide; n: none. */
static unsigned next_of(const struct fp_column *columns, unsigned n, unsigned room, const unsigned *widths)
{
	unsigned best = n;

	for (unsigned i = 0; i < n; i++)
		if (columns[i].width && !widths[i] && columns[i].width <= room &&
		    (best == n || columns[i].rank < columns[best].rank))
			best = i;
	return best;
}

/* Gives what is left over to the chosen columns, by rank. */
static void widen(const struct fp_column *columns, unsigned n, unsigned room, unsigned *widths)
{
	for (unsigned given = 1; room && given;) {
		unsigned best = n;

		for (unsigned i = 0; i < n; i++)
			if (widths[i] && widths[i] < columns[i].max_width &&
			    (best == n || columns[i].rank < columns[best].rank))
				best = i;
		given = best < n ? FP_MIN(room, columns[best].max_width - widths[best]) : 0;
		if (given)
			widths[best] += given;
		room -= given;
	}
}

void fp_columns_fit(const struct fp_column *columns, unsigned n, unsigned width, unsigned *ret_widths)
{
	unsigned room = width + 1, best; /* with a blank before each column, also before the first */

	memset(ret_widths, 0, n * sizeof(*ret_widths));
	best = next_of(columns, n, UINT_MAX, ret_widths);
	while (best < n) {
		ret_widths[best] = columns[best].width;
		room -= FP_MIN(columns[best].width + 1, room);
		best = room ? next_of(columns, n, room - 1, ret_widths) : n;
	}
	widen(columns, n, room, ret_widths);
}

/* How many bytes of text fit into max columns, and how many columns they take. */
static size_t measure(const char *text, unsigned max, unsigned *ret_columns)
{
	const char *end = text, *next = text;

	*ret_columns = 0;
	while (*end) {
		unsigned wide = fp_character_columns(fp_character_next(&next));

		if (*ret_columns + wide > max)
			break;
		*ret_columns += wide;
		end = next;
	}
	return (size_t)(end - text);
}

const char *fp_columns_line(const struct fp_column *columns, unsigned n, const unsigned *widths,
                            const char *const *cells, char *buf, size_t len)
{
	size_t at = 0;

	*buf = '\0';
	for (unsigned i = 0; i < n; i++) {
		const char *cell = cells && cells[i] ? cells[i] : columns[i].title;
		unsigned taken;
		size_t bytes = measure(cell, widths[i], &taken);
		int pad = (int)(widths[i] - taken);

		if (!widths[i] || at >= len)
			continue;
		at += (size_t)snprintf(buf + at, len - at, "%s%*s%.*s%*s", at ? " " : "",
		                       columns[i].left ? 0 : pad, "", (int)bytes, cell,
		                       columns[i].left ? pad : 0, "");
	}
	return buf;
}
