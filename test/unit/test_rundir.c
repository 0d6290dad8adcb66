/* The folder for statistics and sockets: where it is, and which of several is used. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "rundir.h"

static char base[] = "/tmp/farpage-unit-XXXXXX", place[64], buf[128];

static int make_base(void **state)
{
	clearenv();
	strcpy(base + strlen(base) - 6, "XXXXXX");
	if (!mkdtemp(base))
		return -1;
	snprintf(place, sizeof(place), "%s/run", base);
	return setenv("FARPAGE_RUNTIME_DIR", place, 1);
}

static int remove_base(void **state)
{
	remove(place);
	return rmdir(base);
}

static const char *path(void)
{
	return fp_rundir_path(buf, sizeof(buf)) == 0 ? buf : NULL;
}

static void it_follows_the_environment(void **state)
{
	setenv("FARPAGE_RUNTIME_DIR", "/somewhere", 1);
	setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
	setenv("XDG_CACHE_HOME", "/cache", 1);
	setenv("HOME", "/home/me", 1);
	assert_string_equal(path(), "/somewhere");
	setenv("FARPAGE_RUNTIME_DIR", "//./", 1);
	assert_string_equal(path(), "/");
	setenv("FARPAGE_RUNTIME_DIR", "/somewhere", 1);
	assert_int_equal(fp_rundir_path(buf, strlen("/somewhere")), -ENAMETOOLONG);
	setenv("FARPAGE_RUNTIME_DIR", "", 1);
	if (geteuid() == 0) {
		assert_string_equal(path(), "/run/farpage");
		assert_int_equal(seteuid(65534), 0);
	}
	assert_string_equal(path(), "/run/user/7/farpage");
	unsetenv("XDG_RUNTIME_DIR");
	assert_string_equal(path(), "/cache/farpage");
	unsetenv("XDG_CACHE_HOME");
	assert_string_equal(path(), "/home/me/.cache/farpage");
	unsetenv("HOME");
	assert_int_equal(fp_rundir_path(buf, sizeof(buf)), -ENOENT);
	if (getuid() == 0)
		assert_int_equal(seteuid(0), 0);
}

static void it_is_made(void **state)
{
	struct stat st;

	assert_int_equal(fp_rundir_make(buf, sizeof(buf)), 0);
	assert_string_equal(buf, place);
	assert_int_equal(stat(place, &st), 0);
	assert_int_equal(st.st_mode, S_IFDIR | 0700);
	assert_int_equal(fp_rundir_make(buf, sizeof(buf)), 0);
}

static void its_parent_is_made(void **state)
{
	char inner[80], deep[96];

	snprintf(inner, sizeof(inner), "%s/farpage", place);
	setenv("FARPAGE_RUNTIME_DIR", inner, 1);
	assert_int_equal(fp_rundir_make(buf, sizeof(buf)), 0);
	assert_int_equal(rmdir(inner), 0);
	assert_int_equal(rmdir(place), 0);
	snprintf(deep, sizeof(deep), "%s/more", inner);
	setenv("FARPAGE_RUNTIME_DIR", deep, 1);
	assert_int_equal(fp_rundir_make(buf, sizeof(buf)), -ENOENT);
}

static void one_of_others_does_not_count(void **state)
{
	assert_int_equal(mkdir(place, 0700), 0);
	for (mode_t right = 01; right <= 040; right <<= 1) {
		assert_int_equal(chmod(place, 0700 | right), 0);
		assert_int_equal(fp_rundir_make(buf, sizeof(buf)), -EPERM);
		assert_string_equal(buf, place);
	}
	assert_int_equal(chmod(place, 0700), 0);
	if (geteuid() == 0) {
		assert_int_equal(chown(place, 65534, 65534), 0);
		assert_int_equal(fp_rundir_openat(AT_FDCWD, place), -EPERM);
	}
}

static void a_link_or_a_file_does_not_count(void **state)
{
	static const char *const tails[] = {"/", "//", "/.", "/././/"};
	fp_autoclose int base_fd = open(base, O_RDONLY | O_DIRECTORY), fd = -1;
	char tailed[80];

	assert_int_equal(symlink(base, place), 0);
	assert_int_equal(fp_rundir_make(buf, sizeof(buf)), -ENOTDIR);
	assert_int_equal(fp_rundir_openat(base_fd, "run"), -ENOTDIR);
	for (unsigned i = 0; i < FP_ARRAY_LEN(tails); i++) {
		snprintf(tailed, sizeof(tailed), "%s%s", place, tails[i]);
		setenv("FARPAGE_RUNTIME_DIR", tailed, 1);
		assert_int_equal(fp_rundir_make(buf, sizeof(buf)), -ENOTDIR);
		assert_string_equal(buf, place);
	}
	assert_int_equal(unlink(place), 0);
	fd = open(place, O_CREAT | O_WRONLY, 0600);
	assert_int_equal(fp_rundir_openat(base_fd, "run"), -ENOTDIR);
	assert_int_equal(fp_rundir_openat(base_fd, "absent"), -ENOENT);
}

#define base_test(f) cmocka_unit_test_setup_teardown(f, make_base, remove_base)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    base_test(it_follows_the_environment),
	    base_test(it_is_made),
	    base_test(its_parent_is_made),
	    base_test(one_of_others_does_not_count),
	    base_test(a_link_or_a_file_does_not_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
