/*
 * Pools. Room: daemon; see pool.h.
 */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"
#include "units.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

#define NUMA_NODES 1024
#define LONG_BITS  (8 * sizeof(unsigned long))
#define NUMA_WORDS (NUMA_NODES / LONG_BITS)

/* The size of a slice, unless a page is larger. Clearing it takes some hundred microseconds. */
#define SLICE_BYTES (1ull << 20)

/* The number behind this name in /proc/meminfo. 0: there is no such line. */
static uint64_t meminfo_number(const char *name)
{
	fp_autofclose FILE *meminfo = fopen("/proc/meminfo", "re");
	char line[128];

	while (meminfo && fgets(line, sizeof(line), meminfo))
		if (strncmp(line, name, strlen(name)) == 0)
			return strtoull(line + strlen(name), NULL, 10);
	return 0;
}

/* The size of the huge pages that MAP_HUGETLB and MFD_HUGETLB give, 0 if this kernel has none. */
static uint64_t huge_page_bytes(void)
{
	return meminfo_number("Hugepagesize:") << 10;
}

/* The kernel expects one bit more than it reads. */
#define MASK_BITS (NUMA_NODES + 1)

static void node_mask(uint64_t node, unsigned long mask[NUMA_WORDS])
{
	memset(mask, 0, NUMA_WORDS * sizeof(mask[0]));
	mask[node / LONG_BITS] = 1ul << (node % LONG_BITS);
}

static int bind_node(const struct fp_pool *pool, void *base, uint64_t size_bytes)
{
	unsigned long mask[NUMA_WORDS];

	if (pool->numa_node == FP_NUMA_ANY)
		return 0;
	node_mask(pool->numa_node, mask);
	return syscall(SYS_mbind, base, size_bytes, MPOL_BIND, mask, MASK_BITS, 0) < 0 ? -errno : 0;
}

/* A file's pages follow the NUMA policy of the thread that allocates them. */
static int bind_thread(const struct fp_pool *pool)
{
	unsigned long mask[NUMA_WORDS];

	if (pool->numa_node == FP_NUMA_ANY)
		return 0;
	node_mask(pool->numa_node, mask);
	return syscall(SYS_set_mempolicy, MPOL_BIND, mask, MASK_BITS) < 0 ? -errno : 0;
}

static int change_file(int fd, int mode, uint64_t offset, uint64_t size_bytes)
{
	int r;

	do
		r = fallocate(fd, mode, (off_t)offset, (off_t)size_bytes) < 0 ? -errno : 0;
	while (r == -EINTR);
	return r;
}

static int populate(void *base, uint64_t size_bytes)
{
	int r;

	do
		r = madvise(base, size_bytes, MADV_POPULATE_WRITE) < 0 ? -errno : 0;
	while (r == -EINTR || r == -EAGAIN);
	return r == -EFAULT ? -ENOMEM : r; /* -EFAULT: too few huge pages */
}

static uint64_t slice(const struct fp_pool *pool, uint64_t left_bytes)
{
	return FP_MIN(FP_MAX(pool->unit_bytes, SLICE_BYTES), left_bytes);
}

/* Flags of an anonymous mapping with the pool's kind of pages. */
static int page_flags(const struct fp_pool *pool)
{
	return MAP_PRIVATE | MAP_ANONYMOUS |
	       (pool->backing == FP_BACKING_HUGETLB ? MAP_HUGETLB : MAP_NORESERVE);
}

/* Opens the file once more, which the kernel counts as another opener. */
static int open_again(int fd, int *ret_fd)
{
	char path[32];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again < 0)
		return -errno;
	*ret_fd = again;
	return 0;
}

static int create_memfd(const struct fp_pool *pool, uint64_t size_bytes, int *ret_fd)
{
	unsigned flags =
	    MFD_CLOEXEC | MFD_ALLOW_SEALING | (pool->backing == FP_BACKING_HUGETLB ? MFD_HUGETLB : 0);
	fp_autoclose int fd = -1;
	char name[80];

	snprintf(name, sizeof(name), "farpage:%s", pool->name);
	fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	if (fd < 0 || ftruncate(fd, (off_t)size_bytes) < 0)
		return -errno;
	/*
	 * Seals the size of the memfd. So a peer can't truncate it, which would give us a SIGBUS.
	 */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0 || fchmod(fd, 0600) < 0)
		return -errno;
	return open_again(fd, ret_fd);
}

