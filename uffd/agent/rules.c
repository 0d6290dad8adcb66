/* See rules.h. */
#include "rules.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

struct fp_rule *fp_rules_add(struct fp_rules *rules)
{
	struct fp_rule *items = reallocarray(rules->items, rules->n + 1, sizeof(*items));

	if (!items)
		return NULL;
	rules->items = items;
	items[rules->n] = (struct fp_rule){.place = FP_PLACE_UNSAID};
	return &items[rules->n++];
}

void fp_rules_done(struct fp_rules *rules)
{
	for (size_t i = 0; i < rules->n; i++)
		free(rules->items[i].library);
	free(rules->items);
	*rules = (struct fp_rules){.n = 0};
}

int fp_rules_check(const struct fp_rules *rules, size_t *ret_index)
{
	for (size_t i = 0; i < rules->n; i++) {
		const struct fp_rule *rule = &rules->items[i];

		if (i < FP_RULES_MAX && !(rule->max_bytes && rule->min_bytes > rule->max_bytes) &&
		    !(rule->library && !*rule->library))
			continue;
		*ret_index = i;
		return -EINVAL;
	}
	return 0;
}

static bool fits_library(const char *glob, const char *path)
{
	const char *last = strrchr(path, '/');

	return fnmatch(glob, path, 0) == 0 || (last && fnmatch(glob, last + 1, 0) == 0);
}

uint64_t fp_rules_match_library(const struct fp_rules *rules, const char *path)
{
	uint64_t libraries = 0;

	for (size_t i = 0; i < rules->n; i++)
		if (!rules->items[i].library || fits_library(rules->items[i].library, path))
			libraries |= 1ull << i;
	return libraries;
}

static bool is_about(const struct fp_rule *rule, enum fp_rule_of of)
{
	return rule->of == FP_RULE_ALL || rule->of == (int)of;
}

enum fp_place fp_rules_place(const struct fp_rules *rules, enum fp_rule_of of, uint64_t size,
                             uint64_t libraries)
{
	for (size_t i = 0; i < rules->n; i++) {
		const struct fp_rule *rule = &rules->items[i];

		if (is_about(rule, of) && (libraries >> i & 1) && size >= rule->min_bytes &&
		    (!rule->max_bytes || size <= rule->max_bytes))
			return (enum fp_place)rule->place;
	}
	return FP_PLACE_UNSAID;
}

bool fp_rules_ask_library(const struct fp_rules *rules, enum fp_rule_of of)
{
	for (size_t i = 0; i < rules->n; i++)
		if (is_about(&rules->items[i], of) && rules->items[i].library)
			return true;
	return false;
}

uint64_t fp_rules_heap_from(const struct fp_rules *rules)
{
	uint64_t from = UINT64_MAX;

	for (size_t i = 0; i < rules->n; i++)
		if (is_about(&rules->items[i], FP_RULE_HEAP))
			from = FP_MIN(from, rules->items[i].min_bytes);
	return from;
}
