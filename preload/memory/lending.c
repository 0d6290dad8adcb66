/*
 * vmsplice, between the program and the far space. Room: preload/memory.
 *
 * A pipe keeps references to pages that are lent to it. Its reader must see what the program writes
 * to them later. So lent memory becomes local before the call.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>

#include "call_args.h"
#include "calls.h"
#include "cleanup.h"
#include "far_pieces.h"
#include "local.h"

#define VECTOR_MAX 1024 /* the kernel's UIO_MAXIOV */

static int lend_far(const struct fp_call *call, struct fp_space *space, void *addr, size_t len)
{
	return fp_space_lend(space, addr, len);
}

static int lend_plain(const struct fp_call *call, void *addr, size_t len)
{
	return 0;
}

static int lend(const struct iovec *part)
{
	const struct fp_call call = {.far = lend_far, .plain = lend_plain, .ends_at_hole = true};
	uintptr_t start = (uintptr_t)part->iov_base & ~(uintptr_t)(FP_PAGE_SIZE - 1);
	struct fp_space *space = part->iov_len ? fp_touched(part->iov_base, part->iov_len) : NULL;

	if (!space)
		return 0;
	return fp_for_pieces(space, (void *)start, part->iov_len + ((uintptr_t)part->iov_base - start),
	                     &call);
}

/* Lends the memory that the vector names. What the kernel will refuse is left to it. */
static int lend_all(const struct iovec *vec, size_t n)
{
	int r = 0;

	for (size_t i = 0; r == 0 && n <= VECTOR_MAX && i < n; i++) {
		struct iovec one;

		if (fp_call_args_fetch(&one, &vec[i], sizeof(one)) < 0)
			return 0;
		r = lend(&one);
	}
	return r == -EINVAL ? 0 : r;
}

/* From a pipe's end for reading, vmsplice copies. */
static bool lends(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

FP_INNER_CALL(vmsplice);

FP_INTERPOSE ssize_t vmsplice(int fd, const struct iovec *vec, size_t n, unsigned flags)
{
	static atomic_bool said;
	int saved = errno, r = 0;

	if (fp_shim_space() && !fp_local_is_agent() && lends(fd))
		r = lend_all(vec, n);
	errno = saved;
	if (r == 0)
		return fp_call_vmsplice(fd, vec, n, flags);
	fp_shim_say_once(&said,
	                 "vmsplice was refused: what it lends stays local until it is unmapped, and that "
	                 "would be more than a quarter of the local memory. Call write or writev, or keep "
	                 "that memory local (FARPAGE_MIN_MAPPING)");
	return fp_shim_return_long(-ENOMEM);
}
