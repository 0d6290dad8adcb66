/*
 * The handshake of a connection, and what it opens: a session, a link of one, or a session again.
 * Room: daemon. Both are handlers of request.c: inbox holds the message; each answers it, or
 * refuses the connection.
 */
#ifndef FP_ADMISSION_H
#define FP_ADMISSION_H

struct fp_conn;

/* HELLO: answers CHALLENGE. */
int fp_admission_hello(struct fp_conn *conn);
/* AUTH: answers WELCOME; the connection is open from then on and has its session. */
int fp_admission_auth(struct fp_conn *conn);

#endif
