/* See mapplayer.h. */
#include "mapplayer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "testrng.h"
#include "underpreload.h"

#define PAGE       4096u
#define PAGES      128u
#define LOCKED_MAX 16u
#define CHUNK      ((size_t)2 << 20) /* the unit of kernel-filled memory: see kernel_filled.h */

/* Older headers lack it. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

/*
 * The number of each page's mapping: 0 means none. The bit FOREIGN means that the mapping is not
 * far. Pages with equal numbers are surely in one mapping.
 */
#define FOREIGN 0x80000000u

struct dice {
	uint64_t rng;
	char *base;
	uint32_t mapping[PAGES], last;
	bool locked[PAGES];
	int fd;
	bool by_file;
	int exchange_fd; /* a file of one page, mapped at exchange */
	char *exchange;
	struct record record;
};

static uint32_t below(struct dice *d, uint32_t n)
{
	return (uint32_t)(test_random(&d->rng) % n);
}

static char *at(const struct dice *d, uint32_t page)
{
	return d->base + (size_t)page * PAGE;
}

static void answer(struct dice *d, int64_t ret)
{
	d->record.ret = ret;
	d->record.error = ret == -1 ? errno : 0;
}

static void answer_addr(struct dice *d, const void *p)
{
	answer(d, p == MAP_FAILED ? -1 : (const char *)p - d->base);
}

static void set_mapping(struct dice *d, uint32_t start, uint32_t n, uint32_t mapping)
{
	for (uint32_t p = start; p < start + n; p++) {
		d->mapping[p] = mapping;
		d->locked[p] = false;
	}
}

static uint32_t fresh(struct dice *d)
{
	return ++d->last;
}

/*
 * Gives a part of a mapping new numbers, because it may now differ from the rest. Unmapped pages
 * stay unmapped.
 */
static void renumber(struct dice *d, uint32_t start, uint32_t n)
{
	uint32_t mapping = fresh(d), before = 0;

	for (uint32_t p = start; p < start + n; p++) {
		if (p > start && d->mapping[p] != before)
			mapping = fresh(d);
		before = d->mapping[p];
		if (before)
			d->mapping[p] = mapping | (before & FOREIGN);
	}
}

/* Notes locked memory: it is local, and stays local until it is unmapped. */
static void set_locked(struct dice *d, uint32_t start, uint32_t n, bool locked)
{
	for (uint32_t p = start; p < start + n && d->mapping[p]; p++) {
		d->locked[p] = locked;
		d->mapping[p] |= locked ? FOREIGN : 0;
	}
}

static uint32_t count_locked(const struct dice *d)
{
	uint32_t n = 0;

	for (uint32_t p = 0; p < PAGES; p++)
		n += d->locked[p];
	return n;
}

/* ---- steps ---- */

static int random_prot(struct dice *d)
{
	static const int prots[] = {PROT_READ | PROT_WRITE,
	                            PROT_READ | PROT_WRITE,
	                            PROT_READ,
	                            PROT_READ | PROT_WRITE,
	                            PROT_NONE,
	                            PROT_READ | PROT_EXEC,
	                            PROT_WRITE,
	                            PROT_NONE};

	return prots[below(d, 8)];
}

/*
 * Lets the kernel copy the bytes, so that a page that can't be had gives an error and no signal.
 * The kernel copies as if for another process. In fault mode inline the kernel can't fault on far
 * memory, so it copies through a file.
 */
static bool copy_out(struct dice *d, const char *from)
{
	struct iovec local = {.iov_base = d->exchange, .iov_len = PAGE};
	struct iovec remote = {.iov_base = (void *)from, .iov_len = PAGE};

	return (d->by_file ? pwrite(d->exchange_fd, from, PAGE, 0)
	                   : process_vm_readv(getpid(), &local, 1, &remote, 1, 0)) == (ssize_t)PAGE;
}

static ssize_t copy_in(struct dice *d, char *to)
{
	struct iovec local = {.iov_base = d->exchange, .iov_len = PAGE};
	struct iovec remote = {.iov_base = to, .iov_len = PAGE};

	return d->by_file ? pread(d->exchange_fd, to, PAGE, 0)
	                  : process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
}

