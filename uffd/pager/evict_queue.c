/* See evict_queue.h. */
#include "evict_queue.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "cleanup.h"

#define EPOCHS_A_BUDGET 64u
#define LEVEL_BITS      2u
#define STAMPS          8191u /* a past has a stamp from 1 to STAMPS; 0: the page was never evicted */
#define MIN_EPOCH       4u    /* evictions */
#define SMALL_BUDGET    512u  /* pages */
#define SAFE_EPOCHS     (EPOCHS_A_BUDGET / 16)
#define K_ONE           8u
#define K_START         (2 * K_ONE)
#define K_MAX           (4 * K_ONE)
#define SOON_STEP       4u /* evictions */
#define SOON_MAX        EPOCHS_A_BUDGET
#define RETURN_EPOCHS   (EPOCHS_A_BUDGET / 4) /* for the choice of k, a return within these is soon */
#define REVIEW_EPOCHS   (EPOCHS_A_BUDGET / 8) /* k is reviewed so often */
#define PRIOR           8u                    /* evictions without a return, assumed at each review */
#define ENTRY           (1u << 31)            /* in the array: the page has an entry */

static_assert(FP_EVICT_LEVELS == 1u << LEVEL_BITS, "a past has room for the level");
static_assert(STAMPS + 1 == 1u << (FP_EVICT_PAST_BITS - LEVEL_BITS), "and for the stamp");

/* The inbox of the calling thread, plus one; 0: it has none yet. */
static __thread unsigned own_inbox __attribute__((tls_model("initial-exec")));
static _Atomic unsigned n_owners;

/* ---- life ---- */

static void init_locks(struct fp_evict_queue *queue)
{
	/* plain mutexes: an adaptive one reads the time stamp counter, which PR_SET_TSC may
	 * forbid */
	pthread_mutex_init(&queue->lock, NULL);
	for (unsigned i = 0; i < FP_EVICT_INBOXES; i++)
		pthread_mutex_init(&queue->inboxes[i].lock, NULL);
}

void fp_evict_queue_init(struct fp_evict_queue *queue, uint32_t *next)
{
	*queue = (struct fp_evict_queue){.next = next, .k = K_START};
	init_locks(queue);
	fp_evict_queue_set_budget(queue, 0);
	queue->epoch_left = queue->epoch_pages;
}

void fp_evict_queue_done(struct fp_evict_queue *queue)
{
	queue->next = NULL;
	for (unsigned i = 0; i < FP_EVICT_INBOXES; i++)
		pthread_mutex_destroy(&queue->inboxes[i].lock);
	pthread_mutex_destroy(&queue->lock);
}

void fp_evict_queue_set_budget(struct fp_evict_queue *queue, uint64_t pages)
{
	uint32_t epoch_pages = (uint32_t)FP_MIN(FP_MAX(pages / EPOCHS_A_BUDGET, (uint64_t)MIN_EPOCH),
	                                        (uint64_t)(UINT32_MAX / SOON_MAX));

	pthread_mutex_lock(&queue->lock);
	queue->is_small = pages < SMALL_BUDGET;
	if (queue->epoch_pages != epoch_pages)
		queue->soon_pages = epoch_pages * RETURN_EPOCHS;
	queue->epoch_pages = epoch_pages;
	queue->epoch_left = FP_MIN(queue->epoch_left, epoch_pages);
	pthread_mutex_unlock(&queue->lock);
}

/* ---- lists ---- */

static void append(struct fp_evict_queue *queue, struct fp_evict_list *list, uint32_t page)
{
	if (list->n == 0) {
		list->head = page;
		list->oldest = queue->epoch;
	} else {
		queue->next[list->tail] = ENTRY | page;
	}
	queue->next[page] = ENTRY;
	list->tail = page;
	list->n++;
	list->entered[queue->epoch % FP_EVICT_EPOCHS]++;
}

