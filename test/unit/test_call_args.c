/*
 * The memory of one call: which ranges each kind of piece pins, which arguments become copies, and
 * that all of it ends with the call.
 */
#include "far_rig.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "call_args.h"
#include "cleanup.h"
#include "sigmask.h"

#define INT(n)     ((n) | FP_ARG_IS_INT)
#define GARBAGE    (0x5a5a5a5aul << 32)
#define COPIED_MAX (8ul << 20)

static struct fp_call_args job;

/* Prepares a call with one piece and these arguments. */
static int prepare(struct fp_call_piece piece, long a, long b, long c)
{
	const struct fp_call_piece pieces[FP_PIECES] = {piece};

	fp_call_args_begin(&job, false);
	job.a = job.args;
	job.args[0] = a;
	job.args[1] = b;
	job.args[2] = c;
	return fp_call_args_prepare(&job, pieces);
}

static struct fp_call_piece bytes_of(unsigned n, unsigned m, uint16_t base, uint32_t unit)
{
	return (struct fp_call_piece){.kind = FP_PIECE_BYTES,
	                              .n = (uint8_t)n,
	                              .m = (uint8_t)m,
	                              .base = base,
	                              .unit = unit,
	                              .write = true};
}

static struct fp_call_piece piece_of(enum fp_piece_kind kind, unsigned n, unsigned m)
{
	return (struct fp_call_piece){.kind = (uint8_t)kind, .n = (uint8_t)n, .m = (uint8_t)m, .unit = 1};
}

static void assert_range(unsigned i, const void *addr, size_t len, bool write)
{
	assert_true(i < far_rig.n_ranges);
	assert_ptr_equal(far_rig.ranges[i].addr, addr);
	assert_int_equal(far_rig.ranges[i].len_bytes, len);
	assert_int_equal(far_rig.ranges[i].write, write);
}

/* Checks that the call has pinned exactly this range. Then ends the call, which must unpin it. */
static void assert_one_range(const void *addr, size_t len, bool write)
{
	assert_int_equal(far_rig.n_open, 1);
	assert_int_equal(far_rig.n_ranges, 1);
	assert_range(0, addr, len, write);
	fp_call_args_end(&job);
	fp_call_args_end(&job); /* a second end finds nothing to do */
	assert_int_equal(far_rig.n_open, 0);
	far_rig_close();
}

static void assert_no_range(void)
{
	assert_int_equal(far_rig.n_pins, 0);
	fp_call_args_end(&job);
}

/* ---- buffers ---- */

static void test_bytes(void **state)
{
	long far = (long)FAR(100);

	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 0, 1), far, 5000, 0), 0);
	assert_one_range(FAR(100), 5000, true);
	assert_int_equal(prepare(bytes_of(1, 2, 0, 1), far, 7, 11), 0);
	assert_one_range(FAR(100), 77, true);
	assert_int_equal(prepare(bytes_of(1, 2, 8, 3), far, 7, 11), 0);
	assert_one_range(FAR(100), 8 + 3 * 77, true);
	assert_int_equal(prepare(bytes_of(FP_NOARG, FP_NOARG, 0, 144), far, 0, 0), 0);
	assert_one_range(FAR(100), 144, true);
}

/*
 * Of an int argument only the lower half counts, because the upper half may be garbage. Of a size
 * both halves count.
 */
static void test_int_argument(void **state)
{
	assert_int_equal(prepare(bytes_of(INT(1), FP_NOARG, 0, 1), (long)FAR(0), (long)(GARBAGE | 64), 0), 0);
	assert_one_range(FAR(0), 64, true);
	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 0, 1), (long)FAR(0), 1l << 32, 0), 0);
	assert_one_range(FAR(0), 1ul << 32, true);
}

/* Lengths that no memory can have. Nothing is pinned, and the kernel reports the error. */
static void test_impossible_lengths(void **state)
{
	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 0, 16), (long)FAR(0), (1l << 60) + 1, 0), 0);
	assert_no_range();
	assert_int_equal(prepare(bytes_of(1, 2, 0, 1), (long)FAR(0), 1l << 40, (1l << 24) + 1), 0);
	assert_no_range();
	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 8, 1), (long)FAR(0), -1, 0), 0);
	assert_no_range();
	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 0, 1), (long)FAR(0), -1, 0), 0);
	assert_no_range(); /* the range would end beyond all addresses */
}

