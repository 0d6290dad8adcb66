/*
 * kernelio WAY [FOLDER]: gives the kernel memory in ways that pin it, share it, or show it to
 * another process. Then checks the bytes. Most of that memory may be far. The output does not
 * depend on where the memory is. Room: test/apps; it knows nothing of Farpage.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes.h"

#define SKIPPED 77
#define BYTES   (8u * MIB)
#define PIECE   (64u << 10)

static void skip(const char *reason)
{
	puts(reason);
	exit(SKIPPED);
}

static void *aligned(size_t len, uint64_t seed)
{
	void *memory = NULL;

	require(posix_memalign(&memory, PAGE, len) == 0, "posix_memalign");
	fill(memory, len, seed);
	return memory;
}

static int scratch_file(const char *folder, int flags)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/kernelio.bytes", folder);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
	if (fd < 0 && errno == EINVAL)
		skip("this file system has no O_DIRECT");
	require(fd >= 0, path);
	unlink(path);
	return fd;
}

/* Writes every byte of a plain buffer to the file, and reads the file into a second buffer. */
static void direct(const char *folder)
{
	int fd = scratch_file(folder, O_DIRECT);
	char *out = aligned(BYTES, 1), *in = aligned(BYTES, 2);

	push_out();
	for (size_t at = 0; at < BYTES; at += PIECE)
		require(pwrite(fd, out + at, PIECE, (off_t)at) == PIECE, "write with O_DIRECT");
	push_out();
	for (size_t at = 0; at < BYTES; at += PIECE)
		require(pread(fd, in + at, PIECE, (off_t)at) == PIECE, "read with O_DIRECT");
	push_out();
	verify(in, BYTES, 1, "what was read with O_DIRECT");
	verify(out, BYTES, 1, "what was written with O_DIRECT");
	close(fd);
}

/* Threads read a file into memory that may be paged out at any moment of the read. */
#define READERS     4u
#define READ_ROUNDS 40u

struct reader {
	pthread_t thread;
	int fd;
	unsigned number;
	char *in, *expected;
};

/*
 * A device may have written to a page that was being evicted. Checks that the page has the device's
 * bytes.
 */
static void *read_beside_others(void *arg)
{
	struct reader *r = arg;
	unsigned random = r->number + 1;

	for (unsigned round = 0; round < READ_ROUNDS; round++) {
		size_t at = (size_t)rand_r(&random) % (MIB / PIECE) * PIECE;

		memset(r->in, (int)round, MIB);
		if (round % 2) {
			require(pread(r->fd, r->in + at, PIECE, (off_t)at) == PIECE, "read with O_DIRECT");
		} else {
			struct iovec iov[] = {{r->in + at, PAGE}, {r->in + at + PAGE, PIECE - PAGE}};

			require(preadv(r->fd, iov, 2, (off_t)at) == PIECE, "readv with O_DIRECT");
		}
		for (size_t i = 0; i < MIB; i++)
			((volatile char *)r->in)[i];
		if (memcmp(r->in + at, r->expected + at, PIECE) == 0)
			continue;
		printf("reader %u, round %u: not what is in the file\n", r->number, round);
		exit(1);
	}
	return NULL;
}

static void readers(const char *folder)
{
	int fd = scratch_file(folder, O_DIRECT);
	char *expected = aligned(MIB, 3);
	struct reader r[READERS];

	require(pwrite(fd, expected, MIB, 0) == (ssize_t)MIB, "write with O_DIRECT");
	for (unsigned i = 0; i < READERS; i++) {
		r[i] = (struct reader){.fd = fd, .number = i, .in = aligned(MIB, 4), .expected = expected};
		require(pthread_create(&r[i].thread, NULL, read_beside_others, &r[i]) == 0, "a thread");
	}
	for (unsigned i = 0; i < READERS; i++)
		require(pthread_join(r[i].thread, NULL) == 0, "its end");
	close(fd);
}

/* ---- io_uring with registered buffers ---- */

#define FIXED 8u

static void transfer(struct io_uring *ring, int write, int fd, struct iovec *buffers)
{
	for (unsigned i = 0; i < FIXED; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

		if (write)
			io_uring_prep_write_fixed(sqe, fd, buffers[i].iov_base, PIECE, i * PIECE, (int)i);
		else
			io_uring_prep_read_fixed(sqe, fd, buffers[i].iov_base, PIECE, i * PIECE, (int)i);
	}
	require(io_uring_submit(ring) == FIXED, "submit");
	for (unsigned i = 0; i < FIXED; i++) {
		struct io_uring_cqe *cqe;

		require(io_uring_wait_cqe(ring, &cqe) == 0 && cqe->res == PIECE,
		        "transfer of a fixed buffer");
		io_uring_cqe_seen(ring, cqe);
	}
}