static void step_write(struct dice *d, uint32_t start)
{
	uint64_t stamp = test_random(&d->rng);

	memset(d->exchange, (int)stamp, PAGE);
	memcpy(d->exchange, &stamp, sizeof(stamp));
	answer(d, copy_in(d, at(d, start)));
	if (d->record.ret == (int64_t)PAGE) /* this thread itself writes to the page too */
		*(volatile uint64_t *)(at(d, start) + 8) = stamp;
}

static bool is_free(const struct dice *d, uint32_t start, uint32_t end)
{
	for (uint32_t p = start; p < end; p++)
		if (d->mapping[p])
			return false;
	return true;
}

/*
 * The flags by which a mapping gets its place: a fixed address, or only a hint (0). A hint is
 * enough only if the place is free, because then the kernel surely follows the hint.
 */
static int how_placed(struct dice *d, uint32_t start, uint32_t n)
{
	if (is_free(d, start, start + n) && below(d, 2))
		return 0;
	return below(d, 4) ? MAP_FIXED : MAP_FIXED_NOREPLACE;
}

static void step_map(struct dice *d, uint32_t start, uint32_t n)
{
	static const int more[] = {0, 0, MAP_NORESERVE, MAP_POPULATE, 0, MAP_LOCKED};
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | how_placed(d, start, n);
	void *p;

	flags |= more[below(d, 6)];
	if (flags & MAP_LOCKED && count_locked(d) + n > LOCKED_MAX)
		flags &= ~MAP_LOCKED;
	d->record.arg = (uint32_t)flags;
	p = mmap(at(d, start), (size_t)n * PAGE - below(d, PAGE), random_prot(d), flags, -1, 0);
	answer_addr(d, p);
	if (p == MAP_FAILED)
		return;
	set_mapping(d, start, n, fresh(d));
	set_locked(d, start, n, flags & MAP_LOCKED);
}

static void step_foreign(struct dice *d, uint32_t start, uint32_t n)
{
	bool shared = below(d, 2);
	int flags = how_placed(d, start, n) | (shared ? MAP_SHARED | MAP_ANONYMOUS : MAP_PRIVATE);
	void *p = mmap(at(d, start), (size_t)n * PAGE, random_prot(d), flags, shared ? -1 : d->fd,
	               below(d, 8) ? 0 : 1);

	answer_addr(d, p);
	if (p != MAP_FAILED)
		set_mapping(d, start, n, fresh(d) | FOREIGN);
}

/* Reserves more addresses than the far range has. */
static void step_reserve(struct dice *d)
{
	const size_t vast = (size_t)(5 + below(d, 40)) << 40;
	int prot = random_prot(d), lazy = below(d, 2) ? MAP_NORESERVE : 0;
	void *p = mmap(NULL, vast, lazy ? prot : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | lazy, -1, 0);

	answer(d, p == MAP_FAILED ? -1 : munmap(p, vast));
}

static void step_unmap(struct dice *d, uint32_t start, uint32_t n)
{
	bool askew = !below(d, 16);

	answer(d, munmap(at(d, start) + askew, (size_t)n * PAGE));
	if (d->record.ret == 0)
		set_mapping(d, start, n, 0);
}

static void step_protect(struct dice *d, uint32_t start, uint32_t n)
{
	int prot = random_prot(d), key = below(d, 8) ? -2 : below(d, 2) ? -1 : 1;

	d->record.arg = (uint32_t)prot | (uint32_t)(key + 2) << 8;
	answer(d, key == -2 ? mprotect(at(d, start), (size_t)n * PAGE, prot)
	                    : pkey_mprotect(at(d, start), (size_t)n * PAGE, prot, key));
	renumber(d, start, n);
}

