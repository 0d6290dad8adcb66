/*
 * Fuzz target: a histogram of a damaged file. Every ten bytes set one word of an empty histogram:
 * its index, then its value. What passes the check can be printed, and added to another.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "fuzz.h"
#include "hist.h"

#define WORDS (sizeof(struct fp_hist) / sizeof(uint64_t))

static void count_line(void *user, const char *text)
{
	(*(unsigned *)user)++;
	assert(strlen(text) < 256);
}

static void check(const struct fp_hist *h)
{
	static struct fp_hist sum;
	fp_autofclose FILE *out = fopen("/dev/null", "w");
	unsigned lines = 0;

	if (!out)
		abort();
	for (unsigned format = FP_HIST_TEXT; format <= FP_HIST_HGRM; format++)
		assert(fp_hist_print(h, format, "fuzz", 0, out) == 0);
	memset(&sum, 0, sizeof(sum));
	fp_hist_merge(&sum, h);
	assert(fp_hist_check(&sum) == 0);
	fp_hist_bars(&sum, 5, 60, count_line, &lines);
	assert(lines <= 5 && (lines > 0) == (fp_hist_count(&sum) > 0));
	assert(fp_hist_covers(&sum, h));
	fp_hist_subtract(&sum, h);
	assert(fp_hist_count(&sum) == 0 && fp_hist_check(&sum) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	static struct fp_hist h;
	uint64_t value;
	uint16_t index;
	int r;

	memset(&h, 0, sizeof(h));
	for (; len >= sizeof(index) + sizeof(value); bytes += 10, len -= 10) {
		memcpy(&index, bytes, sizeof(index));
		memcpy(&value, bytes + sizeof(index), sizeof(value));
		memcpy((char *)&h + index % WORDS * sizeof(value), &value, sizeof(value));
	}
	r = fp_hist_check(&h);
	assert(r == 0 || r == -EBADMSG);
	if (r == 0)
		check(&h);
	return 0;
}
