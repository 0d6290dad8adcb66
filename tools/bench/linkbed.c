/*
 * Requests over one link, timed and checked. Room: tools/bench; see linkbed.h.
 *
 * The lease holds a pattern that depends on each word's place (generation 0 of pattern.h). READs go
 * round the lease in large steps, so that neighbours never follow each other. All WRITEs of a cell
 * carry the same content: the pattern's words from place 0 on, in a generation of the cell's own.
 * The last WRITEs are read back.
 */
#include "linkbed.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "clock.h"
#include "hist.h"
#include "pattern.h"
#include "connect.h"

#define LEASE_BYTES (8u << 20)
#define STRIDE      2654435761u /* a prime greater than the number of ranges in a lease */
#define DEADLINE_NS (5 * FP_NSEC_PER_SEC)
#define NAP_MS      100
#define CHECKED     256u /* how many WRITEs of a cell are read back */
/* A node drops a session only after several times this silence. */
#define HEARTBEAT_NS   (100 * FP_NSEC_PER_MSEC)
#define MAX_COMPLETION 64

struct linkbed_slot {
	struct fp_io io;
	struct fp_seg segs[FP_IO_MAX_SEGS];
	char *buf;
	uint64_t start_ns;
};

struct fp_linkbed {
	struct fp_linkbed_options options;
	struct fp_connect connect;
	struct fp_link *link; /* NULL: not open */
	const struct fp_lease *lease;
	char *buffer; /* memory of all slots; MAP_FAILED: none */
	size_t buffer_bytes;
	uint64_t next_heartbeat_ns;
	bool filled;         /* the lease holds generation 0 */
	unsigned generation; /* generation that the last writing cell wrote */
	struct linkbed_slot slots[FP_LINKBED_MAX_DEPTH];
};

/* One run of a cell. */
struct linkbed_run {
	const struct fp_linkbed_cell *cell;
	size_t request_bytes;
	uint64_t n_ranges; /* parts of the lease, each as long as a request */
	uint64_t n_submitted;
	unsigned outstanding;
	uint64_t end_ns;
	uint64_t sum_ns;
	struct fp_hist latency;
};

static void free_bed(struct fp_linkbed **bed)
{
	fp_linkbed_close(*bed);
}

/* ---- contents ---- */

static uint64_t word_at(const struct fp_linkbed *bed, uint64_t index, unsigned generation)
{
	return fp_pattern_word(bed->options.seed, index / FP_PATTERN_PAGE_WORDS,
	                       index % FP_PATTERN_PAGE_WORDS, generation);
}

static void put_words(const struct fp_linkbed *bed, void *buf, size_t len_bytes, uint64_t first,
                      unsigned generation)
{
	uint64_t *words = buf;

	for (size_t i = 0; i < len_bytes / sizeof(*words); i++)
		words[i] = word_at(bed, first + i, generation);
}

static bool words_right(const struct fp_linkbed *bed, const void *buf, size_t len_bytes, uint64_t first,
                        unsigned generation)
{
	const uint64_t *words = buf;

	for (size_t i = 0; i < len_bytes / sizeof(*words); i++)
		if (words[i] != word_at(bed, first + i, generation))
			return false;
	return true;
}

/* ---- the link ---- */

/* Waits for completions: polls for a while, then sleeps. Returns their number. */
static int await(struct fp_linkbed *bed, struct fp_io **ret_done, unsigned max)
{
	uint64_t spin_until_ns = fp_clock_ns() + bed->options.spin_ns;
	struct pollfd pfd;
	int n;

	while ((n = fp_link_poll(bed->link, ret_done, max)) == 0) {
		if (bed->options.spin_ns && fp_clock_ns() < spin_until_ns)
			continue;
		if (fp_link_pollfd(bed->link, &pfd) == 1)
			poll(&pfd, 1, NAP_MS);
	}
	return n;
}

/* Sends a heartbeat, because a node gives up a session whose control connection is silent. */
static int heartbeat(struct fp_linkbed *bed, uint64_t now_ns)
{
	if (now_ns < bed->next_heartbeat_ns)
		return 0;
	bed->next_heartbeat_ns = now_ns + HEARTBEAT_NS;
	return fp_session_ping(bed->connect.session, 0, 0);
}

