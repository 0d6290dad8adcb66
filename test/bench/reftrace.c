/* See reftrace.h. */
#include "reftrace.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_SHIFT 12
#define RECENT     4u

static uint64_t rng_state;

static uint64_t rng(void)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static double rng_unit(void)
{
	return (double)(rng() >> 11) / 9007199254740992.0;
}

static void *get(size_t n, size_t each)
{
	void *p = calloc(n, each);

	if (!p) {
		fputs("victims: no memory\n", stderr);
		exit(1);
	}
	return p;
}

static void touch_page(struct reftrace *t, uint32_t page)
{
	for (unsigned i = 0; i < RECENT; i++)
		if (t->recent[i] == page)
			return;
	t->recent[t->next_recent++ % RECENT] = page;
	if (t->n == t->capacity) {
		t->capacity = t->capacity ? 2 * t->capacity : 1u << 20;
		t->refs = realloc(t->refs, t->capacity * sizeof(*t->refs));
		if (!t->refs)
			exit(1);
	}
	t->refs[t->n++] = page;
	if (page >= t->n_pages)
		t->n_pages = page + 1;
}

/* A part of the pretended memory: n items of so many bytes each. It begins at a page's start. */
struct part {
	uint64_t start;
	uint64_t each;
};

static struct part part_after(uint64_t *end, uint64_t n, uint64_t each)
{
	struct part p = {.start = *end, .each = each};

	*end += (n * each + 4095) & ~4095ull;
	return p;
}

static void touch(struct reftrace *t, struct part p, uint64_t i)
{
	touch_page(t, (uint32_t)((p.start + i * p.each) >> PAGE_SHIFT));
}

/* ---- Zipf ---- */

/* Numbers 0 to n - 1 with Zipf's distribution, by the method of Gray et al. (SIGMOD 1994). */
struct zipf {
	double theta, alpha, zetan, eta;
	uint64_t n;
};

static struct zipf zipf_of(uint64_t n, double theta)
{
	struct zipf z = {.theta = theta, .alpha = 1 / (1 - theta), .n = n};

	for (uint64_t i = 1; i <= n; i++)
		z.zetan += 1 / pow((double)i, theta);
	z.eta = (1 - pow(2.0 / (double)n, 1 - theta)) / (1 - (1 + pow(0.5, theta)) / z.zetan);
	return z;
}

static uint64_t zipf_next(const struct zipf *z)
{
	double u = rng_unit(), uz = u * z->zetan;

	if (uz < 1)
		return 0;
	if (uz < 1 + pow(0.5, z->theta))
		return 1;
	return (uint64_t)((double)z->n * pow(z->eta * u - z->eta + 1, z->alpha)) % z->n;
}

static uint32_t *shuffled(uint32_t n)
{
	uint32_t *p = get(n, sizeof(*p));

	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = (uint32_t)(rng() % (i + 1));

		p[i] = p[k];
		p[k] = i;
	}
	return p;
}

/* Keys with Zipf's distribution, so many a page, at random places. The table is filled first. */
static void zipf_table(struct reftrace *t, uint32_t pages, uint32_t keys_a_page, uint64_t n_refs)
{
	uint32_t n_keys = pages * keys_a_page, *place = shuffled(n_keys);
	struct zipf z = zipf_of(n_keys, 0.99);

	for (uint32_t page = 0; page < pages; page++)
		touch_page(t, page);
	for (uint64_t i = 0; i < n_refs; i++)
		touch_page(t, place[zipf_next(&z)] / keys_a_page);
	free(place);
}

static void zipf_pages(struct reftrace *t)
{
	zipf_table(t, 16384, 1, 4000000);
}

static void zipf_16(struct reftrace *t)
{
	zipf_table(t, 16384, 16, 4000000);
}

/* Three of four references are Zipf's; the others scan twice as many pages, again and again. */
static void zipf_and_scan(struct reftrace *t)
{
	uint32_t pages = 8192, *place = shuffled(pages);
	struct zipf z = zipf_of(pages, 0.99);

	for (uint32_t i = 0; i < 3000000; i++)
		touch_page(t, i % 4 ? place[zipf_next(&z)] : pages + i / 4 % (2 * pages));
	free(place);
}

