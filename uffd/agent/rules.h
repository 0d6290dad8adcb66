/*
 * The list of rules in the settings file. It decides whether a mapping or an allocation is far or
 * local. Room: uffd/agent, with settings.h; pure but for its own memory.
 *
 * The first rule that fits decides. If none fits, `heap` and `min_mapping` decide. A rule never
 * makes these far: files, shared memory, stacks, mappings at a chosen address.
 */
#ifndef FP_RULES_H
#define FP_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP_RULES_MAX 64u /* so that one 64-bit word has a bit for each rule */

enum fp_place { FP_PLACE_FAR, FP_PLACE_LOCAL, FP_PLACE_UNSAID };

enum fp_rule_of { FP_RULE_ALL, FP_RULE_HEAP, FP_RULE_MAPPINGS };

struct fp_rule {
	int place;                     /* enum fp_place, not UNSAID */
	int of;                        /* enum fp_rule_of: the kind of memory it is about */
	uint64_t min_bytes, max_bytes; /* the smallest and largest size that fit; max 0: no limit */
	char *library;                 /* glob of the whole path or of its last part; NULL: any caller */
};

struct fp_rules {
	struct fp_rule *items;
	size_t n;
};

/* Appends a rule that fits everything. The list owns it. NULL: no memory. */
struct fp_rule *fp_rules_add(struct fp_rules *rules);
void fp_rules_done(struct fp_rules *rules);

/*
 * Returns 0, or -EINVAL if a rule can fit nothing, or if there are more than FP_RULES_MAX rules.
 * *ret_index is then the index of that rule, or of the first rule beyond FP_RULES_MAX.
 */
int fp_rules_check(const struct fp_rules *rules, size_t *ret_index);

/*
 * Returns one bit for each rule: set if its library fits path, or if it names no library. May
 * allocate.
 */
uint64_t fp_rules_match_library(const struct fp_rules *rules, const char *path);

/*
 * What the rules decide for memory of size bytes. The parameter `of` is FP_RULE_HEAP or
 * FP_RULE_MAPPINGS. The parameter libraries is the result of fp_rules_match_library.
 */
enum fp_place fp_rules_place(const struct fp_rules *rules, enum fp_rule_of of, uint64_t size,
                             uint64_t libraries);

/* True if a rule on this kind names a library. */
bool fp_rules_ask_library(const struct fp_rules *rules, enum fp_rule_of of);

/* The smallest allocation that a rule may fit; UINT64_MAX: no rule is about the heap. */
uint64_t fp_rules_heap_from(const struct fp_rules *rules);

#endif
