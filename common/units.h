/*
 * Numbers, sizes and times as people write them. Room: common.
 */
#ifndef FP_UNITS_H
#define FP_UNITS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Reads a whole number within min..max: digits only, no sign or space. Returns 0 and *ret_value,
 * -EINVAL if text is not a number, or -ERANGE if it is outside min..max.
 */
int fp_number_parse(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value);

/*
 * Reads a size in binary units: "4096", "64K", "64KiB", "4G", "1.5G", "2T". Returns 0 and
 * *ret_bytes, -EINVAL if text is not a size, or -ERANGE if it is too large for 64 bits.
 */
int fp_size_parse(const char *text, uint64_t *ret_bytes);

/*
 * Reads a time: "5s", "200ms", "50us", "1m", "2h"; a plain number is seconds. Returns 0 and
 * *ret_ns, -EINVAL if text is not a time, or -ERANGE if it is too large for 64 bits.
 */
int fp_time_parse(const char *text, uint64_t *ret_ns);

/*
 * Reads a part of a whole in percent: "50", "50%", "12.5". Returns 0 and *ret_hundredths, the
 * number of hundredths of a percent; -EINVAL if text is not such a number; or -ERANGE if it is 0 or
 * above 100 %.
 */
int fp_percent_parse(const char *text, uint64_t *ret_hundredths);

/* The ending of a noun after the number n: "" or "s". */
const char *fp_plural(uint64_t n);

/* Writes "64.0 MiB", "3.2 GiB", "512 B" into buf (at least 16 bytes) and returns buf. */
const char *fp_size_format(uint64_t bytes, char *buf, size_t len);

/* Writes "4.21 µs", "1.30 s" into buf (at least 16 bytes) and returns buf. */
const char *fp_time_format(uint64_t ns, char *buf, size_t len);

#endif
