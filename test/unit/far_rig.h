/*
 * The shim's lower rooms over a simulated agent. Its far memory behaves as in fault mode inline:
 * the kernel answers EFAULT for a page that is not pinned, and a touch by the program brings the
 * page in. Room: test/unit, for the tests of preload. Include it before other headers of ours.
 *
 * A page that is not pinned has no access rights, so the real kernel judges each call. The kernel
 * can write to a pinned page only if the pin says so.
 */
#ifndef FP_FAR_RIG_H
#define FP_FAR_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shim.h"
#include "store.h"

#define FAR_PAGES  2304u /* 9 MiB */
#define FAR_RANGES 2100u

#define FAR(offset) far_rig_at(offset)

extern struct far_rig {
	char *memory; /* the far pages; the pages before and behind them are local */
	uint16_t pins[FAR_PAGES];
	bool writable[FAR_PAGES]; /* a pin of the page allows writes */
	unsigned budget_pages;    /* the most pages that one pin may have */
	unsigned n_open;          /* how many pins there are now */
	unsigned n_pins;          /* how many pins there were since far_rig_close */
	unsigned n_ranges;        /* how many ranges the last pin has */
	struct fp_pin_range ranges[FAR_RANGES];
	unsigned n_faults; /* how often the program's touches faulted */
	bool needs_network, needs_no_pins, stray;
	unsigned n_awaited, n_released, n_wary;
	long fs_kind; /* what fstatfs tells the shim; 0: the truth */
} far_rig;

/* Maps the far memory. Called once, before the first test. */
int far_rig_begin(void **state);
/* Called before each test. Nothing is pinned, all pages are away, and the shim has its agent. */
int far_rig_setup(void **state);
/* Called after each test: checks that nothing is pinned any more. */
int far_rig_teardown(void **state);

/* The address of a far byte, which the program may touch from now on. */
char *far_rig_at(size_t offset);

/* Makes all far pages go away, and sets the counters to 0. */
void far_rig_close(void);

/*
 * From now on the shim has the simulated agent, or none. So its wrappers pin, or jump to the C
 * library.
 */
void far_rig_use_agent(bool use);

/*
 * far_rig_listen starts to collect what is logged. far_rig_heard ends that, and returns the text,
 * which is valid until its next call.
 */
void far_rig_listen(void);
const char *far_rig_heard(void);

#endif
