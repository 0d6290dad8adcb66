/*
 * See calls.h. The one interpreter of rows. Invariants:
 *   - A call whose memory is all local goes to the C library with the arguments it came with.
 *   - What was prepared is let go of on every way out: return, cancellation (this file is compiled
 *     with -fexceptions), and a longjmp out of a signal handler (at the thread's next call).
 *   - errno is the C library's, or as it was.
 */
#include "calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "call_args.h"
#include "cleanup.h"
#include "fdutil.h"
#include "local.h"
#include "shim.h"
#include "store.h"

#define PIECEWISE_MIN FP_PAGE_SIZE
#define SAID_MAX      64
#define ROWS_MAX      1024

static atomic_bool must_hold, must_pin;
static _Atomic(fp_call_fn *) reals[ROWS_MAX];

/* ---- the C library's functions ---- */

static long no_such_call(long a, long b, long c, long d, long e, long f, long g)
{
	errno = ENOSYS;
	return -1;
}

static fp_call_fn *resolve(unsigned row)
{
	fp_call_fn *real = atomic_load_explicit(&reals[row], memory_order_relaxed);

	if (real)
		return real;
	real = (fp_call_fn *)dlsym(RTLD_NEXT, fp_call_rows[row].name);
	if (!real)
		real = no_such_call;
	atomic_store_explicit(&reals[row], real, memory_order_relaxed);
	return real;
}

/* Reads by a descriptor, its argument 0: these may have a device write into the caller's memory. */
static bool reads_descriptor(const struct fp_row *row)
{
	return (row->how & FP_HOW_READS) && !(row->how & FP_HOW_STREAM) && row->pieces[0].arg != 0;
}

void fp_calls_open(void)
{
	bool hold = fp_shim_agent() && fp_agent_needs_pins(fp_shim_agent());
	bool pin = fp_shim_agent() && fp_agent_is_blind_to_devices(fp_shim_agent());

	atomic_store_explicit(&must_pin, pin, memory_order_release);
	atomic_store_explicit(&must_hold, hold, memory_order_release);
	for (unsigned i = 0; i < fp_call_n_rows; i++) {
		fp_call_fn *real = resolve(i);

		if (!hold && !(pin && reads_descriptor(&fp_call_rows[i])) &&
		    !(fp_shim_agent() && (fp_call_rows[i].how & (FP_HOW_OPENS | FP_HOW_RELEASES))))
			fp_call_entry[i] = real;
	}
	if (hold || pin)
		fp_call_syscall_way = fp_call_syscall_mediated;
}

bool fp_calls_hold(void)
{
	return atomic_load_explicit(&must_hold, memory_order_acquire);
}

/* ---- what is said ---- */

/* True once for each name. */
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

/* What the kernel could not reach although all that we know of was there: our table's fault. */
static void report_fault(const char *name)
{
	atomic_bool said = !is_news(name);
	int saved = errno;

	fp_shim_say_once(
	    &said,
	    "%s met far memory that was not resident, and failed with EFAULT: what it takes is not known "
	    "in this fault mode. Keep that memory local (FARPAGE_HEAP, FARPAGE_MIN_MAPPING), or use "
	    "fault mode thread",
	    name);
	errno = saved;
}

/* ---- one request, and its row ---- */

struct call_request {
	const char *name;
	uint32_t how;
	const struct fp_call_piece *pieces;
	fp_call_fn *real;
	unsigned shift; /* of syscall's arguments */
	long args[FP_CALL_ARGS];
	struct fp_call_piece by_number[2]; /* as the command's number says */
};

static long *request_arg(struct call_request *q, unsigned n)
{
	return &q->args[n + q->shift];
}

static void lock(const struct call_request *q, struct fp_fd_hold *hold)
{
	if (q->how & FP_HOW_OPENS)
		fp_fd_lock_shared(hold);
}

static long call(const struct call_request *q, const long *args)
{
	__attribute__((cleanup(fp_fd_unlock_shared))) struct fp_fd_hold hold = {false};

	lock(q, &hold);
	return q->real(args[0], args[1], args[2], args[3], args[4], args[5], args[6]);
}

static long pass(const struct call_request *q)
{
	return call(q, q->args);
}

/* An int's upper half means nothing. */
static bool is_fault(long ret)
{
	return (int)ret == -1 && errno == EFAULT;
}

/*
 * Held both ways, where it is, and with what follows: some numbers say less than the truth about
 * the direction, and of some structs only how long their head is.
 */
