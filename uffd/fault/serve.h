/*
 * Serving faults: brings one fault to its end, on whichever thread. Room: uffd/fault. A server is
 * used by one thread at a time, which has all signals blocked. The server's memory was allocated
 * and locked before. Nothing here allocates or logs, or touches far memory except through
 * userfaultfd (law 4).
 */
#ifndef FP_SERVE_H
#define FP_SERVE_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "far.h"
#include "readahead.h"

#define FP_FETCHES     256u /* how many pages the fault thread can fetch at once */
#define FP_READ_FAULTS 16u  /* arrivals that read-ahead leaves free for faults */

struct fp_evictor;
struct fp_layout;

/* A page that the server is bringing in (state ARRIVING). */
struct fp_arrival {
	struct fp_page_io io; /* its slot, buffer and result */
	uint32_t page;
	bool zero; /* true: fill the page with zeros, do not fetch it */
	bool writable;
	bool demanded; /* true: a thread waits for it; false: it is read ahead */
	bool waited;   /* no token was free */
	enum fp_fault_kind kind;
	uint64_t begun_ns; /* when the fault's message was read */
	uint64_t sent_ns;  /* when its fetch was sent, or its copy began; 0: the copy is not timed */
	struct fp_arrival *next;
};

struct fp_server {
	struct fp_far *far;
	const struct fp_layout *layout; /* limits read-ahead; read without its lock */
	struct fp_lane *lane;           /* for pages that a thread waits for; NULL: all nodes are mapped */
	struct fp_lane *ahead;          /* for pages that are read ahead; NULL: all nodes are mapped */
	struct fp_evictor *evictor;     /* evicts where the fault is served; NULL: over a wire */
	struct fp_readahead readahead;
	unsigned n_copies;           /* pages that faults copied from mapped memory; it may wrap */
	struct fp_arrival *arrivals; /* an array of n_fetches */
	struct fp_arrival *free;
	char *bounce;                    /* n_fetches pages for fetched bytes; NULL: all nodes are mapped */
	struct fp_arrival *starved_head; /* arrivals that wait for a token, oldest first */
	struct fp_arrival **starved_tail;
	unsigned n_free, n_fetches;
};

struct fp_server_options {
	struct fp_far *far;
	const struct fp_layout *layout;
	struct fp_evictor *evictor; /* servers may share it; it must outlive them; NULL over a wire */
	unsigned readahead_pages;
	unsigned n_fetches; /* more than FP_READ_FAULTS, if read-ahead is wanted */
};

/*
 * Opens the lanes, buffers and arrivals of *server, which must be all zeros. Returns 0 or a
 * negative errno. Call fp_server_close in both cases.
 */
int fp_server_open(struct fp_server *server, const struct fp_server_options *options);
void fp_server_close(struct fp_server *server);

/*
 * Begins to serve a fault; now is the time at which its message was read. If all nodes are mapped,
 * the fault ends before the return, unless it must wait for a token (starved_head). At least one
 * arrival must be free.
 */
void fp_serve(struct fp_server *server, const struct fp_uffd_fault *fault, uint64_t now);

/*
 * Gives tokens to arrivals that wait for one, oldest first, and ends arrivals whose deadline has
 * passed. Stops at the first arrival that must wait longer.
 */
void fp_serve_starved(struct fp_server *server);

/*
 * Called over a wire only. Ends arrivals whose bytes have come: all arrivals that threads wait for,
 * and a limited number of pages read ahead. If the parameter once is true, looks at the lanes only
 * once. Returns how many arrivals were ended.
 */
unsigned fp_serve_reap(struct fp_server *server, bool once);

/*
 * Writes the descriptors to poll for answers, at most 2 * FP_STORE_MAX_NODES, and the time until
 * which to poll. Returns their number.
 */
unsigned fp_serve_pollfds(const struct fp_server *server, struct pollfd *ret_fds, uint64_t *ret_deadline_ns);

/* True while fetches are under way. Over a wire only. */
bool fp_serve_is_fetching(const struct fp_server *server);

#endif