static uint32_t remove_head(struct fp_evict_queue *queue, struct fp_evict_list *list)
{
	uint32_t page = list->head;

	list->head = queue->next[page] & ~ENTRY;
	queue->next[page] = 0;
	list->n--;
	return page;
}

/* The epochs that have passed since the head of a list entered. The list is not empty. */
static uint64_t age_of_head(struct fp_evict_list *list, uint64_t epoch)
{
	while (list->entered[list->oldest % FP_EVICT_EPOCHS] == 0)
		list->oldest++;
	return epoch - list->oldest;
}

/*
 * The list whose head is to leave first, or NULL if all lists are empty. Ages are compared after
 * division by k for each level below. If they are equal, the lower level wins. The lowest level's
 * head weighs least while it is safe.
 */
static struct fp_evict_list *choose_list(struct fp_evict_queue *queue)
{
	const uint64_t k = queue->k;
	const uint64_t scale[FP_EVICT_LEVELS] = {k * k * k, k * k * K_ONE, k * K_ONE * K_ONE,
	                                         K_ONE * K_ONE * K_ONE};
	struct fp_evict_list *best = NULL;
	uint64_t most = 0;

	for (unsigned i = 0; i < FP_EVICT_LEVELS; i++) {
		struct fp_evict_list *list = &queue->lists[i];
		uint64_t age = list->n ? age_of_head(list, queue->epoch) : 0;
		uint64_t weight = i == 0 && age < SAFE_EPOCHS ? 1 : (age + 1) * scale[i];

		if (list->n && weight > most) {
			most = weight;
			best = list;
		}
	}
	return best;
}

/* ---- time ---- */

/* The entries of the epoch whose place in the array is needed now count for the epoch after it. */
static void fold_oldest(struct fp_evict_list *list, uint64_t epoch)
{
	uint32_t *entered = &list->entered[epoch % FP_EVICT_EPOCHS];

	list->entered[(epoch + 1) % FP_EVICT_EPOCHS] += *entered;
	*entered = 0;
	if (epoch + 1 > FP_EVICT_EPOCHS && list->oldest <= epoch - FP_EVICT_EPOCHS)
		list->oldest = epoch - FP_EVICT_EPOCHS + 1;
}

