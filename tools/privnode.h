/*
 * A private memory node: a farpaged that lives as long as a command, behind a socket that only this
 * command uses. Room: tools; knows processes and the daemon's command line.
 */
#ifndef FP_PRIVNODE_H
#define FP_PRIVNODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FP_PRIVNODE_SOCKET "node.sock"

struct fp_privnode {
	pid_t pid;     /* 0: not started, or already collected by wait */
	char url[128]; /* the URL that reaches it */
	/*
	 * The two ends of a close-on-exec pipe. The node lives as long as any process has
	 * users_fds[1]; such a process is a user. -1: the node does not serve users.
	 */
	int users_fds[2];
};

enum fp_privnode_kind {
	FP_PRIVNODE_SHM, /* on a UNIX socket in dir */
	FP_PRIVNODE_TCP, /* on a free port of 127.0.0.1 */
};

struct fp_privnode_options {
	enum fp_privnode_kind kind;
	const char *dir;        /* a folder that this process made */
	uint64_t pool_bytes;    /* size of its only pool, whose memory is taken on demand */
	unsigned link_delay_us; /* how long it spins before it answers a READ */
	/* It lives on after this process, until no process has users_fds[1]. */
	bool serves_users;
	/* If it serves users: a descriptor that the node keeps open. */
	int dir_lock_fd;
};

/*
 * Starts farpaged and waits until it serves. The daemon has a kernel session of its own (setsid),
 * so that a ^C ends only the program. 0 and *ret_node; else a negative errno and a text in error.
 * Release with fp_privnode_stop.
 */
int fp_privnode_start(const struct fp_privnode_options *options, char *error, size_t error_len,
                      struct fp_privnode **ret_node);

/*
 * True: the node still has users. Then it is left running, and node is freed. False: the caller
 * must stop it.
 */
bool fp_privnode_leave(struct fp_privnode *node);

/* Ends the daemon (by SIGKILL if it does not end within some seconds) and waits for it. NULL is
 * fine. */
void fp_privnode_stop(struct fp_privnode *node);

#endif
