/* See call_args.h. */
#include "call_args.h"

#include <aio.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "shim.h"
#include "sigmask.h"
#include "store.h"

#define IOVECS_MAX   1024u
#define MESSAGES_MAX 1024u
#define WAITERS_MAX  128u
#define STACK_NEAR   (64u << 20)
#define STRING_STEP  256u

/* A mapping of its own, for what the scratch is too small for: safe in signal handlers, unlike
 * malloc. */
struct fp_call_args_block {
	struct fp_call_args_block *next;
	size_t len;
};

extern void *__libc_stack_end;

bool fp_call_args_far(const void *addr, size_t len)
{
	return fp_space_overlaps(fp_agent_space(fp_shim_agent()), addr, len ? len : 1);
}

/* ---- the program's memory ---- */

static size_t to_page_end(const void *addr)
{
	return FP_PAGE_SIZE - (uintptr_t)addr % FP_PAGE_SIZE;
}

/* True if it lies between here and the thread's first frame, where reading can't fail. */
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

/* By the kernel, for whom a bad address is an error and not a signal. On a stack that is itself
 * far, by hand.
 */
static int copy_checked(void *dst, const void *src, size_t len)
{
	struct iovec to = {.iov_base = dst, .iov_len = len}, from = {.iov_base = (void *)src, .iov_len = len};
	int saved = errno;
	ssize_t r = -1;

	errno = 0; /* by hand if the kernel is not asked */
	if (!fp_call_args_far(&to, sizeof(to)))
		r = fp_call_raw_syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0L);
	if (r < 0 && errno != EFAULT) { /* a filter forbids it */
		memcpy(dst, src, len);
		r = (ssize_t)len;
	}
	errno = saved;
	return r == (ssize_t)len ? 0 : -EFAULT;
}

/* Page by page, each held meanwhile. */
static int copy_held(char *dst, const char *src, size_t len)
{
	while (len) {
		size_t n = FP_MIN(len, FP_MIN(to_page_end(dst), to_page_end(src)));
		struct fp_pin_range ranges[] = {{.addr = src, .len_bytes = n},
		                                {.addr = dst, .len_bytes = n, .write = true}};
		struct fp_pin hold;
		int r = fp_agent_pin(fp_shim_agent(), ranges, 2, &hold);

		if (r < 0)
			return r;
		r = copy_checked(dst, src, n);
		fp_agent_unpin(fp_shim_agent(), &hold);
		if (r < 0)
			return r;
		dst += n;
		src += n;
		len -= n;
	}
	return 0;
}

static int copy(void *dst, const void *src, size_t len)
{
	if (fp_call_args_far(src, len) || fp_call_args_far(dst, len))
		return copy_held(dst, src, len);
	if (!is_on_stack(src, len))
		return copy_checked(dst, src, len);
	memcpy(dst, src, len);
	return 0;
}

int fp_call_args_fetch(void *dst, const void *src, size_t len)
{
	return copy(dst, src, len);
}

static int store(void *dst, const void *src, size_t len)
{
	return copy(dst, src, len);
}

int fp_call_args_store(void *dst, const void *src, size_t len)
{
	return is_on_stack(dst, len) || fp_call_args_far(dst, len) || fp_call_args_far(src, len)
	           ? copy(dst, src, len)
	           : copy_checked(dst, src, len);
}

/* Bytes of a far string without its NUL. */
static int far_strlen(const char *s, size_t *ret_len)
{
	size_t len = 0;

	while (len < FP_CALL_ARGS_COPY_MAX) {
		char bytes[STRING_STEP];
		size_t n = FP_MIN(to_page_end(s + len), sizeof(bytes));
		int r = fp_call_args_fetch(bytes, s + len, n);
		const char *nul;

		if (r < 0)
			return r;
		nul = memchr(bytes, 0, n);
		len += nul ? (size_t)(nul - bytes) : n;
		if (nul) {
			*ret_len = len;
			return 0;
		}
	}
	return -E2BIG;
}

/* ---- local memory ---- */

