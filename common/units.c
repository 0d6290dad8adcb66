/*
 * Sizes and times as people write them. Room: common. This file reads and writes decimal fractions
 * by itself: strtod and printf would use the decimal comma of the program's locale.
 */
#include "units.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "clock.h"

#define NANO 1000000000u

#define PERCENT 100u /* hundredths of a percent */

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit size_units[] = {
    {"", 1},
    {"B", 1},
    {"K", 1ull << 10},
    {"k", 1ull << 10},
    {"KiB", 1ull << 10},
    {"M", 1ull << 20},
    {"m", 1ull << 20},
    {"MiB", 1ull << 20},
    {"G", 1ull << 30},
    {"g", 1ull << 30},
    {"GiB", 1ull << 30},
    {"T", 1ull << 40},
    {"t", 1ull << 40},
    {"TiB", 1ull << 40},
    {"PiB", 1ull << 50},
    {"EiB", 1ull << 60},
    {NULL, 0},
};

static const struct unit time_units[] = {
    {"", FP_NSEC_PER_SEC},
    {"ns", 1},
    {"us", FP_NSEC_PER_USEC},
    {"µs", FP_NSEC_PER_USEC},
    {"ms", FP_NSEC_PER_MSEC},
    {"s", FP_NSEC_PER_SEC},
    {"m", 60 * FP_NSEC_PER_SEC},
    {"h", 3600 * FP_NSEC_PER_SEC},
    {NULL, 0},
};

static const struct unit percent_units[] = {{"", PERCENT}, {"%", PERCENT}, {NULL, 0}};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/*
 * Reads DIGITS[.DIGITS]. *ret_whole is the part before the point, or a number just above UINT64_MAX
 * if that part is larger. *ret_nano is the part after the point, in billionths. Returns the text
 * that follows, or NULL if text does not begin with such a number.
 */
static const char *scan_decimal(const char *text, unsigned __int128 *ret_whole, uint32_t *ret_nano)
{
	unsigned __int128 whole = 0;
	uint32_t nano = 0;

	if (!is_digit(*text))
		return NULL;
	for (; is_digit(*text); text++)
		if (whole <= UINT64_MAX)
			whole = whole * 10 + (unsigned)(*text - '0');
	if (*text == '.') {
		if (!is_digit(*++text))
			return NULL;
		for (uint32_t place = NANO / 10; is_digit(*text); text++, place /= 10)
			nano += place * (uint32_t)(*text - '0');
	}
	*ret_whole = whole;
	*ret_nano = nano;
	return text;
}

/*
 * Parses NUMBER[ ]UNIT into bytes or nanoseconds. Cuts off what is smaller than 1 byte or 1 ns.
 * Refuses a fraction if the unit is the byte or the nanosecond itself.
 */
static int parse(const char *text, const struct unit *units, uint64_t *ret_value)
{
	unsigned __int128 whole, value;
	uint32_t nano;
	const char *suffix = scan_decimal(text, &whole, &nano);

	if (!suffix)
		return -EINVAL;
	if (suffix[0] == ' ' && suffix[1] != '\0')
		suffix++;
	while (units->name && strcmp(units->name, suffix) != 0)
		units++;
	if (!units->name || (units->factor == 1 && nano != 0))
		return -EINVAL;
	value = whole * units->factor + (unsigned __int128)nano * units->factor / NANO;
	if (value > UINT64_MAX)
		return -ERANGE;
	*ret_value = (uint64_t)value;
	return 0;
}

int fp_number_parse(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value)
{
	size_t len = strlen(text);
	unsigned long long value;

	if (len == 0 || strspn(text, "0123456789") != len)
		return -EINVAL;
	errno = 0;
	value = strtoull(text, NULL, 10);
	if (errno || value < min || value > max)
		return -ERANGE;
	*ret_value = value;
	return 0;
}

int fp_size_parse(const char *text, uint64_t *ret_bytes)
{
	return parse(text, size_units, ret_bytes);
}

int fp_time_parse(const char *text, uint64_t *ret_ns)
{
	return parse(text, time_units, ret_ns);
}

int fp_percent_parse(const char *text, uint64_t *ret_hundredths)
{
	uint64_t value;
	int r = parse(text, percent_units, &value);

	if (r < 0)
		return r;
	if (value == 0 || value > 100 * PERCENT)
		return -ERANGE;
	*ret_hundredths = value;
	return 0;
}

/* Writes "12.34 unit" with the given number of decimals (0 to 2), rounded to nearest. */
static const char *format(double value, unsigned decimals, const char *unit, char *buf, size_t len)
{
	static const unsigned scale[] = {1, 10, 100};
	uint64_t fixed = (uint64_t)(value * scale[decimals] + 0.5);
	uint64_t whole = fixed / scale[decimals], fraction = fixed % scale[decimals];

	if (decimals == 0)
		snprintf(buf, len, "%llu %s", (unsigned long long)whole, unit);
	else
		snprintf(buf, len, "%llu.%0*u %s", (unsigned long long)whole, (int)decimals,
		         (unsigned)fraction, unit);
	return buf;
}

/*
 * A value from 1023.95 on is printed in the next larger unit. Otherwise it would be rounded to
 * "1024.0". The bounds of fp_time_format are chosen in the same way.
 */
const char *fp_size_format(uint64_t bytes, char *buf, size_t len)
{
	static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)bytes;
	unsigned i = 0;

	for (; value >= 1023.95 && i + 1 < FP_ARRAY_LEN(names); i++)
		value /= 1024;
	return format(value, i == 0 ? 0 : 1, names[i], buf, len);
}

const char *fp_plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

const char *fp_time_format(uint64_t ns, char *buf, size_t len)
{
	static const char *const names[] = {"ns", "µs", "ms", "s"};
	double value = (double)ns;
	unsigned i = 0;

	for (; value >= 999.5 && i + 1 < FP_ARRAY_LEN(names); i++)
		value /= 1000;
	return format(value, i == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, names[i], buf, len);
}
