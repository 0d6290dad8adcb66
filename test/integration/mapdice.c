/*
 * mapdice: random calls of the mapping family, each answer and what the pages hold compared with those of a
 * plain process that makes the same calls. Room: test/integration.
 *
 *   mapdice FARPAGED PRELOAD TRANSPORT CAPTURE SECONDS [STEPS]
 *
 * Both processes are this program; what they do depends on the seed and on answers that are compared, and on
 * nothing else. The far one has half as much local memory as it uses. Steps of which the kernel's answer
 * depends on how it happens to have merged mappings are not taken.
 *
 * mlock and its kin are among the steps only where MAPDICE_LOCKS is set, as with them the two still differ:
 * in the error of a range with foreign pieces or a hole (seed 29910228462019), and in what MADV_DONTNEED says
 * after an mlock that failed half-way (seed 29909669820590).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "testrng.h"
#include "underpreload.h"

#define PAGE       4096u
#define PAGES      128u
#define LOCKED_MAX 16u
#define LOCAL      "256K"

/* What one step tells. */
struct record {
	uint32_t op, start, n, arg;
	int64_t ret;
	int32_t error;
	uint32_t unused;
	uint64_t hash;
};

/* What a page belongs to: 0 is nothing, FOREIGN is no far memory. Equal numbers: surely one mapping. */
#define FOREIGN 0x80000000u

struct dice {
	uint64_t rng;
	char *base;
	uint32_t mapping[PAGES], last;
	bool locked[PAGES];
	int fd;
	struct record record;
};

enum op { OP_WRITE, OP_MAP, OP_FOREIGN, OP_UNMAP, OP_PROTECT, OP_ADVISE, OP_LOCK, OP_REMAP, OP_MINCORE, OPS };

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

/* A part of a mapping that may now differ from the rest; what is no mapping stays so. */
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
	static const int prots[] = {PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};

	return prots[below(d, 4)];
}

static ssize_t copy(void *to, const void *from, bool out)
{
	struct iovec local = {.iov_base = out ? to : (void *)from, .iov_len = PAGE};
	struct iovec remote = {.iov_base = out ? (void *)from : to, .iov_len = PAGE};

	return out ? process_vm_readv(getpid(), &local, 1, &remote, 1, 0)
	           : process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
}

static void step_write(struct dice *d, uint32_t start)
{
	uint64_t stamp = test_random(&d->rng);
	char page[PAGE];
	ssize_t r;

	memset(page, (int)stamp, sizeof(page));
	memcpy(page, &stamp, sizeof(stamp));
	r = copy(at(d, start), page, false);
	answer(d, r);
	if (r == (ssize_t)PAGE) /* and by a touch of this thread's own */
		*(volatile uint64_t *)(at(d, start) + 8) = stamp;
}

static void step_map(struct dice *d, uint32_t start, uint32_t n)
{
	static const int more[] = {0, 0, MAP_NORESERVE, MAP_POPULATE};
	int place = below(d, 4) ? MAP_FIXED : MAP_FIXED_NOREPLACE;
	void *p = mmap(at(d, start), (size_t)n * PAGE - below(d, PAGE), random_prot(d),
	               MAP_PRIVATE | MAP_ANONYMOUS | place | more[below(d, 4)], -1, 0);

	answer_addr(d, p);
	if (p != MAP_FAILED)
		set_mapping(d, start, n, fresh(d));
}

static void step_foreign(struct dice *d, uint32_t start, uint32_t n)
{
	bool shared = below(d, 2);
	int flags = MAP_FIXED | (shared ? MAP_SHARED | MAP_ANONYMOUS : MAP_PRIVATE);
	void *p = mmap(at(d, start), (size_t)n * PAGE, random_prot(d), flags, shared ? -1 : d->fd,
	               below(d, 8) ? 0 : 1);

	answer_addr(d, p);
	if (p != MAP_FAILED)
		set_mapping(d, start, n, fresh(d) | FOREIGN);
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
	answer(d, mprotect(at(d, start), (size_t)n * PAGE, random_prot(d)));
	renumber(d, start, n);
}

static void step_advise(struct dice *d, uint32_t start, uint32_t n)
{
	static const int advices[] = {
	    MADV_DONTNEED,   MADV_DONTNEED,   MADV_FREE,   MADV_WILLNEED,   MADV_COLD,     MADV_PAGEOUT,
	    MADV_PAGEOUT,    MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL,     MADV_DONTFORK, MADV_DOFORK,
	    MADV_WIPEONFORK, MADV_DONTDUMP,   MADV_DODUMP, MADV_KEEPONFORK, 12345};
	int advice = advices[below(d, sizeof(advices) / sizeof(advices[0]))];

	d->record.arg = (uint32_t)advice;
	answer(d, madvise(at(d, start), (size_t)n * PAGE, advice));
	renumber(d, start, n);
	if (advice == MADV_FREE) /* until then the kernel may leave the old bytes or not */
		(void)madvise(at(d, start), (size_t)n * PAGE, MADV_DONTNEED);
}

