/*
 * Writes the lines of the agent's threads on stderr. Room: uffd/agent.
 *
 * The program may have stderr open as a file or a pipe for its data, too. A write of far memory to
 * it holds the kernel's lock of that file until its pages have come. So no thread that brings pages
 * may wait for that lock: it hands its lines to a thread that does nothing else.
 */
#ifndef FP_LOG_WRITER_H
#define FP_LOG_WRITER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "log.h"
#include "thread.h"

#define FP_LOG_WRITER_LINES 4u

struct fp_log_writer {
	struct fp_thread thread;
	/* counts of lines: handed over, and written or dropped; futexes, too */
	_Atomic uint32_t in, out;
	_Atomic bool is_late; /* a line took so long that nobody waits for the next ones */
	_Atomic uint32_t stopping, taken;
	struct {
		_Atomic bool ready;
		size_t len;
		char text[FP_LOG_LINE_BYTES];
	} line[FP_LOG_WRITER_LINES];
};

/*
 * Starts the thread. From now on it writes what agent threads log: fp_log waits there until the
 * line is written, 100 ms at most. While lines wait for longer, fp_log does not wait, and drops
 * what finds no place. Other threads write their lines themselves. *writer is in locked memory.
 * Returns 0 or a negative errno.
 */
int fp_log_writer_start(struct fp_log_writer *writer);

/* Waits for the line that is being written. Does nothing if the thread never ran. */
void fp_log_writer_stop(struct fp_log_writer *writer);

/* Called in a forked child, where the thread does not run. */
void fp_log_writer_abandon(struct fp_log_writer *writer);

#endif
