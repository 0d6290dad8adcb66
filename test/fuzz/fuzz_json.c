/* Fuzz target: any text as the status of a node, printed for people. */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "fuzz.h"
#include "node_status.h"

/*
 * Checks two things: no printed byte controls a terminal, and nothing is printed for a text that is
 * no JSON object.
 */
static void check(const char *text, bool all, unsigned width)
{
	char *shown = NULL;
	size_t shown_len = 0;
	FILE *out = open_memstream(&shown, &shown_len);
	int r = fp_node_status_print(text, all, width, width / 4, out);

	assert(fclose(out) == 0);
	assert(r == 0 || (r == -EINVAL && shown_len == 0));
	for (size_t i = 0; i < shown_len; i++) {
		unsigned char c = (unsigned char)shown[i];

		assert((c >= ' ' && c != 0x7f) || c == '\n');
		assert(c != 0xc2 || (unsigned char)shown[i + 1] >= 0xa0);
	}
	free(shown);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	fp_autofree char *text = strndup((const char *)bytes, len);

	check(text, true, 0);
	check(text, false, 80);
	check(text, false, 1);
	return 0;
}
