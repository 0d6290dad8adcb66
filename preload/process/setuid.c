/*
 * Functions by which a program changes its user. Room: preload/process. A node checks the user of a
 * connection, and a forked child connects only when it needs to. So before a child changes its
 * user, it connects, while the node still accepts it. Servers fork workers that give up root in
 * this way.
 */
#include <unistd.h>

#include "shim.h"

static void connect_first(void)
{
	if (fp_shim_space()) /* NULL on the agent's own threads */
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
