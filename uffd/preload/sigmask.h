/*
 * The threads' signal masks, where SIGBUS is how faults are served: the kernel never has it blocked, as it
 * would end a process that faults then. What the program blocks and asks for is kept by thread, as far as
 * SIGBUS goes. Room: uffd/preload.
 */
#ifndef FP_SIGMASK_H
#define FP_SIGMASK_H

#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* From now on SIGBUS is ours; unblocks it on the calling thread, the only one there is. */
void fp_sigmask_open(void);
bool fp_sigmask_is_open(void);

/* Takes SIGBUS out of a mask, in the kernel's form or the C library's; nothing if it is not ours. */
void fp_sigmask_strip(void *mask);

/* What the calling thread has blocked, as it believes; and what a new thread inherits, which it calls first.
 */
bool fp_sigmask_blocks(void);
void fp_sigmask_inherit(bool blocks);

/* A SIGBUS that was sent, not raised by a fault: true if the thread has it blocked and gets it later. */
bool fp_sigmask_defer(void);

/* The system call rt_sigprocmask, as syscall(2) has it: -1 and errno. */
long fp_sigmask_by_number(int how, const void *set, void *ret_old, size_t size);

/*
 * Brackets a system call that replaces the program by another, which shall find blocked what this one
 * believes to be; args are what is on its way to the kernel. False: there is nothing to do, and no end.
 */
bool fp_sigmask_begin_exec(const void *args);
void fp_sigmask_end_exec(void);
/* True and *ret_copy, to be destroyed: the attributes, which may be NULL, for a child that shall find so. */
bool fp_sigmask_spawn(const posix_spawnattr_t *attr, posix_spawnattr_t *ret_copy);

/* Puts SIGBUS into a mask, in the kernel's form, if the thread believes to have it blocked. */
void fp_sigmask_show(uint64_t *mask);
/* The calling thread returns to a mask: from now on it believes of SIGBUS what that says. */
void fp_sigmask_adopt(const uint64_t *mask);

/* Sets the kernel's mask of the calling thread as it is, for a handler that is about to run; sigreturn undoes
 * it. */
void fp_sigmask_enter(const sigset_t *mask);

#endif
