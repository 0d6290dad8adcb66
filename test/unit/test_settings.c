/*
 * Settings: the environment overrides the file, the file overrides defaults, and every mistake has
 * a message.
 */
#include "settings.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "readahead.h"

static char dir[] = "/tmp/farpage-test.XXXXXX";
static char config[sizeof(dir) + 16], secret[sizeof(dir) + 16];

static int make_dir(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	snprintf(config, sizeof(config), "%s/far.yaml", dir);
	snprintf(secret, sizeof(secret), "%s/secret", dir);
	return 0;
}

static int remove_dir(void **state)
{
	unlink(config);
	unlink(secret);
	return rmdir(dir);
}

static int clean_environment(void **state)
{
	return clearenv();
}

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(path, 0600), 0);
}

static void use_config(const char *text)
{
	write_file(config, text);
	setenv("FARPAGE_CONFIG", config, 1);
}

static struct fp_settings read_good(void)
{
	struct fp_agent_error error = {.text = ""};
	struct fp_settings settings;
	int r = fp_settings_read(&settings, &error);

	if (r < 0)
		fail_msg("%s", error.text);
	return settings;
}

/* Reading the settings must fail with r, and the message must contain both texts. */
static void assert_refused(int r, const char *what, const char *allowed)
{
	struct fp_settings settings = {.n_urls = 77};
	struct fp_agent_error error = {.text = ""};

	assert_int_equal(fp_settings_read(&settings, &error), r);
	assert_int_equal(settings.n_urls, 77);
	if (!strstr(error.text, what) || !strstr(error.text, allowed))
		fail_msg("'%s' lacks '%s' or '%s'", error.text, what, allowed);
}

static void heap_of_large_ones(void **state)
{
	static const char *const bad[] = {"large:",   "large:4",   "large:4095", "large:x",
	                                  "large:-1", "large:1M ", "Large"};
	struct fp_settings s;

	setenv("FARPAGE_HEAP", "large", 1);
	setenv("FARPAGE_MIN_MAPPING", "128K", 1);
	s = read_good();
	assert_int_equal(s.heap, FP_HEAP_LARGE);
	assert_int_equal(s.large_bytes, 128 << 10);
	fp_settings_done(&s);
	setenv("FARPAGE_HEAP", "large:1M", 1);
	s = read_good();
	assert_int_equal(s.heap, FP_HEAP_LARGE);
	assert_int_equal(s.large_bytes, 1 << 20);
	assert_int_equal(s.min_mapping_bytes, 128 << 10);
	fp_settings_done(&s);
	for (size_t i = 0; i < FP_ARRAY_LEN(bad); i++) {
		setenv("FARPAGE_HEAP", bad[i], 1);
		assert_refused(-EINVAL, "FARPAGE_HEAP: must be one of", bad[i]);
	}
	unsetenv("FARPAGE_HEAP");
	use_config("heap: large:2M\n");
	s = read_good();
	assert_int_equal(s.large_bytes, 2 << 20);
	fp_settings_done(&s);
}

/* The first rule that matches decides. */
static void rules_in_order(void **state)
{
	struct fp_settings s;
	uint64_t ours, others;

	use_config("rules:\n"
	           "  - {place: local, library: 'libours.so*', min: 1M}\n"
	           "  - {place: far, of: mappings, min: 4K, max: 64K}\n"
	           "  - {place: local, of: heap, library: '/opt/*/libx.so', max: 1G}\n"
	           "  - {place: far, library: 'libours.so.1'}\n");
	s = read_good();
	assert_int_equal(s.rules.n, 4);
	ours = fp_rules_match_library(&s.rules, "/usr/lib/libours.so.1");
	others = fp_rules_match_library(&s.rules, "/opt/a/libx.so");
	assert_int_equal(ours, 0xb);
	assert_int_equal(others, 0x6);
	assert_int_equal(fp_rules_place(&s.rules, FP_RULE_HEAP, 1 << 20, ours), FP_PLACE_LOCAL);
	assert_int_equal(fp_rules_place(&s.rules, FP_RULE_HEAP, (1 << 20) - 1, ours), FP_PLACE_FAR);
	assert_int_equal(fp_rules_place(&s.rules, FP_RULE_MAPPINGS, 65536, others), FP_PLACE_FAR);
	assert_int_equal(fp_rules_place(&s.rules, FP_RULE_MAPPINGS, 65537, others), FP_PLACE_UNSAID);
	assert_int_equal(fp_rules_place(&s.rules, FP_RULE_HEAP, 100, others), FP_PLACE_LOCAL);
	assert_int_equal(fp_rules_place(&s.rules, FP_RULE_HEAP, (1ull << 30) + 1, others), FP_PLACE_UNSAID);
	assert_int_equal(fp_rules_heap_from(&s.rules), 0);
	assert_true(fp_rules_ask_library(&s.rules, FP_RULE_HEAP));
	fp_settings_done(&s);
	use_config("rules: [{place: local, of: mappings}]\n");
	s = read_good();
	assert_int_equal(fp_rules_heap_from(&s.rules), UINT64_MAX);
	assert_false(fp_rules_ask_library(&s.rules, FP_RULE_MAPPINGS));
	fp_settings_done(&s);
}

