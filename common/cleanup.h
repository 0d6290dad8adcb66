/*
 * Cleanup attributes: a local variable that owns something releases it at the end of its scope,
 * unless the value was taken out. Room: common. It knows only libc types.
 */
#ifndef FP_CLEANUP_H
#define FP_CLEANUP_H

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>

#define FP_CLEANUP(fn) __attribute__((cleanup(fn)))
#define fp_autofree    FP_CLEANUP(fp_cleanup_free)
#define fp_autoclose   FP_CLEANUP(fp_cleanup_close)
#define fp_autofclose  FP_CLEANUP(fp_cleanup_fclose)

/*
 * Takes the value out of a local variable that owns it. Then the caller owns the value, and the
 * variable's cleanup sees NULL.
 */
#define fp_take_ptr(p)                                                                                       \
	({                                                                                                   \
		__typeof__(p) fp_taken_ = (p);                                                               \
		(p) = NULL;                                                                                  \
		fp_taken_;                                                                                   \
	})

/* Does the same for a file descriptor: the local variable becomes -1. */
#define fp_take_fd(fd)                                                                                       \
	({                                                                                                   \
		int fp_taken_ = (fd);                                                                        \
		(fd) = -1;                                                                                   \
		fp_taken_;                                                                                   \
	})

/* Defines fp_cleanup_<name>(T **) for an owned object whose destructor accepts NULL. */
#define FP_DEFINE_CLEANUP(type, name, destructor)                                                            \
	static inline void fp_cleanup_##name(type **p)                                                       \
	{                                                                                                    \
		destructor(*p);                                                                              \
	}

#define FP_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* The object of this type whose member ptr points to. */
#define fp_container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/*
 * These macros evaluate each argument once. An atomic load that is evaluated twice could give two
 * values: one would pass the comparison, and the other would be the result. Therefore the macros
 * are not constant expressions.
 */
#define FP_MIN(a, b) FP_PICK_(a, <, b, __COUNTER__)
#define FP_MAX(a, b) FP_PICK_(a, >, b, __COUNTER__)

#define FP_PICK_(a, op, b, id) FP_PICK__(a, op, b, id)
#define FP_PICK__(a, op, b, id)                                                                              \
	__extension__({                                                                                      \
		__auto_type fp_a_##id = (a);                                                                 \
		__auto_type fp_b_##id = (b);                                                                 \
		fp_a_##id op fp_b_##id ? fp_a_##id : fp_b_##id;                                              \
	})

static inline void fp_cleanup_free(void *p)
{
	free(*(void **)p);
}

/* Keeps errno: cleanup runs on error paths, which still have to report it. */
static inline void fp_cleanup_close(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	errno = saved;
}

static inline void fp_cleanup_fclose(FILE **f)
{
	if (*f)
		fclose(*f);
}

#endif
