/*
 * The configuration reader: the values that it stores, the mistakes that it refuses, and its
 * messages. No file makes it fail in any other way.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "testrng.h"
#include "yamlconf.h"

struct pool {
	char *name;
	uint64_t size;
	int kind;
};

struct conf {
	bool verbose;
	uint64_t port, quota, deadline;
	char *secret;
	struct fp_conf_strings listen;
	struct {
		bool on;
		struct {
			uint64_t depth;
		} inner;
	} limits;
	struct pool *pools;
	size_t n_pools;
};

static void *add_pool(void *enclosing)
{
	struct conf *conf = enclosing;
	struct pool *pools = reallocarray(conf->pools, conf->n_pools + 1, sizeof(*pools));

	if (!pools)
		return NULL;
	conf->pools = pools;
	pools[conf->n_pools] = (struct pool){.kind = 1};
	return &pools[conf->n_pools++];
}

static const char *const kinds[] = {"anonymous", "hugetlb", "memfd", NULL};

static const struct fp_conf_field pool_fields[] = {
    {.key = "name", .type = FP_CONF_STRING, .offset = offsetof(struct pool, name), .required = true},
    {.key = "size",
     .type = FP_CONF_SIZE,
     .offset = offsetof(struct pool, size),
     .min = 4096,
     .max = 1ull << 40},
    {.key = "kind", .type = FP_CONF_ENUM, .offset = offsetof(struct pool, kind), .choices = kinds},
    {0},
};

static const struct fp_conf_field inner_fields[] = {
    {.key = "depth",
     .type = FP_CONF_U64,
     .offset = offsetof(struct conf, limits.inner.depth) - offsetof(struct conf, limits.inner)},
    {0},
};

static const struct fp_conf_field limits_fields[] = {
    {.key = "on", .type = FP_CONF_BOOL, .offset = 0},
    {.key = "inner",
     .type = FP_CONF_MAP,
     .offset = offsetof(struct conf, limits.inner) - offsetof(struct conf, limits),
     .fields = inner_fields},
    {0},
};

static const struct fp_conf_field fields[] = {
    {.key = "verbose", .type = FP_CONF_BOOL, .offset = offsetof(struct conf, verbose)},
    {.key = "port", .type = FP_CONF_U64, .offset = offsetof(struct conf, port), .min = 1, .max = 65535},
    {.key = "quota", .type = FP_CONF_SIZE, .offset = offsetof(struct conf, quota), .min = 1 << 20},
    {.key = "deadline",
     .type = FP_CONF_TIME,
     .offset = offsetof(struct conf, deadline),
     .min = 100000000,
     .max = 60000000000},
    {.key = "secret", .type = FP_CONF_STRING, .offset = offsetof(struct conf, secret)},
    {.key = "listen", .type = FP_CONF_STRINGS, .offset = offsetof(struct conf, listen)},
    {.key = "limits", .type = FP_CONF_MAP, .offset = offsetof(struct conf, limits), .fields = limits_fields},
    {.key = "pools", .type = FP_CONF_LIST, .fields = pool_fields, .item = add_pool},
    {0},
};

static const char good[] = "# a node\n"
                           "verbose: true\n"
                           "port: 7480\n"
                           "quota: 1.5G\n"
                           "deadline: 200ms\n"
                           "secret: \"a \\u20ac: b\"\n"
                           "listen: [tcp://127.0.0.1, 'unix:/run/x']\n"
                           "limits:\n"
                           "  on: true\n"
                           "  inner: {depth: 18446744073709551615}\n"
                           "pools:\n"
                           "  - name: one\n"
                           "    size: 64M\n"
                           "    kind: memfd\n"
                           "  - {name: two}\n";

static void conf_done(struct conf *conf)
{
	for (size_t i = 0; i < conf->n_pools; i++)
		free(conf->pools[i].name);
	free(conf->pools);
	free(conf->secret);
	fp_conf_strings_done(&conf->listen);
}

static struct fp_conf_places places; /* of the last file that was read */