/* Few pages: how many may be locked is our policy's. */
static void step_lock(struct dice *d, uint32_t start, uint32_t n)
{
	uint32_t how = below(d, 3), end;

	n = FP_MIN(n, 4u);
	d->record.n = n;
	d->record.arg = how;
	if (how < 2 && count_locked(d) + n > LOCKED_MAX) {
		munlock(d->base, (size_t)PAGES * PAGE);
		for (uint32_t p = 0; p < PAGES && d->mapping[p]; p++)
			d->locked[p] = false;
		how = 2;
	}
	answer(d, how == 0   ? mlock(at(d, start), (size_t)n * PAGE)
	          : how == 1 ? mlock2(at(d, start), (size_t)n * PAGE, MLOCK_ONFAULT)
	                     : munlock(at(d, start), (size_t)n * PAGE));
	renumber(d, start, n);
	for (end = start; end < start + n && d->mapping[end]; end++)
		d->locked[end] = how < 2;
}

/* True if the kernel surely sees one far mapping, or surely none at its start. */
static bool is_certain(const struct dice *d, uint32_t start, uint32_t n)
{
	for (uint32_t p = start; p < start + n; p++)
		if (d->mapping[p] != d->mapping[start] || d->mapping[p] & FOREIGN)
			return d->mapping[start] == 0;
	return true;
}

static bool is_free(const struct dice *d, uint32_t start, uint32_t end)
{
	for (uint32_t p = start; p < end; p++)
		if (d->mapping[p])
			return false;
	return true;
}

static void moved(struct dice *d, uint32_t start, uint32_t n, uint32_t to, uint32_t new_n, bool keep)
{
	bool locked = d->locked[start];
	uint32_t mapping = to == start ? d->mapping[start] : fresh(d);

	if (to != start) {
		if (keep)
			renumber(d, start, n);
		for (uint32_t p = start; p < start + n; p++) {
			d->mapping[p] = keep ? d->mapping[p] : 0;
			d->locked[p] = false;
		}
	} else if (new_n < n) {
		set_mapping(d, start + new_n, n - new_n, 0);
	}
	for (uint32_t p = to; p < to + new_n; p++) {
		d->mapping[p] = mapping;
		d->locked[p] = locked;
	}
}

static void step_remap(struct dice *d, uint32_t start, uint32_t n)
{
	uint32_t how = below(d, 4), to = below(d, PAGES), new_n = 1 + below(d, FP_MIN(PAGES - to, 24u));
	int flags = how == 0 ? 0 : MREMAP_MAYMOVE | MREMAP_FIXED | (how == 3 ? MREMAP_DONTUNMAP : 0);
	void *p;

	if (how == 3)
		new_n = FP_MIN(n, PAGES - to);
	if (how == 0)
		to = start;
	/* whether the place is cleared before the kernel finds that there is nothing to move is its own
	 * affair; a locked mapping that grows may be more than our policy allows */
	if (to + new_n > PAGES || !is_certain(d, start, n) || (how && !d->mapping[start]) ||
	    (d->locked[start] && new_n > n)) {
		answer(d, -2);
		return;
	}
	/* nor can it be told what lies behind, but in here */
	if (how == 0 && new_n > n && d->mapping[start] && !is_free(d, start + n, start + new_n) &&
	    d->mapping[start + n] == d->mapping[start]) {
		answer(d, -2);
		return;
	}
	d->record.arg = how << 16 | to << 8 | new_n;
	p = mremap(at(d, start), (size_t)n * PAGE, (size_t)new_n * PAGE, flags, at(d, to));
	answer_addr(d, p);
	if (p != MAP_FAILED)
		moved(d, start, n, to, new_n, how == 3);
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
	                              OP_ADVISE, OP_ADVISE, OP_REMAP,   OP_REMAP, OP_MINCORE};
	uint32_t start = below(d, PAGES), n = 1 + below(d, FP_MIN(PAGES - start, 24u));
	enum op op = ops[below(d, sizeof(ops) / sizeof(ops[0]))];

	if (getenv("MAPDICE_LOCKS") && below(d, 16) == 0)
		op = OP_LOCK;
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
	default:
		step_mincore(d, start, n);
	}
}

/* What the pages hold: some after each step, all of them now and then. */
static uint64_t look(struct dice *d, uint64_t i)
{
	uint32_t n = i % 64 ? 4 : PAGES, first = i % 64 ? below(d, PAGES) : 0;
	uint64_t hash = 0, words[PAGE / 8];

	for (uint32_t k = 0; k < n; k++) {
		uint32_t page = (first + k) % PAGES;

		hash = hash * 31 + 7;
		if (copy(words, at(d, page), true) != (ssize_t)PAGE)
			continue;
		for (uint32_t w = 0; w < PAGE / 8; w++)
			hash = (hash ^ words[w]) * 0x9e3779b97f4a7c15u;
	}
	return hash;
}

