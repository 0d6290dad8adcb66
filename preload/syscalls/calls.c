/*
 * See calls.h. Carries out the rows. Invariants:
 *   - A call whose memory is all local goes to the C library with its original arguments.
 *   - All pins end on every way out: return, cancellation (this file is compiled with
 *     -fexceptions), and a longjmp out of a signal handler (at the thread's next call).
 *   - errno is set by the C library, or keeps its value.
 */
#include "calls.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include "call_args.h"
#include "cleanup.h"
#include "fdutil.h"
#include "imports.h"
#include "local.h"
#include "local_stack.h"
#include "lookup.h"
#include "shim.h"
#include "store.h"
#include "wary.h"

#define SAID_MAX       64
#define ROWS_MAX       1024
#define COPY_MAX       (4u << 20)
#define COPY_STEP      (12u << 10) /* bytes pinned at once for a copy: four pages at most, see QUARTER_MIN */
#define MEMORY_DEVICES 1           /* major number of /dev/null, /dev/zero and the like */

static atomic_bool must_hold;
static _Atomic(fp_call_fn *) reals[ROWS_MAX];
static _Atomic(fp_call_fn *) agents[ROWS_MAX]; /* for the agent's own calls: set before reals */

/* ---- the C library's functions ---- */

static long no_such_call(long a, long b, long c, long d, long e, long f, long g)
{
	errno = ENOSYS;
	return -1;
}

static fp_call_fn *resolve(unsigned row)
{
	fp_call_fn *real = atomic_load_explicit(&reals[row], memory_order_acquire), *agent;

	if (real)
		return real;
	real = (fp_call_fn *)fp_lookup_next(fp_call_rows[row].name, NULL);
	if (!real)
		real = no_such_call;
	agent = (fp_call_fn *)fp_imports_find(fp_call_rows[row].name);
	atomic_store_explicit(&agents[row], agent ? agent : real, memory_order_relaxed);
	atomic_store_explicit(&reals[row], real, memory_order_release);
	return real;
}

void fp_calls_open(void)
{
	bool hold = fp_shim_agent() && fp_agent_needs_pins(fp_shim_agent());
	const uint32_t always = FP_HOW_OPENS | FP_HOW_RELEASES | FP_HOW_LOOKS;

	atomic_store_explicit(&must_hold, hold, memory_order_release);
	for (unsigned i = 0; i < fp_call_n_rows; i++) {
		fp_call_fn *real = resolve(i);
		bool is_for_all = real == atomic_load(&agents[i]);

		if (!hold && is_for_all && !(fp_shim_agent() && (fp_call_rows[i].how & always)))
			fp_call_entry[i] = real;
	}
	if (hold)
		fp_call_syscall_way = fp_call_syscall_mediated;
	fp_wary_look_at_inherited();
}

bool fp_calls_hold(void)
{
	return atomic_load_explicit(&must_hold, memory_order_acquire);
}

/* ---- messages ---- */

/* True if there was no message about this name yet. */
static bool is_news(const char *name)
{
	static _Atomic(const char *) said[SAID_MAX];

	for (unsigned i = 0; i < SAID_MAX; i++) {
		const char *expected = NULL;

		if (atomic_compare_exchange_strong(&said[i], &expected, name))
			return true;
		if (expected == name)
			return false;
	}
	return false;
}

static long refuse(const char *name, int error, const char *why)
{
	atomic_bool said = !is_news(name);

	fp_shim_say_once(
	    &said,
	    "%s was refused: %s. Use fault mode thread where the host permits it, or keep that memory "
	    "local (FARPAGE_HEAP, FARPAGE_MIN_MAPPING)",
	    name, why);
	errno = error;
	return -1;
}

static long refuse_long(const char *name)
{
	return refuse(name, ENOMEM, "it hands over more far memory at once than can be resident");
}

/* Says that the kernel could not reach some memory, although all that the row names was pinned. */
static void report_fault(const char *name)
{
	atomic_bool said = !is_news(name);
	int saved = errno;

	fp_shim_say_once(
	    &said,
	    "%s failed with EFAULT: perhaps it takes far memory in a way that is not known in this fault "
	    "mode. Keep that memory local (FARPAGE_HEAP, FARPAGE_MIN_MAPPING), or use fault mode thread",
	    name);
	errno = saved;
}

