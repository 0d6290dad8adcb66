/*
 * What the daemon tells systemd: its state, by datagrams to NOTIFY_SOCKET (sd_notify(3)). They go
 * out by the loop, in order, so that nobody waits for a reader. Room: daemon. It knows texts, never
 * what they mean.
 */
#ifndef FP_NOTIFY_H
#define FP_NOTIFY_H

#include <stdbool.h>

#include "loop.h"

#define FP_NOTIFY_TEXTS 8u
#define FP_NOTIFY_BYTES 192u

struct fp_notify {
	struct fp_loop *loop;
	int fd; /* -1: nobody wants to know */
	bool sending;
	struct fp_op op;
	char texts[FP_NOTIFY_TEXTS][FP_NOTIFY_BYTES]; /* a ring: the first is being sent */
	unsigned first, n;
};

/* Connects to NOTIFY_SOCKET, if there is one that can be. loop may be initialised later, before the
 * first fp_notify. Close with fp_notify_close once the loop is done. */
void fp_notify_open(struct fp_notify *notify, struct fp_loop *loop);
void fp_notify_close(struct fp_notify *notify);

/*
 * Queues a text, cut at FP_NOTIFY_BYTES. A "STATUS=" that waits is replaced by the next one. A text
 * for which there is no room is lost: its reader has not looked at eight before it.
 */
void fp_notify(struct fp_notify *notify, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