/* A range is pinned if at least one of its bytes is far. */
static void test_borders(void **state)
{
	char *end = FAR((size_t)FAR_PAGES * FP_PAGE_SIZE);

	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 0, 1), (long)(FAR(0) - 10), 10, 0), 0);
	assert_no_range();
	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 0, 1), (long)(FAR(0) - 10), 11, 0), 0);
	assert_one_range(FAR(0) - 10, 11, true);
	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 0, 1), (long)(end - 1), 1, 0), 0);
	assert_one_range(end - 1, 1, true);
	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 0, 1), (long)end, 10, 0), 0);
	assert_no_range();
	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 0, 1), (long)FAR(5), 0, 0), 0);
	assert_no_range();
	assert_int_equal(prepare(bytes_of(1, FP_NOARG, 0, 1), 0, 100, 0), 0);
	assert_no_range();
	assert_true(fp_call_args_far(FAR(0), 0)); /* an address without a length is far if its byte is */
	assert_false(fp_call_args_far(end, 0));
}

/* ---- windows ---- */

static void check_window(struct fp_call_piece piece, bool is_wide, unsigned long request, size_t len)
{
	const struct fp_call_piece pieces[FP_PIECES] = {piece};

	fp_call_args_begin(&job, is_wide);
	job.a = job.args;
	job.args[0] = (long)FAR(64);
	job.args[1] = (long)request;
	assert_int_equal(fp_call_args_prepare(&job, pieces), 0);
	assert_one_range(FAR(64), len, piece.write);
}

/*
 * By default a narrow window has 512 bytes, and a wide one has 8 KiB. A row may ask for a longer
 * wide window. An ioctl's number may ask for a longer window of either kind.
 */
static void test_windows(void **state)
{
	struct fp_call_piece window = piece_of(FP_PIECE_WINDOW, FP_NOARG, FP_NOARG), ioctls;

	check_window(window, false, 0, 512);
	check_window(window, true, 0, 8192);
	window.write = true;
	window.unit = 9000;
	check_window(window, false, 0, 512);
	check_window(window, true, 0, 9000);
	ioctls = piece_of(FP_PIECE_IOCTL, 1, FP_NOARG);
	check_window(ioctls, false, _IOC(_IOC_READ, 1, 1, 3000), 3000);
	check_window(ioctls, false, _IOC(_IOC_READ, 1, 1, 30), 512);
	check_window(ioctls, true, _IOC(_IOC_READ, 1, 1, 16383), 16383);
}

/* ---- strings ---- */

/* Makes the page behind the far memory inaccessible, or accessible again. */
static void close_behind(bool close)
{
	char *behind = FAR((size_t)FAR_PAGES * FP_PAGE_SIZE);

	assert_int_equal(mprotect(behind, FP_PAGE_SIZE, close ? PROT_NONE : PROT_READ | PROT_WRITE), 0);
}

static void check_text(size_t offset, size_t len)
{
	char *s = FAR(offset);

	memset(s, 'x', len);
	s[len] = '\0';
	far_rig_close();
	assert_int_equal(prepare(piece_of(FP_PIECE_TEXT, FP_NOARG, FP_NOARG), (long)s, 0, 0), 0);
	assert_one_range(s, len + 1, false);
	assert_int_equal(far_rig.n_faults, 0);
}

/* A string is pinned up to its NUL, wherever that lies. */
static void test_text(void **state)
{
	size_t last = (size_t)FAR_PAGES * FP_PAGE_SIZE - 1;

	close_behind(true);
	check_text(last - 20, 20); /* nothing behind it is read */
	close_behind(false);
	check_text(0, 0);
	check_text(10, 255);
	check_text(10, 256);
	check_text(10, 257);
	check_text(0, FP_PAGE_SIZE - 1);
	check_text(0, FP_PAGE_SIZE);
	check_text(FP_PAGE_SIZE - 1, 1);
	check_text(300, 20000);
	assert_int_equal(prepare(piece_of(FP_PIECE_TEXT, FP_NOARG, FP_NOARG), (long)"local", 0, 0), 0);
	assert_no_range();
}

/* A string that exceeds the limit is refused. It is not read to its end. */
static void test_text_too_long(void **state)
{
	memset(FAR(0), 'x', COPIED_MAX);
	FAR(COPIED_MAX)[0] = '\0';
	far_rig_close();
	assert_int_equal(prepare(piece_of(FP_PIECE_TEXT, FP_NOARG, FP_NOARG), (long)FAR(0), 0, 0), -E2BIG);
	assert_int_equal(far_rig.n_pins, COPIED_MAX / 256); /* read up to the limit, in pieces */
	fp_call_args_end(&job);
}

