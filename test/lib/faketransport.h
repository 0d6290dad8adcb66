/*
 * A transport over plain memory. Its nodes behave as a test says: slow, full, out of order, silent,
 * cut off, or dead from the Nth call on. Room: test/lib; only for the store's unit tests. Several
 * threads may call it. A test that has threads may change the nodes' behaviour only by the
 * functions below.
 *
 * All processes of a test see the same nodes, so a forked child talks to its parent's nodes. After
 * a fork, parent and child each have a copy of a connection. A node sees the connection's end when
 * the last copy is closed, or its process has ended (fake_reap).
 *
 * It is strict on purpose. Bytes move when an io completes, not when it is submitted. A failed io
 * overwrites the bytes that the contract leaves undefined, as late as the contract allows. An
 * assertion fails if somebody submits an io that another link still has.
 */
#ifndef FP_FAKETRANSPORT_H
#define FP_FAKETRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "transport.h"

#define FAKE_NODES 4

#define FAKE_LINK_WHY "the cable is out" /* the reason that a cut link or session gives */

enum fake_order { FAKE_FIFO, FAKE_LIFO, FAKE_RANDOM };

struct fake_node {
	/* The behaviour, which the test may change at any time. */
	uint64_t capacity_bytes;
	uint64_t quota_bytes; /* 0: none */
	unsigned max_leases;  /* of one session; 0: any number */
	unsigned link_depth;  /* ios that a link takes before it returns -EAGAIN; 0: any number */
	unsigned completions; /* ios that one poll of a link completes; 0: all */
	enum fake_order order;
	bool silent;            /* ios end only by their deadline */
	bool dead;              /* every call fails, and every outstanding io too */
	bool resumable;         /* its sessions can be resumed, and their leases adopted */
	unsigned adopt_errors;  /* so many adoptions fail first, with -ECONNREFUSED */
	bool forgetful;         /* every resume fails with -ESTALE */
	unsigned resume_errors; /* so many resumes fail first, with resume_error */
	int resume_error;       /* 0: -ECONNREFUSED */
	uint64_t grace_ns, idle_ns;
	unsigned closed_ways; /* if bit fake_way(...) is set, no session opens by that way */
	int closed_error;     /* error of opening by a closed way; 0: -EHOSTUNREACH */
	/* counters */
	unsigned n_sessions, n_links, n_leases; /* an adopted lease counts once */
	uint64_t leased_bytes, leased_peak_bytes;
	unsigned n_ios;  /* ios submitted */
	unsigned n_segs; /* segments of all ios */
	unsigned n_resumes, n_resume_attempts, n_attaches, n_pings, n_registered, n_adoptions;
	unsigned n_denied; /* writes to adopted leases */
};

extern struct fake_node *fake_nodes; /* an array of FAKE_NODES */

/*
 * Resets everything: afterwards all nodes are healthy and have 1 GiB. All processes must have
 * closed their sessions.
 */
void fake_reset(uint64_t seed);

/*
 * Finds connections that have ended, and ends their sessions: so a killed process loses its
 * session. A session that was abandoned or cut off stays until fake_grace_over ends it. Each
 * control call begins with this.
 */
void fake_reap(void);
/* Ends all sessions of a node that have no connection. */
void fake_grace_over(unsigned node_idx);
/* The number of the node's sessions, with or without a connection. */
unsigned fake_n_standings(unsigned node_idx);

/*
 * Makes one of the next calls fail with error. nth 1 means the next call, and 0 means none. A call
 * is a control call or a submit. Calls to all nodes count. If the failure breaks a link, the node
 * is dead from then on. A resumable node instead cuts off all its sessions.
 */
void fake_fail_nth(unsigned nth, int error);
/* True if the call that was told to fail has been made. */
bool fake_failed(void);

/* The ways to break all present sessions of a node. A session that is resumed works again. */
enum fake_break {
	FAKE_CUT, /* their calls fail, their ios end with -ECONNRESET */
	/*
	 * Like a pulled cable: nothing is answered, not even when a session is resumed over another
	 * transport. Each io fails when its deadline passes; calls time out at once.
	 */
	FAKE_FREEZE,
};
void fake_break(unsigned node_idx, enum fake_break how);
/* Breaks the sessions that use one of the ways, and closes these ways. */
void fake_close_ways(unsigned node_idx, unsigned ways);

/* A node's URL: for access by requests, or by load and store. */
struct fp_url fake_url(unsigned node_idx, bool load_store);

/* A node has two transports, "fake" and "fakeslow", and up to four addresses. */
#define FAKE_ADDRESSES 4
static inline unsigned fake_way(unsigned transport, unsigned address)
{
	return 1u << (transport * FAKE_ADDRESSES + address);
}
struct fp_url_set fake_ways(unsigned node_idx, unsigned n_transports, unsigned n_addresses);

#endif
