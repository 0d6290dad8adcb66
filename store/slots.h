/*
 * The slots of one lease: a bitmap from which any thread takes and returns pages without a lock.
 * Room: store. It knows pages of a lease, but not at which node the lease lies.
 *
 * After a fork slots are shared. Such a slot is free again once both sides have given it up:
 *
 *   free ── take ──► in use ── share ──► shared ── let_go ──► limbo ── settle, held by nobody ──► free
 *    ▲                │  ▲                  │
 *    └───── put ──────┘  └─── settle ───────┘ held by nobody else
 */
#ifndef FP_SLOTS_H
#define FP_SLOTS_H

#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>

#define FP_SLOT_PAGE_BITS  20 /* low bits of a slot: the page in its lease */
#define FP_LEASE_MAX_PAGES (1u << FP_SLOT_PAGE_BITS)

#define FP_SLOTS_NO_LEASE UINT32_MAX /* no lease has this id */

struct fp_slots {
	/*
	 * Constant once published. The fault path reads this part, so it is kept off the cache
	 * lines that allocation writes.
	 */
	struct fp_slots *next;      /* next in a list of leases that are not published yet */
	struct fp_slots *node_next; /* among the leases of its node */
	uint64_t first_slot;        /* the number of page 0 */
	char *base;                 /* where the lease is mapped here; NULL: it is not mapped */
	unsigned node;
	/* Protected by the lock node->control. FP_SLOTS_NO_LEASE: the lease's session has ended. */
	uint32_t lease_id;
	uint32_t n_pages;
	bool inherited;       /* the parent's lease: all its slots are shared, and none is taken */
	_Atomic bool retired; /* gives no slots: inherited, or its session has ended and was replaced */
	uint64_t shared_word; /* where this lease's words begin in its owner's maps (fp_shared_slots) */
	_Atomic uint64_t *shared, *limbo; /* bitmaps like word */

	alignas(64) _Atomic uint32_t n_free; /* never less than the number of clear bits; 0 means full */
	_Atomic uint32_t cursor;             /* index of the word that the last run came from */
	_Atomic uint32_t n_limbo;            /* never less than the number of set bits of limbo */
	alignas(64) _Atomic uint64_t word[]; /* bit set: slot in use */
};

/*
 * Makes a bitmap of n_pages (1..FP_LEASE_MAX_PAGES) free slots; the caller fills the other members.
 * NULL if there is no memory. For control threads. Release it with fp_slots_free, which also takes
 * NULL.
 */
struct fp_slots *fp_slots_new(uint32_t n_pages);
void fp_slots_free(struct fp_slots *slots);

/*
 * Takes up to n slots, in runs as long as the bitmap allows. Returns how many it took. Any thread,
 * lock-free. Everything that the previous user of a slot did with it has ended (acquire, paired
 * with fp_slots_put).
 */
unsigned fp_slots_take(struct fp_slots *slots, unsigned n, uint64_t *ret_slots);

/*
 * Gives back one slot. The slot must not be shared with a child, or the lease must be inherited.
 * True if the lease was full until now. Any thread, lock-free.
 */
bool fp_slots_put(struct fp_slots *slots, uint64_t slot);

/* Takes all slots, if none is in use. True if it took them. Any thread, lock-free. */
bool fp_slots_close(struct fp_slots *slots);

static inline uint32_t fp_slots_n_words(const struct fp_slots *slots)
{
	return (slots->n_pages + 63) / 64;
}

static inline uint32_t fp_slots_word_of(const struct fp_slots *slots, uint64_t slot)
{
	return (uint32_t)((slot - slots->first_slot) / 64);
}

static inline uint64_t fp_slots_bit_of(const struct fp_slots *slots, uint64_t slot)
{
	return 1ull << ((slot - slots->first_slot) % 64);
}

/*
 * Marks slots of a word as shared: those that are in use and not in limbo. Returns them. Only one
 * thread at a time may share or settle. Meanwhile no thread may take or give back any slot of the
 * word.
 */
uint64_t fp_slots_share(struct fp_slots *slots, uint32_t word);

/* True if the slot is shared. A slot of an inherited lease always is. Any thread, lock-free. */
bool fp_slots_is_shared(const struct fp_slots *slots, uint64_t slot);

/*
 * Puts a shared slot into limbo: this process, which owns it, needs it no more. Any thread,
 * lock-free.
 */
void fp_slots_let_go(struct fp_slots *slots, uint64_t slot);

/*
 * Looks at the 64 slots of one word. The parameter held has a bit for each slot that another
 * process still needs. All other slots cease to be shared, and those of them in limbo become free.
 * Returns how many become free. Only one thread at a time may share or settle. Meanwhile other
 * threads may take slots, give them back and let go of them.
 */
unsigned fp_slots_settle(struct fp_slots *slots, uint32_t word, uint64_t held);

/*
 * Called in a child: from now on the lease counts as its parent's. Slots that the parent had put
 * into limbo never belong to this process.
 */
void fp_slots_inherit(struct fp_slots *slots);

#endif
