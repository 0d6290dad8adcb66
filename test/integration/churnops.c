/*
 * The operations of the churn's threads, chosen at random: touches, copies, system calls, and calls
 * on mappings. Each is repeated on the shadow. Room: test/integration.
 */
#include "churner_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "testrng.h"

/* ---- choosing ---- */

static uint64_t below(struct churner *c, uint64_t n)
{
	return test_random(&c->rng) % n;
}

static bool one_in(struct churner *c, unsigned n)
{
	return below(c, n) == 0;
}

/* Chooses a piece that permits all of prot; NULL if a few tries find none. */
static struct piece *pick(struct churner *c, int prot)
{
	for (unsigned tries = 0; c->n_pieces && tries < 4; tries++) {
		struct piece *p = &c->pieces[below(c, c->n_pieces)];

		if ((p->prot & prot) == prot)
			return p;
	}
	return NULL;
}

struct range {
	char *far;
	size_t len;
};

/*
 * Chooses random bytes, at most max, of a piece that permits all of prot. len is 0 if no piece is
 * found.
 */
static struct range pick_bytes(struct churner *c, int prot, size_t max)
{
	const struct piece *p = pick(c, prot);
	struct range r = {.len = 0};

	if (!p)
		return r;
	r.len = 1 + below(c, FP_MIN(p->len, max));
	r.far = p->far + below(c, p->len - r.len + 1);
	return r;
}

/*
 * Chooses random pages of a piece that permits all of prot; sometimes it chooses the whole piece.
 */
static struct range pick_pages(struct churner *c, int prot)
{
	const struct piece *p = pick(c, prot);
	struct range r = {.len = 0};
	size_t pages, n, at;

	if (!p)
		return r;
	pages = p->len / FP_PAGE_SIZE;
	n = one_in(c, 16) ? pages : 1 + below(c, FP_MIN(pages, RANGE_PAGES));
	at = below(c, pages - n + 1);
	r.far = p->far + at * FP_PAGE_SIZE;
	r.len = n * FP_PAGE_SIZE;
	return r;
}

/* ---- reads and writes ---- */

static void op_write_word(struct churner *c)
{
	struct range r = pick_bytes(c, RW, sizeof(uint64_t));
	uint64_t word = test_random(&c->rng);

	if (r.len == sizeof(word)) {
		__builtin_memcpy(r.far, &word, sizeof(word));
		memcpy(churn_shadow_of(c, r.far), &word, sizeof(word));
	} else if (r.len) {
		*(volatile char *)r.far = (char)word;
		*churn_shadow_of(c, r.far) = (char)word;
	}
}

static void op_read_word(struct churner *c)
{
	struct range r = pick_bytes(c, PROT_READ, sizeof(uint64_t));

	if (r.len)
		churn_check(c, r.far, r.len);
}

static void op_read_range(struct churner *c)
{
	struct range r = pick_bytes(c, PROT_READ, RANGE_PAGES * FP_PAGE_SIZE);

	if (r.len)
		churn_check(c, r.far, r.len);
}

static void op_fill(struct churner *c)
{
	struct range r = pick_bytes(c, RW, RANGE_PAGES * FP_PAGE_SIZE);
	int byte = (int)below(c, 256);

	if (r.len) {
		memset(r.far, byte, r.len);
		memset(churn_shadow_of(c, r.far), byte, r.len);
	}
}

static void op_noise(struct churner *c)
{
	struct range r = pick_bytes(c, RW, NOISE_BYTES);
	const char *from;

	if (!r.len)
		return;
	from = c->noise + below(c, NOISE_BYTES - r.len + 1);
	memcpy(r.far, from, r.len);
	memcpy(churn_shadow_of(c, r.far), from, r.len);
}

/* Copies from far memory to far memory; the ranges may overlap. */
static void op_copy(struct churner *c)
{
	struct range to = pick_bytes(c, RW, RANGE_PAGES * FP_PAGE_SIZE);
	struct range from = pick_bytes(c, PROT_READ, RANGE_PAGES * FP_PAGE_SIZE);
	size_t n = FP_MIN(to.len, from.len);

	if (n) {
		memmove(to.far, from.far, n);
		memmove(churn_shadow_of(c, to.far), churn_shadow_of(c, from.far), n);
		churn_check(c, to.far, FP_MIN(n, FP_PAGE_SIZE));
	}
}

static void op_zero_pages(struct churner *c)
{
	struct range r = pick_pages(c, RW);

	if (r.len) {
		memset(r.far, 0, r.len);
		memset(churn_shadow_of(c, r.far), 0, r.len);
	}
}

/*
 * Reads or writes one word of each page, upwards or downwards. Read-ahead and the prediction of
 * writes expect such patterns.
 */
