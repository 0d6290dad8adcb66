/*
 * Calls on mappings, in a program whose large mappings are far. Each is right, or refused. Room:
 * test/integration.
 */
#include "preload_map_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "abi.h"
#include "underpreload.h"

/* True if the kernel can write to p on our behalf. */
static bool is_writable(char *p)
{
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, p, 1);

	close(fd);
	return n == 1;
}

static int first_errno; /* after the process's first far mapping, before main */

__attribute__((constructor)) static void map_first(void)
{
	errno = 0;
	munmap(map_anonymous(BIG, 0), BIG);
	first_errno = errno;
}

static void what_becomes_far(void **state)
{
	static const struct {
		size_t len;
		int flags;
		bool far;
	} cases[] = {
	    {65536, 0, true},
	    {65535, 0, false},
	    {PAGE, 0, false},
	    {65537, 0, true},
	    {65536, MAP_NORESERVE, true},
	    {65536, MAP_STACK, false},
	    {65536, MAP_32BIT, false},
	    {BIG, MAP_POPULATE, true},
	};
	char *p;

	assert_int_equal(first_errno, 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		p = map_anonymous(cases[i].len, cases[i].flags);
		assert_ptr_not_equal(p, MAP_FAILED);
		assert_int_equal(test_is_far(p), cases[i].far);
		assert_true(is_zero(p, cases[i].len));
		assert_int_equal(munmap(p, cases[i].len), 0);
	}
	p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_false(test_is_far(p));
	munmap(p, BIG);
	p = mmap64(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(test_is_far(p));
	munmap(p, BIG);
}

static void bad_arguments(void **state)
{
	char *p = map_filled(BIG, 1);

	assert_fails(map_anonymous(0, 0), EINVAL);
	assert_fails(map_anonymous(SIZE_MAX, 0), ENOMEM);
	assert_fails(map_anonymous((size_t)1 << 46, 0), ENOMEM);
	assert_fails(munmap(p + 1, PAGE), EINVAL);
	assert_fails(munmap(p, 0), EINVAL);
	assert_fails(munmap(p, SIZE_MAX - PAGE), EINVAL);
	assert_fails(mprotect(p + 1, PAGE, PROT_READ), EINVAL);
	assert_int_equal(mprotect(p, 0, PROT_READ), 0);
	assert_fails(madvise(p + 1, PAGE, MADV_DONTNEED), EINVAL);
	assert_fails(madvise(p, PAGE, 12345), EINVAL);
	assert_true(test_is_filled(p, BIG, 1));
	munmap(p, BIG);
}

/* There is much more far memory than may be local, so every page was evicted and fetched. */
static void bytes_and_budget(void **state)
{
	char *p = map_filled(4 * BIG, 2);

	assert_true(test_is_filled(p, 4 * BIG, 2));
	assert_true(test_far_resident_bytes() <= TEST_LOCAL_BYTES + (1u << 20));
	munmap(p, 4 * BIG);
}

static void holes(void **state)
{
	char *p = map_filled(BIG, 3);

	assert_int_equal(munmap(p + BIG / 2, PAGE + 1), 0);
	assert_fails(madvise(p + BIG / 2, PAGE, MADV_DONTNEED), ENOMEM);
	assert_fails(mprotect(p, BIG, PROT_READ | PROT_WRITE), ENOMEM);
	assert_false(is_writable(p + BIG / 2));
	assert_false(is_writable(p + BIG / 2 + PAGE));
	assert_true(test_is_filled(p, BIG / 2, 3));
	assert_int_equal(munmap(p, BIG), 0);
	assert_int_equal(munmap(p, BIG), 0);
}

static void protection(void **state)
{
	char *p = map_filled(BIG, 4);

	assert_int_equal(mprotect(p, BIG, PROT_READ), 0);
	assert_false(is_writable(p + 5 * PAGE));
	assert_true(test_is_filled(p, BIG, 4));
	assert_int_equal(mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE), 0);
	assert_true(is_writable(p + PAGE));
	assert_false(is_writable(p + 2 * PAGE));
	munmap(p, BIG);
}

