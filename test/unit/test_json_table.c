/* The status that a node reports, printed as a table for people. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "json_table.h"

static void assert_shown(const char *json, const char *wanted)
{
	char *shown = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&shown, &len);

	assert_int_equal(fp_json_table_print_text(json, out), 0);
	fclose(out);
	assert_string_equal(shown, wanted);
	free(shown);
}

static void plain_members_come_first(void **state)
{
	assert_shown("{\"pools\":[],\"version\":\"0.1.0\",\"uptime_s\":90,\"memfd\":true,\"parent\":null}",
	             "version 0.1.0, uptime 90.0 s, memfd yes, parent -\npools: none\n");
}

static void names_say_the_unit(void **state)
{
	assert_shown(
	    "{\"size_bytes\":4096,\"grace_ms\":1500,\"idle_s\":0,\"numa_node\":-1,\"x_s\":-2,\"y\":1.5}",
	    "size 4.0 KiB, grace 1.50 s, idle 0, numa node -, x -2, y 1.5\n");
}

static void a_list_of_objects_is_a_table(void **state)
{
	assert_shown("{\"pools\":[{\"name\":\"a\",\"n\":1},{\"name\":\"long\",\"tags\":[1,[2],\"x\"]}]}",
	             "pools:\n  name  n  tags\n  a     1  -\n  long  -  1,...,x\n");
}

static void objects_have_lines_of_their_own(void **state)
{
	assert_shown("{\"rdma\":{\"links\":2,\"ports\":[1,2],\"devices\":[{\"name\":\"r0\"}]},\"ids\":[7]}",
	             "rdma: links 2, ports 1,2\nrdma devices:\n  name\n  r0\nids: 7\n");
}

static void nothing_reaches_the_terminal_but_text(void **state)
{
	assert_shown("{\"a\\u001b\":\"b\\n\\u009bc\\u007f\\u00e9\"}", "a? b??c?\xc3\xa9\n");
}

static void long_strings_are_cut(void **state)
{
	char json[1200], wanted[300];

	snprintf(json, sizeof(json), "{\"a\":\"%01000d\"}", 0);
	snprintf(wanted, sizeof(wanted), "a %0255d\n", 0);
	assert_shown(json, wanted);
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
		assert_int_equal(fp_json_table_print_text(wrong[i], stdout), -EINVAL);
}

static void depth_is_bounded(void **state)
{
	char json[10000];

	memset(json, '[', sizeof(json) - 1);
	json[sizeof(json) - 1] = '\0';
	assert_int_equal(fp_json_table_print_text(json, stdout), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(plain_members_come_first),
	    cmocka_unit_test(names_say_the_unit),
	    cmocka_unit_test(a_list_of_objects_is_a_table),
	    cmocka_unit_test(objects_have_lines_of_their_own),
	    cmocka_unit_test(nothing_reaches_the_terminal_but_text),
	    cmocka_unit_test(long_strings_are_cut),
	    cmocka_unit_test(what_is_no_object_is_refused),
	    cmocka_unit_test(depth_is_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