static void bad_rules(void **state)
{
	char many[65 * 20 + 16] = "rules:\n";

	use_config("rules: [{library: x}]\n");
	assert_refused(-EINVAL, "far.yaml:1:", "place");
	use_config("rules: [{place: near}]\n");
	assert_refused(-EINVAL, "rules[0].place", "far, local");
	use_config("rules: [{place: far}, {place: far, name: x}]\n");
	assert_refused(-EINVAL, "rules[1]", "name");
	use_config("rules: [{place: far, min: 2M, max: 1M}]\n");
	assert_refused(-EINVAL, "rules[0]", "min must not be above max");
	use_config("rules: [{place: far, library: ''}]\n");
	assert_refused(-EINVAL, "rules[0]", "library");
	use_config("rules: [{place: far, of: stack}]\n");
	assert_refused(-EINVAL, "rules[0].of", "all, heap, mappings");
	for (unsigned i = 0; i < 65; i++)
		strcat(many, "  - {place: far}\n");
	use_config(many);
	assert_refused(-EINVAL, "rules[64]", "64");
}

static void defaults(void **state)
{
	struct fp_settings s = read_good();

	assert_int_equal(s.local_bytes, 0);
	assert_int_equal(s.local_percent, 50);
	assert_int_equal(s.n_urls, 0);
	assert_null(s.secret);
	assert_null(s.stats_path);
	assert_int_equal(s.deadline_ns, 5000000000);
	assert_int_equal(s.patience_ns, 0);
	assert_int_equal(s.on_loss, FP_ON_LOSS_SIGBUS);
	assert_int_equal(s.heartbeat_ns, 1000000000);
	assert_int_equal(s.min_mapping_bytes, 65536);
	assert_int_equal(s.heap, FP_HEAP_ALL);
	assert_int_equal(s.core, FP_CORE_LOCAL);
	assert_int_equal(s.capture, FP_CAPTURE_AUTO);
	assert_int_equal(s.affinity, FP_AFFINITY_AUTO);
	assert_int_equal(s.log_level, FP_LOG_NOTICE);
	assert_false(s.overcommit);
	assert_false(s.report);
	assert_int_equal(s.pool_bytes, 0);
	assert_memory_equal(&s.rdma, &fp_rdma_defaults, sizeof(s.rdma));
	assert_int_equal(s.rdma.retry_count, 7);
	assert_int_equal(s.rdma.ack_timeout_ns, 0);
	assert_int_equal(s.rdma.send_depth, 256);
	fp_settings_done(&s);
}

