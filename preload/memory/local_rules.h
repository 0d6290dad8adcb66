/*
 * Where a mapping or an allocation of the program belongs, by the rules of its settings. Also
 * counts how much memory the rules keep local. Room: preload/memory.
 */
#ifndef FP_LOCAL_RULES_H
#define FP_LOCAL_RULES_H

#include <stddef.h>

#include "rules.h"
#include "statspage.h"

/* Takes ownership of the rules. Once, before the program has threads of its own. */
void fp_local_rules_open(struct fp_rules *rules);

/* Where the rules put size bytes for code at caller. Any thread, also inside malloc. */
enum fp_place fp_local_rules_of(enum fp_rule_of of, size_t size, const void *caller);

/* Allocations of fewer bytes fit no rule. */
size_t fp_local_rules_heap_from(void);

/*
 * A rule kept a mapping local; a plain range is unmapped or moved away. They update
 * stats->rule_local_bytes, which counts at most 64 such mappings at a time.
 */
void fp_local_rules_kept(const void *addr, size_t len, struct fp_statspage *stats);
void fp_local_rules_gone(const void *addr, size_t len, struct fp_statspage *stats);

#endif