/* ---- sorting ---- */

#define SORT_N (4u << 20)

struct ints {
	struct reftrace *trace;
	struct part part;
	uint32_t *v;
};

static uint32_t at(struct ints *a, uint64_t i)
{
	touch(a->trace, a->part, i);
	return a->v[i];
}

static void swap(struct ints *a, int64_t i, int64_t k)
{
	uint32_t x = at(a, (uint64_t)i);

	a->v[i] = at(a, (uint64_t)k);
	a->v[k] = x;
}

static void quick(struct ints *a, int64_t lo, int64_t hi)
{
	while (lo < hi) {
		uint32_t pivot = at(a, (uint64_t)(lo + (hi - lo) / 2));
		int64_t i = lo, k = hi;

		while (i <= k) {
			while (at(a, (uint64_t)i) < pivot)
				i++;
			while (at(a, (uint64_t)k) > pivot)
				k--;
			if (i <= k)
				swap(a, i++, k--);
		}
		quick(a, lo, k);
		lo = i;
	}
}

static struct ints random_ints(struct reftrace *t, uint64_t *end, uint32_t n)
{
	struct ints a = {
	    .trace = t, .part = part_after(end, n, sizeof(uint32_t)), .v = get(n, sizeof(uint32_t))};

	for (uint32_t i = 0; i < n; i++) {
		touch(t, a.part, i);
		a.v[i] = (uint32_t)rng();
	}
	return a;
}

static void quicksort(struct reftrace *t)
{
	uint64_t end = 0;
	struct ints a = random_ints(t, &end, SORT_N);

	quick(&a, 0, SORT_N - 1);
	free(a.v);
}

static void sift_down(struct ints *a, uint64_t i, uint64_t n)
{
	for (uint64_t k; (k = 2 * i + 1) < n; i = k) {
		if (k + 1 < n && at(a, k + 1) > at(a, k))
			k++;
		if (at(a, i) >= at(a, k))
			return;
		swap(a, (int64_t)i, (int64_t)k);
	}
}

static void heapsort_ints(struct reftrace *t)
{
	uint64_t end = 0, n = SORT_N / 2; /* so that a quarter of the pages has several lists */
	struct ints a = random_ints(t, &end, (uint32_t)n);

	for (uint64_t i = n / 2; i-- > 0;)
		sift_down(&a, i, n);
	while (n-- > 1) {
		swap(&a, 0, (int64_t)n);
		sift_down(&a, 0, n);
	}
	free(a.v);
}

/*
 * As the command sort works: text, an array of lines that point into it, and half as many for
 * merging. The array is filled from its end.
 */
struct text_sort {
	struct reftrace *trace;
	struct part text, lines, aux;
	uint32_t *v, *w; /* numbers of lines */
	uint32_t *offset;
	uint64_t *key;
};

static bool line_less(struct text_sort *s, uint32_t a, uint32_t b)
{
	touch(s->trace, s->text, s->offset[a]);
	touch(s->trace, s->text, s->offset[b]);
	return s->key[a] < s->key[b];
}

/* Merges v[lo, mid), which goes to the helper array first, and v[mid, hi). */
static void merge_lines(struct text_sort *s, uint32_t lo, uint32_t mid, uint32_t hi)
{
	uint32_t i = 0, n = mid - lo, k = mid, out = lo;

	for (uint32_t j = lo; j < mid; j++) {
		touch(s->trace, s->lines, j);
		touch(s->trace, s->aux, j - lo);
		s->w[j - lo] = s->v[j];
	}
	while (i < n) {
		bool second = k < hi && line_less(s, s->v[k], s->w[i]);

		touch(s->trace, second ? s->lines : s->aux, second ? k : i);
		touch(s->trace, s->lines, out);
		s->v[out++] = second ? s->v[k++] : s->w[i++];
	}
}