static void from_file(void **state)
{
	struct fp_settings s;

	write_file(secret, "xyzzy-xyzzy-xyzzy\nnot this\n");
	use_config("local_memory: 64M\nnodes: [tcp://a, 'shm:/b']\nheap: large\ndeadline: 2s\nlog: debug\n"
	           "overcommit: true\nheartbeat: 3s\nreadahead: 7\nmin_mapping: 1M\nstats_file: "
	           "/x/%p\ncapture: protect\npatience: 2m\non_loss: wait\ncore: full\nreport: "
	           "true\npool_size: 3M\n");
	setenv("FARPAGE_SECRET_FILE", secret, 1);
	s = read_good();
	assert_int_equal(s.local_bytes, 64 << 20);
	assert_int_equal(s.local_percent, 0);
	assert_int_equal(s.n_urls, 2);
	assert_string_equal(s.urls[0], "tcp://a");
	assert_string_equal(s.urls[1], "shm:/b");
	assert_int_equal(s.heap, FP_HEAP_LARGE);
	assert_int_equal(s.deadline_ns, 2000000000);
	assert_int_equal(s.heartbeat_ns, 3000000000);
	assert_int_equal(s.patience_ns, 120000000000);
	assert_int_equal(s.on_loss, FP_ON_LOSS_WAIT);
	assert_int_equal(s.core, FP_CORE_FULL);
	assert_int_equal(s.log_level, FP_LOG_DEBUG);
	assert_true(s.overcommit);
	assert_true(s.report);
	assert_int_equal(s.pool_bytes, 3 << 20);
	assert_int_equal(s.readahead_pages, 7);
	assert_int_equal(s.min_mapping_bytes, 1 << 20);
	assert_string_equal(s.stats_path, "/x/%p");
	assert_null(s.stats_dir);
	assert_string_equal(s.secret, "xyzzy-xyzzy-xyzzy");
	assert_int_equal(s.capture, FP_CAPTURE_PROTECT);
	fp_settings_done(&s);
}

/* `farpage run` writes the file of the key itself. A variable is set for this program alone. */
static void pages_of_a_run(void **state)
{
	struct fp_settings s;

	use_config("stats_file: /x/%p\n");
	setenv(FP_SETTINGS_STATS_DIR, "/run/of/it", 1);
	s = read_good();
	assert_null(s.stats_path);
	assert_string_equal(s.stats_dir, "/run/of/it");
	fp_settings_done(&s);
	setenv("FARPAGE_STATS_FILE", "/y", 1);
	s = read_good();
	assert_string_equal(s.stats_path, "/y");
	assert_string_equal(s.stats_dir, "/run/of/it");
	fp_settings_done(&s);
}

static void environment_wins(void **state)
{
	struct fp_settings s;

	use_config("local_memory: 64M\nnodes: [tcp://a, tcp://b]\nheap: large\novercommit: true\n");
	setenv("FARPAGE_LOCAL_MEMORY", "25%", 1);
	setenv("FARPAGE_NODES", "shm:/x,,tcp://[::1]:7,", 1);
	setenv("FARPAGE_OVERCOMMIT", "0", 1);
	setenv("FARPAGE_HEAP", "", 1);
	s = read_good();
	assert_int_equal(s.local_bytes, 0);
	assert_int_equal(s.local_percent, 25);
	assert_int_equal(s.n_urls, 2);
	assert_string_equal(s.urls[0], "shm:/x");
	assert_string_equal(s.urls[1], "tcp://[::1]:7");
	assert_false(s.overcommit);
	assert_int_equal(s.heap, FP_HEAP_LARGE);
	fp_settings_done(&s);
}