/*
 * Reads len bytes from a file without a name. *ret_message is the error text that follows the
 * file's path.
 */
static int read_bytes(const struct fp_conf_field *table, const void *bytes, size_t len, struct conf *conf,
                      const char **ret_message)
{
	static struct fp_conf_error error;
	fp_autoclose int fd = memfd_create("conf", MFD_CLOEXEC);
	char path[32];
	int r;

	assert_int_equal(write(fd, bytes, len), len);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	memset(error.text, 'x', sizeof(error.text));
	fp_conf_places_done(&places);
	r = fp_conf_read(path, table, conf, &places, &error);
	assert_non_null(memchr(error.text, '\0', sizeof(error.text)));
	if (r == 0)
		assert_string_equal(error.text, "");
	else
		assert_memory_equal(error.text, path, strlen(path));
	*ret_message = r == 0 ? "" : error.text + strlen(path) + 1;
	return r;
}

static int read_text(const char *text, struct conf *conf, const char **ret_message)
{
	return read_bytes(fields, text, strlen(text), conf, ret_message);
}

static void check_good(const char *text)
{
	struct conf conf = {0};
	const char *message;

	if (read_text(text, &conf, &message) != 0)
		fail_msg("refused: %s\n%s", message, text);
	conf_done(&conf);
}

/* Checks the whole message: position, path and permitted values. */
static void check_bad(const char *text, const char *expected)
{
	struct conf conf = {0};
	const char *message;

	assert_int_equal(read_text(text, &conf, &message), -EINVAL);
	if (strcmp(message, expected) != 0)
		fail_msg("\n%s\n--> %s\nexpected: %s", text, message, expected);
	conf_done(&conf);
}

static void a_whole_file_is_read(void **state)
{
	struct conf conf = {.secret = strdup("of before")};
	const char *message;

	assert_int_equal(read_text(good, &conf, &message), 0);
	assert_true(conf.verbose);
	assert_int_equal(conf.port, 7480);
	assert_int_equal(conf.quota, 1610612736);
	assert_int_equal(conf.deadline, 200000000);
	assert_string_equal(conf.secret, "a €: b");
	assert_int_equal(conf.listen.n, 2);
	assert_string_equal(conf.listen.items[0], "tcp://127.0.0.1");
	assert_string_equal(conf.listen.items[1], "unix:/run/x");
	assert_true(conf.limits.on);
	assert_int_equal(conf.limits.inner.depth, UINT64_MAX);
	assert_int_equal(conf.n_pools, 2);
	assert_string_equal(conf.pools[0].name, "one");
	assert_int_equal(conf.pools[0].size, 64 << 20);
	assert_int_equal(conf.pools[0].kind, 2);
	assert_string_equal(conf.pools[1].name, "two");
	assert_int_equal(conf.pools[1].kind, 1);
	conf_done(&conf);
}

static void absent_keys_leave_defaults(void **state)
{
	struct conf conf = {
	    .port = 9, .deadline = 8, .secret = strdup("kept"), .limits = {.on = true, .inner = {7}}};
	const char *message;

	assert_int_equal(read_text("limits: {}\npools: []\nverbose: false\n", &conf, &message), 0);
	assert_int_equal(conf.port, 9);
	assert_int_equal(conf.deadline, 8);
	assert_string_equal(conf.secret, "kept");
	assert_true(conf.limits.on);
	assert_int_equal(conf.limits.inner.depth, 7);
	conf_done(&conf);
}

static void lists_of_texts_replace_defaults(void **state)
{
	struct conf conf = {0};
	const char *message;

	assert_int_equal(read_text("listen: [a, b]", &conf, &message), 0);
	assert_int_equal(read_text("listen: c", &conf, &message), 0);
	assert_int_equal(conf.listen.n, 1);
	assert_string_equal(conf.listen.items[0], "c");
	assert_int_equal(read_text("listen: []", &conf, &message), 0);
	assert_int_equal(conf.listen.n, 0);
	conf_done(&conf);
}

