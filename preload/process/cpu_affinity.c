/*
 * The CPUs of the program's threads. While the agent holds a thread on its own CPU, what the thread
 * starts must not inherit that, and what it asks must be answered as if it were not so. Room:
 * preload.
 */
#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "calls.h"
#include "shim.h"

/* The C library's own function of that name; looked up at each call: none of these is called
 * often. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The C library's, with what it hands to the kernel held. */
FP_INNER_CALL(posix_spawn);
FP_INNER_CALL(posix_spawnp);
FP_INNER_CALL(system);
FP_INNER_CALL(popen);
FP_INNER_CALL(execvpe);
FP_INNER_CALL(fexecve);
FP_INNER_CALL(sched_getaffinity);
FP_INNER_CALL(sched_setaffinity);
FP_INNER_CALL(pthread_getaffinity_np);
FP_INNER_CALL(pthread_setaffinity_np);

static void release_cpu(void)
{
	struct fp_agent *agent = fp_shim_agent();

	if (agent)
		fp_agent_affinity_release(agent);
}

/* ---- what a thread starts ---- */

FP_INTERPOSE int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                             const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	pid_t child; /* pid may be far, and the C library writes it with signals blocked */
	int r;

	release_cpu();
	r = fp_call_posix_spawn(&child, path, actions, attr, argv, env);
	if (r == 0 && pid)
		*pid = child;
	return r;
}

FP_INTERPOSE int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                              const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	pid_t child; /* pid may be far, and the C library writes it with signals blocked */
	int r;

	release_cpu();
	r = fp_call_posix_spawnp(&child, file, actions, attr, argv, env);
	if (r == 0 && pid)
		*pid = child;
	return r;
}

FP_INTERPOSE int system(const char *command)
{
	release_cpu();
	return fp_call_system(command);
}

FP_INTERPOSE FILE *popen(const char *command, const char *mode)
{
	release_cpu();
	return fp_call_popen(command, mode);
}

FP_INTERPOSE int execve(const char *path, char *const argv[], char *const env[])
{
	release_cpu();
	return (int)syscall(SYS_execve, path, argv, env);
}

FP_INTERPOSE int execv(const char *path, char *const argv[])
{
	return execve(path, argv, environ);
}

FP_INTERPOSE int execvpe(const char *file, char *const argv[], char *const env[])
{
	release_cpu();
	return fp_call_execvpe(file, argv, env);
}

FP_INTERPOSE int execvp(const char *file, char *const argv[])
{
	return execvpe(file, argv, environ);
}

FP_INTERPOSE int fexecve(int fd, char *const argv[], char *const env[])
{
	release_cpu();
	return fp_call_fexecve(fd, argv, env);
}

FP_INTERPOSE int execveat(int dir_fd, const char *path, char *const argv[], char *const env[], int flags)
{
	release_cpu();
	return (int)syscall(SYS_execveat, dir_fd, path, argv, env, flags);
}

/* How many arguments there are, the NULL at their end not counted. */
static size_t count_arguments(const char *first, va_list args)
{
	size_t n = 0;

	for (const char *arg = first; arg; arg = va_arg(args, const char *))
		n++;
	return n;
}

/* Fills argv[n + 1] and leaves args behind the NULL. On the caller's stack: these calls are
 * async-signal safe. */
static void collect_arguments(const char *first, va_list *args, char **argv, size_t n)
{
	argv[0] = (char *)(uintptr_t)first;
	for (size_t i = 1; i <= n; i++)
		argv[i] = va_arg(*args, char *);
}

FP_INTERPOSE int execl(const char *path, const char *arg, ...)
{
	va_list args;
	char **argv;
	size_t n;

	va_start(args, arg);
	n = count_arguments(arg, args);
	va_end(args);
	argv = alloca((n + 1) * sizeof(*argv));
	va_start(args, arg);
	collect_arguments(arg, &args, argv, n);
	va_end(args);
	return execve(path, argv, environ);
}

FP_INTERPOSE int execle(const char *path, const char *arg, ...)
{
	char *const *env;
	va_list args;
	char **argv;
	size_t n;

	va_start(args, arg);
	n = count_arguments(arg, args);
	va_end(args);
	argv = alloca((n + 1) * sizeof(*argv));
	va_start(args, arg);
	collect_arguments(arg, &args, argv, n);
	env = va_arg(args, char *const *);
	va_end(args);
	return execve(path, argv, env);
}

FP_INTERPOSE int execlp(const char *file, const char *arg, ...)
{
	va_list args;
	char **argv;
	size_t n;

	va_start(args, arg);
	n = count_arguments(arg, args);
	va_end(args);
	argv = alloca((n + 1) * sizeof(*argv));
	va_start(args, arg);
	collect_arguments(arg, &args, argv, n);
	va_end(args);
	return execvpe(file, argv, environ);
}

/* ---- what a thread asks and chooses ---- */

static pid_t this_thread(void)
{
	return (pid_t)syscall(SYS_gettid);
}

static bool original(pid_t tid, size_t size, cpu_set_t *ret_set)
{
	struct fp_agent *agent = fp_shim_agent();
	cpu_set_t set;

	if (!agent || !fp_agent_affinity_original(agent, tid ? tid : this_thread(), &set))
		return false;
	memset(ret_set, 0, size);
	memcpy(ret_set, &set, size < sizeof(set) ? size : sizeof(set));
	return true;
}

FP_INTERPOSE int sched_getaffinity(pid_t tid, size_t size, cpu_set_t *ret_set)
{
	return original(tid, size, ret_set) ? 0 : fp_call_sched_getaffinity(tid, size, ret_set);
}

FP_INTERPOSE int sched_setaffinity(pid_t tid, size_t size, const cpu_set_t *set)
{
	release_cpu();
	return fp_call_sched_setaffinity(tid, size, set);
}

FP_INTERPOSE int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *ret_set)
{
	if (pthread_equal(thread, pthread_self()) && original(0, size, ret_set))
		return 0;
	return fp_call_pthread_getaffinity_np(thread, size, ret_set);
}

FP_INTERPOSE int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *set)
{
	release_cpu();
	return fp_call_pthread_setaffinity_np(thread, size, set);
}