/* ---- one request, and its row ---- */

struct call_request {
	const struct fp_row *row;
	fp_call_fn *real;
	bool opens;
	int before;     /* errno */
	unsigned shift; /* 1 for syscall, whose arguments come after the number */
	long args[FP_CALL_ARGS];
};

static long *request_arg(struct call_request *q, unsigned n)
{
	return &q->args[(n & FP_ARG_MASK) + q->shift];
}

static long call(const struct call_request *q, const long *args)
{
	__attribute__((cleanup(fp_fd_unlock_shared))) struct fp_fd_hold hold = {false};

	if (q->opens)
		fp_fd_lock_shared(&hold);
	return q->real(args[0], args[1], args[2], args[3], args[4], args[5], args[6]);
}

/* True if the result is -1 with EFAULT. The result may be an int, whose upper half is garbage. */
static bool is_fault(long ret)
{
	return (int)ret == -1 && errno == EFAULT;
}

/* Makes the call with the arguments as the program gave them. */
static long pass(const struct call_request *q)
{
	return call(q, q->args);
}

static bool piece_may_be_far(struct call_request *q, const struct fp_call_piece *piece)
{
	const void *p = (const void *)*request_arg(q, piece->arg);

	switch (piece->kind) {
	case FP_PIECE_ENVIRON:
		return environ != NULL;
	case FP_PIECE_IOVEC:
	case FP_PIECE_MESSAGE:
	case FP_PIECE_STRINGS:
	case FP_PIECE_MASK:
	case FP_PIECE_SETMASK:
		return p != NULL;
	default:
		return fp_call_args_far(p, 1);
	}
}

static bool may_be_far(struct call_request *q)
{
	const struct fp_call_piece *pieces = q->row->pieces;

	for (unsigned i = 0; i < FP_PIECES && pieces[i].kind != FP_PIECE_END; i++)
		if (piece_may_be_far(q, &pieces[i]))
			return true;
	return (q->row->how & FP_HOW_STACK) && fp_local_stack_is_far();
}

/* ---- a call whose memory is pinned at once ---- */

/* Returns 0 and *ret if the call was made. Otherwise there is too much to pin at once. */
static int attempt(const struct call_request *q, bool is_wide, long *ret)
{
	__attribute__((cleanup(fp_call_args_end))) struct fp_call_args job;
	int r;

	fp_call_args_begin(&job, is_wide);
	if (q->row->how & FP_HOW_STACK)
		fp_call_args_add_stack(&job);
	memcpy(job.args, q->args, sizeof(job.args));
	job.a = job.args + q->shift;
	r = fp_call_args_prepare(&job, q->row->pieces);
	fp_local_settle();
	if (r < 0 && r != -EFAULT)
		return r;
	errno = q->before;
	*ret = r < 0 ? pass(q) : call(q, job.args);
	return 0;
}

/*
 * True if the call may be repeated with wide windows: the kernel may need more than was pinned.
 * Calls that move bytes must not be repeated.
 */
static bool wants_wide(struct call_request *q)
{
	const struct fp_call_piece *pieces = q->row->pieces;

	for (unsigned i = 0; i < FP_PIECES && pieces[i].kind != FP_PIECE_END; i++)
		if ((pieces[i].kind == FP_PIECE_WINDOW || pieces[i].kind == FP_PIECE_IOCTL) &&
		    piece_may_be_far(q, &pieces[i]))
			return !(q->row->how & (FP_HOW_READS | FP_HOW_WRITES));
	return false;
}

/* ---- the bytes of a call whose memory is too long ---- */

static bool has_data(const struct call_request *q)
{
	const struct fp_call_piece *data = &q->row->pieces[0];

	return (q->row->how & (FP_HOW_READS | FP_HOW_WRITES)) &&
	       (data->kind == FP_PIECE_BYTES || data->kind == FP_PIECE_IOVEC);
}

/* Returns 1 and buffer i of the call's data, 0 after the last one, or an error. */
static int data_buffer(struct call_request *q, size_t i, struct iovec *ret)
{
	const struct fp_call_piece *data = &q->row->pieces[0];
	void *addr = (void *)*request_arg(q, data->arg);
	size_t n = (size_t)*request_arg(q, data->n);

	if (data->kind == FP_PIECE_IOVEC) {
		int r = i < (uint32_t)n ? fp_call_args_fetch(ret, (struct iovec *)addr + i, sizeof(*ret)) : 0;

		return r < 0 ? r : i < (uint32_t)n;
	}
	ret->iov_base = addr;
	ret->iov_len = data->m == FP_NOARG ? n : n * (size_t)*request_arg(q, data->m);
	return i == 0;
}

