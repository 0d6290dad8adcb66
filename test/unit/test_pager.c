/*
 * The pager in every interleaving of threads. The model has one page, its kernel mapping, its slot
 * and the threads that work on it. A breadth-first search visits all reachable states, and checks
 * each invariant in each state.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pager.h"

/*
 * Contents are version numbers. Two program threads read, and write new versions (up to VERSIONS).
 * A fault thread, an evictor and a layout thread carry actions out in small steps. Between any two
 * steps another thread may run.
 */
#define WRITES 2

enum mapping { ABSENT, PROTECTED, WRITABLE, POISONED };
enum { NONE = 0xff };

/* The step of a program thread. */
enum app { RUNS, WAITS_MISSING_READ, WAITS_MISSING_WRITE, WAITS_WP, BUS };
/* The next step of an agent thread. */
enum work {
	IDLE,
	DO_ZERO,
	DO_FETCH,
	DO_VERIFY,
	DO_UNPROTECT,
	DO_WAKE,
	DO_POISON,
	END_POISONED,
	END_INSTALLED,
	END_INSTALLED_RW,
	END_ADOPTED,
	DO_DROP,
	END_DROP,
	DO_CAPTURE,
	DO_COPY,
	DO_WRITE,
	PUT_BACK_CLEAN,
	PUT_BACK_DIRTY,
	DO_DISCARD,
	END_DISCARD,
	DO_UNPOISON,
	END_REVIVED
};

struct world {
	uint64_t word;
	uint8_t mapping, bytes; /* the kernel's state: whether the page is mapped, and its contents */
	uint8_t slot, stage;    /* contents of the slot and of the stage */
	uint8_t truth;          /* the version that the program must read */
	uint8_t writes;         /* number of writes so far */
	uint8_t app[2];
	uint8_t message[2]; /* the thread's fault message, not read yet */
	uint8_t fault, evictor, layout, reviver;
	uint8_t fault_rw;     /* the page is being installed writable */
	uint8_t old_resident; /* the layout thread claimed a word that was resident */
	uint8_t discards;
	uint8_t lost; /* the node is away, and the slot's bytes with it */
	uint8_t revivals;
	uint8_t copied; /* the stage has a copy; the page is still mapped, protected */
};

static struct world *seen;
static uint32_t *table;
static uint32_t n_seen, cap_seen;
static const char *what;

static void check(bool ok, const struct world *w, const char *text)
{
	if (ok)
		return;
	fail_msg("%s after %s: word %llx mapping %u bytes %u slot %u stage %u truth %u app %u,%u fault %u "
	         "evictor %u layout %u",
	         text, what, (unsigned long long)w->word, w->mapping, w->bytes, w->slot, w->stage, w->truth,
	         w->app[0], w->app[1], w->fault, w->evictor, w->layout);
}

#define TABLE (1u << 22)

static void visit(const struct world *w)
{
	const unsigned char *p = (const unsigned char *)w;
	uint64_t h = 1469598103934665603ull;
	uint32_t i;

	for (size_t k = 0; k < sizeof(*w); k++)
		h = (h ^ p[k]) * 1099511628211ull;
	for (i = (uint32_t)(h >> 20) % TABLE; table[i]; i = (i + 1) % TABLE)
		if (memcmp(&seen[table[i] - 1], w, sizeof(*w)) == 0)
			return;
	if (n_seen == cap_seen) {
		cap_seen = cap_seen ? 2 * cap_seen : 1024;
		seen = realloc(seen, cap_seen * sizeof(*seen));
	}
	assert_true(n_seen < TABLE / 2);
	seen[n_seen++] = *w;
	table[i] = n_seen;
}

static struct world copy(const struct world *w)
{
	struct world c;

	memcpy(&c, w, sizeof(c)); /* copies the padding too, because worlds are compared as bytes */
	return c;
}

static void wake(struct world *w)
{
	for (int t = 0; t < 2; t++)
		if (w->app[t] != RUNS && w->app[t] != BUS) {
			w->app[t] = RUNS;
			w->message[t] = 0;
		}
}

/*
 * A program thread touches the page. Either the touch succeeds, or the kernel sends a message to
 * the fault thread, and the program thread waits.
 */
static void app_touch(const struct world *from, int t, bool write)
{
	struct world w = copy(from);

	if (w.app[t] != RUNS || (write && w.writes == WRITES))
		return;
	if (w.mapping == POISONED) {
		w.app[t] = BUS;
	} else if (w.mapping == ABSENT) {
		w.app[t] = write ? WAITS_MISSING_WRITE : WAITS_MISSING_READ;
		w.message[t] = 1;
	} else if (write && w.mapping == PROTECTED) {
		w.app[t] = WAITS_WP;
		w.message[t] = 1;
	} else if (write) {
		w.truth = ++w.writes;
		w.bytes = w.truth;
	} else {
		check(w.bytes == w.truth, &w, "the program reads stale bytes");
	}
	visit(&w);
}

