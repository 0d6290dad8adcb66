/*
 * The workload graph: breadth-first search and PageRank on a Kronecker graph. Room: tools/bench;
 * see workload.h.
 *
 * The graph is an R-MAT one (D. Chakrabarti et al., SDM 2004) with the parameters of Graph500, in
 * compressed sparse rows. It is directed, and has about the given number of edges. To choose an
 * edge is to choose its source bit by bit, and then its target, given the source. So the number of
 * edges of each source is known before its targets are chosen, and the rows are written in order.
 * Names are permuted: vertices with many edges do not lie side by side.
 *
 * PageRank reads a row as the vertices that lead to its owner. Its numbers are whole, so the result
 * does not depend on the machine.
 */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "rng.h"
#include "workload.h"

#define VERTEX_BYTES  36 /* of all arrays that have an element for each vertex */
#define VERTEX_TENTHS 3  /* they take at most so many tenths of the memory */
#define MIN_SCALE     4
#define MAX_SCALE     31

/* The quadrants have about 0.57, 0.19, 0.19 and 0.05 of the edges. */
#define FIRST_HALF_OF_SOURCES 0.76
#define PROBABILITY_BITS      8
#define ONE_AFTER_ONE         53u /* 0.05 / 0.24, in 256ths */

#define SEARCHES   2
#define PASSES     3
#define NO_PARENT  UINT32_MAX
#define TOTAL_RANK (1ull << 60)
#define NAMING     0x9e3779b1u /* odd */

struct graph {
	unsigned scale;
	uint32_t n;
	uint64_t *first; /* the row of v is to[first[v]] to to[first[v + 1] - 1] */
	uint32_t *to;
	uint32_t *leads; /* how often a vertex is in a row */
	uint64_t *rank, *share;
	uint32_t *parent, *queue;
	uint64_t seed, found; /* found: vertices that the searches reached, and when */
};

static void release(void *data)
{
	struct graph *g = data;

	if (!g)
		return;
	free(g->first);
	free(g->to);
	free(g->leads);
	free(g->rank);
	free(g->share);
	free(g->parent);
	free(g->queue);
	free(g);
}

/* ---- names: a bijection of 0 to 2 ^ scale - 1 ---- */

static uint32_t name_of(const struct graph *g, uint32_t vertex)
{
	uint32_t mask = g->n - 1;

	vertex = vertex * NAMING & mask;
	return (vertex ^ vertex >> (g->scale + 1) / 2) * NAMING & mask;
}

/* The inverse of an odd number modulo 2 ^ 32, by Newton's method. */
static uint32_t inverse_of(uint32_t odd)
{
	uint32_t inverse = odd;

	for (unsigned i = 0; i < 5; i++)
		inverse *= 2 - odd * inverse;
	return inverse;
}

static uint32_t vertex_of(const struct graph *g, uint32_t name)
{
	uint32_t mask = g->n - 1, inverse = inverse_of(NAMING);

	name = name * inverse & mask;
	return (name ^ name >> (g->scale + 1) / 2) * inverse & mask;
}

/* ---- edges ---- */

static int allocate(struct graph *g)
{
	g->first = malloc((g->n + 1ull) * sizeof(*g->first));
	g->leads = calloc(g->n, sizeof(*g->leads));
	g->rank = calloc(g->n, sizeof(*g->rank));
	g->share = calloc(g->n, sizeof(*g->share));
	g->parent = malloc(g->n * sizeof(*g->parent));
	g->queue = malloc(g->n * sizeof(*g->queue));
	return g->first && g->leads && g->rank && g->share && g->parent && g->queue ? 0 : -ENOMEM;
}

/*
 * Chooses the length of each row: how many of all edges are expected there, rounded up or down at
 * random. Only the number of ones in a vertex decides what is expected.
 */
static void choose_lengths(struct graph *g, uint64_t edges, uint64_t *rng)
{
	double expected[MAX_SCALE + 1];

	for (unsigned ones = 0; ones <= g->scale; ones++)
		expected[ones] = (double)edges * pow(FIRST_HALF_OF_SOURCES, g->scale - ones) *
		                 pow(1 - FIRST_HALF_OF_SOURCES, ones);
	g->first[0] = 0;
	for (uint32_t name = 0; name < g->n; name++) {
		unsigned ones = (unsigned)__builtin_popcount(vertex_of(g, name));

		g->first[name + 1] = g->first[name] + (uint64_t)(expected[ones] + fp_rng_unit(rng));
	}
}

/*
 * Chooses the target of an edge, all bits at once. Where the source has a 0, the target has a 1
 * with the probability 0.19 / 0.76: if two random bits are ones. Where the source has a 1, the
 * probability is ONE_AFTER_ONE. Each of its binary digits halves the probability so far, and a 1
 * adds one half.
 */
