/* See local_rules.h. Runs in every mmap, and in every malloc if a rule is about the heap. */
#include "local_rules.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "cleanup.h"
#include "local.h"

#define KEPT_MAX 64u

static struct {
	struct fp_rules rules;
	bool asks_library;                   /* some rule names a library */
	_Atomic uintptr_t kept[KEPT_MAX][2]; /* start and end of each kept mapping; start 0: unused */
	_Atomic unsigned n_kept;             /* how many mappings were ever kept */
} place;

/* The library whose code last asked on this thread, and the rules that fit it. */
static __thread struct {
	const void *map;
	const void *start;
	uint64_t matched;
} last __attribute__((tls_model("initial-exec")));

void fp_local_rules_open(struct fp_rules *rules)
{
	place.rules = *rules;
	*rules = (struct fp_rules){.n = 0};
	place.asks_library = fp_rules_ask_library(&place.rules, FP_RULE_HEAP) ||
	                     fp_rules_ask_library(&place.rules, FP_RULE_MAPPINGS);
}

static uint64_t match(const char *name)
{
	char path[4096];
	ssize_t len;

	if (*name)
		return fp_rules_match_library(&place.rules, name);
	len = readlink("/proc/self/exe", path, sizeof(path) - 1); /* the link map does not name the program */
	path[FP_MAX(len, 0)] = '\0';
	return fp_rules_match_library(&place.rules, path);
}

/*
 * The rules that fit the caller's library. Code outside of libraries (compiled at run time) fits
 * the rules that name no library.
 */
static uint64_t libraries_of(const void *caller)
{
	int saved = errno;
	struct dl_find_object found;

	if (!place.asks_library)
		return UINT64_MAX;
	if (_dl_find_object((void *)caller, &found) < 0)
		return fp_rules_match_library(&place.rules, "");
	if (last.map != found.dlfo_link_map || last.start != found.dlfo_map_start) {
		uint64_t mask = fp_local_enter_masked();

		last.matched = match(found.dlfo_link_map->l_name);
		fp_local_leave_masked(mask);
		last.map = found.dlfo_link_map;
		last.start = found.dlfo_map_start;
	}
	errno = saved;
	return last.matched;
}

enum fp_place fp_local_rules_of(enum fp_rule_of of, size_t size, const void *caller)
{
	return place.rules.n ? fp_rules_place(&place.rules, of, size, libraries_of(caller)) : FP_PLACE_UNSAID;
}

size_t fp_local_rules_heap_from(void)
{
	return (size_t)fp_rules_heap_from(&place.rules);
}

/* ---- mappings that the rules keep local ---- */

static void publish(struct fp_statspage *stats)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < KEPT_MAX; i++) {
		uintptr_t start = atomic_load(&place.kept[i][0]), end = atomic_load(&place.kept[i][1]);

		bytes += start && end > start ? end - start : 0;
	}
	atomic_store(&stats->rule_local_bytes, bytes);
}

void fp_local_rules_kept(const void *addr, size_t len, struct fp_statspage *stats)
{
	for (unsigned i = 0; i < KEPT_MAX; i++) {
		uintptr_t none = 0;

		if (!atomic_compare_exchange_strong(&place.kept[i][0], &none, (uintptr_t)addr))
			continue;
		atomic_store(&place.kept[i][1], (uintptr_t)addr + len);
		atomic_fetch_add(&place.n_kept, 1);
		publish(stats);
		return;
	}
}

/*
 * Stops counting a range. If a kept mapping loses its middle, the part behind the hole no longer
 * counts.
 */
void fp_local_rules_gone(const void *addr, size_t len, struct fp_statspage *stats)
{
	uintptr_t from = (uintptr_t)addr, to = from + len;
	bool any = false;

	if (atomic_load_explicit(&place.n_kept, memory_order_relaxed) == 0)
		return;
	for (unsigned i = 0; i < KEPT_MAX; i++) {
		uintptr_t start = atomic_load(&place.kept[i][0]), end = atomic_load(&place.kept[i][1]);

		if (!start || from >= end || to <= start)
			continue;
		any = true;
		if (from > start) {
			atomic_store(&place.kept[i][1], from);
		} else if (to < end) {
			atomic_store(&place.kept[i][0], to);
		} else {
			atomic_store(&place.kept[i][1], 0);
			atomic_store(&place.kept[i][0], 0);
		}
	}
	if (any)
		publish(stats);
}
