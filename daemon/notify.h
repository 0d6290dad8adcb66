/*
 * What the daemon tells systemd: its state, by datagrams to NOTIFY_SOCKET (sd_notify(3)). Room:
 * daemon. It knows texts, never what they mean.
 */
#ifndef FP_NOTIFY_H
#define FP_NOTIFY_H

/* Connects to NOTIFY_SOCKET, if there is one that can be. Returns it; -1: nobody wants to know. */
int fp_notify_open(void);

/*
 * Sends a text, cut at 192 bytes. A "STATUS=" is lost where its reader has not looked at those
 * before it. For a reader of any other text it waits, half a second at most. fd -1 is fine.
 */
void fp_notify(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
