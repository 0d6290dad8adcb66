/* See shim.h. */
#include "shim.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "imports.h"
#include "local.h"
#include "log.h"
#include "lookup.h"

static struct {
	_Atomic(struct fp_agent *) agent;
	size_t min_mapping;
} shim;

struct fp_agent *fp_shim_agent(void)
{
	return atomic_load_explicit(&shim.agent, memory_order_acquire);
}

struct fp_space *fp_shim_space(void)
{
	struct fp_agent *agent = fp_shim_agent();

	return agent && !fp_local_is_agent() ? fp_agent_space(agent) : NULL;
}

void fp_shim_set_agent(struct fp_agent *agent)
{
	atomic_store_explicit(&shim.agent, agent, memory_order_release);
}

void fp_shim_set_min_mapping(size_t bytes)
{
	shim.min_mapping = bytes;
}

size_t fp_shim_min_mapping(void)
{
	return shim.min_mapping;
}

void *fp_shim_next(_Atomic(void *) *known, const char *name)
{
	void *found = atomic_load_explicit(known, memory_order_relaxed), *own;

	if (!found) {
		found = fp_lookup_next(name, NULL);
		atomic_store_explicit(known, found, memory_order_relaxed);
	}
	own = fp_local_is_agent() ? fp_imports_find(name) : NULL;
	return own ? own : found;
}

int fp_shim_return(int r)
{
	if (r >= 0)
		return r;
	errno = -r;
	return -1;
}

long fp_shim_return_long(long r)
{
	if ((unsigned long)r < (unsigned long)-4095l)
		return r;
	errno = (int)-r;
	return -1;
}

void fp_shim_say_once(atomic_bool *said, const char *format, ...)
{
	char text[512];
	va_list args;

	if (atomic_exchange(said, true))
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fp_log(FP_LOG_WARNING, "preload", "%s", text);
}
