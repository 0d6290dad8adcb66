/*
 * A program that defines functions under names of the C library's. ISO C leaves these names to
 * programs. Its main calls none of the functions, so nobody may. The build also makes a library of
 * them, for a program that is linked to it. Room: test/integration, for test_preload_ownnames.py.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef OWNNAMES

/* Past the C library: write and _exit may be ours. */
static long kernel(long number, long a, const char *b, long c)
{
	register long result __asm__("rax") = number;

	__asm__ volatile("syscall" : "+r"(result) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}

static void reached(const char *name, long len)
{
	kernel(1, 2, name, len);
	kernel(231, 3, NULL, 0);
}

#define OWN(name)                                                                                            \
	__attribute__((visibility("default"))) long own_##name(long sheep) __asm__(#name);                   \
	long own_##name(long sheep)                                                                          \
	{                                                                                                    \
		reached(#name " was called\n", sizeof(#name " was called\n") - 1);                           \
		return sheep;                                                                                \
	}
#include "ownnames.def"

#endif

/* A program is linked to the library only if it needs something of it. */
__attribute__((visibility("default"))) extern int fp_ownnames_pages;
#ifndef OWNNAMES_LINKED
int fp_ownnames_pages = 1024;
#endif

#ifndef OWNNAMES_LIBRARY

#define BYTES ((size_t)fp_ownnames_pages << 12)

static int is_filled(const char *p, char with)
{
	for (size_t i = 0; i < BYTES; i += 512)
		if (p[i] != with)
			return 0;
	return 1;
}

static void fill(char *p, char with)
{
	for (size_t i = 0; i < BYTES; i += 512)
		p[i] = with;
}

int main(void)
{
	char *p = malloc(BYTES);
	int status = 1;

	fill(p, 1);
	fill(p, 2);
	if (fork() == 0) {
		fill(p, 3);
		_exit(!is_filled(p, 3));
	}
	wait(&status);
	if (status || !is_filled(p, 2))
		return 1;
	free(p);
	return write(STDOUT_FILENO, "done\n", 5) != 5;
}

#endif
