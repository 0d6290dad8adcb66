/* See levels.h. */
#include "levels.h"

#include <assert.h>
#include <stddef.h>

#include "cleanup.h"

#define EPOCHS_A_BUDGET 64u
#define LEVEL_BITS      2u
#define STAMPS          8191u /* a past has a stamp from 1 to STAMPS; 0: the page was never evicted */
#define MIN_EPOCH       4u    /* evictions */
#define K_ONE           8u
#define K_START         (2 * K_ONE)
#define K_MAX           (4 * K_ONE)
#define SOON_STEP       4u /* evictions */
#define SOON_MAX        EPOCHS_A_BUDGET
#define RETURN_EPOCHS   (EPOCHS_A_BUDGET / 4) /* for the choice of k, a return within these is soon */
#define REVIEW_EPOCHS   (EPOCHS_A_BUDGET / 8) /* k is reviewed so often */
#define PRIOR           8u                    /* evictions without a return, assumed at each review */

static_assert(LEVELS == 1u << LEVEL_BITS, "a past has room for the level");

void level_queue_init(struct level_queue *queue, uint32_t *next, uint64_t budget)
{
	*queue = (struct level_queue){.next = next, .k = K_START};
	queue->epoch_pages = (uint32_t)FP_MAX(budget / EPOCHS_A_BUDGET, (uint64_t)MIN_EPOCH);
	queue->epoch_left = queue->epoch_pages;
	queue->soon_pages = queue->epoch_pages * RETURN_EPOCHS;
}

/* ---- lists ---- */

static void append(struct level_queue *queue, struct level_list *list, uint32_t page)
{
	if (list->n == 0) {
		list->head = page;
		list->oldest = queue->epoch;
	} else {
		queue->next[list->tail] = page;
	}
	list->tail = page;
	list->n++;
	list->entered[queue->epoch % EPOCHS]++;
}

/* The epochs that have passed since the head of a list entered. The list is not empty. */
static uint64_t age(struct level_list *list, uint64_t epoch)
{
	while (list->entered[list->oldest % EPOCHS] == 0)
		list->oldest++;
	return epoch - list->oldest;
}

static uint32_t take_head(struct level_queue *queue, struct level_list *list)
{
	uint32_t page = list->head;

	list->entered[list->oldest % EPOCHS]--;
	if (--list->n > 0)
		list->head = queue->next[page];
	return page;
}

/*
 * The list whose head is to leave first, or NULL if all lists are empty. Ages are compared after
 * division by k for each list below their own. If they are equal, the lower list wins.
 */
static struct level_list *choose_list(struct level_queue *queue)
{
	const uint64_t k = queue->k;
	const uint64_t scale[LEVELS] = {k * k * k, k * k * K_ONE, k * K_ONE * K_ONE, K_ONE * K_ONE * K_ONE};
	struct level_list *best = NULL;
	uint64_t most = 0;

	for (unsigned i = 0; i < LEVELS; i++) {
		struct level_list *list = &queue->lists[i];
		uint64_t weight = list->n ? (age(list, queue->epoch) + 1) * scale[i] : 0;

		if (weight > most) {
			most = weight;
			best = list;
		}
	}
	return best;
}

/* ---- time ---- */

/* The entries of the epoch whose place in the array is needed now count for the epoch after it. */
static void fold_oldest(struct level_list *list, uint64_t epoch)
{
	uint32_t *entered = &list->entered[epoch % EPOCHS];

	list->entered[(epoch + 1) % EPOCHS] += *entered;
	*entered = 0;
	if (epoch + 1 > EPOCHS && list->oldest <= epoch - EPOCHS)
		list->oldest = epoch - EPOCHS + 1;
}

static void review_k(struct level_queue *queue)
{
	struct level_outcome *o = &queue->outcome;
	/* the shares of pages that returned soon, by one denominator */
	uint64_t low = (o->returned_soon[0] + 1ull) * (o->evicted[1] + PRIOR);
	uint64_t high = (o->returned_soon[1] + 1ull) * (o->evicted[0] + PRIOR);

	if (10 * high > 11 * low)
		queue->k = FP_MIN(queue->k + queue->k / 4, K_MAX);
	else if (10 * low > 11 * high)
		queue->k = FP_MAX(queue->k - queue->k / 5, K_ONE);
	for (unsigned i = 0; i < 2; i++) {
		o->evicted[i] -= o->evicted[i] / 4;
		o->returned_soon[i] -= o->returned_soon[i] / 4;
	}
}

static void count_eviction(struct level_queue *queue)
{
	if (--queue->epoch_left > 0)
		return;
	queue->epoch_left = queue->epoch_pages;
	queue->epoch++;
	for (unsigned i = 0; i < LEVELS; i++)
		fold_oldest(&queue->lists[i], queue->epoch);
	if (queue->epoch % REVIEW_EPOCHS == 0)
		review_k(queue);
}

/* ---- the past of a page ---- */

static uint32_t past_of(const struct level_queue *queue, unsigned level)
{
	return level | (uint32_t)(queue->epoch % STAMPS + 1) << LEVEL_BITS;
}

/* Chooses the list for a page that comes back, and learns from its return. */
static unsigned level_of(struct level_queue *queue, uint32_t past)
{
	uint32_t stamp = past >> LEVEL_BITS, level = past & (LEVELS - 1);
	uint32_t max = queue->epoch_pages * SOON_MAX;
	uint64_t epochs;

	if (stamp == 0)
		return 0;
	epochs = (queue->epoch + STAMPS + 1 - stamp) % STAMPS;
	queue->outcome.returned_soon[level > 0] += epochs <= RETURN_EPOCHS;
	if (epochs * queue->epoch_pages > queue->soon_pages) {
		queue->soon_pages = FP_MIN(queue->soon_pages + SOON_STEP, max);
		return level > 0 ? level - 1 : 0;
	}
	queue->soon_pages -= FP_MIN(queue->soon_pages, SOON_STEP);
	return FP_MIN(level + 1, LEVELS - 1);
}

/* ---- entries ---- */

void level_queue_push(struct level_queue *queue, uint32_t page, uint32_t past)
{
	append(queue, &queue->lists[level_of(queue, past)], page);
}

unsigned level_queue_pop(struct level_queue *queue, struct level_entry *ret_entries, unsigned max)
{
	struct level_list *list;
	unsigned n = 0;

	while (n < max && (list = choose_list(queue))) {
		unsigned level = (unsigned)(list - queue->lists);

		ret_entries[n].page = take_head(queue, list);
		ret_entries[n++].past = past_of(queue, level);
		queue->outcome.evicted[level > 0]++;
		count_eviction(queue);
	}
	return n;
}
