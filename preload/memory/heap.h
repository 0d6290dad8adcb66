/*
 * The heap: jemalloc with arenas whose extents are far, beside its own arenas, which stay local.
 * Room: preload/memory.
 */
#ifndef FP_HEAP_H
#define FP_HEAP_H

#include <stdbool.h>
#include <stddef.h>

#include "agent.h"
#include "settings.h"

/*
 * Makes the far arenas; until then everything is local. Returns 0, or -ENOTSUP and error->text if
 * this jemalloc can't keep its records out of far memory. Called once, in a bracket, before the
 * program has other threads.
 */
int fp_heap_open(struct fp_space *space, const struct fp_settings *settings, struct fp_agent_error *error);

/*
 * jemalloc's plain functions, for callers that need no flags. They have fast paths, which the
 * extended functions lack. These pointers are set before fp_local.fast_below is above 0 in any
 * thread.
 */
struct fp_heap_calls {
	void *(*malloc)(size_t size);
	void *(*calloc)(size_t n, size_t size);
	void *(*realloc)(void *ptr, size_t size);
	void (*free)(void *ptr);
};

extern struct fp_heap_calls fp_heap_calls;

/*
 * Returns the flags of mallocx with which this thread allocates size bytes for the code at the
 * address caller. Called on the slow path. Also sets up the fast path, if the heap mode has one.
 */
int fp_heap_flags(size_t size, const void *caller);
/* The flags of dallocx with which this thread frees memory. */
int fp_heap_free_flags(void);

/*
 * Allocates size bytes of zeros. Called only for sizes that malloc's fast path serves, from
 * FP_HEAP_DISCARD_FROM on. Discards far pages instead of writing zeros to them. Otherwise the pages
 * would be fetched only to be overwritten. jemalloc does the same with its own memory.
 */
#define FP_HEAP_DISCARD_FROM ((32u << 10) + 1) /* a shorter block is in a cache already, and resident */
void *fp_heap_zeroed(size_t size);

/*
 * True if a realloc of ptr to new_size must move the bytes from far to local memory, or back.
 * caller is the address of the code that asks.
 */
bool fp_heap_must_move(const void *ptr, size_t new_size, const void *caller);

/* True if the address lies in jemalloc's code. Mappings that jemalloc itself makes stay local. */
bool fp_heap_is_allocator(const void *code);

#endif