/* The item() callback can tell an empty mapping from an absent one. */
static void a_mapping_tells_that_it_is_there(void **state)
{
	static const struct fp_conf_field none[] = {{0}};
	static const struct fp_conf_field one[] = {
	    {.key = "pool", .type = FP_CONF_MAP, .fields = none, .item = add_pool},
	    {0},
	};
	struct conf conf = {0};
	const char *message;

	assert_int_equal(read_bytes(one, "", 0, &conf, &message), 0);
	assert_int_equal(conf.n_pools, 0);
	assert_int_equal(read_bytes(one, "pool: {}", 8, &conf, &message), 0);
	assert_int_equal(conf.n_pools, 1);
	conf_done(&conf);
}

static void other_good_forms_are_read(void **state)
{
	static const char *const texts[] = {
	    "",
	    "\n",
	    "# nothing\n",
	    "---\n",
	    "---\n...\n",
	    "%YAML 1.1\n---\nport: 1\n",
	    "{}",
	    "null",
	    "~",
	    "{port: 1, limits: {on: false}}",
	    "\xEF\xBB\xBFport: 1",
	    "port: 1\r\nverbose: true\r\n",
	    "quota: \"1M\"",
	    "deadline: 5",
	    "secret: ''",
	    "secret: 'null'",
	    "secret: 12",
	    "secret: |\n  a\n  b\n",
	    "port: 0001",
	    "\"port\": 1",
	    "? port\n: 1\n",
	    "listen:\n- a\n- b\n",
	};

	for (unsigned i = 0; i < FP_ARRAY_LEN(texts); i++)
		check_good(texts[i]);
}

static void unknown_keys_list_the_allowed(void **state)
{
	check_bad("verbose: true\nprot: 1\n",
	          "2:1: unknown key 'prot'; allowed here: verbose, port, quota, deadline, "
	          "secret, listen, limits, pools");
	check_bad("pools:\n  - name: a\n    siez: 1M\n",
	          "3:5: pools[0]: unknown key 'siez'; allowed here: name, size, kind");
	check_bad("limits: {inner: {deep: 1}}",
	          "1:18: limits.inner: unknown key 'deep'; allowed here: depth");
	check_bad("limits: {Inner: {}}", "1:10: limits: unknown key 'Inner'; allowed here: on, inner");
	check_bad("limits: {<<: {on: true}}", "1:10: limits: unknown key '<<'; allowed here: on, inner");
	check_bad("limits: {\"a\\nb\": 1}", "1:10: limits: unknown key 'a?b'; allowed here: on, inner");
	check_bad("limits: {'': 1}", "1:10: limits: unknown key ''; allowed here: on, inner");
}

static void keys_come_once(void **state)
{
	check_bad("port: 1\nquota: 1G\nport: 2\n", "3:1: port: is given twice");
	check_bad("pools: [{name: a}, {name: b, name: c}]", "1:30: pools[1].name: is given twice");
}