static uint8_t work_of(enum fp_page_action action)
{
	switch (action) {
	case FP_ACT_ZERO:
		return DO_ZERO;
	case FP_ACT_FETCH:
		return DO_FETCH;
	case FP_ACT_VERIFY:
		return DO_VERIFY;
	case FP_ACT_UNPROTECT:
		return DO_UNPROTECT;
	case FP_ACT_WAKE:
		return DO_WAKE;
	case FP_ACT_POISON:
		return DO_POISON;
	default:
		return IDLE;
	}
}

static void fault_read_message(const struct world *from, int t)
{
	struct world w = copy(from);
	enum fp_page_event ev;
	struct fp_page_step s;

	if (w.fault != IDLE || !w.message[t])
		return;
	ev = w.app[t] == WAITS_WP              ? FP_EV_FAULT_WP
	     : w.app[t] == WAITS_MISSING_WRITE ? FP_EV_FAULT_WRITE
	                                       : FP_EV_FAULT_READ;
	w.message[t] = 0;
	w.fault_rw = ev == FP_EV_FAULT_WRITE || fp_page_expects_write(w.word);
	s = fp_pager_step(w.word, ev);
	w.word = s.word;
	w.fault = work_of(s.action);
	visit(&w);
}

static void install(struct world *w, uint8_t bytes, bool rw)
{
	if (w->mapping == ABSENT) {
		w->mapping = rw ? WRITABLE : PROTECTED;
		w->bytes = bytes;
	} else {
		rw = true; /* EEXIST: the pager then treats the page as written */
	}
	wake(w);
	w->fault = rw ? END_INSTALLED_RW : END_INSTALLED;
}

static void settle(struct world *w, struct fp_page_step s)
{
	w->word = s.word;
	if (s.action == FP_ACT_WAKE)
		wake(w);
}

/*
 * The model's page lies in a chunk. If any other page of the chunk makes the chunk kernel-filled,
 * the model's page is looked at too.
 */
static void fault_adopts(struct world *w)
{
	struct fp_page_step s = fp_pager_step(w->word, FP_EV_ADOPT);

	if (s.action != FP_ACT_VERIFY)
		return;
	check(w->mapping != ABSENT, w, "a resident page is not there");
	w->word = s.word;
	w->fault = END_ADOPTED;
	visit(w);
}

/* Visits the other possible outcome as well. */
static void poisons_instead(const struct world *from)
{
	struct world other = copy(from);

	if (other.lost)
		return;
	other.lost = 1;
	other.fault = DO_POISON;
	visit(&other);
}

static void fault_step(const struct world *from)
{
	struct world w = copy(from);
	struct fp_page_step s;

	switch (w.fault) {
	case IDLE:
		fault_adopts(&w);
		return;
	case END_ADOPTED:
		check(w.mapping != ABSENT, &w, "an adopted page was taken away");
		w.mapping = WRITABLE;
		settle(&w, fp_pager_step(w.word, FP_EV_INSTALLED_RW));
		w.fault = IDLE;
		break;
	case DO_ZERO:
		check(w.truth == 0, &w, "zeros installed over written bytes");
		poisons_instead(from); /* there may be neither a free token nor a page that can leave */
		if (w.lost)
			w.fault = DO_POISON;
		else
			install(&w, 0, w.fault_rw);
		break;
	case DO_FETCH:
		poisons_instead(from); /* the node may die at any moment */
		if (w.lost) {
			w.fault = DO_POISON;
		} else {
			install(&w, w.slot, w.fault_rw);
		}
		break;
	case DO_VERIFY:
		check(w.mapping != ABSENT, &w, "a resident page is not there");
		install(&w, 0, true);
		break;
	case DO_UNPROTECT:
		if (w.mapping == PROTECTED)
			w.mapping = WRITABLE;
		wake(&w);
		w.fault = END_INSTALLED_RW;
		break;
	case DO_POISON:
		if (w.mapping == ABSENT)
			w.mapping = POISONED;
		wake(&w);
		w.fault = END_POISONED;
		break;
	case END_POISONED:
		settle(&w, fp_pager_step(w.word, FP_EV_FETCH_FAILED));
		w.fault = IDLE;
		break;
	case DO_WAKE:
		wake(&w);
		w.fault = IDLE;
		break;
	default:
		s = fp_pager_step(w.word, w.fault == END_INSTALLED ? FP_EV_INSTALLED : FP_EV_INSTALLED_RW);
		w.word = s.word;
		w.fault = work_of(s.action);
	}
	visit(&w);
}

