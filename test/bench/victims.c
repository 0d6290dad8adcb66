/*
 * Which page should be evicted? Counts how often pages must be fetched again, under several
 * policies, on reference traces of real algorithms (reftrace.h). Local memory is 50 and 25 % of the
 * pages. The columns are in percent of LRU's fetches; LRU and the optimum are told every touch, the
 * others faults alone. A second chance takes cheap faults too, which are counted on their own.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "evict_queue.h"
#include "reftrace.h"

enum where { NEVER_SEEN, AWAY, LOCAL, STAGED };

/* One run of a policy over a trace. */
struct replay {
	const struct reftrace *trace;
	uint32_t budget;
	uint8_t *where;
	uint32_t n_local;
	uint64_t fetches, cheap_faults;
};

static void *get(size_t n, size_t each)
{
	void *p = calloc(n ? n : 1, each);

	if (!p)
		exit(1);
	return p;
}

/* Makes a missing page local. */
static void arrive(struct replay *r, uint32_t page)
{
	r->fetches += r->where[page] == AWAY;
	r->where[page] = LOCAL;
	r->n_local++;
}

static void leave(struct replay *r, uint32_t page)
{
	r->where[page] = AWAY;
	r->n_local--;
}

/* ---- a ring of pages ---- */

struct ring {
	uint32_t *pages;
	uint64_t mask, head, tail;
};

static struct ring ring_new(uint32_t n)
{
	uint64_t capacity = 1024;

	while (capacity < n)
		capacity *= 2;
	return (struct ring){.pages = get(capacity, 4), .mask = capacity - 1};
}

static void put(struct ring *ring, uint32_t page)
{
	ring->pages[ring->tail++ & ring->mask] = page;
}

static uint32_t take(struct ring *ring)
{
	return ring->pages[ring->head++ & ring->mask];
}

/* ---- policies ---- */

static void first_in_first_out(struct replay *r)
{
	struct ring ring = ring_new(r->budget);

	for (size_t i = 0; i < r->trace->n; i++) {
		uint32_t page = r->trace->refs[i];

		if (r->where[page] == LOCAL)
			continue;
		if (r->n_local == r->budget)
			leave(r, take(&ring));
		arrive(r, page);
		put(&ring, page);
	}
	free(ring.pages);
}

static void random_page(struct replay *r)
{
	uint32_t *pages = get(r->budget, 4);
	uint64_t state = 1;

	for (size_t i = 0; i < r->trace->n; i++) {
		uint32_t page = r->trace->refs[i], place = r->n_local;

		if (r->where[page] == LOCAL)
			continue;
		if (r->n_local == r->budget) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			place = (uint32_t)((state >> 33) % r->budget);
			leave(r, pages[place]);
		}
		arrive(r, page);
		pages[place] = page;
	}
	free(pages);
}

/* A circle through all local pages, the latest first; the item n_pages begins and ends it. */
struct lru_item {
	uint32_t before, after;
};

static void unlink_page(struct lru_item *items, uint32_t page)
{
	items[items[page].before].after = items[page].after;
	items[items[page].after].before = items[page].before;
}

static void lru(struct replay *r)
{
	uint32_t end = r->trace->n_pages;
	struct lru_item *items = get(end + 1ull, sizeof(*items));

	items[end] = (struct lru_item){end, end};
	for (size_t i = 0; i < r->trace->n; i++) {
		uint32_t page = r->trace->refs[i];

		if (r->where[page] == LOCAL) {
			unlink_page(items, page);
		} else {
			if (r->n_local == r->budget) {
				leave(r, items[end].before);
				unlink_page(items, items[end].before);
			}
			arrive(r, page);
		}
		items[page] = (struct lru_item){end, items[end].after};
		items[items[end].after].before = page;
		items[end].after = page;
	}
	free(items);
}

/* The local pages as a heap: the one whose next touch is the farthest comes first. */
struct heap {
	uint32_t *pages, *place, *next_touch;
	uint32_t n;
};

static void exchange(struct heap *h, uint32_t a, uint32_t b)
{
	uint32_t page = h->pages[a];

	h->pages[a] = h->pages[b];
	h->pages[b] = page;
	h->place[h->pages[a]] = a;
	h->place[h->pages[b]] = b;
}

static bool is_farther(const struct heap *h, uint32_t a, uint32_t b)
{
	return h->next_touch[h->pages[a]] > h->next_touch[h->pages[b]];
}

