/* See held.h. */
#include "held.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/if_xdp.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "call_args.h"
#include "calls.h"
#include "far_pieces.h"
#include "wary.h"

/* These are newer than some headers that we build with. */
#ifndef FUTEX_LOCK_PI2
#define FUTEX_LOCK_PI2 13
#endif
#ifndef SOL_XDP
#define SOL_XDP 283
#endif

/* Returns 0 or, after one line, the error. */
static int held_hold(const void *addr, size_t len, const char *what)
{
	static atomic_bool said;
	int r = fp_pieces_hold(addr, len);

	if (r < 0)
		fp_shim_say_once(&said,
		                 "%s could not be made local: %s. Put it into a static variable or a shared "
		                 "mapping, which are local",
		                 what, strerror(-r));
	return r;
}

/* ---- futexes ---- */

/*
 * For a private futex, these operations change a word while page faults are forbidden, and try to
 * bring its page in by a fault that may not wait.
 */
void fp_held_futex(const void *word, int op, const void *second_word)
{
	static const char what[] = "the word of a futex";

	switch (op & FUTEX_CMD_MASK) {
	case FUTEX_LOCK_PI:
	case FUTEX_LOCK_PI2:
	case FUTEX_TRYLOCK_PI:
	case FUTEX_UNLOCK_PI:
		(void)held_hold(word, sizeof(uint32_t), what);
		break;
	case FUTEX_WAKE_OP:
	case FUTEX_WAIT_REQUEUE_PI:
	case FUTEX_CMP_REQUEUE_PI:
		(void)held_hold(second_word, sizeof(uint32_t), what);
		break;
	default:
		break;
	}
}

/*
 * A mutex with priority inheritance is a futex of the kind above, and the C library ends the
 * process at an EFAULT. When a thread ends, the kernel hands on its robust mutexes, but no longer
 * serves its faults.
 */
FP_INTERPOSE int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr)
{
	int robust = PTHREAD_MUTEX_STALLED, protocol = PTHREAD_PRIO_NONE;

	if (attr) {
		pthread_mutexattr_getrobust(attr, &robust);
		pthread_mutexattr_getprotocol(attr, &protocol);
	}
	if ((robust != PTHREAD_MUTEX_STALLED || protocol == PTHREAD_PRIO_INHERIT) &&
	    held_hold(mutex, sizeof(*mutex), "a mutex that is robust, or inherits priorities,") < 0)
		return EAGAIN;
	return FP_NEXT(pthread_mutex_init)(mutex, attr);
}

FP_ALSO_AS(pthread_mutex_init) __typeof__(pthread_mutex_init) __pthread_mutex_init;

/* ---- rseq ---- */

/*
 * The kernel writes the area on its way back to the program. Where a system call can't bring a page
 * in, it ends the program by SIGSEGV. The C library's own areas are local.
 */
void fp_held_rseq(const void *area, size_t len)
{
	(void)held_hold(area, len, "the area of rseq");
}

/* ---- sockets ---- */

FP_INNER_CALL(setsockopt);

/* Registering memory of an AF_XDP socket pins it by faults that may not wait. */
FP_INTERPOSE int setsockopt(int fd, int level, int option, const void *value, socklen_t len)
{
	struct xdp_umem_reg umem;

	/* all versions of the struct begin with the address and the length */
	if (level == SOL_XDP && option == XDP_UMEM_REG && len >= 2 * sizeof(uint64_t) && fp_shim_space() &&
	    fp_call_args_fetch(&umem, value, 2 * sizeof(uint64_t)) == 0)
		(void)held_hold((void *)(uintptr_t)umem.addr, umem.len, "the memory of an AF_XDP socket");
	fp_wary_setsockopt(level, option, value, len);
	return fp_call_setsockopt(fd, level, option, value, len);
}