static void *take_block(struct fp_call_args *job, size_t len)
{
	size_t whole = sizeof(struct fp_call_args_block) + len;
	struct fp_call_args_block *block;
	int saved = errno;

	block = (void *)fp_call_raw_syscall(SYS_mmap, NULL, whole, PROT_READ | PROT_WRITE,
	                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
	errno = saved;
	if (block == MAP_FAILED)
		return NULL;
	*block = (struct fp_call_args_block){.next = job->blocks, .len = whole};
	job->blocks = block;
	return block + 1;
}

/* NULL: too much. */
static void *take(struct fp_call_args *job, size_t len)
{
	size_t rounded = (len + 15) & ~(size_t)15;
	char *p = job->scratch + job->scratch_used;

	job->copied += len;
	if (job->copied > FP_CALL_ARGS_COPY_MAX)
		return NULL;
	if (rounded > sizeof(job->scratch) - job->scratch_used ||
	    fp_call_args_far(job->scratch, sizeof(job->scratch)))
		return take_block(job, len);
	job->scratch_used += rounded;
	return p;
}

static void give_blocks(struct fp_call_args *job)
{
	while (job->blocks) {
		struct fp_call_args_block *block = job->blocks;

		job->blocks = block->next;
		fp_call_raw_syscall(SYS_munmap, block, block->len);
	}
}

/* ---- copies and ranges ---- */

/* Room for one more element; few of them are in the job itself. False: too many. */
static bool grow(struct fp_call_args *job, void **array, const void *few, unsigned n, size_t size)
{
	void *more;

	if (n < FP_CALL_ARGS_FEW || (*array != few && n < FP_CALL_ARGS_MANY))
		return true;
	more = *array == few ? take_block(job, FP_CALL_ARGS_MANY * size) : NULL;
	if (!more)
		return false;
	memcpy(more, *array, n * size);
	*array = more;
	return true;
}

/* Puts a local copy of len bytes in *place's stead. */
static int copy_always(struct fp_call_args *job, void **place, size_t len, unsigned dir)
{
	struct fp_call_args_copy copy = {.user = *place, .len = len};
	bool is_written = dir & FP_DIR_OUT;
	int r;

	copy.local = take(job, is_written ? 2 * len : len);
	if (!copy.local ||
	    !grow(job, (void **)&job->copies, job->few_copies, job->n_copies, sizeof(*job->copies)))
		return -E2BIG;
	r = fp_call_args_fetch(copy.local, copy.user, len);
	if (r < 0)
		return r;
	if (is_written) {
		copy.before = copy.local + len;
		memcpy(copy.before, copy.local, len);
	}
	job->copies[job->n_copies++] = copy;
	*place = copy.local;
	return 0;
}

static int add_copy(struct fp_call_args *job, void **place, size_t len, unsigned dir)
{
	if (len == 0 || !*place || !fp_call_args_far(*place, len))
		return 0;
	job->is_far = true;
	return copy_always(job, place, len, dir);
}

/* Leaves SIGBUS out: see sigmask.h. */
static int add_mask(struct fp_call_args *job, void **place, size_t len)
{
	int r = *place ? copy_always(job, place, len, FP_DIR_IN) : 0;

	if (r == 0 && *place)
		fp_sigmask_strip(*place);
	return r;
}

/* Holds what *place names, or copies it. */
static int add_range(struct fp_call_args *job, void **place, size_t len, unsigned dir)
{
	char *addr = *place, *start, *end;

	if (len == 0 || !fp_call_args_far(addr, len) || addr + len < addr)
		return 0;
	if (job->by_copy)
		return add_copy(job, place, len, dir);
	if (!grow(job, (void **)&job->ranges, job->few_ranges, job->n_ranges, sizeof(*job->ranges)))
		return -E2BIG;
	fp_space_range(fp_agent_space(fp_shim_agent()), &start, &end);
	len = (size_t)(FP_MIN(addr + len, end) - FP_MAX(addr, start));
	job->is_far = true;
	job->ranges[job->n_ranges++] = (struct fp_pin_range){
	    .addr = FP_MAX(addr, start), .len_bytes = len, .write = (dir & FP_DIR_OUT) != 0};
	return 0;
}

/* Only those bytes that the kernel changed: others may be some thread's by now. */
static void bring_back(const struct fp_call_args_copy *copy)
{
	size_t i = 0, start;

	while (i < copy->len) {
		for (; i < copy->len && copy->local[i] == copy->before[i]; i++)
			;
		for (start = i; i < copy->len && copy->local[i] != copy->before[i]; i++)
			;
		if (i > start)
			store(copy->user + start, copy->local + start, i - start);
	}
}

/* ---- pieces ---- */

/* What is an int to the C library has no upper half. */
static size_t number(const struct fp_call_args *job, unsigned n)
{
	long word = job->a[n & FP_ARG_MASK];

	return n & FP_ARG_IS_INT ? (uint32_t)word : (size_t)word;
}

static int add_string(struct fp_call_args *job, void **place)
{
	size_t len;
	int r;

	if (!*place || !fp_call_args_far(*place, 1))
		return 0;
	r = far_strlen(*place, &len);
	return r < 0 ? r : add_copy(job, place, len + 1, FP_DIR_IN);
}

/* More strings than copies: their bytes are the kernel's to read alone, so they need no record. */
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
	copy = take(job, len + 1);
	r = copy ? fp_call_args_fetch(copy, *place, len + 1) : -E2BIG;
	if (r == 0)
		*place = copy;
	job->is_far = true;
	return r;
}

