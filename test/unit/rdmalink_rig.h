/*
 * A simulated device, and an rdma link over it. It has the parts of struct fp_verbs_* that a link
 * uses, on memory of this process. A posted request waits until the test makes the device carry it
 * out. The test chooses the result: late, out of order (as soft iWARP does), an error, flushed, or
 * never. Room: test/unit, test_rdmalink*.c.
 */
#ifndef FP_RDMALINK_RIG_H
#define FP_RDMALINK_RIG_H

#include "rdma_link.h"

#define LEASE_ID    5u
#define LEASE_BYTES (8u << 20)
#define LEASE_AT    0x700000000000ull
#define LEASE_KEY   0xabcdu
#define QUEUE       1024u
#define SLOTS       256u
#define PATIENCE_NS (20 * FP_NSEC_PER_SEC) /* how long the test waits before it fails */
#define POISON      0xee
/* A status for work_one: the last packet of a READ is missing, but the READ is reported as done. */
#define CUT     1
#define WC_SAID 77 /* wc_status of the first failure; flushed requests have another status */

struct fp_verbs_domain {
	struct fp_verbs_limits limits;
	int refs, regions;
	uint32_t last_key;
	struct fp_verbs_region region[8];
};

struct fp_verbs_conn {
	struct fp_verbs_work queue[QUEUE]; /* posted, not done yet; oldest first */
	uint8_t inlined[QUEUE][256];
	unsigned n_queue;
	struct fp_verbs_completion done[QUEUE];
	unsigned n_done;
	unsigned n_posts, n_works, n_signals, most_reads;
	unsigned depth; /* posts of more than so many requests are refused */
	bool closed, flushed, flush_fails, swallows, gone, post_fails, cq_fails, stirs;
	void (*on_arm)(struct fp_verbs_conn *conn);
};

extern struct fp_verbs_domain domain;
extern struct fp_verbs_conn conn;
extern uint8_t *remote;
extern struct fp_lease lease;
extern struct fp_link *link_;
extern unsigned n_slots;

/* Takes one request out of the queue and carries it out, or fails it with status. */
void work_one(unsigned at, int status);
void work_all(void);

const struct fp_lease *find_lease(const struct fp_session *session, uint32_t lease_id);
void open_link(enum fp_protocol protocol, bool iwarp, unsigned max_reads);
int setup(void **state);
int teardown(void **state);

/* A request with its segments and buffer: n_segs segments of seg_bytes each. */
struct job {
	struct fp_io io;
	struct fp_seg segs[FP_IO_MAX_SEGS];
	uint8_t *buf;
	size_t len;
	bool done;
};

struct job *job_new(enum fp_io_op op, unsigned n_segs, uint32_t seg_bytes, uint8_t fill);
void job_free(struct job *job);
void assert_filled(const uint8_t *buf, uint8_t value, size_t len);

void submit(struct job *job);
/* The next completed request, or NULL. */
struct job *take(void);
void assert_next(struct job *job, int status);
/* Lets the device work until the link has no request of this job left. */
void run(struct job *job);

#endif
