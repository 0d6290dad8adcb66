/*
 * Handles the handshake of a connection. It opens a session, adds a link to one, or resumes one.
 * Room: daemon. request.c calls the first two functions when the inbox holds their message. Each
 * function answers the message, or refuses the connection.
 */
#ifndef FP_ADMISSION_H
#define FP_ADMISSION_H

struct fp_conn;

/* HELLO: answers CHALLENGE. */
int fp_admission_hello(struct fp_conn *conn);
/* AUTH: answers WELCOME. From then on the connection is open and has its session. */
int fp_admission_auth(struct fp_conn *conn);
/* The connection counts as trusted no longer: it has proved the secret, or has ended. */
void fp_admission_end_trust(struct fp_conn *conn);

#endif
