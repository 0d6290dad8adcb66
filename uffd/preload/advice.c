/* madvise, posix_madvise and mincore, between the program and the far space. Room: uffd/preload. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "local.h"
#include "pieces.h"

static int advise_plain(const struct fp_call *call, void *addr, size_t len)
{
	return (int)FP_RAW(SYS_madvise, addr, len, call->arg, 0, 0, 0);
}

static int advise_far(const struct fp_call *call, struct fp_space *space, void *addr, size_t len)
{
	return fp_space_advise(space, addr, len, call->arg);
}

static int advise(struct fp_space *space, void *addr, size_t len, int advice)
{
	const struct fp_call call = {.far = advise_far, .plain = advise_plain, .arg = advice};
	/* advice that this kernel does not know it refuses for nothing at all, too */
	int r = space ? (int)FP_RAW(SYS_madvise, 0, 0, advice, 0, 0, 0) : 0;

	if (r == -EINVAL)
		return r;
	return space ? fp_for_pieces(space, addr, len, &call) : advise_plain(&call, addr, len);
}

FP_INTERPOSE int madvise(void *addr, size_t len, int advice)
{
	return fp_shim_return(advise(fp_touched(addr, len), addr, len, advice));
}

/* POSIX's "don't need" keeps the bytes: to far memory, that they may leave; to the C library, nothing. */
FP_INTERPOSE int posix_madvise(void *addr, size_t len, int advice)
{
	struct fp_space *space = fp_touched(addr, len);

	if (advice == POSIX_MADV_DONTNEED && !space)
		return 0;
	return -advise(space, addr, len, advice == POSIX_MADV_DONTNEED ? MADV_COLD : advice);
}

/* ---- mincore ---- */

/* Where the answers go, as the pieces come one after the other. */
struct answers {
	struct fp_call call;
	unsigned char *next;
};

static unsigned char *take(const struct fp_call *call, size_t len)
{
	struct answers *answers = (struct answers *)call; /* call is its first member */
	unsigned char *vec = answers->next;

	answers->next += len / FP_PAGE_SIZE;
	return vec;
}

static int ask_far(const struct fp_call *call, struct fp_space *space, void *addr, size_t len)
{
	return fp_space_mincore(space, addr, len, take(call, len));
}

static int ask_plain(const struct fp_call *call, void *addr, size_t len)
{
	return (int)FP_RAW(SYS_mincore, addr, len, take(call, len), 0, 0, 0);
}

FP_INTERPOSE int mincore(void *addr, size_t len, unsigned char *vec)
{
	struct answers answers = {
	    .call = {.far = ask_far, .plain = ask_plain, .overflow = -ENOMEM, .ends_at_hole = true},
	    .next = vec};
	struct fp_space *space = fp_touched(addr, len);

	return fp_shim_return(space ? fp_for_pieces(space, addr, len, &answers.call)
	                            : (int)FP_RAW(SYS_mincore, addr, len, vec, 0, 0, 0));
}
