/*
 * Host memory: reads files as kernels write them, for both versions of cgroups, and computes the
 * available memory from them.
 */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "cleanup.h"
#include "hostmem.h"

#define MIB (1ull << 20)

#define STAT_V1                                                                                              \
	"cache 1\nrss 2\ninactive_file 8388608\ntotal_inactive_anon 7\ntotal_inactive_file 4194304\n"        \
	"total_active_file 2097152\n"
#define STAT_V2 "anon 1\nfile 8388608\ninactive_file 4194304\nactive_file 2097152\nunevictable 0\n"

static char root[] = "/tmp/farpage-unit-XXXXXX";

static int make_root(void **state)
{
	strcpy(root + strlen(root) - 6, "XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static int remove_root(void **state)
{
	return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Writes a file below root, and makes its folders. */
static void put(const char *path, const char *text)
{
	fp_autofclose FILE *f = NULL;
	char full[256];

	snprintf(full, sizeof(full), "%s/%s", root, path);
	for (char *slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(full, 0700);
		*slash = '/';
	}
	f = fopen(full, "we");
	assert_non_null(f);
	fputs(text, f);
}

/*
 * The bytes that the node may offer: without those that it needs for itself, and a sixteenth of all
 * for its clients.
 */
static uint64_t offered(uint64_t bytes, uint64_t total_bytes)
{
	bytes -= 16 * MIB + total_bytes / 16;
	return bytes - bytes / 256;
}

static void expect(uint64_t bytes, const char *bound)
{
	struct fp_hostmem host;

	fp_hostmem_read(root, &host);
	assert_int_equal(host.available_bytes, bytes);
	if (!strstr(host.bound, bound))
		fail_msg("'%s' does not name '%s'", host.bound, bound);
}

static void put_machine(void)
{
	put("proc/meminfo",
	    "MemTotal:       2097152 kB\nMemFree:          10240 kB\nMemAvailable:   1048576 kB\n"
	    "SwapTotal:        65536 kB\nSwapFree:          32768 kB\n");
}

static void test_nothing_is_known(void **state)
{
	expect(UINT64_MAX, "nothing");
}

static void test_machine(void **state)
{
	put_machine();
	expect(offered(1056 * MIB, 2048 * MIB), "/proc/meminfo");
}

static void test_v1(void **state)
{
	put_machine();
	put("proc/self/cgroup", "9:name=systemd:/x\n4:memory:/a/b\n1:cpu:/y\n0::/\n");
	put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("sys/fs/cgroup/memory/memory.usage_in_bytes", "9999999999\n");
	put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
	expect(offered(1056 * MIB, 2048 * MIB), "/proc/meminfo");
	/* the parent group has a limit; its usage includes page cache */
	put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "268435456\n");
	put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "134217728\n");
	put("sys/fs/cgroup/memory/a/memory.stat", STAT_V1);
	expect(offered(134 * MIB, 256 * MIB), "memory/a/memory.limit_in_bytes is 256.0 MiB");
	/* the limit of the group itself leaves less */
	put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "67108864\n");
	put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1048576\n");
	expect(offered(63 * MIB, 64 * MIB), "memory/a/b/memory.limit_in_bytes is 64.0 MiB");
	/* the limit is below the present usage */
	put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4194304\n");
	expect(0, "memory/a/memory.limit_in_bytes");
}

static void test_v2(void **state)
{
	put_machine();
	put("proc/self/cgroup", "0::/system.slice/farpaged.service\n");
	put("sys/fs/cgroup/system.slice/farpaged.service/memory.max", "max\n");
	put("sys/fs/cgroup/system.slice/farpaged.service/memory.current", "1048576\n");
	expect(offered(1056 * MIB, 2048 * MIB), "/proc/meminfo");
	put("sys/fs/cgroup/system.slice/farpaged.service/memory.max", "268435456\n");
	put("sys/fs/cgroup/system.slice/farpaged.service/memory.stat", STAT_V2);
	expect(offered(256 * MIB, 256 * MIB), "farpaged.service/memory.max is 256.0 MiB");
	put("sys/fs/cgroup/system.slice/memory.max", "134217728\n");
	put("sys/fs/cgroup/system.slice/memory.current", "67108864\n");
	expect(offered(64 * MIB, 128 * MIB), "system.slice/memory.max is 128.0 MiB");
}

/* A container may see its own group at the top of the mount, under any path. */
static void test_container(void **state)
{
	put_machine();
	put("sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n");
	put("sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
	put("proc/self/cgroup", "4:memory:/docker/c0ffee\n");
	expect(offered(128 * MIB, 128 * MIB), "memory/memory.limit_in_bytes");
	put("proc/self/cgroup", "4:memory:/docker/c0ffee/sub\n");
	expect(offered(128 * MIB, 128 * MIB), "memory/memory.limit_in_bytes");
	put("proc/self/cgroup", "4:memory:/docker/c0ffeeee\n");
	expect(offered(128 * MIB, 128 * MIB), "memory/memory.limit_in_bytes");
}

static void test_this_machine(void **state)
{
	struct fp_hostmem host;

	fp_hostmem_read("", &host);
	assert_true(host.available_bytes > 0 && host.available_bytes < 1ull << 50);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_nothing_is_known, make_root, remove_root),
	    cmocka_unit_test_setup_teardown(test_machine, make_root, remove_root),
	    cmocka_unit_test_setup_teardown(test_v1, make_root, remove_root),
	    cmocka_unit_test_setup_teardown(test_v2, make_root, remove_root),
	    cmocka_unit_test_setup_teardown(test_container, make_root, remove_root),
	    cmocka_unit_test(test_this_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
