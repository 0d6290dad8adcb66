/*
 * Where a mapping or an allocation of the program belongs, by the rules of its settings; and how
 * much of its memory is local by them. Room: preload.
 */
#ifndef FP_LOCAL_RULES_H
#define FP_LOCAL_RULES_H

#include <stddef.h>

#include "rules.h"
#include "statspage.h"

/* Takes the rules over. Once, before the program has threads of its own. */
void fp_local_rules_open(struct fp_rules *rules);

/* What the rules say of size bytes for code at caller. Any thread; the callers of malloc too. */
enum fp_place fp_local_rules_of(enum fp_rule_of of, size_t size, const void *caller);

/* Allocations of fewer bytes fit no rule. */
size_t fp_local_rules_heap_from(void);

/*
 * A mapping was kept local by a rule; a plain range is unmapped, or moved away. They keep
 * stats->rule_local_bytes: of the 64 mappings that are kept at most.
 */
void fp_local_rules_kept(const void *addr, size_t len, struct fp_statspage *stats);
void fp_local_rules_gone(const void *addr, size_t len, struct fp_statspage *stats);

#endif
