/*
 * Tells systemd the daemon's state, by datagrams to NOTIFY_SOCKET (sd_notify(3)). Room: daemon. It
 * knows texts, not their meaning.
 */
#ifndef FP_NOTIFY_H
#define FP_NOTIFY_H

/*
 * Connects to NOTIFY_SOCKET. Returns the descriptor; -1: there is no such socket, or connecting
 * failed.
 */
int fp_notify_open(void);

/*
 * Sends a text, cut at 192 bytes. A text "STATUS=..." is dropped if the reader's queue is full. Any
 * other text waits for the reader, half a second at most. fd -1 is fine.
 */
void fp_notify(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
