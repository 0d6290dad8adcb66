/*
 * A memory node of one's own: a farpaged started for the life of a command, reached through a
 * socket that nobody else has. Room: tools; knows processes and the daemon's command line.
 */
#ifndef FP_PRIVNODE_H
#define FP_PRIVNODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP_PRIVNODE_SOCKET "node.sock"

struct fp_privnode;

enum fp_privnode_kind {
	FP_PRIVNODE_SHM, /* on a UNIX socket in dir */
	FP_PRIVNODE_TCP, /* on a free port of 127.0.0.1 */
};

struct fp_privnode_options {
	enum fp_privnode_kind kind;
	const char *dir;     /* a folder of this process */
	uint64_t pool_bytes; /* of its one pool; taken from the system on demand */
	bool
	    serves_users; /* beyond the end of this process, until nobody has fp_privnode_users_fd any more */
	int dir_lock_fd;  /* it is to keep open, if it serves users */
};

/*
 * Starts farpaged and waits until it serves. The daemon is in a session of its own, so that a ^C
 * ends only the program. 0 and *ret_node; else a negative errno and a text in error. Release with
 * fp_privnode_stop.
 */
int fp_privnode_start(const struct fp_privnode_options *options, char *error, size_t error_len,
                      struct fp_privnode **ret_node);

/* A descriptor, close-on-exec: who has a copy of it is a user. The node's; -1: it does not serve
 * users. */
int fp_privnode_users_fd(const struct fp_privnode *node);

/* The URL at which it is reached. Valid until it is stopped. */
const char *fp_privnode_url(const struct fp_privnode *node);

/* Releases a node that still has users and leaves it to them: true. Else false: it is to be
 * stopped. */
bool fp_privnode_leave(struct fp_privnode *node);

/* Ends the daemon (forcibly if it does not within some seconds) and waits for it. NULL is fine. */
void fp_privnode_stop(struct fp_privnode *node);

#endif