/*
 * The kernel keeps the pages of a registered buffer. So these pages must stay in the program's
 * mapping too.
 */
static void fixed(const char *folder)
{
	int fd = scratch_file(folder, 0);
	struct iovec buffers[FIXED];
	struct io_uring ring;
	int r = io_uring_queue_init(FIXED, &ring, 0);

	if (r == -ENOSYS || r == -EPERM)
		skip("io_uring is not permitted here");
	require(r == 0, "io_uring_queue_init");
	for (unsigned i = 0; i < FIXED; i++)
		buffers[i] = (struct iovec){aligned(PIECE, i), PIECE};
	push_out();
	require(io_uring_register_buffers(&ring, buffers, FIXED) == 0, "register buffers");
	for (uint64_t round = 0; round < 3; round++) {
		push_out();
		for (unsigned i = 0; i < FIXED; i++)
			fill(buffers[i].iov_base, PIECE, 100 * round + i);
		transfer(&ring, 1, fd, buffers);
		for (unsigned i = 0; i < FIXED; i++)
			memset(buffers[i].iov_base, 0, PIECE);
		push_out();
		transfer(&ring, 0, fd, buffers);
		for (unsigned i = 0; i < FIXED; i++)
			verify(buffers[i].iov_base, PIECE, 100 * round + i, "a fixed buffer");
	}
	io_uring_queue_exit(&ring);
	push_out();
	for (unsigned i = 0; i < FIXED; i++)
		verify(buffers[i].iov_base, PIECE, 200 + i, "a buffer that was fixed");
}

/* A buffer that lies across the border of two mappings must stay pinned as a whole. */
static void border(const char *folder)
{
	int fd = scratch_file(folder, 0);
	char *memory = map_bytes(BYTES), *middle = memory + BYTES / 2;
	struct iovec buffer = {middle - PIECE / 2, PIECE};
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	char *bytes = aligned(PIECE, 30);

	require(madvise(middle, BYTES / 4, MADV_DONTDUMP) == 0, "madvise");
	fill(memory, BYTES, 31);
	require(pwrite(fd, bytes, PIECE, 0) == PIECE, "write");
	require(io_uring_queue_init(FIXED, &ring, 0) == 0, "io_uring_queue_init");
	require(io_uring_register_buffers(&ring, &buffer, 1) == 0, "register buffers");
	require(madvise(memory, BYTES, MADV_PAGEOUT) == 0, "madvise");
	push_out();
	io_uring_prep_read_fixed(io_uring_get_sqe(&ring), fd, buffer.iov_base, PIECE, 0, 0);
	require(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0 && cqe->res == PIECE,
	        "read into a buffer over a border");
	verify(buffer.iov_base, PIECE, 30, "a buffer over a border");
	io_uring_queue_exit(&ring);
	push_out();
	verify(buffer.iov_base, PIECE, 30, "a buffer that was over a border");
	/* the kernel unpins late, so the buffer may still be local: this has left */
	verify(memory, BYTES / 2 - PIECE, 31, "what lies before the buffer");
}

/*
 * A registered buffer that is larger than the budget is pinned as a whole. The program still goes
 * on.
 */
static void pinned(const char *folder)
{
	int fd = scratch_file(folder, 0);
	struct iovec buffer = {aligned(BYTES, 20), BYTES};
	struct io_uring ring;

	require(io_uring_queue_init(FIXED, &ring, 0) == 0, "io_uring_queue_init");
	push_out();
	require(io_uring_register_buffers(&ring, &buffer, 1) == 0, "register buffers");
	push_out();
	verify(buffer.iov_base, BYTES, 20, "what is pinned");
	fill(buffer.iov_base, BYTES, 21);
	for (unsigned at = 0; at < BYTES; at += PIECE) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		struct io_uring_cqe *cqe;

		io_uring_prep_write_fixed(sqe, fd, (char *)buffer.iov_base + at, PIECE, at, 0);
		require(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0 &&
		            cqe->res == PIECE,
		        "write of what is pinned");
		io_uring_cqe_seen(&ring, cqe);
	}
	push_out();
	io_uring_queue_exit(&ring);
	push_out();
	verify(buffer.iov_base, BYTES, 21, "what was pinned");
	for (unsigned at = 0; at < BYTES; at += PIECE)
		require(pread(fd, (char *)buffer.iov_base + at, PIECE, at) == PIECE, "read");
	verify(buffer.iov_base, BYTES, 21, "what was written of it");
}