int fp_chunk_pass(struct fp_chunk *chunk, int *ret_fd)
{
	int r = open_again(chunk->fd, ret_fd);

	if (r == 0)
		chunk->passed = true;
	return r;
}

static bool is_open_once(int fd)
{
	if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
		return false;
	fcntl(fd, F_SETLEASE, F_UNLCK);
	return true;
}

uint64_t fp_chunk_touched(const struct fp_chunk *chunk)
{
	struct stat st;

	return chunk->fd >= 0 && fstat(chunk->fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

bool fp_chunk_is_alone(const struct fp_chunk *chunk)
{
	return !chunk->passed || is_open_once(chunk->fd);
}

static void unmap_chunk(struct fp_chunk *chunk)
{
	if (chunk->mapped_bytes)
		munmap(chunk->base, chunk->mapped_bytes);
	if (chunk->fd >= 0)
		close(chunk->fd);
	*chunk = (struct fp_chunk){.fd = -1};
}

/* Maps fd, or anonymous pages if fd is -1. On success the chunk owns fd. */
static int map_chunk(const struct fp_pool *pool, uint64_t size_bytes, int fd, struct fp_chunk *ret_chunk)
{
	struct fp_chunk chunk = {.size_bytes = size_bytes, .mapped_bytes = size_bytes, .fd = -1};
	int r;

	chunk.base =
	    mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, fd < 0 ? page_flags(pool) : MAP_SHARED, fd, 0);
	if (chunk.base == MAP_FAILED)
		return -errno;
	/* Bytes of clients do not belong in our core dump. */
	madvise(chunk.base, size_bytes, MADV_DONTDUMP);
	r = bind_node(pool, chunk.base, size_bytes);
	if (r < 0) {
		unmap_chunk(&chunk);
		return r;
	}
	chunk.fd = fd;
	*ret_chunk = chunk;
	return 0;
}

static int new_chunk(const struct fp_pool *pool, struct fp_chunk *chunk)
{
	fp_autoclose int fd = -1;
	int r = 0;

	if (chunk->shareable)
		r = create_memfd(pool, chunk->size_bytes, &fd);
	if (r == 0)
		r = map_chunk(pool, chunk->size_bytes, fd, chunk);
	if (r == 0)
		fd = -1;
	return r;
}

static int refuse_odd(const char *name, uint64_t page_bytes, struct fp_conf_error *error)
{
	snprintf(error->text, sizeof(error->text),
	         "pool '%s': size must be a multiple of the huge page size, %llu KiB", name,
	         (unsigned long long)page_bytes >> 10);
	return -EINVAL;
}

static int explain(const struct fp_pool *pool, int r, struct fp_conf_error *error)
{
	char size[16], reason[64];

	fp_size_format(pool->size_bytes, size, sizeof(size));
	fp_strerror(r, reason, sizeof(reason));
	if (pool->backing == FP_BACKING_HUGETLB && !pool->unit_bytes)
		snprintf(error->text, sizeof(error->text),
		         "pool '%s': this kernel has no huge pages: use memfd", pool->name);
	else if (pool->backing == FP_BACKING_HUGETLB && pool->size_bytes % pool->unit_bytes)
		refuse_odd(pool->name, pool->unit_bytes, error);
	else if (pool->backing == FP_BACKING_HUGETLB && r == -ENOMEM)
		snprintf(error->text, sizeof(error->text),
		         "pool '%s': %s needs %llu free huge pages: raise them with 'sysctl "
		         "vm.nr_hugepages=N', or use memfd",
		         pool->name, size, (unsigned long long)(pool->size_bytes / pool->unit_bytes));
	else if (r == -EOPNOTSUPP)
		snprintf(error->text, sizeof(error->text),
		         "pool '%s': memfds need 'sysctl fs.leases-enable=1', or use anonymous", pool->name);
	else if (pool->numa_node != FP_NUMA_ANY)
		snprintf(error->text, sizeof(error->text), "pool '%s': %s of memory on NUMA node %llu: %s",
		         pool->name, size, (unsigned long long)pool->numa_node, reason);
	else
		snprintf(error->text, sizeof(error->text), "pool '%s': %s of memory: %s", pool->name, size,
		         reason);
	return r;
}

/*
 * -EOPNOTSUPP: the kernel grants no write leases (F_SETLEASE), so we could not see that a client
 * released a memfd.
 */
static int prove_watch(const struct fp_pool *pool)
{
	fp_autoclose int fd = -1;
	int r = create_memfd(pool, pool->unit_bytes, &fd);

	return r == 0 && !is_open_once(fd) ? -EOPNOTSUPP : r;
}

static int grow_reserve(struct fp_pool *pool, uint64_t size_bytes)
{
	int r = bind_thread(pool);

	if (r == 0)
		r = change_file(pool->reserve_fd, 0, pool->reserve_bytes, size_bytes);
	if (r == 0)
		pool->reserve_bytes += size_bytes;
	else /* the failed call may have allocated some pages */
		change_file(pool->reserve_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, pool->reserve_bytes,
		            size_bytes);
	if (pool->numa_node != FP_NUMA_ANY)
		syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
	return r == -ENOSPC ? -ENOMEM : r; /* -ENOSPC: too few huge pages */
}

/* Maps the whole size once, as a test: this fails if huge pages or the NUMA node are missing. */
static int prove(struct fp_pool *pool)
{
	struct fp_chunk chunk;
	int r;

	if (!pool->unit_bytes || pool->size_bytes % pool->unit_bytes)
		return -EINVAL;
	r = fp_pool_is_shareable(pool) ? prove_watch(pool) : 0;
	if (r == 0)
		r = map_chunk(pool, pool->size_bytes, -1, &chunk);
	if (r < 0)
		return r;
	unmap_chunk(&chunk);
	if (!pool->preallocate)
		return 0;
	r = create_memfd(pool, pool->size_bytes, &pool->reserve_fd);
	return r < 0 ? r : grow_reserve(pool, pool->size_bytes);
}

/*
 * Checks the host's memory. Otherwise the kernel would kill this process or another one when
 * memory runs out.
 */
static int check_host(const struct fp_pool *pool, struct fp_conf_error *error)
{
	char size[16], available[16];
	struct fp_hostmem host;

	fp_hostmem_read("", &host);
	if (!pool->preallocate || pool->backing == FP_BACKING_HUGETLB ||
	    pool->size_bytes <= host.available_bytes)
		return 0;
	snprintf(error->text, sizeof(error->text),
	         "pool '%s': preallocate wants %s, of which the node can have %s (%s): make the pool "
	         "smaller, or raise that limit",
	         pool->name, fp_size_format(pool->size_bytes, size, sizeof(size)),
	         fp_size_format(host.available_bytes, available, sizeof(available)), host.bound);
	return -ENOMEM;
}

void fp_pool_close(struct fp_pool *pool)
{
	if (pool && pool->reserve_fd >= 0)
		close(pool->reserve_fd);
	free(pool);
}

FP_DEFINE_CLEANUP(struct fp_pool, pool, fp_pool_close)

int fp_pool_open(const struct fp_pool_config *config, struct fp_pool **ret_pool, struct fp_conf_error *error)
{
	FP_CLEANUP(fp_cleanup_pool) struct fp_pool *pool = calloc(1, sizeof(*pool));
	int r;

	snprintf(error->text, sizeof(error->text), "pool '%s': out of memory", config->name);
	if (!pool)
		return -ENOMEM;
	snprintf(pool->name, sizeof(pool->name), "%s", config->name);
	pool->size_bytes = config->size_bytes;
	pool->backing = config->backing;
	pool->numa_node = config->numa_node;
	pool->preallocate = config->preallocate;
	pool->reserve_fd = -1;
	pool->unit_bytes = pool->backing == FP_BACKING_HUGETLB ? huge_page_bytes() : 4096;
	pool->least_bytes = pool->unit_bytes;
	r = check_host(pool, error);
	if (r < 0)
		return r;
	r = prove(pool);
	if (r < 0)
		return explain(pool, r, error);
	*ret_pool = fp_take_ptr(pool);
	return 0;
}

static void warn_private(uint64_t promised_bytes)
{
	char promised[16], total[16];
	struct sysinfo host;
	uint64_t total_bytes;

	if (sysinfo(&host) < 0)
		return;
	total_bytes = (host.totalram + host.totalswap) * (uint64_t)host.mem_unit;
	if (promised_bytes > total_bytes)
		fp_log(
		    FP_LOG_WARNING, "pool",
		    "the pool of %s is larger than this machine's memory and swap, %s: the machine is out "
		    "of memory before it is full; choose a smaller --pool-size, or a node with more memory",
		    fp_size_format(promised_bytes, promised, sizeof(promised)),
		    fp_size_format(total_bytes, total, sizeof(total)));
}

static uint64_t sum_in_memory(const struct fp_pool_config *pools, unsigned n, bool preallocate)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < n; i++)
		if (pools[i].preallocate == preallocate && pools[i].backing != FP_BACKING_HUGETLB)
			bytes += pools[i].size_bytes;
	return bytes;
}

