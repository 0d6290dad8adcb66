/*
 * The columns of a table, chosen for the width that there is. Room: tools. Pure.
 */
#ifndef FP_COLUMNS_H
#define FP_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>

struct fp_column {
	const char *title;
	unsigned width;     /* the least that it needs; 0: it is never shown */
	unsigned max_width; /* room that is left over goes to it, up to this */
	unsigned rank;      /* the lower, the sooner it is chosen */
	bool left;          /* true: its cells begin at the left; false: they end at the right */
};

/*
 * Chooses columns by rank while they fit into width, with a blank between two columns. Always
 * chooses the first in rank. Writes the width of each of the n columns to ret_widths, and 0 for a
 * column that is not shown.
 */
void fp_columns_fit(const struct fp_column *columns, unsigned n, unsigned width, unsigned *ret_widths);

/*
 * Writes a line of the table to buf: cells[i] (NULL: the title) stands in column i, cut at its
 * width. The text is UTF-8 (character.h). Returns buf.
 */
const char *fp_columns_line(const struct fp_column *columns, unsigned n, const unsigned *widths,
                            const char *const *cells, char *buf, size_t len);

#endif
