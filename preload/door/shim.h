/*
 * The program's agent, as the interposed calls see it. Room: preload/door, the lowest of the shim's
 * rooms. Of uffd it uses agent.h and space.h.
 */
#ifndef FP_SHIM_H
#define FP_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent.h"
#include "space.h"

/* Marks a function that the program calls instead of the C library's. */
#define FP_INTERPOSE __attribute__((visibility("default")))
/* Marks the declaration of another name of such a function. */
#define FP_ALSO_AS(name) FP_INTERPOSE __attribute__((alias(#name), copy(name)))

/*
 * Returns the function of this name that the program would call without the shim, mostly the C
 * library's. If the thread works for the agent: the C library's, even if another library replaces
 * it for the program. Only the first call looks the program's up; *known keeps it for later calls.
 */
void *fp_shim_next(_Atomic(void *) *known, const char *name);
#define FP_NEXT(name)                                                                                        \
	({                                                                                                   \
		static _Atomic(void *) known_;                                                               \
		(__typeof__(&name))fp_shim_next(&known_, #name);                                             \
	})

/* For a negative errno r, sets errno and returns -1, as a system call does; otherwise returns r. */
int fp_shim_return(int r);
/* fp_shim_return for results that may be addresses: only -4095 to -1 are errors. */
long fp_shim_return_long(long r);

struct fp_agent *fp_shim_agent(void);

/* The program's far memory. NULL if there is none yet, or if this thread works for the agent: its
 * calls then go to the kernel. */
struct fp_space *fp_shim_space(void);

size_t fp_shim_min_mapping(void);

/* Each is called once, at the start. */
void fp_shim_set_agent(struct fp_agent *agent);
void fp_shim_set_min_mapping(size_t bytes);

/*
 * Logs a refusal once in the life of the process. The text says which request, why, and what to do
 * instead.
 */
void fp_shim_say_once(atomic_bool *said, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
