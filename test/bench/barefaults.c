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
#define PARTS_MAX 64u
#define STRIDE    9973u /* odd; pages that come one after the other share no line of the ring */

static struct fp_uffd uffds[PARTS_MAX];
static char *memory;
static const char *bytes;
static uint64_t part_bytes;
static uint32_t n_local;
static _Atomic(char *) *ring; /* the local pages */
static _Atomic uint32_t n_came;
static int pidfd;

static __thread struct iovec old[BATCH];
static __thread unsigned n_old;

static void die(const char *what)
{
	fprintf(stderr, "barefaults: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* The page has come. The one that has been local for longest goes, together with others. */
static void replace(char *page)
{
	uint32_t at = atomic_fetch_add(&n_came, 1) * STRIDE % n_local;
	char *oldest = atomic_exchange(&ring[at], page);

	if (!oldest)
		return;
	old[n_old++] = (struct iovec){.iov_base = oldest, .iov_len = PAGE};
	if (n_old < BATCH)
		return;
	n_old = 0;
	if (syscall(SYS_process_madvise, pidfd, old, (size_t)BATCH, MADV_DONTNEED, 0) < 0)
		die("process_madvise");
}

static void on_bus(int sig, siginfo_t *info, void *context)
{
	uint64_t at = ((uintptr_t)info->si_addr - (uintptr_t)memory) & ~(uint64_t)(PAGE - 1);
	ssize_t n = fp_uffd_copy(&uffds[at / part_bytes], memory + at, bytes + at, PAGE, false);

	(void)sig;
	(void)context;
	if (n == PAGE)
		replace(memory + at);
	else if (n != -EEXIST) /* another thread has copied it */
		die("UFFDIO_COPY");
}

const char *barefaults_map(const char *source, uint32_t n_pages, uint32_t local_pages, unsigned n_parts)
{
	struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
	uint64_t len = (uint64_t)n_pages * PAGE;

	if (n_parts == 0 || n_parts > PARTS_MAX || n_pages % n_parts)
		exit(2);
	memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ring = calloc(local_pages, sizeof(*ring));
	pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (memory == MAP_FAILED || !ring || pidfd < 0)
		die("memory");
	madvise(memory, len, MADV_NOHUGEPAGE);
	bytes = source;
	n_local = local_pages;
	part_bytes = len / n_parts;
	for (unsigned i = 0; i < n_parts; i++)
		if (fp_uffd_open(FP_UFFD_SIGBUS | FP_UFFD_USER_ONLY, &uffds[i]) < 0 ||
		    fp_uffd_register(&uffds[i], memory + i * part_bytes, part_bytes) < 0)
			die("userfaultfd");
	if (sigaction(SIGBUS, &action, NULL) < 0)
		die("sigaction");
	return memory;
}
