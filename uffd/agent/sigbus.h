/*
 * SIGBUS: from the signal of an inline fault to the agent whose page it is. Room: uffd. The preload
 * shim has a handler of its own, which asks fp_agent_signal first; for any other caller this
 * installs one, in front of whatever the program has set.
 */
#ifndef FP_SIGBUS_H
#define FP_SIGBUS_H

#include <stdint.h>

struct fp_agent;

/* What the processor says of an access. */
enum fp_access {
	FP_ACCESS_UNKNOWN,
	FP_ACCESS_READ,      /* of a page that is not there */
	FP_ACCESS_WRITE,     /* the same */
	FP_ACCESS_PROTECTED, /* a write to a page that is there */
};

/* From the context of a signal handler. FP_ACCESS_UNKNOWN on processors whose context does not
 * tell. */
enum fp_access fp_sigbus_access(const void *context);

/* From here on faults in [base, base + len) are this agent's. 0; -ENOSPC: too many agents in this
 * process. */
int fp_sigbus_add(struct fp_agent *agent, uintptr_t base, uint64_t len);
void fp_sigbus_remove(const struct fp_agent *agent);

/*
 * Installs the process's handler, in front of the one that is there now, unless that is it. 0 or a
 * negative errno. A program that sets one of its own later has to call the one that it replaces,
 * and may open no more agents.
 */
int fp_sigbus_install(void);

#endif
