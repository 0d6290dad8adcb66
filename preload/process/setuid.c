/*
 * The program becomes another user. A node looks at who connects, and a forked child connects only
 * once it needs to: so it does before, while it may. Servers fork their workers like this, and give
 * up root in these. Room: preload.
 */
#include <unistd.h>

#include "shim.h"

static void connect_first(void)
{
	if (fp_shim_space()) /* none on the agent's own threads */
		fp_agent_await_sessions(fp_shim_agent());
}

FP_INTERPOSE int setuid(uid_t user)
{
	connect_first();
	return FP_NEXT(setuid)(user);
}

FP_INTERPOSE int seteuid(uid_t user)
{
	connect_first();
	return FP_NEXT(seteuid)(user);
}

FP_INTERPOSE int setreuid(uid_t real, uid_t effective)
{
	connect_first();
	return FP_NEXT(setreuid)(real, effective);
}

FP_INTERPOSE int setresuid(uid_t real, uid_t effective, uid_t saved)
{
	connect_first();
	return FP_NEXT(setresuid)(real, effective, saved);
}
