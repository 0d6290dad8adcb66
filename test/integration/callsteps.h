/*
 * Calls of the C library, each made twice: on local memory, and on far memory of the same content
 * that was paged out. Both must return the same and leave the same bytes. Room: test/integration.
 */
#ifndef FP_TEST_CALLSTEPS_H
#define FP_TEST_CALLSTEPS_H

#include <stddef.h>

#define STEP_PAGE       4096u
#define STEP_AREAS      6
#define STEP_AREA_BYTES (16 * STEP_PAGE)
#define STEP_TAIL       8 /* bytes of an area's object before its page's end: most objects need two pages */

/* All of them, on STEP_AREAS * STEP_AREA_BYTES of far memory. Fails the test that runs. */
void test_call_steps(char *far_areas);

/* The caller's: pages these bytes out; fails the test if that can't be done. */
void test_evict(const char *start, size_t len);

#endif