static void types_are_checked(void **state)
{
	check_bad("verbose: 1", "1:10: verbose: must be true or false, not '1'");
	check_bad("verbose: 'true'", "1:10: verbose: must be true or false, not 'true'");
	check_bad("verbose: True", "1:10: verbose: must be true or false, not 'True'");
	check_bad("port: seven", "1:7: port: must be a whole number, not 'seven'");
	check_bad("port: '7'", "1:7: port: must be a whole number, not '7'");
	check_bad("port: -1", "1:7: port: must be a whole number, not '-1'");
	check_bad("port: 1.5", "1:7: port: must be a whole number, not '1.5'");
	check_bad("port: 0x10", "1:7: port: must be a whole number, not '0x10'");
	check_bad("port:\n  - 1\n", "2:3: port: must be a whole number, not a list");
	check_bad("port: {}", "1:7: port: must be a whole number, not a mapping");
	check_bad("port:\nverbose: true\n", "1:6: port: must be a whole number, not empty");
	check_bad("port: ~", "1:7: port: must be a whole number, not empty");
	check_bad("quota: big", "1:8: quota: must be a size such as 512M or 1.5G, not 'big'");
	check_bad("deadline: 5 weeks", "1:11: deadline: must be a time such as 5s or 200ms, not '5 weeks'");
	check_bad("secret: [a]", "1:9: secret: must be text, not a list");
	check_bad("secret: null", "1:9: secret: must be text, not empty");
	check_bad("listen: {a: b}", "1:9: listen: must be text or a list of texts, not a mapping");
	check_bad("listen:", "1:8: listen: must be text or a list of texts, not empty");
	check_bad("listen: [a, [b]]", "1:13: listen[1]: must be text");
	check_bad("listen: [a, ~]", "1:13: listen[1]: must be text");
	check_bad("limits: on", "1:9: limits: must be a mapping (key: value), not 'on'");
	check_bad("limits:", "1:8: limits: must be a mapping (key: value), not empty");
	check_bad("pools: {name: a}", "1:8: pools: must be a list of mappings (- key: value), not a mapping");
	check_bad("pools: [a]", "1:9: pools[0]: must be a mapping (key: value), not 'a'");
	check_bad("pools:\n- name: a\n  kind: disk\n",
	          "3:9: pools[0].kind: must be one of anonymous, hugetlb, memfd, not 'disk'");
	check_bad("pools: [{kind: [memfd]}]",
	          "1:16: pools[0].kind: must be one of anonymous, hugetlb, memfd, not a list");
	check_bad("- a\n- b\n", "1:1: must be a mapping (key: value), not a list");
	check_bad("text", "1:1: must be a mapping (key: value), not 'text'");
	check_bad("[a]: b", "1:1: a key must be a word, not a list or a mapping");
}

static void ranges_are_named(void **state)
{
	check_bad("port: 0", "1:7: port: must be within 1..65535, not 0");
	check_bad("port: 65536", "1:7: port: must be within 1..65535, not 65536");
	check_bad("port: 18446744073709551616",
	          "1:7: port: must be within 1..65535, not 18446744073709551616");
	check_bad("quota: 0", "1:8: quota: must be at least 1.0 MiB, not 0");
	check_bad("quota: 99999999T", "1:8: quota: must be within 1.0 MiB..16.0 EiB, not 99999999T");
	check_bad("deadline: 1ms", "1:11: deadline: must be within 100 ms..60.0 s, not 1ms");
	check_bad("pools: [{size: 2T}]", "1:16: pools[0].size: must be within 4.0 KiB..1.0 TiB, not 2T");
	check_good("pools: [{name: a, size: 4K}, {name: b, size: 1T}]");
	check_good("{port: 65535, deadline: 0.1s}");
}

static void required_keys_are_missed(void **state)
{
	static const struct fp_conf_field one[] = {
	    {.key = "name",
	     .type = FP_CONF_STRING,
	     .offset = offsetof(struct conf, secret),
	     .required = true},
	    {0},
	};
	static const char *const empties[] = {"", "---\n", "{}", "# only a comment"};
	struct conf conf = {0};
	const char *message;

	check_bad("pools:\n  - name: a\n  - size: 1M\n", "3:5: pools[1]: key 'name' is missing");
	for (unsigned i = 0; i < FP_ARRAY_LEN(empties); i++) {
		assert_int_equal(read_bytes(one, empties[i], strlen(empties[i]), &conf, &message), -EINVAL);
		assert_non_null(strstr(message, ": key 'name' is missing"));
	}
}