/* If a key is inside a mapping, its environment variable contains the names of both. */
static void rdma(void **state)
{
	static const char *const bad[][3] = {
	    {"retry_count: 8", "rdma.retry_count", "0..7"},
	    {"ack_timeout: 14", "rdma.ack_timeout", "1.00 ms..8.00 s"},
	    {"ack_timeout: 1us", "rdma.ack_timeout", "1.00 ms..8.00 s"},
	    {"send_depth: 0", "rdma.send_depth", "1..1024"},
	    {"device_port: 256", "rdma.device_port", "1..255"},
	    {"retries: 1", "unknown key", "retry_count, ack_timeout, send_depth"},
	};
	struct fp_settings s;
	char text[64];

	use_config("rdma: { device: rxe7, device_port: 2, retry_count: 0, ack_timeout: 20ms,\n"
	           "  send_depth: 32 }\n");
	s = read_good();
	assert_string_equal(s.rdma.device, "rxe7");
	assert_int_equal(s.rdma.device_port, 2);
	assert_int_equal(s.rdma.retry_count, 0);
	assert_int_equal(s.rdma.ack_timeout_ns, 20000000);
	assert_int_equal(s.rdma.send_depth, 32);
	assert_ptr_equal(fp_settings_agent_options(&s).rdma, &s.rdma);
	fp_settings_done(&s);
	setenv("FARPAGE_RDMA_RETRY_COUNT", "3", 1);
	setenv("FARPAGE_RDMA_DEVICE", "siw1", 1);
	setenv("FARPAGE_RDMA_ACK_TIMEOUT", "1s", 1);
	s = read_good();
	assert_int_equal(s.rdma.retry_count, 3);
	assert_string_equal(s.rdma.device, "siw1");
	assert_int_equal(s.rdma.ack_timeout_ns, 1000000000);
	assert_int_equal(s.rdma.send_depth, 32);
	fp_settings_done(&s);
	for (size_t i = 0; i < FP_ARRAY_LEN(bad); i++) {
		snprintf(text, sizeof(text), "rdma:\n  %s\n", bad[i][0]);
		use_config(text);
		assert_refused(-EINVAL, "far.yaml:2:", bad[i][1]);
		assert_refused(-EINVAL, bad[i][1], bad[i][2]);
	}
}

static void reconnect(void **state)
{
	struct fp_settings s = read_good();

	assert_int_equal(s.reconnect.missed_heartbeats, 1);
	assert_int_equal(s.reconnect.backoff_first_ns, 50000000);
	assert_int_equal(s.reconnect.backoff_max_ns, 2000000000);
	fp_settings_done(&s);
	use_config("reconnect: { missed_heartbeats: 3, backoff_first: 200ms, backoff_max: 10s }\n");
	setenv("FARPAGE_RECONNECT_BACKOFF_MAX", "1m", 1);
	s = read_good();
	assert_int_equal(fp_settings_agent_options(&s).reconnect.missed_heartbeats, 3);
	assert_int_equal(s.reconnect.backoff_first_ns, 200000000);
	assert_int_equal(s.reconnect.backoff_max_ns, 60000000000);
	fp_settings_done(&s);
	use_config("reconnect: { backoff_first: 1us }\n");
	assert_refused(-EINVAL, "far.yaml:1:29: reconnect.backoff_first", "1.00 ms..60.0 s");
}

/* A comma separates nodes, and also the addresses of one node. */
static void nodes_of_several_addresses(void **state)
{
	struct fp_settings s;

	use_config("nodes: [\"rdma://a,b\"]\n");
	s = read_good();
	assert_int_equal(s.n_urls, 1);
	assert_string_equal(s.urls[0], "rdma://a,b");
	fp_settings_done(&s);
	setenv("FARPAGE_NODES", "rdma://a,b,[::1]:7,shm:/x,auto://c,tcp://d,e", 1);
	s = read_good();
	assert_int_equal(s.n_urls, 4);
	assert_string_equal(s.urls[0], "rdma://a,b,[::1]:7");
	assert_string_equal(s.urls[1], "shm:/x");
	assert_string_equal(s.urls[2], "auto://c");
	assert_string_equal(s.urls[3], "tcp://d,e");
	fp_settings_done(&s);
}

static void agent_options(void **state)
{
	struct fp_agent_options o;
	struct fp_settings s;

	setenv("FARPAGE_NODES", "shm:/x", 1);
	setenv("FARPAGE_LOCAL_MEMORY", "64K", 1);
	setenv("FARPAGE_DEADLINE", "300ms", 1);
	setenv("FARPAGE_HEARTBEAT", "50ms", 1);
	setenv("FARPAGE_PATIENCE", "1s", 1);
	setenv("FARPAGE_ON_LOSS", "wait", 1);
	setenv("FARPAGE_AFFINITY", "off", 1);
	setenv("FARPAGE_READAHEAD", "0", 1);
	s = read_good();
	o = fp_settings_agent_options(&s);
	assert_int_equal(o.local_bytes, 65536);
	assert_int_equal(o.n_urls, 1);
	assert_string_equal(o.urls[0], "shm:/x");
	assert_int_equal(o.deadline_ns, 300000000);
	assert_int_equal(o.heartbeat_ns, 50000000);
	assert_int_equal(o.patience_ns, 1000000000);
	assert_int_equal(o.on_loss, FP_ON_LOSS_WAIT);
	assert_int_equal(o.affinity, FP_AFFINITY_OFF);
	assert_int_equal(o.readahead_pages, 0);
	fp_settings_done(&s);
}

