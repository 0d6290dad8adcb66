/* The steps of callsteps.c that take paths, short and long. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "callsteps.h"
#include "underpreload.h"

long test_step_files(void **m)
{
	const char *a = m[0], *b = m[1];
	long r = close(creat(a, 0600)) | rename(a, b) | link(b, a) | unlink(b) | symlink(a, b);

	r = r * 10 | (readlink(b, m[2], 100) != 5) | unlink(b) | truncate(a, 5) | chmod(a, 0640) |
	    chown(a, (uid_t)-1, (gid_t)-1);
	r |= mkdir(b, 0700) | rmdir(b) | access(a, R_OK) | faccessat(AT_FDCWD, a, R_OK, 0) |
	     utimensat(AT_FDCWD, a, m[3], 0) | utimes(a, m[3]);
	return r * 10 | unlinkat(AT_FDCWD, a, 0);
}

long test_step_made_names(void **m)
{
	/* found like this, since the linker warns of it */
	char *(*name)(char *) = (char *(*)(char *))dlsym(RTLD_DEFAULT, "tmpnam_r");
	int fd = mkstemp(m[0]);
	long r = fd >= 0 && unlink(m[0]) == 0 && strncmp(m[0], "a-XXXXXX", 8) != 0;

	close(fd);
	r += mkdtemp(m[1]) == m[1] && rmdir(m[1]) == 0;
	if (test_is_far(m[2])) /* what they make is written before it is tried */
		test_evict((char *)m[2] - (uintptr_t)m[2] % STEP_PAGE, (size_t)2 * STEP_PAGE);
	return r * 10 + (name(m[2]) == m[2]);
}

/* A table of mounts by its name, and a text that is longer than the buffer of a stream. */
long test_step_texts(void **m)
{
	int fd = open("steps", O_RDWR | O_CREAT | O_TRUNC, 0600);
	FILE *table = setmntent(m[0], "r");
	long r = table && endmntent(table) == 1;

	r = r * 100000 + dprintf(fd, "%s!", (char *)m[1]);
	r = r * 100000 + pread(fd, m[2], 50000, 0);
	close(fd);
	return r;
}

/* Programs that the C library starts get the environment, which is far here: both its parts. */
long test_step_environment(void **m)
{
	char **before = environ, line[16] = "";
	FILE *from;
	long r;

	((char **)m[0])[0] = m[1];
	((char **)m[0])[1] = m[2];
	((char **)m[0])[2] = NULL;
	if (test_is_far(m[0]))
		for (int i = 0; i < 3; i++)
			test_evict((char *)m[i] - (uintptr_t)m[i] % STEP_PAGE, (size_t)2 * STEP_PAGE);
	environ = (char **)m[0];
	r = system("exit $FAR");
	from = popen("echo $FAR_TOO", "r");
	r = r * 10 + (from && fgets(line, sizeof(line), from) && strcmp(line, "4\n") == 0);
	if (from)
		pclose(from);
	environ = before;
	return r;
}

/*
 * A string of at least LONG bytes, which begins BEFORE bytes before its area. At first a call pins
 * only a short piece of a string (its window). The window ends before the string's first page does.
 * So the rest of the string is on a page that was not pinned.
 */
#define BEFORE 592
#define LONG   620

static void set_long(void **m, const char *step, const char *last)
{
	for (unsigned i = 0; i < STEP_AREAS; i++) {
		char *s = (char *)m[i] - BEFORE;

		for (; strlen((char *)m[i] - BEFORE) < LONG; s += strlen(step))
			strcpy(s, step);
		strcpy(s, last);
	}
}

void test_step_set_options(void **m)
{
	set_long(m, "size=1m,", "nr_inodes=77");
}

long test_step_mounts(void **m, bool by_number)
{
	const char *to = "mounted", *data = (char *)m[0] - BEFORE;
	struct statfs fs = {0};
	long r = mkdir(to, 0700);

	r |= by_number ? syscall(SYS_mount, "none", to, "tmpfs", 0, data)
	               : mount("none", to, "tmpfs", 0, data);
	statfs(to, &fs);
	if (r == 0)
		umount(to);
	rmdir(to);
	return r ? -1 : (long)fs.f_files;
}

void test_step_set_paths(void **m)
{
	set_long(m, "./", "stream");
	strcpy((char *)m[2] - BEFORE + LONG, ".");
	strcpy((char *)m[3] - BEFORE + LONG, "made-XXXXXX");
}

/*
 * Uses each area for one call only: the call makes the area's page local, and each call must meet a
 * far page. Returns which areas are wrong.
 */
long test_step_long_paths(void **m)
{
	FILE *f = fopen((char *)m[0] - BEFORE, "w"),
	     *again = f ? freopen((char *)m[1] - BEFORE, "r", f) : NULL;
	DIR *d = opendir((char *)m[2] - BEFORE);
	char *made = mkdtemp((char *)m[3] - BEFORE);
	long r = (f ? 0 : 1) + (again ? 0 : 2) + (d ? 0 : 4) + (made ? 0 : 8);

	errno = EXDEV;
	r |= access((char *)m[4] - BEFORE, R_OK) << 4 | (errno != EXDEV) << 5;
	if (again)
		fclose(again);
	if (d)
		closedir(d);
	if (made)
		rmdir(made);
	return r;
}

long test_step_long_folder(void **m)
{
	char name[201];
	long r = 0;

	memset(name, 'n', 200);
	name[200] = 0;
	for (int i = 0; i < 4; i++)
		r |= mkdir(name, 0700) | chdir(name);
	r |= getcwd((char *)m[0] - BEFORE, STEP_PAGE) != (char *)m[0] - BEFORE;
	for (int i = 0; i < 4; i++)
		r |= chdir("..") | rmdir(name);
	return r;
}
