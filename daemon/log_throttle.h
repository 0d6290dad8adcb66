/*
 * Keeps the daemon's log short, and keeps the daemon from waiting for it. A full pipe or a stopped
 * terminal may hold a writer for ever. Room: daemon. It knows lines, not their meaning.
 */
#ifndef FP_LOG_THROTTLE_H
#define FP_LOG_THROTTLE_H

/*
 * From here on fp_log leaves out a line if its subsystem has logged 50 in this second, or if stderr
 * takes no more just now. The subsystem's next line after that second says how many were left out.
 * Call it once in a process.
 */
void fp_log_throttle_start(void);

/* Logs how many lines were left out; from then on there is no limit. Not started is fine. */
void fp_log_throttle_stop(void);

#endif
