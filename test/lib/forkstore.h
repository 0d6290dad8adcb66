/*
 * Processes that fork a store over fake nodes: their pages, and points at which they wait for each
 * other. Room: test/lib; only for the store's unit tests. Include after cmocka.h.
 */
#ifndef FP_FORKSTORE_H
#define FP_FORKSTORE_H

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "fakestore.h"
#include "testrng.h"

#define N_PAGES    150u
#define PAGE_WORDS (FP_PAGE_SIZE / sizeof(uint64_t))
#define FAILED     3 /* exit status of a process whose check failed */
#define WAIT_NS    (20 * FP_NSEC_PER_SEC)

/* A process' own record of its pages. fork copies it, as it copies a program's tables. */
static struct {
	struct fp_store *store;
	struct fp_lane *lane;
	struct {
		uint64_t slot, stamp; /* no slot: the page does not exist */
	} page[N_PAGES];
	unsigned n_stamps;
	bool is_child;
} me;

static inline void failed(const char *what, int line)
{
	fprintf(stderr, "process %d, line %d: %s\n", (int)getpid(), line, what);
	if (me.is_child)
		_exit(FAILED);
	fail();
}
#define check(what) ((what) ? (void)0 : failed(#what, __LINE__))

static inline int reset(void **state)
{
	fake_reset(test_seed("fake"));
	for (unsigned i = 0; i < FAKE_NODES; i++) {
		fake_nodes[i].resumable = true;
		fake_nodes[i].grace_ns = 60 * FP_NSEC_PER_SEC;
	}
	memset(&me, 0, sizeof(me));
	return 0;
}

/* ---- one process ---- */

static inline void begin(unsigned n_nodes, unsigned load_store)
{
	check(fake_store_open(n_nodes, load_store, 0, &me.store) == 0);
	check(fp_lane_open(me.store, 4, &me.lane) == 0);
}

static inline void end(void)
{
	fp_lane_close(me.lane);
	fp_store_close(me.store);
	me.lane = NULL;
	me.store = NULL;
}

static inline bool is_adopting(void)
{
	struct fp_store_node info;

	for (unsigned i = 0; i < fp_store_n_nodes(me.store); i++) {
		fp_store_node_info(me.store, i, &info);
		if (info.adopting)
			return true;
	}
	return false;
}

static inline void tend_now(void)
{
	for (unsigned i = 0; i < me.store->n_nodes; i++) {
		me.store->nodes[i].backoff.next_ns = me.store->nodes[i].backoff.closed_ns = 0;
		me.store->nodes[i].adopt_at_ns = 0;
	}
	fake_tend(me.store);
}

static inline void adopt(void)
{
	uint64_t until_ns = fp_clock_ns() + WAIT_NS;

	while (is_adopting()) {
		tend_now();
		check(fp_clock_ns() < until_ns);
	}
}

static inline int move_page(enum fp_io_op op, uint64_t slot, uint64_t *bytes)
{
	struct fp_page_io io = {.slot = slot, .buf = bytes, .status = 1}, *p = &io, *done;
	uint64_t *direct = fp_store_slot_direct(me.store, slot);

	if (direct) {
		memcpy(op == FP_IO_READ ? bytes : direct, op == FP_IO_READ ? direct : bytes, FP_PAGE_SIZE);
		return 0;
	}
	check((op == FP_IO_READ ? fp_lane_read : fp_lane_write)(me.lane, &p, 1) == 0);
	while (fp_lane_poll(me.lane, &done, 1) == 0)
		tend_now();
	return io.status;
}

static inline bool page_holds(unsigned i)
{
	uint64_t bytes[PAGE_WORDS];
	int r = move_page(FP_IO_READ, me.page[i].slot, bytes);

	for (unsigned w = 0; w < PAGE_WORDS && r == 0; w++)
		r = bytes[w] == me.page[i].stamp + w ? 0 : -EILSEQ;
	return r == 0;
}

static inline unsigned n_pages(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < N_PAGES; i++)
		n += me.page[i].slot != 0;
	return n;
}

static inline void check_all(void)
{
	for (unsigned i = 0; i < N_PAGES; i++)
		check(!me.page[i].slot || page_holds(i));
}

/*
 * Checks a slot that the store handed out. No child may hold it, not even a dead child whose end is
 * not known yet.
 */
