/*
 * madvise, posix_madvise, process_madvise, mincore and msync, between the program and the far
 * space. Room: preload/memory.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "call_args.h"
#include "calls.h"
#include "cleanup.h"
#include "local.h"
#include "far_pieces.h"

/* These are newer than some headers that we build with. */
#define ADVICE_COLLAPSE      25
#define ADVICE_GUARD_INSTALL 102
#define ADVICE_GUARD_REMOVE  103

#define VECTOR_MAX  1024  /* the kernel's UIO_MAXIOV */
#define ANSWERS_MAX 4096u /* of mincore, pinned at once */

static int advise_plain(const struct fp_call *call, void *addr, size_t len)
{
	return (int)FP_RAW(SYS_madvise, addr, len, call->arg, 0, 0, 0);
}

static int advise_far(const struct fp_call *call, struct fp_space *space, void *addr, size_t len)
{
	return fp_space_advise(space, addr, len, call->arg);
}

/* The name of an advice that works on the kernel's own memory only; otherwise NULL. */
static const char *name_of_refused(int advice)
{
	switch (advice) {
	case ADVICE_COLLAPSE:
		return "MADV_COLLAPSE";
	case MADV_HWPOISON:
		return "MADV_HWPOISON";
	case ADVICE_GUARD_INSTALL:
	case ADVICE_GUARD_REMOVE:
		return "MADV_GUARD_INSTALL";
	default:
		return NULL;
	}
}

static void say_refused(int advice)
{
	static atomic_bool said;
	const char *name = name_of_refused(advice);

	if (name)
		fp_shim_say_once(&said,
		                 "madvise(%s) was refused for far memory. Set FARPAGE_MIN_MAPPING above the "
		                 "size of that mapping to keep it local",
		                 name);
}

static int advise(struct fp_space *space, void *addr, size_t len, int advice)
{
	const struct fp_call call = {.far = advise_far, .plain = advise_plain, .arg = advice};
	/*
	 * advice that this kernel does not know fails even for an empty range: ask the kernel first
	 */
	int r = space ? (int)FP_RAW(SYS_madvise, 0, 0, advice, 0, 0, 0) : 0;

	if (r == -EINVAL)
		return r;
	if (!space)
		return advise_plain(&call, addr, len);
	r = fp_for_pieces(space, addr, len, &call);
	if (r == -EINVAL)
		say_refused(advice);
	return r;
}

FP_INTERPOSE int madvise(void *addr, size_t len, int advice)
{
	return fp_shim_return(advise(fp_touched(addr, len), addr, len, advice));
}

/*
 * posix_madvise's "don't need" keeps the bytes. For far memory it means that the pages may leave.
 * The C library does nothing for it.
 */
FP_INTERPOSE int posix_madvise(void *addr, size_t len, int advice)
{
	struct fp_space *space = fp_touched(addr, len);

	if (advice == POSIX_MADV_DONTNEED && !space)
		return 0;
	return -advise(space, addr, len, advice == POSIX_MADV_DONTNEED ? MADV_COLD : advice);
}

/* ---- process_madvise ---- */

/*
 * True for hints that the kernel also takes for other processes. They change no bytes of far
 * memory.
 */
static bool is_hint(int advice)
{
	return advice == MADV_COLD || advice == MADV_PAGEOUT || advice == MADV_WILLNEED ||
	       advice == ADVICE_COLLAPSE;
}

static bool any_far(const struct iovec *vec, size_t n)
{
	for (size_t i = 0; i < FP_MIN(n, (size_t)VECTOR_MAX); i++) {
		struct iovec one;

		if (fp_call_args_fetch(&one, &vec[i], sizeof(one)) < 0)
			return false; /* the kernel will then return EFAULT */
		if (fp_touched(one.iov_base, one.iov_len))
			return true;
	}
	return false;
}

FP_INNER_CALL(process_madvise);

/*
 * Since Linux 6.13 a process may give itself any advice; to other processes it may only give hints.
 */
FP_INTERPOSE ssize_t process_madvise(int pidfd, const struct iovec *vec, size_t n, int advice, unsigned flags)
{
	static atomic_bool said;

	if (!fp_shim_space() || is_hint(advice) || !any_far(vec, n))
		return fp_call_process_madvise(pidfd, vec, n, advice, flags);
	fp_shim_say_once(&said, "process_madvise was refused for far memory: call madvise");
	return fp_shim_return(-EINVAL);
}

/* ---- mincore ---- */

/*
 * A call of mincore, which is made piece by piece, in ascending order. The member next points to
 * where the answers of the next piece go.
 */
struct answers {
	struct fp_call call;
	unsigned char *next;
};

static unsigned char *take(const struct fp_call *call, size_t len)
{
	struct answers *answers = (struct answers *)call; /* struct fp_call is its first member */
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

static int ask(void *addr, size_t len, unsigned char *vec)
{
	struct answers answers = {
	    .call = {.far = ask_far, .plain = ask_plain, .overflow = -ENOMEM, .ends_at_hole = true},
	    .next = vec};
	struct fp_space *space = fp_touched(addr, len);

	return space ? fp_for_pieces(space, addr, len, &answers.call)
	             : (int)FP_RAW(SYS_mincore, addr, len, vec, 0, 0, 0);
}

static size_t count_pages(size_t len)
{
	return len / FP_PAGE_SIZE + (len % FP_PAGE_SIZE != 0);
}

static int ask_pinned(void *addr, size_t len, unsigned char *vec)
{
	const struct fp_pin_range range = {.addr = vec, .len_bytes = count_pages(len), .write = true};
	struct fp_pin pin;
	int r = fp_agent_pin(fp_shim_agent(), &range, 1, &pin);

	if (r < 0)
		return -EAGAIN; /* ENOMEM would be a hole */
	r = ask(addr, len, vec);
	fp_agent_unpin(fp_shim_agent(), &pin);
	return r;
}

FP_INTERPOSE int mincore(void *addr, size_t len, unsigned char *vec)
{
	int r = 0;

	if (!fp_shim_space() || !fp_call_args_far(vec, count_pages(len)))
		return fp_shim_return(ask(addr, len, vec));
	if (len == 0 || (uintptr_t)addr + len < len)
		return fp_shim_return(ask(addr, len, vec));
	for (size_t done = 0; done < len && r == 0; done += ANSWERS_MAX * FP_PAGE_SIZE)
		r = ask_pinned((char *)addr + done, FP_MIN(len - done, ANSWERS_MAX * FP_PAGE_SIZE),
		               vec + done / FP_PAGE_SIZE);
	return fp_shim_return(r);
}

/* ---- msync ---- */

FP_INNER_CALL(msync);

static int sync_far(const struct fp_call *call, struct fp_space *space, void *addr, size_t len)
{
	return fp_space_msync(space, addr, len, call->arg);
}

static int sync_plain(const struct fp_call *call, void *addr, size_t len)
{
	return (int)FP_RAW(SYS_msync, addr, len, call->arg, 0, 0, 0);
}

FP_INTERPOSE int msync(void *addr, size_t len, int flags)
{
	const struct fp_call call = {.far = sync_far, .plain = sync_plain, .arg = flags, .overflow = -ENOMEM};
	struct fp_space *space = fp_touched(addr, len);

	return space ? fp_shim_return(fp_for_pieces(space, addr, len, &call))
	             : fp_call_msync(addr, len, flags);
}
