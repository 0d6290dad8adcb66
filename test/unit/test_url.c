/*
 * URLs of nodes, good and bad.
 */
#include "transport.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"

static void accepted(void **state)
{
	static const struct {
		const char *text;
		const struct fp_transport *transport;
		const char *host;
		uint16_t port;
	} cases[] = {
	    {"shm:/run/farpage/node", &fp_transport_shm, "/run/farpage/node", 0},
	    {"shm:relative", &fp_transport_shm, "relative", 0},
	    {"shm:@abstract", &fp_transport_shm, "@abstract", 0},
	    {"shm:/with:colon", &fp_transport_shm, "/with:colon", 0},
	    {"tcp://mem1", &fp_transport_tcp, "mem1", 7460},
	    {"tcp://mem1.example.org:1", &fp_transport_tcp, "mem1.example.org", 1},
	    {"tcp://127.0.0.1:65535", &fp_transport_tcp, "127.0.0.1", 65535},
	    {"tcp://[::1]", &fp_transport_tcp, "::1", 7460},
	    {"tcp://[fe80::1]:80", &fp_transport_tcp, "fe80::1", 80},
	};

	for (size_t i = 0; i < FP_ARRAY_LEN(cases); i++) {
		struct fp_url url;

		assert_int_equal(fp_url_parse(cases[i].text, &url), 0);
		assert_ptr_equal(url.transport, cases[i].transport);
		assert_string_equal(url.text, cases[i].text);
		assert_string_equal(url.host, cases[i].host);
		assert_int_equal(url.port, cases[i].port);
	}
}

static void refused(void **state)
{
	static const struct {
		const char *text;
		int error;
	} cases[] = {
	    {"", -EINVAL},
	    {"mem1", -EINVAL},
	    {":/x", -EINVAL},
	    {"shm:", -EINVAL},
	    {"tcp:", -EINVAL},
	    {"tcp:mem1", -EINVAL},
	    {"tcp:/mem1", -EINVAL},
	    {"tcp://", -EINVAL},
	    {"tcp://:80", -EINVAL},
	    {"tcp://mem1:", -EINVAL},
	    {"tcp://mem1:0", -EINVAL},
	    {"tcp://mem1:65536", -EINVAL},
	    {"tcp://mem1:000080", -EINVAL},
	    {"tcp://mem1:-1", -EINVAL},
	    {"tcp://mem1:80x", -EINVAL},
	    {"tcp://mem1/", -EINVAL},
	    {"tcp://user@mem1", -EINVAL},
	    {"tcp://mem 1", -EINVAL},
	    {"tcp://::1", -EINVAL},
	    {"tcp://[::1", -EINVAL},
	    {"tcp://[]", -EINVAL},
	    {"tcp://[mem1]", -EINVAL},
	    {"tcp://[::1]80", -EINVAL},
	    {"TCP://mem1", -EINVAL},
	    {"tc://mem1", -EINVAL},
	    {"tcpx://mem1", -EINVAL},
	    {"http://mem1", -EINVAL},
	    {"automatic://mem1", -EINVAL},
	    {"tcp://mem1,mem2", -EINVAL}, /* fp_url_parse takes only one address */
	    {"auto://mem1", -EINVAL},
	};

	for (size_t i = 0; i < FP_ARRAY_LEN(cases); i++) {
		struct fp_url url, untouched;

		memset(&url, 0x5a, sizeof(url));
		untouched = url;
		assert_int_equal(fp_url_parse(cases[i].text, &url), cases[i].error);
		assert_memory_equal(&url, &untouched, sizeof(url));
	}
}

static void too_long(void **state)
{
	char text[200] = "shm:";
	struct fp_url url;

	memset(text + 4, 'x', 107);
	assert_int_equal(fp_url_parse(text, &url), 0);
	text[4 + 107] = 'x'; /* one byte more than a socket's path can have */
	assert_int_equal(fp_url_parse(text, &url), -ENAMETOOLONG);
	memset(text + 4, 'x', 190);
	assert_int_equal(fp_url_parse(text, &url), -ENAMETOOLONG);
}

static struct fp_url_set parse_set(const char *text)
{
	struct fp_url_set set;

	assert_int_equal(fp_url_parse_set(text, &set), 0);
	return set;
}

static void assert_way(const struct fp_url *url, const char *scheme, const char *host, uint16_t port)
{
	char text[200];

	assert_string_equal(url->transport->scheme, scheme);
	assert_string_equal(url->host, host);
	assert_int_equal(url->port, port);
	snprintf(text, sizeof(text), strchr(host, ':') ? "%s://[%s]" : "%s://%s", scheme, host);
	assert_memory_equal(url->text, text, strlen(text));
}

