/*
 * Writes the lines of the agent's threads on stderr. Room: uffd/agent.
 *
 * The program may have stderr open as a file or a pipe for its data, too. A write of far memory to
 * it holds the kernel's lock of that file until its pages have come. So no thread that brings pages
 * may wait for that lock: it hands its lines to a thread that does nothing else.
 */
#ifndef FP_LOG_WRITER_H
#define FP_LOG_WRITER_H

/*
 * Starts the thread, one for all agents of the process. From now on it writes what agent threads
 * log: fp_log waits there until the line is written, 100 ms at most. While a line takes longer,
 * fp_log does not wait. It drops a line that finds no place among four. Other threads write their
 * lines themselves. In a forked child it starts anew. Returns 0 or a negative errno.
 */
int fp_log_writer_start(void);

/*
 * Called once for each start that succeeded, when that agent's other threads have ended. The last
 * one ends the thread, and waits for the line that is being written.
 */
void fp_log_writer_stop(void);

#endif
