/*
 * Serving faults: brings one fault to its end, on whichever thread. Room: uffd/fault. A server is
 * used by one thread at a time, which has all signals blocked. Its memory was allocated and locked
 * before. Nothing here allocates or logs, or touches far memory except through userfaultfd (law 4).
 */
#ifndef FP_SERVE_H
#define FP_SERVE_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "far.h"
#include "readahead.h"

#define FP_FETCHES     256u /* pages being fetched at once by the fault thread */
#define FP_READ_FAULTS 16u  /* arrivals that read-ahead leaves free for faults */

struct fp_evictor;
struct fp_layout;

/* A page that the server has ARRIVING, and its progress. */
struct fp_arrival {
	struct fp_page_io io; /* slot, buf, status */
	uint32_t page;
	bool zero; /* fill it with zeros, do not fetch it */
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
	struct fp_lane *lane;           /* for pages that a thread waits for; NULL: direct */
	struct fp_lane *ahead;          /* for pages that are read ahead; NULL: direct */
	struct fp_evictor *evictor;     /* direct only: evicts here when reclaim fell behind */
	_Atomic bool *evict_turn;       /* true while a shared evictor is in use; NULL: it is not shared */
	struct fp_readahead readahead;
	struct fp_arrival *arrivals; /* n_fetches of them */
	struct fp_arrival *free;
	char *bounce;                    /* n_fetches pages; NULL: direct */
	struct fp_arrival *starved_head; /* arrivals that wait for a token, oldest first */
	struct fp_arrival **starved_tail;
	unsigned n_free, n_fetches;
};

struct fp_server_options {
	struct fp_far *far;
	const struct fp_layout *layout;
	char *stage;                /* for an evictor of the server's own: FP_STAGE_PAGES pages, or NULL */
	struct fp_evictor *evictor; /* without a stage: a shared evictor; direct only */
	_Atomic bool *evict_turn;   /* of the shared evictor */
	unsigned readahead_pages;
	unsigned n_fetches; /* more than FP_READ_FAULTS, if read-ahead is wanted */
};

/* Opens *server, which is zeroed: lanes, buffers, arrivals. 0 or a negative errno; fp_server_close
 * in any case. */
int fp_server_open(struct fp_server *server, const struct fp_server_options *options);
void fp_server_close(struct fp_server *server);

/*
 * Begins to serve a fault whose message was read at now. Where the store is direct, the fault ends
 * before the return, unless it must wait for a token (starved_head). At least one arrival must be
 * free.
 */
void fp_serve(struct fp_server *server, const struct fp_uffd_fault *fault, uint64_t now);

/* Continues with arrivals that wait for a token. As far as possible now, each gets one, or ends at
 * its deadline. */
void fp_serve_starved(struct fp_server *server);

/*
 * Over a wire: ends arrivals whose bytes are in: all that threads wait for, and a bounded number of
 * pages read ahead. once: only those that one look at the lanes finds. Returns how many.
 */
unsigned fp_serve_reap(struct fp_server *server, bool once);

/* The descriptors to poll for answers, at most 2 * FP_STORE_MAX_NODES, and until when. Returns
 * their number. */
unsigned fp_serve_pollfds(const struct fp_server *server, struct pollfd *ret_fds, uint64_t *ret_deadline_ns);

/* True while fetches are under way. Over a wire only. */
bool fp_serve_is_fetching(const struct fp_server *server);

#endif
