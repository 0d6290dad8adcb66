/* See underpreload.h. */
#include "underpreload.h"

#include <glob.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "cleanup.h"

#define POOL_BYTES (512ull << 20)

void test_stats_use(const struct test_daemon *node)
{
	setenv("FARPAGE_RUNTIME_DIR", node->dir, 1);
}

void test_stats_remove(const struct test_daemon *node)
{
	char pattern[sizeof(node->dir) + 16];
	glob_t found = {0};

	snprintf(pattern, sizeof(pattern), "%s/*.stats*", node->dir);
	if (glob(pattern, 0, NULL, &found) == 0)
		for (size_t i = 0; i < found.gl_pathc; i++)
			unlink(found.gl_pathv[i]);
	globfree(&found);
}

static int run_again(char **argv)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 1;
	if (WIFSIGNALED(status))
		fprintf(stderr, "ended by signal %d\n", WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void set_environment(int argc, char **argv, const struct test_daemon *daemon)
{
	char local[16], secret[sizeof(daemon->dir) + 16];

	if (daemon->secret) {
		snprintf(secret, sizeof(secret), "%s/secret", daemon->dir);
		setenv("FARPAGE_SECRET_FILE", secret, 1);
	}
	snprintf(local, sizeof(local), "%u", TEST_LOCAL_BYTES);
	setenv("FARPAGE_LOCAL_MEMORY", local, 1);
	setenv("FARPAGE_NODES", daemon->url, 1);
	test_stats_use(daemon);
	for (int i = 4; i < argc; i++)
		putenv(argv[i]);
	setenv("LD_PRELOAD", argv[2], 1);
}

bool test_cannot_run(void)
{
	struct fp_agent_error error;

	if (getenv("FP_TEST_USER_ONLY") || fp_agent_check_kernel(&error) == 0)
		return false;
	printf("%s\n", error.text);
	return true;
}

int test_under_preload(int argc, char **argv, int (*tests)(void))
{
	struct test_daemon daemon;
	int status;

	if (getenv("LD_PRELOAD"))
		return tests();
	if (argc < 4) {
		fprintf(stderr, "usage: %s FARPAGED PRELOAD SCHEME [NAME=VALUE...]\n", argv[0]);
		return 2;
	}
	if (test_cannot_run())
		return TEST_SKIPPED;
	if (test_daemon_start(argv[1], argv[3], POOL_BYTES, &daemon) < 0) {
		fprintf(stderr, "the node did not start\n");
		return 1;
	}
	set_environment(argc, argv, &daemon);
	status = run_again(argv);
	test_stats_remove(&daemon);
	test_daemon_stop(&daemon);
	return status;
}

/* ---- the kernel's records of mappings ---- */

/* Calls visit for each mapping that has the flag, until visit returns true. */
static void each_flagged(const char *flag,
                         bool (*visit)(void *user, uintptr_t start, uintptr_t end, size_t resident_bytes),
                         void *user)
{
	fp_autofclose FILE *smaps = fopen("/proc/self/smaps", "re");
	uintptr_t start = 0, end = 0, low, high;
	size_t rss_kib = 0;
	char line[512], rwxp[5];

	while (smaps && fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &low, &high, rwxp) == 3) {
			start = low;
			end = high;
		}
		sscanf(line, "Rss: %zu kB", &rss_kib);
		if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, flag) &&
		    visit(user, start, end, rss_kib << 10))
			return;
	}
}

struct search {
	uintptr_t addr;
	bool found;
};

static bool visit_search(void *user, uintptr_t start, uintptr_t end, size_t resident_bytes)
{
	struct search *search = user;

	search->found = search->addr >= start && search->addr < end;
	return search->found;
}

bool test_is_far(const void *addr)
{
	struct search search = {.addr = (uintptr_t)addr};

	each_flagged(" um", visit_search, &search);
	return search.found;
}

bool test_is_native(const void *addr)
{
	struct search search = {.addr = (uintptr_t)addr};

	each_flagged(" uw", visit_search, &search);
	return search.found && !test_is_far(addr);
}

static bool visit_sum(void *user, uintptr_t start, uintptr_t end, size_t resident_bytes)
{
	*(size_t *)user += resident_bytes;
	return false;
}

size_t test_far_resident_bytes(void)
{
	size_t bytes = 0;

	each_flagged(" um", visit_sum, &bytes);
	return bytes;
}

/* ---- bytes ---- */

static uint64_t word(size_t i, unsigned seed)
{
	return ((uint64_t)seed << 32 | 1) * 0x9e3779b97f4a7c15ull + i * 0xbf58476d1ce4e5b9ull;
}

void test_fill(void *mem, size_t len, unsigned seed)
{
	uint64_t *words = mem;

	for (size_t i = 0; i < len / sizeof(*words); i++)
		words[i] = word(i, seed);
}

bool test_is_filled(const void *mem, size_t len, unsigned seed)
{
	const uint64_t *words = mem;

	for (size_t i = 0; i < len / sizeof(*words); i++)
		if (words[i] != word(i, seed))
			return false;
	return true;
}
