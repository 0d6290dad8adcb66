/*
 * Libraries that the program opens. RTLD_DEEPBIND would have such a one look for its symbols in
 * what it brings along, the C library included, before it looks here: it would free with the C
 * library's free what our malloc gave out. Room: preload.
 */
#include <assert.h>
#include <dlfcn.h>
#include <stdatomic.h>

static void *next(_Atomic(void *) *real, const char *name)
{
	void *found = atomic_load_explicit(real, memory_order_relaxed);

	if (!found) {
		found = dlsym(RTLD_NEXT, name);
		atomic_store_explicit(real, found, memory_order_relaxed);
	}
	return found;
}

/* Called by name alone, before each of the program's calls. */
__attribute__((used, visibility("hidden"))) void *fp_library_dlopen(void);
__attribute__((used, visibility("hidden"))) void *fp_library_dlmopen(void);

void *fp_library_dlopen(void)
{
	static _Atomic(void *) real;

	return next(&real, "dlopen");
}

void *fp_library_dlmopen(void)
{
	static _Atomic(void *) real;

	return next(&real, "dlmopen");
}

/* The C library goes by the return address: where it looks for the file, and in which namespace,
 * depends on the caller's own library. So nothing of ours may stand between. */
#define WITHOUT_DEEPBIND(name, find, flags)                                                                  \
	__asm__(".text\n"                                                                                    \
	        ".globl " name "\n"                                                                          \
	        ".type " name ", @function\n" name ":\n"                                                     \
	        "	.cfi_startproc\n"                                                                          \
	        "	push %rdi\n"                                                                               \
	        "	push %rsi\n"                                                                               \
	        "	push %rdx\n"                                                                               \
	        "	.cfi_adjust_cfa_offset 24\n"                                                               \
	        "	call " find "\n"                                                                     \
	        "	pop %rdx\n"                                                                                \
	        "	pop %rsi\n"                                                                                \
	        "	pop %rdi\n"                                                                                \
	        "	.cfi_adjust_cfa_offset -24\n"                                                              \
	        "	and $-9, " flags "\n"                                                                \
	        "	jmp *%rax\n"                                                                               \
	        "	.cfi_endproc\n"                                                                            \
	        ".size " name ", .-" name "\n")

static_assert(RTLD_DEEPBIND == 8, "the bit that is cleared");

WITHOUT_DEEPBIND("dlopen", "fp_library_dlopen", "%esi");
/* In a namespace of its own a library has a C library of its own either way. */
WITHOUT_DEEPBIND("dlmopen", "fp_library_dlmopen", "%edx");