static void choose_by_number(struct call_request *q, unsigned long number)
{
	if (_IOC_DIR(number) == _IOC_NONE || _IOC_SIZE(number) == 0)
		return;
	q->by_number[0] = (struct fp_call_piece){.kind = FP_PIECE_UPTO,
	                                         .dir = FP_DIR_INOUT,
	                                         .arg = FP_HOW_ARG(q->how) + 1,
	                                         .n = FP_NOARG,
	                                         .m = FP_NOARG,
	                                         .unit = _IOC_SIZE(number) + FP_PAGE_SIZE};
	q->pieces = q->by_number;
}

static void choose_command(struct call_request *q)
{
	unsigned number = (unsigned)*request_arg(q, FP_HOW_ARG(q->how));
	const struct fp_cmd_row *row;

	if (q->how & FP_HOW_PAIR)
		number = number << 16 | (uint16_t)*request_arg(q, FP_HOW_ARG(q->how) + 1);
	if (q->how & FP_HOW_FLAGS_128)
		number &= 127;
	row = fp_call_cmd_row(q->name, number);
	if (row)
		q->pieces = row->pieces;
	else if (q->how & FP_HOW_BY_NUMBER)
		choose_by_number(q, number);
}

static void choose_row(struct call_request *q, const struct fp_row *row)
{
	q->name = row->name;
	q->how = row->how;
	q->pieces = row->pieces;
	if (row->how & FP_HOW_COMMAND)
		choose_command(q);
}

static bool piece_may_be_far(struct call_request *q, const struct fp_call_piece *piece)
{
	const void *p = (const void *)*request_arg(q, piece->arg);

	switch (piece->kind) {
	case FP_PIECE_STRINGS:
	case FP_PIECE_IOVEC:
	case FP_PIECE_MESSAGE:
	case FP_PIECE_NEST:
	case FP_PIECE_WAITERS:
	case FP_PIECE_AIOCB:
	case FP_PIECE_SETMASK:
	case FP_PIECE_MASK:
		return p != NULL;
	case FP_PIECE_SIZED:
		return fp_call_args_far(p, 1) || fp_call_args_far((const void *)*request_arg(q, piece->n), 1);
	default:
		return fp_call_args_far(p, 1);
	}
}

static bool may_be_far(struct call_request *q)
{
	for (unsigned i = 0; i < FP_PIECES && q->pieces[i].kind != FP_PIECE_END; i++)
		if (piece_may_be_far(q, &q->pieces[i]))
			return true;
	return false;
}

/* ---- a call whose memory is held, or copied, at once ---- */

/* True if what the kernel takes is not known to the last byte: an EFAULT need not be the program's
 * fault. */
static bool is_guess(const struct call_request *q)
{
	for (unsigned i = 0; i < FP_PIECES && q->pieces[i].kind != FP_PIECE_END; i++)
		if (q->pieces[i].kind == FP_PIECE_UPTO || q->pieces[i].kind == FP_PIECE_NEST)
			return true;
	return q->pieces == q->by_number;
}

/* 0 and *ret: the call was made. -E2BIG: it was not. */
static int attempt(const struct call_request *q, bool by_copy, long *ret)
{
	__attribute__((cleanup(fp_call_args_end))) struct fp_call_args job;
	int r, after, before = errno;

	fp_call_args_begin(&job, q->pieces, by_copy);
	memcpy(job.args, q->args, sizeof(job.args));
	job.a = job.args + q->shift;
	r = fp_call_args_prepare(&job);
	fp_local_settle();
	if (r == -E2BIG)
		return r;
	if (job.refuse) {
		*ret = refuse(q->name, EINVAL,
		              "a thread of the C library's would use far memory after the call");
		return 0;
	}
	if (r < 0)
		fp_call_args_give_up(&job, q->args);
	errno = before;
	*ret = call(q, job.args);
	after = errno;
	*ret = fp_call_args_finish(&job, *ret);
	if (r == 0 && job.is_far && is_guess(q) && is_fault(*ret))
		report_fault(q->name);
	errno = after;
	return 0;
}

static long by_copy(const struct call_request *q)
{
	long ret;

	if (attempt(q, true, &ret) == 0)
		return ret;
	return refuse(q->name, ENOMEM, "it hands over more far memory at once than can be resident");
}

/* ---- a call whose memory is too long ---- */

enum cut { CUT_NOT, CUT_ONCE, CUT_LOOP };

/* Where a short count is legal, and where programs know nothing of it. */
static enum cut cut_of_descriptor(int fd, bool writes)
{
	socklen_t len = sizeof(int);
	struct stat st;
	int type = 0;

