/*
 * The layout of the far range: which pages are mapped, with what protection and advice; finds room
 * for new mappings. Room: uffd; pure bookkeeping on page numbers. The caller serialises.
 *
 * A piece is far, or foreign: a mapping that the program placed inside the range by MAP_FIXED and
 * that is the kernel's alone (a file, shared memory). Only the functions that say so see foreign
 * pieces.
 */
#ifndef FP_LAYOUT_H
#define FP_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is known of a piece beyond its protection. */
enum fp_piece_flags {
	FP_PIECE_FOREIGN = 1 << 0,    /* the kernel's: no far pages, nothing registered there */
	FP_PIECE_NORESERVE = 1 << 1,  /* stays without slots of its own when it is opened for writing */
	FP_PIECE_RANDOM = 1 << 4,     /* no read-ahead */
	FP_PIECE_DONTFORK = 1 << 6,   /* a child has nothing here */
	FP_PIECE_WIPEONFORK = 1 << 7, /* a child reads zeros here */
	FP_PIECE_DONTDUMP = 1 << 8,   /* not in core dumps */
	FP_PIECE_AGENT = 1 << 9,      /* stages and stop page: nobody's mapping */
};

/* A mapped piece; neighbours that are alike are one piece. */
struct fp_piece {
	uint32_t start, end; /* pages, end excluded */
	int prot;
	uint32_t flags; /* enum fp_piece_flags */
	bool lazy;      /* no slots reserved */
};

/* What is to become of pieces: prot below 0 leaves the protection as it is. */
struct fp_piece_change {
	int prot;
	uint32_t set, clear; /* flags */
	bool back;           /* slots are reserved for them now, but for those that are NORESERVE */
};

struct fp_layout {
	struct fp_piece *pieces; /* sorted; mapped lazily for as many as there can be */
	size_t n;
	uint32_t end;             /* pages of the range */
	uint32_t origin;          /* where the search for room begins */
	uint64_t mapped;          /* far pages */
	_Atomic uint32_t changes; /* odd while the pieces are being changed */
};

/* For a range of n_pages. 0 or -ENOMEM. */
int fp_layout_init(struct fp_layout *layout, uint32_t n_pages);
void fp_layout_done(struct fp_layout *layout);

/* The first gap of n pages from the origin on, or else from the start on, whose start is a multiple
 * of align_pages after base_page is added. 0 and *ret_start; -ENOMEM. */
int fp_layout_find(const struct fp_layout *layout, uint32_t n, uint32_t align_pages, uint64_t base_page,
                   uint32_t *ret_start);

/* Maps [piece.start, piece.end), which must be free. 0; -ENOMEM: too many pieces. */
int fp_layout_add(struct fp_layout *layout, struct fp_piece piece);

/* Unmaps what is mapped of [start, end), foreign pieces too. *ret_reserved: how many of those pages
 * had slots reserved. 0; -ENOMEM (it would take one piece too many; nothing was changed). */
int fp_layout_remove(struct fp_layout *layout, uint32_t start, uint32_t end, uint64_t *ret_reserved);

/* Changes the far pieces of [start, end). 0; -ENOMEM. */
int fp_layout_change(struct fp_layout *layout, uint32_t start, uint32_t end,
                     const struct fp_piece_change *change);

/* Changes the protection of the far pieces of [start, end). 0; -ENOMEM. */
int fp_layout_protect(struct fp_layout *layout, uint32_t start, uint32_t end, int prot);

/* The first piece of either kind that ends after page, or NULL. */
const struct fp_piece *fp_layout_next(const struct fp_layout *layout, uint32_t page);

/* True if nothing of [start, end) is mapped, far or foreign. */
bool fp_layout_is_free(const struct fp_layout *layout, uint32_t start, uint32_t end);

/* How many far pages of [start, end) would be given slots by a change with `back`. */
uint64_t fp_layout_count_unbacked(const struct fp_layout *layout, uint32_t start, uint32_t end);

/*
 * How many of the n pages from page on may be read ahead: they are mapped in one far piece that is
 * not advised RANDOM. The fault thread's question: without the caller's lock, so 0 if the layout is
 * being changed this moment. What it says may be old when it is used.
 */
uint32_t fp_layout_mapped_from(const struct fp_layout *layout, uint32_t page, uint32_t n);

/*
 * The piece that holds page, and the number of changes so far: as long as fp_layout_changes says
 * the same, the piece is mapped so. Asked without the caller's lock; false if there is none, or the
 * layout is being changed this moment.
 */
bool fp_layout_peek(const struct fp_layout *layout, uint32_t page, struct fp_piece *ret_piece,
                    uint32_t *ret_changes);
uint32_t fp_layout_changes(const struct fp_layout *layout);

/* The first far piece that ends after page, or NULL: to walk a range with holes. */
const struct fp_piece *fp_layout_after(const struct fp_layout *layout, uint32_t page);

/*
 * The first far piece that ends after page and has one of flags, or NULL. For the child of a fork:
 * what is DONTFORK is to be unmapped there, what is WIPEONFORK to be ZERO.
 */
const struct fp_piece *fp_layout_after_with(const struct fp_layout *layout, uint32_t page, uint32_t flags);

#endif