static void drop_original(struct world *w)
{
	check(w->bytes == w->stage, w, "a write that came after the copy is dropped");
	w->mapping = ABSENT;
	w->copied = 0;
}

/*
 * A moved page is put back in a later step. A copied page is still in place: only its protection is
 * removed.
 */
static void not_written(struct world *w)
{
	w->evictor = PUT_BACK_DIRTY;
	if (w->copied) {
		w->mapping = WRITABLE;
		wake(w);
		w->copied = 0;
		w->evictor = END_INSTALLED_RW;
	}
	w->word = fp_pager_step(w->word, FP_EV_NOT_WRITTEN).word;
}

static void may_be_refused_or_copied(const struct world *from)
{
	struct world pinned = copy(from), protected = copy(from);

	protected.mapping = PROTECTED;
	protected.copied = 1;
	protected.evictor = DO_COPY;
	visit(&protected);
	settle(&pinned, fp_pager_step(pinned.word, FP_EV_REFUSED));
	pinned.evictor = IDLE;
	visit(&pinned);
}

static void may_not_be_written(const struct world *from)
{
	struct world failed = copy(from);

	failed.slot = NONE; /* a failed write leaves the slot undefined */
	not_written(&failed);
	visit(&failed);
}

static void write_out(struct world *w)
{
	struct fp_page_step s;

	if ((w->stage == 0 || !w->lost) && w->copied)
		drop_original(w);
	if (w->stage == 0) {
		settle(w, fp_pager_step(w->word, FP_EV_WAS_ZERO));
		w->evictor = IDLE;
	} else if (!w->lost) {
		w->slot = w->stage;
		s = fp_pager_step_written(w->word, 1);
		settle(w, s);
		w->evictor = s.action == FP_ACT_PUT_BACK ? PUT_BACK_CLEAN : IDLE;
	}
}

static void evictor_step(const struct world *from)
{
	struct world w = copy(from);
	struct fp_page_step s;

	switch (w.evictor) {
	case IDLE:
		s = fp_pager_step_evict(w.word, 0);
		w.word = s.word;
		w.evictor = s.action == FP_ACT_DROP      ? DO_DROP
		            : s.action == FP_ACT_CAPTURE ? DO_CAPTURE
		                                         : IDLE;
		break;
	case DO_DROP:
		check(w.bytes == (fp_page_slot(w.word) ? w.slot : 0), &w, "the last copy is dropped");
		w.mapping = ABSENT;
		w.evictor = END_DROP;
		break;
	case END_DROP:
		settle(&w, fp_pager_step(w.word, FP_EV_DROPPED));
		w.evictor = IDLE;
		break;
	case DO_CAPTURE:
		may_be_refused_or_copied(from);
		w.stage = w.bytes;
		w.mapping = ABSENT;
		w.evictor = DO_WRITE;
		break;
	case DO_COPY:
		w.stage = w.bytes;
		w.evictor = DO_WRITE;
		break;
	case DO_WRITE:
		may_not_be_written(from);
		write_out(&w);
		break;
	case PUT_BACK_CLEAN:
	case PUT_BACK_DIRTY:
		check(w.mapping == ABSENT, &w, "something was installed over a captured page");
		w.bytes = w.stage;
		w.mapping = w.evictor == PUT_BACK_DIRTY ? WRITABLE : PROTECTED;
		wake(&w);
		w.evictor = w.evictor == PUT_BACK_DIRTY ? END_INSTALLED_RW : END_INSTALLED;
		break;
	default:
		settle(&w, fp_pager_step(w.word,
		                         w.evictor == END_INSTALLED ? FP_EV_INSTALLED : FP_EV_INSTALLED_RW));
		w.evictor = IDLE;
	}
	visit(&w);
}

/*
 * A third thread calls madvise(MADV_DONTNEED). The program reads zeros once the kernel has dropped
 * the page.
 */
static void layout_step(const struct world *from)
{
	struct world w = copy(from);
	struct fp_page_step s;

	switch (w.layout) {
	case IDLE:
		if (w.discards == 1)
			return;
		s = fp_pager_step(w.word, FP_EV_CLAIM);
		if (s.action == FP_ACT_BUSY)
			return;
		w.word = s.word;
		w.layout = DO_DISCARD;
		w.discards++;
		break;
	case DO_DISCARD:
		w.mapping = ABSENT;
		w.truth = 0;
		w.layout = END_DISCARD;
		break;
	default:
		settle(&w, fp_pager_step_release(w.word, FP_PAGE_ZERO));
		w.layout = IDLE;
	}
	visit(&w);
}

