/*
 * The file of a picture. Room: tools/bench; see picture.h.
 */
#include "picture.h"

#include <errno.h>
#include <string.h>

#include "log.h"

void fp_picture_option(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                       void *target)
{
	FILE *out = fopen(text, "we");

	if (!out)
		fp_tool_wrong(tool, "--%s %s: %s", option->name, text, strerror(errno));
	if (*(FILE **)target)
		fclose(*(FILE **)target);
	*(FILE **)target = out;
}

int fp_picture_close(const struct fp_tool *tool, FILE *out, int r)
{
	if (fclose(out) != 0 && r == 0)
		r = -errno;
	if (r < 0)
		fp_log(FP_LOG_ERROR, tool->label, "the picture could not be written: %s", strerror(-r));
	return r < 0 ? 1 : 0;
}