/* ---- vectors and messages ---- */

static void fill_vector(struct iovec *iov, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		iov[i] = (struct iovec){FAR(FP_PAGE_SIZE * 20 + 100 * i), 1 + i % 90};
}

static void check_vector(struct iovec *iov, unsigned n, bool is_far)
{
	struct fp_call_piece piece = piece_of(FP_PIECE_IOVEC, INT(1), FP_NOARG);

	fill_vector(iov, n);
	far_rig_close();
	piece.write = true;
	assert_int_equal(prepare(piece, (long)iov, (long)(GARBAGE | n), 0), 0);
	assert_int_equal(far_rig.n_ranges, n + is_far);
	if (is_far)
		assert_range(0, iov, n * sizeof(*iov), false);
	for (unsigned i = 0; i < n; i++)
		assert_range(i + is_far, FAR(FP_PAGE_SIZE * 20 + 100 * i), 1 + i % 90, true);
	assert_int_equal(fp_call_args_depth(), n + is_far > FP_CALL_ARGS_FEW);
	fp_call_args_end(&job);
	assert_int_equal(fp_call_args_depth(), 0);
	assert_int_equal(far_rig.n_open, 0);
}

/*
 * All buffers of a vector are pinned: a few buffers, more than have room in the job, and as many as
 * the kernel takes.
 */
static void test_vectors(void **state)
{
	static const unsigned lengths[] = {1, 2, 15, 16, 17, 31, 33, 500, 1024};
	static struct iovec local[1024];

	for (size_t i = 0; i < FP_ARRAY_LEN(lengths); i++) {
		check_vector(local, lengths[i], false);
		check_vector((struct iovec *)(void *)FAR(FP_PAGE_SIZE - 8 * sizeof(*local)), lengths[i],
		             true);
	}
}

static void test_odd_vectors(void **state)
{
	struct fp_call_piece piece = piece_of(FP_PIECE_IOVEC, INT(1), FP_NOARG);
	struct iovec local = {FAR(0), 10}, *last;

	assert_int_equal(prepare(piece, (long)FAR(0), 1025, 0), 0); /* the kernel refuses so many */
	assert_no_range();
	assert_int_equal(prepare(piece, 0, 3, 0), 0);
	assert_no_range();
	assert_int_equal(prepare(piece, (long)&local, 0, 0), 0);
	assert_no_range();
	assert_int_equal(prepare(piece, 16, 1, 0), -EFAULT); /* no such memory */
	fp_call_args_end(&job);
	last = (struct iovec *)(void *)FAR((size_t)FAR_PAGES * FP_PAGE_SIZE) - 2;
	fill_vector(last, 2);
	far_rig_close();
	close_behind(true);
	assert_int_equal(prepare(piece, (long)last, 2, 0), 0); /* nothing behind it is read */
	assert_int_equal(far_rig.n_ranges, 3);
	fp_call_args_end(&job);
	close_behind(false);
}

/* Buffers of another process are never our far memory, whatever their addresses are. */
static void test_vectors_of_processes(void **state)
{
	struct fp_call_piece piece = piece_of(FP_PIECE_IOVEC, 1, INT(2));
	struct iovec *far = (struct iovec *)(void *)FAR(0);

	fill_vector(far, 2);
	far_rig_close();
	assert_int_equal(prepare(piece, (long)far, 2, getppid()), 0);
	assert_one_range(far, 2 * sizeof(*far), false);
	assert_int_equal(prepare(piece, (long)far, 2, (long)(GARBAGE | (unsigned)getpid())), 0);
	assert_int_equal(far_rig.n_ranges, 3);
	fp_call_args_end(&job);
}

static void fill_message(struct msghdr *msg, struct iovec *iov, unsigned i)
{
	*iov = (struct iovec){FAR(FP_PAGE_SIZE * 40 + i), 3};
	*msg = (struct msghdr){.msg_name = FAR(FP_PAGE_SIZE * 41),
	                       .msg_namelen = 16,
	                       .msg_control = FAR(FP_PAGE_SIZE * 42),
	                       .msg_controllen = 24,
	                       .msg_iov = iov,
	                       .msg_iovlen = 1};
}

