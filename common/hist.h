/*
 * Log-linear latency histogram for values from 1 ns to 100 s, with an error of 1 % at most. Its
 * memory is fixed, and recording takes no lock. Room: common. The struct has no pointers, so that
 * it can lie in a memory-mapped file that processes share.
 *
 * The layout follows G. Tene's HdrHistogram: 64 linear sub-buckets for every power of two. So a
 * bucket is at most 1/64 of its value wide, and its midpoint is at most 0.8 % off.
 */
#ifndef FP_HIST_H
#define FP_HIST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define FP_HIST_SUB_BITS 6
#define FP_HIST_MAX_BITS 37
/* 137 s; a longer value counts in the last bucket, but with its exact size in maximum and mean */
#define FP_HIST_MAX_NS ((1ull << FP_HIST_MAX_BITS) - 1)
/* indices 0..127 hold 0..127 ns exactly; each further power of two up to 2^37 has 64 indices */
#define FP_HIST_BUCKETS ((FP_HIST_MAX_BITS - FP_HIST_SUB_BITS + 1u) << FP_HIST_SUB_BITS)

struct fp_hist {
	_Atomic uint64_t count;
	_Atomic uint64_t sum_ns;
	_Atomic uint64_t min_ns; /* stored as ~value: zeroed memory is an empty histogram */
	_Atomic uint64_t max_ns;
	_Atomic uint64_t bucket[FP_HIST_BUCKETS];
};

enum fp_hist_format { FP_HIST_TEXT, FP_HIST_JSON, FP_HIST_CSV, FP_HIST_HGRM };

/*
 * Counts one value. Relaxed atomics, no allocation: any thread, the fault path too. A zeroed struct
 * is an empty histogram.
 */
void fp_hist_record(struct fp_hist *h, uint64_t value_ns);

/*
 * Adds the values of *from to *h. Other threads may record into both meanwhile. A value that they
 * record into *from is then in *h once, or not at all. If *from is a copy made while threads
 * recorded, its fields may contradict each other a little. What is added to *h has no
 * contradictions.
 */
void fp_hist_merge(struct fp_hist *h, const struct fp_hist *from);

/*
 * Takes an earlier copy of the same histogram out of h: h then holds what was counted since. h must
 * be a copy, too. If h had a lower minimum than the earlier copy, the new minimum is exact. If not,
 * it is the lower bound of its bucket, or the minimum that h had if that is higher. For the
 * maximum, the same holds the other way round.
 */
void fp_hist_subtract(struct fp_hist *h, const struct fp_hist *before);

/* True if before can be an earlier copy of the same histogram: it has in no bucket more than h. */
bool fp_hist_covers(const struct fp_hist *h, const struct fp_hist *before);

/*
 * Checks a histogram that was read from a file. Returns 0, or -EBADMSG if its fields contradict
 * each other. A copy that was made while threads recorded may fail, too: then copy again. For
 * readers.
 */
int fp_hist_check(const struct fp_hist *h);

/* The value in ns that a fraction q (0..1) of the counted values does not exceed; 0 if empty. */
uint64_t fp_hist_quantile(const struct fp_hist *h, double q);

uint64_t fp_hist_count(const struct fp_hist *h);
uint64_t fp_hist_min(const struct fp_hist *h);
uint64_t fp_hist_max(const struct fp_hist *h);
double fp_hist_mean(const struct fp_hist *h);

/*
 * Writes h to out in one of four forms. title is a name for the text form, and width the columns of
 * the terminal, or 0. Returns 0 or a negative errno of the stream.
 *   - TEXT: a summary line and bars, for a person. A terminal with fewer columns than the line has
 *     gets it in several lines.
 *   - JSON: one object with count, min, mean, p50, p90, p99, p999 and max in ns, and the non-empty
 *     buckets as [low, high, count].
 *   - CSV: low_ns,high_ns,count.
 *   - HGRM: the percentile table that HdrHistogram's plotter reads, in microseconds.
 */
int fp_hist_print(const struct fp_hist *h, enum fp_hist_format format, const char *title, unsigned width,
                  FILE *out);

/*
 * Draws h as bars: passes each line, of about width columns, to line. Rows become coarser until
 * there are at most max_lines. h must not change meanwhile; an empty one has no lines.
 */
void fp_hist_bars(const struct fp_hist *h, unsigned max_lines, unsigned width,
                  void (*line)(void *user, const char *text), void *user);

#endif
