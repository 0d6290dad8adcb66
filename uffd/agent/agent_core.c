/*
 * Core dumps: a core holds only pages that are local. So before the program dies, this brings in
 * its far pages, over the budget. Room: uffd/agent. Runs in a signal handler of a program that is
 * broken already: no lock of the agent, no allocation, no touch of far memory. It begins nothing
 * that can't end.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "abi.h"
#include "agent_priv.h"
#include "cleanup.h"
#include "log.h"
#include "units.h"

#define CHUNK_PAGES (1u << FP_CHUNK_SHIFT)

/*
 * Reads the beginning of a file of /proc as text. The descriptor is not put on the list of ours:
 * that takes a lock.
 */
static ssize_t read_text(const char *path, char *buf, size_t len)
{
	fp_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, len - 1);

	buf[n < 0 ? 0 : n] = '\0';
	return n;
}

/* RLIMIT_CORE does not bound a core that goes to a program. */
static bool is_dumped(void)
{
	struct rlimit limit;
	char pattern[2];

	if (prctl(PR_GET_DUMPABLE) != 1)
		return false;
	if (getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur > 0)
		return true;
	return read_text("/proc/sys/kernel/core_pattern", pattern, sizeof(pattern)) == 1 && *pattern == '|';
}

/* How much memory the machine can give without swapping; 0: it does not tell. */
static uint64_t available_bytes(void)
{
	char text[256], *found;

	if (read_text("/proc/meminfo", text, sizeof(text)) < 0 || !(found = strstr(text, "MemAvailable:")))
		return 0;
	return strtoull(found + strlen("MemAvailable:"), NULL, 10) << 10;
}

/*
 * A page that the kernel does not have, but that can come. A page that a layout call owns is left
 * out: that call may be the one in which the program crashed. So is a page whose node is away: the
 * program's end must not wait for it.
 */
static bool is_far(const struct fp_far *far, uint64_t word)
{
	enum fp_page_state state = fp_page_state(word);

	return state == FP_PAGE_LEAVING || state == FP_PAGE_ARRIVING ||
	       (state == FP_PAGE_REMOTE && fp_store_slot_up(far->store, fp_page_slot(word)));
}

/*
 * Waits until the kernel has the page. Its word may say so later. False: the page does not come.
 */
static bool bring(struct fp_agent *agent, uint32_t page)
{
	if (!atomic_load(&agent->far.inline_servers))
		return madvise(fp_far_addr(&agent->far, page), FP_PAGE_SIZE, MADV_POPULATE_READ) == 0;
	fp_agent_pin_bring(agent, (struct fp_page_range){page, 1}, false);
	return !is_far(&agent->far, atomic_load(&agent->far.words[page]));
}

static bool leave(struct fp_agent *agent, uint32_t page)
{
	return false;
}

/* Calls `act` for each far page. Returns for how many it was in vain. */
static uint64_t each_far(struct fp_agent *agent, bool (*act)(struct fp_agent *agent, uint32_t page))
{
	const struct fp_far *far = &agent->far;
	uint64_t n = 0;

	for (uint32_t page = far->first; page < far->last; page++) {
		uint32_t chunk = page >> FP_CHUNK_SHIFT;

		if (!(atomic_load(&far->touched[chunk / 64]) >> (chunk & 63) & 1))
			page |= CHUNK_PAGES - 1;
		else if (is_far(far, atomic_load(&far->words[page])))
			n += !act(agent, page);
	}
	return n;
}

/* Pages that count as pinned come on top of the budget, and the program needs no budget any
 * more. */
static void lift_budget(struct fp_agent *agent, uint64_t n)
{
	fp_budget_pin(&agent->far.budget, atomic_load(&agent->far.budget.pages) + n);
}

static void bring_all(struct fp_agent *agent)
{
	uint64_t n = each_far(agent, leave), missing = n;
	bool fits = n << FP_PAGE_SHIFT < available_bytes();
	char size[16];

	if (fits) {
		lift_budget(agent, n);
		each_far(agent, bring);
		missing = each_far(agent, bring); /* a page that was leaving may have left meanwhile */
	}
	n -= FP_MIN(n, missing);
	fp_log(FP_LOG_NOTICE, "core", "%" PRIu64 " far pages (%s) were brought in for the core dump", n,
	       fp_size_format(n << FP_PAGE_SHIFT, size, sizeof(size)));
	if (missing)
		fp_log(FP_LOG_WARNING, "core", "%" PRIu64 " far pages are missing in the core dump: %s",
		       missing, fits ? "they could not be read" : "this machine has too little free memory");
}

void fp_agent_core_fill(struct fp_agent *agent)
{
	if (fp_agent_is_own_thread() || fp_far_is_stray(&agent->far) || !is_dumped())
		return;
	bring_all(agent);
}
