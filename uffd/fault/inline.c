/* See inline.h. Law 4 holds as for the fault thread: only start and stop allocate. */
#include "inline.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "evict.h"
#include "handover.h"
#include "lockedmem.h"
#include "serve.h"
#include "spin.h"

#define SERVERS_MAX  16u
#define DIRECT_MAX   16u /* at most so many servers without links: each is only a read-ahead table */
#define WIRE_MAX     8u  /* at most so many servers with links: each has two links to every node */
#define WIRE_FETCHES 96u
#define NAP_NS       (50 * FP_NSEC_PER_USEC)
#define NAP_MAX_NS   (10 * FP_NSEC_PER_MSEC)
#define LEAVE_NS     (10 * FP_NSEC_PER_MSEC) /* how long a waiting thread may keep a server */
#define YIELDS       64u                     /* how often a waiting thread yields before it sleeps */
#define LOOK_MS      10
#define REST_NS      FP_NSEC_PER_MSEC /* see keep_room */
#define GONE_TRIES   3u               /* after so many installs without effect, the page counts as unmapped */

/* A server and its lock. */
struct inline_server {
	_Atomic bool busy;   /* the thread that sets it owns the other fields */
	_Atomic bool behind; /* not busy, but some of its pages are on their way or wait for a token */
	struct fp_server server;
	struct fp_spin spin;
} __attribute__((aligned(64)));

struct fp_inline {
	struct fp_far *far;
	struct fp_evictor *evictor;
	struct fp_handover *handover;
	_Atomic uint64_t rest_until_ns; /* see keep_room */
	unsigned n_servers;
	struct inline_server servers[SERVERS_MAX];
};

/* The server that this thread used last: it has the thread's read-ahead streams. */
static __thread unsigned own_server __attribute__((tls_model("initial-exec")));

/* ---- servers ---- */

static bool take(struct inline_server *p)
{
	return !atomic_load_explicit(&p->busy, memory_order_relaxed) && !atomic_exchange(&p->busy, true);
}

static void give_back(struct inline_server *p)
{
	struct fp_server *sv = &p->server;

	if (sv->lane) {
		atomic_store_explicit(&p->behind, sv->starved_head || fp_serve_is_fetching(sv),
		                      memory_order_relaxed);
		fp_lane_hand_over(sv->lane);
		fp_lane_hand_over(sv->ahead);
	}
	atomic_store_explicit(&p->busy, false, memory_order_release);
}

/*
 * True if the server has a free arrival for this page. A page whose node is not up may occupy its
 * arrival for long. Such a page gets an arrival only if enough are left for other faults.
 */
static bool has_record(const struct fp_server *sv, uint64_t word)
{
	bool waits = sv->lane && fp_page_state(word) == FP_PAGE_REMOTE &&
	             !fp_store_slot_up(sv->far->store, fp_page_slot(word));

	return sv->n_free > (waits ? FP_READ_FAULTS : 0);
}

static struct inline_server *take_any(struct fp_inline *in, uint64_t word)
{
	for (unsigned i = 0; i < in->n_servers; i++) {
		unsigned k = (own_server + i) % in->n_servers;
		struct inline_server *p = &in->servers[k];

		if (!take(p))
			continue;
		if (has_record(&p->server, word)) {
			own_server = k;
			return p;
		}
		give_back(p);
	}
	return NULL;
}

static void tend(struct fp_inline *in)
{
	for (unsigned i = 0; i < in->n_servers; i++) {
		struct inline_server *p = &in->servers[i];

		if (!atomic_load_explicit(&p->behind, memory_order_relaxed) || !take(p))
			continue;
		fp_serve_reap(&p->server, false);
		fp_serve_starved(&p->server);
		give_back(p);
	}
}

/* A guest may wait for a page that a thread of its process owns, and that process may have
 * ended. */
void fp_inline_tend(struct fp_inline *in)
{
	if (!in)
		return;
	if (fp_inline_has_guest(in))
		fp_handover_end_if_left(in->handover);
	else
		tend(in);
}

/* ---- waiting ---- */

static void nap(uint64_t ns)
{
	const struct timespec ts = {.tv_nsec = (long)ns};

	nanosleep(&ts, NULL);
}

