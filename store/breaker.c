/* The circuit breaker of a node. Room: store. Only pure functions. */
#include "breaker.h"

#include "cleanup.h"
#include "clock.h"

#define SPENT      4ull
#define EPOCH_UNIT (1ull << 8)

static uint64_t with_state(uint64_t word, enum fp_breaker_state state)
{
	return (word & ~3ull) | state;
}

uint64_t fp_breaker_step(uint64_t word, enum fp_breaker_event event, uint64_t epoch)
{
	enum fp_breaker_state state = fp_breaker_state(word);

	if (state == FP_BREAKER_LOST)
		return word;
	switch (event) {
	case FP_BREAKER_FAIL:
		if (state == FP_BREAKER_CLOSED && epoch == fp_breaker_epoch(word))
			return with_state(word, FP_BREAKER_OPEN);
		return word;
	case FP_BREAKER_TRY:
		return state == FP_BREAKER_OPEN ? with_state(word, FP_BREAKER_HALF_OPEN) : word;
	case FP_BREAKER_REFUSED:
		return state == FP_BREAKER_HALF_OPEN ? with_state(word, FP_BREAKER_OPEN) : word;
	case FP_BREAKER_RESUMED:
		if (state == FP_BREAKER_HALF_OPEN)
			return with_state((word & ~SPENT) + EPOCH_UNIT, FP_BREAKER_CLOSED);
		return word;
	case FP_BREAKER_WAITED:
		return state == FP_BREAKER_CLOSED ? word : word | SPENT;
	case FP_BREAKER_GONE:
		return with_state(word, FP_BREAKER_LOST);
	}
	return word;
}

uint64_t fp_breaker_inherit(uint64_t word)
{
	return fp_breaker_state(word) == FP_BREAKER_LOST ? word : with_state(word & ~SPENT, FP_BREAKER_OPEN);
}

/* The delay before the next attempt, when `n_failed` attempts (at least 1) have failed. */
static uint64_t delay_ns(const struct fp_reconnect_options *options, unsigned n_failed, uint64_t random)
{
	uint64_t delay = options->backoff_first_ns ?: FP_BACKOFF_FIRST_NS;
	uint64_t max = options->backoff_max_ns ?: FP_BACKOFF_MAX_NS;

	while (--n_failed && delay < max)
		delay *= 2;
	delay = FP_MIN(delay, max);
	return delay - delay / 4 + random % (delay / 2 + 1);
}

void fp_backoff_heard(struct fp_backoff *backoff, uint64_t now_ns, uint64_t wait_ns)
{
	backoff->give_up_ns = fp_clock_after(now_ns, fp_clock_after(wait_ns, FP_BACKOFF_MARGIN_NS));
}

void fp_backoff_opened(struct fp_backoff *backoff, uint64_t now_ns, uint64_t wait_ns, uint64_t random)
{
	bool held = !backoff->closed_ns || now_ns - backoff->closed_ns >= FP_BACKOFF_STABLE_NS;

	fp_backoff_heard(backoff, now_ns, wait_ns);
	if (held) {
		backoff->n_failed = 0;
		backoff->next_ns = now_ns;
	} else {
		/*
		 * The link flaps, but the node is there. So try again soon: pages can be moved
		 * whenever the link is up.
		 */
		backoff->n_failed = FP_MIN(backoff->n_failed, FP_BACKOFF_FLAP - 1);
		fp_backoff_refused(backoff, now_ns, random);
	}
}

void fp_backoff_refused(struct fp_backoff *backoff, uint64_t now_ns, uint64_t random)
{
	if (backoff->n_failed < UINT32_MAX)
		backoff->n_failed++;
	backoff->next_ns = now_ns + delay_ns(&backoff->options, backoff->n_failed, random);
}

void fp_backoff_resumed(struct fp_backoff *backoff, uint64_t now_ns)
{
	backoff->closed_ns = now_ns;
}
