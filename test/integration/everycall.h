/* The rows of everycall.def: system calls by their numbers. Room: test/integration. */
#ifndef FP_TEST_EVERYCALL_H
#define FP_TEST_EVERYCALL_H

#include <stdbool.h>
#include <stddef.h>

#define CALL_AREAS 6
/* Each row has objects of its own, which begin so many bytes before the end of a page. */
#define CALL_TAIL 8
/* In call_row.differ. */
#define CALL_ANY(i) (1u << (8 + (i)))

struct call_row {
	const char *name;
	unsigned differ; /* see everycall.def */
	void (*before)(void **m);
	long (*call)(void **m);
};

extern const struct call_row test_call_rows[];
extern const size_t test_call_n_rows;

/*
 * Makes the row's call with the objects m, on new descriptors. If is_bare, each system call of the
 * row is made by an instruction of the test's own.
 */
long test_call_row(const struct call_row *row, void **m, bool is_bare);

/*
 * One system call, by syscall(2) or by an instruction. Its arguments are longs, ints and pointers.
 * Returns the result or a negative errno.
 */
long test_call_by_number(long number, ...);

#endif