static void bad_variables(void **state)
{
	static const struct {
		const char *name, *value;
		int error;
		const char *allowed;
	} cases[] = {
	    {"FARPAGE_LOCAL_MEMORY", "much", -EINVAL, "at least 64K"},
	    {"FARPAGE_LOCAL_MEMORY", "65535", -EINVAL, "at least 64K"},
	    {"FARPAGE_LOCAL_MEMORY", "0", -EINVAL, "at least 64K"},
	    {"FARPAGE_LOCAL_MEMORY", "0%", -EINVAL, "1% to 100%"},
	    {"FARPAGE_LOCAL_MEMORY", "101%", -EINVAL, "1% to 100%"},
	    {"FARPAGE_LOCAL_MEMORY", "-1%", -EINVAL, "1% to 100%"},
	    {"FARPAGE_LOCAL_MEMORY", "00000000000050%", -EINVAL, "1% to 100%"},
	    {"FARPAGE_LOCAL_MEMORY", "%", -EINVAL, "1% to 100%"},
	    {"FARPAGE_HEAP", "some", -EINVAL, "all, large"},
	    {"FARPAGE_FAULT_MODE", "fast", -EINVAL, "thread, inline"},
	    {"FARPAGE_CAPTURE", "steal", -EINVAL, "auto, move, protect"},
	    {"FARPAGE_AFFINITY", "on", -EINVAL, "auto, off"},
	    {"FARPAGE_OVERCOMMIT", "perhaps", -EINVAL, "1 or 0"},
	    {"FARPAGE_DEADLINE", "0", -EINVAL, "within 1.00 ms..3600 s"},
	    {"FARPAGE_HEARTBEAT", "1ms", -EINVAL, "within"},
	    {"FARPAGE_DEADLINE", "2h", -EINVAL, "within 1.00 ms..3600 s"},
	    {"FARPAGE_DEADLINE", "soon", -EINVAL, "5s or 200ms"},
	    {"FARPAGE_READAHEAD", "64", -EINVAL, "0..63"},
	    {"FARPAGE_READAHEAD", "-1", -EINVAL, "a whole number"},
	    {"FARPAGE_READAHEAD", "8x", -EINVAL, "a whole number"},
	    {"FARPAGE_MIN_MAPPING", "1", -EINVAL, "at least 4.0 KiB"},
	    {"FARPAGE_LOG", "loud", -EINVAL, "error, warning, notice, info, debug"},
	    {"FARPAGE_RDMA_RETRY_COUNT", "8", -EINVAL, "0..7"},
	    {"FARPAGE_RDMA_ACK_TIMEOUT", "14", -EINVAL, "within 1.00 ms..8.00 s"},
	    {"FARPAGE_RDMA_SEND_DEPTH", "1025", -EINVAL, "1..1024"},
	    {"FARPAGE_RDMA_DEVICE_PORT", "0", -EINVAL, "1..255"},
	    {"FARPAGE_RECONNECT_MISSED_HEARTBEATS", "0", -EINVAL, "1..100"},
	    {"FARPAGE_RECONNECT_BACKOFF_FIRST", "0", -EINVAL, "within"},
	    {"FARPAGE_RECONNECT_BACKOFF_MAX", "2h", -EINVAL, "within"},
	};

	_Static_assert(FP_READAHEAD_MAX == 63, "named by the messages above");
	for (size_t i = 0; i < FP_ARRAY_LEN(cases); i++) {
		setenv(cases[i].name, cases[i].value, 1);
		assert_refused(cases[i].error, cases[i].name, cases[i].allowed);
		assert_refused(cases[i].error, cases[i].value, "not ");
		unsetenv(cases[i].name);
	}
}