static inline void check_unheld(uint64_t slot)
{
	const struct fp_slots *slots = fp_store_lease_of(me.store, slot);
	uint64_t word = slots->shared_word + fp_slots_word_of(slots, slot);

	check(!fp_store_slot_is_shared(me.store, slot));
	for (struct fp_generation *gen = me.store->gens.living; gen; gen = gen->next)
		check(!(fp_shared_slots_get(gen->map, word) & fp_slots_bit_of(slots, slot)));
}

static inline uint64_t slot_take(void)
{
	uint64_t slot, until_ns = fp_clock_ns() + WAIT_NS;

	while (fp_store_slot_alloc(me.store, 1, &slot) == 0) {
		adopt(); /* else fp_store_extend waits for the reconnect thread, which is this thread */
		(void)fp_store_extend(me.store);
		tend_now();
		check(fp_clock_ns() < until_ns);
	}
	check_unheld(slot);
	return slot;
}

static inline void page_free(unsigned i)
{
	if (me.page[i].slot)
		fp_store_slot_free(me.store, me.page[i].slot);
	me.page[i].slot = 0;
}

/* Writes a page as the evictor does. */
static inline void page_write(unsigned i)
{
	uint64_t bytes[PAGE_WORDS], slot = me.page[i].slot;
	uint64_t stamp = (uint64_t)getpid() << 40 | (uint64_t)++me.n_stamps << 12;

	for (unsigned w = 0; w < PAGE_WORDS; w++)
		bytes[w] = stamp + w;
	if (!slot || fp_store_slot_is_shared(me.store, slot))
		slot = slot_take();
	check(move_page(FP_IO_WRITE, slot, bytes) == 0);
	if (slot != me.page[i].slot)
		page_free(i);
	me.page[i].slot = slot;
	me.page[i].stamp = stamp;
}

static inline void write_all(void)
{
	for (unsigned i = 0; i < N_PAGES; i++)
		page_write(i);
}

static inline void free_all(void)
{
	for (unsigned i = 0; i < N_PAGES; i++)
		page_free(i);
}

static inline unsigned n_shared(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < N_PAGES; i++)
		n += me.page[i].slot && fp_store_slot_is_shared(me.store, me.page[i].slot);
	return n;
}

static inline uint64_t used_after_sweep(void)
{
	fp_store_sweep(me.store);
	return fp_store_slots_used(me.store);
}

/* ---- two processes and more ---- */

/* Forks as a program does. Returns 0 in the child, which has a store of its own. */
static inline pid_t fork_store(void)
{
	pid_t pid;

	check(fp_store_fork_prepare(me.store) == 0);
	pid = fork();
	check(pid >= 0);
	if (pid) {
		fp_store_fork_parent(me.store, true);
		return pid;
	}
	me.is_child = true;
	alarm(120); /* ends this child if the test fails and nothing else ends it */
	fp_lane_close(me.lane);
	check(fp_store_fork_child(me.store, NULL) == 0);
	check(fp_lane_open(me.store, 4, &me.lane) == 0);
	return 0;
}

static inline void await(pid_t pid, int signal)
{
	int status;

	check(waitpid(pid, &status, 0) > 0);
	check(signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal
	             : WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline void kill_and_await(pid_t pid)
{
	kill(pid, SIGKILL);
	await(pid, SIGKILL);
}

/* A point at which processes wait for each other. */
struct point {
	int fd[2];
};

static inline struct point point_new(void)
{
	struct point point;

	check(pipe(point.fd) == 0);
	return point;
}

static inline void reach(const struct point *point)
{
	check(write(point->fd[1], "", 1) == 1);
}

/* Waits until another process has reached the point. Fails after WAIT_NS. */
static inline void wait_for(struct point *point)
{
	struct pollfd fd = {.fd = point->fd[0], .events = POLLIN};
	char byte;

	check(poll(&fd, 1, (int)(WAIT_NS / FP_NSEC_PER_MSEC)) == 1 && read(point->fd[0], &byte, 1) == 1);
}

static inline void point_end(struct point *point)
{
	close(point->fd[0]);
	close(point->fd[1]);
}

static inline unsigned n_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Checks that the nodes have no session and no lease left. */
static inline void check_nodes_empty(void)
{
	for (unsigned i = 0; i < FAKE_NODES; i++) {
		fake_grace_over(i);
		check(fake_n_standings(i) == 0);
		check(fake_nodes[i].leased_bytes == 0 && fake_nodes[i].n_leases == 0);
		check(fake_nodes[i].n_sessions == 0 && fake_nodes[i].n_links == 0);
		check(fake_nodes[i].n_denied == 0);
	}
}

#endif