/* Warns if the host can't give so much now. which names the pools; so that says what follows. */
static void warn_beyond_host(uint64_t bytes, const char *which, const char *so)
{
	char needed[16], available[16];
	struct fp_hostmem host;

	fp_hostmem_read("", &host);
	if (bytes > host.available_bytes)
		fp_log(FP_LOG_WARNING, "pool",
		       "pools %s preallocate need %s, the node can have only %s now (%s): %s", which,
		       fp_size_format(bytes, needed, sizeof(needed)),
		       fp_size_format(host.available_bytes, available, sizeof(available)), host.bound, so);
}

void fp_pools_warn(const struct fp_pool_config *pools, unsigned n, bool is_private)
{
	uint64_t promised_bytes = sum_in_memory(pools, n, false);

	if (is_private)
		warn_private(promised_bytes);
	else
		warn_beyond_host(promised_bytes, "without", "it refuses leases beyond that");
}

static void warn_huge_pages(const struct fp_pool_config *pools, unsigned n)
{
	uint64_t page_bytes = huge_page_bytes(), wanted = 0, have = meminfo_number("HugePages_Total:");

	for (unsigned i = 0; page_bytes && i < n; i++)
		if (pools[i].backing == FP_BACKING_HUGETLB)
			wanted += pools[i].size_bytes / page_bytes;
	if (wanted > have)
		fp_log(
		    FP_LOG_WARNING, "pool",
		    "pools of hugetlb need %llu huge pages, this machine has %llu: set vm.nr_hugepages (see "
		    "farpaged.yaml(5)), or the node may not start",
		    (unsigned long long)wanted, (unsigned long long)have);
}

