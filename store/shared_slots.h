/*
 * What a parent and the child of one fork share in memory: which slots the child still holds, and
 * by what it adopts the parent's sessions. Room: store. Words in shared memory and nothing else: it
 * knows no process.
 *
 * Either side may be killed between any two instructions. So nothing here is locked, and what is
 * written in several words (an identity) is written beside what is valid, which is then changed by
 * one store.
 */
#ifndef FP_SHARED_SLOTS_H
#define FP_SHARED_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "transport.h"

#define FP_SHARED_SLOTS_MAX_NODES 16

struct fp_shared_slots;

/*
 * A map of n_words x 64 slots that nobody holds, and no identities: memory that a later fork
 * shares. No malloc. 0 and *ret_map, or -ENOMEM. fp_shared_slots_free ends the caller's view alone;
 * NULL is fine.
 */
int fp_shared_slots_new(uint64_t n_words, struct fp_shared_slots **ret_map);
void fp_shared_slots_free(struct fp_shared_slots *map);

/* The bits of a word, changed by the child alone once it lives; 0 beyond the map's end. Any
 * thread. */
uint64_t fp_shared_slots_get(const struct fp_shared_slots *map, uint64_t word);
/* Before the fork. */
void fp_shared_slots_set(struct fp_shared_slots *map, uint64_t word, uint64_t bits);
/* The child holds these no more: what it read of them it has read. Any thread. */
void fp_shared_slots_clear(struct fp_shared_slots *map, uint64_t word, uint64_t bits);
/* How often something was cleared: what was before is seen by who reads this first. */
uint64_t fp_shared_slots_n_cleared(const struct fp_shared_slots *map);

/* One writer at a time: the parent. */
void fp_shared_slots_set_identity(struct fp_shared_slots *map, unsigned node,
                                  const struct fp_session_identity *identity);
/* The last that was set whole. False: none was. Any thread of any process. */
bool fp_shared_slots_identity(const struct fp_shared_slots *map, unsigned node,
                              struct fp_session_identity *ret_identity);

#endif