static void sort_lines(struct text_sort *s, uint32_t lo, uint32_t hi)
{
	uint32_t mid = lo + (hi - lo) / 2;

	if (hi - lo < 2)
		return;
	sort_lines(s, lo, mid);
	sort_lines(s, mid, hi);
	merge_lines(s, lo, mid, hi);
}

static void text_sort(struct reftrace *t)
{
	uint32_t n = 300000, bytes = 61;
	uint64_t end = 0;
	struct text_sort s = {
	    .trace = t, .v = get(n, 4), .w = get(n, 4), .offset = get(n, 4), .key = get(n, 8)};

	s.text = part_after(&end, (uint64_t)n * bytes, 1);
	s.lines = part_after(&end, n, 32);
	s.aux = part_after(&end, n / 2 + 1, 32);
	for (uint32_t i = 0; i < n; i++) {
		s.v[i] = i;
		s.offset[i] = i * bytes;
		s.key[i] = rng();
		touch(t, s.text, s.offset[i]);
		touch(t, s.lines, i);
	}
	sort_lines(&s, 0, n);
	for (uint32_t i = 0; i < n; i++) {
		touch(t, s.lines, i);
		touch(t, s.text, s.offset[s.v[i]]);
	}
	free(s.v);
	free(s.w);
	free(s.offset);
	free(s.key);
}

/* ---- scans ---- */

/* Points of 64 bytes and the number of their cluster, ten rounds. */
static void kmeans(struct reftrace *t)
{
	uint64_t end = 0, n = 200000;
	struct part points = part_after(&end, n, 64), cluster = part_after(&end, n, 4);

	for (unsigned round = 0; round < 10; round++)
		for (uint64_t i = 0; i < n; i++) {
			touch(t, points, i);
			touch(t, cluster, i);
		}
}

static void triad(struct reftrace *t)
{
	uint64_t end = 0, n = 1u << 20;
	struct part a = part_after(&end, n, 8), b = part_after(&end, n, 8), c = part_after(&end, n, 8);

	for (unsigned round = 0; round < 20; round++)
		for (uint64_t i = 0; i < n; i++) {
			touch(t, b, i);
			touch(t, c, i);
			touch(t, a, i);
		}
}

/* Queries over two of sixteen columns; columns are chosen by Zipf's distribution. */
static void columns(struct reftrace *t)
{
	struct zipf z = zipf_of(16, 0.99);
	uint64_t n = 1u << 18;

	for (uint64_t i = 0; i < 16 * n; i++)
		touch_page(t, (uint32_t)(i * 8 >> PAGE_SHIFT));
	for (unsigned query = 0; query < 200; query++) {
		uint64_t a = zipf_next(&z) * n, b = zipf_next(&z) * n;

		for (uint64_t i = 0; i < n; i++) {
			touch_page(t, (uint32_t)((a + i) * 8 >> PAGE_SHIFT));
			touch_page(t, (uint32_t)((b + i) * 8 >> PAGE_SHIFT));
		}
	}
}

/* Loops over parts of the memory that just fit, or just do not. */
static void loops(struct reftrace *t)
{
	static const uint32_t sixteenths[] = {16, 3, 5, 7, 9, 16, 2, 6, 15, 4};

	for (unsigned i = 0; i < sizeof(sixteenths) / sizeof(sixteenths[0]); i++)
		for (uint32_t k = 0; k < 12; k++)
			for (uint32_t p = 0; p < sixteenths[i] * 512; p++)
				touch_page(t, (uint32_t)(rng() % 8 ? p : rng() % (sixteenths[i] * 512)));
}

/* Zipf's references, whose order of pages changes every now and then. */
static void phases(struct reftrace *t)
{
	uint32_t pages = 8192;
	struct zipf z = zipf_of(pages, 0.99);

	for (unsigned phase = 0; phase < 12; phase++) {
		uint32_t *place = shuffled(pages);

		for (uint32_t i = 0; i < 200000; i++)
			touch_page(t, place[zipf_next(&z)]);
		free(place);
	}
}