static void rise(struct heap *h, uint32_t i)
{
	for (; i > 0 && is_farther(h, i, (i - 1) / 2); i = (i - 1) / 2)
		exchange(h, i, (i - 1) / 2);
}

static void sink(struct heap *h)
{
	for (uint32_t i = 0, k; (k = 2 * i + 1) < h->n; i = k) {
		if (k + 1 < h->n && is_farther(h, k + 1, k))
			k++;
		if (!is_farther(h, k, i))
			return;
		exchange(h, i, k);
	}
}

static uint32_t *next_touches(const struct reftrace *trace)
{
	uint32_t *next = get(trace->n, 4), *last = get(trace->n_pages, 4);

	memset(last, 0xff, trace->n_pages * sizeof(*last));
	for (size_t i = trace->n; i-- > 0;) {
		next[i] = last[trace->refs[i]];
		last[trace->refs[i]] = (uint32_t)i;
	}
	free(last);
	return next;
}

static void optimum(struct replay *r)
{
	uint32_t n_pages = r->trace->n_pages, *next = next_touches(r->trace);
	struct heap h = {.pages = get(r->budget, 4), .place = get(n_pages, 4), .next_touch = get(n_pages, 4)};

	for (size_t i = 0; i < r->trace->n; i++) {
		uint32_t page = r->trace->refs[i];

		h.next_touch[page] = next[i];
		if (r->where[page] != LOCAL && r->n_local == r->budget) {
			leave(r, h.pages[0]);
			arrive(r, page);
			h.pages[0] = page;
			h.place[page] = 0;
			sink(&h);
			continue;
		}
		if (r->where[page] != LOCAL) {
			arrive(r, page);
			h.pages[h.n] = page;
			h.place[page] = h.n++;
		}
		rise(&h, h.place[page]);
	}
	free(h.pages);
	free(h.place);
	free(h.next_touch);
	free(next);
}

/* 2Q: new pages in a twentieth of the budget; pages that return within a quarter of it go on. */
static void two_queues(struct replay *r)
{
	struct ring fresh = ring_new(r->budget), main_ring = ring_new(r->budget);
	uint64_t *evicted_at = get(r->trace->n_pages, 8), evictions = 1;

	for (size_t i = 0; i < r->trace->n; i++) {
		uint32_t page = r->trace->refs[i];
		bool is_ghost;

		if (r->where[page] == LOCAL)
			continue;
		is_ghost = evicted_at[page] && evictions - evicted_at[page] <= r->budget / 4;
		if (r->n_local == r->budget) {
			bool from_fresh =
			    fresh.tail - fresh.head > r->budget / 20 || main_ring.head == main_ring.tail;
			uint32_t out = take(from_fresh ? &fresh : &main_ring);

			evicted_at[out] = evictions++;
			leave(r, out);
		}
		arrive(r, page);
		put(is_ghost ? &main_ring : &fresh, page);
	}
	free(evicted_at);
	free(fresh.pages);
	free(main_ring.pages);
}

/*
 * The oldest page goes to a stage, a quarter of the budget. A page that is touched there comes back
 * by a cheap fault. Entries of such pages stay in the stage's ring; staged_at tells them apart.
 */
static void second_chance(struct replay *r)
{
	uint32_t n_staged = 0, n_stage = r->budget / 4;
	struct ring ring = ring_new(r->budget), stage = ring_new((uint32_t)FP_MIN(r->trace->n, 1ull << 28));
	uint64_t *staged_at = get(r->trace->n_pages, 8);

	for (size_t i = 0; i < r->trace->n; i++) {
		uint32_t page = r->trace->refs[i];

		if (r->where[page] == LOCAL)
			continue;
		if (r->n_local - n_staged == r->budget - n_stage) {
			uint32_t out = take(&ring);

			r->where[out] = STAGED;
			staged_at[out] = stage.tail;
			put(&stage, out);
			n_staged++;
		}
		if (r->where[page] == STAGED) {
			r->cheap_faults++;
			r->where[page] = LOCAL;
			n_staged--;
		} else {
			arrive(r, page);
		}
		put(&ring, page);
		while (n_staged > n_stage) {
			uint64_t at = stage.head;
			uint32_t out = take(&stage);

			if (r->where[out] != STAGED || staged_at[out] != at)
				continue;
			leave(r, out);
			n_staged--;
		}
	}
	free(staged_at);
	free(ring.pages);
	free(stage.pages);
}

