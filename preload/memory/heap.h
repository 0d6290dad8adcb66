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
 * Makes the far arenas; until then everything is local. 0, or -ENOTSUP and error->text: this
 * jemalloc can't keep its records out of far memory. Called once, in a bracket, before the program
 * has other threads.
 */
int fp_heap_open(struct fp_space *space, const struct fp_settings *settings, struct fp_agent_error *error);

/*
 * jemalloc's plain functions, for callers that need no flags: they have fast paths, which the
 * extended functions lack. Set before any thread has fp_local.fast_below above 0.
 */
struct fp_heap_calls {
	void *(*malloc)(size_t size);
	void *(*calloc)(size_t n, size_t size);
	void *(*realloc)(void *ptr, size_t size);
	void (*free)(void *ptr);
};

extern struct fp_heap_calls fp_heap_calls;

/*
 * The flags of mallocx with which this thread allocates size bytes for code at caller. Called on
 * the slow path. Also sets up the fast path, if the heap mode has one.
 */
int fp_heap_flags(size_t size, const void *caller);
/* The flags of dallocx with which this thread frees memory. */
int fp_heap_free_flags(void);

/*
 * Allocates size bytes of zeros, if malloc's fast path serves that size. For a long allocation,
 * discards its pages instead of writing to them, as jemalloc does with its own memory. Otherwise
 * pages would be fetched only to be overwritten.
 */
#define FP_HEAP_DISCARD_FROM ((32u << 10) + 1) /* shorter ones are in a cache already, and resident */
void *fp_heap_zeroed(size_t size);

/* True if realloc of ptr to new_size, for code at caller, must change between far and local. */
bool fp_heap_must_move(const void *ptr, size_t new_size, const void *caller);

/* True if this address is code of jemalloc: its own mappings stay local. */
bool fp_heap_is_allocator(const void *code);

#endif
