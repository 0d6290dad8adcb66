/*
 * The heap: jemalloc with arenas whose extents are far, next to its own, which stay local. Room:
 * preload/memory.
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
 * has threads of its own.
 */
int fp_heap_open(struct fp_space *space, const struct fp_settings *settings, struct fp_agent_error *error);

/*
 * jemalloc's own family, for callers that need no flags: its extended calls lack these fast paths.
 * Set before any thread finds fp_local.fast_below above 0.
 */
struct fp_heap_calls {
	void *(*malloc)(size_t size);
	void *(*calloc)(size_t n, size_t size);
	void *(*realloc)(void *ptr, size_t size);
	void (*free)(void *ptr);
};

extern struct fp_heap_calls fp_heap_calls;

/* How to allocate size bytes on this thread for code at caller, as flags of mallocx. This is the
 * slow path; it also sets up the fast one, if there is to be one. */
int fp_heap_flags(size_t size, const void *caller);
/* How to free on this thread, as flags of dallocx. */
int fp_heap_free_flags(void);

/*
 * size bytes of zeros, if malloc's fast path serves that size. A long one is not written to: its
 * pages are discarded, as jemalloc does where the memory is its own. Otherwise pages would come in
 * only to be overwritten.
 */
#define FP_HEAP_DISCARD_FROM ((32u << 10) + 1) /* shorter ones come from a thread's cache, and are warm */
void *fp_heap_zeroed(size_t size);

/* True if ptr, resized to new_size by code at caller, belongs into the other kind of memory. */
bool fp_heap_must_move(const void *ptr, size_t new_size, const void *caller);

/* True if code at this address is jemalloc's, whose own mappings stay local. */
bool fp_heap_is_allocator(const void *code);

#endif