static int add_strings(struct fp_call_args *job, char ***place)
{
	char **copy, *s = NULL;
	size_t n = 0;
	int r;

	do {
		r = *place ? fp_call_args_fetch(&s, *place + n++, sizeof(s)) : -EFAULT;
	} while (r == 0 && s && n < FP_CALL_ARGS_COPY_MAX / sizeof(s));
	if (r < 0)
		return *place ? r : 0;
	copy = take(job, n * sizeof(*copy));
	r = copy ? fp_call_args_fetch(copy, *place, n * sizeof(*copy)) : -E2BIG;
	job->is_far |= fp_call_args_far(*place, n * sizeof(*copy));
	for (size_t i = 0; i < n && r == 0; i++)
		r = copy_string(job, &copy[i]);
	if (r == 0)
		*place = copy;
	return r;
}

static int add_iovecs(struct fp_call_args *job, struct iovec **place, size_t n, unsigned dir)
{
	struct iovec *copy;
	int r;

	if (!*place || n == 0 || n > IOVECS_MAX)
		return 0;
	copy = take(job, n * sizeof(*copy));
	r = copy ? fp_call_args_fetch(copy, *place, n * sizeof(*copy)) : -E2BIG;
	job->is_far |= fp_call_args_far(*place, n * sizeof(*copy));
	for (size_t i = 0; i < n && r == 0; i++)
		r = add_range(job, &copy[i].iov_base, copy[i].iov_len, dir);
	if (r == 0)
		*place = copy;
	return r;
}

static int add_vector(struct fp_call_args *job, const struct fp_call_piece *piece, void **place)
{
	if (piece->m != FP_NOARG && (pid_t)job->a[piece->m] != getpid())
		return add_copy(job, place, number(job, piece->n) * sizeof(struct iovec), FP_DIR_IN);
	return add_iovecs(job, (struct iovec **)place, number(job, piece->n), piece->dir);
}

static int add_message(struct fp_call_args *job, struct msghdr *msg, unsigned dir)
{
	int r = add_copy(job, &msg->msg_name,
	                 FP_MIN(msg->msg_namelen, (socklen_t)sizeof(struct sockaddr_storage)), dir);

	if (r == 0)
		r = add_range(job, &msg->msg_control, msg->msg_controllen, dir);
	return r < 0 ? r : add_iovecs(job, &msg->msg_iov, msg->msg_iovlen, dir);
}

