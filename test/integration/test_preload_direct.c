/*
 * O_DIRECT reads into far memory that is evicted meanwhile, and whose protection another thread
 * changes at random, before a fork and after it. Each byte that a read promised is checked. Before
 * that, memory is lent to pipes; and after it again, by a bare call: a pipe holds it without a pin,
 * as some file systems and sockets do. Room: test/integration.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "barecall.h"
#include "testrng.h"
#include "underpreload.h"

#define PAGE       4096u
#define FILE_PAGES 220u
#define READERS    3u
#define BUF_PAGES  16u
#define BUFS       4u   /* of each reader */
#define HEAP_PAGES 512u /* twice the local memory */
#define MANY_PAGES 24u
#define ENOUGH     3000u /* reads before the fork, and after it */

/* A buffer. Its reader changes its protection and looks at it only under the lock. */
struct buffer {
	pthread_mutex_t lock;
	char *mem;
	unsigned file_page, n; /* the pages that the last read filled */
};

static struct buffer buffers[READERS][BUFS];
static char *heap;
static int fd;
static atomic_bool stop, wrong;
static _Atomic unsigned n_reads, n_changes, n_touches;
static uint64_t seed;

/* Each word of the file names itself. */
static void fill_page(uint64_t *words, unsigned file_page)
{
	for (unsigned i = 0; i < PAGE / 8; i++)
		words[i] = (file_page * 8ull + 1) << 32 | i;
}

static bool check(struct buffer *b)
{
	uint64_t want[PAGE / 8];

	for (unsigned i = 0; i < b->n; i++) {
		fill_page(want, b->file_page + i);
		if (memcmp(b->mem + i * PAGE, want, PAGE) == 0)
			continue;
		fprintf(stderr, "page %u of %u is wrong\n", i, b->n);
		atomic_store(&wrong, true);
		return false;
	}
	return true;
}

/* Opens the buffer for a read, if the last one's bytes are still there. */
static bool open_buffer(struct buffer *b, int prot)
{
	bool ok;

	pthread_mutex_lock(&b->lock);
	ok = mprotect(b->mem, BUF_PAGES * PAGE, PROT_READ) == 0 && check(b) &&
	     mprotect(b->mem, BUF_PAGES * PAGE, prot) == 0;
	b->n = 0;
	pthread_mutex_unlock(&b->lock);
	return ok;
}

static void read_into(struct buffer *b, uint64_t *rng)
{
	unsigned n = 1 + test_random(rng) % BUF_PAGES, from = test_random(rng) % (FILE_PAGES - n);
	int prot = PROT_READ | PROT_WRITE | (test_random(rng) & 1 ? PROT_EXEC : 0);
	ssize_t r;

	if (!open_buffer(b, prot))
		return;
	r = pread(fd, b->mem, n * PAGE, from * PAGE);
	pthread_mutex_lock(&b->lock);
	b->file_page = from;
	b->n = r > 0 ? (unsigned)r / PAGE : 0; /* EFAULT: it had no access */
	pthread_mutex_unlock(&b->lock);
	atomic_fetch_add(&n_reads, r > 0);
}

static void *reader(void *arg)
{
	struct buffer *mine = arg;
	uint64_t rng = seed + (uintptr_t)arg;

	while (!atomic_load(&stop) && !atomic_load(&wrong))
		read_into(&mine[test_random(&rng) % BUFS], &rng);
	return NULL;
}

static void *protector(void *arg)
{
	const int prots[] = {PROT_NONE,
	                     PROT_READ,
	                     PROT_READ | PROT_EXEC,
	                     PROT_WRITE,
	                     PROT_READ | PROT_WRITE,
	                     PROT_READ | PROT_WRITE | PROT_EXEC};
	uint64_t rng = seed;

	while (!atomic_load(&stop)) {
		struct buffer *b = &buffers[test_random(&rng) % READERS][test_random(&rng) % BUFS];
		unsigned first = test_random(&rng) % BUF_PAGES;

		pthread_mutex_lock(&b->lock);
		if (mprotect(b->mem + first * PAGE, (BUF_PAGES - first) * PAGE,
		             prots[test_random(&rng) % 6]) < 0)
			perror("mprotect");
		pthread_mutex_unlock(&b->lock);
		atomic_fetch_add(&n_changes, 1);
	}
	return arg;
}

