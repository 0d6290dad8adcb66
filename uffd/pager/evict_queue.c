/* See evict_queue.h. */
#include "evict_queue.h"

#include <stddef.h>

#include "cleanup.h"

static uint64_t round_up_pow2(uint64_t n)
{
	uint64_t p = 1024;

	while (p < n)
		p *= 2;
	return p;
}

void fp_evict_queue_init(struct fp_evict_queue *queue, uint32_t *items, uint64_t room)
{
	*queue = (struct fp_evict_queue){.items = items, .capacity = round_up_pow2(0), .room = room};
	pthread_mutex_init(&queue->lock, NULL);
}

void fp_evict_queue_done(struct fp_evict_queue *queue)
{
	queue->items = NULL;
	pthread_mutex_destroy(&queue->lock);
}

void fp_evict_queue_grow(struct fp_evict_queue *queue, uint64_t capacity)
{
	capacity = round_up_pow2(capacity);
	pthread_mutex_lock(&queue->lock);
	capacity = FP_MIN(capacity, queue->room);
	if (capacity > queue->capacity) {
		/* an entry keeps its place, or gets one beyond the old ring */
		for (uint64_t i = queue->head; i != queue->tail; i++)
			queue->items[i & (capacity - 1)] = queue->items[i & (queue->capacity - 1)];
		queue->capacity = capacity;
	}
	pthread_mutex_unlock(&queue->lock);
}

uint64_t fp_evict_queue_trim(struct fp_evict_queue *queue, uint64_t n)
{
	n = round_up_pow2(n);
	pthread_mutex_lock(&queue->lock);
	queue->room = FP_MIN(FP_MAX(n, queue->capacity), queue->room);
	n = queue->room;
	pthread_mutex_unlock(&queue->lock);
	return n;
}

bool fp_evict_queue_push(struct fp_evict_queue *queue, uint32_t page)
{
	bool fits;

	pthread_mutex_lock(&queue->lock);
	fits = queue->tail - queue->head < queue->capacity;
	if (fits)
		queue->items[queue->tail++ & (queue->capacity - 1)] = page;
	pthread_mutex_unlock(&queue->lock);
	return fits;
}

unsigned fp_evict_queue_pop(struct fp_evict_queue *queue, uint32_t *ret_pages, unsigned max)
{
	unsigned n = 0;

	pthread_mutex_lock(&queue->lock);
	while (n < max && queue->head != queue->tail)
		ret_pages[n++] = queue->items[queue->head++ & (queue->capacity - 1)];
	pthread_mutex_unlock(&queue->lock);
	return n;
}

uint64_t fp_evict_queue_len(struct fp_evict_queue *queue)
{
	uint64_t len;

	pthread_mutex_lock(&queue->lock);
	len = queue->tail - queue->head;
	pthread_mutex_unlock(&queue->lock);
	return len;
}
