/* The inside of struct fp_agent, for agent.c, agent_pin.c and fork.c. Room: uffd/agent. */
#ifndef FP_AGENT_PRIV_H
#define FP_AGENT_PRIV_H

#include "affinity.h"
#include "agent.h"
#include "agent_stats.h"
#include "evict.h"
#include "far.h"
#include "fault.h"
#include "fdguard.h"
#include "reconnector.h"
#include "lockedmem.h"
#include "reclaim.h"
#include "space_priv.h"

struct fp_agent {
	struct fp_far far;
	struct fp_space space;
	struct fp_reclaim *reclaim;
	struct fp_fault_loop *fault_loop;
	struct fp_fdguard guard;
	struct fp_reconnector *reconnector;
	bool has_log_writer;
	struct fp_agent_options options; /* a deep copy, which a forked child uses for its own start */
	pthread_mutex_t fork_turn; /* held from quiet to the fork's end; taken before allocators' locks */
	unsigned local_percent;    /* see fp_agent_options; 0: the budget is fixed */
	struct fp_affinity affinity;
	bool is_child; /* the agent of a forked child, whose store has no sessions of its own yet */
	struct fp_agent_stats stats;
};

/* open_kernel opens everything that the kernel gives us; start_threads then starts the work. */
int fp_agent_open_kernel(struct fp_agent *agent, struct fp_agent_error *error);
void fp_agent_close_kernel(struct fp_agent *agent);
int fp_agent_start_threads(struct fp_agent *agent, struct fp_agent_error *error);
/* The store's options. They point into the agent's own options. */
struct fp_store_options fp_agent_store_options(const struct fp_agent *agent);
/* Serves the pages of a range inline. Any thread, signal handlers too. */
void fp_agent_pin_bring(struct fp_agent *agent, struct fp_page_range r, bool write);
/* In a forked child, after its budget is renewed: keeps only the pins of this thread. */
void fp_agent_pin_forked(struct fp_agent *agent);
void fp_agent_affinity_init(struct fp_agent *agent, enum fp_affinity_mode mode);
void fp_agent_enter_local(const struct fp_agent *agent);
void fp_agent_leave_local(const struct fp_agent *agent);

#endif
