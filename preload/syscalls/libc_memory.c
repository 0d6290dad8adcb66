/*
 * Functions of the C library that would pass far memory to system calls of their own. Where the
 * kernel does not fault on far memory for us, these functions get local memory instead. In other
 * modes our versions only call those of the C library. Room: preload/syscalls.
 */
#include "libc_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "call_args.h"
#include "calls.h"
#include "imports.h"
#include "local.h"
#include "lookup.h"
#include "owner.h"
#include "shim.h"
#include "uring.h"

/* The C library's own buffers of streams and directories are never larger. */
#define OWN_MAX (1u << 20)

#define REMEDY "Keep that memory local (FARPAGE_HEAP, FARPAGE_MIN_MAPPING), or use fault mode thread"

/* ---- the C library's own allocations ---- */

static struct fp_libc_memory_code libc;
struct fp_libc_memory_code fp_libc_memory_loader;

static void look(const struct dl_phdr_info *info, struct fp_libc_memory_code *code)
{
	uintptr_t start = UINTPTR_MAX, end = 0;

	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *ph = &info->dlpi_phdr[i];

		if (ph->p_type != PT_LOAD)
			continue;
		if (info->dlpi_addr + ph->p_vaddr < start)
			start = info->dlpi_addr + ph->p_vaddr;
		if (info->dlpi_addr + ph->p_vaddr + ph->p_memsz > end)
			end = info->dlpi_addr + ph->p_vaddr + ph->p_memsz;
	}
	if (code->known < start || code->known >= end)
		return;
	code->start = start;
	code->end = end;
}

static int look_at_library(struct dl_phdr_info *info, size_t size, void *unused)
{
	look(info, &libc);
	look(info, &fp_libc_memory_loader);
	return 0;
}

void fp_libc_memory_open(void)
{
	libc.known = (uintptr_t)fp_imports_find("fopen");
	if (!libc.known) /* a build with a sanitizer binds no imports */
		libc.known = (uintptr_t)fp_lookup_next("fopen", NULL);
	fp_libc_memory_loader.known = getauxval(AT_BASE);
	dl_iterate_phdr(look_at_library, NULL);
}

bool fp_libc_memory_wants_local(const void *code, size_t size)
{
	return size <= OWN_MAX &&
	       ((uintptr_t)code - libc.start < libc.end - libc.start || fp_libc_memory_is_loader(code));
}

/* True if addr is far and this thread's calls must not hand far memory to the kernel. */
static bool is_awkward(const void *addr)
{
	return fp_calls_hold() && !fp_local_is_agent() && fp_call_args_far(addr, 1);
}

/*
 * strdup and strndup of our own. The C library's versions would get local memory, as their code
 * lies in the C library. But the copy is the program's, so it may be far. Our own code calls the
 * names with __wrap_: the linker sees to that.
 */
char *__wrap_strndup(const char *s, size_t max);
char *__wrap_strdup(const char *s);

char *__wrap_strndup(const char *s, size_t max)
{
	size_t len = strnlen(s, max);
	char *copy = malloc(len + 1);

	if (!copy)
		return NULL;
	memcpy(copy, s, len);
	copy[len] = '\0';
	return copy;
}

char *__wrap_strdup(const char *s)
{
	return __wrap_strndup(s, SIZE_MAX - 1);
}

/* A program with an allocator of its own gets the copy from that one, by the C library's
 * version. */
FP_INTERPOSE char *strndup(const char *s, size_t max)
{
	return fp_owner_file() ? FP_NEXT(strndup)(s, max) : __wrap_strndup(s, max);
}

FP_INTERPOSE char *strdup(const char *s)
{
	return fp_owner_file() ? FP_NEXT(strdup)(s) : __wrap_strdup(s);
}

FP_ALSO_AS(strndup) __typeof__(strndup) __strndup;
FP_ALSO_AS(strdup) __typeof__(strdup) __strdup;

/* ---- buffers and stacks of the program: far ones are replaced by the C library's ---- */

FP_INTERPOSE int setvbuf(FILE *stream, char *buffer, int mode, size_t size)
{
	return FP_NEXT(setvbuf)(stream, buffer && is_awkward(buffer) ? NULL : buffer, mode, size);
}

FP_INTERPOSE void setbuffer(FILE *stream, char *buffer, size_t size)
{
	setvbuf(stream, buffer, buffer ? _IOFBF : _IONBF, size);
}

