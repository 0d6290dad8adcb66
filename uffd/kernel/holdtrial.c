/* See holdtrial.h. */
#include "holdtrial.h"

#include "cleanup.h"

#define MEASURED   4u    /* windows that are measured each way */
#define KEEP_MIN   128u  /* windows between two trials */
#define KEEP_MAX   4096u /* as long as the result stays the same */
#define GAIN_PART  8u    /* threads are held only if that saves more than an eighth of the time */
#define COST_PART  50u   /* what a trial of the slower way costs, of the time until the next one */
#define FAR_SLOWER 2u    /* the kept way takes so many times what it took in its trial, */
#define CHANGED    16u   /* in so many windows in a row: the program does other work */

static void go_to(struct fp_hold_trial *trial, enum fp_hold_phase phase)
{
	trial->phase = phase;
	trial->n = trial->n_changed = 0;
}

static void measure(struct fp_hold_trial *trial, uint64_t ns)
{
	uint64_t *least_ns = &trial->least_ns[trial->held];

	*least_ns = trial->n == 1 ? ns : FP_MIN(*least_ns, ns);
}

/* For how many windows of the faster way a trial of the slower one costs no more than it may. */
static uint64_t worth_of_a_trial(const struct fp_hold_trial *trial)
{
	uint64_t fast_ns = FP_MIN(trial->least_ns[0], trial->least_ns[1]);
	uint64_t slow_ns = FP_MAX(trial->least_ns[0], trial->least_ns[1]);

	return (MEASURED + 1) * COST_PART * (slow_ns - fast_ns) / FP_MAX(fast_ns, 1u);
}

static void keep(struct fp_hold_trial *trial, bool hold, uint64_t least)
{
	bool same = hold != trial->held; /* the present way is the other one than before the trial */
	uint64_t longer = same && trial->keep ? 2 * trial->keep : KEEP_MIN;

	trial->held = hold;
	trial->keep = (uint32_t)FP_MIN(FP_MAX(longer, least), KEEP_MAX);
	go_to(trial, FP_HOLD_KEEP);
}

/* True if the kept way has become slower by far than it was in its trial: the work has changed. */
static bool has_changed(struct fp_hold_trial *trial, uint64_t ns)
{
	trial->n_changed = ns > FAR_SLOWER * trial->least_ns[trial->held] ? trial->n_changed + 1 : 0;
	return trial->n_changed == CHANGED;
}

/* Keeps the present way only if it is better. */
static void decide(struct fp_hold_trial *trial)
{
	uint64_t free_ns = trial->least_ns[0];

	keep(trial, trial->least_ns[1] < free_ns - free_ns / GAIN_PART, worth_of_a_trial(trial));
}

/*
 * Faults have become seldom. If that happened while the threads were held for a trial, the hold
 * itself may be the cause. So this counts as a result: free is better. Otherwise the next trial
 * would come at once, and again threads would be held for nothing.
 */
static void stop_holding(struct fp_hold_trial *trial)
{
	if (trial->held && (trial->phase == FP_HOLD_SETTLE || trial->phase == FP_HOLD_COMPARE))
		keep(trial, false, 0);
	else if (trial->held || trial->phase != FP_HOLD_KEEP)
		*trial = (struct fp_hold_trial){.keep = trial->keep};
}

bool fp_hold_trial_window(struct fp_hold_trial *trial, uint64_t ns, uint64_t slow_ns)
{
	bool slow = ns > slow_ns;

	if (slow && trial->was_slow)
		stop_holding(trial);
	trial->was_slow = slow;
	if (slow)
		return trial->held;
	trial->n++;
	switch (trial->phase) {
	case FP_HOLD_MEASURE:
		measure(trial, ns);
		if (trial->n == MEASURED) {
			trial->held = !trial->held;
			go_to(trial, FP_HOLD_SETTLE);
		}
		break;
	case FP_HOLD_SETTLE: /* this window began before the threads had moved */
		go_to(trial, FP_HOLD_COMPARE);
		break;
	case FP_HOLD_COMPARE:
		measure(trial, ns);
		if (trial->n == MEASURED)
			decide(trial);
		break;
	case FP_HOLD_KEEP:
		if (has_changed(trial, ns))
			trial->keep = 0;
		if (trial->keep == 0 || trial->n == trial->keep)
			go_to(trial, FP_HOLD_MEASURE);
		break;
	}
	return trial->held;
}
