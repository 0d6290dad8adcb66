/*
 * A memory node of one's own: a farpaged started for the life of a command, reached through a
 * socket that nobody else has. Room: tools; knows processes and the daemon's command line.
 */
#ifndef FP_PRIVNODE_H
#define FP_PRIVNODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FP_PRIVNODE_SOCKET "node.sock"

struct fp_privnode {
	pid_t pid;     /* 0: not started, or collected */
	char url[128]; /* at which it is reached */
	/* A pipe, close-on-exec: the node waits at the one end until the other is closed
	 * everywhere. Who has a copy of the latter is a user. -1: it does not serve users. */
	int users_fds[2];
};

enum fp_privnode_kind {
	FP_PRIVNODE_SHM, /* on a UNIX socket in dir */
	FP_PRIVNODE_TCP, /* on a free port of 127.0.0.1 */
};

struct fp_privnode_options {
	enum fp_privnode_kind kind;
	const char *dir;     /* a folder of this process */
	uint64_t pool_bytes; /* of its one pool; taken from the system on demand */
	bool serves_users;   /* beyond the end of this process, until none has users_fds[1] any more */
	int dir_lock_fd;     /* it is to keep open, if it serves users */
};

/*
 * Starts farpaged and waits until it serves. The daemon is in a session of its own, so that a ^C
 * ends only the program. 0 and *ret_node; else a negative errno and a text in error. Release with
 * fp_privnode_stop.
 */
int fp_privnode_start(const struct fp_privnode_options *options, char *error, size_t error_len,
                      struct fp_privnode **ret_node);

/* Releases a node that still has users and leaves it to them: true. Else false: it is to be
 * stopped. */
bool fp_privnode_leave(struct fp_privnode *node);

/* Ends the daemon (forcibly if it does not within some seconds) and waits for it. NULL is fine. */
void fp_privnode_stop(struct fp_privnode *node);

#endif
