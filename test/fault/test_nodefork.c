/*
 * Children that are forked after the node has died for good. A child can't evict its pages beyond
 * the budget. All waits of a child together may last about one deadline, but not one deadline for
 * each page. Room: test/fault.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent_priv.h"
#include "clock.h"
#include "daemon.h"
#include "trial.h"

#define SKIP        77
#define DEADLINE_NS (4 * FP_NSEC_PER_SEC)
#define END_NS      (DEADLINE_NS + DEADLINE_NS / 2) /* on a busy machine a child may be so late */
#define TIMEOUT_S   100
#define LOCAL_PAGES 64u
#define PAGES       1024u
#define MORE        (1u << 19) /* number of pages: more than are reserved already */
#define CALLS       3u
#define SILENCE_S   20u        /* time that the resolver takes */
#define CHILDS      ((char)-1) /* the byte that a child writes */

static const char *farpaged;

struct scene {
	uint32_t written; /* pages that the parent wrote; the others were never touched */
	bool all;         /* the child must get all pages */
	struct test_daemon daemon;
	struct fp_agent *agent;
	char *far;
};

static char byte_of(uint32_t page)
{
	return (char)(page % 251 + 1);
}

static void begin(struct scene *s)
{
	const char *urls[] = {s->daemon.url};
	const struct fp_agent_options options = {
	    .urls = urls, .n_urls = 1, .local_bytes = LOCAL_PAGES * FP_PAGE_SIZE, .deadline_ns = DEADLINE_NS};
	void *far;

	trial_catch_signals();
	s->agent = trial_agent(&options);
	trial_check(fp_space_map(fp_agent_space(s->agent), PAGES * FP_PAGE_SIZE, 0, PROT_READ | PROT_WRITE, 0,
	                         &far) == 0,
	            "no mapping");
	s->far = far;
	for (uint32_t p = 0; p < s->written; p++)
		memset(s->far + (size_t)p * FP_PAGE_SIZE, byte_of(p), FP_PAGE_SIZE);
}

/* Writes page after page until one fails. Returns the number of pages written. */
static uint32_t write_pages(const struct scene *s)
{
	uint64_t ns;
	uint32_t n;

	for (n = 0; n < PAGES; n++) {
		char *addr = s->far + (size_t)n * FP_PAGE_SIZE, byte = 0;

		if (n < s->written && trial_read(addr, &byte, &ns) == 0)
			trial_check(byte == byte_of(n), "page %u reads %d", n, byte);
		if (trial_write(addr, CHILDS, &ns) == SIGBUS)
			break;
	}
	return n;
}

/*
 * Each of these calls asks the nodes for memory, or waits for the reclaim thread. None may wait for
 * the dead node any more.
 */
static void make_calls(const struct scene *s)
{
	struct fp_space *space = fp_agent_space(s->agent);
	void *far;

	for (unsigned i = 0; i < CALLS; i++) {
		trial_check(fp_space_map(space, (size_t)MORE * FP_PAGE_SIZE, 0, PROT_READ, 0, &far) < 0,
		            "map without a node");
		trial_check(fp_space_advise(space, s->far, PAGES * FP_PAGE_SIZE, MADV_PAGEOUT) == 0,
		            "pageout");
	}
}

static void check_time(uint64_t begun_ns, const char *what)
{
	uint64_t ns = fp_clock_ns() - begun_ns;

	trial_check(ns < END_NS, "%s: %d ms", what, (int)(ns / FP_NSEC_PER_MSEC));
}

static _Noreturn void be_child(const struct scene *s)
{
	uint64_t begun_ns = fp_clock_ns(), ns;
	uint32_t n = write_pages(s);
	char byte = 0;

	check_time(begun_ns, "what it wrote took long to end");
	trial_check(n == PAGES ? s->all : n >= LOCAL_PAGES / 2 && !s->all, "%u pages were written", n);
	begun_ns = fp_clock_ns();
	make_calls(s);
	check_time(begun_ns, "its calls took long");
	for (uint32_t p = 0; p < n; p++)
		trial_check(trial_read(s->far + (size_t)p * FP_PAGE_SIZE, &byte, &ns) == 0 && byte == CHILDS,
		            "page %u reads %d", p, byte);
	_exit(0);
}

