/*
 * Keeps the daemon's log short, and keeps the daemon from waiting for the reader of the log. If a
 * pipe is full or a terminal is stopped, a write to it may block for ever. Room: daemon. It knows
 * lines, not their meaning.
 */
#ifndef FP_LOG_THROTTLE_H
#define FP_LOG_THROTTLE_H

/*
 * From here on fp_log drops a line if its subsystem has logged 50 lines in this second, or if
 * stderr is full. The subsystem's next line after that second says how many were dropped. Call it
 * once in a process.
 */
void fp_log_throttle_start(void);

/* Logs how many lines were dropped, and removes the limit. Fine if the throttle was not started. */
void fp_log_throttle_stop(void);

#endif
