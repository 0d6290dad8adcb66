/*
 * The shim's lower rooms over an agent that is played. Its far memory behaves as in fault mode
 * inline: the kernel answers EFAULT for a page that is not pinned, and a touch by the program
 * brings the page in. Room: test/unit, for the tests of preload. Include it before other headers of
 * ours.
 *
 * A page that is not pinned has no access rights, so the real kernel judges each call. A pinned
 * page can be written by the kernel only if the pin says so.
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
	bool writable[FAR_PAGES]; /* one of the pins writes */
	unsigned budget_pages;    /* that one pin may have */
	unsigned n_open;          /* pins now */
	unsigned n_pins;          /* since far_rig_close */
	unsigned n_ranges;        /* of the last pin */
	struct fp_pin_range ranges[FAR_RANGES];
	unsigned n_faults; /* touches by the program */
	bool needs_network, blind_to_devices, stray;
	unsigned n_awaited, n_released;
} far_rig;

/* Maps the memory, and gives the shim its agent. */
int far_rig_begin(void **state);
/* Before each test: nothing is pinned, all pages are away, and calls are mediated. */
int far_rig_setup(void **state);
/* After each test: nothing is pinned any more. */
int far_rig_teardown(void **state);

/* The address of a far byte, which the program may touch from now on. */
char *far_rig_at(size_t offset);

/* All far pages go away; counters begin anew. */
void far_rig_close(void);

/* From now on the shim has this agent, or none; wrappers go on accordingly. */
void far_rig_use_agent(bool use);

/* Starts to collect what is logged; the second returns it, until the next call. */
void far_rig_listen(void);
const char *far_rig_heard(void);

#endif
