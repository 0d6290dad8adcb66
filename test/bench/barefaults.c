/* See barefaults.h. */
#include "barefaults.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "uffd.h"

#define PAGE      4096u
#define BATCH     144u /* as the pager's */
#define AHEAD     (2 * BATCH)
#define PARTS_MAX 64u

/* A local page. A line of its own, because threads fill neighbours at the same time. */
struct place {
	_Alignas(64) _Atomic(char *) page;
};

static struct fp_uffd uffds[PARTS_MAX];
static char *memory;
static const char *bytes;
static uint64_t part_bytes;
static uint32_t n_places;
static struct place *places; /* a ring of the local pages; AHEAD of its places are empty */
static _Atomic uint64_t n_came;
static int pidfd;

static void die(const char *what)
{
	fprintf(stderr, "barefaults: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void drop(struct iovec *pages, unsigned n)
{
	if (syscall(SYS_process_madvise, pidfd, pages, (size_t)n, MADV_DONTNEED, 0) >= 0)
		return;
	for (unsigned i = 0; i < n; i++) /* a kernel before 6.13 */
		if (madvise(pages[i].iov_base, PAGE, MADV_DONTNEED) < 0)
			die("madvise");
}

static void drop_oldest(uint64_t nth)
{
	struct iovec pages[BATCH];
	unsigned n = 0;

	for (unsigned i = 0; i < BATCH; i++) {
		char *page = atomic_exchange(&places[(nth + AHEAD - i) % n_places].page, NULL);

		if (page)
			pages[n++] = (struct iovec){.iov_base = page, .iov_len = PAGE};
	}
	if (n)
		drop(pages, n);
}

/* The page has come. One fault in BATCH drops the pages that have been local for longest. */
static void note(char *page)
{
	uint64_t nth = atomic_fetch_add(&n_came, 1);
	struct iovec late = {.iov_base = atomic_exchange(&places[nth % n_places].page, page),
	                     .iov_len = PAGE};

	if (late.iov_base) /* a thread that should have dropped it is still on its way */
		drop(&late, 1);
	if (nth % BATCH == 0)
		drop_oldest(nth);
}

static void on_bus(int sig, siginfo_t *info, void *context)
{
	uint64_t at = ((uintptr_t)info->si_addr - (uintptr_t)memory) & ~(uint64_t)(PAGE - 1);
	ssize_t n = fp_uffd_copy(&uffds[at / part_bytes], memory + at, bytes + at, PAGE, false);

	(void)sig;
	(void)context;
	if (n == PAGE)
		note(memory + at);
	else if (n != -EEXIST) /* another thread has copied it */
		die("UFFDIO_COPY");
}

const char *barefaults_map(const char *source, uint32_t n_pages, uint32_t local_pages, unsigned n_parts)
{
	struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
	uint64_t len = (uint64_t)n_pages * PAGE;

	if (n_parts == 0 || n_parts > PARTS_MAX || n_pages % n_parts) {
		fprintf(stderr, "barefaults: %u pages can't have %u parts\n", n_pages, n_parts);
		exit(2);
	}
	n_places = local_pages + AHEAD;
	memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	places = aligned_alloc(sizeof(*places), n_places * sizeof(*places));
	pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (memory == MAP_FAILED || !places || pidfd < 0)
		die("memory");
	memset(places, 0, n_places * sizeof(*places));
	madvise(memory, len, MADV_NOHUGEPAGE);
	bytes = source;
	part_bytes = len / n_parts;
	for (unsigned i = 0; i < n_parts; i++)
		if (fp_uffd_open(FP_UFFD_SIGBUS | FP_UFFD_USER_ONLY, &uffds[i]) < 0 ||
		    fp_uffd_register(&uffds[i], memory + i * part_bytes, part_bytes) < 0)
			die("userfaultfd");
	if (sigaction(SIGBUS, &action, NULL) < 0)
		die("sigaction");
	return memory;
}
