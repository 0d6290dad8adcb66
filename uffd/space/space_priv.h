/*
 * The inside of struct fp_space. Room: uffd/space. It is for the agent, which embeds the struct,
 * and for the space's own files: space.c (map and unmap), space_pages.c (claiming and dropping
 * pages), space_foreign.c, space_advice.c (protection and advice), space_lock.c (mlock) and
 * space_remap.c.
 */
#ifndef FP_SPACE_PRIV_H
#define FP_SPACE_PRIV_H

#include <pthread.h>
#include <stdint.h>

#include "far.h"
#include "layout.h"
#include "reclaim.h"
#include "space.h"

struct fp_space {
	struct fp_far *far;
	struct fp_reclaim *reclaim;
	bool overcommit;
	pthread_mutex_t lock;       /* guards layout and olds; never taken by agent threads */
	atomic_bool forking;        /* set during a fork: no call may begin to take slots */
	_Atomic unsigned n_backing; /* how many calls are taking slots */
	struct fp_layout layout;
	/* former words of the pages that the lock's holder has claimed */
	uint64_t olds[1u << FP_CHUNK_SHIFT];
	/* called at a new peak of mapped bytes, under the lock */
	void (*on_growth)(void *arg, uint64_t mapped_bytes);
	void *on_growth_arg;
};

int fp_space_init(struct fp_space *space, struct fp_far *far, struct fp_reclaim *reclaim);
void fp_space_done(struct fp_space *space);
void fp_space_lock(struct fp_space *space);
void fp_space_unlock(struct fp_space *space);
/*
 * Waits for the calls that are taking slots, and lets no other begin: they talk to nodes and
 * allocate, so a fork must not interrupt them. Called before the allocator's locks are taken.
 * fp_space_allow_backing lets calls begin again, in a child too.
 */
void fp_space_stop_backing(struct fp_space *space);
void fp_space_allow_backing(struct fp_space *space);

/* The following functions are called with the lock held, unless said otherwise. */

/*
 * Checks a range that the program gave and turns it into pages. Returns 0, -EINVAL if the range is
 * not made of whole pages, or -ENOMEM if it is not inside the far range. Called without the lock.
 */
int fp_space_to_pages(const struct fp_space *space, const void *addr, size_t len, uint32_t *ret_start,
                      uint32_t *ret_end);

/* The end of the mapped pages that begin at start and have no hole; at most end. */
uint32_t fp_space_mapped_until(const struct fp_space *space, uint32_t start, uint32_t end);

/*
 * Finds the first piece of either kind in [start, end), and cuts *ret_piece to that range. Returns
 * false if there is no piece.
 */
bool fp_space_next_piece(const struct fp_space *space, uint32_t start, uint32_t end,
                         struct fp_piece *ret_piece);

/*
 * Reserves slots for n pages; fp_space_unback gives them back. Blocks on the nodes, so it is called
 * without the lock.
 */
int fp_space_back(struct fp_space *space, uint64_t n);
/* Sleeps for a moment. */
void fp_space_pause(void);
void fp_space_unback(struct fp_space *space, uint64_t n);

/* Changes the kernel's protection of n far pages; the layout stays. */
int fp_space_open_range(struct fp_far *far, uint32_t start, uint32_t n, int prot);

/*
 * Makes a free part of the range accessible, and adds it to the layout. Applies the flags of the
 * piece in the kernel.
 */
int fp_space_add(struct fp_space *space, struct fp_piece piece);

/*
 * The first step of unmapping far pieces of [start, end): keeps them out of core dumps. So the
 * kernel has them as mappings of their own, and mprotect need not cut any. Returns 0, or -ENOMEM if
 * the kernel has too many mappings. Then nothing was changed. fp_space_restore undoes this step.
 */
int fp_space_cut_out(struct fp_space *space, uint32_t start, uint32_t end);

/*
 * Sets protections and the advice on core dumps in the kernel as the layout has them. Called after
 * the kernel refused a change half-way. Foreign pieces stay as they are.
 */
void fp_space_restore(struct fp_space *space, uint32_t start, uint32_t end);

/*
 * Unmaps [start, end), far and foreign. Adds the number of its reserved slots to *ret_reserved. If
 * the kernel has too many mappings, returns -ENOMEM and unmaps no far page.
 */
int fp_space_remove(struct fp_space *space, uint32_t start, uint32_t end, uint64_t *ret_reserved);

/* Reports the number of mapped bytes to the stats page and to on_growth. */
void fp_space_publish(struct fp_space *space);

/* ---- space_pages.c ---- */

/* Waits until nobody owns the page. Then takes it (CLAIMED) and returns its old word. */
uint64_t fp_space_claim(struct fp_far *far, uint32_t page);
/* Ends the claim and sets the word of a settled state. */
void fp_space_release(struct fp_far *far, uint32_t page, uint64_t settled);
/* True if no page of the page's chunk was ever touched, so that all are ZERO. */
bool fp_space_untouched(const struct fp_far *far, uint32_t page);

/* The first page of the chunk that follows the chunk of page; at most end. */
uint32_t fp_space_chunk_end(uint32_t page, uint32_t end);

/*
 * Registers kernel-filled pages again, with the rest of their runs. Returns false if some could not
 * be registered.
 */
bool fp_space_end_filled(struct fp_space *space, uint32_t start, uint32_t end);

enum fp_drop {
	FP_DROP,          /* MADV_DONTNEED; the mapping stays */
	FP_DROP_FOR_GOOD, /* the mapping ends: the pages become ZERO and registered. -ENOMEM: some can't be */
	FP_DROP_SHORT,    /* the mapping ends, but kernel-filled pages stay so: see fp_kernel_filled_resume */
};

/*
 * Drops the pages [start, end) in any state. -EINVAL: some are locked in memory; nothing changes.
 */
int fp_space_drop(struct fp_space *space, uint32_t start, uint32_t end, enum fp_drop how);

/*
 * Sets the words of pages to ZERO and does nothing else: the kernel has replaced their mapping.
 * Waits for pages in transit.
 */
void fp_space_forget(struct fp_space *space, uint32_t start, uint32_t end);

/*
 * Makes a far piece the kernel's own memory, with its bytes: a foreign piece. The piece may be a
 * part that the caller has cut out. Gives back the tokens and slots of the piece. Returns 0,
 * -ENOMEM (the kernel has too many mappings) or -EAGAIN (a page can't be brought in). After an
 * error, the page that failed and all pages after it are far, as before.
 */
int fp_space_give(struct fp_space *space, const struct fp_piece *piece);

/* ---- space_foreign.c ---- */

/*
 * Turns a foreign piece back into unmapped range: inaccessible and registered. The caller then
 * changes the layout. Returns 0, or the kernel's error.
 */
int fp_space_close(struct fp_space *space, uint32_t start, uint32_t end);

/* ---- space_lock.c ---- */

/*
 * Brings in the accessible far pages, as many as fit easily. Only a hint. Called without the lock.
 */
void fp_space_populate(struct fp_space *space, uint32_t start, uint32_t end);

/*
 * MADV_POPULATE_READ and _WRITE, piece by piece, with the kernel's errors. Called without the lock.
 */
int fp_space_populate_as(struct fp_space *space, uint32_t start, uint32_t end, int advice);

#endif
