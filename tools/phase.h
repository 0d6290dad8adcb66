/*
 * The histograms of a stats page by name, as --phase and --kind take them. Room: tools.
 */
#ifndef FP_PHASE_H
#define FP_PHASE_H

#include "statspage.h"

struct fp_phase {
	const char *title; /* for a person */
	size_t offset;     /* in struct fp_statspage */
};

#define FP_PHASES      4u
#define FP_PHASE_KINDS 6u

/* The names, ended by NULL; the first is the default. */
extern const char *const fp_phase_names[FP_PHASES + 1];
/* The phases in the same order. */
extern const struct fp_phase fp_phases[FP_PHASES];

/*
 * The same for the kinds of faults. The first is "all", which has the histogram of the first phase.
 */
extern const char *const fp_phase_kind_names[FP_PHASE_KINDS + 1];
extern const struct fp_phase fp_phase_kinds[FP_PHASE_KINDS];

const struct fp_hist *fp_phase_hist(const struct fp_phase *phase, const struct fp_statspage *page);

#endif
