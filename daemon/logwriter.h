/*
 * The daemon's log on its way to stderr. The thread that logs only queues a line; a thread of its
 * own writes it, and is the only one that waits where nobody reads. Room: daemon. It knows lines,
 * never what they say.
 */
#ifndef FP_LOGWRITER_H
#define FP_LOGWRITER_H

/*
 * From here on fp_log queues lines and never blocks. A second has room for 50 lines of each
 * subsystem, and the queue for 128 in all. What is beyond is left out, and a line says how many
 * were. Once a process. 0, or what pthread_create says, negative.
 */
int fp_logwriter_start(void);

/*
 * Waits until all is written, a second at most. Nothing that is logged later is sure to be written.
 * Not started is fine.
 */
void fp_logwriter_stop(void);

#endif