static void op_stride(struct churner *c)
{
	struct range r = pick_pages(c, RW);
	bool down = one_in(c, 4), write = one_in(c, 2);
	size_t word = below(c, PAGE_WORDS) * sizeof(uint64_t);

	for (size_t at = 0; at < r.len; at += FP_PAGE_SIZE) {
		char *far = r.far + word + (down ? r.len - FP_PAGE_SIZE - at : at);
		uint64_t value = test_random(&c->rng);

		churn_check(c, far, sizeof(value));
		if (!write)
			continue;
		__builtin_memcpy(far, &value, sizeof(value));
		memcpy(churn_shadow_of(c, far), &value, sizeof(value));
	}
}

/* ---- the kernel reads and writes far memory ---- */

/* A call that hands far memory to the kernel: the descriptor, and the offset in it (-1: a pipe). */
struct transfer {
	int fd;
	bool into; /* true: the kernel writes the memory */
	off_t at;
};

static ssize_t call_kernel(const struct transfer *t, char *far, size_t len, size_t done)
{
	if (t->at < 0)
		return t->into ? read(t->fd, far, len) : write(t->fd, far, len);
	return t->into ? pread(t->fd, far, len, t->at + (off_t)done)
	               : pwrite(t->fd, far, len, t->at + (off_t)done);
}

/*
 * Makes the call as the shim makes it for a program: with a pin where one is needed, and in pieces
 * if it is too long to pin.
 */
