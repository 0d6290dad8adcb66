/*
 * Reference traces of real algorithms, in pages, for the benchmark victims. Each runs its algorithm
 * on data of its own, and notes which page of a pretended memory each access touches.
 */
#ifndef REFTRACE_H
#define REFTRACE_H

#include <stddef.h>
#include <stdint.h>

struct reftrace {
	const char *name;
	uint32_t *refs; /* page numbers; an access to one of the last RECENT pages is left out */
	size_t n, capacity;
	uint32_t n_pages; /* page numbers are below it */
	uint32_t recent[4];
	unsigned next_recent;
};

struct reftrace_kind {
	const char *name;
	void (*record)(struct reftrace *trace);
};

extern const struct reftrace_kind reftrace_kinds[];
extern const unsigned n_reftrace_kinds;

/* Records the trace of a kind. Ends the process if memory is short. Release with reftrace_done. */
void reftrace_record(const struct reftrace_kind *kind, struct reftrace *ret_trace);
void reftrace_done(struct reftrace *trace);

#endif
