/* Shared by the tests of mappings. Room: test/integration, test_preload_map*.c. */
#ifndef FP_PRELOAD_MAP_RIG_H
#define FP_PRELOAD_MAP_RIG_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "underpreload.h"

#define PAGE 4096u
#define BIG  (4 * TEST_LOCAL_BYTES)

static inline char *map_anonymous(size_t len, int flags)
{
	return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static inline char *map_filled(size_t len, unsigned seed)
{
	char *p = map_anonymous(len, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	assert_true(test_is_far(p));
	test_fill(p, len, seed);
	return p;
}

static inline bool is_zero(const char *p, size_t len)
{
	return p[0] == 0 && memcmp(p, p + 1, len - 1) == 0;
}

#define assert_fails(call, error)                                                                            \
	do {                                                                                                 \
		errno = 0;                                                                                   \
		assert_true((intptr_t)(call) == -1);                                                         \
		assert_int_equal(errno, error);                                                              \
	} while (0)

#endif
