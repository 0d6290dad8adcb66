/*
 * A bed for `farpage bench link`: one session, one lease and one link to a node, and a buffer. It
 * runs cells. A cell keeps requests of one kind and size under way for a while. Room: tools/bench.
 * It reaches the node through the transport interface, without pages and faults.
 */
#ifndef FP_LINKBED_H
#define FP_LINKBED_H

#include <stddef.h>
#include <stdint.h>

#include "transport.h"

struct fp_linkbed;

#define FP_LINKBED_MAX_DEPTH 256u

struct fp_linkbed_options {
	const char *url;
	const char *secret;        /* NULL: none */
	enum fp_protocol protocol; /* of rdma */
	uint64_t seed;             /* of all contents */
	uint64_t spin_ns;          /* how long to poll for completions before sleeping; 0: sleep at once */
	size_t buffer_bytes;       /* enough for the largest cell: its depth times the bytes of a request */
};

enum fp_linkbed_op {
	FP_LINKBED_READ,
	FP_LINKBED_WRITE,
	FP_LINKBED_RPC, /* a call that carries the same bytes there and back; one at a time */
};

struct fp_linkbed_cell {
	enum fp_linkbed_op op;
	unsigned n_segs;    /* segments of one request; RPC: 1 */
	uint32_t seg_bytes; /* a multiple of 8; RPC: 0 to FP_PING_MAX_BYTES */
	unsigned depth;     /* requests under way at once; RPC: 1 */
	uint64_t duration_ns;
};

struct fp_linkbed_result {
	uint64_t requests;
	/* At depth 1 the sum of all latencies. Else the time from the first request to the last. */
	uint64_t elapsed_ns;
	uint64_t min_ns, p50_ns, p99_ns, p999_ns; /* of one request, from submission to completion */
	unsigned in_flight;                       /* the depth that the link allowed, at most the cell's */
};

/* 0 and *ret_bed; else a negative errno and a text in error. Release with fp_linkbed_close. */
int fp_linkbed_open(const struct fp_linkbed_options *options, char *error, size_t error_len,
                    struct fp_linkbed **ret_bed);

/* The transport to the node: "shm", "tcp" or "rdma". */
const char *fp_linkbed_transport(const struct fp_linkbed *bed);

/* Bytes of one request of this cell. */
size_t fp_linkbed_request_bytes(const struct fp_linkbed_cell *cell);

/*
 * Runs a cell, then checks the bytes that it moved, outside of the timed part. At depth 1 it checks
 * every READ; at other depths the last READ of each buffer. It reads the last 256 WRITEs back. 0
 * and *ret_result; -EBADMSG: wrong bytes; else the error that broke the link.
 */
int fp_linkbed_run(struct fp_linkbed *bed, const struct fp_linkbed_cell *cell,
                   struct fp_linkbed_result *ret_result);

/* NULL is fine. */
void fp_linkbed_close(struct fp_linkbed *bed);

#endif
