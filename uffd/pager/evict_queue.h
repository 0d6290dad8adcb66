/*
 * The eviction queue: page numbers in the order in which they became resident. To evict in another
 * order, replace this module. Room: uffd/pager. Its lock is held for a few instructions, only by
 * agent code: the program's threads block signals first.
 */
#ifndef FP_EVICT_QUEUE_H
#define FP_EVICT_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct fp_evict_queue {
	pthread_mutex_t lock;
	uint32_t *items;
	uint64_t capacity; /* a power of two */
	uint64_t head, tail;
};

int fp_evict_queue_init(struct fp_evict_queue *queue, uint64_t capacity);
void fp_evict_queue_done(struct fp_evict_queue *queue);
/* Grows the queue to at least capacity entries. 0 or -ENOMEM. Control threads. */
int fp_evict_queue_reserve(struct fp_evict_queue *queue, uint64_t capacity);
/* False if the queue is full. */
bool fp_evict_queue_push(struct fp_evict_queue *queue, uint32_t page);
/* Takes up to max of the oldest entries and returns their number. */
unsigned fp_evict_queue_pop(struct fp_evict_queue *queue, uint32_t *ret_pages, unsigned max);
uint64_t fp_evict_queue_len(struct fp_evict_queue *queue);

#endif
