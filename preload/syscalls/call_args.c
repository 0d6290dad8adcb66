/* See call_args.h. */
#include "call_args.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "local_stack.h"
#include "shim.h"
#include "sigmask.h"
#include "store.h"

#define IOVECS_MAX   1024u
#define MESSAGES_MAX 1024u
#define RANGES_MAX   2048u
#define STACK_NEAR   (64u << 20)
#define STRING_STEP  256u
#define BLOCK_BYTES  (64u << 10)
#define COPIED_MAX   (8u << 20) /* the kernel's own limit for arguments and environment is lower */

/*
 * Sizes of a window: memory that is pinned when only the kernel knows how much it will use. 512
 * bytes are enough for all structs without a length of their own, and for most paths. 8192 bytes
 * are enough for all paths.
 */
#define WINDOW_BYTES 512u
#define WIDE_BYTES   8192u

/*
 * How much of a far stack is pinned: below a frame of ours for the C library's function and what it
 * calls, and a little above, as its frame begins there.
 */
#define STACK_BELOW (14u << 10)
#define STACK_ABOVE 1024u

extern void *__libc_stack_end;

bool fp_call_args_far(const void *addr, size_t len)
{
	return fp_space_overlaps(fp_agent_space(fp_shim_agent()), addr, len ? len : 1);
}

/* ---- the program's memory ---- */

/* True if the range lies between this frame and the thread's first frame: reading it can't fail. */
static bool is_on_stack(const char *p, size_t len)
{
	const char *here = __builtin_frame_address(0), *self = (const char *)pthread_self(),
	           *end = __libc_stack_end;

	if (p < here || len > STACK_NEAR)
		return false;
	if (here < end && (size_t)(end - here) < STACK_NEAR)
		return p + len <= end;
	return here < self && (size_t)(self - here) < STACK_NEAR && p + len <= self;
}

/*
 * The kernel makes the copy, so that a bad address gives an error and not a signal. If this
 * function's own stack is far, the kernel can't read the iovecs on it. Then memcpy makes the copy.
 */
static int copy_checked(void *dst, const void *src, size_t len)
{
	struct iovec to = {.iov_base = dst, .iov_len = len}, from = {.iov_base = (void *)src, .iov_len = len};
	int saved = errno;
	ssize_t r = -1;

	errno = 0; /* any value but EFAULT: then memcpy makes the copy if the kernel is not asked */
	if (!fp_call_args_far(&to, sizeof(to)))
		r = fp_call_raw_syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0L);
	if (r < 0 && errno != EFAULT) { /* a filter forbids the call */
		memcpy(dst, src, len);
		r = (ssize_t)len;
	}
	errno = saved;
	return r == (ssize_t)len ? 0 : -EFAULT;
}

int fp_call_args_store(void *dst, const void *src, size_t len)
{
	const struct fp_pin_range ranges[] = {{.addr = src, .len_bytes = len},
	                                      {.addr = dst, .len_bytes = len, .write = true}};
	struct fp_pin pin;
	int r = fp_agent_pin(fp_shim_agent(), ranges, 2, &pin);

	if (r < 0)
		return r;
	r = copy_checked(dst, src, len);
	fp_agent_unpin(fp_shim_agent(), &pin);
	return r;
}

int fp_call_args_fetch(void *dst, const void *src, size_t len)
{
	if (!is_on_stack(src, len))
		return fp_call_args_store(dst, src, len);
	memcpy(dst, src, len);
	return 0;
}

/* The length of a far string, without its NUL. */
static int far_strlen(const char *s, size_t *ret_len)
{
	size_t len = 0;

	while (len < COPIED_MAX) {
		char bytes[STRING_STEP];
		size_t n = FP_MIN(FP_PAGE_SIZE - (uintptr_t)(s + len) % FP_PAGE_SIZE, sizeof(bytes));
		int r = fp_call_args_fetch(bytes, s + len, n);
		size_t here = r < 0 ? 0 : strnlen(bytes, n);

		len += here;
		*ret_len = len;
		if (r < 0 || here < n)
			return r;
	}
	return -E2BIG;
}

/* ---- ranges, and local memory ---- */

/*
 * A block of memory for copies. It is mapped, because malloc is forbidden in signal handlers. A
 * thread's blocks form a stack: if a child of vfork executes a program, the parent unmaps the
 * child's blocks. Calls may end in any order, as coroutines may leave them in callbacks.
 */
