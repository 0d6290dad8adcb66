/*
 * The inside of struct fp_space, for the agent that embeds it and the files that make it up:
 * space.c (map and unmap), space_pages.c (holding and dropping pages), space_foreign.c,
 * space_events.c, space_advice.c (protection and advice), space_lock.c (mlock) and space_remap.c.
 * Room: uffd, inside.
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
	pthread_mutex_t lock;       /* guards layout, lock_future and olds; never taken by agent threads */
	atomic_bool forking;        /* no call may begin that takes slots */
	_Atomic unsigned n_backing; /* those that are under way */
	struct fp_layout layout;
	uint32_t lock_future; /* mlockall(MCL_FUTURE): FP_PIECE_LOCKED, _LOCK_ON_FAULT of new pieces, or 0 */
	uint64_t olds[1u << FP_CHUNK_SHIFT]; /* words of the pages that the holder of the lock holds */
	void (*on_growth)(void *arg, uint64_t mapped_bytes); /* a new peak of mapped bytes; under the lock */
	void *on_growth_arg;
};

int fp_space_init(struct fp_space *space, struct fp_far *far, struct fp_reclaim *reclaim);
void fp_space_done(struct fp_space *space);
/*
 * Every call on the layout begins so: what system calls did to it past the C library is followed
 * first. -ENOMEM, without the lock: some of that can't be followed, by a limit of the kernel or of
 * ours. Done later, it would undo what the call does.
 */
__attribute__((warn_unused_result)) int fp_space_lock(struct fp_space *space);
/* For who only looks, or keeps off what is noted (events.h): never fails. */
void fp_space_lock_anyway(struct fp_space *space);
void fp_space_unlock(struct fp_space *space);
/*
 * Keeps calls from taking slots, once those under way have ended: they talk to nodes and allocate,
 * which a fork must not find in the middle. Before the allocator's locks are taken. allow: lets
 * them go on; in a child too.
 */
void fp_space_stop_backing(struct fp_space *space);
void fp_space_allow_backing(struct fp_space *space);

/*
 * What follows is called with the lock held, unless said otherwise.
 */

/* Checks a range of the program's and turns it into pages. -EINVAL; -ENOMEM: not inside. No lock
 * needed. */
int fp_space_to_pages(const struct fp_space *space, const void *addr, size_t len, uint32_t *ret_start,
                      uint32_t *ret_end);

/* Where the pages mapped without a hole from start on end; at most end. */
uint32_t fp_space_mapped_until(const struct fp_space *space, uint32_t start, uint32_t end);

/* The first piece of either kind in [start, end), cut to it. False: none. */
bool fp_space_next_piece(const struct fp_space *space, uint32_t start, uint32_t end,
                         struct fp_piece *ret_piece);

/* Reserves slots for n pages, and gives that back. Blocks on the nodes: not under the lock. */
int fp_space_back(struct fp_space *space, uint64_t n);
/* A short wait. */
void fp_space_pause(void);
void fp_space_unback(struct fp_space *space, uint64_t n);

/* mprotect of n pages of ours, in the kernel alone. */
int fp_space_open_range(struct fp_far *far, uint32_t start, uint32_t n, int prot);

/* Opens a free part of the range and adds it to the layout, with what its flags ask of the
 * kernel. */
int fp_space_add(struct fp_space *space, struct fp_piece piece);

/* Unmaps [start, end), far and foreign. *ret_reserved grows by the slots that it had reserved. */
int fp_space_remove(struct fp_space *space, uint32_t start, uint32_t end, uint64_t *ret_reserved);

/* Tells the stats page, and who wants to know, how much is mapped. */
void fp_space_publish(struct fp_space *space);

/* Sets what the flags LOCKED and DONTDUMP mean to the kernel and to the words of the pages; or
 * takes it back.
 */
int fp_space_apply_flags(struct fp_space *space, uint32_t start, uint32_t end, uint32_t flags);
void fp_space_undo_flags(struct fp_space *space, uint32_t start, uint32_t end, uint32_t flags);

/* ---- space_pages.c ---- */