static void *thrasher(void *arg)
{
	uint64_t rng = ~seed;

	while (!atomic_load(&stop)) {
		heap[test_random(&rng) % HEAP_PAGES * PAGE]++;
		atomic_fetch_add(&n_touches, 1);
	}
	return arg;
}

static char *map(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static void push_out(void)
{
	for (unsigned i = 0; i < HEAP_PAGES; i++)
		heap[i * PAGE]++;
}

enum way { BY_NAME, BY_NUMBER, BARE_CLEAN, BARE_WRITTEN };

static long lend_by(enum way way, int end, const struct iovec *part)
{
	switch (way) {
	case BY_NAME:
		return vmsplice(end, part, 1, 0);
	case BY_NUMBER:
		return syscall(SYS_vmsplice, end, part, 1ul, 0ul);
	case BARE_WRITTEN:
		memset(part->iov_base, 'o', part->iov_len);
		break;
	default:
		break;
	}
#ifdef NO_BARE_CALLS
	return -ENOSYS;
#else
	return bare(SYS_vmsplice, (void *)(intptr_t)end, (size_t)part, 1, 0, 0,
	            0); /* NOLINT(performance-no-int-to-ptr) */
#endif
}

/* What a pipe was lent is still the program's: the reader sees later writes. */
static bool lend(enum way way)
{
	char *mem = map(BUF_PAGES * PAGE), got[PAGE];
	struct iovec part = {.iov_base = mem, .iov_len = BUF_PAGES * PAGE};
	int ends[2];
	bool right = pipe(ends) == 0;

	memset(mem, 'o', BUF_PAGES * PAGE);
	push_out();
	right = right && lend_by(way, ends[1], &part) == (long)part.iov_len;
	push_out();
	memset(mem, 'n', BUF_PAGES * PAGE);
	for (unsigned i = 0; right && i < BUF_PAGES; i++)
		right = read(ends[0], got, PAGE) == PAGE && got[0] == 'n' && got[PAGE - 1] == 'n';
	close(ends[0]);
	close(ends[1]);
	munmap(mem, BUF_PAGES * PAGE);
	if (!right)
		fprintf(stderr, "a pipe has other bytes than the memory that was lent to it, way %d\n", way);
	return right;
}

/* The heap is larger than what may be lent. */
static bool is_too_much_refused(void)
{
	struct iovec part = {.iov_base = heap, .iov_len = HEAP_PAGES * PAGE};
	int ends[2];
	bool refused =
	    pipe(ends) == 0 && vmsplice(ends[1], &part, 1, SPLICE_F_NONBLOCK) < 0 && errno == ENOMEM;

	close(ends[0]);
	close(ends[1]);
	return refused;
}

static pthread_barrier_t together;

/* Lends more than half of what may be lent at once: the quarter of 512 KiB are 32 pages. */
static void *lender(void *mem)
{
	struct iovec part = {.iov_base = mem, .iov_len = MANY_PAGES * PAGE};
	uintptr_t lent;
	int ends[2];

	if (pipe(ends) < 0)
		return NULL;
	pthread_barrier_wait(&together);
	lent = vmsplice(ends[1], &part, 1, SPLICE_F_NONBLOCK) > 0;
	close(ends[0]);
	close(ends[1]);
	return (void *)lent; /* NOLINT(performance-no-int-to-ptr) */
}

/* Two threads may not lend together what one may not. */
static bool is_bounded(void)
{
	char *mem[2] = {map(MANY_PAGES * PAGE), map(MANY_PAGES * PAGE)};
	pthread_t threads[2];
	unsigned sum = 0;
	void *lent;

	for (unsigned i = 0; i < 2; i++)
		memset(mem[i], 'o', MANY_PAGES * PAGE);
	push_out();
	pthread_barrier_init(&together, NULL, 2);
	for (unsigned i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, lender, mem[i]);
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(threads[i], &lent);
		sum += lent != NULL;
	}
	for (unsigned i = 0; i < 2; i++)
		munmap(mem[i], MANY_PAGES * PAGE);
	if (sum > 1)
		fprintf(stderr, "more was lent than may be\n");
	return sum <= 1;
}

