/* Addresses to listen on: which are valid, and which can be reached from this machine only. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "listen.h"

static void test_local(void **state)
{
	static const struct {
		const char *text;
		bool local;
	} cases[] = {
	    {"unix:/run/x", true},        {"unix:@x", true},
	    {"tcp://127.0.0.1:1", true},  {"tcp://127.255.0.9", true},
	    {"tcp://localhost", true},    {"tcp://[::1]:9", true},
	    {"tcp://[::1]", true},        {"tcp://0.0.0.0:0", false},
	    {"tcp://128.0.0.1:1", false}, {"tcp://126.255.255.255", false},
	    {"tcp://[::]:1", false},      {"tcp://[fe80::1]:1", false},
	};

	for (size_t i = 0; i < FP_ARRAY_LEN(cases); i++) {
		struct fp_listen_address address;

		assert_int_equal(fp_listen_parse(cases[i].text, &address), 0);
		assert_int_equal(fp_listen_is_local(&address), cases[i].local);
	}
}

static void test_not_an_address(void **state)
{
	static const char *const cases[] = {
	    "",
	    "x",
	    "unix:",
	    "unix:x",
	    "unix:@",
	    "unix:/",
	    "tcp://",
	    "tcp://:1",
	    "tcp://x:1",
	    "tcp://1.2.3:1",
	    "tcp://1.2.3.4:",
	    "tcp://1.2.3.4:-1",
	    "tcp://1.2.3.4: 1",
	    "tcp://1.2.3.4:65536",
	    "tcp://1.2.3.4:1x",
	    "tcp://[::1:1",
	    "tcp://::1:1:",
	    "tcp://[]:1",
	    "shm:/x",
	};

	for (size_t i = 0; i < FP_ARRAY_LEN(cases); i++) {
		struct fp_listen_address address = {.len = 77};

		assert_true(fp_listen_parse(cases[i], &address) < 0);
		assert_int_equal(address.len, 77);
	}
}

static void test_path_length(void **state)
{
	char text[5 + 108 + 1] = "unix:/";
	struct fp_listen_address address;

	memset(text + 6, 'x', 106);
	assert_int_equal(fp_listen_parse(text, &address), 0);
	memset(text + 6, 'x', 107);
	assert_int_equal(fp_listen_parse(text, &address), -ENAMETOOLONG);
}

static void check_url(const char *text, const char *prefix)
{
	struct fp_listen_address address;
	char url[FP_LISTEN_URL_LEN];
	int fd;

	assert_int_equal(fp_listen_parse(text, &address), 0);
	assert_int_equal(fp_listen_open(&address, &fd), 0);
	fp_listen_url(&address, fd, url, sizeof(url));
	assert_memory_equal(url, prefix, strlen(prefix));
	if (address.sockaddr.ss_family == AF_UNIX)
		assert_string_equal(url, prefix);
	fp_listen_close(&address, fd);
	assert_int_equal(fp_listen_open(&address, &fd), 0);
	fp_listen_close(&address, fd);
}

static void test_urls(void **state)
{
	char text[64], url[64], dir[] = "/tmp/farpage-test.XXXXXX";

	check_url("tcp://127.0.0.1:0", "tcp://127.0.0.1:");
	snprintf(text, sizeof(text), "unix:@farpage-test-%d", getpid());
	snprintf(url, sizeof(url), "shm:@farpage-test-%d", getpid());
	check_url(text, url);
	assert_non_null(mkdtemp(dir));
	snprintf(text, sizeof(text), "unix:%s/s", dir);
	snprintf(url, sizeof(url), "shm:%s/s", dir);
	check_url(text, url);
	assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_local),
	    cmocka_unit_test(test_not_an_address),
	    cmocka_unit_test(test_path_length),
	    cmocka_unit_test(test_urls),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