static void step_advise(struct dice *d, uint32_t start, uint32_t n)
{
	static const int advices[] = {MADV_DONTNEED,
	                              MADV_DONTNEED,
	                              MADV_FREE,
	                              MADV_WILLNEED,
	                              MADV_COLD,
	                              MADV_PAGEOUT,
	                              MADV_PAGEOUT,
	                              MADV_SEQUENTIAL,
	                              MADV_RANDOM,
	                              MADV_NORMAL,
	                              MADV_DONTFORK,
	                              MADV_DOFORK,
	                              MADV_WIPEONFORK,
	                              MADV_DONTDUMP,
	                              MADV_DODUMP,
	                              MADV_KEEPONFORK,
	                              12345,
	                              MADV_HUGEPAGE,
	                              MADV_NOHUGEPAGE,
	                              MADV_REMOVE,
	                              MADV_DONTNEED_LOCKED,
	                              MADV_POPULATE_READ,
	                              MADV_POPULATE_WRITE};
	int advice = advices[below(d, sizeof(advices) / sizeof(advices[0]))];

	d->record.arg = (uint32_t)advice;
	answer(d, madvise(at(d, start), (size_t)n * PAGE, advice));
	renumber(d, start, n);
	/* After MADV_FREE the kernel may still keep the old bytes: drop them. */
	if (advice == MADV_FREE)
		(void)madvise(at(d, start), (size_t)n * PAGE, MADV_DONTNEED);
}

/*
 * Locks a few pages only, because RLIMIT_MEMLOCK also counts the agent's locked memory. Locked
 * pages must be local afterwards.
 */
static void step_lock(struct dice *d, uint32_t start, uint32_t n)
{
	uint32_t how = below(d, 3);
	unsigned char here[4] = {0};

	n = FP_MIN(n, 4u);
	if (how < 2 && count_locked(d) + n > LOCKED_MAX) {
		for (uint32_t p = 0; p < PAGES; p++) {
			munlock(at(d, p), PAGE);
			d->locked[p] = false;
		}
		how = 2;
	}
	d->record.n = n;
	answer(d, how == 0   ? mlock(at(d, start), (size_t)n * PAGE)
	          : how == 1 ? mlock2(at(d, start), (size_t)n * PAGE, MLOCK_ONFAULT)
	                     : munlock(at(d, start), (size_t)n * PAGE));
	renumber(d, start, n);
	set_locked(d, start, n, how < 2);
	if (how == 0 && d->record.ret == 0 && mincore(at(d, start), (size_t)n * PAGE, here) == 0)
		how |= (here[0] | here[1] << 1 | here[2] << 2 | here[3] << 3) << 8 & 0xf00;
	d->record.arg = how;
}

/* True if it is sure what the kernel sees here: one far mapping, or no mapping at the start. */
static bool is_certain(const struct dice *d, uint32_t start, uint32_t n)
{
	for (uint32_t p = start; p < start + n; p++)
		if (d->mapping[p] != d->mapping[start] || d->mapping[p] & FOREIGN)
			return d->mapping[start] == 0;
	return true;
}

static void moved(struct dice *d, uint32_t start, uint32_t n, uint32_t to, uint32_t new_n)
{
	uint32_t mapping = to == start ? d->mapping[start] : fresh(d);

	set_mapping(d, start, n, 0);
	set_mapping(d, to, new_n, mapping);
}

static void step_remap(struct dice *d, uint32_t start, uint32_t n)
{
	uint32_t how = below(d, 3), to = below(d, PAGES), new_n = 1 + below(d, FP_MIN(PAGES - to, 24u));
	int flags = how == 0 ? 0 : MREMAP_MAYMOVE | MREMAP_FIXED;
	void *p;

	if (how == 0)
		to = start;
	/* Left out: the kernel may or may not clear the target before it finds nothing to move. */
	if (to + new_n > PAGES || !is_certain(d, start, n) || (how && !d->mapping[start])) {
		answer(d, -2);
		return;
	}
	/*
	 * Left out: a range that must grow in place, although a page of the same mapping follows
	 * it. The answer depends on how the kernel merged the mapping.
	 */
	if (how == 0 && new_n > n && d->mapping[start] && !is_free(d, start + n, start + new_n) &&
	    d->mapping[start + n] == d->mapping[start]) {
		answer(d, -2);
		return;
	}
	d->record.arg = how << 16 | to << 8 | new_n;
	p = mremap(at(d, start), (size_t)n * PAGE, (size_t)new_n * PAGE, flags, at(d, to));
	answer_addr(d, p);
	if (p != MAP_FAILED)
		moved(d, start, n, to, new_n);
}

static void step_mincore(struct dice *d, uint32_t start, uint32_t n)
{
	unsigned char vec[PAGES];

	answer(d, mincore(at(d, start) + !below(d, 16), (size_t)n * PAGE, vec));
	for (uint32_t p = start; d->record.ret == 0 && p < start + n; p++)
		if (vec[p - start] > 1)
			answer(d, 2);
}

