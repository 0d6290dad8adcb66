/* The status that a node reports, printed as a table for people. */
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
	json_t *object = json_loads(json, 0, NULL);
	char *shown = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&shown, &len);

	assert_non_null(object);
	fp_json_table_print(object, out);
	fclose(out);
	assert_string_equal(shown, wanted);
	free(shown);
	json_decref(object);
}

/* cut: something is left out. */
static void assert_brief(const char *json, const struct fp_json_brief *brief, bool cut, const char *wanted)
{
	json_t *object = json_loads(json, 0, NULL);
	char *shown = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&shown, &len);

	assert_non_null(object);
	assert_int_equal(fp_json_table_print_brief(object, brief, out), cut);
	fclose(out);
	assert_string_equal(shown, wanted);
	free(shown);
	json_decref(object);
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
	assert_shown("{\"a\":\"x\\u202ey\\u2066z\"}", "a x?y?z\n");
}

static void long_strings_are_cut(void **state)
{
	char json[1200], wanted[300];

	snprintf(json, sizeof(json), "{\"a\":\"%01000d\"}", 0);
	snprintf(wanted, sizeof(wanted), "a %0255d\n", 0);
	assert_shown(json, wanted);
}

static void members_go_on_in_further_lines(void **state)
{
	const struct fp_json_brief brief = {.width = 24};

	assert_brief("{\"one\":1,\"two\":2,\"three\":3,\"four\":\"very long indeed, so long\",\"five\":5,"
	             "\"in\":{\"six\":6,\"seven\":7,\"eight\":8}}",
	             &brief, false,
	             "one 1, two 2, three 3,\n  four very long indeed, so long,\n  five 5\n"
	             "in: six 6, seven 7,\n  eight 8\n");
}

/* Columns that say nothing go first. Then the columns go that are not named, from the right. */
static void a_wide_table_loses_columns(void **state)
{
	static const char *const first[] = {"id", NULL};
	const char *json = "{\"t\":[{\"none\":0,\"left\":\"aaaa\",\"right\":\"bbbb\",\"id\":7},"
	                   "{\"left\":\"cc\",\"right\":\"dd\",\"id\":8,\"none\":null}]}";
	const struct fp_json_brief wide = {.width = 23, .first = first},
	                           narrow = {.width = 22, .first = first},
	                           least = {.width = 15, .first = first};

	assert_brief(json, &wide, false,
	             "t:\n  none  left  right  id\n  0     aaaa  bbbb   7\n  -     cc    dd     8\n");
	assert_brief(json, &narrow, true, "t:\n  left  right  id\n  aaaa  bbbb   7\n  cc    dd     8\n");
	assert_brief(json, &least, true, "t:\n  left  id\n  aaaa  7\n  cc    8\n");
}

static void a_long_table_loses_rows_and_long_cells_their_ends(void **state)
{
	const struct fp_json_brief brief = {.width = 22, .max_rows = 1};

	assert_brief("{\"t\":[{\"name\":\"nineteen characters\"},{\"name\":\"b\"},{\"name\":\"c\"}]}", &brief,
	             true, "t:\n  name\n  nineteen characters\n  and 2 more\n");
	assert_brief("{\"t\":[{\"name\":\"twenty-four characters.\",\"n\":1}]}", &brief, true,
	             "t:\n  name               n\n  twenty-four charac 1\n");
	assert_brief("{\"t\":[{\"n\":1,\"name\":\"twenty-four characters.\"}]}", &brief, true,
	             "t:\n  n  name\n  1  twenty-four chara\n");
}

/* A column of numbers has room for all of them, or goes. */
static void numbers_are_not_cut(void **state)
{
	const struct fp_json_brief brief = {.width = 40};
	const char *cell = "{\"median\":4.799,\"min\":4.767,\"max\":4.831}";
	char json[256];

	snprintf(json, sizeof(json), "{\"t\":[{\"a\":%s,\"b\":%s}]}", cell, cell);
	assert_brief(json, &brief, true, "t:\n  a\n  4.799 [4.767 4.831]\n");
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
	    cmocka_unit_test(members_go_on_in_further_lines),
	    cmocka_unit_test(a_wide_table_loses_columns),
	    cmocka_unit_test(a_long_table_loses_rows_and_long_cells_their_ends),
	    cmocka_unit_test(numbers_are_not_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