/* ---- pages lent to a pipe ---- */

static void lend(void)
{
	char *out = aligned(BYTES, 7), *in = aligned(PIECE, 8);
	int ends[2];

	require(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, PIECE) >= (int)PIECE, "pipe");
	push_out();
	for (size_t at = 0; at < BYTES; at += BYTES / 8) {
		struct iovec part = {out + at, PIECE};
		size_t got = 0;

		require(vmsplice(ends[1], &part, 1, 0) == PIECE, "vmsplice");
		push_out();
		while (got < PIECE) {
			ssize_t n = read(ends[0], in + got, PIECE - got);

			require(n > 0, "read of what was lent");
			got += (size_t)n;
		}
		require(memcmp(in, out + at, PIECE) == 0, "what was lent came through");
	}
	verify(out, BYTES, 7, "what was lent");
}

/* ---- another process reads the memory ---- */

static int look(pid_t pid, char *address, size_t len)
{
	char *copy = malloc(len);

	require(copy != NULL, "malloc");
	for (size_t at = 0; at < len; at += PIECE) {
		struct iovec here = {copy + at, PIECE}, there = {address + at, PIECE};

		require(process_vm_readv(pid, &here, 1, &there, 1, 0) == PIECE, "process_vm_readv");
	}
	verify(copy, len, 9, "what process_vm_readv saw");
	fill(copy, len, 10);
	for (size_t at = 0; at < len; at += PIECE) {
		struct iovec here = {copy + at, PIECE}, there = {address + at, PIECE};

		require(process_vm_writev(pid, &here, 1, &there, 1, 0) == PIECE, "process_vm_writev");
	}
	return 0;
}

/*
 * Counts the accesses that failed. If a page is not present, ptrace and /proc/PID/mem may fail with
 * EIO, but must never show wrong bytes.
 */
static unsigned refused;

static void look_in_file(pid_t pid, const char *address, size_t len)
{
	uint64_t page[PAGE / 8];
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	require(fd >= 0, "open of mem");
	for (size_t at = 0; at < len; at += PAGE) {
		ssize_t n = pread(fd, page, PAGE, (off_t)(uintptr_t)(address + at));

		require(n == PAGE || (n < 0 && errno == EIO), "read of mem");
		refused += n < 0;
		for (size_t i = 0; n > 0 && i < PAGE / 8; i++)
			require(page[i] == word_of(at / 8 + i, 10), "what /proc/PID/mem showed");
	}
	close(fd);
}

static void peek_and_poke(pid_t pid, uint64_t *words, size_t i)
{
	long word;

	errno = 0;
	word = ptrace(PTRACE_PEEKDATA, pid, words + i, NULL);
	require(errno == EIO || (errno == 0 && (uint64_t)word == word_of(i, 10)), "PTRACE_PEEKDATA");
	refused += errno == EIO;
	if (ptrace(PTRACE_POKEDATA, pid, words + i, (void *)word_of(i, 9)) < 0) {
		require(errno == EIO, "PTRACE_POKEDATA");
		refused++;
		return;
	}
	errno = 0;
	word = ptrace(PTRACE_PEEKDATA, pid, words + i, NULL);
	require(errno == 0 && (uint64_t)word == word_of(i, 9), "what PTRACE_POKEDATA wrote");
}

/* A tracer stops one thread; the others go on. */
static int trace(pid_t pid, char *address, size_t len)
{
	int status;

	look_in_file(pid, address, len);
	require(ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0 && ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0,
	        "PTRACE_SEIZE");
	require(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status), "stopped");
	for (size_t i = 0; i < len / 8; i += PAGE / 8)
		peek_and_poke(pid, (uint64_t *)address, i);
	require(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0, "PTRACE_DETACH");
	return 0;
}

static void start_looker(char *self, const char *way, const void *address, size_t len)
{
	char pid[24], at[24], size[24], verb[16];
	char *argv[] = {self, verb, pid, at, size, NULL};
	pid_t child;
	int status;

	snprintf(verb, sizeof(verb), "%s", way);
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	snprintf(at, sizeof(at), "%#" PRIxPTR, (uintptr_t)address);
	snprintf(size, sizeof(size), "%zu", len);
	require(posix_spawn(&child, self, NULL, NULL, argv, environ) == 0, "posix_spawn");
	while (waitpid(child, &status, 0) != child)
		require(errno == EINTR, "waitpid");
	require(WIFEXITED(status) && WEXITSTATUS(status) == 0, way);
}

