/* See local.h. */
#include "local.h"

#include <pthread.h>

#include "agent.h"

__thread struct fp_local fp_local __attribute__((tls_model("initial-exec")));

void fp_shim_enter_local(void)
{
	int state;

	if (fp_local.depth++ == 0) {
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
		fp_local.cancel_state = state;
	}
	fp_local.fast_below = 0;
}

void fp_shim_leave_local(void)
{
	if (--fp_local.depth > 0)
		return;
	fp_local.fast_below = fp_local.restore;
	pthread_setcancelstate(fp_local.cancel_state, NULL);
}

bool fp_local_is_agent(void)
{
	return fp_local.depth > 0 || fp_agent_is_own_thread();
}