FP_ALSO_AS(setvbuf) __typeof__(setvbuf) _IO_setvbuf;
FP_ALSO_AS(setbuffer) __typeof__(setbuffer) _IO_setbuffer;

FP_INTERPOSE void setbuf(FILE *stream, char *buffer)
{
	setbuffer(stream, buffer, BUFSIZ);
}

/*
 * True if the stack is far. The C library keeps its record of a thread at the end of the stack. The
 * kernel writes there when it no longer serves the thread's faults.
 */
static bool is_far_stack(const void *stack)
{
	static atomic_bool said;

	if (!fp_shim_agent() || fp_local_is_agent() || !fp_call_args_far(stack, 1))
		return false;
	fp_shim_say_once(&said,
	                 "pthread_attr_setstack: a stack in far memory is not used, the thread gets one "
	                 "of the C library's of the same size. Keep that memory local (FARPAGE_HEAP, "
	                 "FARPAGE_MIN_MAPPING)");
	return true;
}

/*
 * True if the attributes have a stack already. A stack can't be taken out of attributes, so the
 * next thread would run on the old one. Therefore a far stack is then refused.
 */
static bool has_stack(const pthread_attr_t *attr)
{
	size_t size;
	void *stack;

	return pthread_attr_getstack(attr, &stack, &size) == 0 && (uintptr_t)stack + size != 0;
}

FP_INTERPOSE int pthread_attr_setstack(pthread_attr_t *attr, void *stack, size_t size)
{
	if (!is_far_stack(stack))
		return FP_NEXT(pthread_attr_setstack)(attr, stack, size);
	return has_stack(attr) ? EINVAL : pthread_attr_setstacksize(attr, size);
}

/* Has another name in C, as our headers call the real function deprecated. */
FP_INTERPOSE int pthread_attr_setstack_of_old(pthread_attr_t *attr,
                                              void *stack) __asm__("pthread_attr_setstackaddr");

int pthread_attr_setstack_of_old(pthread_attr_t *attr, void *stack)
{
	if (!is_far_stack((char *)stack - 1))
		return ((__typeof__(&pthread_attr_setstack_of_old))fp_lookup_next("pthread_attr_setstackaddr",
		                                                                  NULL))(attr, stack);
	return has_stack(attr) ? EINVAL : 0;
}

/* ---- formatted output: long strings go from the caller's memory to the kernel ---- */

int __vfprintf_chk(FILE *stream, int flag, const char *format, va_list args);
int __fprintf_chk(FILE *stream, int flag, const char *format, ...);
int __vprintf_chk(int flag, const char *format, va_list args);
int __printf_chk(int flag, const char *format, ...);
int __vasprintf_chk(char **ret_s, int flag, const char *format, va_list args);
int __vdprintf_chk(int fd, int flag, const char *format, va_list args);
int __dprintf_chk(int fd, int flag, const char *format, ...);

#define UNCHECKED 0 /* tells the checking functions not to check */

/* Formats the whole text first, then writes it as one buffer. */
__attribute__((format(printf, 3, 0))) static int print(FILE *stream, int flag, const char *format,
                                                       va_list args)
{
	char *s;
	int n;

	if (!fp_calls_hold() || fp_local_is_agent())
		return FP_NEXT(__vfprintf_chk)(stream, flag, format, args);
	n = __vasprintf_chk(&s, flag, format, args);
	if (n < 0)
		return n;
	if (fwrite(s, 1, (size_t)n, stream) != (size_t)n)
		n = -1;
	free(s);
	return n;
}

/* The same to a descriptor. */
__attribute__((format(printf, 3, 0))) static int print_to(int fd, int flag, const char *format, va_list args)
{
	ssize_t written = 0;
	size_t done = 0;
	char *s;
	int n;

	if (!fp_calls_hold() || fp_local_is_agent())
		return FP_NEXT(__vdprintf_chk)(fd, flag, format, args);
	n = __vasprintf_chk(&s, flag, format, args);
	if (n < 0)
		return n;
	while (done < (size_t)n && (written = write(fd, s + done, (size_t)n - done)) > 0)
		done += (size_t)written;
	free(s);
	return done < (size_t)n ? -1 : n;
}

FP_INTERPOSE int vfprintf(FILE *stream, const char *format, va_list args)
{
	return print(stream, UNCHECKED, format, args);
}