/* The node is back: lost pages can be fetched again, also by a thread that got a SIGBUS. */
static void reviver_step(const struct world *from)
{
	struct world w = copy(from);
	struct fp_page_step s;

	switch (w.reviver) {
	case IDLE:
		s = fp_pager_step(w.word, FP_EV_REVIVE);
		if (s.action != FP_ACT_CLAIMED || w.revivals == 1)
			return;
		w.lost = 0;
		w.revivals++;
		w.word = s.word;
		w.reviver = DO_UNPOISON;
		break;
	case DO_UNPOISON:
		check(w.mapping == POISONED || w.mapping == ABSENT, &w, "a lost page is there");
		w.mapping = ABSENT;
		w.reviver = END_REVIVED;
		break;
	default:
		s.word = fp_page_slot(w.word) ? fp_page_with_slot(FP_PAGE_REMOTE, 1) : FP_PAGE_ZERO;
		check(w.truth == (fp_page_slot(w.word) ? w.slot : 0), &w,
		      "what is revived is not what was lost");
		settle(&w, fp_pager_step_release(w.word, s.word));
		w.reviver = IDLE;
		for (int t = 0; t < 2; t++)
			if (w.app[t] == BUS)
				w.app[t] = RUNS;
	}
	visit(&w);
}

/* If no further step is possible, no thread may be waiting. */
static void check_no_hang(const struct world *w)
{
	bool idle = w->fault == IDLE && w->layout == IDLE && w->evictor == IDLE && w->reviver == IDLE &&
	            !w->message[0] && !w->message[1];

	for (int t = 0; t < 2; t++)
		check(!idle || w->app[t] == RUNS || w->app[t] == BUS, w, "a thread waits for ever");
}

/*
 * A poisoned mapping must have a word that says so. Otherwise it would last for ever, because the
 * kernel answers its faults by itself.
 */
static void check_poison(const struct world *w)
{
	enum fp_page_state state = fp_page_state(w->word);

	check(w->mapping != POISONED || state == FP_PAGE_LOST || state == FP_PAGE_ARRIVING ||
	          state == FP_PAGE_CLAIMED,
	      w, "a page that can be had is poisoned");
}

static void check_wait_flag(const struct world *w)
{
	check(!(w->word & FP_PAGE_WAIT) || fp_page_state(w->word) == FP_PAGE_ARRIVING ||
	          fp_page_state(w->word) == FP_PAGE_LEAVING || fp_page_state(w->word) == FP_PAGE_CLAIMED,
	      w, "WAIT is left behind in a settled state");
}

static void test_every_interleaving(void **state)
{
	struct world first;

	(void)state;
	memset(&first, 0, sizeof(first));
	first.slot = first.stage = NONE;
	table = calloc(TABLE, sizeof(*table));
	visit(&first);
	for (uint32_t i = 0; i < n_seen; i++) {
		struct world w = copy(&seen[i]);

		check_no_hang(&w);
		check_wait_flag(&w);
		check_poison(&w);
		for (int t = 0; t < 2; t++) {
			what = "a read";
			app_touch(&w, t, false);
			what = "a write";
			app_touch(&w, t, true);
			what = "a fault message";
			fault_read_message(&w, t);
		}
		what = "the fault thread's step";
		fault_step(&w);
		what = "the evictor's step";
		evictor_step(&w);
		what = "the layout call's step";
		layout_step(&w);
		what = "the reviver's step";
		reviver_step(&w);
	}
	printf("%u states\n", n_seen);
	assert_true(n_seen > 1000);
	free(seen);
	free(table);
}

/*
 * A resident page must have exactly one queue entry. Without an entry it would never be evicted; a
 * second entry would fill the queue.
 */
static void test_queue_entry(void **state)
{
	static const enum fp_page_event ends[] = {FP_EV_INSTALLED, FP_EV_INSTALLED_RW};
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct fp_page_step s = fp_pager_step(FP_PAGE_ARRIVING, ends[i]);

		assert_true(s.enqueue && (s.word & FP_PAGE_QUEUED));
		s = fp_pager_step(FP_PAGE_ARRIVING | FP_PAGE_QUEUED, ends[i]);
		assert_false(s.enqueue);
	}
	assert_true(fp_pager_step(FP_PAGE_LEAVING | FP_PAGE_DIRTY, FP_EV_REFUSED).enqueue);
	assert_true(fp_pager_step_release(FP_PAGE_CLAIMED, FP_PAGE_RESIDENT | FP_PAGE_DIRTY).enqueue);
	assert_false(fp_pager_step_release(FP_PAGE_CLAIMED | FP_PAGE_QUEUED, FP_PAGE_RESIDENT).enqueue);
	assert_int_equal(fp_pager_step_evict(FP_PAGE_REMOTE | FP_PAGE_QUEUED, 5).word, FP_PAGE_REMOTE);
}

