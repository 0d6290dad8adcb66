/* See end.h. */
#include "end.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "log.h"

#define EXIT_REFUSED   125
#define TEXT_MAX_BYTES 900

static void say(const char *subsystem, const char *format, va_list args)
{
	char text[TEXT_MAX_BYTES];

	vsnprintf(text, sizeof(text), format, args);
	fp_log(FP_LOG_ERROR, subsystem, "%s", text);
}

void fp_end_refused(const char *subsystem, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say(subsystem, format, args);
	va_end(args);
	_exit(EXIT_REFUSED);
}

void fp_end_aborted(const char *subsystem, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say(subsystem, format, args);
	va_end(args);
	abort();
}