static void bad_file(void **state)
{
	use_config("heap: all\nheep: none\n");
	assert_refused(-EINVAL, "far.yaml:2:1", "local_memory, nodes");
	use_config("heap: [all]\n");
	assert_refused(-EINVAL, "far.yaml:1:7: heap", "");
	use_config("heap: larg\n");
	assert_refused(-EINVAL, "far.yaml:1:7: heap", "all, large, large:SIZE");
	use_config("heap: all\nlocal_memory: 1K\n");
	assert_refused(-EINVAL, "far.yaml:2:15: local_memory", "at least 64K");
	use_config("heap: all\nrules:\n- {place: far}\n- {place: far, min: 2M, max: 1M}\n");
	assert_refused(-EINVAL, "far.yaml:4:3: rules[1]", "min must not be above max");
	use_config("secret_file: /nowhere/secret\n");
	assert_refused(-ENOENT, "far.yaml:1:14: secret_file: /nowhere/secret", "o such file");
	use_config("fault_mode: outline\n");
	assert_refused(-EINVAL, "far.yaml:1:13: fault_mode", "thread, inline");
	setenv("FARPAGE_CONFIG", dir, 1);
	assert_refused(-EISDIR, dir, "irectory");
	setenv("FARPAGE_CONFIG", "/nowhere/far.yaml", 1);
	assert_refused(-ENOENT, "/nowhere/far.yaml", "o such file");
}

static void bad_secret(void **state)
{
	struct fp_settings s;
	char longer[1100];

	setenv("FARPAGE_SECRET_FILE", "/nowhere/secret", 1);
	assert_refused(-ENOENT, "FARPAGE_SECRET_FILE: /nowhere/secret", "o such file");
	setenv("FARPAGE_SECRET_FILE", secret, 1);
	write_file(secret, "");
	assert_refused(-ENODATA, "FARPAGE_SECRET_FILE", "empty");
	write_file(secret, "\nsecond\n");
	assert_refused(-ENODATA, "FARPAGE_SECRET_FILE", "empty");
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	write_file(secret, longer);
	assert_refused(-EMSGSIZE, "FARPAGE_SECRET_FILE", "16 to 1024 bytes");
	write_file(secret, "15 bytes, short\n");
	assert_refused(-EMSGSIZE, "FARPAGE_SECRET_FILE", "16 to 1024 bytes");
	write_file(secret, "16 bytes, enough\n");
	assert_int_equal(chmod(secret, 0604), 0);
	assert_refused(-EPERM, "FARPAGE_SECRET_FILE", "chmod o-rw");
	assert_int_equal(chmod(secret, 0602), 0);
	assert_refused(-EPERM, "FARPAGE_SECRET_FILE", "chmod o-rw");
	assert_int_equal(chmod(secret, 0640), 0);
	setenv("FARPAGE_SECRET_FILE", dir, 1);
	assert_refused(-EINVAL, dir, "not a regular file");
	setenv("FARPAGE_SECRET_FILE", secret, 1);
	longer[1024] = '\n';
	write_file(secret, longer);
	s = read_good();
	assert_int_equal(strlen(s.secret), 1024);
	fp_settings_done(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(heap_of_large_ones, clean_environment),
	    cmocka_unit_test_setup(rules_in_order, clean_environment),
	    cmocka_unit_test_setup(bad_rules, clean_environment),
	    cmocka_unit_test_setup(defaults, clean_environment),
	    cmocka_unit_test_setup(from_file, clean_environment),
	    cmocka_unit_test_setup(pages_of_a_run, clean_environment),
	    cmocka_unit_test_setup(environment_wins, clean_environment),
	    cmocka_unit_test_setup(rdma, clean_environment),
	    cmocka_unit_test_setup(reconnect, clean_environment),
	    cmocka_unit_test_setup(nodes_of_several_addresses, clean_environment),
	    cmocka_unit_test_setup(agent_options, clean_environment),
	    cmocka_unit_test_setup(bad_variables, clean_environment),
	    cmocka_unit_test_setup(bad_file, clean_environment),
	    cmocka_unit_test_setup(bad_secret, clean_environment),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
