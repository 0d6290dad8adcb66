/* Locked memory: it is really locked, and it takes at most half of what the process may lock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <linux/capability.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockedmem.h"

#define LIMIT (1u << 20)
#define PIECE (64u << 10)

static size_t locked_bytes(void)
{
	FILE *status = fopen("/proc/self/status", "re");
	unsigned long kib = 0;
	char line[256];

	while (status && fgets(line, sizeof(line), status))
		if (sscanf(line, "VmLck: %lu kB", &kib) == 1)
			break;
	if (status)
		fclose(status);
	return (size_t)kib << 10;
}

/* Sanitizers replace mlock by a function that locks nothing. */
static bool does_mlock_lock(void)
{
	void *page = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool does;

	assert_ptr_not_equal(page, MAP_FAILED);
	assert_int_equal(mlock(page, PIECE), 0);
	does = locked_bytes() > 0;
	munmap(page, PIECE);
	return does;
}

/* Becomes an ordinary user with a low limit. */
static void become_limited(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2] = {{0}};
	const struct rlimit limit = {.rlim_cur = LIMIT, .rlim_max = LIMIT};

	if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || syscall(SYS_capset, &head, caps) < 0)
		_exit(10);
}

/* Runs in a child. Returns 0 if all is right, else the number of the failed check. */
static int check_limited(void)
{
	char *mine = mmap(NULL, LIMIT / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *first, *mem;

	become_limited();
	first = fp_lockedmem_new(PIECE);
	if (!first || locked_bytes() != PIECE)
		return 1;
	for (unsigned i = 0; i < 2 * LIMIT / PIECE; i++) {
		mem = i % 2 ? fp_lockedmem_lazy(PIECE) : fp_lockedmem_new(PIECE);
		if (!mem || mem[PIECE - 1])
			return 2;
		mem[0] = 1;
	}
	if (locked_bytes() != LIMIT / 2)
		return 3;
	if (mlock(mine, LIMIT / 2) < 0)
		return 4;
	munlock(mine, LIMIT / 2);
	fp_lockedmem_free(first, PIECE);
	return fp_lockedmem_new(PIECE) && locked_bytes() == LIMIT / 2 - PIECE ? 0 : 5;
}

static void test_limited(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	if (!does_mlock_lock())
		skip();
	pid = fork();
	if (pid == 0)
		_exit(check_limited());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_limited),
	};

	return cmocka_run_group_tests_name("lockedmem", tests, NULL, NULL);
}
