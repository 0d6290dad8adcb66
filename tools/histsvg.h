/*
 * Histograms as a picture (SVG). Room: tools.
 */
#ifndef FP_HISTSVG_H
#define FP_HISTSVG_H

#include <stdio.h>

#include "hist.h"

/*
 * Draws h, which must not change meanwhile, as a curve: latency over percentile, both logarithmic,
 * so that each further nine takes the same space. title may be any text. 0 or a negative errno.
 */
int fp_histsvg_print(const struct fp_hist *h, const char *title, FILE *out);

/* Draws n histograms over the same axes, with a legend. names: one for each, any text. */
int fp_histsvg_compare(const struct fp_hist *const *hists, const char *const *names, unsigned n,
                       const char *title, FILE *out);

#endif