/* ---- a cell ---- */

static uint64_t range_of(const struct linkbed_run *run, uint64_t n)
{
	return n * STRIDE % run->n_ranges;
}

/* Submits the cell's request number n. The number decides the request's place in the lease. */
static int request(struct fp_linkbed *bed, const struct linkbed_run *run, struct linkbed_slot *slot,
                   enum fp_io_op op, uint64_t n)
{
	uint64_t at = range_of(run, n) * run->request_bytes;

	for (unsigned i = 0; i < run->cell->n_segs; i++) {
		size_t skip = (size_t)i * run->cell->seg_bytes;

		slot->segs[i] =
		    (struct fp_seg){bed->lease->id, run->cell->seg_bytes, at + skip, slot->buf + skip};
	}
	slot->io = (struct fp_io){.op = op, .n_segs = run->cell->n_segs, .segs = slot->segs, .user = slot};
	slot->start_ns = fp_clock_ns();
	return fp_link_submit(bed->link, &slot->io);
}

/* Submits a request and waits for its end. No other request may be under way. */
static int request_alone(struct fp_linkbed *bed, const struct linkbed_run *run, enum fp_io_op op, uint64_t n)
{
	struct fp_io *done;
	int r = request(bed, run, &bed->slots[0], op, n);

	if (r < 0)
		return r;
	await(bed, &done, 1);
	return done->status;
}

static int submit(struct fp_linkbed *bed, struct linkbed_run *run, struct linkbed_slot *slot)
{
	enum fp_io_op op = run->cell->op == FP_LINKBED_READ ? FP_IO_READ : FP_IO_WRITE;
	int r = request(bed, run, slot, op, run->n_submitted);

	if (r < 0)
		return r;
	run->n_submitted++;
	run->outstanding++;
	return 0;
}

/* Fills the lease with generation 0, by requests of the largest segment. */
static int fill_lease(struct fp_linkbed *bed)
{
	static const struct fp_linkbed_cell cell = {FP_LINKBED_WRITE, 1, FP_SEG_MAX_BYTES, 1, 0};
	const struct linkbed_run run = {
	    .cell = &cell, .request_bytes = FP_SEG_MAX_BYTES, .n_ranges = LEASE_BYTES / FP_SEG_MAX_BYTES};
	int r = 0;

	bed->slots[0].buf = bed->buffer;
	for (uint64_t n = 0; r == 0 && n < run.n_ranges; n++) {
		put_words(bed, bed->buffer, run.request_bytes,
		          range_of(&run, n) * run.request_bytes / sizeof(uint64_t), 0);
		r = request_alone(bed, &run, FP_IO_WRITE, n);
	}
	bed->filled = r == 0;
	return r;
}

/* True if the slot's last READ brought the right bytes. */
static bool read_right(const struct fp_linkbed *bed, const struct linkbed_run *run,
                       const struct linkbed_slot *slot)
{
	return words_right(bed, slot->buf, run->request_bytes, slot->segs[0].offset_bytes / sizeof(uint64_t),
	                   0);
}

/*
 * Records the time of a slot's request, which has ended. While there is time, submits the slot
 * again.
 */
static int complete(struct fp_linkbed *bed, struct linkbed_run *run, struct linkbed_slot *slot,
                    uint64_t now_ns)
{
	run->outstanding--;
	if (slot->io.status < 0)
		return slot->io.status;
	fp_hist_record(&run->latency, now_ns - slot->start_ns);
	run->sum_ns += now_ns - slot->start_ns;
	if (run->cell->depth == 1 && run->cell->op == FP_LINKBED_READ) {
		if (!read_right(bed, run, slot))
			return -EBADMSG;
		memset(slot->buf, 0, run->request_bytes);
	}
	return now_ns < run->end_ns ? submit(bed, run, slot) : 0;
}

