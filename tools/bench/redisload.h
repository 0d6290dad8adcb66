/*
 * A small client that puts load on a redis-server over a UNIX socket. Room: tools/bench. It checks
 * the form of each answer.
 */
#ifndef FP_REDISLOAD_H
#define FP_REDISLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "zipf.h"

/* The owner of a connection uses it from one thread. */
struct fp_redisload {
	int fd;
	uint64_t n_keys, rng;
	uint64_t checksum; /* of all values that were read */
	struct fp_zipf zipf;
	/* bytes of answers that are not used yet */
	char in[1 << 16];
	unsigned in_at, in_end;
};

/* Memory of the server for each key, about. */
#define FP_REDISLOAD_KEY_BYTES 1128

/*
 * Connects. n_keys: at least 2. 0; -EAGAIN if no server listens there yet, or another negative
 * errno. Release with fp_redisload_close.
 */
int fp_redisload_open(struct fp_redisload *load, const char *path, uint64_t n_keys, uint64_t seed);

/* Sets each key once. 0, or a negative errno: -EPROTO for a wrong answer. */
int fp_redisload_fill(struct fp_redisload *load);

/*
 * Gets keys by Zipf's distribution, and sets a tenth of them, two operations for each key in all.
 * 0, or a negative errno as above.
 */
int fp_redisload_run(struct fp_redisload *load);

/* Asks the server to end, and closes the connection. */
void fp_redisload_close(struct fp_redisload *load);

#endif