static void what_we_do_not_need_is_refused(void **state)
{
	check_bad("secret: &a b\nlisten: *a\n", "1:9: secret: anchors, aliases and tags are not allowed");
	check_bad("listen: *a\n", "1:9: listen: anchors, aliases and tags are not allowed");
	check_bad("listen: &a [b]", "1:9: listen: anchors, aliases and tags are not allowed");
	check_bad("limits: &a {}", "1:9: limits: anchors, aliases and tags are not allowed");
	check_bad("port: !!int \"1\"", "1:7: port: anchors, aliases and tags are not allowed");
	check_bad("limits: !!map {}", "1:9: limits: anchors, aliases and tags are not allowed");
	check_bad("listen: !x [b]", "1:9: listen: anchors, aliases and tags are not allowed");
	check_bad("&a port: 1", "1:1: anchors, aliases and tags are not allowed");
	check_bad("port: 1\n---\nport: 2\n", "2:1: a second document is not allowed");
	check_bad("---\n---\nport: 2\n", "2:1: a second document is not allowed");
	check_bad("secret: \"a\\0b\"", "1:9: secret: must not hold a NUL character");
	check_bad("\"port\\0\": 1", "1:1: must not hold a NUL character");
}

static void broken_yaml_is_placed(void **state)
{
	check_bad("port: 1\nlisten: [a\nverbose: true\n",
	          "3:8: not valid YAML: did not find expected ',' or ']'");
	check_bad("port: 1\n\tverbose: true\n",
	          "2:1: not valid YAML: found a tab character that violates indentation");
	check_bad("port: 1\nsecret: \"a", "2:11: not valid YAML: found unexpected end of stream");
	check_bad("port: 1\n  quota: 1G\n", "1:7: port: must be a whole number, not '1 quota'");
	check_bad("secret: a: b\n", "1:10: not valid YAML: mapping values are not allowed in this context");
	check_bad("port: 1\nsecret: a\xff\n", "2:10: not valid YAML: invalid leading UTF-8 octet");
	check_bad("port: 1\nsecret: a\x01\n", "2:10: not valid YAML: control characters are not allowed");
}

static void what_cannot_be_read_is_said(void **state)
{
	struct fp_conf_error error;
	struct conf conf = {0};

	assert_int_equal(fp_conf_read("/tmp", fields, &conf, NULL, &error), -EISDIR);
	assert_string_equal(error.text, "/tmp: Is a directory");
	assert_int_equal(fp_conf_read("/nonexistent/a.yaml", fields, &conf, NULL, &error), -ENOENT);
	assert_string_equal(error.text, "/nonexistent/a.yaml: No such file or directory");
}

static void huge_and_deep_files_end_soon(void **state)
{
	static char text[(1 << 20) + 1];
	struct conf conf = {0};
	const char *message;

	memset(text, '#', sizeof(text));
	assert_int_equal(read_bytes(fields, text, sizeof(text), &conf, &message), -EFBIG);
	assert_string_equal(message, " File too large");
	assert_int_equal(read_bytes(fields, text, sizeof(text) - 1, &conf, &message), 0);
	for (const char *opening = "[{-?\"'|&*!%"; *opening; opening++) {
		memset(text, *opening, sizeof(text));
		assert_int_equal(read_bytes(fields, text, sizeof(text) - 1, &conf, &message), -EINVAL);
	}
	for (size_t i = 0; i + 1 < sizeof(text); i += 2)
		memcpy(text + i, "- ", 2);
	assert_int_equal(read_bytes(fields, text, sizeof(text) - 1, &conf, &message), -EINVAL);
	conf_done(&conf);
}

/* Messages with texts of any length fit the buffer and stay one line. */
static void long_texts_are_cut(void **state)
{
	char text[2000];
	struct conf conf = {0};
	const char *message;

	memset(text, 'k', sizeof(text));
	assert_int_equal(read_bytes(fields, text, sizeof(text), &conf, &message), -EINVAL);
	assert_true(strlen(message) < 200);
	memcpy(text, "port: \"", 7);
	memset(text + 7, '\n', sizeof(text) - 7);
	text[sizeof(text) - 1] = '"';
	assert_int_equal(read_bytes(fields, text, sizeof(text), &conf, &message), -EINVAL);
	assert_null(strchr(message, '\n'));
}

static void read_any(const char *bytes, size_t len)
{
	struct conf conf = {0};
	const char *message;
	int r = read_bytes(fields, bytes, len, &conf, &message);

	assert_true(r == 0 || (r == -EINVAL && strlen(message) > 4));
	conf_done(&conf);
}