static void test_message(void **state)
{
	struct fp_call_piece piece = piece_of(FP_PIECE_MESSAGE, FP_NOARG, FP_NOARG);
	struct msghdr *msg = (struct msghdr *)(void *)FAR(0);
	struct iovec *iov = (struct iovec *)(void *)FAR(FP_PAGE_SIZE);

	for (unsigned write = 0; write < 2; write++) {
		fill_message(msg, iov, 0);
		far_rig_close();
		piece.write = write;
		assert_int_equal(prepare(piece, (long)msg, 0, 0), 0);
		assert_int_equal(far_rig.n_ranges, 5);
		assert_range(0, msg, sizeof(*msg), write);
		assert_range(1, FAR(FP_PAGE_SIZE * 41), 16, write);
		assert_range(2, FAR(FP_PAGE_SIZE * 42), 24, write);
		assert_range(3, iov, sizeof(*iov), false);
		assert_range(4, FAR(FP_PAGE_SIZE * 40), 3, write);
		fp_call_args_end(&job);
	}
	assert_int_equal(prepare(piece, 0, 0, 0), 0);
	far_rig_close();
	fp_call_args_end(&job);
}

/*
 * In a call with several messages the kernel writes their headers, even if the call sends. Too many
 * messages can't be pinned.
 */
static void test_messages(void **state)
{
	static struct mmsghdr local[1024];
	static struct iovec iov[1024];
	struct fp_call_piece piece = piece_of(FP_PIECE_MESSAGE, INT(1), FP_NOARG);
	struct mmsghdr *far = (struct mmsghdr *)(void *)FAR(0);

	for (unsigned i = 0; i < 1024; i++)
		fill_message(&local[i].msg_hdr, &iov[i], i);
	memcpy(far, local, 3 * sizeof(*local));
	far_rig_close();
	assert_int_equal(prepare(piece, (long)far, 3, 0), 0);
	assert_int_equal(far_rig.n_ranges, 1 + 3 * 3);
	assert_range(0, far, 3 * sizeof(*far), true);
	assert_range(9, FAR(FP_PAGE_SIZE * 40 + 2), 3, false);
	fp_call_args_end(&job);
	assert_int_equal(prepare(piece, (long)local, 682, 0), 0);
	assert_int_equal(far_rig.n_ranges, 682 * 3);
	fp_call_args_end(&job);
	far_rig_close();
	assert_int_equal(prepare(piece, (long)local, 683, 0), -E2BIG); /* 2049 ranges */
	assert_int_equal(far_rig.n_open, 0);
	fp_call_args_end(&job);
	assert_int_equal(fp_call_args_depth(), 0);
}

