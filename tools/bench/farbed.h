/*
 * A bed for a bench: one far memory over one way to a node, and one mapping in it whose pages can
 * be sent away. Room: tools; far memory only through the public API.
 */
#ifndef FP_FARBED_H
#define FP_FARBED_H

#include <stddef.h>
#include <stdint.h>

#include "farpage/farpage.h"

struct fp_farbed;

struct fp_farbed_options {
	const char *way; /* "shm" or "tcp": over a private node; else the URL of a node that is there */
	const struct fp_farbed
	    *beside;        /* uses that one's private node, which must outlive this; NULL: its own */
	const char *dir;    /* for the private node's socket */
	const char *secret; /* of a node that is there; NULL: none */
	uint64_t map_bytes;
	uint64_t local_bytes;
	uint32_t readahead_pages; /* as struct far_options */
	uint32_t fault_mode;      /* the same */
};

/* 0 and *ret_bed; else a negative errno and a text in error. Release with fp_farbed_close. */
int fp_farbed_open(const struct fp_farbed_options *options, char *error, size_t error_len,
                   struct fp_farbed **ret_bed);

void *fp_farbed_memory(const struct fp_farbed *bed);

/* Sends every page of the mapping to the node. 0, or -EBUSY if some stay in spite of several
 * attempts. */
int fp_farbed_push_out(struct fp_farbed *bed);

/*
 * Bytes fetched so far. A fault is counted after the thread that touched was woken: if expected
 * bytes are not there yet, waits for the last ones, for at most a second.
 */
uint64_t fp_farbed_fetched(const struct fp_farbed *bed, uint64_t expected);

/* What the library has counted. Waits until that stands still, for at most a second, for the same
 * reason. */
struct far_stats fp_farbed_stats(const struct fp_farbed *bed);

/* NULL is fine. */
void fp_farbed_close(struct fp_farbed *bed);

#endif