static int add_messages(struct fp_call_args *job, const struct fp_call_piece *piece, void **place)
{
	size_t stride = piece->n == FP_NOARG ? sizeof(struct msghdr) : sizeof(struct mmsghdr);
	unsigned n = piece->n == FP_NOARG ? 1 : (unsigned)FP_MIN(number(job, piece->n), MESSAGES_MAX);
	char *copy;
	int r;

	if (!*place || n == 0)
		return 0;
	copy = take(job, n * stride);
	r = copy ? fp_call_args_fetch(copy, *place, n * stride) : -E2BIG;
	job->is_far |= fp_call_args_far(*place, n * stride);
	for (unsigned i = 0; i < n && r == 0; i++)
		r = add_message(job, (struct msghdr *)(void *)(copy + i * stride), piece->dir);
	if (r < 0)
		return r;
	job->messages = (struct fp_call_args_messages){
	    .user = *place, .local = copy, .n = n, .stride = stride, .is_received = piece->dir == FP_DIR_OUT};
	*place = copy;
	return 0;
}

/* What the kernel tells in headers; the pointers in ours are not the program's. */
static void tell_messages(const struct fp_call_args_messages *messages)
{
	const size_t tail = offsetof(struct msghdr, msg_controllen);

	for (unsigned i = 0; i < messages->n; i++) {
		char *user = messages->user + i * messages->stride,
		     *local = messages->local + i * messages->stride;

		if (messages->is_received) {
			store(user + offsetof(struct msghdr, msg_namelen),
			      local + offsetof(struct msghdr, msg_namelen), sizeof(socklen_t));
			store(user + tail, local + tail,
			      offsetof(struct msghdr, msg_flags) + sizeof(int) - tail);
		}
		if (messages->stride == sizeof(struct mmsghdr))
			store(user + offsetof(struct mmsghdr, msg_len),
			      local + offsetof(struct mmsghdr, msg_len), sizeof(unsigned));
	}
}

static int add_sized(struct fp_call_args *job, const struct fp_call_piece *piece, void **place)
{
	void **word = (void **)&job->a[piece->n];
	socklen_t len;
	int r;

	if (!*word)
		return 0;
	r = fp_call_args_fetch(&len, *word, sizeof(len));
	if (r == 0)
		r = add_copy(job, word, sizeof(len), FP_DIR_INOUT);
	return r < 0 ? r : add_copy(job, place, FP_MIN(len, piece->unit), FP_DIR_INOUT);
}

static int add_self(struct fp_call_args *job, const struct fp_call_piece *piece, void **place)
{
	uint32_t more;
	int r;

	if (!*place || !fp_call_args_far(*place, sizeof(more)))
		return 0;
	r = fp_call_args_fetch(&more, *place, sizeof(more));
	return r < 0 ? r : add_copy(job, place, piece->base + FP_MIN(more, FP_PAGE_SIZE), piece->dir);
}

static int add_text(struct fp_call_args *job, const struct fp_call_piece *piece, void **place)
{
	size_t len;
	int r;

	if (!*place || !fp_call_args_far(*place, 1))
		return 0;
	r = far_strlen(*place, &len);
	return r < 0 ? r : add_range(job, place, len + 1, piece->dir);
}

/* How far it goes is the kernel's business, but not for ever. */
static int add_upto(struct fp_call_args *job, const struct fp_call_piece *piece, void **place)
{
	bool was_by_copy = job->by_copy;
	int r;

	job->by_copy = false;
	r = add_range(job, place, was_by_copy ? FP_PAGE_SIZE : piece->unit, piece->dir);
	job->by_copy = was_by_copy;
	return r;
}

static int add_bytes(struct fp_call_args *job, const struct fp_call_piece *piece, void **place)
{
	size_t len = piece->unit;

	if (__builtin_mul_overflow(len, number(job, piece->n), &len) ||
	    (piece->m != FP_NOARG && __builtin_mul_overflow(len, number(job, piece->m), &len)) ||
	    __builtin_add_overflow(len, piece->base, &len))
		return 0;
	return add_range(job, place, len, piece->dir);
}

/* An object can't be anywhere else. If it can't be held it is at least brought in. */
static int add_object(struct fp_call_args *job, const struct fp_call_piece *piece, void **place)
{
	if (!job->by_copy)
		return add_range(job, place, piece->unit, FP_DIR_INOUT);
	if (fp_call_args_far(*place, piece->unit))
		(void)*(volatile char *)*place;
	return 0;
}