/* Even references: first to all pages, then to a part that would just fit, and to another part. */
static void even(struct reftrace *t)
{
	static const struct {
		uint32_t from, n;
	} parts[] = {{0, 8192}, {0, 2000}, {4000, 2000}, {1000, 4000}, {4096, 4000}, {0, 8192}, {6000, 1900}};

	for (unsigned k = 0; k < sizeof(parts) / sizeof(parts[0]); k++)
		for (uint32_t i = 0; i < 100000; i++)
			touch_page(t, parts[k].from + (uint32_t)(rng() % parts[k].n));
}

/* Even references to a part that moves slowly over the memory. */
static void drift(struct reftrace *t)
{
	for (uint32_t i = 0; i < 600000; i++)
		touch_page(t, (uint32_t)(i / 30 + rng() % 6000) % 20000);
}

/* Look-ups in a tree with 64 children a node, by even keys; each reads a page on each level. */
static void tree(struct reftrace *t)
{
	for (uint32_t i = 0; i < 300000; i++) {
		uint32_t leaf = (uint32_t)(rng() % 8192);

		touch_page(t, leaf / 4096);
		touch_page(t, 4 + leaf / 64);
		touch_page(t, 200 + leaf);
	}
}

/* Matrices of 700 x 700 doubles, multiplied by rows and columns. */
static void matrices(struct reftrace *t)
{
	uint64_t end = 0, n = 600;
	struct part a = part_after(&end, n * n, 8), b = part_after(&end, n * n, 8),
	            c = part_after(&end, n * n, 8);

	for (uint64_t i = 0; i < n / 10; i++)
		for (uint64_t k = 0; k < n; k += 8) {
			touch(t, c, i * n + k);
			for (uint64_t m = 0; m < n; m++) {
				touch(t, a, i * n + m);
				touch(t, b, m * n + k);
			}
		}
}

/* ---- a graph ---- */

#define GRAPH_SCALE 17
#define NODES       (1u << GRAPH_SCALE)
#define EDGES       (NODES * 16u)

struct graph {
	uint32_t *first, *to; /* the neighbours of v: to[first[v]] to to[first[v + 1] - 1] */
};

static uint32_t kronecker_edge(uint32_t *ret_other)
{
	uint32_t a = 0, b = 0;

	for (unsigned bit = 0; bit < GRAPH_SCALE; bit++) {
		double u = rng_unit();

		a = 2 * a + (u >= 0.76);
		b = 2 * b + ((u >= 0.57 && u < 0.76) || u >= 0.95);
	}
	*ret_other = b;
	return a;
}

static struct graph kronecker(void)
{
	struct graph g = {.first = get(NODES + 2, 4), .to = get(2ull * EDGES, 4)};
	uint32_t *edges = get(2ull * EDGES, 4), *name = shuffled(NODES);

	for (uint32_t e = 0; e < EDGES; e++) {
		uint32_t a, b;

		a = name[kronecker_edge(&b)];
		b = name[b];
		edges[2 * e] = a;
		edges[2 * e + 1] = b;
		g.first[a + 2]++;
		g.first[b + 2]++;
	}
	for (uint32_t v = 2; v < NODES + 2; v++)
		g.first[v] += g.first[v - 1];
	for (uint32_t e = 0; e < 2 * EDGES; e++)
		g.to[g.first[edges[e] + 1]++] = edges[e ^ 1];
	free(edges);
	free(name);
	return g;
}

struct graph_parts {
	struct part first, to, a, b;
};

static struct graph_parts graph_parts(struct reftrace *t)
{
	uint64_t end = 0;
	struct graph_parts p = {.first = part_after(&end, NODES + 1, 8),
	                        .to = part_after(&end, 2ull * EDGES, 4)};

	p.a = part_after(&end, NODES, 8);
	p.b = part_after(&end, NODES, 8);
	for (uint64_t i = 0; i < 2ull * EDGES; i++)
		touch(t, p.to, i);
	return p;
}