static void step(struct dice *d)
{
	static const enum op ops[] = {OP_WRITE,  OP_WRITE,  OP_WRITE,   OP_WRITE, OP_WRITE,   OP_WRITE,
	                              OP_MAP,    OP_MAP,    OP_FOREIGN, OP_UNMAP, OP_PROTECT, OP_PROTECT,
	                              OP_ADVISE, OP_ADVISE, OP_REMAP,   OP_REMAP, OP_MINCORE, OP_LOCK};
	uint32_t start = below(d, PAGES), n = 1 + below(d, FP_MIN(PAGES - start, 24u));
	enum op op = ops[below(d, sizeof(ops) / sizeof(ops[0]))];

	if (below(d, 256) == 0)
		op = OP_RESERVE;
	d->record = (struct record){.op = op, .start = start, .n = n};
	errno = 0;
	switch (op) {
	case OP_WRITE:
		step_write(d, start);
		break;
	case OP_MAP:
		step_map(d, start, n);
		break;
	case OP_FOREIGN:
		step_foreign(d, start, FP_MIN(n, 4u));
		break;
	case OP_UNMAP:
		step_unmap(d, start, n);
		break;
	case OP_PROTECT:
		step_protect(d, start, n);
		break;
	case OP_ADVISE:
		step_advise(d, start, n);
		break;
	case OP_LOCK:
		step_lock(d, start, n);
		break;
	case OP_REMAP:
		step_remap(d, start, n);
		break;
	case OP_RESERVE:
		step_reserve(d);
		break;
	default:
		step_mincore(d, start, n);
	}
}

/* Hashes the bytes of pages: of some pages after each step, of all pages now and then. */
static uint64_t look(struct dice *d, uint64_t i)
{
	uint32_t n = i % 64 ? 4 : PAGES, first = i % 64 ? below(d, PAGES) : 0;
	const uint64_t *words = (const uint64_t *)d->exchange;
	uint64_t hash = 0;

	for (uint32_t k = 0; k < n; k++) {
		hash = hash * 31 + 7;
		if (!copy_out(d, at(d, (first + k) % PAGES)))
			continue;
		for (uint32_t w = 0; w < PAGE / 8; w++)
			hash = (hash ^ words[w]) * 0x9e3779b97f4a7c15u;
	}
	return hash;
}

/* ---- the process ---- */

static int open_files(struct dice *d)
{
	char text[64 * 1024];

	d->fd = memfd_create("mapdice", MFD_CLOEXEC);
	d->exchange_fd = memfd_create("mapdice-exchange", MFD_CLOEXEC);
	memset(text, 'f', sizeof(text));
	for (int i = 0; i < 8; i++)
		if (write(d->fd, text, sizeof(text)) != (ssize_t)sizeof(text))
			return -1;
	if (ftruncate(d->exchange_fd, PAGE) < 0)
		return -1;
	d->exchange = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, d->exchange_fd, 0);
	return d->exchange == MAP_FAILED ? -1 : 0;
}

int map_play(char **argv)
{
	struct dice d = {.rng = strtoull(argv[2], NULL, 0), .by_file = atoi(argv[4])};
	char *p = mmap(NULL, 4 * CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned batch = (unsigned)atoi(argv[3]);
	struct record records[MAP_BATCH];

	if (p == MAP_FAILED || open_files(&d) < 0 || batch == 0 || batch > MAP_BATCH)
		return 2;
	if (getenv("LD_PRELOAD") && !test_is_far(p))
		return 4;
	/*
	 * Half of the pages lie on each side of a border between chunks. None is one of the agent's
	 * first pages.
	 */
	d.base = p + 2 * CHUNK - (uintptr_t)p % CHUNK - (size_t)PAGES / 2 * PAGE;
	set_mapping(&d, 0, PAGES, fresh(&d));
	for (uint64_t i = 1;; i++) {
		step(&d);
		d.record.hash = look(&d, i);
		records[(i - 1) % batch] = d.record;
		if (i % batch == 0 && write(STDOUT_FILENO, records, batch * sizeof(d.record)) !=
		                          (ssize_t)(batch * sizeof(d.record)))
			return 0;
	}
}
