/*
 * Generations: the forks of this process that have living descendants, and the fork that made this
 * process. Room: store. It knows slots, shared memory and pipes; nodes and sessions only by their
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

/* One fork, as seen by the process that forked, or by its child. */
struct fp_generation {
	struct fp_generation *next;
	struct fp_shared_slots *map;
	int alive_fd; /* the reading end of the pipe, if this process made the fork; else -1 */
	ino_t pipe;   /* inode of that pipe: another inode means that the program replaced alive_fd */
	/*
	 * The writing end of the pipe, for a fork under way and for each fork in ancestors. Else
	 * -1.
	 */
	int descendants_fd;
};

/* A part of struct fp_store. */
struct fp_generations {
	/*
	 * Held from the preparation to the end of a fork, never across a call that blocks. Only
	 * lanes_lock may be taken after it.
	 */
	pthread_mutex_t lock;
	/*
	 * The fork under way. fp_store_fork_prepare sets it. Then the parent moves it to the list
	 * living, and the child moves it to the list ancestors.
	 */
	struct fp_generation *pending;
	int prepare_error;
	/* Those forks of ours whose child, or a child of that child, may still live. */
	struct fp_generation *living;
	struct fp_generation
	    *ancestors;       /* constant: the fork that made us, the one that made our parent, ... */
	uint32_t n_inherited; /* constant: leases 1..n_inherited are our parent's */
	/*
	 * Constant: leases from here to n_inherited are our parent's own. The parent had inherited
	 * the earlier ones itself.
	 */
	uint32_t parents_first;
	uint64_t n_shared_words; /* words of our own leases; under reserve_lock */
	uint64_t swept;          /* sweep_mark at the last sweep */
	/*
	 * Set by our first fork. From then on, our bits in ancestors->map also stand for our
	 * children. They are cleared only when this process and all its descendants have ended.
	 */
	_Atomic bool has_forked;
	_Atomic unsigned n_living;
	_Atomic uint64_t n_limbo;  /* never less than the slots in limbo */
	_Atomic uint64_t n_let_go; /* how often a slot came into limbo */
};

void fp_generations_init(struct fp_generations *gens);
/* Tells all generations that this process needs no slots any more. Only one thread is left. */
void fp_generations_done(struct fp_generations *gens);

/* Gives up a shared slot. Any thread, lock-free. */
void fp_generations_let_go(struct fp_store *store, struct fp_slots *slots, uint64_t slot);

/*
 * The identity of a node's session has changed. Writes the new one where children that may still
 * adopt the session read it. Blocks for a short time.
 */
void fp_generations_publish(struct fp_store *store, unsigned node_idx);

/* True if a living child may still have to adopt our sessions. Only one thread is left. */
bool fp_generations_any_living(struct fp_store *store);

/* Called first in a child: releases its copies of the locks that fp_store_fork_prepare took. */
void fp_generations_unlock(struct fp_store *store);

/*
 * Called in a child: the pending generation becomes its nearest ancestor. The child forgets its
 * parent's other children. It also forgets each map that no node's adopt_from names.
 */
void fp_generations_enter_child(struct fp_store *store);

#endif
