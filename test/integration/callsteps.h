/*
 * Calls of the C library, each made twice: on local memory, and on far memory with the same content
 * that was paged out. Both must return the same result and leave the same bytes. Room:
 * test/integration.
 */
#ifndef FP_TEST_CALLSTEPS_H
#define FP_TEST_CALLSTEPS_H

#include <stdbool.h>
#include <stddef.h>

#define STEP_PAGE       4096u
#define STEP_AREAS      6
#define STEP_AREA_BYTES (16 * STEP_PAGE)
#define STEP_TAIL       8 /* an object starts so far before a page's end, to lie in two pages */

/*
 * Runs all of them, on STEP_AREAS * STEP_AREA_BYTES of far memory. Fails the running test on a
 * difference.
 */
void test_call_steps(char *far_areas);

/* Defined by the program that uses this: pages these bytes out, and fails the test if it can't. */
void test_evict(const char *start, size_t len);

/* callsteps_paths.c's. m: the step's areas. */
long test_step_files(void **m);
long test_step_made_names(void **m);
void test_step_set_options(void **m);
long test_step_mounts(void **m, bool by_number);
void test_step_set_paths(void **m);
long test_step_long_paths(void **m);
long test_step_long_folder(void **m);

#endif