/* Submits as many requests as the link takes, up to the cell's depth. */
static int submit_first(struct fp_linkbed *bed, struct linkbed_run *run)
{
	int r = 0;

	while (r == 0 && run->outstanding < run->cell->depth)
		r = submit(bed, run, &bed->slots[run->outstanding]);
	return r == -EAGAIN && run->outstanding > 0 ? 0 : r;
}

static int keep_busy(struct fp_linkbed *bed, struct linkbed_run *run)
{
	struct fp_io *done[MAX_COMPLETION];
	int r = 0;

	while (r == 0 && run->outstanding > 0) {
		int n = await(bed, done, MAX_COMPLETION);
		uint64_t now_ns = fp_clock_ns();

		r = heartbeat(bed, now_ns); /* this delays no request: at depth 1 none is under way */
		for (int i = 0; r == 0 && i < n; i++)
			r = complete(bed, run, done[i]->user, now_ns);
	}
	return r;
}

/* Prepares the slots' buffers: zeros for READs, the cell's content for WRITEs. */
static void prepare_slots(struct fp_linkbed *bed, const struct linkbed_run *run)
{
	for (unsigned i = 0; i < run->cell->depth; i++) {
		bed->slots[i].buf = bed->buffer + i * run->request_bytes;
		if (run->cell->op == FP_LINKBED_READ)
			memset(bed->slots[i].buf, 0, run->request_bytes);
		else
			put_words(bed, bed->slots[i].buf, run->request_bytes, 0, bed->generation);
	}
}

/* Reads back the bytes of the cell's last WRITEs, and compares them. */
static int check_written(struct fp_linkbed *bed, const struct linkbed_run *run)
{
	char *buf = bed->slots[0].buf;
	int r = 0;

	for (uint64_t n = run->n_submitted; r == 0 && n > 0 && run->n_submitted - n < CHECKED; n--) {
		memset(buf, 0, run->request_bytes);
		r = request_alone(bed, run, FP_IO_READ, n - 1);
		if (r == 0 && !words_right(bed, buf, run->request_bytes, 0, bed->generation))
			r = -EBADMSG;
	}
	return r;
}

/* At depth 1 nothing is left to check: each READ was checked when it completed. */
static int check_read(const struct fp_linkbed *bed, const struct linkbed_run *run, unsigned n_slots)
{
	for (unsigned i = 0; run->cell->depth > 1 && i < n_slots; i++)
		if (!read_right(bed, run, &bed->slots[i]))
			return -EBADMSG;
	return 0;
}

static void note(const struct linkbed_run *run, uint64_t elapsed_ns, unsigned in_flight,
                 struct fp_linkbed_result *ret_result)
{
	*ret_result = (struct fp_linkbed_result){
	    .requests = fp_hist_count(&run->latency),
	    .elapsed_ns = run->cell->depth == 1 ? run->sum_ns : elapsed_ns,
	    .min_ns = fp_hist_min(&run->latency),
	    .p50_ns = fp_hist_quantile(&run->latency, 0.5),
	    .p99_ns = fp_hist_quantile(&run->latency, 0.99),
	    .p999_ns = fp_hist_quantile(&run->latency, 0.999),
	    .in_flight = in_flight,
	};
}

static int run_io(struct fp_linkbed *bed, struct linkbed_run *run, struct fp_linkbed_result *ret_result)
{
	bool reads = run->cell->op == FP_LINKBED_READ;
	uint64_t start_ns, elapsed_ns;
	unsigned in_flight;
	int r = reads && !bed->filled ? fill_lease(bed) : 0;

	if (r < 0)
		return r;
	if (!reads) {
		bed->filled = false;
		bed->generation++;
	}
	prepare_slots(bed, run);
	start_ns = fp_clock_ns();
	run->end_ns = start_ns + run->cell->duration_ns;
	r = submit_first(bed, run);
	in_flight = run->outstanding;
	if (r == 0)
		r = keep_busy(bed, run);
	elapsed_ns = fp_clock_ns() - start_ns;
	if (r == 0)
		r = reads ? check_read(bed, run, in_flight) : check_written(bed, run);
	if (r == 0)
		note(run, elapsed_ns, in_flight, ret_result);
	return r;
}