struct fp_call_args_block {
	struct fp_call_args_block *next;
	const struct fp_call_args *job; /* the call whose copies it has */
	size_t len, used, depth;
};

/* The newest block. Atomic for signal handlers: they always find a complete block on top. */
static __thread struct fp_call_args_block *_Atomic top __attribute__((tls_model("initial-exec")));

size_t fp_call_args_depth(void)
{
	return top ? top->depth : 0;
}

void fp_call_args_vforked(size_t depth)
{
	while (fp_call_args_depth() > depth) {
		struct fp_call_args_block *block = top;

		top = block->next;
		fp_call_raw_syscall(SYS_munmap, block, block->len);
	}
}

/* Unmaps the blocks of this call. What others took meanwhile stays. */
static void drop_blocks(const struct fp_call_args *job)
{
	struct fp_call_args_block *newer = NULL, *block = top, *next;

	for (; block; block = next) {
		next = block->next;
		if (block->job != job) {
			newer = block;
			continue;
		}
		if (newer)
			newer->next = next;
		else
			top = next;
		fp_call_raw_syscall(SYS_munmap, block, block->len);
	}
}

static struct fp_call_args_block *add_block(const struct fp_call_args *job, size_t len)
{
	size_t whole = FP_MAX(sizeof(struct fp_call_args_block) + len, (size_t)BLOCK_BYTES);
	struct fp_call_args_block *block;
	int saved = errno;