static ssize_t transfer(struct churner *c, const struct transfer *t, char *far, size_t len)
{
	struct fp_agent *agent = c->churn->options->agent;
	size_t done = 0;

	while (done < len) {
		struct fp_pin_range range = {far + done, len - done, t->into};
		struct fp_pin hold;
		ssize_t n;
		int r = fp_agent_pin(agent, &range, 1, &hold);

		if (r == -E2BIG) {
			range.len_bytes = hold.fit_bytes;
			r = fp_agent_pin(agent, &range, 1, &hold);
		}
		if (r < 0)
			churn_die(c, "hold of %zu bytes at %p: %s", range.len_bytes, range.addr,
			          strerror(-r));
		n = call_kernel(t, far + done, range.len_bytes, done);
		fp_agent_unpin(agent, &hold);
		if (n <= 0)
			return done ? (ssize_t)done : n;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

static void op_sys_write(struct churner *c)
{
	struct range r = pick_bytes(c, PROT_READ, NOISE_BYTES);
	char page[FP_PAGE_SIZE];

	if (!r.len)
		return;
	if (transfer(c, &(struct transfer){c->memfd, false, 0}, r.far, r.len) != (ssize_t)r.len)
		churn_die(c, "pwrite of %zu bytes at %p: %s", r.len, (void *)r.far, strerror(errno));
	for (size_t at = 0, n; at < r.len; at += n) {
		n = FP_MIN(r.len - at, sizeof(page));
		if (pread(c->memfd, page, n, (off_t)at) != (ssize_t)n)
			churn_die(c, "reading back: %s", strerror(errno));
		churn_check_read(c, r.far + at, page, n);
	}
}

static void op_sys_read(struct churner *c)
{
	struct range r = pick_bytes(c, RW, NOISE_BYTES);
	const char *from;

	if (!r.len)
		return;
	from = c->noise + below(c, NOISE_BYTES - r.len + 1);
	if (pwrite(c->memfd, from, r.len, 0) != (ssize_t)r.len)
		churn_die(c, "pwrite: %s", strerror(errno));
	if (transfer(c, &(struct transfer){c->memfd, true, 0}, r.far, r.len) != (ssize_t)r.len)
		churn_die(c, "pread of %zu bytes to %p: %s", r.len, (void *)r.far, strerror(errno));
	memcpy(churn_shadow_of(c, r.far), from, r.len);
}

/* Writes from far memory into a pipe, reads the pipe into far memory. */
static void op_pipe(struct churner *c)
{
	struct range to = pick_bytes(c, RW, 8 * FP_PAGE_SIZE),
	             from = pick_bytes(c, PROT_READ, 8 * FP_PAGE_SIZE);
	size_t n = FP_MIN(to.len, from.len);
	char expected[8 * FP_PAGE_SIZE];

	if (!n)
		return;
	memcpy(expected, churn_shadow_of(c, from.far), n); /* the ranges may overlap */
	if (transfer(c, &(struct transfer){c->pipe[1], false, -1}, from.far, n) != (ssize_t)n)
		churn_die(c, "write of %zu bytes at %p: %s", n, (void *)from.far, strerror(errno));
	if (transfer(c, &(struct transfer){c->pipe[0], true, -1}, to.far, n) != (ssize_t)n)
		churn_die(c, "read of %zu bytes to %p: %s", n, (void *)to.far, strerror(errno));
	memcpy(churn_shadow_of(c, to.far), expected, n);
}

/* ---- layout ---- */

/*
 * Checks the result of a layout call. It may be 0, or -ENOMEM or -EINVAL if the call changed
 * nothing. True if it was 0.
 */
static bool done(struct churner *c, const char *call, int r)
{
	if (r == -ENOMEM || r == -EINVAL) {
		c->result.refused++;
		fprintf(stderr, "churn: %s: %s\n", call, strerror(-r));
	} else if (r < 0) {
		churn_die(c, "%s: %s", call, strerror(-r));
	}
	return r == 0;
}

static void shadow_clear(struct churner *c, const struct piece *p)
{
	madvise(churn_shadow_of(c, p->far), p->len, MADV_DONTNEED);
}

/*
 * Cuts the piece, so that a layout call concerns only a part of a mapping. If the parts have the
 * same attributes, far memory keeps them as one region.
 */
static struct piece *carve(struct churner *c, struct piece *p)
{
	for (unsigned i = 0; i < 2 && p->len > FP_PAGE_SIZE && c->n_pieces < PIECES_MAX && one_in(c, 2);
	     i++) {
		size_t head = (1 + below(c, p->len / FP_PAGE_SIZE - 1)) * FP_PAGE_SIZE;
		struct piece *tail = &c->pieces[c->n_pieces++];

		*tail = (struct piece){.far = p->far + head, .len = p->len - head, .prot = p->prot};
		p->len = head;
		if (one_in(c, 2))
			p = tail;
	}
	return p;
}

static void forget(struct churner *c, struct piece *p)
{
	c->mapped -= p->len;
	*p = c->pieces[--c->n_pieces];
}

static void op_map(struct churner *c)
{
	size_t len = (1 + below(c, one_in(c, 4) ? PIECE_PAGES : 8)) * FP_PAGE_SIZE;
	size_t align = one_in(c, 4) ? (size_t)FP_PAGE_SIZE << below(c, 10) : 0;
	struct piece *p = &c->pieces[c->n_pieces];
	void *far;

	if (c->n_pieces == PIECES_MAX || c->mapped + len > c->limit)
		return;
	if (!done(c, "map",
	          fp_space_map(c->churn->space, len, align, RW, one_in(c, 8) ? FP_MAP_LAZY : 0, &far)))
		return;
	if (align && (uintptr_t)far % align)
		churn_die(c, "map: %p is not aligned to %zu", far, align);
	*p = (struct piece){.far = far, .len = len, .prot = RW};
	c->n_pieces++;
	c->mapped += len;
	if (one_in(c, 2))
		churn_check(c, p->far, p->len);
}

/* Unmaps the shadow first: after the call another thread may get the address. */
static void op_unmap(struct churner *c)
{
	struct piece *p = pick(c, 0);
	int r;

	if (!p)
		return;
	p = carve(c, p);
	shadow_clear(c, p);
	r = fp_space_unmap(c->churn->space, p->far, p->len);
	if (r == 0)
		forget(c, p);
	else
		churn_die(c, "unmap of %zu bytes at %p: %s", p->len, (void *)p->far, strerror(-r));
}

static void op_discard(struct churner *c)
{
	struct range r = pick_pages(c, 0);

	if (!r.len)
		return;
	if (done(c, "discard", fp_space_advise(c->churn->space, r.far, r.len, MADV_DONTNEED)))
		madvise(churn_shadow_of(c, r.far), r.len, MADV_DONTNEED);
}

static size_t new_length(struct churner *c, const struct piece *p)
{
	size_t len = (1 + below(c, 2 * p->len / FP_PAGE_SIZE)) * FP_PAGE_SIZE;

	return c->mapped - p->len + len > c->limit ? p->len : len;
}

static void op_remap(struct churner *c)
{
	struct piece *p = pick(c, 0);
	bool may_move = !one_in(c, 4);
	void *to;
	size_t len;
	int r;

	if (!p)
		return;
	p = carve(c, p);
	len = new_length(c, p);
	fp_autofree char *saved = malloc(p->len);
	memcpy(saved, churn_shadow_of(c, p->far), p->len);
	shadow_clear(c, p);
	to = p->far;
	r = fp_space_remap_to(c->churn->space,
	                      &(struct fp_remap){p->far, p->len, len, may_move ? FP_REMAP_MAYMOVE : 0, NULL},
	                      &to);
	memcpy(churn_shadow_of(c, to), saved, r == 0 ? FP_MIN(len, p->len) : p->len);
	if ((r == -ENOMEM && !may_move) || !done(c, "remap", r))
		return;
	c->mapped += len - p->len;
	p->far = to;
	p->len = len;
	if (p->prot & PROT_READ && one_in(c, 2))
		churn_check(c, p->far, p->len);
}

/*
 * Checks that the kernel can access what the program may access, and nothing else. If the kernel
 * can't read a readable page, the page may be lost: then a touch gets SIGBUS.
 */
static void check_protection(struct churner *c, const struct piece *p)
{
	const struct transfer out = {c->memfd, false, 0}, in = {c->memfd, true, 0};
	bool readable = transfer(c, &out, p->far, 1) == 1;
	bool writable = p->prot & PROT_WRITE ? true : transfer(c, &in, p->far, 1) == 1;

	if (!readable && p->prot & PROT_READ)
		(void)*(volatile const char *)p->far;
	if (readable != ((p->prot & PROT_READ) != 0) || writable != ((p->prot & PROT_WRITE) != 0))
		churn_die(c, "%p has protection %d, but is readable %d, writable %d", (void *)p->far, p->prot,
		          readable, writable);
}

static void op_protect(struct churner *c)
{
	static const int prots[] = {RW, RW, RW, PROT_READ, PROT_NONE};
	struct piece *p = pick(c, 0);
	int prot;

	if (!p)
		return;
	p = carve(c, p);
	prot = prots[below(c, FP_ARRAY_LEN(prots))];
	if (!done(c, "protect", fp_space_protect(c->churn->space, p->far, p->len, prot)))
		return;
	p->prot = prot;
	check_protection(c, p);
}

static void op_willneed(struct churner *c)
{
	struct range r = pick_pages(c, 0);

	if (r.len)
		done(c, "willneed", fp_space_advise(c->churn->space, r.far, r.len, MADV_WILLNEED));
}

static void op_pageout(struct churner *c)
{
	struct range r = pick_pages(c, 0);

	if (r.len)
		done(c, "pageout", fp_space_advise(c->churn->space, r.far, r.len, MADV_PAGEOUT));
}

/* ---- the mapping that all threads share ---- */

static uint64_t *own_word(struct churner *c)
{
	uint64_t *page = (uint64_t *)(void *)c->churn->shared + below(c, SHARED_PAGES) * PAGE_WORDS;
	unsigned n = c->churn->options->n_threads;

	return page + c->id + below(c, (COUNTER_WORD - c->id - 1) / n + 1) * n;
}

static void op_shared_write(struct churner *c)
{
	for (unsigned i = 0; i < 16; i++) {
		uint64_t *far = own_word(c), value = one_in(c, 4) ? 0 : test_random(&c->rng);

		churn_check(c, (char *)far, sizeof(*far));
		*(volatile uint64_t *)far = value;
		memcpy(churn_shadow_of(c, far), &value, sizeof(value));
	}
}

static void op_shared_read(struct churner *c)
{
	for (unsigned i = 0; i < 16; i++)
		churn_check(c, (char *)own_word(c), sizeof(uint64_t));
}

static void op_shared_add(struct churner *c)
{
	for (unsigned i = 0; i < 16; i++) {
		uint64_t page = below(c, SHARED_PAGES);
		uint64_t *word = (uint64_t *)(void *)c->churn->shared + page * PAGE_WORDS + COUNTER_WORD;

		__atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
		c->adds[page]++;
	}
}

static void op_shared_pageout(struct churner *c)
{
	uint64_t page = below(c, SHARED_PAGES), n = 1 + below(c, SHARED_PAGES - page);
	char *far = c->churn->shared + page * FP_PAGE_SIZE;

	done(c, "pageout", fp_space_advise(c->churn->space, far, n * FP_PAGE_SIZE, MADV_PAGEOUT));
}

/* ---- choosing an operation ---- */

static const struct churn_op ops[] = {
    {"writing a word", op_write_word, 200},
    {"reading a word", op_read_word, 200},
    {"reading a range", op_read_range, 25},
    {"filling a range", op_fill, 15},
    {"writing a range", op_noise, 25},
    {"copying a range", op_copy, 15},
    {"zeroing pages", op_zero_pages, 10},
    {"striding", op_stride, 25},
    {"writing to a file", op_sys_write, 10},
    {"reading from a file", op_sys_read, 10},
    {"piping", op_pipe, 10},
    {"mapping", op_map, 20},
    {"unmapping", op_unmap, 6},
    {"discarding", op_discard, 8},
    {"remapping", op_remap, 8},
    {"protecting", op_protect, 12},
    {"willneed", op_willneed, 6},
    {"pageout", op_pageout, 6},
    {"writing shared words", op_shared_write, 40},
    {"reading shared words", op_shared_read, 40},
    {"adding to shared words", op_shared_add, 40},
    {"pageout of shared words", op_shared_pageout, 4},
};

const struct churn_op *churn_pick_op(struct churner *c)
{
	unsigned total = 0, at;

	for (size_t i = 0; i < FP_ARRAY_LEN(ops); i++)
		total += ops[i].weight;
	at = (unsigned)below(c, total);
	for (const struct churn_op *op = ops;; at -= op++->weight)
		if (at < op->weight)
			return op;
}
