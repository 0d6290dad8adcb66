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
/* An object starts so many bytes before a page's end, so that it lies in two pages. */
#define STEP_TAIL 8

/*
 * Runs all steps, on STEP_AREAS * STEP_AREA_BYTES of far memory. Fails the running test on a
 * difference.
 */
void test_call_steps(char *far_areas);

/* The program that uses the steps defines this. It pages the bytes out, or fails the test. */
void test_evict(const char *start, size_t len);

/* The steps of callsteps_paths.c. m: the step's areas. */
long test_step_files(void **m);
long test_step_made_names(void **m);
long test_step_texts(void **m);
long test_step_environment(void **m);
void test_step_set_options(void **m);
long test_step_mounts(void **m, bool by_number);
void test_step_set_paths(void **m);
long test_step_long_paths(void **m);
long test_step_long_folder(void **m);

/* The step of callsteps_jumps.c. */
long test_step_jumps(void **m);

#endif
