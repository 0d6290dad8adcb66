/*
 * A transport over plain memory whose nodes behave as a test says: slow, full, out of order,
 * silent, cut off, or dead from the Nth call on. Room: test; unit tests of the store only. Several
 * threads may call it. A test with threads changes the behaviour only through the functions below.
 *
 * All processes of a test see the same nodes, so a fork's child talks to its parent's. A node sees
 * a connection end when its last copy is closed, however its holders ended (fake_reap).
 *
 * It is a bad companion on purpose. Bytes move when an io completes, not when it is submitted. An
 * io that fails scribbles over what the contract leaves undefined, until nothing may land any more.
 * Submitting an io that another link still has fails an assertion.
 */
#ifndef FP_FAKETRANSPORT_H
#define FP_FAKETRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "transport.h"

#define FAKE_NODES 4

#define FAKE_LINK_WHY "the cable is out" /* why a link or a session that was cut broke */

enum fake_order { FAKE_FIFO, FAKE_LIFO, FAKE_RANDOM };

struct fake_node {
	/* behaviour; the test changes it whenever it likes */
	uint64_t capacity_bytes;
	uint64_t quota_bytes; /* 0: none */
	unsigned link_depth;  /* ios a link takes before it says -EAGAIN; 0: any number */
	unsigned completions; /* ios that one poll of a link completes; 0: all */
	enum fake_order order;
	bool silent;            /* ios end by their deadline alone */
	bool dead;              /* every call fails, and so does every io outstanding */
	bool resumable;         /* its sessions have an identity, and can be adopted */
	unsigned adopt_errors;  /* so many adoptions fail first, with -ECONNREFUSED */
	bool forgetful;         /* every resume is answered by -ESTALE */
	unsigned resume_errors; /* so many resumes fail first */
	int resume_error;       /* with this; 0: -ECONNREFUSED */
	uint64_t grace_ns, idle_ns;
	unsigned closed_ways; /* bit fake_way(...): sessions do not open by that way */
	int closed_error;     /* but fail with this; 0: -EHOSTUNREACH */
	/* what happened */
	unsigned n_sessions, n_links, n_leases; /* a lease that is adopted counts once */
	uint64_t leased_bytes, leased_peak_bytes;
	unsigned n_ios;  /* submitted */
	unsigned n_segs; /* of all of them */
	unsigned n_resumes, n_resume_attempts, n_attaches, n_pings, n_registered, n_adoptions;
	unsigned n_denied; /* writes to what is adopted */
};

extern struct fake_node *fake_nodes; /* FAKE_NODES of them */

/* Forgets everything: healthy nodes of 1 GiB. Sessions must be closed, by this process and all
 * others. */
void fake_reset(uint64_t seed);

/*
 * Looks whose connections have ended. A session ends with its connection, as that of a process that
 * was killed, unless it was abandoned or cut off: then fake_grace_over ends it. Each control call
 * does so first.
 */
void fake_reap(void);
/* Ends the sessions of a node that have no connection. */
void fake_grace_over(unsigned node_idx);
/* How many sessions the node has, with or without a connection. */
unsigned fake_n_standings(unsigned node_idx);

/*
 * From now on the Nth call (control or submit, over all nodes, 1 is the next one) fails with error;
 * if that breaks a link, the node is dead from there on, or, if it is resumable, all its sessions
 * are cut off. 0: never.
 */
void fake_fail_nth(unsigned nth, int error);
/* Whether that call has come. */
bool fake_failed(void);

/* Breaks all sessions that a node has now. A session that is resumed is whole again. */
enum fake_break {
	FAKE_CUT,    /* their calls fail, their ios end with -ECONNRESET */
	FAKE_FREEZE, /* as when a cable is cut: nobody answers, not even when the session is resumed
	                elsewhere: ios end by their deadline, calls time out (at once) */
};
void fake_break(unsigned node_idx, enum fake_break how);
/* The same for the sessions by some ways, which are closed, too. */
void fake_close_ways(unsigned node_idx, unsigned ways);

/* The URL of a node, reached by requests or by load and store. */
struct fp_url fake_url(unsigned node_idx, bool load_store);

/* Two ways to ask a node, "fake" and "fakeslow", and up to four addresses. */
#define FAKE_ADDRESSES 4
static inline unsigned fake_way(unsigned transport, unsigned address)
{
	return 1u << (transport * FAKE_ADDRESSES + address);
}
struct fp_url_set fake_ways(unsigned node_idx, unsigned n_transports, unsigned n_addresses);

#endif
