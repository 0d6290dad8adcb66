/*
 * SIGBUS of an inline fault: finds the agent that owns the page. Room: uffd/agent. The preload shim
 * has a handler of its own, which calls fp_agent_signal first. For other callers, fp_sigbus_install
 * installs one. It passes every other SIGBUS on to the program's handler.
 */
#ifndef FP_SIGBUS_H
#define FP_SIGBUS_H

#include <stdint.h>

struct fp_agent;

/* The kind of access, as the processor reports it. */
enum fp_access {
	FP_ACCESS_UNKNOWN,
	FP_ACCESS_READ,      /* a read of an absent page */
	FP_ACCESS_WRITE,     /* a write to an absent page */
	FP_ACCESS_PROTECTED, /* a write to a present page */
};

/*
 * The access that caused a fault, from the context of its signal. FP_ACCESS_UNKNOWN if the
 * processor does not say.
 */
enum fp_access fp_sigbus_access(const void *context);

/*
 * From now on faults in [base, base + len) go to this agent. Returns 0, or -ENOSPC if this process
 * has too many agents.
 */
int fp_sigbus_add(struct fp_agent *agent, uintptr_t base, uint64_t len);
void fp_sigbus_remove(const struct fp_agent *agent);

/*
 * Installs the process's handler, once. It passes every SIGBUS that is not ours to the former
 * handler. Returns 0 or a negative errno. The program may install a handler of its own later, if
 * that handler calls this one. After that the program may open no more agents.
 */
int fp_sigbus_install(void);

#endif