	if (fstat(fd, &st) < 0)
		return CUT_NOT;
	if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode))
		return CUT_LOOP;
	if (S_ISSOCK(st.st_mode) && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0)
		return CUT_NOT;
	if (S_ISFIFO(st.st_mode) || type == SOCK_STREAM || (S_ISCHR(st.st_mode) && isatty(fd)))
		return writes ? CUT_LOOP : CUT_ONCE;
	return CUT_NOT;
}

/* A short count, which the program has asked not to get. */
static bool waits_for_all(struct call_request *q)
{
	return (q->how & FP_HOW_RECEIVES) &&
	       (*request_arg(q, FP_HOW_ARG(q->how)) & (MSG_WAITALL | MSG_PEEK)) == MSG_WAITALL;
}

static enum cut choose_cut(struct call_request *q, const struct fp_call_piece *data)
{
	int saved = errno;
	enum cut cut;

	if (!(q->how & (FP_HOW_READS | FP_HOW_WRITES)))
		return CUT_NOT;
	if (data->kind != FP_PIECE_BYTES && data->kind != FP_PIECE_IOVEC)
		return CUT_NOT;
	if ((q->how & FP_HOW_STREAM) || data->arg == 0)
		return CUT_LOOP;
	cut = cut_of_descriptor((int)*request_arg(q, 0), q->how & FP_HOW_WRITES);
	errno = saved;
	return cut == CUT_ONCE && waits_for_all(q) ? CUT_LOOP : cut;
}

/* What is left of a call that goes on piece by piece. */
struct rest {
	char *addr;
	size_t len, done;
	size_t chunk; /* as much as could be held at the last time */
	bool is_over;
};

static void set_chunk(struct call_request *q, const struct fp_call_piece *data, struct iovec *one)
{
	if (data->kind == FP_PIECE_IOVEC) {
		*request_arg(q, data->arg) = (long)one;
		*request_arg(q, data->n & FP_ARG_MASK) = 1;
		return;
	}
	*request_arg(q, data->arg) = (long)one->iov_base;
	*request_arg(q, data->n & FP_ARG_MASK) = data->m == FP_NOARG ? (long)one->iov_len : 1;
	if (data->m != FP_NOARG)
		*request_arg(q, data->m & FP_ARG_MASK) = (long)one->iov_len;
}

/* In whole pages, as a device must have what it reads and writes. */
static size_t half(size_t len)
{
	return FP_MAX(len / 2 & ~(size_t)(FP_PAGE_SIZE - 1), PIECEWISE_MIN);
}

/* One piece: as much as can be held, down to a page; that is copied if need be. */
static long do_chunk(const struct call_request *q, const struct fp_call_piece *data, struct rest *rest,
                     size_t *ret_asked)
{
	struct call_request part = *q;
	long ret;

	for (;;) {
		struct iovec one = {.iov_base = rest->addr, .iov_len = FP_MIN(rest->len, rest->chunk)};

		set_chunk(&part, data, &one);
		if (q->how & FP_HOW_OFFSET)
			*request_arg(&part, FP_HOW_ARG(q->how)) +=
			    *request_arg((struct call_request *)q, FP_HOW_ARG(q->how)) == -1
			        ? 0
			        : (long)rest->done;
		*ret_asked = one.iov_len;
		if (attempt(&part, rest->chunk <= PIECEWISE_MIN, &ret) == 0)
			return ret;
		if (rest->chunk <= PIECEWISE_MIN)
			return refuse(q->name, ENOMEM, "not even a page of far memory could be brought in");
		rest->chunk = half(rest->chunk);
		part = *q;
	}
}

/* One buffer of the call, from rest->addr on. */
static void do_buffer(const struct call_request *q, const struct fp_call_piece *data, enum cut cut,
                      struct rest *rest)
{
	while (rest->len && !rest->is_over) {
		size_t asked;
		long ret = do_chunk(q, data, rest, &asked);

		rest->is_over = ret < (long)asked || cut == CUT_ONCE;
		if (ret <= 0) {
			if (rest->done == 0 && ret < 0)
				rest->done = (size_t)ret;
			return;
		}
		rest->addr += ret;
		rest->len -= (size_t)ret;
		rest->done += (size_t)ret;
	}
}