/* Kinds whose futex is shared between processes or inherits priority: for them the kernel looks at
 * the word on unlocking as well. */
bool fp_call_args_is_special_mutex(const void *mutex)
{
	const int special =
	    32 | 128; /* the C library's PTHREAD_MUTEX_PRIO_INHERIT_NP, PTHREAD_MUTEX_PSHARED_BIT */

	return (((const pthread_mutex_t *)mutex)->__data.__kind & special) != 0;
}

static int add_nest(struct fp_call_args *job, const struct fp_call_piece *piece, void **place)
{
	uint32_t n = 1;
	void *inner;
	int r;

	if (!*place)
		return 0;
	r = fp_call_args_fetch(&inner, (char *)*place + piece->base, sizeof(inner));
	if (r == 0 && piece->n != FP_NOARG)
		r = fp_call_args_fetch(&n, (char *)*place + piece->n, sizeof(n));
	if (r == 0)
		r = add_range(job, place, (size_t)FP_MAX(piece->base, (uint16_t)8) + 8, FP_DIR_INOUT);
	if (r == 0 && piece->n == FP_NOARG)
		return add_upto(job, piece, &inner);
	if (r == 0 && fp_call_args_far(inner, 1) && job->by_copy)
		return -E2BIG;
	return r < 0 ? r : add_range(job, &inner, (size_t)n * piece->unit, piece->dir);
}

/* What pselect6 takes: the mask's address, and its size. */
static int add_set_mask(struct fp_call_args *job, void **place)
{
	struct {
		void *mask;
		size_t size;
	} set;
	int r = *place ? copy_always(job, place, sizeof(set), FP_DIR_IN) : 0;

	if (r < 0 || !*place)
		return r;
	memcpy(&set, *place, sizeof(set));
	if (set.size != sizeof(uint64_t))
		return 0; /* the kernel refuses it */
	r = add_mask(job, &set.mask, set.size);
	memcpy(*place, &set, sizeof(set));
	return r;
}

/* The kernel's struct futex_waitv. */
struct waiter {
	uint64_t value, address;
	uint32_t flags, reserved;
};

static int add_waiters(struct fp_call_args *job, const struct fp_call_piece *piece, void **place)
{
	size_t n = piece->n == FP_NOARG ? piece->unit : number(job, piece->n);
	struct waiter *waiters;
	int r = 0;

	if (!*place || n == 0 || n > WAITERS_MAX)
		return 0;
	waiters = take(job, n * sizeof(*waiters));
	r = waiters ? fp_call_args_fetch(waiters, *place, n * sizeof(*waiters)) : -E2BIG;
	job->is_far |= fp_call_args_far(*place, n * sizeof(*waiters));
	for (size_t i = 0; i < n && r == 0; i++) {
		void *word = (void *)(uintptr_t)waiters[i].address; // NOLINT(performance-no-int-to-ptr)

		if (!job->by_copy)
			r = add_range(job, &word, sizeof(uint32_t), FP_DIR_INOUT);
	}
	if (r == 0)
		*place = waiters;
	return r;
}

static int look_at_aiocb(struct fp_call_args *job, const void *user)
{
	struct aiocb cb;
	int r = fp_call_args_fetch(&cb, user, sizeof(cb));

	if (r == 0 && cb.aio_lio_opcode != LIO_NOP &&
	    fp_call_args_far((const void *)cb.aio_buf, cb.aio_nbytes))
		job->refuse = true;
	return r;
}

static int look_at_aiocbs(struct fp_call_args *job, const struct fp_call_piece *piece, void *const *place)
{
	int r = 0;

	if (piece->n == FP_NOARG)
		return look_at_aiocb(job, *place);
	for (size_t i = 0; i < number(job, piece->n) && r == 0; i++) {
		void *cb;

		r = fp_call_args_fetch(&cb, (void **)*place + i, sizeof(cb));
		if (r == 0 && cb)
			r = look_at_aiocb(job, cb);
	}
	return r;
}