static void review_k(struct fp_evict_queue *queue)
{
	struct fp_evict_outcome *o = &queue->outcome;
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

static void count_eviction(struct fp_evict_queue *queue, unsigned level)
{
	queue->outcome.evicted[level > 0]++;
	if (--queue->epoch_left > 0)
		return;
	queue->epoch_left = queue->epoch_pages;
	queue->epoch++;
	for (unsigned i = 0; i < FP_EVICT_LEVELS; i++)
		fold_oldest(&queue->lists[i], queue->epoch);
	if (queue->epoch % REVIEW_EPOCHS == 0)
		review_k(queue);
}

/* ---- the past of a page ---- */

static uint32_t past_of(const struct fp_evict_queue *queue, unsigned level)
{
	return level | (uint32_t)(queue->epoch % STAMPS + 1) << LEVEL_BITS;
}

/* Chooses the level of a page that comes back, and learns from its return. */
static unsigned level_of(struct fp_evict_queue *queue, uint32_t past)
{
	uint32_t stamp = past >> LEVEL_BITS, level = past & (FP_EVICT_LEVELS - 1);
	uint32_t max = queue->epoch_pages * SOON_MAX;
	uint64_t epochs;

	if (stamp == 0 || queue->is_small)
		return 0;
	epochs = (queue->epoch + STAMPS + 1 - stamp) % STAMPS;
	queue->outcome.returned_soon[level > 0] += epochs <= RETURN_EPOCHS;
	if (epochs * queue->epoch_pages > queue->soon_pages) {
		queue->soon_pages = FP_MIN(queue->soon_pages + SOON_STEP, max);
		return level > 0 ? level - 1 : 0;
	}
	queue->soon_pages -= FP_MIN(queue->soon_pages, SOON_STEP);
	return FP_MIN(level + 1, FP_EVICT_LEVELS - 1);
}

/* ---- entries ---- */

static struct fp_evict_inbox *inbox_of_thread(struct fp_evict_queue *queue)
{
	if (own_inbox == 0)
		own_inbox = atomic_fetch_add(&n_owners, 1) % FP_EVICT_INBOXES + 1;
	return &queue->inboxes[own_inbox - 1];
}

static uint32_t n_in(const struct fp_evict_inbox *inbox)
{
	return atomic_load_explicit(&inbox->n, memory_order_relaxed);
}

/* Called with the inbox's lock held. */
static void empty_inbox(struct fp_evict_queue *queue, struct fp_evict_inbox *inbox)
{
	pthread_mutex_lock(&queue->lock);
	for (uint32_t i = 0; i < n_in(inbox); i++) {
		const struct fp_evict_entry *e = &inbox->entries[i];

		if (!(queue->next[e->page] & ENTRY))
			append(queue, &queue->lists[level_of(queue, e->past)], e->page);
	}
	pthread_mutex_unlock(&queue->lock);
	atomic_store_explicit(&inbox->n, 0, memory_order_relaxed);
}

static void empty_inboxes(struct fp_evict_queue *queue)
{
	for (unsigned i = 0; i < FP_EVICT_INBOXES; i++) {
		struct fp_evict_inbox *inbox = &queue->inboxes[i];

		if (n_in(inbox) == 0)
			continue;
		pthread_mutex_lock(&inbox->lock);
		empty_inbox(queue, inbox);
		pthread_mutex_unlock(&inbox->lock);
	}
}

void fp_evict_queue_push(struct fp_evict_queue *queue, uint32_t page, uint32_t past)
{
	struct fp_evict_inbox *inbox = inbox_of_thread(queue);
	uint32_t n;

	pthread_mutex_lock(&inbox->lock);
	n = n_in(inbox);
	inbox->entries[n] = (struct fp_evict_entry){.page = page, .past = past};
	atomic_store_explicit(&inbox->n, n + 1, memory_order_relaxed);
	if (n + 1 == FP_EVICT_INBOX_MAX)
		empty_inbox(queue, inbox);
	pthread_mutex_unlock(&inbox->lock);
}

unsigned fp_evict_queue_pop(struct fp_evict_queue *queue, struct fp_evict_entry *ret_entries, unsigned max)
{
	struct fp_evict_list *list;
	unsigned n = 0;

	empty_inboxes(queue);
	pthread_mutex_lock(&queue->lock);
	while (n < max && (list = choose_list(queue))) {
		unsigned level = (unsigned)(list - queue->lists);

		list->entered[list->oldest % FP_EVICT_EPOCHS]--;
		ret_entries[n].page = remove_head(queue, list);
		ret_entries[n++].past = past_of(queue, level);
		count_eviction(queue, level);
	}
	pthread_mutex_unlock(&queue->lock);
	return n;
}

/* Empties a list, but appends the entries of [first, last) again, as if they came just now. */
static void cut_list(struct fp_evict_queue *queue, struct fp_evict_list *list, uint32_t first, uint32_t last)
{
	memset(list->entered, 0, sizeof(list->entered));
	for (uint64_t n = list->n; n > 0; n--) {
		uint32_t page = remove_head(queue, list);

		if (page >= first && page < last)
			append(queue, list, page);
	}
}

void fp_evict_queue_cut(struct fp_evict_queue *queue, uint32_t first, uint32_t last)
{
	empty_inboxes(queue);
	pthread_mutex_lock(&queue->lock);
	for (unsigned i = 0; i < FP_EVICT_LEVELS; i++)
		cut_list(queue, &queue->lists[i], first, last);
	pthread_mutex_unlock(&queue->lock);
}

void fp_evict_queue_renew(struct fp_evict_queue *queue)
{
	memset(queue->lists, 0, sizeof(queue->lists));
	memset(queue->inboxes, 0, sizeof(queue->inboxes));
	init_locks(queue);
}