static uint32_t choose_target(const struct graph *g, uint32_t source, uint64_t *rng)
{
	uint64_t random = fp_rng_next(rng);
	uint32_t after_zero = (uint32_t)random & (uint32_t)(random >> 32), after_one = 0;

	for (unsigned digit = 0; digit < PROBABILITY_BITS; digit++, random >>= 32) {
		if (digit % 2 == 0)
			random = fp_rng_next(rng);
		if (ONE_AFTER_ONE >> digit & 1)
			after_one |= (uint32_t)random;
		else
			after_one &= (uint32_t)random;
	}
	return ((source & after_one) | (~source & after_zero)) & (g->n - 1);
}

static int fill_rows(struct graph *g, uint64_t *rng)
{
	g->to = malloc(FP_MAX(g->first[g->n], 1ull) * sizeof(*g->to));
	if (!g->to)
		return -ENOMEM;
	for (uint32_t name = 0; name < g->n; name++) {
		uint32_t source = vertex_of(g, name);

		for (uint64_t i = g->first[name]; i < g->first[name + 1]; i++) {
			g->to[i] = name_of(g, choose_target(g, source, rng));
			g->leads[g->to[i]]++;
		}
	}
	return 0;
}

static int prepare(uint64_t size_bytes, uint64_t seed, void **ret_data)
{
	struct graph *g = calloc(1, sizeof(*g));
	uint64_t edges;
	int r;

	if (!g)
		return -ENOMEM;
	g->scale = MIN_SCALE;
	while (g->scale < MAX_SCALE && (2ull << g->scale) * VERTEX_BYTES <= size_bytes / 10 * VERTEX_TENTHS)
		g->scale++;
	g->n = 1u << g->scale;
	g->seed = seed;
	edges = size_bytes / sizeof(*g->to) - (uint64_t)g->n * VERTEX_BYTES / sizeof(*g->to);
	r = allocate(g);
	if (r == 0) {
		choose_lengths(g, edges, &seed);
		r = fill_rows(g, &seed);
	}
	if (r < 0)
		release(g);
	else
		*ret_data = g;
	return r;
}

/* ---- the timed part ---- */

/* A vertex that has edges: the first one from a random place on. */
static uint32_t choose_root(const struct graph *g, uint64_t *rng)
{
	uint32_t start = (uint32_t)(fp_rng_next(rng) & (g->n - 1)), root = start;

	while (g->first[root] == g->first[root + 1] && (root = (root + 1) & (g->n - 1)) != start)
		;
	return root;
}

static void search(struct graph *g, uint32_t root)
{
	uint32_t head = 0, tail = 0;

	memset(g->parent, 0xff, g->n * sizeof(*g->parent)); /* NO_PARENT */
	g->parent[root] = root;
	g->queue[tail++] = root;
	while (head < tail) {
		uint32_t from = g->queue[head++];

		for (uint64_t i = g->first[from]; i < g->first[from + 1]; i++) {
			uint32_t to = g->to[i];

			if (g->parent[to] != NO_PARENT)
				continue;
			g->parent[to] = from;
			g->queue[tail++] = to;
			g->found = g->found * FP_RNG_STEP + to;
		}
	}
}

static void rank_pass(struct graph *g)
{
	uint64_t base = TOTAL_RANK / g->n / 20 * 3; /* 0.15 */

	for (uint32_t v = 0; v < g->n; v++)
		g->share[v] = g->leads[v] ? g->rank[v] / g->leads[v] : 0;
	for (uint32_t v = 0; v < g->n; v++) {
		uint64_t sum = 0;

		for (uint64_t i = g->first[v]; i < g->first[v + 1]; i++)
			sum += g->share[g->to[i]];
		g->rank[v] = base + sum / 20 * 17;
	}
}

static void run(void *data)
{
	struct graph *g = data;

	for (unsigned i = 0; i < SEARCHES; i++)
		search(g, choose_root(g, &g->seed));
	for (uint32_t v = 0; v < g->n; v++)
		g->rank[v] = TOTAL_RANK / g->n;
	for (unsigned i = 0; i < PASSES; i++)
		rank_pass(g);
}

static uint64_t checksum(void *data)
{
	const struct graph *g = data;
	uint64_t sum = g->found;

	for (uint32_t v = 0; v < g->n; v++)
		sum = (sum * FP_RNG_STEP + g->rank[v]) * FP_RNG_STEP + g->parent[v];
	return sum;
}

const struct fp_workload fp_workload_graph = {
    .name = "graph", .prepare = prepare, .run = run, .checksum = checksum, .release = release};
