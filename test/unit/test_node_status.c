/*
 * The status of a node for a person: the line that sums it up, what is shown first, and what is no
 * status.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node_status.h"

#define POOL "{\"name\":\"main\",\"size_bytes\":2097152,\"used_bytes\":1048576,\"free_bytes\":524288}"

/* The caller frees the text. */
static char *shown(const char *json, bool all, unsigned width, unsigned height)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	assert_int_equal(fp_node_status_print(json, all, width, height, out), 0);
	fclose(out);
	return text;
}

static void assert_first_line(const char *json, const char *wanted)
{
	char *text = shown(json, true, 0, 0);

	*strchr(text, '\n') = '\0';
	assert_string_equal(text, wanted);
	free(text);
}

static void one_line_sums_up(void **state)
{
	assert_first_line("{\"state\":\"serving\",\"pools\":[" POOL
	                  "],\"sessions\":[{}],\"sessions_omitted\":0}",
	                  "serving: 1.0 MiB of 2.0 MiB leased, 512.0 KiB free; 1 session");
	assert_first_line("{\"state\":\"draining\",\"pools\":[" POOL "," POOL
	                  "],\"sessions\":[{\"state\":\"cut off\"},"
	                  "{\"state\":\"connected\"}],\"sessions_omitted\":7}",
	                  "draining: 2.0 MiB of 4.0 MiB leased, 1.0 MiB free; 9 sessions, 1 cut off");
}

static void the_sum_fits_the_width(void **state)
{
	char *text = shown("{\"state\":\"serving\",\"pools\":[" POOL "],\"sessions\":[{}]}", false, 60, 0);

	assert_int_equal(
	    strncmp(text, "serving: 1.0 MiB of 2.0 MiB leased, 512.0 KiB free;\n  1 session\n", 64), 0);
	free(text);
}

/* An unknown node may say other things, or of another kind: they are shown as they are. */
static void other_nodes_have_no_such_line(void **state)
{
	assert_first_line("{\"state\":\"serving\",\"sessions\":[]}", "state serving");
	assert_first_line("{\"state\":7,\"pools\":[" POOL "],\"sessions\":[]}", "state 7");
	assert_first_line("{\"state\":\"a\\u001bb\",\"pools\":[" POOL "],\"sessions\":[]}", "state a?b");
	assert_first_line("{\"state\":\"x\",\"pools\":7,\"sessions\":{}}", "state x, pools 7");
}

/* Thirty sessions: ten with the most memory, in 80 columns; or all. */
static void sessions_with_the_most_memory_are_shown(void **state)
{
	char json[8192], *text;
	int len = snprintf(json, sizeof(json), "{\"sessions\":[");

	for (unsigned i = 1; i <= 30; i++)
		len += snprintf(json + len, sizeof(json) - (size_t)len,
		                "%s{\"id\":%u,\"name\":\"s%u\",\"peer\":\"somewhere\",\"quite\":\"long\","
		                "\"leased_bytes\":%u,\"more\":\"than eighty columns can hold, in all\"}",
		                i > 1 ? "," : "", i, i, i << 10);
	snprintf(json + len, sizeof(json) - (size_t)len, "]}");
	text = shown(json, false, 80, 0);
	assert_non_null(strstr(text, "  30  s30  "));
	assert_non_null(strstr(text, "  21  s21  "));
	assert_null(strstr(text, "s20"));
	assert_non_null(strstr(text, "  and 20 more\n(shortened: --sessions shows all rows and columns)\n"));
	for (const char *line = text; *line; line = strchr(line, '\n') + 1)
		assert_in_range(strcspn(line, "\n"), 1, 80);
	free(text);
	text = shown(json, true, 80, 0);
	for (unsigned i = 1; i <= 30; i++) {
		char name[8];

		snprintf(name, sizeof(name), " s%u ", i);
		assert_non_null(strstr(text, name));
	}
	assert_non_null(strstr(text, "than eighty columns can hold, in all\n"));
	assert_null(strstr(text, "shortened"));
	free(text);
}

static unsigned lines_of(const char *text)
{
	unsigned n = 0;

	for (; (text = strchr(text, '\n')); text++)
		n++;
	return n;
}

/* Two lines are left for the prompt of a shell. */
static void rows_are_as_many_as_the_height_has(void **state)
{
	char json[2048], *text;
	const char *last;
	int len = snprintf(json, sizeof(json), "{\"state\":\"serving\",\"pools\":[" POOL "],\"sessions\":[");

	for (unsigned i = 0; i < 30; i++)
		len +=
		    snprintf(json + len, sizeof(json) - (size_t)len, "%s{\"name\":\"s%u\"}", i ? "," : "", i);
	snprintf(json + len, sizeof(json) - (size_t)len, "]}");
	for (unsigned height = 13; height <= 20; height++) {
		text = shown(json, false, 80, height);
		assert_int_equal(lines_of(text), height - 2);
		assert_int_equal(strncmp(text, "serving: ", 9), 0);
		free(text);
	}
	text = shown(json, false, 80, 5);
	last = strstr(text + 1, "serving: ");
	assert_non_null(last);
	assert_string_equal(strchr(last, '\n'), "\n");
	free(text);
}

static void a_client_without_quota_has_none(void **state)
{
	char *text = shown("{\"clients\":[{\"name\":\"a\",\"quota_bytes\":0},"
	                   "{\"name\":\"b\",\"quota_bytes\":1024}]}",
	                   false, 80, 0);

	assert_string_equal(text, "clients:\n  name  quota\n  a     none\n  b     1.0 KiB\n");
	free(text);
}

static void what_is_no_object_is_refused(void **state)
{
	static const char *const wrong[] = {"",
	                                    "[]",
	                                    "1",
	                                    "{\"a\":}",
	                                    "{\"a\":1} x",
	                                    "{\"a\":1",
	                                    "hello!",
	                                    "{a:1}",
	                                    "{\"a\":1,}",
	                                    "\"a\"",
	                                    "{\"a\":\"\xff\"}",
	                                    "{\"a\":\"\n\"}",
	                                    "{\"a\":\"\\u0000\"}"};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(fp_node_status_print(wrong[i], false, 80, 0, stdout), -EINVAL);
}

static void depth_is_bounded(void **state)
{
	char json[10000];

	memset(json, '[', sizeof(json) - 1);
	json[sizeof(json) - 1] = '\0';
	assert_int_equal(fp_node_status_print(json, false, 80, 0, stdout), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(one_line_sums_up),
	    cmocka_unit_test(the_sum_fits_the_width),
	    cmocka_unit_test(other_nodes_have_no_such_line),
	    cmocka_unit_test(sessions_with_the_most_memory_are_shown),
	    cmocka_unit_test(rows_are_as_many_as_the_height_has),
	    cmocka_unit_test(a_client_without_quota_has_none),
	    cmocka_unit_test(what_is_no_object_is_refused),
	    cmocka_unit_test(depth_is_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
