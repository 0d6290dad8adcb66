/*
 * The bare request and answer over tcp: what 4 KiB from another process cost over loopback if both
 * processes sleep while they wait. `farpage bench` compares faults over tcp with it. It is no lower
 * bound: Farpage looks for its answer for a while before it sleeps. Room: tools/bench. The asking
 * thread blocks until it has the page, and so does the process that answers, on whichever CPU the
 * scheduler puts it. There are no faults, frames or checks. It uses no code of transport/ on
 * purpose: otherwise a change there would also change this.
 */
#ifndef FP_BARETCP_H
#define FP_BARETCP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fp_baretcp {
	int fd;
	pid_t answerer; /* a child of this process */
};

/*
 * Starts the process that answers. It keeps a copy of the n_pages pages. Call it before the process
 * has other threads. 0 or a negative errno. Release with fp_baretcp_close.
 */
int fp_baretcp_open(struct fp_baretcp *bare, const void *pages, size_t n_pages);

/* Asks for a page, and waits until it is there. 0, or -ECONNRESET. */
int fp_baretcp_ask(const struct fp_baretcp *bare, uint32_t page, void *ret_page);

void fp_baretcp_close(struct fp_baretcp *bare);

#endif