/* Makes one buffer the call's data. */
static void set_data(struct call_request *q, struct iovec *one)
{
	const struct fp_call_piece *data = &q->row->pieces[0];
	bool is_vector = data->kind == FP_PIECE_IOVEC, is_product = data->m != FP_NOARG;

	*request_arg(q, data->arg) = is_vector ? (long)one : (long)one->iov_base;
	*request_arg(q, data->n) = is_vector || is_product ? 1 : (long)one->iov_len;
	if (is_product)
		*request_arg(q, data->m) = (long)one->iov_len;
}

/* The bytes of an element of a stream's data. */
static size_t element_bytes(struct call_request *q)
{
	return q->row->how & FP_HOW_STREAM ? (size_t)*request_arg(q, q->row->pieces[0].n) : 1;
}

/* ---- whether such a call may be cut ---- */

enum cut { CUT_NOT, CUT_ONCE, CUT_LOOP, CUT_LAST };

/*
 * Whether a long call on fd may be cut into several calls. CUT_NOT: it may not. CUT_ONCE: only the
 * first of them is made, because programs expect a short count from such a descriptor. CUT_LOOP:
 * all are made in a loop, because programs do not expect a short count. CUT_LAST: likewise, but
 * only if a copy is too long, because programs expect a file to be written at once.
 */
static enum cut cut_of_descriptor(int fd, bool writes)
{
	socklen_t len = sizeof(int);
	struct stat st;
	int type = 0;

	if (fstat(fd, &st) < 0)
		return CUT_NOT;
	if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode) ||
	    (S_ISCHR(st.st_mode) && major(st.st_rdev) == MEMORY_DEVICES))
		return writes ? CUT_LAST : CUT_LOOP;
	if (S_ISSOCK(st.st_mode) && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0)
		return CUT_NOT;
	if (S_ISFIFO(st.st_mode) || type == SOCK_STREAM || (S_ISCHR(st.st_mode) && isatty(fd)))
		return writes ? CUT_LOOP : CUT_ONCE;
	return CUT_NOT;
}

/* True if the program wants to wait for all bytes (MSG_WAITALL). */
static bool waits_for_all(struct call_request *q)
{
	return (q->row->how & FP_HOW_RECEIVES) &&
	       (*request_arg(q, FP_HOW_ARG(q->row->how)) & (MSG_WAITALL | MSG_PEEK)) == MSG_WAITALL;
}

static enum cut choose_cut(struct call_request *q)
{
	int saved = errno;
	enum cut cut;

	if (!has_data(q))
		return CUT_NOT;
	if (q->row->how & FP_HOW_STREAM)
		return q->row->how & FP_HOW_WRITES ? CUT_LAST : CUT_LOOP;
	if (q->row->pieces[0].arg == 0)
		return CUT_LOOP;
	cut = cut_of_descriptor((int)*request_arg(q, 0), q->row->how & FP_HOW_WRITES);
	errno = saved;
	return cut == CUT_ONCE && waits_for_all(q) ? CUT_LOOP : cut;
}

/* ---- such a call by way of a copy: one call, so that no other writer's bytes come between ---- */

static int copy_bytes(char *theirs, char *ours, size_t len, bool to_theirs)
{
	int r = 0;

	for (size_t i = 0; i < len && r == 0; i += COPY_STEP) {
		size_t n = FP_MIN(len - i, COPY_STEP);

		r = to_theirs ? fp_call_args_store(theirs + i, ours + i, n)
		              : fp_call_args_fetch(ours + i, theirs + i, n);
	}
	return r;
}

static int copy_data(struct call_request *q, char *ours, size_t len, bool to_theirs)
{
	struct iovec theirs;
	int r = 0;

	for (size_t i = 0; len && r == 0 && (r = data_buffer(q, i, &theirs)) > 0; i++) {
		size_t n = FP_MIN(theirs.iov_len, len);

		r = copy_bytes(theirs.iov_base, ours, n, to_theirs);
		ours += n;
		len -= n;
	}
	return r;
}