static void every_prefix_ends_well(void **state)
{
	for (size_t len = 0; len < sizeof(good); len++)
		read_any(good, len);
}

static void random_bytes_end_well(void **state)
{
	static const char special[] = "\n\t \"'[]{}:,-?&*!|>%#~\\\xff\x80";
	uint64_t rng = test_seed(__func__);
	char text[sizeof(good)];

	for (unsigned i = 0; i < 5000; i++) {
		memcpy(text, good, sizeof(good));
		for (uint64_t n = 1 + test_random(&rng) % 4; n > 0; n--) {
			size_t at = test_random(&rng) % (sizeof(good) - 1);
			bool any = test_random(&rng) % 2;

			text[at] =
			    any ? (char)test_random(&rng) : special[test_random(&rng) % sizeof(special)];
		}
		read_any(text, sizeof(good) - 1);
	}
}

/*
 * The place of a value, for a check after the reading. Without one, it is the place of what
 * encloses the value.
 */
static void places_of_values(void **state)
{
	static const struct {
		const char *path, *place;
	} cases[] = {
	    {"verbose", ":2:10: verbose"},
	    {"listen", ":7:9: listen"},
	    {"listen[1]", ":7:27: listen[1]"},
	    {"listen[2]", ":7:9: listen[2]"},
	    {"limits.inner.depth", ":10:18: limits.inner.depth"},
	    {"pools[0].size", ":13:11: pools[0].size"},
	    {"pools[1].size", ":15:5: pools[1].size"},
	    {"pools[7].size", ":12:3: pools[7].size"},
	    {"port", ":3:7: port"},
	    {"pore", ": pore"},
	};
	const struct fp_conf_places none = {.n = 0};
	struct fp_conf_error error;
	struct conf conf = {0};
	const char *message;
	char text[128];

	assert_int_equal(read_text(good, &conf, &message), 0);
	for (size_t i = 0; i < FP_ARRAY_LEN(cases); i++) {
		fp_conf_places_name(&places, cases[i].path, text, sizeof(text));
		assert_memory_equal(text, "/proc/self/fd/", strlen("/proc/self/fd/"));
		assert_string_equal(strchr(text, ':'), cases[i].place);
	}
	assert_string_equal(fp_conf_places_name(&none, "a[0].b", text, sizeof(text)), "a[0].b");
	assert_int_equal(fp_conf_refuse(&error, &places, "port", "must be %d\n, not %s", 7, "8"), -EINVAL);
	assert_string_equal(strchr(error.text, ':'), ":3:7: port: must be 7?, not 8");
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(fp_conf_refuse(&error, &none, text, "%0600d", 1), -EINVAL);
	assert_int_equal(strlen(error.text), sizeof(error.text) - 1); /* cut */
	fp_conf_places_done(&places);
	conf_done(&conf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_whole_file_is_read),
	    cmocka_unit_test(absent_keys_leave_defaults),
	    cmocka_unit_test(lists_of_texts_replace_defaults),
	    cmocka_unit_test(a_mapping_tells_that_it_is_there),
	    cmocka_unit_test(other_good_forms_are_read),
	    cmocka_unit_test(unknown_keys_list_the_allowed),
	    cmocka_unit_test(keys_come_once),
	    cmocka_unit_test(types_are_checked),
	    cmocka_unit_test(ranges_are_named),
	    cmocka_unit_test(required_keys_are_missed),
	    cmocka_unit_test(what_we_do_not_need_is_refused),
	    cmocka_unit_test(broken_yaml_is_placed),
	    cmocka_unit_test(what_cannot_be_read_is_said),
	    cmocka_unit_test(huge_and_deep_files_end_soon),
	    cmocka_unit_test(long_texts_are_cut),
	    cmocka_unit_test(every_prefix_ends_well),
	    cmocka_unit_test(random_bytes_end_well),
	    cmocka_unit_test(places_of_values),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
