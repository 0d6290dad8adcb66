/*
 * The refusal that a session met last. Its lock is held for a moment only, so whoever reads it
 * waits for no call to the node. Any thread may call these functions. Room: transport.
 */
#ifndef FP_KEPT_REFUSAL_H
#define FP_KEPT_REFUSAL_H

#include <pthread.h>

#include "refusal.h"

struct fp_kept_refusal {
	pthread_mutex_t lock; /* taken after all others */
	struct fp_refusal refusal;
};

static inline void fp_kept_refusal_init(struct fp_kept_refusal *kept)
{
	pthread_mutex_init(&kept->lock, NULL);
	kept->refusal = (struct fp_refusal){.cause = FP_REFUSAL_NONE};
}

static inline void fp_kept_refusal_done(struct fp_kept_refusal *kept)
{
	pthread_mutex_destroy(&kept->lock);
}

static inline void fp_kept_refusal_set(struct fp_kept_refusal *kept, const struct fp_refusal *refusal)
{
	pthread_mutex_lock(&kept->lock);
	kept->refusal = *refusal;
	pthread_mutex_unlock(&kept->lock);
}

static inline void fp_kept_refusal_get(struct fp_kept_refusal *kept, struct fp_refusal *ret_refusal)
{
	pthread_mutex_lock(&kept->lock);
	*ret_refusal = kept->refusal;
	pthread_mutex_unlock(&kept->lock);
}

#endif
