/*
 * Generations: the forks of this process whose children, or theirs, live, and the one that it was
 * born of. Room: store. It knows slots, shared memory and pipes; nodes and sessions only by their
 * identities.
 *
 *     parent                      shared memory                    child, and its children
 *     alive_fd: end of file       held: a bit for each slot        descendants_fd: held by the kernel until
 *       when all of them ended      that the child still holds       the last of them has ended
 */
#ifndef FP_GENERATION_H
#define FP_GENERATION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared_slots.h"

struct fp_store;
struct fp_slots;

/* One fork, as the process sees it that forked, or that was born. */
struct fp_generation {
	struct fp_generation *next;
	struct fp_shared_slots *map;
	int alive_fd;       /* of a fork of ours: the reading end of the pipe; else -1 */
	ino_t pipe;         /* what alive_fd must be, whatever the program closes or replaces */
	int descendants_fd; /* of the fork that made us, during ours: the writing end; else -1 */
};

/* A part of struct fp_store. */
struct fp_generations {
	pthread_mutex_t lock; /* held from prepare to the end of a fork; the last but lanes_lock. Never across
	                         a call that blocks */
	struct fp_generation *pending; /* from prepare on, in the parent until it is living, in the child
	                                  until it is born of it */
	int prepare_error;
	struct fp_generation *living; /* forks of ours whose line has not ended, as far as is known */
	struct fp_generation
	    *ancestors;          /* constant: what we were born of, our parent, ... the nearest first */
	uint32_t n_inherited;    /* constant: leases 1..n_inherited are our parent's */
	uint32_t parents_first;  /* constant: and from here on its own, not its parent's in turn */
	uint64_t n_shared_words; /* of our own leases; under reserve_lock */
	uint64_t swept;          /* what the last sweep has seen, see sweep_mark */
	_Atomic bool has_forked; /* from then on our bits in ancestors->map stand for our children too, and
	                            go when our line ends */
	_Atomic unsigned n_living;
	_Atomic uint64_t n_limbo;  /* never less than the slots in limbo */
	_Atomic uint64_t n_let_go; /* how often a slot came into limbo */
};

void fp_generations_init(struct fp_generations *gens);
/* Ends this process' part in all of them. One thread is left. */
void fp_generations_done(struct fp_generations *gens);

/* A slot that is shared is let go of. Any thread, lock-free. */
void fp_generations_let_go(struct fp_store *store, struct fp_slots *slots, uint64_t slot);

/* The identity of a node's session has changed: children that are to adopt it learn it. Blocks
 * shortly. */
void fp_generations_publish(struct fp_store *store, unsigned node_idx);

/* Whether a child lives, which may still have to adopt our sessions. One thread is left. */
bool fp_generations_any_living(struct fp_store *store);

/* In a child, first: what fp_store_fork_prepare has locked is its own from now on. */
void fp_generations_unlock(struct fp_store *store);

/*
 * In a child: the pending generation is the one that it was born of; its parent's children are none
 * of its own. Maps that no node's adopt_from names go.
 */
void fp_generations_enter_child(struct fp_store *store);

#endif