static int run_rpc(struct fp_linkbed *bed, struct linkbed_run *run, struct fp_linkbed_result *ret_result)
{
	uint64_t start_ns, now_ns = fp_clock_ns();
	int r;

	run->end_ns = now_ns + run->cell->duration_ns;
	do {
		start_ns = fp_clock_ns();
		r = fp_session_ping(bed->connect.session, run->cell->seg_bytes, 0);
		now_ns = fp_clock_ns();
		fp_hist_record(&run->latency, now_ns - start_ns);
		run->sum_ns += now_ns - start_ns;
	} while (r == 0 && now_ns < run->end_ns);
	if (r == 0)
		note(run, 0, 1, ret_result);
	return r;
}

size_t fp_linkbed_request_bytes(const struct fp_linkbed_cell *cell)
{
	return (size_t)cell->n_segs * cell->seg_bytes;
}

int fp_linkbed_run(struct fp_linkbed *bed, const struct fp_linkbed_cell *cell,
                   struct fp_linkbed_result *ret_result)
{
	fp_autofree struct linkbed_run *run = calloc(1, sizeof(*run));
	int r = run ? 0 : -ENOMEM;

	if (r == 0)
		r = heartbeat(bed, fp_clock_ns());
	if (r < 0)
		return r;
	run->cell = cell;
	run->request_bytes = fp_linkbed_request_bytes(cell);
	if (cell->op == FP_LINKBED_RPC)
		return run_rpc(bed, run, ret_result);
	run->n_ranges = LEASE_BYTES / run->request_bytes;
	return run_io(bed, run, ret_result);
}

/* ---- opening and closing ---- */

static int open_buffer(struct fp_linkbed *bed)
{
	bed->buffer_bytes = FP_MAX(bed->options.buffer_bytes, FP_SEG_MAX_BYTES);
	bed->buffer = mmap(NULL, bed->buffer_bytes, PROT_READ | PROT_WRITE,
	                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	return bed->buffer == MAP_FAILED ? -ENOMEM : 0;
}

static int open_link(struct fp_linkbed *bed)
{
	enum fp_protocol protocol = bed->options.protocol;
	int r = fp_session_lease(bed->connect.session, LEASE_BYTES, &bed->lease);

	if (r == 0)
		r = fp_link_open(bed->connect.session, &bed->link);
	if (r == 0 && (protocol == FP_PROTOCOL_AUTO || protocol == FP_PROTOCOL_REGISTERED))
		fp_link_register(bed->link, bed->buffer, bed->buffer_bytes);
	return r;
}

int fp_linkbed_open(const struct fp_linkbed_options *options, char *error, size_t error_len,
                    struct fp_linkbed **ret_bed)
{
	const struct fp_session_options session = {
	    .secret = options->secret,
	    .deadline_ns = DEADLINE_NS,
	    .protocol = options->protocol,
	};
	FP_CLEANUP(free_bed) struct fp_linkbed *bed = calloc(1, sizeof(*bed));
	char reason[FP_EXPLAIN_LEN];
	struct fp_refusal refusal;
	int r;

	snprintf(error, error_len, "no memory");
	if (!bed)
		return -ENOMEM;
	bed->options = *options;
	r = open_buffer(bed);
	if (r == 0)
		r = fp_connect_open(&bed->connect, options->url, &session, error, error_len);
	if (r < 0)
		return r;
	r = open_link(bed);
	if (r < 0) {
		fp_session_refusal(bed->connect.session, &refusal);
		snprintf(error, error_len, "%s",
		         fp_session_explain(r, &refusal, &bed->connect.rdma, reason, sizeof(reason)));
		return r;
	}
	*ret_bed = fp_take_ptr(bed);
	return 0;
}

const char *fp_linkbed_transport(const struct fp_linkbed *bed)
{
	return bed->connect.way.transport->scheme;
}

void fp_linkbed_close(struct fp_linkbed *bed)
{
	if (!bed)
		return;
	fp_link_close(bed->link);
	fp_connect_close(&bed->connect);
	if (bed->buffer && bed->buffer != MAP_FAILED)
		munmap(bed->buffer, bed->buffer_bytes);
	free(bed);
}
