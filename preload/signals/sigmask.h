/*
 * The threads' signal masks, where SIGBUS is how faults are served: the kernel never has it blocked, as it
 * would end a process that faults then. What the program blocks and asks for is kept by thread, as far as
 * SIGBUS goes. Room: preload.
 */
#ifndef FP_SIGMASK_H
#define FP_SIGMASK_H

#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* From now on SIGBUS is ours; unblocks it on the calling thread, the only one there is. */
void fp_sigmask_open(void);
bool fp_sigmask_is_open(void);

/* Takes SIGBUS out of a mask, in the kernel's form or the C library's; nothing if it is not ours. */
void fp_sigmask_strip(void *mask);

/* What the calling thread has blocked, as it believes; and what a new thread inherits, which it calls first.
 */
bool fp_sigmask_blocks(void);
void fp_sigmask_inherit(bool blocks);

/* A SIGBUS that was sent, not raised by a fault: true if the thread has it blocked and gets it later.
 * context: what it interrupted. */
bool fp_sigmask_defer(const siginfo_t *info, const void *context);
/* Whether there is such a one; takes it, and tells what was sent. In a forked child there is none. */
bool fp_sigmask_has_pending(void);
bool fp_sigmask_take_pending(siginfo_t *ret_info);
void fp_sigmask_forked(void);

/* The thread is about to wait for SIGBUS, among others, for no longer than this, which lies in memory of its
 * own: if one comes before the kernel has read it, it becomes zero. NULL: no more. Returns what was noted. */
struct timespec *fp_sigmask_note_timeout(struct timespec *timeout);

/*
 * A call that waits under a mask of its own (sigsuspend, ppoll and the like). In a handler that ends the wait
 * that mask is the one added to, but the kernel only tells the handler which one to return to.
 */
struct fp_sigmask_wait {
	const void *kernels; /* the address that the kernel gets; NULL: there is no such call */
	uint64_t asked;      /* as the program has it, SIGBUS included */
};

/* The calling thread is about to wait so. Returns what was noted before, to be noted again afterwards. */
struct fp_sigmask_wait fp_sigmask_note_wait(struct fp_sigmask_wait wait);

/* True if such a call need not wait: a SIGBUS that was pending has been delivered, as in the call. */
bool fp_sigmask_ends_wait(const struct fp_sigmask_wait *wait);
/* A handler is about to run: if that is why, the mask to return to is the one before the call. */
void fp_sigmask_leave_wait(uint64_t *mask);

/* The mask that a handler's is added to: what context, which the signal interrupted, ran under. With SIGBUS
 * as the program believes. */
uint64_t fp_sigmask_of_context(const void *context);

/* The system call rt_sigprocmask, as syscall(2) has it: -1 and errno. */
long fp_sigmask_by_number(int how, const void *set, void *ret_old, size_t size);

/* The system calls rt_sigtimedwait and rt_sigpending, as above. */
long fp_sigwait_by_number(const void *set, void *ret_info, const void *timeout, size_t size);
long fp_sigpending_by_number(void *set, size_t size);

/* What the calling thread believes, as a word; and back, after a child that has used this thread. */
unsigned fp_sigmask_belief(void);
void fp_sigmask_believe(unsigned belief);

/*
 * Brackets a system call that replaces the program by another, which shall find blocked, or ignored, what
 * this one believes to be; args are what is on its way to the kernel. False: there is nothing to do, and no
 * end.
 */
bool fp_sigmask_begin_exec(const void *args);
void fp_sigmask_end_exec(void);
/* True and *ret_copy, to be destroyed: the attributes, which may be NULL, for a child that shall find so. */
bool fp_sigmask_spawn(const posix_spawnattr_t *attr, posix_spawnattr_t *ret_copy);

/* Puts SIGBUS into a mask, in the kernel's form, if the thread believes to have it blocked. */
void fp_sigmask_show(uint64_t *mask);
/* The calling thread returns to a mask: from now on it believes of SIGBUS what that says. */
void fp_sigmask_adopt(const uint64_t *mask);

/*
 * A handler is about to run under this mask: from now on the thread believes of SIGBUS what that says.
 * Returns what the kernel's shall be. What it believed before has been put into the frame, which
 * fp_sigmask_adopt is given at the end.
 */
uint64_t fp_sigmask_begin_handler(uint64_t mask);
/* Sets the kernel's mask of the calling thread as it is; sigreturn undoes it. */
void fp_sigmask_enter(uint64_t mask);

/*
 * What the thread believes, in a jump buffer's or a context's set of signals, past what the kernel writes
 * there; and back from it. Nothing where SIGBUS is not ours.
 */
void fp_sigmask_save(sigset_t *set);
void fp_sigmask_load(sigset_t *set);

#endif