static int body_forks(void *arg)
{
	struct scene *s = arg;
	int status;
	pid_t pid;

	begin(s);
	kill(s->daemon.pid, SIGKILL);
	fp_agent_fork_quiet(s->agent);
	fp_agent_fork_prepare(s->agent);
	pid = fork();
	if (pid == 0) {
		fp_agent_fork_child(s->agent);
		be_child(s);
	}
	fp_agent_fork_parent(s->agent);
	trial_check(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %x", status);
	return 0;
}

/* ---- a name that is looked up meanwhile ---- */

static _Atomic bool resolver_is_silent, resolver_is_asked;

/* Replaces the C library's function. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
	struct {
		struct addrinfo info;
		struct sockaddr_in address;
	} *answer = calloc(1, sizeof(*answer));

	resolver_is_asked = true;
	if (resolver_is_silent)
		sleep(SILENCE_S);
	answer->address.sin_family = AF_INET;
	inet_pton(AF_INET, node, &answer->address.sin_addr);
	answer->info = (struct addrinfo){.ai_family = AF_INET,
	                                 .ai_addrlen = sizeof(answer->address),
	                                 .ai_addr = (struct sockaddr *)&answer->address};
	*res = &answer->info;
	return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
	free(list);
}

static int body_forks_in_a_look_up(void *arg)
{
	struct scene *s = arg;
	uint64_t begun_ns;
	int status;
	pid_t pid;

	begin(s);
	kill(s->daemon.pid, SIGKILL);
	resolver_is_asked = false;
	resolver_is_silent = true;
	begun_ns = fp_clock_ns();
	while (!resolver_is_asked && fp_clock_ns() - begun_ns < TIMEOUT_S / 2 * FP_NSEC_PER_SEC)
		usleep(1000);
	trial_check(resolver_is_asked, "the name is not looked up again");
	begun_ns = fp_clock_ns();
	fp_agent_fork_quiet(s->agent);
	fp_agent_fork_prepare(s->agent);
	pid = fork();
	if (pid == 0) {
		fp_agent_fork_child(s->agent);
		_exit(0);
	}
	fp_agent_fork_parent(s->agent);
	check_time(begun_ns, "the fork waited for the resolver");
	trial_check(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %x", status);
	return 0;
}

static void run_body(int (*body)(void *), const char *scheme, struct scene *s, struct trial *trial)
{
	assert_int_equal(test_daemon_start(farpaged, scheme, 128u << 20, &s->daemon), 0);
	trial_run(body, s, TIMEOUT_S, trial);
	test_daemon_stop(&s->daemon);
	trial_assert_good(trial);
}

static void test_a_fork_waits_for_no_resolver(void **state)
{
	struct scene s = {.written = LOCAL_PAGES / 4};
	struct trial trial;

	run_body(body_forks_in_a_look_up, "tcp", &s, &trial);
}

static void run(const char *scheme, uint32_t written, bool all)
{
	struct scene s = {.written = written, .all = all};
	struct trial trial;

	run_body(body_forks, scheme, &s, &trial);
	assert_true(all || strstr(trial.text, "SIGBUS"));
}

static void test_fresh_pages_over_shm(void **state)
{
	run("shm", 0, false);
}

static void test_few_written_over_shm(void **state)
{
	run("shm", LOCAL_PAGES / 4, false);
}

/* Over shm the parent's pages are mapped in the child, which reads them there. */
static void test_all_written_over_shm(void **state)
{
	run("shm", PAGES, true);
}

static void test_fresh_pages_over_tcp(void **state)
{
	run("tcp", 0, false);
}

static void test_few_written_over_tcp(void **state)
{
	run("tcp", LOCAL_PAGES / 4, false);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_fresh_pages_over_shm), cmocka_unit_test(test_few_written_over_shm),
	    cmocka_unit_test(test_all_written_over_shm), cmocka_unit_test(test_fresh_pages_over_tcp),
	    cmocka_unit_test(test_few_written_over_tcp), cmocka_unit_test(test_a_fork_waits_for_no_resolver),
	};
	struct fp_agent_error error;

	if (argc < 2)
		return 2;
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	farpaged = argv[1];
	if (fp_agent_check_kernel(&error) < 0) {
		fprintf(stderr, "%s\n", error.text);
		return SKIP;
	}
	return cmocka_run_group_tests_name("nodefork", tests, NULL, NULL);
}