int fp_pools_check(const struct fp_pool_config *pools, unsigned n, struct fp_conf_error *error)
{
	uint64_t wanted = sum_in_memory(pools, n, true);
	uint64_t have = (meminfo_number("MemTotal:") + meminfo_number("SwapTotal:")) << 10;
	uint64_t page_bytes = huge_page_bytes();
	char wanted_text[16], have_text[16];

	for (unsigned i = 0; page_bytes && i < n; i++)
		if (pools[i].backing == FP_BACKING_HUGETLB && pools[i].size_bytes % page_bytes)
			return refuse_odd(pools[i].name, page_bytes, error);
	warn_huge_pages(pools, n);
	if (wanted <= have || !have)
		return 0;
	snprintf(error->text, sizeof(error->text),
	         "pools with preallocate need %s, and this machine has %s in all, its swap included: make "
	         "them smaller",
	         fp_size_format(wanted, wanted_text, sizeof(wanted_text)),
	         fp_size_format(have, have_text, sizeof(have_text)));
	return -ENOMEM;
}

void fp_pools_warn_preallocated(const struct fp_pool_config *pools, unsigned n)
{
	warn_beyond_host(sum_in_memory(pools, n, true), "with", "it does not start with less than they need");
}

bool fp_pool_is_reserved(const struct fp_pool *pool)
{
	return pool->preallocate || pool->backing == FP_BACKING_HUGETLB;
}

bool fp_pool_is_shareable(const struct fp_pool *pool)
{
	return pool->backing != FP_BACKING_ANONYMOUS;
}

void fp_pool_set_least(struct fp_pool *pool, uint64_t least_bytes)
{
	pool->least_bytes = FP_MAX(pool->unit_bytes, least_bytes);
}

uint64_t fp_pool_round(const struct fp_pool *pool, uint64_t size_bytes)
{
	return (size_bytes + pool->least_bytes - 1) / pool->least_bytes * pool->least_bytes;
}

static int shrink_reserve(struct fp_pool *pool, uint64_t size_bytes)
{
	int r = change_file(pool->reserve_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
	                    pool->reserve_bytes - size_bytes, size_bytes);

	if (r == 0)
		pool->reserve_bytes -= size_bytes;
	return r;
}

int fp_pool_refill(struct fp_pool *pool)
{
	uint64_t have_bytes = pool->taken_bytes + pool->reserve_bytes;
	int r;

	if (!pool->preallocate || have_bytes >= pool->size_bytes || atomic_load(&pool->ending))
		return 0;
	r = grow_reserve(pool, slice(pool, pool->size_bytes - have_bytes));
	return r < 0 ? -ENOMEM : pool->taken_bytes + pool->reserve_bytes < pool->size_bytes;
}

