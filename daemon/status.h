/*
 * The node's state as JSON, for `farpage node status`, and as a line for systemd. Room: daemon.
 */
#ifndef FP_STATUS_H
#define FP_STATUS_H

#include <stddef.h>
#include <stdint.h>

struct fp_client;
struct fp_node_server;

/* The newest text. Zero-initialised, there is none. */
struct fp_status_recent {
	char *text; /* malloc'd */
	size_t len;
	uint64_t state;  /* a hash of what requests had done when it was made */
	uint64_t n_acts; /* requests on control connections so far that may have changed the state */
	uint64_t period; /* the number of the present period */
	unsigned n;      /* texts made in it */
};

/*
 * The text for a STATUS of the client. Making one takes longer than anything else that a client may
 * ask, and with shards all links wait for it. So after 20 texts in 100 ms, askers get the newest
 * one again, as long as nothing has changed: no answer is older than what its asker has done. Only
 * counters of READs and WRITEs, and times, may be older. A client for which 2 MiB were made in this
 * time gets the newest one in any case. 0; *ret_text belongs to the server, until the next call;
 * *ret_made is 1 if it was made now. Errors: as of fp_status_json.
 */
int fp_status_recent(struct fp_node_server *server, struct fp_client *client, const char **ret_text,
                     size_t *ret_len, int *ret_made);

/*
 * One JSON object of at most FP_WIRE_MAX_STATUS bytes: if there are more sessions than fit,
 * sessions_omitted says how many. Sessions of operators are counted alone. 0 and *ret_text
 * (malloc'd, the caller's); -ENOMEM; -EREMOTEIO: the object is longer than a message may be.
 */
int fp_status_json(struct fp_node_server *server, char **ret_text, size_t *ret_len);

/*
 * Writes the node's state as one line: "2 sessions hold 3 leases, 192.0 MiB of 8.0 GiB". Returns
 * buf.
 */
const char *fp_status_line(struct fp_node_server *server, char *buf, size_t len);

#endif