/* Returns an error if there is no data, or too much to copy. */
static int data_len(struct call_request *q, size_t *ret_len)
{
	struct iovec buffer;
	int r;

	*ret_len = 0;
	for (size_t i = 0; (r = data_buffer(q, i, &buffer)) > 0; i++)
		if (buffer.iov_len > COPY_MAX || (*ret_len += buffer.iov_len) > COPY_MAX)
			return -E2BIG;
	return r < 0 || *ret_len ? r : -E2BIG;
}

/*
 * Local memory for the data of q. It lies in its page as the data does, which files without a cache
 * look at. NULL if there is none.
 */
static char *copy_room(struct call_request *q, struct fp_call_args *job, size_t len)
{
	char *room = fp_call_args_take(job, len + 2 * FP_PAGE_SIZE);
	struct iovec first;

	if (!room || data_buffer(q, 0, &first) <= 0)
		return NULL;
	room += FP_PAGE_SIZE - (uintptr_t)room % FP_PAGE_SIZE;
	return room + (uintptr_t)first.iov_base % FP_PAGE_SIZE;
}

static bool is_copied(enum cut cut, bool reads, size_t len)
{
	return cut == CUT_NOT || cut == CUT_LAST || (!reads && len <= PIPE_BUF);
}

/*
 * Returns 0 and *ret if the call was made, or -EFAULT if the program lacks some of the memory to be
 * written, or -E2BIG. Bytes that can be cut are not read so: no more must be read than the
 * program's memory takes. Pipes and streams are not written so: others may write between in any
 * case, but for PIPE_BUF bytes. A longjmp out of a handler would lose the copy's memory.
 */
static int attempt_copy(struct call_request *q, enum cut cut, long *ret)
{
	__attribute__((cleanup(fp_call_args_end))) struct fp_call_args job;
	bool reads = q->row->how & FP_HOW_READS;
	struct call_request one_call = *q;
	struct iovec one;
	int r = 0, saved;

	fp_call_args_begin(&job, false);
	if (!has_data(q) || data_len(q, &one.iov_len) < 0 || !is_copied(cut, reads, one.iov_len))
		return -E2BIG;
	one.iov_base = copy_room(q, &job, one.iov_len);
	if (!one.iov_base)
		return -E2BIG;
	if (!reads)
		r = copy_data(q, one.iov_base, one.iov_len, false);
	if (r < 0)
		return r;
	set_data(&one_call, &one);
	if (attempt(&one_call, false, ret) < 0)
		return -E2BIG;
	saved = errno;
	r = reads && *ret > 0 ? copy_data(q, one.iov_base, (size_t)*ret, true) : 0;
	errno = r < 0 ? EFAULT : saved;
	*ret = r < 0 ? -1 : *ret / (long)element_bytes(q);
	return 0;
}

/* ---- such a call piece by piece ---- */

/* The part of a call that is still to be made, chunk by chunk. */
struct rest {
	enum cut cut;
	struct iovec buffer;
	size_t done, chunk; /* how many bytes are done; how many could be pinned last time */
	bool is_over;
};

/* Half of len in whole pages: devices require buffers of whole pages. */
static size_t half(size_t len)
{
	return FP_MAX(len / 2 & ~(size_t)(FP_PAGE_SIZE - 1), FP_PAGE_SIZE);
}

/* Makes the call for one chunk: as much as can be pinned at once, but at least a page. */
static long do_chunk(const struct call_request *q, struct rest *rest, size_t *ret_asked)
{
	uint32_t how = q->row->how;
	long ret;

	for (;; rest->chunk = half(rest->chunk)) {
		struct call_request part = *q;
		struct iovec one = {.iov_base = rest->buffer.iov_base,
		                    .iov_len = FP_MIN(rest->buffer.iov_len, rest->chunk)};

		set_data(&part, &one);
		if ((how & FP_HOW_OFFSET) && *request_arg(&part, FP_HOW_ARG(how)) != -1)
			*request_arg(&part, FP_HOW_ARG(how)) += (long)rest->done;
		*ret_asked = one.iov_len;
		if (attempt(&part, false, &ret) == 0)
			return ret;
		if (rest->chunk <= FP_PAGE_SIZE)
			return refuse_long(q->row->name);
	}
}

