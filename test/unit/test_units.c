/* Sizes and times: which texts are accepted and which refused. Our own output can be read back. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "testrng.h"
#include "units.h"

#define KEPT 12345u /* an output must keep this value on failure */

struct parse_case {
	const char *text;
	int result;
	uint64_t value;
};

static void check_parse(int (*parse)(const char *, uint64_t *), const struct parse_case *c)
{
	uint64_t value = KEPT;
	int r = parse(c->text, &value);

	if (r != c->result || value != (r == 0 ? c->value : KEPT))
		fail_msg("'%s': %d, %" PRIu64 "; expected %d, %" PRIu64, c->text, r, value, c->result,
		         c->value);
}

static void sizes_are_read(void **state)
{
	static const struct parse_case cases[] = {
	    {"0", 0, 0},
	    {"4096", 0, 4096},
	    {"512B", 0, 512},
	    {"64K", 0, 65536},
	    {"64k", 0, 65536},
	    {"64KiB", 0, 65536},
	    {"64 KiB", 0, 65536},
	    {"1.5G", 0, 1610612736},
	    {"0.25M", 0, 262144},
	    {"1.000000000000000G", 0, 1073741824},
	    {"0.001K", 0, 1},
	    {"2T", 0, 2199023255552},
	    {"4PiB", 0, 4503599627370496},
	    {"18446744073709551615", 0, UINT64_MAX},
	    {"15.5EiB", 0, 17870283321406128128u},
	    {"16EiB", -ERANGE, 0},
	    {"18446744073709551616", -ERANGE, 0},
	    {"16777216T", -ERANGE, 0},
	    {"99999999999999999999999999999999999999999999999999T", -ERANGE, 0},
	    {"", -EINVAL, 0},
	    {" 1", -EINVAL, 0},
	    {"1 ", -EINVAL, 0},
	    {"1  K", -EINVAL, 0},
	    {"-1", -EINVAL, 0},
	    {"+1", -EINVAL, 0},
	    {"K", -EINVAL, 0},
	    {"1.", -EINVAL, 0},
	    {".5G", -EINVAL, 0},
	    {"1.5", -EINVAL, 0},
	    {"1.5B", -EINVAL, 0},
	    {"1,5G", -EINVAL, 0},
	    {"1e3", -EINVAL, 0},
	    {"0x10", -EINVAL, 0},
	    {"1KB", -EINVAL, 0},
	    {"1Kx", -EINVAL, 0},
	    {"1GG", -EINVAL, 0},
	    {"1.2.3G", -EINVAL, 0},
	};

	for (unsigned i = 0; i < FP_ARRAY_LEN(cases); i++)
		check_parse(fp_size_parse, &cases[i]);
}

static void times_are_read(void **state)
{
	static const struct parse_case cases[] = {
	    {"5", 0, 5000000000},
	    {"0", 0, 0},
	    {"1.5", 0, 1500000000},
	    {"5s", 0, 5000000000},
	    {"200ms", 0, 200000000},
	    {"50us", 0, 50000},
	    {"50µs", 0, 50000},
	    {"7ns", 0, 7},
	    {"1m", 0, 60000000000},
	    {"0.5 h", 0, 1800000000000},
	    {"18446744073709551615ns", 0, UINT64_MAX},
	    {"18446744074", -ERANGE, 0},
	    {"5124096h", -ERANGE, 0},
	    {"1.5ns", -EINVAL, 0},
	    {"5S", -EINVAL, 0},
	    {"5sec", -EINVAL, 0},
	    {"-5s", -EINVAL, 0},
	    {"s", -EINVAL, 0},
	    {"", -EINVAL, 0},
	    {"5M", -EINVAL, 0},
	};

	for (unsigned i = 0; i < FP_ARRAY_LEN(cases); i++)
		check_parse(fp_time_parse, &cases[i]);
}