static int add_piece(struct fp_call_args *job, const struct fp_call_piece *piece)
{
	void **place = (void **)&job->a[piece->arg];

	switch (piece->kind) {
	case FP_PIECE_STRING:
		return add_string(job, place);
	case FP_PIECE_STRINGS:
		return add_strings(job, (char ***)place);
	case FP_PIECE_STRUCT:
		return add_copy(job, place, piece->unit, piece->dir);
	case FP_PIECE_MASK:
		return add_mask(job, place, piece->unit);
	case FP_PIECE_SIZED:
		return add_sized(job, piece, place);
	case FP_PIECE_SELF:
		return add_self(job, piece, place);
	case FP_PIECE_FDS:
		return add_copy(job, place, ((size_t)(int)job->a[piece->n] + 63) / 64 * 8, piece->dir);
	case FP_PIECE_TEXT:
		return add_text(job, piece, place);
	case FP_PIECE_BYTES:
		return add_bytes(job, piece, place);
	case FP_PIECE_PAGES:
		return add_range(job, place, (number(job, piece->n) + FP_PAGE_SIZE - 1) >> FP_PAGE_SHIFT,
		                 piece->dir);
	case FP_PIECE_UPTO:
		return add_upto(job, piece, place);
	case FP_PIECE_OBJECT:
		return add_object(job, piece, place);
	case FP_PIECE_LOCK:
		return fp_call_args_is_special_mutex(*place) ? add_object(job, piece, place) : 0;
	case FP_PIECE_IOVEC:
		return add_vector(job, piece, place);
	case FP_PIECE_MESSAGE:
		return add_messages(job, piece, place);
	case FP_PIECE_NEST:
		return add_nest(job, piece, place);
	case FP_PIECE_SETMASK:
		return add_set_mask(job, place);
	case FP_PIECE_WAITERS:
		return add_waiters(job, piece, place);
	default:
		return look_at_aiocbs(job, piece, place);
	}
}

int fp_call_args_prepare(struct fp_call_args *job)
{
	int r = 0;

	for (unsigned i = 0; i < FP_PIECES && job->pieces[i].kind != FP_PIECE_END && r == 0; i++) {
		const struct fp_call_piece *piece = &job->pieces[i];

		r = add_piece(job, piece);
		if (r == 0 && (piece->kind == FP_PIECE_MASK || piece->kind == FP_PIECE_SETMASK))
			job->masks |= 1u << piece->arg;
	}
	if (r == 0 && job->n_ranges)
		r = fp_agent_pin_for_device(fp_shim_agent(), job->ranges, job->n_ranges, &job->hold);
	job->is_held = r == 0 && job->n_ranges;
	return r;
}

void fp_call_args_give_up(struct fp_call_args *job, const long *args)
{
	size_t shift = (size_t)(job->a - job->args);

	for (unsigned i = 0; i < FP_CALL_ARGS; i++)
		if (i < shift || !(job->masks >> (i - shift) & 1))
			job->args[i] = args[i];
}

long fp_call_args_finish(struct fp_call_args *job, long ret)
{
	const char *place = (const char *)ret;

	if (job->is_held)
		fp_agent_unpin(fp_shim_agent(), &job->hold);
	job->is_held = false;
	for (unsigned i = 0; i < job->n_copies; i++) {
		const struct fp_call_args_copy *copy = &job->copies[i];

		if (copy->before)
			bring_back(copy);
		if (place >= copy->local && place < copy->local + copy->len)
			ret = (long)(copy->user + (place - copy->local));
	}
	tell_messages(&job->messages);
	return ret;
}

/* ---- its life ---- */

void fp_call_args_begin(struct fp_call_args *job, const struct fp_call_piece *pieces, bool by_copy)
{
	memset(job, 0, offsetof(struct fp_call_args, scratch));
	job->pieces = pieces;
	job->by_copy = by_copy;
	job->ranges = job->few_ranges;
	job->copies = job->few_copies;
}

void fp_call_args_end(struct fp_call_args *job)
{
	int saved = errno;

	if (job->is_held)
		fp_agent_unpin(fp_shim_agent(), &job->hold);
	job->is_held = false;
	give_blocks(job);
	errno = saved;
}