FP_INTERPOSE int vprintf(const char *format, va_list args)
{
	return print(stdout, UNCHECKED, format, args);
}

FP_INTERPOSE __attribute__((format(printf, 3, 0))) int __vfprintf_chk(FILE *stream, int flag,
                                                                      const char *format, va_list args)
{
	return print(stream, flag, format, args);
}

FP_INTERPOSE __attribute__((format(printf, 2, 0))) int __vprintf_chk(int flag, const char *format,
                                                                     va_list args)
{
	return print(stdout, flag, format, args);
}

/* The body of each function below: they differ only in where the format's arguments begin. */
#define PRINT(way, to, flag, format)                                                                         \
	({                                                                                                   \
		va_list args;                                                                                \
		int n;                                                                                       \
                                                                                                             \
		va_start(args, format);                                                                      \
		n = way(to, flag, format, args);                                                             \
		va_end(args);                                                                                \
		n;                                                                                           \
	})

FP_INTERPOSE int fprintf(FILE *stream, const char *format, ...)
{
	return PRINT(print, stream, UNCHECKED, format);
}

FP_INTERPOSE int printf(const char *format, ...)
{
	return PRINT(print, stdout, UNCHECKED, format);
}

FP_ALSO_AS(vfprintf) __typeof__(vfprintf) _IO_vfprintf;
FP_ALSO_AS(fprintf) __typeof__(fprintf) _IO_fprintf;
FP_ALSO_AS(printf) __typeof__(printf) _IO_printf;

FP_INTERPOSE __attribute__((format(printf, 3, 4))) int __fprintf_chk(FILE *stream, int flag,
                                                                     const char *format, ...)
{
	return PRINT(print, stream, flag, format);
}

FP_INTERPOSE __attribute__((format(printf, 2, 3))) int __printf_chk(int flag, const char *format, ...)
{
	return PRINT(print, stdout, flag, format);
}

FP_INTERPOSE int vdprintf(int fd, const char *format, va_list args)
{
	return print_to(fd, UNCHECKED, format, args);
}

FP_INTERPOSE __attribute__((format(printf, 3, 0))) int __vdprintf_chk(int fd, int flag, const char *format,
                                                                      va_list args)
{
	return print_to(fd, flag, format, args);
}

FP_INTERPOSE int dprintf(int fd, const char *format, ...)
{
	return PRINT(print_to, fd, UNCHECKED, format);
}

FP_INTERPOSE __attribute__((format(printf, 3, 4))) int __dprintf_chk(int fd, int flag, const char *format,
                                                                     ...)
{
	return PRINT(print_to, fd, flag, format);
}

/* ---- libraries whose system calls do not go through the C library ---- */

/* Finds a library's function, by dlopen or by RTLD_NEXT. */
static fp_uring_fn *find(const char *soname, const char *name)
{
	void *library = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
	fp_uring_fn *fn = library ? (fp_uring_fn *)fp_lookup_dlsym()(library, name) : NULL;

	if (library)
		dlclose(library);
	return fn ? fn : (fp_uring_fn *)fp_lookup_next(name, NULL);
}

/* Returns the function. If it may not be called, logs a message and returns NULL. */
static fp_uring_fn *find_permitted(const char *soname, const char *name)
{
	static atomic_bool said;

	if (!fp_calls_hold() || fp_local_is_agent())
		return find(soname, name);
	fp_shim_say_once(
	    &said, "%s was refused: the kernel would use memory after the call, which may be far. " REMEDY,
	    name);
	return NULL;
}

static int plainly(fp_uring_fn *real, long a, long b, long c)
{
	return real(a, b, c);
}

/* Defines a function that sets up rings or contexts. Both libraries return a negative errno. */
#define SETUP(soname, name, way)                                                                             \
	FP_INTERPOSE int name(long a, long b, long c);                                                       \
	int name(long a, long b, long c)                                                                     \
	{                                                                                                    \
		fp_uring_fn *real = find_permitted(soname, #name);                                           \
                                                                                                             \
		return real ? way(real, a, b, c) : -ENOSYS;                                                  \
	}

SETUP("libaio.so.1", io_setup, plainly)
SETUP("libaio.so.1", io_queue_init, plainly)
SETUP("liburing.so.2", io_uring_queue_init, fp_uring_queue)
SETUP("liburing.so.2", io_uring_queue_init_params, fp_uring_queue_params)