static void values_are_written(void **state)
{
	static const struct {
		uint64_t value;
		const char *size, *time;
	} cases[] = {
	    {0, "0 B", "0 ns"},
	    {512, "512 B", "512 ns"},
	    {999, "999 B", "999 ns"},
	    {1000, "1000 B", "1.00 µs"},
	    {1023, "1023 B", "1.02 µs"},
	    {1024, "1.0 KiB", "1.02 µs"},
	    {4210, "4.1 KiB", "4.21 µs"},
	    {9994, "9.8 KiB", "9.99 µs"},
	    {9995, "9.8 KiB", "10.0 µs"},
	    {99949, "97.6 KiB", "99.9 µs"},
	    {99950, "97.6 KiB", "100 µs"},
	    {999499, "976.1 KiB", "999 µs"},
	    {999500, "976.1 KiB", "1.00 ms"},
	    {1048524, "1023.9 KiB", "1.05 ms"},
	    {1048525, "1.0 MiB", "1.05 ms"},
	    {67108864, "64.0 MiB", "67.1 ms"},
	    {1300000000, "1.2 GiB", "1.30 s"},
	    {UINT64_MAX, "16.0 EiB", "18446744074 s"},
	};
	char buf[16];

	for (unsigned i = 0; i < FP_ARRAY_LEN(cases); i++) {
		assert_string_equal(fp_size_format(cases[i].value, buf, sizeof(buf)), cases[i].size);
		assert_string_equal(fp_time_format(cases[i].value, buf, sizeof(buf)), cases[i].time);
	}
}

/*
 * Printing loses at most half of the last digit: a twentieth of a unit for sizes, half a percent
 * for times.
 */
static void what_is_written_reads_back(void **state)
{
	uint64_t rng = test_seed(__func__);
	char buf[16];

	for (unsigned i = 0; i < 100000; i++) {
		uint64_t value = test_random(&rng) >> (2 + test_random(&rng) % 62), back = 0;

		assert_int_equal(fp_size_parse(fp_size_format(value, buf, sizeof(buf)), &back), 0);
		assert_true((back > value ? back - value : value - back) <= value / 20);
		assert_int_equal(fp_time_parse(fp_time_format(value, buf, sizeof(buf)), &back), 0);
		assert_true((back > value ? back - value : value - back) <= value / 200);
	}
}

static void percents_are_read(void **state)
{
	static const struct parse_case cases[] = {
	    {"50", 0, 5000},        {"50%", 0, 5000},
	    {"12.5", 0, 1250},      {"12.5%", 0, 1250},
	    {"100", 0, 10000},      {"0.01", 0, 1},
	    {"0", -ERANGE, 0},      {"0.001", -ERANGE, 0},
	    {"100.01", -ERANGE, 0}, {"99999999999999999999", -ERANGE, 0},
	    {"", -EINVAL, 0},       {"%", -EINVAL, 0},
	    {"-5", -EINVAL, 0},     {"50%%", -EINVAL, 0},
	    {"50M", -EINVAL, 0},    {"half", -EINVAL, 0},
	    {".5", -EINVAL, 0},
	};

	for (unsigned i = 0; i < FP_ARRAY_LEN(cases); i++)
		check_parse(fp_percent_parse, &cases[i]);
}

static void numbers_are_digits_within_a_range(void **state)
{
	static const char *const wrong[] = {"", "-1", "+1", " 1", "1 ", "0x1", "1K", "1.5"};
	uint64_t value = 7;

	for (unsigned i = 0; i < FP_ARRAY_LEN(wrong); i++)
		assert_int_equal(fp_number_parse(wrong[i], 0, UINT64_MAX, &value), -EINVAL);
	assert_int_equal(fp_number_parse("18446744073709551616", 0, UINT64_MAX, &value), -ERANGE);
	assert_int_equal(fp_number_parse("9", 10, 20, &value), -ERANGE);
	assert_int_equal(fp_number_parse("21", 10, 20, &value), -ERANGE);
	assert_int_equal(value, 7);
	assert_int_equal(fp_number_parse("0020", 10, 20, &value), 0);
	assert_int_equal(value, 20);
	assert_int_equal(fp_number_parse("18446744073709551615", 0, UINT64_MAX, &value), 0);
	assert_true(value == UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(numbers_are_digits_within_a_range),
	    cmocka_unit_test(percents_are_read),
	    cmocka_unit_test(sizes_are_read),
	    cmocka_unit_test(times_are_read),
	    cmocka_unit_test(values_are_written),
	    cmocka_unit_test(what_is_written_reads_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
