/*
 * The file of a picture. Room: tools/bench; see picture.h.
 */
#include "picture.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

/*
 * Opens a file for writing, and keeps what it holds: otherwise a bench that fails, or an option
 * that is wrong, would cost an older picture.
 */
static FILE *open_kept(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	FILE *out = fd < 0 ? NULL : fdopen(fd, "w");

	if (fd >= 0 && !out)
		close(fd);
	return out;
}

void fp_picture_option(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                       void *target)
{
	FILE *out = open_kept(text);

	if (!out)
		fp_tool_wrong(tool, "--%s %s: %s", option->name, text, strerror(errno));
	if (*(FILE **)target)
		fclose(*(FILE **)target);
	*(FILE **)target = out;
}

/* Drops what is left of an older file behind the picture. */
static int end_here(FILE *out)
{
	struct stat st;

	if (fflush(out) != 0 || fstat(fileno(out), &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) && ftruncate(fileno(out), ftello(out)) < 0 ? -errno : 0;
}

int fp_picture_close(const struct fp_tool *tool, FILE *out, int r)
{
	int end = end_here(out); /* its error says more than that of the drawing */

	if (fclose(out) != 0 && end == 0)
		end = -errno;
	r = end ?: r;
	if (r < 0)
		fp_log(FP_LOG_ERROR, tool->label, "the picture could not be written: %s", strerror(-r));
	return r < 0 ? 1 : 0;
}