/* Makes the call for one buffer. */
static void do_buffer(const struct call_request *q, struct rest *rest)
{
	while (rest->buffer.iov_len && !rest->is_over) {
		size_t asked;
		long ret = do_chunk(q, rest, &asked);

		rest->is_over = ret < (long)asked || rest->cut == CUT_ONCE;
		if (ret < 0 && rest->done == 0)
			rest->done = (size_t)ret;
		if (ret <= 0)
			return;
		rest->buffer.iov_base = (char *)rest->buffer.iov_base + ret;
		rest->buffer.iov_len -= (size_t)ret;
		rest->done += (size_t)ret;
	}
}

static void do_buffers(struct call_request *q, struct rest *rest)
{
	for (size_t i = 0; !rest->is_over && data_buffer(q, i, &rest->buffer) > 0; i++)
		do_buffer(q, rest);
}

/* Transfers bytes of a stream; the program counts elements. The stream is locked meanwhile. */
static void do_stream(struct call_request *q, struct rest *rest)
{
	FILE *stream = (FILE *)*request_arg(q, q->row->pieces[0].m + 1u);

	flockfile(stream);
	do_buffers(q, rest);
	funlockfile(stream);
	rest->done /= element_bytes(q);
}

static long do_long(struct call_request *q)
{
	struct rest rest = {.cut = choose_cut(q), .chunk = SIZE_MAX / 4};
	long ret;
	int r = attempt_copy(q, rest.cut, &ret);

	if (r == 0)
		return ret;
	if (rest.cut == CUT_NOT && r != -EFAULT)
		return refuse_long(q->row->name);
	if (rest.cut == CUT_NOT) {
		errno = EFAULT;
		return -1;
	}
	if (q->row->how & FP_HOW_STREAM)
		do_stream(q, &rest);
	else
		do_buffers(q, &rest);
	return (long)rest.done;
}

/* ---- the entry ---- */

static long pin_and_call(struct call_request *q)
{
	long ret;

	if (attempt(q, false, &ret) < 0)
		return do_long(q);
	if (is_fault(ret) && wants_wide(q) && attempt(q, true, &ret) < 0)
		errno = EFAULT;
	return ret;
}

static long mediate(struct call_request *q)
{
	unsigned first = FP_HOW_FIRST(q->row->how);
	long ret;

	if (q->row->how & FP_HOW_REFUSE)
		return refuse(q->row->name, ENOSYS, "what memory it would use, and when, is not known");
	if (!may_be_far(q) || fp_agent_is_stray(fp_shim_agent())) {
		ret = pass(q);
	} else {
		if (first) { /* a free lock is taken without the kernel */
			ret = resolve(first - 1)(q->args[0], 0, 0, 0, 0, 0, 0);
			if ((int)ret != EBUSY)
				return ret;
		}
		ret = pin_and_call(q);
	}
	if ((q->row->how & FP_HOW_GUESS) && is_fault(ret))
		report_fault(q->row->name);
	return ret;
}

/* A call of fcntl names its descriptor, and may change its flags. The others return one. */
static void look(const struct call_request *q, long ret)
{
	int flags = (int)q->args[FP_HOW_ARG(q->row->how)];

	if ((int)ret < 0)
		return;
	if (q->row->how & FP_HOW_OPENS)
		fp_wary_look((int)ret, flags);
	else if ((int)q->args[1] == F_SETFL && (flags & O_DIRECT))
		fp_wary_look((int)q->args[0], -1);
}

long fp_calls_run(unsigned row, long *args)
{
	struct call_request q = {.row = &fp_call_rows[row], .real = resolve(row), .before = errno};
	long ret;

	memcpy(q.args, args, sizeof(q.args));
	if (fp_local_is_agent()) {
		q.real = atomic_load_explicit(&agents[row], memory_order_relaxed);
		return pass(&q);
	}
	if ((q.row->how & FP_HOW_RELEASES) && fp_shim_agent())
		fp_agent_affinity_release(fp_shim_agent(), true);
	q.opens = q.row->how & FP_HOW_OPENS;
	if (q.row->how & FP_HOW_SYSCALL) {
		q.row = fp_call_raw_row(args[0]);
		q.shift = 1;
	}
	ret = fp_calls_hold() ? mediate(&q) : pass(&q);
	if (q.row->how & FP_HOW_LOOKS)
		look(&q, ret);
	return ret;
}