static int play(uint64_t seed)
{
	struct dice d = {.rng = seed, .fd = memfd_create("mapdice", MFD_CLOEXEC)};
	char *p = mmap(NULL, (size_t)(PAGES + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char text[64 * 1024];

	if (p == MAP_FAILED || d.fd < 0)
		return 2;
	memset(text, 'f', sizeof(text));
	for (int i = 0; i < 8; i++)
		if (write(d.fd, text, sizeof(text)) != (ssize_t)sizeof(text))
			return 2;
	if (getenv("LD_PRELOAD") && !test_is_far(p))
		return 4;
	d.base = p + PAGE;
	set_mapping(&d, 0, PAGES, fresh(&d));
	for (uint64_t i = 1;; i++) {
		step(&d);
		d.record.hash = look(&d, i);
		if (write(STDOUT_FILENO, &d.record, sizeof(d.record)) != (ssize_t)sizeof(d.record))
			return 0;
	}
}

/* ---- who compares ---- */

struct player {
	pid_t pid;
	FILE *records;
};

static bool start(struct player *p, const char *preload, uint64_t seed)
{
	char text[32];
	int fds[2];

	snprintf(text, sizeof(text), "%" PRIu64, seed);
	if (pipe2(fds, O_CLOEXEC) < 0)
		return false;
	p->pid = fork();
	if (p->pid == 0) {
		dup2(fds[1], STDOUT_FILENO);
		if (preload)
			setenv("LD_PRELOAD", preload, 1);
		execl("/proc/self/exe", "mapdice", "--play", text, (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	p->records = fdopen(fds[0], "r");
	return p->pid > 0 && p->records;
}

static void stop(struct player *p)
{
	int status;

	if (p->pid <= 0)
		return;
	kill(p->pid, SIGKILL);
	waitpid(p->pid, &status, 0);
	fclose(p->records);
}

static void tell(const char *who, uint64_t step, const struct record *r)
{
	printf("%s: step %" PRIu64 ": op %u start %u n %u arg %#x: %" PRId64 ", errno %d, hash %" PRIx64 "\n",
	       who, step, r->op, r->start, r->n, r->arg, r->ret, r->error, r->hash);
}

static int compare(struct player *plain, struct player *far, uint64_t until_ns, uint64_t steps)
{
	struct record a, b;
	uint64_t i = 0;

	while (i < steps && fp_clock_ns() < until_ns) {
		i++;
		if (fread(&a, sizeof(a), 1, plain->records) != 1 ||
		    fread(&b, sizeof(b), 1, far->records) != 1) {
			printf("a process ended before step %" PRIu64 "\n", i);
			return 1;
		}
		if (memcmp(&a, &b, sizeof(a)) == 0)
			continue;
		tell("plain", i, &a);
		tell("far", i, &b);
		return 1;
	}
	printf("%" PRIu64 " steps\n", i);
	return 0;
}

static void set_environment(const struct test_daemon *node, const char *capture)
{
	setenv("FARPAGE_LOCAL_MEMORY", LOCAL, 1);
	setenv("FARPAGE_NODES", node->url, 1);
	setenv("FARPAGE_HEAP", "none", 1);
	setenv("FARPAGE_CAPTURE", capture, 1);
	test_stats_use(node);
}

int main(int argc, char **argv)
{
	struct player plain = {.pid = 0}, far = {.pid = 0};
	struct test_daemon node;
	uint64_t seed;
	int r = 1;

	if (argc == 3 && strcmp(argv[1], "--play") == 0)
		return play(strtoull(argv[2], NULL, 0));
	if (argc < 6) {
		fprintf(stderr, "usage: %s FARPAGED PRELOAD TRANSPORT CAPTURE SECONDS [STEPS]\n", argv[0]);
		return 2;
	}
	if (test_cannot_run())
		return TEST_SKIPPED;
	if (test_daemon_start(argv[1], argv[3], 64ull << 20, &node) < 0)
		return 1;
	seed = test_seed("mapdice");
	set_environment(&node, argv[4]);
	if (start(&plain, NULL, seed) && start(&far, argv[2], seed))
		r = compare(&plain, &far, fp_clock_ns() + strtoull(argv[5], NULL, 0) * FP_NSEC_PER_SEC,
		            argc > 6 ? strtoull(argv[6], NULL, 0) : UINT64_MAX);
	stop(&far);
	stop(&plain);
	test_stats_remove(&node);
	test_daemon_stop(&node);
	return r;
}
