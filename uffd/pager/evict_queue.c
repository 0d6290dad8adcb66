/* See evict_queue.h. The ring is mapped, not malloc'd: it is on the fault path (law 4). */
#include "evict_queue.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#include "cleanup.h"

static uint64_t round_up_pow2(uint64_t n)
{
	uint64_t p = 1024;

	while (p < n)
		p *= 2;
	return p;
}

int fp_evict_queue_init(struct fp_evict_queue *queue, uint64_t capacity)
{
	*queue = (struct fp_evict_queue){.items = NULL};
	pthread_mutex_init(&queue->lock, NULL);
	return fp_evict_queue_reserve(queue, capacity);
}

static void unmap_items(uint32_t *items, uint64_t capacity)
{
	if (items)
		munmap(items, capacity * sizeof(*items));
}

void fp_evict_queue_done(struct fp_evict_queue *queue)
{
	unmap_items(queue->items, queue->capacity);
	queue->items = NULL;
	pthread_mutex_destroy(&queue->lock);
}

int fp_evict_queue_reserve(struct fp_evict_queue *queue, uint64_t capacity)
{
	uint32_t *items, *old;
	uint64_t old_capacity;

	capacity = round_up_pow2(capacity);
	if (capacity <= queue->capacity)
		return 0;
	items = mmap(NULL, capacity * sizeof(*items), PROT_READ | PROT_WRITE,
	             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (items == MAP_FAILED)
		return -ENOMEM;
	pthread_mutex_lock(&queue->lock);
	old = queue->items;
	old_capacity = queue->capacity;
	for (uint64_t i = queue->head; i != queue->tail; i++)
		items[i & (capacity - 1)] = old[i & (old_capacity - 1)];
	queue->items = items;
	queue->capacity = capacity;
	pthread_mutex_unlock(&queue->lock);
	unmap_items(old, old_capacity);
	return 0;
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