void fp_inline_wait(struct fp_inline *in, unsigned n)
{
	fp_inline_tend(in);
	if (n < YIELDS)
		sched_yield();
	else
		nap(FP_MIN(NAP_NS * (n - YIELDS + 1), NAP_MAX_NS));
}

/*
 * Waits a little for a token. Tokens come from pages that are leaving, and from the reclaim thread,
 * which is woken here.
 */
static void wait_for_room(struct fp_server *sv)
{
	fp_budget_kick(&sv->far->budget);
	sched_yield();
	fp_serve_starved(sv);
	if (sv->starved_head)
		nap(NAP_NS);
}

static void sleep_for_answer(struct fp_server *sv)
{
	struct pollfd fds[2 * FP_STORE_MAX_NODES];
	uint64_t deadline_ns, now = fp_clock_ns();
	unsigned n = fp_serve_pollfds(sv, fds, &deadline_ns);

	if (deadline_ns > now)
		poll(fds, n, (int)FP_MIN((deadline_ns - now) / FP_NSEC_PER_MSEC + 1, (uint64_t)LOOK_MS));
}

/* ---- faults ---- */

static enum fp_inline_end end_of(const struct fp_far *far, uint32_t page)
{
	switch (fp_page_state(atomic_load(&far->words[page]))) {
	case FP_PAGE_ARRIVING:
	case FP_PAGE_LEAVING:
	case FP_PAGE_CLAIMED:
		return FP_INLINE_BUSY;
	case FP_PAGE_LOST:
		return FP_INLINE_LOST;
	default:
		return FP_INLINE_SERVED;
	}
}

/*
 * Waits until the page is there, or for LEAVE_NS. After that the server is given back: the page's
 * node may be cut off for minutes, and other faults need no node. The page then comes, or is lost,
 * when some thread tends the server.
 */
static void finish_over_wire(struct inline_server *p, uint32_t page)
{
	struct fp_server *sv = &p->server;
	bool spins = fp_spin_begin(&p->spin), paid = true;
	uint64_t begun_ns = fp_clock_ns();

	while (end_of(sv->far, page) == FP_INLINE_BUSY && (sv->starved_head || fp_serve_is_fetching(sv))) {
		if (fp_serve_reap(sv, true) > 0)
			continue;
		if (fp_clock_ns() - begun_ns >= LEAVE_NS)
			break;
		if (sv->starved_head) {
			wait_for_room(sv);
		} else if (spins && paid) {
			sched_yield(); /* the program that sends the answer may need this CPU */
			paid = fp_clock_ns() < begun_ns + FP_SPIN_NS;
		} else {
			sleep_for_answer(sv);
		}
	}
	if (spins)
		fp_spin_end(&p->spin, paid);
}

static void finish(struct inline_server *p, uint32_t page)
{
	if (p->server.lane)
		finish_over_wire(p, page);
	else
		while (p->server.starved_head)
			wait_for_room(&p->server);
}

bool fp_inline_has_guest(const struct fp_inline *in)
{
	return fp_handover_is_guest(in->handover);
}

static enum fp_inline_end hand_over(struct fp_inline *in, const struct fp_uffd_fault *fault)
{
	fp_handover_serve(in->handover, fault);
	return end_of(in->far, fp_far_page(in->far, fault->addr));
}

/*
 * Evicts a batch if few tokens are free. On the program's CPU this needs no wake-up, and interrupts
 * another CPU for the TLB only if threads of the program run there. If most pages can't leave, such
 * as written ones for which there are no slots, threads that find a token leave it to the reclaim
 * thread for a while.
 */
static void keep_room(struct fp_inline *in, uint64_t now_ns)
{
	int n;

	if (!in->evictor || !fp_budget_is_low(&in->far->budget) || now_ns < atomic_load(&in->rest_until_ns))
		return;
	n = fp_evictor_run_on_fault(in->evictor);
	if (n >= 0 && (unsigned)n < (fp_budget_batch(&in->far->budget) + 1) / 2)
		atomic_store(&in->rest_until_ns, fp_clock_ns() + REST_NS);
}

enum fp_inline_end fp_inline_serve_as(struct fp_inline *in, const struct fp_uffd_fault *fault, bool guest)
{
	uint64_t now_ns = fp_clock_ns(); /* the eviction counts as a part of the fault */
	struct inline_server *p;

