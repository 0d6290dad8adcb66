/*
 * Who stays local: the list of rules in the file of settings, and what it says of a mapping or an
 * allocation. Room: uffd, on its outer side, with settings.h; pure but for its own memory.
 *
 * The first rule that fits decides. What no rule fits is as `heap` and `min_mapping` have it. A
 * rule can't make far what never is: files, shared memory, stacks, mappings that ask for their
 * place.
 */
#ifndef FP_RULES_H
#define FP_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP_RULES_MAX 64u /* libraries are matched in one word of bits */

enum fp_place { FP_PLACE_FAR, FP_PLACE_LOCAL, FP_PLACE_UNSAID };

enum fp_rule_of { FP_RULE_ALL, FP_RULE_HEAP, FP_RULE_MAPPINGS };

struct fp_rule {
	int place;                     /* enum fp_place, not UNSAID */
	int of;                        /* enum fp_rule_of: what it is about */
	uint64_t min_bytes, max_bytes; /* both included; max 0: no bound */
	char *library;                 /* glob of the path, or the last part of it; NULL: whoever calls */
};

struct fp_rules {
	struct fp_rule *items;
	size_t n;
};

/* Appends a rule that fits everything; NULL: no memory. Owned by rules. */
struct fp_rule *fp_rules_add(struct fp_rules *rules);
void fp_rules_done(struct fp_rules *rules);

/* 0, or -EINVAL and *ret_index: a rule that can fit nothing, or one too many. */
int fp_rules_check(const struct fp_rules *rules, size_t *ret_index);

/* A bit for each rule whose library fits path, and for each that asks for none. May allocate. */
uint64_t fp_rules_match_library(const struct fp_rules *rules, const char *path);

/* What is said of size bytes; of: HEAP or MAPPINGS; libraries: see fp_rules_match_library. */
enum fp_place fp_rules_place(const struct fp_rules *rules, enum fp_rule_of of, uint64_t size,
                             uint64_t libraries);

/* True if a rule on this asks for a library. */
bool fp_rules_ask_library(const struct fp_rules *rules, enum fp_rule_of of);

/* The least size of an allocation that a rule may fit; UINT64_MAX: none is about the heap. */
uint64_t fp_rules_heap_from(const struct fp_rules *rules);

#endif
