/*
 * Listening sockets: the addresses of farpaged, parsed, checked and bound. Room: daemon. It knows
 * addresses, not the protocol.
 */
#ifndef FP_LISTEN_H
#define FP_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define FP_LISTEN_URL_LEN 160

struct fp_listen_address {
	struct sockaddr_storage sockaddr;
	socklen_t len;
	bool rdma; /* rdma_cm listens there, too */
};

/*
 * Parses "unix:PATH", "unix:@NAME" (abstract), "tcp://HOST[:PORT]" or "rdma://HOST[:PORT]". HOST is
 * a numeric address (IPv6 in brackets), or "localhost". PORT 0 means any free port. 0 and
 * *ret_address; -EINVAL: it is no such address; -ENAMETOOLONG: PATH or NAME is too long.
 */
int fp_listen_parse(const char *text, struct fp_listen_address *ret_address);

/* True if only this machine can reach it: a UNIX socket or a loopback address. */
bool fp_listen_is_local(const struct fp_listen_address *address);

/*
 * Binds and listens. Replaces a dead UNIX socket that an earlier run left behind. 0 and *ret_fd
 * (owned by the caller), or a negative errno. -EADDRINUSE: another process still answers there
 * after a second.
 */
int fp_listen_open(const struct fp_listen_address *address, int *ret_fd);

/* Removes a UNIX socket's file. */
void fp_listen_close(const struct fp_listen_address *address, int fd);

/* The URL by which clients reach fd: "shm:/path", "shm:@name", "tcp://127.0.0.1:7946", "rdma://...".
 * Returns buf. */
const char *fp_listen_url(const struct fp_listen_address *address, int fd, char *buf, size_t len);

/* The address of this machine to which the peer connected over TCP. */
void fp_listen_own_address(int fd, struct sockaddr_storage *ret_address);
/* Names the other end of a socket: "127.0.0.1:5022", "pid 12 uid 0". Returns buf. */
const char *fp_listen_peer_name(int fd, char *buf, size_t len);
/* The other end of a UNIX socket as the kernel knows it. uid -1: the kernel does not know. */
struct ucred fp_listen_peer_cred(int fd);

#endif
