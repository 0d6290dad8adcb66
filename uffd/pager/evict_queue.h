/*
 * The eviction queue: page numbers in the order in which they became resident. To evict in another
 * order, replace this module. Room: uffd/pager.
 *
 * Only agent code takes the queue's lock, for a few instructions or while the queue grows; the
 * program's threads block signals first. The caller gives the queue memory for the highest number
 * of entries. The queue touches only as much of it as its present capacity needs. So it can grow on
 * the fault path, which must not allocate (law 4).
 */
#ifndef FP_EVICT_QUEUE_H
#define FP_EVICT_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct fp_evict_queue {
	pthread_mutex_t lock;
	uint32_t *items;
	uint64_t capacity; /* size in entries; a power of two */
	uint64_t room;     /* the greatest capacity that the array permits */
	uint64_t head, tail;
};

/*
 * The array items is zeroed memory for as many entries as the parameter room says. That number is a
 * power of two from 1024 on.
 */
void fp_evict_queue_init(struct fp_evict_queue *queue, uint32_t *items, uint64_t room);
void fp_evict_queue_done(struct fp_evict_queue *queue);
/* Grows the queue to capacity entries or more, but no further than its room. */
void fp_evict_queue_grow(struct fp_evict_queue *queue, uint64_t capacity);
/*
 * Lowers the room to n entries or more, but not below the present capacity. Returns the new room.
 */
uint64_t fp_evict_queue_trim(struct fp_evict_queue *queue, uint64_t n);
/* False if the queue is full. */
bool fp_evict_queue_push(struct fp_evict_queue *queue, uint32_t page);
/* Takes up to max of the oldest entries and returns their number. */
unsigned fp_evict_queue_pop(struct fp_evict_queue *queue, uint32_t *ret_pages, unsigned max);
uint64_t fp_evict_queue_len(struct fp_evict_queue *queue);

#endif
