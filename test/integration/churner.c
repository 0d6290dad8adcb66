/* See churner.h. */
#include "churner_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "audit.h"
#include "cleanup.h"
#include "clock.h"
#include "testrng.h"

/* ---- checking bytes ---- */

void churn_die(const struct churner *c, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "churn: thread %u, %s: %s; seed %" PRIu64 "\n", c->id, c->op, text,
	        c->churn->options->seed);
	_exit(1);
}

char *churn_shadow_of(const struct churner *c, const void *far)
{
	return c->churn->mirror + ((const char *)far - c->churn->far->base);
}

static void wrong_byte(const struct churner *c, const char *far, const char *found, size_t len)
{
	const struct fp_far *mem = c->churn->far;
	uint64_t word = atomic_load(&mem->words[fp_far_page(mem, (uintptr_t)far)]);
	const char *expected = churn_shadow_of(c, far);
	size_t i = 0;

	while (i + 1 < len && expected[i] == found[i])
		i++;
	churn_die(c,
	          "address %p (byte %zu of %zu): expected %02x, found %02x, now %02x; page state %u, word "
	          "%#" PRIx64,
	          (const void *)(far + i), i, len, (uint8_t)expected[i], (uint8_t)found[i],
	          (uint8_t) * (const volatile char *)(far + i), fp_page_state(word), word);
}

/*
 * The buffer `found` has bytes that were read at the address `far`. Compares them with the shadow
 * of that address.
 */
void churn_check_read(const struct churner *c, const char *far, const char *found, size_t len)
{
	if (memcmp(found, churn_shadow_of(c, far), len) != 0)
		wrong_byte(c, far, found, len);
}

void churn_check(const struct churner *c, const char *far, size_t len)
{
	char page[FP_PAGE_SIZE];

	for (size_t n; len > 0; far += n, len -= n) {
		n = FP_MIN(len, sizeof(page));
		memcpy(page, far, n);
		churn_check_read(c, far, page, n);
	}
}

/* ---- running ---- */

static void verify_all(struct churner *c)
{
	c->op = "comparing everything";
	for (unsigned i = 0; i < c->n_pieces; i++) {
		const struct piece *p = &c->pieces[i];
		int r = fp_space_protect(c->churn->space, p->far, p->len, PROT_READ);

		if (r < 0)
			churn_die(c, "protect: %s", strerror(-r));
		churn_check(c, p->far, p->len);
	}
}

static void *churn(void *arg)
{
	struct churner *c = arg;
	const struct churn_options *options = c->churn->options;
	uint64_t now = fp_clock_ns(), before;

	while ((!options->ops || c->result.ops < options->ops) && now < c->churn->end_ns) {
		const struct churn_op *op = churn_pick_op(c);

		c->op = op->name;
		op->run(c);
		c->result.ops++;
		before = now;
		now = fp_clock_ns();
		c->result.longest_ns = FP_MAX(c->result.longest_ns, now - before);
	}
	verify_all(c);
	return NULL;
}

static void check_shared(struct churner *first, const struct churner *all)
{
	const struct churn *churn = first->churn;
	uint64_t *word = (uint64_t *)(void *)churn->shared + COUNTER_WORD;

	first->op = "comparing the shared mapping";
	for (unsigned page = 0; page < SHARED_PAGES; page++, word += PAGE_WORDS) {
		uint64_t sum = 0;

		for (unsigned i = 0; i < churn->options->n_threads; i++)
			sum += all[i].adds[page];
		memcpy(churn_shadow_of(first, word), &sum, sizeof(sum));
	}
	churn_check(first, churn->shared, SHARED_PAGES * FP_PAGE_SIZE);
}

static void check_books(struct churner *first)
{
	char text[256];

	first->op = "comparing the books";
	if (!audit(first->churn->far, text, sizeof(text)))
		churn_die(first, "%s", text);
}

static void churner_init(struct churner *c, struct churn *churn, unsigned id)
{
	*c = (struct churner){.churn = churn, .id = id, .rng = churn->options->seed + id, .op = "starting"};
	c->limit = churn->options->bytes / churn->options->n_threads;
	c->noise = malloc(NOISE_BYTES);
	for (size_t i = 0; i < NOISE_BYTES; i += sizeof(uint64_t)) {
		uint64_t word = test_random(&c->rng);

		memcpy(c->noise + i, &word, sizeof(word));
	}
	c->memfd = memfd_create("churn", MFD_CLOEXEC);
	if (c->memfd < 0 || pipe2(c->pipe, O_CLOEXEC) < 0)
		churn_die(c, "%s", strerror(errno));
}

static void churner_done(struct churner *c)
{
	for (unsigned i = 0; i < c->n_pieces; i++)
		fp_space_unmap(c->churn->space, c->pieces[i].far, c->pieces[i].len);
	free(c->noise);
	close(c->memfd);
	close(c->pipe[0]);
	close(c->pipe[1]);
}

static void open_shared(struct churn *churn, const struct churner *first)
{
	size_t bytes = churn->far->n_pages << FP_PAGE_SHIFT;
	void *far;
	int r = fp_space_map(churn->space, SHARED_PAGES * FP_PAGE_SIZE, 0, RW, 0, &far);

	if (r < 0)
		churn_die(first, "mapping what is shared: %s", strerror(-r));
	churn->shared = far;
	churn->mirror = mmap(NULL, bytes, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (churn->mirror == MAP_FAILED)
		churn_die(first, "no address space for the shadow: %s", strerror(errno));
}

void churn_run(const struct churn_options *options, struct churn_result *ret_result)
{
	struct churn shared = {.options = options, .far = &options->agent->far, .end_ns = UINT64_MAX};
	struct churner churners[CHURN_MAX_THREADS];

	shared.space = fp_agent_space(options->agent);
	if (options->duration_ns)
		shared.end_ns = fp_clock_ns() + options->duration_ns;
	for (unsigned i = 0; i < options->n_threads; i++)
		churner_init(&churners[i], &shared, i);
	open_shared(&shared, &churners[0]);
	for (unsigned i = 0; i < options->n_threads; i++)
		if (pthread_create(&churners[i].thread, NULL, churn, &churners[i]) != 0)
			churn_die(&churners[i], "no thread");
	for (unsigned i = 0; i < options->n_threads; i++)
		pthread_join(churners[i].thread, NULL);
	check_shared(&churners[0], churners);
	check_books(&churners[0]);
	*ret_result = (struct churn_result){0};
	for (unsigned i = 0; i < options->n_threads; i++) {
		ret_result->ops += churners[i].result.ops;
		ret_result->refused += churners[i].result.refused;
		ret_result->longest_ns = FP_MAX(ret_result->longest_ns, churners[i].result.longest_ns);
		churner_done(&churners[i]);
	}
	fp_space_unmap(shared.space, shared.shared, SHARED_PAGES * FP_PAGE_SIZE);
	munmap(shared.mirror, shared.far->n_pages << FP_PAGE_SHIFT);
}