static void bfs(struct reftrace *t)
{
	struct graph g = kronecker();
	struct graph_parts p = graph_parts(t);
	uint32_t *queue = get(NODES, 4);

	for (unsigned round = 0; round < 3; round++) {
		uint32_t head = 0, tail = 0;
		bool *seen = get(NODES, 1);

		do
			queue[0] = (uint32_t)(rng() % NODES);
		while (g.first[queue[0]] == g.first[queue[0] + 1]);
		seen[queue[tail++]] = true;
		while (head < tail) {
			uint32_t v = queue[head];

			touch(t, p.b, head++);
			touch(t, p.first, v);
			for (uint32_t i = g.first[v]; i < g.first[v + 1]; i++) {
				touch(t, p.to, i);
				touch(t, p.a, g.to[i]);
				if (seen[g.to[i]])
					continue;
				seen[g.to[i]] = true;
				touch(t, p.b, tail);
				queue[tail++] = g.to[i];
			}
		}
		free(seen);
	}
	free(queue);
	free(g.first);
	free(g.to);
}

static void pagerank(struct reftrace *t)
{
	struct graph g = kronecker();
	struct graph_parts p = graph_parts(t);

	for (unsigned round = 0; round < 4; round++)
		for (uint32_t v = 0; v < NODES; v++) {
			touch(t, p.first, v);
			for (uint32_t i = g.first[v]; i < g.first[v + 1]; i++) {
				touch(t, p.to, i);
				touch(t, round % 2 ? p.b : p.a, g.to[i]);
			}
			touch(t, round % 2 ? p.a : p.b, v);
		}
	free(g.first);
	free(g.to);
}

/* ---- a python dict ---- */

/*
 * Strings as keys, numbers as values: made in turns, so they lie side by side. A look-up reads the
 * index, the entry, the key and the value. The dict grows by copies: the index and the entries
 * move.
 */
static void python_dict(struct reftrace *t)
{
	uint64_t end = 0, n = 200000, size = 8;
	struct part objects = part_after(&end, n, 96), index = part_after(&end, size, 4);
	struct part entries = part_after(&end, size * 2 / 3, 24);
	uint64_t *hash = get(n, 8);

	for (uint64_t i = 0; i < n; i++) {
		hash[i] = rng();
		if (i > size * 2 / 3 - 1) {
			struct part old = entries;

			size *= 2;
			index = part_after(&end, size, 4);
			entries = part_after(&end, size * 2 / 3, 24);
			for (uint64_t k = 0; k < i; k++) {
				touch(t, old, k);
				touch(t, entries, k);
			}
			for (uint64_t k = 0; k < i; k++) {
				touch(t, entries, k);
				touch(t, index, hash[k] % size);
			}
		}
		touch(t, objects, i);
		touch(t, index, hash[i] % size);
		touch(t, entries, i);
	}
	for (uint64_t k = 0; k < 1000000; k++) {
		uint64_t i = rng() % n;

		touch(t, index, hash[i] % size);
		touch(t, entries, i);
		touch(t, objects, i);
	}
	free(hash);
}

const struct reftrace_kind reftrace_kinds[] = {
    {"quicksort", quicksort},
    {"heapsort", heapsort_ints},
    {"sort of text", text_sort},
    {"k-means", kmeans},
    {"triad", triad},
    {"columns", columns},
    {"BFS", bfs},
    {"PageRank", pagerank},
    {"python dict", python_dict},
    {"Zipf, 1 key", zipf_pages},
    {"Zipf, 16 keys", zipf_16},
    {"Zipf and scan", zipf_and_scan},
    {"Zipf, phases", phases},
    {"loops", loops},
    {"even parts", even},
    {"drift", drift},
    {"tree", tree},
    {"matrices", matrices},
};
const unsigned n_reftrace_kinds = sizeof(reftrace_kinds) / sizeof(reftrace_kinds[0]);

void reftrace_record(const struct reftrace_kind *kind, struct reftrace *ret_trace)
{
	struct reftrace t = {.name = kind->name};

	rng_state = 1;
	memset(t.recent, 0xff, sizeof(t.recent));
	kind->record(&t);
	*ret_trace = t;
}

void reftrace_done(struct reftrace *trace)
{
	free(trace->refs);
}