/* Far memory takes no protection key. For local memory the kernel decides. */
static void protection_keys(void **state)
{
	char *far = map_filled(BIG, 8), *local = map_anonymous(PAGE, 0);
	int key = pkey_alloc(0, 0);

	assert_int_equal(pkey_mprotect(far, PAGE, PROT_READ, -1), 0);
	assert_false(is_writable(far));
	assert_int_equal(mprotect(far, PAGE, PROT_READ | PROT_WRITE), 0);
	assert_int_equal(madvise(far, BIG, MADV_PAGEOUT), 0);
	assert_fails(pkey_mprotect(far, PAGE, PROT_READ, 0), EINVAL);
	assert_fails(pkey_mprotect(far, PAGE, PROT_READ, key > 0 ? key : 9), EINVAL);
	assert_true(test_is_filled(far, BIG, 8));
	assert_true(is_writable(far));
	pkey_free(key);
	munmap(far, BIG);
	munmap(local, PAGE);
}

static void lazy_then_committed(void **state)
{
	char *p = mmap(NULL, 64 * BIG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	assert_true(test_is_far(p));
	assert_false(is_writable(p));
	assert_int_equal(mprotect(p + BIG, BIG, PROT_READ | PROT_WRITE), 0);
	test_fill(p + BIG, BIG, 5);
	assert_true(test_is_filled(p + BIG, BIG, 5));
	munmap(p, 64 * BIG);
}

static void fixed_over_far(void **state)
{
	char *p = map_filled(BIG, 6), *middle = p + BIG / 2;
	const int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;

	assert_ptr_equal(mmap(middle, 2 * PAGE, PROT_READ, fixed, -1, 0), middle);
	assert_true(is_zero(middle, 2 * PAGE));
	assert_false(is_writable(middle));
	assert_true(is_writable(middle + 2 * PAGE));
	assert_true(test_is_filled(p, BIG / 2, 6));
	assert_true(test_is_far(middle));
	assert_fails(mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
	             EEXIST);
	assert_true(test_is_filled(p, BIG / 2, 6));
	munmap(p, BIG);
	/* Maps into the hole, at a fixed address and by a hint. */
	assert_ptr_equal(mmap(p, PAGE, PROT_READ | PROT_WRITE, fixed, -1, 0), p);
	assert_true(test_is_far(p) && is_zero(p, PAGE) && is_writable(p));
	assert_ptr_equal(mmap(p + PAGE, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), p + PAGE);
	assert_true(is_zero(p + PAGE, 65536));
	munmap(p, BIG);
}

#define GIB ((size_t)1 << 30)

static char *hint_reserve(uintptr_t hint, size_t len)
{
	return mmap((void *)hint, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* Addresses at which the Java VM (below 32 GiB), Go and GHC want their heaps: these are far. */
static void hints_of_heaps(void **state)
{
	static const struct {
		uintptr_t hint;
		size_t len;
	} heaps[] = {{0x140000000, 4 * GIB}, {0xc000000000, GIB / 16}, {0x4200000000, 256 * GIB}};

	for (size_t i = 0; i < sizeof(heaps) / sizeof(heaps[0]); i++) {
		char *p = hint_reserve(heaps[i].hint, heaps[i].len), *q;

		assert_ptr_equal(p, (void *)heaps[i].hint);
		assert_int_equal(mprotect(p + BIG, BIG, PROT_READ | PROT_WRITE), 0);
		assert_true(test_is_far(p + BIG));
		test_fill(p + BIG, BIG, 21);
		q = hint_reserve(heaps[i].hint, heaps[i].len); /* the place is taken, so it goes elsewhere */
		assert_true(q != MAP_FAILED && q != p && test_is_far(q));
		assert_true(test_is_filled(p + BIG, BIG, 21));
		munmap(p, heaps[i].len);
		munmap(q, heaps[i].len);
	}
}

/* An emulator of a 32-bit machine reserves all free addresses below 4 GiB. */
static void the_low_4_gib(void **state)
{
	char *low = (char *)(GIB / 4); // NOLINT(performance-no-int-to-ptr)
	char *p = mmap(low, 4 * GIB - GIB / 4, PROT_NONE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	assert_ptr_equal(p, low);
	assert_int_equal(munmap(p, 4 * GIB - GIB / 4), 0);
}

/*
 * Machine code has to lie near the code that calls it. So memory near code is left to the kernel.
 */
static void hints_of_code(void **state)
{
	uintptr_t code = (uintptr_t)hints_of_code & ~(uintptr_t)0xffff;
	char *p, *q;

	p = mmap((void *)(code - GIB), 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_equal(p, code - GIB);
	assert_false(test_is_far(p));
	q = mmap(p, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(q != p && test_is_far(q)); /* a hint that can't be followed is ignored */
	munmap(p, 65536);
	munmap(q, 65536);
	p = mmap((void *)(code - 8 * GIB), BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(test_is_far(p));
	munmap(p, BIG);
}

static void hints_of_files(void **state)
{
	char *hint = (char *)0x18000000000, text[] = "in the file"; /* 1.5 TiB */
	int fd = memfd_create("hinted", MFD_CLOEXEC);
	char *p, *q;

	assert_int_equal(pwrite(fd, text, sizeof(text), 0), sizeof(text));
	p = mmap(hint + 1, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_equal(p, hint);
	assert_string_equal(p, text);
	q = mmap(hint, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(q != MAP_FAILED && q != p);
	assert_string_equal(q, text);
	assert_fails(mmap(hint + PAGE, PAGE, PROT_READ, MAP_SHARED, fd, 1), EINVAL);
	munmap(p, PAGE);
	munmap(q, PAGE);
	close(fd);
}

/* A reservation larger than the far range is left to the kernel, as without Farpage. */
static void vast_reservations(void **state)
{
	const size_t vast = (size_t)64 << 40;
	char *p = hint_reserve(0, vast);

	assert_ptr_not_equal(p, MAP_FAILED);
	assert_false(test_is_far(p));
	assert_int_equal(mprotect(p + vast / 2, BIG, PROT_READ | PROT_WRITE), 0);
	test_fill(p + vast / 2, BIG, 22);
	assert_true(test_is_filled(p + vast / 2, BIG, 22));
	assert_int_equal(munmap(p, vast), 0);
	p = map_anonymous(vast, MAP_NORESERVE);
	assert_ptr_not_equal(p, MAP_FAILED);
	assert_int_equal(munmap(p, vast), 0);
}

/*
 * A file or shared memory in the middle of far memory is left to the kernel, until the program maps
 * anonymous memory there again.
 */
static void foreign_pieces(void **state)
{
	char *p = map_filled(BIG, 20), *q = p + 8 * PAGE, text[] = "in the file";
	int fd = memfd_create("foreign", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, 4 * PAGE), 0);
	assert_int_equal(pwrite(fd, text, sizeof(text), 0), sizeof(text));
	assert_ptr_equal(mmap(q, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), q);
	assert_false(test_is_far(q));
	assert_string_equal(q, text);
	q[PAGE] = 'x';
	assert_int_equal(pread(fd, text, 1, PAGE), 1);
	assert_int_equal(text[0], 'x');
	assert_true(test_is_filled(p, 8 * PAGE, 20));
	/* a failed call replaces nothing */
	assert_fails(mmap(p, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, -1, 0), EBADF);
	assert_fails(mmap(p, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 1), EINVAL);
	assert_true(test_is_filled(p, 8 * PAGE, 20));
	/* a range over far and local memory */
	assert_int_equal(mprotect(p, 16 * PAGE, PROT_READ), 0);
	assert_false(is_writable(q));
	assert_int_equal(munmap(q, 2 * PAGE), 0);
	assert_false(is_writable(q));
	assert_ptr_equal(
	    mmap(q, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), q);
	assert_true(test_is_far(q) && test_is_far(q + 3 * PAGE));
	assert_true(is_zero(q, 4 * PAGE) && is_writable(q + 2 * PAGE));
	close(fd);
	munmap(p, BIG);
}

static void remap(void **state)
{
	char *p = map_filled(BIG, 9), *neighbour = map_filled(BIG, 10), *q;

	q = mremap(p, BIG, 2 * BIG, MREMAP_MAYMOVE);
	assert_ptr_not_equal(q, MAP_FAILED);
	assert_true(test_is_far(q) && test_is_far(q + 2 * BIG - 1));
	assert_true(test_is_filled(q, BIG, 9));
	assert_true(is_zero(q + BIG, BIG));
	assert_true(test_is_filled(neighbour, BIG, 10));
	assert_ptr_equal(mremap(q, 2 * BIG, BIG / 2, 0), q);
	assert_true(test_is_filled(q, BIG / 2, 9));
	assert_false(is_writable(q + BIG));
	assert_fails(mremap(q, 0, BIG / 2, MREMAP_MAYMOVE), EINVAL);
	assert_fails(mremap(q, BIG / 2, 1ul << 62, MREMAP_MAYMOVE), EINVAL);
	assert_fails(mremap(q, BIG / 2, BIG / 2, MREMAP_FIXED, neighbour), EINVAL);
	assert_fails(mremap(q, BIG / 2, BIG / 2, MREMAP_MAYMOVE | MREMAP_FIXED, q + PAGE), EINVAL);
	assert_fails(mremap(q, BIG, BIG, MREMAP_MAYMOVE | MREMAP_FIXED, neighbour), EFAULT);
	assert_true(test_is_filled(q, BIG / 2, 9));
	assert_ptr_equal(mremap(q, BIG / 2, BIG / 2, MREMAP_MAYMOVE | MREMAP_FIXED, neighbour), neighbour);
	assert_true(test_is_filled(neighbour, BIG / 2, 9));
	assert_false(is_writable(q));
	assert_fails(mremap(neighbour, BIG / 2, BIG / 2, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL), EINVAL);
	assert_true(test_is_filled(neighbour, BIG / 2, 9));
	munmap(neighbour, BIG);
}

static void what_is_refused(void **state)
{
	char *p = map_anonymous(BIG, 0);
	int id;

	test_fill(p, BIG, 4);
	assert_fails(munmap(p, 1ul << 47), EINVAL);
	assert_true(test_is_filled(p, BIG, 4));
	assert_ptr_equal(mmap(NULL, BIG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 123), MAP_FAILED);
	assert_int_equal(errno, EINVAL);
	assert_fails(ioctl(-1, UFFDIO_MOVE, &(struct uffdio_move){.src = (uintptr_t)p, .len = BIG}), EINVAL);
	assert_fails(ioctl(-1, UFFDIO_MOVE, &(struct uffdio_move){.src = PAGE, .len = PAGE}), EBADF);
	munmap(p, BIG);
	id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
	errno = 0;
	assert_ptr_equal(shmat(id, p, 0), (void *)-1);
	assert_int_equal(errno, EINVAL);
	shmctl(id, IPC_RMID, NULL);
}

/* A protection that was changed and restored leaves one mapping, in a forked child, too. */
static void remap_what_was_inherited(void **state)
{
	char *p = map_anonymous(BIG, 0), *q;
	int status;
	pid_t child;

	test_fill(p, BIG, 3);
	child = fork();
	if (child == 0) {
		if (mprotect(p, BIG / 4, PROT_READ) < 0 || mprotect(p, BIG / 4, PROT_READ | PROT_WRITE) < 0)
			_exit(1);
		q = mremap(p, BIG, 2 * BIG, MREMAP_MAYMOVE);
		_exit(q != MAP_FAILED && test_is_filled(q, BIG, 3) ? 0 : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	munmap(p, BIG);
}

/* Drops a page by a bare call. */
static void raw_drop(char *p)
{
#if defined(__x86_64__)
	long r;

	__asm__ volatile("syscall"
	                 : "=a"(r)
	                 : "a"(SYS_madvise), "D"(p), "S"(PAGE), "d"(MADV_DONTNEED)
	                 : "rcx", "r11", "memory");
	assert_int_equal(r, 0);
#else
	assert_int_equal(syscall(SYS_madvise, p, PAGE, MADV_DONTNEED), 0);
#endif
}

/*
 * A bare call dropped a page, so that page can't be moved. The other pages must keep their bytes.
 */
static void remap_of_a_hole(void **state)
{
	const size_t half = TEST_LOCAL_BYTES / 4, rest = half - PAGE;
	char *p = map_anonymous(2 * half, 0), *neighbour = map_filled(64 * PAGE, 11), *q;

	test_fill(p, half, 12);
	test_fill(p + half, PAGE, 13);
	test_fill(p + half + PAGE, rest, 14);
	raw_drop(p + half);
	q = mremap(p, 2 * half, BIG, MREMAP_MAYMOVE);
	if (q == MAP_FAILED)
		q = p;
	assert_true(test_is_filled(q, half, 12));
	assert_true(is_zero(q + half, PAGE));
	assert_true(test_is_filled(q + half + PAGE, rest, 14));
	munmap(q, q == p ? 2 * half : BIG);
	munmap(neighbour, 64 * PAGE);
}

/*
 * If the kernel can't fault on far memory, a call on a remote page gets EFAULT until the program
 * touches the page.
 */
static void hand_over_a_hole(void **state)
{
	char *p = map_filled(BIG, 12), got[16];
	int fds[2];
	ssize_t r;

	assert_int_equal(pipe(fds), 0);
	((volatile char *)p)[0] = 1;
	raw_drop(p);
	r = write(fds[1], p, sizeof(got));
	if (r < 0) {
		assert_int_equal(errno, EFAULT);
		assert_true(is_zero(p, PAGE));
		r = write(fds[1], p, sizeof(got));
	}
	assert_int_equal(r, sizeof(got));
	assert_int_equal(read(fds[0], got, sizeof(got)), sizeof(got));
	for (unsigned i = 0; i < sizeof(got); i++)
		assert_int_equal(got[i], 0);
	close(fds[0]);
	close(fds[1]);
	munmap(p, BIG);
}

/* A local mapping is left to the kernel. Nothing moves between it and far memory. */
static void remap_local(void **state)
{
	char *far = map_filled(BIG, 11), *local = map_anonymous(PAGE, 0);

	memset(local, 1, PAGE);
	local = mremap(local, PAGE, 2 * PAGE, MREMAP_MAYMOVE);
	assert_ptr_not_equal(local, MAP_FAILED);
	assert_int_equal(local[PAGE - 1], 1);
	assert_fails(mremap(far, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, local), EINVAL);
	assert_true(test_is_filled(far, BIG, 11));
	assert_fails(mremap(local, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, far), EINVAL);
	assert_true(test_is_filled(far, BIG, 11));
	assert_int_equal(local[PAGE - 1], 1);
	munmap(far, BIG);
	munmap(local, 2 * PAGE);
}

/* Makes the same calls by syscall(). */
static void raw_calls(void **state)
{
	char *p =
	    (char *)syscall(SYS_mmap, NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);

	assert_true(test_is_far(p));
	test_fill(p, BIG, 15);
	assert_int_equal(syscall(SYS_madvise, p, PAGE, MADV_DONTNEED), 0);
	assert_true(is_zero(p, PAGE));
	assert_int_equal(syscall(SYS_mprotect, p, BIG, PROT_READ), 0);
	assert_fails(syscall(SYS_madvise, p + 1, PAGE, MADV_DONTNEED), EINVAL);
	p = (char *)syscall(SYS_mremap, p, BIG, 2 * BIG, MREMAP_MAYMOVE, NULL);
	assert_true(test_is_far(p) && is_zero(p + BIG, BIG));
	assert_int_equal(syscall(SYS_munmap, p, 2 * BIG), 0);
	assert_false(is_writable(p));
	assert_int_equal(syscall(SYS_getpid), getpid());
}

/* ---- the agent's own pages, at the start of the range ---- */

static char *own_pages(void)
{
	const uintptr_t low = (uintptr_t)4 << 30, low_over_break = (uintptr_t)32 << 30;
	char *own = (char *)((uintptr_t)sbrk(0) < low ? low_over_break : low); /* as in far.c */

	assert_true(test_is_far(own));
	return own;
}

static void *map_own(void *addr, size_t len, int flags, int fd)
{
	void *p = mmap(addr, len, PROT_READ | PROT_WRITE, flags, fd, 0);

	assert_ptr_equal((void *)syscall(SYS_mmap, addr, len, PROT_READ | PROT_WRITE, flags, fd, 0L), p);
	return p;
}

/* Every call that could replace the pages, by function and by number. */
static void replace_own(char *own, size_t len, int fd)
{
	const int private = MAP_PRIVATE | MAP_ANONYMOUS;
	char *far = map_filled(BIG, 16), *local = map_anonymous(PAGE, 0);

	assert_fails(map_own(own, len, private | MAP_FIXED, -1), ENOMEM);
	assert_fails(map_own(own, len, private | MAP_FIXED | MAP_STACK, -1), ENOMEM);
	assert_fails(map_own(own, len, MAP_SHARED | MAP_FIXED, fd), ENOMEM);
	assert_fails(map_own(own, len, MAP_PRIVATE | MAP_FIXED, fd), ENOMEM);
	assert_fails(map_own(own - PAGE, len + PAGE, private | MAP_FIXED, -1), ENOMEM);
	assert_fails(map_own(own, len, private | MAP_FIXED_NOREPLACE, -1), EEXIST);
	assert_fails(map_own(own, len, MAP_SHARED | MAP_FIXED_NOREPLACE, fd), EEXIST);
	assert_fails(mremap(far, PAGE, len, MREMAP_MAYMOVE | MREMAP_FIXED, own), EINVAL);
	assert_fails(mremap(local, PAGE, len, MREMAP_MAYMOVE | MREMAP_FIXED, own), EINVAL);
	assert_fails(syscall(SYS_mremap, far, PAGE, len, MREMAP_MAYMOVE | MREMAP_FIXED, own), EINVAL);
	assert_true(test_is_filled(far, BIG, 16));
	assert_int_equal(munmap(far, BIG), 0);
	assert_int_equal(munmap(local, PAGE), 0);
	far = mmap(own, len, PROT_READ | PROT_WRITE, private, -1, 0); /* a hint */
	assert_true(far != MAP_FAILED && far >= own + len);
	assert_int_equal(munmap(far, len), 0);
}

/* To all other calls the pages are a hole. */
static void change_own(char *own, size_t len)
{
	unsigned char there[1];

	assert_int_equal(munmap(own, len), 0);
	assert_int_equal(syscall(SYS_munmap, own, len), 0);
	assert_int_equal(munmap(own - PAGE, len + PAGE), 0);
	assert_fails(mprotect(own, len, PROT_NONE), ENOMEM);
	assert_fails(syscall(SYS_mprotect, own, len, PROT_READ), ENOMEM);
	assert_fails(pkey_mprotect(own, len, PROT_NONE, -1), ENOMEM);
	assert_fails(madvise(own, len, MADV_DONTNEED), ENOMEM);
	assert_fails(madvise(own, len, MADV_WIPEONFORK), ENOMEM);
	assert_fails(madvise(own, len, MADV_POPULATE_WRITE), ENOMEM);
	assert_fails(syscall(SYS_madvise, own, len, MADV_PAGEOUT), ENOMEM);
	assert_fails(mremap(own, len, 2 * len, MREMAP_MAYMOVE), EFAULT);
	assert_fails(syscall(SYS_mremap, own, PAGE, PAGE, 0), EFAULT);
	assert_fails(mlock(own, PAGE), ENOMEM);
	assert_fails(munlock(own, len), ENOMEM);
	assert_fails(mincore(own, PAGE, there), ENOMEM);
}

static void pages_of_the_agent(void **state)
{
	char *own = own_pages(), *p = map_filled(4 * BIG, 17);
	int fd = memfd_create("x", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, BIG), 0);
	replace_own(own, PAGE, fd);
	replace_own(own, 1 << 20, fd);
	change_own(own, PAGE);
	change_own(own, 1 << 20);
	close(fd);
	assert_true(test_is_filled(p, 4 * BIG, 17)); /* the agent still has its pages */
	test_fill(p, 4 * BIG, 18);
	assert_true(test_is_filled(p, 4 * BIG, 18));
	munmap(p, 4 * BIG);
}

/* The pool has 512 MiB. A larger mapping must be refused at once, not by a failing touch later. */
static void pool_full(void **state)
{
	const size_t huge = (size_t)1 << 30;
	char *p;

	assert_fails(map_anonymous(huge, 0), ENOMEM);
	p = map_anonymous(huge, MAP_NORESERVE);
	assert_ptr_not_equal(p, MAP_FAILED);
	munmap(p, huge);
}

/* In far memory there is no such stack. Elsewhere the kernel has it. */
static void stacks_that_grow(void **state)
{
	const int grows = MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN;
	char *far = map_anonymous(BIG, 0), *own;

	assert_int_equal(munmap(far, BIG), 0);
	assert_fails(mmap(far, 16 * PAGE, PROT_READ | PROT_WRITE, grows | MAP_FIXED, -1, 0), ENOMEM);
	own = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, grows, -1, 0);
	assert_true(own != MAP_FAILED && !test_is_far(own));
	munmap(own, 16 * PAGE);
}

static sigjmp_buf out;
static volatile sig_atomic_t code;

static void note_code(int sig, siginfo_t *info, void *context)
{
	code = info->si_code;
	siglongjmp(out, 1);
}

/* The range stays reserved, without any rights. So this is no SEGV_MAPERR. */
static void touch_of_what_is_gone(void **state)
{
	struct sigaction action = {.sa_sigaction = note_code, .sa_flags = SA_SIGINFO}, before;
	char *far = map_anonymous(BIG, 0);
	unsigned char here;

	assert_int_equal(munmap(far, BIG), 0);
	assert_fails(mincore(far, PAGE, &here), ENOMEM);
	assert_fails(msync(far, PAGE, MS_SYNC), ENOMEM);
	sigaction(SIGSEGV, &action, &before);
	if (sigsetjmp(out, 1) == 0)
		*(volatile char *)far = 1;
	sigaction(SIGSEGV, &before, NULL);
	assert_int_equal(code, SEGV_ACCERR);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(what_becomes_far),
	    cmocka_unit_test(bad_arguments),
	    cmocka_unit_test(bytes_and_budget),
	    cmocka_unit_test(holes),
	    cmocka_unit_test(protection),
	    cmocka_unit_test(protection_keys),
	    cmocka_unit_test(lazy_then_committed),
	    cmocka_unit_test(fixed_over_far),
	    cmocka_unit_test(hints_of_heaps),
	    cmocka_unit_test(the_low_4_gib),
	    cmocka_unit_test(hints_of_code),
	    cmocka_unit_test(hints_of_files),
	    cmocka_unit_test(vast_reservations),
	    cmocka_unit_test(foreign_pieces),
	    cmocka_unit_test(raw_calls),
	    cmocka_unit_test(remap),
	    cmocka_unit_test(remap_what_was_inherited),
	    cmocka_unit_test(what_is_refused),
	    cmocka_unit_test(remap_of_a_hole),
	    cmocka_unit_test(hand_over_a_hole),
	    cmocka_unit_test(remap_local),
	    cmocka_unit_test(pages_of_the_agent),
	    cmocka_unit_test(pool_full),
	    cmocka_unit_test(stacks_that_grow),
	    cmocka_unit_test(touch_of_what_is_gone),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