	if (guest)
		return hand_over(in, fault);
	keep_room(in, now_ns);
	p = take_any(in, atomic_load(&in->far->words[fp_far_page(in->far, fault->addr)]));
	if (!p)
		return FP_INLINE_BUSY;
	fp_serve(&p->server, fault, now_ns);
	finish(p, fp_far_page(in->far, fault->addr));
	give_back(p);
	return end_of(in->far, fp_far_page(in->far, fault->addr));
}

enum fp_inline_end fp_inline_serve(struct fp_inline *in, const struct fp_uffd_fault *fault)
{
	return fp_inline_serve_as(in, fault, fp_inline_has_guest(in));
}

/* ---- bringing pages in ---- */

static void bring(struct fp_inline *in, uint32_t page, bool write)
{
	struct fp_far *far = in->far;
	unsigned gone = 0, busy = 0;

	while (gone < GONE_TRIES) {
		uint64_t word = atomic_load(&far->words[page]);
		struct fp_uffd_fault fault = {.addr = (uintptr_t)fp_far_addr(far, page), .write = write};

		if (fp_inline_is_ready(word, write) || fp_page_state(word) == FP_PAGE_LOST ||
		    fp_far_is_foreign(far, page))
			return;
		fault.wp = fp_page_state(word) == FP_PAGE_RESIDENT;
		if (end_of(far, page) == FP_INLINE_BUSY || fp_inline_serve(in, &fault) == FP_INLINE_BUSY) {
			fp_inline_wait(in, busy++);
			continue;
		}
		word = atomic_load(&far->words[page]);
		gone += fp_page_state(word) == FP_PAGE_ZERO || fp_page_state(word) == FP_PAGE_REMOTE;
	}
}

void fp_inline_bring(struct fp_inline *in, uint32_t page, uint32_t n, bool write)
{
	for (uint32_t p = page; p < page + n && fp_far_has(in->far, p); p++) /* a limit may shrink it */
		bring(in, p, write);
}

/* ---- life ---- */

static unsigned count_servers(const struct fp_far *far)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned wanted = 2 * (unsigned)FP_MAX(cpus, 1L);

	return FP_MIN(wanted, fp_store_is_direct(far->store) ? DIRECT_MAX : WIRE_MAX);
}

static int open_servers(struct fp_inline *in, const struct fp_inline_options *options)
{
	bool direct = fp_store_is_direct(options->far->store);
	const struct fp_server_options server = {
	    .far = options->far,
	    .layout = options->layout,
	    .evictor = in->evictor,
	    .readahead_pages = options->readahead_pages,
	    .n_fetches = direct ? 2 : WIRE_FETCHES,
	};
	unsigned n = count_servers(options->far);
	int r = 0;

	for (unsigned i = 0; r == 0 && i < n; i++, in->n_servers++)
		r = fp_server_open(&in->servers[i].server, &server);
	return r;
}

int fp_inline_start(const struct fp_inline_options *options, struct fp_inline **ret_inline)
{
	struct fp_inline *in = fp_lockedmem_new(sizeof(*in));
	int r = 0;

	if (!in)
		return -ENOMEM;
	in->far = options->far;
	if (options->stage && fp_store_is_direct(options->far->store))
		r = fp_evictor_new(options->far, NULL, options->stage, &in->evictor);
	if (r == 0)
		r = open_servers(in, options);
	if (r == 0)
		r = fp_handover_start(in, &in->handover);
	if (r < 0) {
		fp_inline_stop(in);
		return r;
	}
	*ret_inline = in;
	return 0;
}

static void inline_free(struct fp_inline *in)
{
	for (unsigned i = 0; i < in->n_servers; i++)
		fp_server_close(&in->servers[i].server);
	fp_evictor_free(in->evictor);
	fp_lockedmem_free(in, sizeof(*in));
}

void fp_inline_stop(struct fp_inline *in)
{
	if (!in)
		return;
	fp_handover_stop(in->handover);
	inline_free(in);
}

void fp_inline_abandon(struct fp_inline *in)
{
	if (!in)
		return;
	fp_handover_abandon(in->handover);
	inline_free(in);
}