/* The past of a page stays with it while it is away, and goes to the queue once. */
static void test_past(void **state)
{
	const uint32_t past = (1u << FP_EVICT_PAST_BITS) - 2;
	const uint64_t clean = fp_page_with_slot(FP_PAGE_RESIDENT | FP_PAGE_QUEUED, 9);
	uint64_t leaving = fp_pager_step_evict(clean, past).word, arriving;
	struct fp_page_step s = fp_pager_step(leaving, FP_EV_DROPPED);

	(void)state;
	assert_int_equal(fp_page_state(s.word), FP_PAGE_REMOTE);
	arriving = fp_pager_step(s.word, FP_EV_FAULT_READ).word;
	s = fp_pager_step(arriving, FP_EV_NOT_INSTALLED);
	assert_int_equal(fp_pager_step(s.word, FP_EV_FAULT_READ).word, arriving);
	s = fp_pager_step(arriving, FP_EV_INSTALLED);
	assert_true(s.enqueue && s.past == past && s.word == clean);

	s = fp_pager_step_evict(clean | FP_PAGE_DIRTY, past);
	s = fp_pager_step_written(s.word | FP_PAGE_WAIT, 11); /* fetched from the stage: it did leave */
	s = fp_pager_step(s.word, FP_EV_INSTALLED);
	assert_true(s.enqueue && s.past == past && fp_page_slot(s.word) == 11);

	s = fp_pager_step(leaving, FP_EV_REFUSED);
	assert_true(s.enqueue && s.past == 0 && s.word == clean);
	s = fp_pager_step(leaving | FP_PAGE_DIRTY, FP_EV_NOT_WRITTEN);
	s = fp_pager_step(s.word, FP_EV_INSTALLED_RW);
	assert_true(s.enqueue && s.past == 0 && s.word == (clean | FP_PAGE_DIRTY));
}

static void test_write_prediction(void **state)
{
	uint64_t word = fp_page_with_slot(FP_PAGE_RESIDENT, 7);
	unsigned predicted = 0;

	(void)state;
	word = fp_pager_step(word, FP_EV_FAULT_WP).word;
	assert_true(fp_page_expects_write(word));
	for (int i = 0; i < 5; i++) {
		predicted += fp_page_expects_write(word);
		word = (word & ~FP_PAGE_STATE_MASK & ~FP_PAGE_DIRTY) | FP_PAGE_REMOTE;
		word = fp_pager_step(word, FP_EV_FAULT_READ).word;
	}
	assert_int_equal(predicted, FP_PAGE_HIST_MAX); /* then the page's next write is a fault again */
	assert_int_equal(fp_page_slot(word), 7);
}

/*
 * A page whose bytes are also elsewhere is not adopted. A resident page that is not present becomes
 * ZERO.
 */
static void test_adoption(void **state)
{
	const uint64_t dirty = FP_PAGE_RESIDENT | FP_PAGE_DIRTY | FP_PAGE_QUEUED;
	struct fp_page_step s = fp_pager_step(dirty, FP_EV_ADOPT);

	(void)state;
	assert_int_equal(s.action, FP_ACT_VERIFY);
	assert_int_equal(fp_pager_step(s.word, FP_EV_INSTALLED_RW).word, dirty);
	assert_int_equal(fp_pager_step(s.word, FP_EV_NOT_INSTALLED).word, FP_PAGE_ZERO | FP_PAGE_QUEUED);
	for (unsigned i = 0; i < 3; i++) {
		const uint64_t words[] = {fp_page_with_slot(dirty, 5), dirty & ~FP_PAGE_DIRTY, FP_PAGE_ZERO};

		s = fp_pager_step(words[i], FP_EV_ADOPT);
		assert_true(s.action == FP_ACT_NONE && s.word == words[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_adoption),         cmocka_unit_test(test_every_interleaving),
	    cmocka_unit_test(test_queue_entry),      cmocka_unit_test(test_past),
	    cmocka_unit_test(test_write_prediction),
	};

	return cmocka_run_group_tests_name("pager", tests, NULL, NULL);
}