static bool lends_right(void)
{
	bool right = is_too_much_refused();

	for (unsigned i = 0; right && i < 8; i++)
		right = is_bounded();

	for (unsigned i = 0; right && i < 8; i++)
		right = lend(i & 1 ? BY_NUMBER : BY_NAME);
	return right;
}

/*
 * After this, the agent knows that some socket may hold memory without a pin. It does not matter
 * that this socket is not connected, or that the kernel may lack TLS.
 */
static void warn_agent(void)
{
	int sock = socket(AF_INET, SOCK_STREAM, 0);

	(void)setsockopt(sock, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls"));
	close(sock);
}

static bool holds_right(void)
{
	const char *mode = getenv("FARPAGE_FAULT_MODE"), *capture = getenv("FARPAGE_CAPTURE");
	bool right = true;

#ifdef NO_BARE_CALLS
	return true;
#endif
	if (mode && strcmp(mode, "inline") == 0) /* the bare call would find no page */
		return true;
	/* PROTECT always looks whether anybody holds a page that was written */
	if (capture && strcmp(capture, "protect") == 0)
		right = lend(BARE_WRITTEN);
	warn_agent();
	for (unsigned i = 0; right && i < 8; i++)
		right = lend(i & 1 ? BARE_WRITTEN : BARE_CLEAN);
	return right;
}

static bool make_file(void)
{
	char name[] = "direct-XXXXXX";
	uint64_t page[PAGE / 8] __attribute__((aligned(4096)));

	fd = mkostemp(name, O_DIRECT);
	if (fd < 0)
		return false;
	unlink(name);
	for (unsigned i = 0; i < FILE_PAGES; i++) {
		fill_page(page, i);
		if (pwrite(fd, page, PAGE, i * PAGE) != PAGE)
			return false;
	}
	return true;
}

/* From now on the agent knows that pages may be shared, and tries to get copies of its own. */
static bool fork_once(void)
{
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	return child > 0 && waitpid(child, NULL, 0) == child;
}

/* Waits until each thread has done enough beside the others, or a byte is wrong. */
static void let_work(void)
{
	const unsigned reads = atomic_load(&n_reads), changes = atomic_load(&n_changes),
	               touches = atomic_load(&n_touches);

	while (!atomic_load(&wrong) &&
	       (atomic_load(&n_reads) - reads < ENOUGH || atomic_load(&n_changes) - changes < ENOUGH ||
	        atomic_load(&n_touches) - touches < ENOUGH))
		usleep(1000);
}

static int run(void)
{
	pthread_t threads[READERS + 2];
	bool forked;
	unsigned n = 0;

	seed = test_seed("direct");
	if (!make_file()) {
		printf("no O_DIRECT here: %s\n", strerror(errno));
		return TEST_SKIPPED;
	}
	heap = map(HEAP_PAGES * PAGE);
	if (!lends_right())
		return 1;
	for (unsigned i = 0; i < READERS * BUFS; i++) {
		buffers[i / BUFS][i % BUFS].mem = map(BUF_PAGES * PAGE);
		pthread_mutex_init(&buffers[i / BUFS][i % BUFS].lock, NULL);
	}
	for (; n < READERS; n++)
		pthread_create(&threads[n], NULL, reader, buffers[n]);
	pthread_create(&threads[n++], NULL, protector, NULL);
	pthread_create(&threads[n++], NULL, thrasher, NULL);
	let_work();
	forked = fork_once();
	let_work();
	atomic_store(&stop, true);
	while (n > 0)
		pthread_join(threads[--n], NULL);
	for (unsigned i = 0; i < READERS * BUFS; i++)
		open_buffer(&buffers[i / BUFS][i % BUFS], PROT_READ);
	printf("%u reads, %u changes, %u touches\n", n_reads, n_changes, n_touches);
	return atomic_load(&wrong) || n_reads == 0 || !forked || !holds_right();
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, run);
}
