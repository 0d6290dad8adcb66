/*
 * Old versions of the C library's functions. Room: preload/door.
 *
 * Where a function changes its meaning or its structs, the C library keeps the old one for what was
 * linked to it, under the same name and a version. Our functions have no versions, so the loader
 * gives them to all, and they are today's.
 */
#ifndef FP_VERSIONS_H
#define FP_VERSIONS_H

#include <stdbool.h>

struct fp_version_use {
	const char *file; /* "" for the program itself */
	const char *symbol, *version;
};

/*
 * True if something that is loaded was linked to an old version of a function of ours, and would be
 * harmed by today's. Uses the texts of the loaded libraries. Call it at the start, while no other
 * thread opens or closes libraries. Does not block.
 */
bool fp_versions_find_old(struct fp_version_use *ret_use);

#endif
