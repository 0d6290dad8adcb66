/*
 * Counts what the node refuses, by cause, and logs it: one line for each cause in ten seconds.
 * Room: daemon. The main loop uses it, and so do shards. It reads the counts while these stand
 * still.
 */
#ifndef FP_REFUSAL_COUNTS_H
#define FP_REFUSAL_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

#include "client.h"
#include "refusal.h"

/* Of one cause. */
struct fp_refusal_count {
	uint64_t n;
	uint64_t last_ns;
	char last_client[FP_CLIENT_NAME_LEN];
	uint64_t logged_ns; /* when its last line was written; 0: never */
	uint64_t logged_n;  /* n at that time */
};

/* Zero-initialised, it is empty. */
struct fp_refusal_counts {
	struct fp_refusal_count causes[FP_REFUSAL_CAUSES];
};

/* Counts a refusal at the time now_ns. client is the name of the client that was refused. */
void fp_refusal_counts_add(struct fp_refusal_counts *refusals, enum fp_refusal_cause cause,
                           const char *client, uint64_t now_ns);

/*
 * Returns true if the caller must log the refusal that it has just counted. Then the cause's next
 * line is due ten seconds later, and *ret_untold says how many refusals of the cause were counted
 * since its last line, without this one. Returns false if the last line is too recent.
 */
bool fp_refusal_counts_due(struct fp_refusal_counts *refusals, enum fp_refusal_cause cause, uint64_t now_ns,
                           uint64_t *ret_untold);

#endif
