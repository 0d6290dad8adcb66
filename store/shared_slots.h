/*
 * The memory that a parent and the child of one fork share. It says which slots the child still
 * holds, and by which identities the child adopts the parent's sessions. Room: store. It knows
 * words in shared memory, and no processes.
 *
 * Either side may be killed between any two instructions, so nothing here is locked. An identity
 * has several words, so the new one is written beside the valid one. Then a single store makes the
 * new one valid.
 */
#ifndef FP_SHARED_SLOTS_H
#define FP_SHARED_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "transport.h"

#define FP_SHARED_SLOTS_MAX_NODES 16

struct fp_shared_slots;

/*
 * Makes a map of n_words x 64 slots, in memory that a later fork shares. Nobody holds any of the
 * slots yet, and there are no identities. No malloc. 0 and *ret_map, or -ENOMEM.
 * fp_shared_slots_free ends only the caller's view; NULL is fine.
 */
int fp_shared_slots_new(uint64_t n_words, struct fp_shared_slots **ret_map);
void fp_shared_slots_free(struct fp_shared_slots *map);

/*
 * Returns one word of the map; 0 beyond the map's end. Each set bit is a slot that the child holds.
 * Once the child lives, only the child changes the bits. Any thread.
 */
uint64_t fp_shared_slots_get(const struct fp_shared_slots *map, uint64_t word);
/* Sets the bits of a word. Call it before the fork. */
void fp_shared_slots_set(struct fp_shared_slots *map, uint64_t word, uint64_t bits);
/*
 * Clears the bits of these slots: the child no longer holds them, and its reads of them have ended.
 * Any thread.
 */
void fp_shared_slots_clear(struct fp_shared_slots *map, uint64_t word, uint64_t bits);
/*
 * How often bits of the map were cleared. A caller that then reads bits sees at least these
 * changes.
 */
uint64_t fp_shared_slots_n_cleared(const struct fp_shared_slots *map);

/* Sets an identity. Only the parent calls it, one thread at a time. */
void fp_shared_slots_set_identity(struct fp_shared_slots *map, unsigned node,
                                  const struct fp_session_identity *identity);
/* Copies the identity that was last set completely. False: none was. Any thread of any process. */
bool fp_shared_slots_identity(const struct fp_shared_slots *map, unsigned node,
                              struct fp_session_identity *ret_identity);

#endif