static void seen(char *self)
{
	char *memory = aligned(BYTES, 9);

	push_out();
	start_looker(self, "look", memory, BYTES);
	push_out();
	verify(memory, BYTES, 10, "what process_vm_writev wrote");
	push_out();
	start_looker(self, "trace", memory, BYTES);
	push_out();
	for (size_t i = 0; i < BYTES / 8; i++) {
		uint64_t word = ((uint64_t *)memory)[i];

		require(word == word_of(i, 10) || (i % (PAGE / 8) == 0 && word == word_of(i, 9)),
		        "what was traced");
	}
}

/* ---- memory that is not private to this process ---- */

static void shared(const char *folder)
{
	int fd = scratch_file(folder, 0);
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *file, *copy;
	pid_t child;
	int status;

	require(ftruncate(fd, BYTES) == 0, "ftruncate");
	file = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	copy = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	require(memory != MAP_FAILED && file != MAP_FAILED && copy != MAP_FAILED, "mmap");
	fill(memory, BYTES, 11);
	fill(copy, BYTES, 12);
	push_out();
	child = fork();
	if (child == 0) {
		verify(copy, BYTES, 12, "a private copy of a file, in a child");
		fill(memory, BYTES, 13);
		fill(file, BYTES, 14);
		_exit(0);
	}
	require(waitpid(child, &status, 0) == child && status == 0, "child");
	verify(memory, BYTES, 13, "memory that a child wrote");
	verify(file, BYTES, 14, "a file that a child wrote");
	verify(copy, BYTES, 12, "a private copy of a file");
}

/* ---- a process to be looked at, and a core dump ---- */

/* Prints the addresses of its bytes, and waits for the end of its input. */
static void sit(void)
{
	char *memory = aligned(BYTES, 15), byte;

	push_out();
	printf("%d %#" PRIxPTR " %u\n", (int)getpid(), (uintptr_t)memory, BYTES);
	fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	verify(memory, BYTES, 15, "what was looked at");
}

static void *raise_in_thread(void *signal)
{
	raise(*(const int *)signal);
	return NULL;
}

/* Dies by the signal: of abort, of a fault, or of another thread than the first. */
static void die(int signal)
{
	char *volatile nowhere = NULL;
	pthread_t thread;

	if (signal == SIGABRT)
		abort();
	if (signal == SIGSEGV)
		*nowhere = 1;
	require(pthread_create(&thread, NULL, raise_in_thread, &signal) == 0, "pthread_create");
	pthread_join(thread, NULL);
}

static void dump(int signal)
{
	const struct rlimit any = {RLIM_INFINITY, RLIM_INFINITY};
	char *memory = aligned(BYTES, 16);

	require(setrlimit(RLIMIT_CORE, &any) == 0, "setrlimit");
	push_out();
	printf("%#" PRIxPTR " %u\n", (uintptr_t)memory, BYTES);
	fflush(stdout);
	die(signal);
}

static void no_core(void)
{
	const struct rlimit none = {0, 0};

	require(setrlimit(RLIMIT_CORE, &none) == 0, "setrlimit");
	aligned(BYTES, 16);
	push_out();
	abort();
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";

	if (argc == 5) {
		char *address = (char *)(uintptr_t)strtoull(argv[3], NULL, 0);
		pid_t pid = (pid_t)atoi(argv[2]);
		size_t len = strtoull(argv[4], NULL, 0);

		return strcmp(way, "look") == 0 ? look(pid, address, len) : trace(pid, address, len);
	}
	if (strcmp(way, "direct") == 0 && argc == 3)
		direct(argv[2]);
	else if (strcmp(way, "readers") == 0 && argc == 3)
		readers(argv[2]);
	else if (strcmp(way, "border") == 0 && argc == 3)
		border(argv[2]);
	else if (strcmp(way, "pinned") == 0 && argc == 3)
		pinned(argv[2]);
	else if (strcmp(way, "fixed") == 0 && argc == 3)
		fixed(argv[2]);
	else if (strcmp(way, "shared") == 0 && argc == 3)
		shared(argv[2]);
	else if (strcmp(way, "lend") == 0)
		lend();
	else if (strcmp(way, "seen") == 0)
		seen(argv[0]);
	else if (strcmp(way, "sit") == 0)
		sit();
	else if (strcmp(way, "nocore") == 0)
		no_core();
	else if (strcmp(way, "dump") == 0)
		dump(argc > 2 ? atoi(argv[2]) : SIGABRT);
	else
		return 2;
	printf("%s: every word as it should be\n", way);
	return 0;
}
