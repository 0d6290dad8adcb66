/*
 * The layout of the far range: which pages are mapped, with what protection and advice. Finds gaps
 * for new mappings. Room: uffd/pager. Pure bookkeeping on page numbers. The caller makes sure that
 * calls do not overlap.
 *
 * A piece is far or foreign. A foreign piece is a file or shared memory that the program mapped
 * inside the range by MAP_FIXED; the kernel alone manages it. Only the functions that say so see
 * foreign pieces.
 */
#ifndef FP_LAYOUT_H
#define FP_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What we know of a piece besides its protection. */
enum fp_piece_flags {
	FP_PIECE_FOREIGN = 1 << 0,    /* the kernel manages it: no far pages, not registered */
	FP_PIECE_NORESERVE = 1 << 1,  /* no slots are reserved for it when it becomes writable */
	FP_PIECE_RANDOM = 1 << 4,     /* no read-ahead */
	FP_PIECE_DONTFORK = 1 << 6,   /* a forked child does not have it */
	FP_PIECE_WIPEONFORK = 1 << 7, /* a forked child reads zeros here */
	FP_PIECE_DONTDUMP = 1 << 8,   /* left out of core dumps */
	FP_PIECE_LENT = 1 << 10,      /* foreign, since it was lent to the kernel: fp_space_lend */
	FP_PIECE_AGENT = 1 << 9,      /* stages and stop page; keeps them apart from the program's pieces */
};

/* A mapped piece. Neighbours that are alike become one piece. */
struct fp_piece {
	uint32_t start, end; /* first page; page after the last */
	int prot;
	uint32_t flags; /* enum fp_piece_flags */
	bool lazy;      /* no slots are reserved for it */
};

/* A change to pieces. If prot is negative, the protection stays. */
struct fp_piece_change {
	int prot;
	uint32_t set, clear; /* flags */
	bool back;           /* slots are now reserved for the pieces, except for NORESERVE pieces */
	bool ease;           /* no slots are reserved for the pieces from now on */
};

struct fp_layout {
	struct fp_piece *pieces; /* sorted; addresses for PIECES_MAX pieces, their memory comes on touch */
	size_t n;
	uint32_t end;             /* the number of pages of the range */
	uint32_t origin;          /* the search for a gap begins at this page */
	uint64_t mapped;          /* how many far pages are mapped */
	_Atomic uint32_t changes; /* odd while the pieces are being changed */
};

/* Makes a layout for a range of n_pages. Returns 0 or -ENOMEM. */
int fp_layout_init(struct fp_layout *layout, uint32_t n_pages);
void fp_layout_done(struct fp_layout *layout);

/*
 * Finds the first gap of n pages from the origin on, or else from page 0 on. Its start plus
 * base_page is a multiple of align_pages. Returns 0 and *ret_start, or -ENOMEM if there is no such
 * gap.
 */
int fp_layout_find(const struct fp_layout *layout, uint32_t n, uint32_t align_pages, uint64_t base_page,
                   uint32_t *ret_start);

/*
 * Maps [piece.start, piece.end), which must be free. Returns 0, or -ENOMEM if there are too many
 * pieces.
 */
int fp_layout_add(struct fp_layout *layout, struct fp_piece piece);

/*
 * Unmaps all that is mapped in [start, end), foreign pieces too. *ret_reserved: how many of those
 * pages had slots reserved. Returns 0, or -ENOMEM if there might be too many pieces after the call.
 * Then nothing was changed.
 */
int fp_layout_remove(struct fp_layout *layout, uint32_t start, uint32_t end, uint64_t *ret_reserved);

/* Changes the far pieces of [start, end). Returns the same as fp_layout_remove. */
int fp_layout_change(struct fp_layout *layout, uint32_t start, uint32_t end,
                     const struct fp_piece_change *change);

/*
 * Changes the protection of the far pieces of [start, end). Returns the same as fp_layout_remove.
 */
int fp_layout_protect(struct fp_layout *layout, uint32_t start, uint32_t end, int prot);

/* The first piece of either kind that ends after page, or NULL. */
const struct fp_piece *fp_layout_next(const struct fp_layout *layout, uint32_t page);

/* True if nothing of [start, end) is mapped, far or foreign. */
bool fp_layout_is_free(const struct fp_layout *layout, uint32_t start, uint32_t end);

/*
 * How many far pages of [start, end) have no slots yet: a change with `back` would reserve slots
 * for them.
 */
uint64_t fp_layout_count_unbacked(const struct fp_layout *layout, uint32_t start, uint32_t end);

/*
 * How many of the n pages that follow page in equal steps may be read ahead: they are in the far
 * piece of page, which has no advice RANDOM. step is not 0. The fault thread calls this without the
 * caller's lock. So the result is 0 during a change of the layout, and may be outdated when it is
 * used.
 */
uint32_t fp_layout_mapped_ahead(const struct fp_layout *layout, uint32_t page, int32_t step, uint32_t n);

/*
 * Finds the piece that contains page, and the number of changes so far. The piece is valid while
 * fp_layout_changes returns the same number. Called without the caller's lock. False: there is no
 * such piece, or the layout is being changed.
 */
bool fp_layout_peek(const struct fp_layout *layout, uint32_t page, struct fp_piece *ret_piece,
                    uint32_t *ret_changes);
uint32_t fp_layout_changes(const struct fp_layout *layout);

/* The first far piece that ends after page, or NULL. Called to walk a range with holes. */
const struct fp_piece *fp_layout_after(const struct fp_layout *layout, uint32_t page);

/*
 * The first far piece that ends after page and has one of flags, or NULL. Called in the child of a
 * fork, which unmaps DONTFORK pieces, and makes WIPEONFORK pieces ZERO.
 */
const struct fp_piece *fp_layout_after_with(const struct fp_layout *layout, uint32_t page, uint32_t flags);

#endif
