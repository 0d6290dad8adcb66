/*
 * exec functions that use the caller's environment, or take their arguments one by one. They are
 * interposed because the C library's versions would bypass the row of execve in calls.def. Room:
 * preload/process.
 */
#include <alloca.h>
#include <stdarg.h>
#include <stdint.h>
#include <unistd.h>

#include "shim.h"

typedef int exec_fn(const char *path, char *const argv[], char *const env[]);

FP_INTERPOSE int execv(const char *path, char *const argv[])
{
	return execve(path, argv, environ);
}

FP_INTERPOSE int execvp(const char *file, char *const argv[])
{
	return execvpe(file, argv, environ);
}

/*
 * Collects arguments up to their NULL, on the stack. These calls are async-signal safe, so malloc
 * is forbidden.
 */
static int exec_list(exec_fn *exec, bool has_env, const char *path, const char *first, va_list *args)
{
	va_list counted;
	char **argv;
	size_t n = 0;

	va_copy(counted, *args);
	for (const char *arg = first; arg; arg = va_arg(counted, const char *))
		n++;
	va_end(counted);
	argv = alloca((n + 1) * sizeof(*argv));
	argv[0] = (char *)(uintptr_t)first;
	for (size_t i = 1; i <= n; i++)
		argv[i] = va_arg(*args, char *);
	return exec(path, argv, has_env ? va_arg(*args, char *const *) : environ);
}

FP_INTERPOSE int execl(const char *path, const char *arg, ...)
{
	va_list args;
	int r;

	va_start(args, arg);
	r = exec_list(execve, false, path, arg, &args);
	va_end(args);
	return r;
}

FP_INTERPOSE int execle(const char *path, const char *arg, ...)
{
	va_list args;
	int r;

	va_start(args, arg);
	r = exec_list(execve, true, path, arg, &args);
	va_end(args);
	return r;
}

FP_INTERPOSE int execlp(const char *file, const char *arg, ...)
{
	va_list args;
	int r;

	va_start(args, arg);
	r = exec_list(execvpe, false, file, arg, &args);
	va_end(args);
	return r;
}
