/*
 * Functions by name, past our own dlsym. Room: preload/door.
 *
 * We interpose dlsym (process/dlsym.c), and our own calls of it would come back to us. So we read
 * the symbol tables of the loaded libraries to find the C library's. None of these functions
 * allocates or takes a lock of ours; all work before our constructor has run.
 */
#ifndef FP_LOOKUP_H
#define FP_LOOKUP_H

#include <link.h>
#include <stdbool.h>

/* This library in the loader's list; NULL if it has been loaded into another namespace. */
const struct link_map *fp_lookup_own_map(void);

typedef void *fp_dlsym_fn(void *library, const char *name);
typedef void *fp_dlvsym_fn(void *library, const char *name, const char *version);

/* The functions that the program would call without the shim, mostly the C library's. */
fp_dlsym_fn *fp_lookup_dlsym(void);
fp_dlvsym_fn *fp_lookup_dlvsym(void);

/*
 * Returns the definition of this name that comes after ours, or NULL. If version is not NULL, the
 * definition has that version.
 */
void *fp_lookup_next(const char *name, const char *version);

/* Returns what this library exports under this name, or NULL. */
void *fp_lookup_own(const char *name);

/*
 * True if the library of this code comes before ours, and no library between them defines the name.
 * What comes before us was loaded at the start, and stays.
 */
bool fp_lookup_is_next(const void *code, const char *name);

/*
 * True if the library of this code comes after ours, does not define the name, and the definition
 * after ours is the C library's. Such a library does not stand between our function and that one.
 */
bool fp_lookup_is_bystander(const void *code, const char *name);

#endif