static void several_addresses(void **state)
{
	struct fp_url_set set = parse_set("tcp://mem1,[fe80::1],10.0.0.1:80");

	assert_int_equal(set.n_addresses, 3);
	assert_int_equal(set.n_transports, 1);
	assert_way(&set.urls[0][0], "tcp", "mem1", 80);
	assert_way(&set.urls[0][1], "tcp", "fe80::1", 80);
	assert_way(&set.urls[0][2], "tcp", "10.0.0.1", 80);
	assert_string_equal(set.urls[0][1].text, "tcp://[fe80::1]:80");
	set = parse_set("tcp://a,b");
	assert_way(&set.urls[0][1], "tcp", "b", 7460);
	assert_string_equal(set.urls[0][1].text, "tcp://b");
	set = parse_set("shm:/a,b:7"); /* a comma in a path separates nothing */
	assert_int_equal(set.n_addresses, 1);
	assert_string_equal(set.urls[0][0].host, "/a,b:7");
}

static void one_way_is_a_set_of_one(void **state)
{
	struct fp_url_set set = parse_set("tcp://mem1:7460");

	assert_int_equal(set.n_addresses * set.n_transports, 1);
	assert_string_equal(set.urls[0][0].text, "tcp://mem1:7460");
}

static void every_way_of_a_set_parses_alone(void **state)
{
	static const char *const texts[] = {"tcp://a,[::1]:1", "auto://a,b,[::2]", "auto://a:7460", "shm:/a"};

	for (size_t i = 0; i < FP_ARRAY_LEN(texts); i++) {
		struct fp_url_set set = parse_set(texts[i]);

		for (unsigned t = 0; t < set.n_transports; t++) {
			for (unsigned a = 0; a < set.n_addresses; a++) {
				struct fp_url url;

				assert_int_equal(fp_url_parse(set.urls[t][a].text, &url), 0);
				assert_memory_equal(&url, &set.urls[t][a], sizeof(url));
			}
		}
	}
}

/*
 * With the scheme auto, a client tries rdma first, on the next port, if the build has rdma. It ends
 * with tcp on the given port.
 */
static void automatic(void **state)
{
	struct fp_url url;
	bool has_rdma = fp_url_parse("rdma://mem1", &url) == 0;
	struct fp_url_set set = parse_set("auto://mem1,mem2:8000"), plain = parse_set("auto://mem1");

	assert_int_equal(set.n_addresses, 2);
	assert_int_equal(set.n_transports, 1 + has_rdma);
	assert_way(&set.urls[has_rdma][0], "tcp", "mem1", 8000);
	assert_way(&set.urls[has_rdma][1], "tcp", "mem2", 8000);
	assert_way(&plain.urls[has_rdma][0], "tcp", "mem1", 7460);
	if (has_rdma) {
		assert_way(&set.urls[0][1], "rdma", "mem2", 8001);
		assert_way(&plain.urls[0][0], "rdma", "mem1", 7461);
	}
}

static void sets_refused(void **state)
{
	static const struct {
		const char *text;
		int error;
	} cases[] = {
	    {"tcp://a,", -EINVAL},          {"tcp://,a", -EINVAL},
	    {"tcp://a,,b", -EINVAL},        {"tcp://a:1,b:2", -EINVAL},
	    {"tcp://a, b", -EINVAL},        {"auto:", -EINVAL},
	    {"auto:mem1", -EINVAL},         {"auto://", -EINVAL},
	    {"auto://mem1:65535", -EINVAL}, /* there is no next port for rdma */
	    {"aut://mem1", -EINVAL},        {"tcp://1,2,3,4,5,6,7,8,9", -E2BIG},
	};

	for (size_t i = 0; i < FP_ARRAY_LEN(cases); i++) {
		struct fp_url_set set, untouched;

		memset(&set, 0x5a, sizeof(set));
		untouched = set;
		assert_int_equal(fp_url_parse_set(cases[i].text, &set), cases[i].error);
		assert_memory_equal(&set, &untouched, sizeof(set));
	}
	parse_set("tcp://1,2,3,4,5,6,7,8");
}

static void long_sets(void **state)
{
	char text[1200] = "tcp://";
	struct fp_url_set set;

	for (unsigned i = 0; i < 5; i++) {
		memset(text + strlen(text), 'a' + (int)i, 90);
		strcat(text, i < 4 ? "," : ":65535");
	}
	assert_int_equal(fp_url_parse_set(text, &set), 0);
	assert_int_equal(strlen(set.urls[0][4].host), 90);
	memset(text + 6, 'x', 1000);
	assert_int_equal(fp_url_parse_set(text, &set), -ENAMETOOLONG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(accepted),
	    cmocka_unit_test(refused),
	    cmocka_unit_test(too_long),
	    cmocka_unit_test(several_addresses),
	    cmocka_unit_test(one_way_is_a_set_of_one),
	    cmocka_unit_test(every_way_of_a_set_parses_alone),
	    cmocka_unit_test(automatic),
	    cmocka_unit_test(sets_refused),
	    cmocka_unit_test(long_sets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