/* The pager's own. */
static void levels(struct replay *r)
{
	static struct fp_evict_queue queue;
	uint32_t *next = get(r->trace->n_pages, 4), *past = get(r->trace->n_pages, 4);

	fp_evict_queue_init(&queue, next);
	fp_evict_queue_set_budget(&queue, r->budget);
	for (size_t i = 0; i < r->trace->n; i++) {
		uint32_t page = r->trace->refs[i];
		struct fp_evict_entry out;

		if (r->where[page] == LOCAL)
			continue;
		if (r->n_local == r->budget && fp_evict_queue_pop(&queue, &out, 1) == 1) {
			past[out.page] = out.past;
			leave(r, out.page);
		}
		arrive(r, page);
		fp_evict_queue_push(&queue, page, past[page]);
	}
	fp_evict_queue_done(&queue);
	free(next);
	free(past);
}

/* ---- the table ---- */

static const struct policy {
	const char *name;
	void (*run)(struct replay *replay);
} policies[] = {
    {"LRU", lru},         {"FIFO", first_in_first_out}, {"levels", levels},
    {"2Q", two_queues},   {"random", random_page},      {"2nd chance", second_chance},
    {"optimum", optimum},
};

/* The fetches of each policy, and the cheap faults of the one that has any. */
static void replay_all(const struct reftrace *trace, uint32_t budget, uint64_t fetches[],
                       uint64_t cheap_faults[])
{
	for (unsigned i = 0; i < FP_ARRAY_LEN(policies); i++) {
		struct replay r = {.trace = trace, .budget = budget, .where = get(trace->n_pages, 1)};

		policies[i].run(&r);
		free(r.where);
		fetches[i] = r.fetches;
		cheap_faults[i] = r.cheap_faults;
	}
}

static bool is_next; /* of the rows in JSON: there was one before */

static void print_json(const struct reftrace *trace, unsigned percent, const uint64_t fetches[])
{
	printf("%s{\"trace\": \"%s\", \"local_percent\": %u", is_next ? ",\n" : "[", trace->name, percent);
	for (unsigned i = 0; i < FP_ARRAY_LEN(policies); i++)
		printf(", \"%s\": %llu", policies[i].name, (unsigned long long)fetches[i]);
	printf("}");
	is_next = true;
}

static void print_row(const struct reftrace *trace, uint32_t n_pages, unsigned percent, bool json)
{
	uint64_t fetches[FP_ARRAY_LEN(policies)], cheap_faults[FP_ARRAY_LEN(policies)];
	double lru_fetches;

	replay_all(trace, n_pages * percent / 100, fetches, cheap_faults);
	if (json) {
		print_json(trace, percent, fetches);
		return;
	}
	lru_fetches = (double)FP_MAX(fetches[0], 1ull);
	printf("%-14s %6u %9zu %5u %9llu", trace->name, n_pages, trace->n, percent,
	       (unsigned long long)fetches[0]);
	for (unsigned i = 1; i < FP_ARRAY_LEN(policies); i++) {
		printf(" %10.1f", 100.0 * (double)fetches[i] / lru_fetches);
		if (cheap_faults[i])
			printf(" + %5.1f", 100.0 * (double)cheap_faults[i] / lru_fetches);
	}
	printf("\n");
}

static void print_trace(const struct reftrace *trace, bool json)
{
	uint8_t *seen = get(trace->n_pages, 1);
	uint32_t n_pages = 0;

	for (size_t i = 0; i < trace->n; i++) {
		n_pages += !seen[trace->refs[i]];
		seen[trace->refs[i]] = 1;
	}
	free(seen);
	print_row(trace, n_pages, 50, json);
	print_row(trace, n_pages, 25, json);
}

static void print_heads(void)
{
	printf("%-14s %6s %9s %5s %9s", "trace", "pages", "touches", "local", "LRU");
	for (unsigned i = 1; i < FP_ARRAY_LEN(policies); i++)
		printf(" %10s", policies[i].name);
	printf("\n");
}

/* victims [--json] [WORD]: only traces with the word in their names. In JSON: fetches, not
 * percent. */
int main(int argc, char **argv)
{
	bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
	const char *word = argc > 1 + json ? argv[1 + json] : "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!json)
		print_heads();
	for (unsigned i = 0; i < n_reftrace_kinds; i++) {
		struct reftrace trace;

		if (!strstr(reftrace_kinds[i].name, word))
			continue;
		reftrace_record(&reftrace_kinds[i], &trace);
		print_trace(&trace, json);
		reftrace_done(&trace);
	}
	if (json)
		printf("%s]\n", is_next ? "" : "[");
	return 0;
}