/* The kernel takes 1024 messages at most, so the headers behind them are not read. */
static void test_many_messages(void **state)
{
	struct fp_call_piece piece = piece_of(FP_PIECE_MESSAGE, INT(1), FP_NOARG);
	size_t len = 1024 * sizeof(struct mmsghdr);
	struct mmsghdr *local =
	    mmap(NULL, len + FP_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(local, MAP_FAILED);
	assert_int_equal(len % FP_PAGE_SIZE, 0);
	assert_int_equal(mprotect((char *)local + len, FP_PAGE_SIZE, PROT_NONE), 0);
	local[1023].msg_hdr.msg_name = FAR(0);
	local[1023].msg_hdr.msg_namelen = 16;
	assert_int_equal(prepare(piece, (long)local, 3000, 0), 0);
	assert_one_range(FAR(0), 16, false);
	assert_int_equal(munmap(local, len + FP_PAGE_SIZE), 0);
}

/* ---- copies ---- */

/* An array of strings, and each far string, are copied. Local strings stay where they are. */
static void test_strings(void **state)
{
	const char *local = "local";
	char **far = (char **)(void *)FAR(FP_PAGE_SIZE - 8), **copy;

	strcpy(FAR(5000), "one");
	memset(FAR(FP_PAGE_SIZE * 5 - 3), 'y', 10000);
	FAR(FP_PAGE_SIZE * 5 - 3)[10000] = '\0';
	far[0] = FAR(5000);
	far[1] = (char *)(uintptr_t)local;
	far[2] = FAR(FP_PAGE_SIZE * 5 - 3);
	far[3] = strcpy(FAR(6000), "thirty-two bytes: a whole number");
	far[4] = far[0];
	far[5] = NULL;
	far_rig_close();
	assert_int_equal(prepare(piece_of(FP_PIECE_STRINGS, FP_NOARG, FP_NOARG), (long)far, 0, 0), 0);
	assert_int_equal(far_rig.n_faults, 0);
	copy = (char **)job.args[0];
	assert_false(fp_call_args_far(copy, 6 * sizeof(*copy)));
	assert_false(fp_call_args_far(copy[0], 4) || fp_call_args_far(copy[2], 10001));
	assert_string_equal(copy[0], "one");
	assert_ptr_equal(copy[1], local);
	assert_int_equal(strlen(copy[2]), 10000);
	assert_int_equal(copy[2][9999], 'y');
	assert_string_equal(copy[3], "thirty-two bytes: a whole number");
	assert_string_equal(copy[4], "one");
	assert_null(copy[5]);
	assert_int_equal(fp_call_args_depth(), 1);
	fp_call_args_end(&job);
	assert_int_equal(fp_call_args_depth(), 0);
}

static void test_odd_strings(void **state)
{
	struct fp_call_piece piece = piece_of(FP_PIECE_STRINGS, FP_NOARG, FP_NOARG);
	char *all_local[] = {(char *)(uintptr_t) "a", NULL}, *one_far[] = {FAR(0), NULL}, **empty;

	assert_int_equal(prepare(piece, (long)all_local, 0, 0), 0);
	assert_ptr_equal((void *)job.args[0], all_local);
	fp_call_args_end(&job);
	assert_int_equal(prepare(piece, 0, 0, 0), 0);
	assert_int_equal(job.args[0], 0);
	fp_call_args_end(&job);
	strcpy(FAR(0), "far");
	far_rig_close();
	assert_int_equal(prepare(piece, (long)one_far, 0, 0), 0); /* the array is local, a string is not */
	assert_ptr_not_equal((void *)job.args[0], one_far);
	assert_string_equal(((char **)job.args[0])[0], "far");
	assert_ptr_equal(one_far[0], FAR(0)); /* the program's own array stays */
	fp_call_args_end(&job);
	empty = (char **)(void *)FAR(64);
	memcpy(empty, all_local, sizeof(all_local));
	far_rig_close();
	assert_int_equal(prepare(piece, (long)empty, 0, 0), 0); /* the array alone is far */
	assert_false(fp_call_args_far((void *)job.args[0], sizeof(all_local)));
	assert_ptr_equal(*(char **)job.args[0], all_local[0]);
	fp_call_args_end(&job);
	*empty = NULL;
	far_rig_close();
	assert_int_equal(prepare(piece, (long)empty, 0, 0), 0);
	assert_null(*(char **)job.args[0]);
	fp_call_args_end(&job);
	assert_int_equal(prepare(piece, 16, 0, 0), -EFAULT);
	fp_call_args_end(&job);
}

/*
 * All copies of a call together have a limit. If a call exceeds it, the copies made so far are
 * freed.
 */
static void test_strings_too_long(void **state)
{
	char *strings[12] = {NULL};

	memset(FAR(0), 'z', 1 << 20);
	FAR(1 << 20)[0] = '\0';
	for (unsigned i = 0; i < 7; i++)
		strings[i] = FAR(0);
	far_rig_close();
	assert_int_equal(prepare(piece_of(FP_PIECE_STRINGS, FP_NOARG, FP_NOARG), (long)strings, 0, 0), 0);
	fp_call_args_end(&job);
	for (unsigned i = 7; i < 9; i++)
		strings[i] = FAR(0);
	assert_int_equal(prepare(piece_of(FP_PIECE_STRINGS, FP_NOARG, FP_NOARG), (long)strings, 0, 0),
	                 -E2BIG);
	fp_call_args_end(&job);
	assert_int_equal(fp_call_args_depth(), 0);
}

/* ---- masks: fp_sigmask_open changes the mode for good, so these tests run last ---- */

static void test_masks(void **state)
{
	const uint64_t bus = 1ull << (SIGBUS - 1), user = 1ull << (SIGUSR1 - 1);
	struct fp_call_piece piece = piece_of(FP_PIECE_MASK, FP_NOARG, FP_NOARG);
	uint64_t *far = (uint64_t *)(void *)FAR(8);

	*far = bus | user;
	far_rig_close();
	assert_int_equal(prepare(piece, (long)far, 0, 0), 0);
	assert_int_equal(*(uint64_t *)job.args[0], bus | user); /* SIGBUS stays, in this mode */
	fp_call_args_end(&job);
	fp_sigmask_open();
	assert_int_equal(prepare(piece, (long)far, 0, 0), 0);
	assert_int_equal(*(uint64_t *)job.args[0], user);
	assert_false(fp_call_args_far((void *)job.args[0], sizeof(*far)));
	fp_call_args_end(&job);
	assert_int_equal(*far, bus | user); /* the program's own mask stays */
	assert_int_equal(prepare(piece, 0, 0, 0), 0);
	assert_int_equal(job.args[0], 0);
	fp_call_args_end(&job);
	assert_int_equal(prepare(piece, 16, 0, 0), -EFAULT);
	fp_call_args_end(&job);
}

static void test_masks_in_a_struct(void **state)
{
	const uint64_t bus = 1ull << (SIGBUS - 1), user = 1ull << (SIGUSR1 - 1);
	struct fp_call_piece piece = piece_of(FP_PIECE_SETMASK, FP_NOARG, FP_NOARG);
	struct set_mask {
		uint64_t *mask;
		size_t size;
	} *far = (struct set_mask *)(void *)FAR(0), *copy;
	uint64_t *mask = (uint64_t *)(void *)FAR(FP_PAGE_SIZE);

	*mask = bus | user;
	*far = (struct set_mask){mask, sizeof(*mask)};
	far_rig_close();
	assert_int_equal(prepare(piece, (long)far, 0, 0), 0);
	copy = (struct set_mask *)job.args[0];
	assert_false(fp_call_args_far(copy, sizeof(*copy)) || fp_call_args_far(copy->mask, sizeof(*mask)));
	assert_int_equal(copy->size, sizeof(*mask));
	assert_int_equal(*copy->mask, user);
	fp_call_args_end(&job);
	*far = (struct set_mask){mask, 4}; /* the kernel refuses this size */
	assert_int_equal(prepare(piece, (long)far, 0, 0), 0);
	assert_ptr_equal(((struct set_mask *)job.args[0])->mask, mask);
	fp_call_args_end(&job);
	*far = (struct set_mask){NULL, sizeof(*mask)};
	assert_int_equal(prepare(piece, (long)far, 0, 0), 0);
	assert_null(((struct set_mask *)job.args[0])->mask);
	fp_call_args_end(&job);
}

/* ---- mutexes ---- */

/* When a mutex is unlocked, the kernel looks at it only if it is shared or inherits priority. */
static void test_mutexes(void **state)
{
	struct fp_call_piece piece = {.kind = FP_PIECE_LOCK,
	                              .n = FP_NOARG,
	                              .m = FP_NOARG,
	                              .unit = sizeof(pthread_mutex_t),
	                              .write = true};
	pthread_mutex_t *mutex = (pthread_mutex_t *)(void *)FAR(64);
	pthread_mutexattr_t plain, shared, inherits;

	pthread_mutexattr_init(&plain);
	pthread_mutexattr_init(&shared);
	pthread_mutexattr_init(&inherits);
	pthread_mutexattr_settype(&plain, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setprotocol(&inherits, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(mutex, &plain);
	far_rig_close();
	assert_int_equal(prepare(piece, (long)mutex, 0, 0), 0);
	assert_no_range();
	pthread_mutex_init(mutex, &shared);
	assert_int_equal(prepare(piece, (long)mutex, 0, 0), 0);
	assert_one_range(mutex, sizeof(*mutex), true);
	pthread_mutex_init(mutex, &inherits);
	assert_int_equal(prepare(piece, (long)mutex, 0, 0), 0);
	assert_one_range(mutex, sizeof(*mutex), true);
}

/* ---- the program's memory ---- */

static void test_fetch_and_store(void **state)
{
	char bytes[100], local[100];

	memset(FAR(FP_PAGE_SIZE - 50), 'f', 100);
	memset(local, 'l', sizeof(local));
	far_rig_close();
	errno = 77;
	assert_int_equal(fp_call_args_fetch(bytes, FAR(FP_PAGE_SIZE - 50), 100), 0);
	assert_int_equal(bytes[0] + bytes[99], 2 * 'f');
	assert_int_equal(far_rig.n_faults, 0);
	assert_int_equal(fp_call_args_store(FAR(FP_PAGE_SIZE - 1), local, 2), 0);
	assert_int_equal(far_rig.n_faults, 0);
	assert_int_equal(fp_call_args_fetch(bytes, local, 100), 0); /* local memory, on this stack */
	assert_int_equal(bytes[99], 'l');
	assert_int_equal(fp_call_args_fetch(bytes, (void *)16, 8), -EFAULT);
	assert_int_equal(fp_call_args_store((void *)16, bytes, 8), -EFAULT);
	far_rig.budget_pages = 1;
	assert_int_equal(fp_call_args_fetch(bytes, FAR(FP_PAGE_SIZE - 1), 2), -E2BIG);
	assert_int_equal(errno, 77);
	far_rig.budget_pages = 2;
	assert_int_equal(fp_call_args_fetch(bytes, FAR(FP_PAGE_SIZE - 2), 4), 0);
	assert_memory_equal(bytes, "fllf", 4);
}

/* ---- the end of a call ---- */

/* If one of several pieces can't be pinned, none is pinned. The job can still be ended. */
static void test_all_or_nothing(void **state)
{
	const struct fp_call_piece pieces[FP_PIECES] = {bytes_of(1, FP_NOARG, 0, 1),
	                                                bytes_of(1, FP_NOARG, 0, 1)};

	far_rig.budget_pages = 3;
	fp_call_args_begin(&job, false);
	job.a = job.args;
	job.args[0] = (long)FAR(0);
	job.args[1] = 2 * FP_PAGE_SIZE;
	assert_int_equal(fp_call_args_prepare(&job, pieces), -E2BIG);
	assert_int_equal(far_rig.n_open, 0);
	fp_call_args_end(&job);
}

static void begin_copying(struct fp_call_args *one, char **strings)
{
	const struct fp_call_piece pieces[FP_PIECES] = {piece_of(FP_PIECE_STRINGS, FP_NOARG, FP_NOARG)};

	fp_call_args_begin(one, false);
	one->a = one->args;
	one->args[0] = (long)strings;
	assert_int_equal(fp_call_args_prepare(one, pieces), 0);
}

/*
 * Coroutines may end calls in any order: each keeps its copies. A child of vfork may be killed in a
 * call: its blocks are unmapped afterwards.
 */
static void test_blocks_of_several(void **state)
{
	static struct fp_call_args jobs[4];
	char *strings[] = {FAR(0), NULL};

	strcpy(FAR(0), "far");
	far_rig_close();
	for (unsigned i = 0; i < 4; i++)
		begin_copying(&jobs[i], strings);
	fp_call_args_end(&jobs[0]);
	fp_call_args_end(&jobs[2]);
	assert_int_equal(fp_call_args_depth(), 4);                 /* of the newest */
	assert_string_equal(((char **)jobs[1].args[0])[0], "far"); // NOLINT(performance-no-int-to-ptr)
	fp_call_args_vforked(3);
	assert_int_equal(fp_call_args_depth(), 2);
	fp_call_args_end(&jobs[1]);
	assert_int_equal(fp_call_args_depth(), 0);
}

static void test_end_keeps_errno(void **state)
{
	char *strings[] = {FAR(0), NULL};

	strcpy(FAR(0), "far");
	far_rig_close();
	assert_int_equal(prepare(piece_of(FP_PIECE_STRINGS, FP_NOARG, FP_NOARG), (long)strings, 0, 0), 0);
	errno = 77;
	fp_call_args_end(&job);
	assert_int_equal(errno, 77);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, far_rig_setup, far_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_bytes),
	    TEST(test_int_argument),
	    TEST(test_impossible_lengths),
	    TEST(test_borders),
	    TEST(test_windows),
	    TEST(test_text),
	    TEST(test_text_too_long),
	    TEST(test_vectors),
	    TEST(test_odd_vectors),
	    TEST(test_vectors_of_processes),
	    TEST(test_message),
	    TEST(test_messages),
	    TEST(test_many_messages),
	    TEST(test_strings),
	    TEST(test_odd_strings),
	    TEST(test_strings_too_long),
	    TEST(test_mutexes),
	    TEST(test_fetch_and_store),
	    TEST(test_all_or_nothing),
	    TEST(test_blocks_of_several),
	    TEST(test_end_keeps_errno),
	    TEST(test_masks),
	    TEST(test_masks_in_a_struct),
	};

	return cmocka_run_group_tests(tests, far_rig_begin, NULL);
}
