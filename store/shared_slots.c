/*
 * The memory that the two sides of a fork share. Room: store.
 */
#include "shared_slots.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

/* An identity, stored as words that one process can read while another writes them. */
struct identity_words {
	_Atomic uint64_t id, token[2], grace_ns;
};

/* The lowest bit of version selects the valid copy. Version 0: neither is valid. */
struct identity_pair {
	_Atomic uint64_t version;
	struct identity_words copy[2];
};

struct fp_shared_slots {
	uint64_t n_words;
	_Atomic uint64_t n_cleared;
	struct identity_pair identity[FP_SHARED_SLOTS_MAX_NODES];
	_Atomic uint64_t word[];
};

static_assert(sizeof(((struct fp_session_identity *)0)->token) == 2 * sizeof(uint64_t),
              "a token is two words");

static size_t size_bytes(uint64_t n_words)
{
	return sizeof(struct fp_shared_slots) + n_words * sizeof(uint64_t);
}

int fp_shared_slots_new(uint64_t n_words, struct fp_shared_slots **ret_map)
{
	struct fp_shared_slots *map =
	    mmap(NULL, size_bytes(n_words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		return -ENOMEM;
	map->n_words = n_words;
	*ret_map = map;
	return 0;
}

void fp_shared_slots_free(struct fp_shared_slots *map)
{
	if (map)
		munmap(map, size_bytes(map->n_words));
}

uint64_t fp_shared_slots_get(const struct fp_shared_slots *map, uint64_t word)
{
	return word < map->n_words ? atomic_load_explicit(&map->word[word], memory_order_acquire) : 0;
}

void fp_shared_slots_set(struct fp_shared_slots *map, uint64_t word, uint64_t bits)
{
	assert(word < map->n_words);
	atomic_store_explicit(&map->word[word], bits, memory_order_relaxed);
}

void fp_shared_slots_clear(struct fp_shared_slots *map, uint64_t word, uint64_t bits)
{
	assert(word < map->n_words);
	atomic_fetch_and_explicit(&map->word[word], ~bits, memory_order_release);
	atomic_fetch_add_explicit(&map->n_cleared, 1, memory_order_release);
}

uint64_t fp_shared_slots_n_cleared(const struct fp_shared_slots *map)
{
	return atomic_load_explicit(&map->n_cleared, memory_order_acquire);
}

void fp_shared_slots_set_identity(struct fp_shared_slots *map, unsigned node,
                                  const struct fp_session_identity *identity)
{
	struct identity_pair *pair = &map->identity[node];
	uint64_t version = atomic_load_explicit(&pair->version, memory_order_relaxed) + 1, token[2];
	struct identity_words *words = &pair->copy[version & 1];

	memcpy(token, identity->token, sizeof(token));
	/*
	 * Pairs with the fence of fp_shared_slots_identity. A slow reader may still read this copy.
	 * With the fences, it notices that the copy's version is no longer the valid one.
	 */
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&words->id, identity->id, memory_order_relaxed);
	atomic_store_explicit(&words->token[0], token[0], memory_order_relaxed);
	atomic_store_explicit(&words->token[1], token[1], memory_order_relaxed);
	atomic_store_explicit(&words->grace_ns, identity->grace_ns, memory_order_relaxed);
	atomic_store_explicit(&pair->version, version, memory_order_release);
}

static void copy_words(const struct identity_words *words, struct fp_session_identity *ret_identity)
{
	uint64_t token[2] = {atomic_load_explicit(&words->token[0], memory_order_relaxed),
	                     atomic_load_explicit(&words->token[1], memory_order_relaxed)};

	ret_identity->id = atomic_load_explicit(&words->id, memory_order_relaxed);
	ret_identity->grace_ns = atomic_load_explicit(&words->grace_ns, memory_order_relaxed);
	memcpy(ret_identity->token, token, sizeof(token));
}

bool fp_shared_slots_identity(const struct fp_shared_slots *map, unsigned node,
                              struct fp_session_identity *ret_identity)
{
	const struct identity_pair *pair = &map->identity[node];
	struct fp_session_identity identity;
	uint64_t version;

	do { /* repeats only if the parent sets a new identity meanwhile */
		version = atomic_load_explicit(&pair->version, memory_order_acquire);
		if (version == 0)
			return false;
		copy_words(&pair->copy[version & 1], &identity);
		atomic_thread_fence(memory_order_acquire);
	} while (atomic_load_explicit(&pair->version, memory_order_relaxed) != version);
	*ret_identity = identity;
	return true;
}
