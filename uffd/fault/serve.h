/*
 * Serving faults: what brings one fault to its end, whichever thread does it. Room: uffd, inside. A
 * server is used by one thread at a time; that thread has all signals blocked, and what it runs on
 * was allocated and locked before: nothing here allocates, logs or touches far memory but through
 * userfaultfd (law 4).
 */
#ifndef FP_SERVE_H
#define FP_SERVE_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "far.h"
#include "readahead.h"

#define FP_FETCHES     256u /* pages being fetched at once by the fault thread */
#define FP_READ_FAULTS 16u  /* arrivals that read-ahead leaves to faults */

struct fp_evictor;
struct fp_layout;

/* A page that is ARRIVING by our hand and where it stands. */
struct fp_arrival {
	struct fp_page_io io; /* slot, buf, status */
	uint32_t page;
	bool zero; /* to be filled with zeros, not fetched */
	bool writable;
	bool demanded; /* a thread waits; else read ahead */
	enum fp_fault_kind kind;
	uint64_t begun_ns; /* when its message was read */
	uint64_t sent_ns;  /* when its fetch was sent */
	struct fp_arrival *next;
};

struct fp_server {
	struct fp_far *far;
	const struct fp_layout *layout; /* bounds read-ahead; not locked */
	struct fp_lane *lane;           /* of pages that a thread waits for; NULL: direct */
	struct fp_lane *ahead;          /* of pages that are read ahead; NULL: direct */
	struct fp_evictor *evictor;     /* direct only: makes room itself when reclaim fell behind */
	_Atomic bool *evict_turn; /* NULL: the evictor is the server's own; else true while it is in use */
	struct fp_readahead readahead;
	struct fp_arrival *arrivals; /* n_fetches of them */
	struct fp_arrival *free;
	char *bounce;                    /* n_fetches pages; NULL: direct */
	struct fp_arrival *starved_head; /* arrivals that wait for room, oldest first */
	struct fp_arrival **starved_tail;
	unsigned n_free, n_fetches;
};

struct fp_server_options {
	struct fp_far *far;
	const struct fp_layout *layout;
	char *stage;                /* for an evictor of its own: FP_STAGE_PAGES pages, or NULL */
	struct fp_evictor *evictor; /* without a stage: one that is shared; direct only */
	_Atomic bool *evict_turn;   /* of the shared one */
	unsigned readahead_pages;
	unsigned n_fetches; /* more than FP_READ_FAULTS, if read-ahead is wanted */
};

/* Makes *server, zeroed, ready: lanes, buffers, records. 0 or a negative errno; fp_server_close in
 * any case.
 */
int fp_server_open(struct fp_server *server, const struct fp_server_options *options);
void fp_server_close(struct fp_server *server);

/*
 * Begins to serve a fault whose message was read at now; where the store is direct it ends before
 * the return, unless it has to wait for room (starved_head). At least one arrival must be free.
 */
void fp_serve(struct fp_server *server, const struct fp_uffd_fault *fault, uint64_t now);

/* Goes on with what waits for room: gets it, or ends at its deadline, as far as is possible now. */
void fp_serve_starved(struct fp_server *server);

/*
 * Over a wire: ends what has come in; a bounded number of pages that were read ahead, all that was
 * asked for. once: no more than one look at the lanes finds. Returns how many.
 */
unsigned fp_serve_reap(struct fp_server *server, bool once);

/* What to poll for answers, at most 2 * FP_STORE_MAX_NODES, and until when. Returns how many. */
unsigned fp_serve_pollfds(const struct fp_server *server, struct pollfd *ret_fds, uint64_t *ret_deadline_ns);

/* True while fetches are under way. Over a wire only. */
bool fp_serve_is_fetching(const struct fp_server *server);

#endif
