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

int fp_evict_queue_init(struct fp_evict_queue *fifo, uint64_t capacity)
{
	*fifo = (struct fp_evict_queue){.items = NULL};
	pthread_mutex_init(&fifo->lock, NULL);
	return fp_evict_queue_reserve(fifo, capacity);
}

static void unmap_items(uint32_t *items, uint64_t capacity)
{
	if (items)
		munmap(items, capacity * sizeof(*items));
}

void fp_evict_queue_done(struct fp_evict_queue *fifo)
{
	unmap_items(fifo->items, fifo->capacity);
	fifo->items = NULL;
	pthread_mutex_destroy(&fifo->lock);
}

int fp_evict_queue_reserve(struct fp_evict_queue *fifo, uint64_t capacity)
{
	uint32_t *items, *old;
	uint64_t old_capacity;

	capacity = round_up_pow2(capacity);
	if (capacity <= fifo->capacity)
		return 0;
	items = mmap(NULL, capacity * sizeof(*items), PROT_READ | PROT_WRITE,
	             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (items == MAP_FAILED)
		return -ENOMEM;
	pthread_mutex_lock(&fifo->lock);
	old = fifo->items;
	old_capacity = fifo->capacity;
	for (uint64_t i = fifo->head; i != fifo->tail; i++)
		items[i & (capacity - 1)] = old[i & (old_capacity - 1)];
	fifo->items = items;
	fifo->capacity = capacity;
	pthread_mutex_unlock(&fifo->lock);
	unmap_items(old, old_capacity);
	return 0;
}

bool fp_evict_queue_push(struct fp_evict_queue *fifo, uint32_t page)
{
	bool fits;

	pthread_mutex_lock(&fifo->lock);
	fits = fifo->tail - fifo->head < fifo->capacity;
	if (fits)
		fifo->items[fifo->tail++ & (fifo->capacity - 1)] = page;
	pthread_mutex_unlock(&fifo->lock);
	return fits;
}

unsigned fp_evict_queue_pop(struct fp_evict_queue *fifo, uint32_t *ret_pages, unsigned max)
{
	unsigned n = 0;

	pthread_mutex_lock(&fifo->lock);
	while (n < max && fifo->head != fifo->tail)
		ret_pages[n++] = fifo->items[fifo->head++ & (fifo->capacity - 1)];
	pthread_mutex_unlock(&fifo->lock);
	return n;
}

uint64_t fp_evict_queue_len(struct fp_evict_queue *fifo)
{
	uint64_t len;

	pthread_mutex_lock(&fifo->lock);
	len = fifo->tail - fifo->head;
	pthread_mutex_unlock(&fifo->lock);
	return len;
}