static long piecewise_vector(struct call_request *q, const struct fp_call_piece *data, enum cut cut)
{
	const struct iovec *iov = (const struct iovec *)*request_arg(q, data->arg);
	size_t n = (size_t)*request_arg(q, data->n & FP_ARG_MASK) & UINT32_MAX;
	struct rest rest = {.chunk = SIZE_MAX / 4};

	for (size_t i = 0; i < n && !rest.is_over; i++) {
		struct iovec one;

		if (fp_call_args_fetch(&one, &iov[i], sizeof(one)) < 0)
			break;
		rest.addr = one.iov_base;
		rest.len = one.iov_len;
		do_buffer(q, data, cut, &rest);
	}
	return (long)rest.done;
}

/* What the program asked for in elements is done in bytes, under the stream's lock. */
static long piecewise_stream(struct call_request *q, const struct fp_call_piece *data)
{
	size_t size = (size_t)*request_arg(q, data->n);
	FILE *stream = (FILE *)*request_arg(q, data->m + 1u);
	struct rest rest = {.addr = (char *)*request_arg(q, data->arg),
	                    .len = size * (size_t)*request_arg(q, data->m),
	                    .chunk = size * (size_t)*request_arg(q, data->m) / 2};

	flockfile(stream);
	do_buffer(q, data, CUT_LOOP, &rest);
	funlockfile(stream);
	return (long)(rest.done / size);
}

static long do_long(struct call_request *q)
{
	const struct fp_call_piece *data = &q->pieces[0];
	struct rest rest = {0};
	enum cut cut = choose_cut(q, data);

	if (cut == CUT_NOT)
		return by_copy(q);
	if (q->how & FP_HOW_STREAM)
		return piecewise_stream(q, data);
	if (data->kind == FP_PIECE_IOVEC)
		return piecewise_vector(q, data, cut);
	rest.addr = (char *)*request_arg(q, data->arg);
	rest.len = (size_t)*request_arg(q, data->n);
	rest.chunk = half(rest.len);
	do_buffer(q, data, cut, &rest);
	return (long)rest.done;
}

/* ---- the way in ---- */

/* True and *ret: what the call is about needs no kernel. The objects of other rows never come
 * here. */
static bool without_kernel(struct call_request *q, long *ret)
{
	unsigned first = FP_HOW_FIRST(q->how);

	if (q->how & FP_HOW_DONE_BIT) {
		const atomic_int *word = (const atomic_int *)q->args[0];

		if (atomic_load_explicit(word, memory_order_acquire) & 2)
			*ret = pass(q);
		return atomic_load_explicit(word, memory_order_acquire) & 2;
	}
	if (!first)
		return false;
	*ret = resolve(first - 1)(q->args[0], 0, 0, 0, 0, 0, 0);
	return (int)*ret != EBUSY;
}

static long mediate(struct call_request *q)
{
	long ret;

	if (q->how & FP_HOW_REFUSE)
		return refuse(q->name, ENOSYS,
		              "the kernel would use memory after the call, which may be far");
	if (!may_be_far(q))
		return pass(q);
	if (without_kernel(q, &ret) || attempt(q, false, &ret) == 0)
		return ret;
	return do_long(q);
}

/* Where the kernel faults by itself, but does not tell of pins. */
static bool is_direct_read(struct call_request *q)
{
	const struct fp_row row = {.how = q->how, .pieces = {q->pieces[0]}};
	int saved = errno;
	long flags;

	if (!reads_descriptor(&row) || !may_be_far(q))
		return false;
	flags = fp_call_raw_syscall(SYS_fcntl, *request_arg(q, 0), F_GETFL);
	errno = saved;
	return flags >= 0 && (flags & O_DIRECT);
}

long fp_calls_run(unsigned row, long *args)
{
	struct call_request q = {.real = resolve(row)};
	bool hold = fp_calls_hold();

	memcpy(q.args, args, sizeof(q.args));
	if (fp_local_is_agent())
		return pass(&q);
	if ((fp_call_rows[row].how & FP_HOW_RELEASES) && fp_shim_agent())
		fp_agent_affinity_release(fp_shim_agent(), true);
	q.how = fp_call_rows[row].how & FP_HOW_OPENS;
	if (!hold && !atomic_load_explicit(&must_pin, memory_order_relaxed))
		return pass(&q);
	if (fp_call_rows[row].how & FP_HOW_SYSCALL) {
		const struct fp_row *raw = fp_call_raw_row(args[0]);

		if (!raw)
			return pass(&q);
		q.shift = 1;
		choose_row(&q, raw);
	} else {
		choose_row(&q, &fp_call_rows[row]);
	}
	return hold || is_direct_read(&q) ? mediate(&q) : pass(&q);
}