/* Waits until the page is in no one's hands and takes it (CLAIMED); returns its old word. */
uint64_t fp_space_claim(struct fp_far *far, uint32_t page);
/* Ends that with the word of a settled state. */
void fp_space_release(struct fp_far *far, uint32_t page, uint64_t settled);
/* True if all pages of the page's chunk are ZERO because none was ever touched. */
bool fp_space_untouched(const struct fp_far *far, uint32_t page);

/* The next chunk's first page, or end. */
uint32_t fp_space_chunk_end(uint32_t page, uint32_t end);

/* Registers the pages again that the kernel fills, and the rest of their runs. False: not all could
 * be. */
bool fp_space_end_filled(struct fp_space *space, uint32_t start, uint32_t end);

enum fp_drop {
	FP_DROP,          /* MADV_DONTNEED */
	FP_DROP_LOCKED,   /* MADV_DONTNEED_LOCKED: what is locked too, and it stays locked */
	FP_DROP_FOR_GOOD, /* MADV_DONTNEED of pages whose mapping ends: their words are ZERO afterwards */
	FP_DROP_SHORT,    /* the same, and what the kernel fills stays so: see fp_kernel_filled_resume */
};

/* Drops the pages [start, end), whatever their states. -EINVAL: locked in memory; what was so stays
 * as it was.
 */
int fp_space_drop(struct fp_space *space, uint32_t start, uint32_t end, enum fp_drop how);

/* For pages whose mapping the kernel has replaced: their words alone become ZERO. Waits for those
 * in transit, or leaves them as they are: false. */
bool fp_space_forget(struct fp_space *space, uint32_t start, uint32_t end, bool waits);

/* Sets FP_PAGE_LOCKED in all words of the range, or clears it. */
void fp_space_mark_locked(struct fp_space *space, uint32_t start, uint32_t end, bool locked);

/* ---- space_foreign.c ---- */

/* Replaces a foreign piece by what the range is where nothing is mapped: inaccessible and
 * registered. The layout is the caller's. -ENOMEM. */
int fp_space_close(struct fp_space *space, uint32_t start, uint32_t end);

/* Has the kernel move a mapping of its own, from outside of the range, over pages of it. Takes the
 * lock. */
int fp_space_move_in(struct fp_space *space, const struct fp_remap *what, void **ret_addr);

/* ---- space_events.c ---- */

/* Follows what system calls past the C library did to the range, so that the layout is true again.
 * Every holder of the lock does so first. False: not all could be. */
bool fp_space_follow(struct fp_space *space);

/* The reclaim thread's turn at it, without the lock: does what needs no waiting. True if something
 * is left.
 */
bool fp_space_try_follow(struct fp_space *space);

/*
 * For a call that met -ENOMEM: perhaps a system call unmapped some of it just before, whose event
 * is read but not noted yet. Waits for that; true: it is known now, try again. followed:
 * fp_space_followed before the call. Without the lock.
 */
bool fp_space_learn(struct fp_space *space, uint32_t start, uint32_t end, uint32_t followed);
uint32_t fp_space_followed(const struct fp_space *space);

/* Takes back what such calls left empty: address space has run out. True if there was any. */
bool fp_space_take_back(struct fp_space *space);

/* ---- space_lock.c ---- */

/* How many pages more may be locked: see fp_space_mlock. */
uint64_t fp_space_lockable(const struct fp_space *space);

/* A hint: brings the far pages that are accessible in, as far as room_pages go. Not under the
 * lock. */
void fp_space_populate(struct fp_space *space, uint32_t start, uint32_t end, uint64_t room_pages);

/* MADV_POPULATE_READ and _WRITE, piece by piece, with the kernel's errors. Not under the lock. */
int fp_space_populate_as(struct fp_space *space, uint32_t start, uint32_t end, int advice);

/*
 * Brings in the far pages that are LOCKED and not on fault, up to the first that can't be. Not
 * under the lock. mlock(2)'s errors: -ENOMEM at what is inaccessible, -EAGAIN.
 */
int fp_space_populate_locked(struct fp_space *space, uint32_t start, uint32_t end);

#endif
