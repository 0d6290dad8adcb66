/*
 * Linked to the versions of functions that the C library had long ago: HARMED names one that
 * today's function would harm; otherwise there are only others. A program, or a library of one.
 * Room: test/integration.
 */
#include <stdio.h>

char *old_realpath(const char *path, char *resolved);
int old_glob(const char *pattern, int flags, void *failed, void *found);

__asm__(".symver old_glob, glob@GLIBC_2.2.5");
#ifdef HARMED
__asm__(".symver old_realpath, realpath@GLIBC_2.2.5");
#else
__asm__(".symver old_realpath, realpath@GLIBC_2.3");
#endif

int main(void)
{
	char path[4096];

	return old_realpath("/", path) && old_glob("", -1, NULL, NULL) != 0 && puts("ran") > 0 ? 0 : 1;
}