	block = (void *)fp_call_raw_syscall(SYS_mmap, NULL, whole, PROT_READ | PROT_WRITE,
	                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
	errno = saved;
	if (block == MAP_FAILED)
		return NULL;
	*block = (struct fp_call_args_block){
	    .next = top, .job = job, .len = whole, .used = sizeof(*block), .depth = fp_call_args_depth() + 1};
	top = block;
	return block;
}

void *fp_call_args_take(struct fp_call_args *job, size_t len)
{
	struct fp_call_args_block *block = top && top->job == job ? top : NULL;
	size_t rounded = (len + 15) & ~(size_t)15;

	job->copied += rounded;
	if (job->copied > COPIED_MAX)
		return NULL;
	if (!block || rounded > block->len - block->used)
		block = add_block(job, rounded);
	if (!block)
		return NULL;
	block->used += rounded;
	return (char *)block + block->used - rounded;
}

/* The first ranges lie in the job itself. If there are more, all lie in a block. */
static bool has_room(struct fp_call_args *job)
{
	struct fp_pin_range *more;

	if (job->n_ranges < FP_CALL_ARGS_FEW ||
	    (job->ranges != job->few_ranges && job->n_ranges < RANGES_MAX))
		return true;
	more = job->ranges == job->few_ranges ? fp_call_args_take(job, RANGES_MAX * sizeof(*more)) : NULL;
	if (!more)
		return false;
	job->ranges = memcpy(more, job->few_ranges, sizeof(job->few_ranges));
	return true;
}

static int add_range(struct fp_call_args *job, const void *addr, size_t len, bool write)
{
	if (len == 0 || !fp_call_args_far(addr, len) || (const char *)addr + len < (const char *)addr)
		return 0;
	if (!has_room(job))
		return -E2BIG;
	job->ranges[job->n_ranges++] = (struct fp_pin_range){.addr = addr, .len_bytes = len, .write = write};
	return 0;
}

void fp_call_args_add_stack(struct fp_call_args *job)
{
	char *here = __builtin_frame_address(0);

	if (fp_local_stack_is_far())
		(void)add_range(job, here - STACK_BELOW, STACK_BELOW + STACK_ABOVE, true);
}

/* ---- pieces ---- */

/*
 * Argument n as a number. If the C library takes the argument as an int, the upper half of the word
 * is garbage and is dropped.
 */
static size_t number(const struct fp_call_args *job, unsigned n)
{
	long word = job->a[n & FP_ARG_MASK];

	return n & FP_ARG_IS_INT ? (uint32_t)word : (size_t)word;
}

/* Pins a window of a guessed size: only the kernel knows how many bytes it will use. */
static int add_window(struct fp_call_args *job, const struct fp_call_piece *piece, const void *addr)
{
	size_t len = job->is_wide ? FP_MAX(WIDE_BYTES, piece->unit) : WINDOW_BYTES;

	if (piece->kind == FP_PIECE_IOCTL)
		len = FP_MAX(len, (size_t)_IOC_SIZE(number(job, piece->n)));
	return add_range(job, addr, len, piece->write);
}

static int add_bytes(struct fp_call_args *job, const struct fp_call_piece *piece, const void *addr)
{
	size_t len = piece->unit;

	if ((piece->n != FP_NOARG && __builtin_mul_overflow(len, number(job, piece->n), &len)) ||
	    (piece->m != FP_NOARG && __builtin_mul_overflow(len, number(job, piece->m), &len)) ||
	    __builtin_add_overflow(len, piece->base, &len))
		return 0;
	return add_range(job, addr, len, piece->write);
}

static int add_text(struct fp_call_args *job, const char *s)
{
	size_t len;
	int r;

	if (!fp_call_args_far(s, 1))
		return 0;
	r = far_strlen(s, &len);
	return r < 0 ? r : add_range(job, s, len + 1, false);
}

static int add_iovecs(struct fp_call_args *job, const struct iovec *iov, size_t n, bool write)
{
	struct iovec some[16];
	int r = 0;

	if (!iov || n > IOVECS_MAX)
		return 0;
	r = add_range(job, iov, n * sizeof(*iov), false);
	for (size_t i = 0; i < n && r == 0; i++) {
		if (i % 16 == 0)
			r = fp_call_args_fetch(some, &iov[i], FP_MIN(n - i, (size_t)16) * sizeof(*iov));
		if (r == 0)
			r = add_range(job, some[i % 16].iov_base, some[i % 16].iov_len, write);
	}
	return r;
}

static int add_message(struct fp_call_args *job, const struct msghdr *user, bool write)
{
	struct msghdr msg;
	int r = fp_call_args_fetch(&msg, user, sizeof(msg));

	if (r == 0)
		r = add_range(job, msg.msg_name, msg.msg_namelen, write);
	if (r == 0)
		r = add_range(job, msg.msg_control, msg.msg_controllen, write);
	return r < 0 ? r : add_iovecs(job, msg.msg_iov, msg.msg_iovlen, write);
}

/*
 * Pins n messages and their memory. The kernel also writes the length of each message into its
 * header.
 */
static int add_messages(struct fp_call_args *job, const struct fp_call_piece *piece, const char *user)
{
	bool many = piece->n != FP_NOARG;
	size_t stride = many ? sizeof(struct mmsghdr) : sizeof(struct msghdr);
	size_t n = many ? FP_MIN(number(job, piece->n), (size_t)MESSAGES_MAX) : 1;
	int r = user ? add_range(job, user, n * stride, many || piece->write) : 0;

	for (size_t i = 0; user && i < n && r == 0; i++)
		r = add_message(job, (const struct msghdr *)(const void *)(user + i * stride), piece->write);
	return r;
}

static int copy_string(struct fp_call_args *job, char **place)
{
	size_t len;
	char *copy;
	int r;

	if (!*place || !fp_call_args_far(*place, 1))
		return 0;
	r = far_strlen(*place, &len);
	if (r < 0)
		return r;
	copy = fp_call_args_take(job, len + 1);
	r = copy ? fp_call_args_fetch(copy, *place, len + 1) : -E2BIG;
	if (r == 0)
		*place = copy;
	return r;
}

static int copy_strings(struct fp_call_args *job, char ***place)
{
	bool is_far = fp_call_args_far(*place, 1);
	char **copy, *s = NULL;
	size_t n = 0;
	int r;

	do {
		r = *place ? fp_call_args_fetch(&s, *place + n++, sizeof(s)) : -EFAULT;
		is_far = is_far || (r == 0 && fp_call_args_far(s, 1));
	} while (r == 0 && s && n < COPIED_MAX / sizeof(s));
	if (r < 0 || !is_far)
		return *place ? r : 0;
	copy = fp_call_args_take(job, n * sizeof(*copy));
	r = copy ? fp_call_args_fetch(copy, *place, n * sizeof(*copy)) : -E2BIG;
	for (size_t i = 0; i < n && r == 0; i++)
		r = copy_string(job, &copy[i]);
	if (r == 0)
		*place = copy;
	return r;
}

/* Copies a mask without SIGBUS: see sigmask.h. */
static int copy_mask(struct fp_call_args *job, uint64_t **place)
{
	int r = *place ? fp_call_args_fetch(job->mask, *place, sizeof(job->mask[0])) : 0;

	if (r < 0 || !*place)
		return r;
	fp_sigmask_strip(job->mask);
	*place = job->mask;
	return add_range(job, job->mask, sizeof(job->mask), false);
}

/*
 * Copies the last argument of pselect6, and the mask that it names. Leaves a mask of another size
 * to the kernel, which refuses it.
 */
static int copy_set_mask(struct fp_call_args *job, void **place)
{
	int r = *place ? fp_call_args_fetch(&job->set_mask, *place, sizeof(job->set_mask)) : 0;

	if (r < 0 || !*place)
		return r;
	*place = &job->set_mask;
	r = add_range(job, &job->set_mask, sizeof(job->set_mask), false);
	return r < 0 || job->set_mask.size != sizeof(job->mask[0]) ? r : copy_mask(job, &job->set_mask.mask);
}

/*
 * True for a mutex that processes share, or that inherits priority. When such a mutex is unlocked,
 * the kernel also looks at its futex word.
 */
bool fp_call_args_is_special_mutex(const void *mutex)
{
	const int special =
	    32 | 128; /* PTHREAD_MUTEX_PRIO_INHERIT_NP, PTHREAD_MUTEX_PSHARED_BIT of the C library */

	return (((const pthread_mutex_t *)mutex)->__data.__kind & special) != 0;
}

/*
 * Pins the program's environment. It can't be copied, as the C library takes it from where it is.
 * Its strings mostly lie side by side, so the pages of neighbours are pinned as one range.
 */
static int add_environment(struct fp_call_args *job)
{
	uintptr_t start = 0, end = 0;
	size_t n = 0, len = 0;
	char *s = NULL;
	int r = 0;

	do {
		r = fp_call_args_fetch(&s, environ + n++, sizeof(s));
		if (r < 0 || !s || !fp_call_args_far(s, 1))
			continue;
		r = far_strlen(s, &len);
		if ((uintptr_t)s - start <= end - start + FP_PAGE_SIZE) {
			end = FP_MAX(end, (uintptr_t)s + len + 1);
			continue;
		}
		if (r == 0)
			r = add_range(job, (void *)start, end - start, false);
		start = (uintptr_t)s;
		end = start + len + 1;
	} while (r == 0 && s);
	if (r == 0)
		r = add_range(job, (void *)start, end - start, false);
	return r < 0 ? r : add_range(job, environ, n * sizeof(*environ), false);
}

static int add_piece(struct fp_call_args *job, const struct fp_call_piece *piece)
{
	void **place = (void **)&job->a[piece->arg];

	switch (piece->kind) {
	case FP_PIECE_WINDOW:
	case FP_PIECE_IOCTL:
		return add_window(job, piece, *place);
	case FP_PIECE_BYTES:
		return add_bytes(job, piece, *place);
	case FP_PIECE_LOCK:
		return fp_call_args_is_special_mutex(*place) ? add_bytes(job, piece, *place) : 0;
	case FP_PIECE_TEXT:
		return add_text(job, *place);
	case FP_PIECE_IOVEC:
		if (piece->m != FP_NOARG && (pid_t)number(job, piece->m) != getpid())
			return add_range(job, *place, number(job, piece->n) * sizeof(struct iovec), false);
		return add_iovecs(job, *place, number(job, piece->n), piece->write);
	case FP_PIECE_MESSAGE:
		return add_messages(job, piece, *place);
	case FP_PIECE_STRINGS:
		return copy_strings(job, (char ***)place);
	case FP_PIECE_ENVIRON:
		return environ ? add_environment(job) : 0;
	case FP_PIECE_MASK:
		return copy_mask(job, (uint64_t **)place);
	default:
		return copy_set_mask(job, place);
	}
}

int fp_call_args_prepare(struct fp_call_args *job, const struct fp_call_piece *pieces)
{
	int r = 0;

	for (unsigned i = 0; i < FP_PIECES && pieces[i].kind != FP_PIECE_END && r == 0; i++)
		r = add_piece(job, &pieces[i]);
	if (r == 0 && job->n_ranges)
		r = fp_agent_pin(fp_shim_agent(), job->ranges, job->n_ranges, &job->pin);
	job->is_pinned = r == 0 && job->n_ranges;
	return r;
}

/* ---- begin and end ---- */

void fp_call_args_begin(struct fp_call_args *job, bool is_wide)
{
	memset(job, 0, offsetof(struct fp_call_args, few_ranges));
	job->is_wide = is_wide;
	job->ranges = job->few_ranges;
}

void fp_call_args_end(struct fp_call_args *job)
{
	int saved = errno;

	if (job->is_pinned)
		fp_agent_unpin(fp_shim_agent(), &job->pin);
	job->is_pinned = false;
	drop_blocks(job);
	errno = saved;
}