int fp_pool_populate(const struct fp_pool *pool, struct fp_chunk *chunk)
{
	uint64_t len_bytes = slice(pool, chunk->size_bytes - chunk->populated_bytes);
	int r = len_bytes ? populate((char *)chunk->base + chunk->populated_bytes, len_bytes) : 0;

	if (r < 0)
		return r;
	chunk->populated_bytes += len_bytes;
	return chunk->populated_bytes < chunk->size_bytes;
}

/*
 * Frees pages of the reserve before the chunk is mapped, because the kernel refuses a mapping of
 * huge pages if too few are free. Each chunk frees at most its own size, so a small chunk does not
 * wait for a large one. Returns 1 if there is more to free.
 */
static int free_slice(struct fp_pool *pool, struct fp_chunk *chunk)
{
	uint64_t have_bytes = pool->taken_bytes + pool->reserve_bytes;
	uint64_t over_bytes = have_bytes - FP_MIN(have_bytes, pool->size_bytes);
	uint64_t left_bytes = FP_MIN(over_bytes, chunk->size_bytes - chunk->freed_bytes);
	uint64_t len_bytes = slice(pool, left_bytes);
	int r;

	if (!pool->preallocate || !len_bytes)
		return 0;
	r = shrink_reserve(pool, len_bytes);
	chunk->freed_bytes += len_bytes;
	return r < 0 ? r : len_bytes < left_bytes;
}

/*
 * The last slice of freeing also maps the chunk and populates its first bytes: each slice waits for
 * its turn, and the smallest lease needs one only.
 */
static int take_slice(struct fp_pool *pool, struct fp_chunk *chunk)
{
	int r = chunk->base ? 0 : free_slice(pool, chunk);

	if (r == 0 && !chunk->base)
		r = new_chunk(pool, chunk);
	/*
	 * If the memory of the pool is reserved, the chunk is populated now. A missing huge page is
	 * an error here, but would be a SIGBUS at a later write.
	 */
	return r == 0 && fp_pool_is_reserved(pool) ? fp_pool_populate(pool, chunk) : r;
}

/*
 * Takes what is free of the space that the chunk still lacks. So chunks that come later can't keep
 * a large one waiting, however small they are. None waits for ever: all chunks that are leased or
 * being made fit into the pool together, and those that are being given back need no more space.
 */
static bool take_space(struct fp_pool *pool, struct fp_chunk *chunk)
{
	uint64_t lack_bytes = chunk->size_bytes - chunk->taken_bytes;
	uint64_t len_bytes = FP_MIN(lack_bytes, pool->size_bytes - pool->taken_bytes);

	chunk->taken_bytes += len_bytes;
	pool->taken_bytes += len_bytes;
	return len_bytes == lack_bytes;
}

int fp_pool_take(struct fp_pool *pool, uint64_t size_bytes, bool shareable, struct fp_chunk *chunk)
{
	int r;

	if (!chunk->size_bytes)
		*chunk = (struct fp_chunk){.size_bytes = size_bytes, .shareable = shareable, .fd = -1};
	if (!chunk->base && !take_space(pool, chunk))
		return 1;
	r = take_slice(pool, chunk);
	if (r < 0) {
		unmap_chunk(chunk);
		pool->taken_bytes -= size_bytes;
	}
	return r;
}

void fp_pool_leave(struct fp_pool *pool, struct fp_chunk *chunk)
{
	pool->taken_bytes -= chunk->size_bytes;
	unmap_chunk(chunk);
}

void fp_pool_end(struct fp_pool *pool)
{
	atomic_store(&pool->ending, true);
}

static void unmap_slice(struct fp_pool *pool, struct fp_chunk *chunk)
{
	uint64_t len_bytes = slice(pool, chunk->mapped_bytes);
	char *base = (char *)chunk->base + chunk->mapped_bytes - len_bytes;

	/* Otherwise the close after the last slice would free all pages at once. */
	if (chunk->fd >= 0)
		madvise(base, len_bytes, MADV_REMOVE);
	munmap(base, len_bytes);
	chunk->mapped_bytes -= len_bytes;
	pool->taken_bytes -= len_bytes;
	if (!chunk->mapped_bytes)
		unmap_chunk(chunk);
}

int fp_pool_give(struct fp_pool *pool, struct fp_chunk *chunk)
{
	if (!chunk->mapped_bytes)
		return fp_pool_refill(pool);
	unmap_slice(pool, chunk);
	return chunk->mapped_bytes || pool->preallocate;
}
