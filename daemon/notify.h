/*
 * Tells systemd the daemon's state, by datagrams to NOTIFY_SOCKET (sd_notify(3)). Room: daemon. It
 * knows texts, not their meaning.
 */
#ifndef FP_NOTIFY_H
#define FP_NOTIFY_H

#include <stdbool.h>

#define FP_NOTIFY_BYTES   192
#define FP_NOTIFY_WAITING 2 /* the two texts of a reload */

struct fp_notify {
	int fd; /* -1: systemd does not listen */
	char waiting[FP_NOTIFY_WAITING][FP_NOTIFY_BYTES];
	unsigned n; /* that wait */
};

/* Connects to NOTIFY_SOCKET, if there is one. */
void fp_notify_open(struct fp_notify *notify);
void fp_notify_close(struct fp_notify *notify);

/*
 * Sends a text, cut at 191 bytes. Never blocks. If the reader's queue is full, a text "STATUS=..."
 * is dropped, and any other text waits for fp_notify_flush. The newest two wait.
 */
void fp_notify(struct fp_notify *notify, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sends what waits. True: some of it still waits. Never blocks. */
bool fp_notify_flush(struct fp_notify *notify);

#endif
