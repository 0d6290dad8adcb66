/*
 * Decides by the rules of the settings whether a mapping or an allocation is far or local. Also
 * counts how much memory the rules keep local. Room: preload/memory.
 */
#ifndef FP_LOCAL_RULES_H
#define FP_LOCAL_RULES_H

#include <stddef.h>

#include "rules.h"
#include "statspage.h"

/* Takes ownership of the rules. Called once, before the program has other threads. */
void fp_local_rules_open(struct fp_rules *rules);

/*
 * Returns what the rules decide for size bytes, if the code at the address caller asks for them.
 * Any thread, also inside malloc.
 */
enum fp_place fp_local_rules_of(enum fp_rule_of of, size_t size, const void *caller);

/* The size below which no rule fits an allocation. */
size_t fp_local_rules_heap_from(void);

/*
 * fp_local_rules_kept: a rule has kept a mapping local. fp_local_rules_gone: a range that is not
 * far was unmapped or moved away. Both update stats->rule_local_bytes, which counts at most 64
 * mappings kept by rules at a time.
 */
void fp_local_rules_kept(const void *addr, size_t len, struct fp_statspage *stats);
void fp_local_rules_gone(const void *addr, size_t len, struct fp_statspage *stats);

#endif
