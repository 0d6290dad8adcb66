/*
 * Counts refusals. Room: daemon; see refusal_counts.h.
 */
#include "refusal_counts.h"

#include <pthread.h>
#include <stdio.h>

#include "clock.h"

#define PAUSE_NS (10 * FP_NSEC_PER_SEC)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* among shards */

void fp_refusal_counts_add(struct fp_refusal_counts *refusals, enum fp_refusal_cause cause,
                           const char *client, uint64_t now_ns)
{
	struct fp_refusal_count *count = &refusals->causes[cause];

	pthread_mutex_lock(&lock);
	count->n++;
	count->last_ns = now_ns;
	snprintf(count->last_client, sizeof(count->last_client), "%s", client);
	pthread_mutex_unlock(&lock);
}

bool fp_refusal_counts_due(struct fp_refusal_counts *refusals, enum fp_refusal_cause cause, uint64_t now_ns,
                           uint64_t *ret_untold)
{
	struct fp_refusal_count *count = &refusals->causes[cause];
	bool due;

	pthread_mutex_lock(&lock);
	/* another shard may have logged at a later time already */
	due = !count->logged_ns || now_ns >= count->logged_ns + PAUSE_NS;
	if (due) {
		*ret_untold = count->n - count->logged_n - 1;
		count->logged_ns = now_ns;
		count->logged_n = count->n;
	}
	pthread_mutex_unlock(&lock);
	return due;
}
