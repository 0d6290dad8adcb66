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
 * a numeric address (IPv6 in brackets), or "localhost". PORT 0 means any free port. Returns 0 and
 * sets *ret_address; -EINVAL if text is no such address; -ENAMETOOLONG if PATH or NAME is too long.
 */
int fp_listen_parse(const char *text, struct fp_listen_address *ret_address);

/*
 * True if two listeners can't have these two addresses: they are the same UNIX socket, or the same
 * port of the same IP address, or of IP addresses of which one includes the other, as [::] does.
 */
bool fp_listen_overlaps(const struct fp_listen_address *a, const struct fp_listen_address *b);

/* True if a file that is no socket has the path of this UNIX socket now. */
bool fp_listen_is_taken_by_file(const struct fp_listen_address *address);

/* False if this machine does not have the address now. A port that is in use does not matter. */
bool fp_listen_is_here(const struct fp_listen_address *address);

/* True if only this machine can reach it: a UNIX socket or a loopback address. */
bool fp_listen_is_local(const struct fp_listen_address *address);

/*
 * Binds and listens. Replaces a dead UNIX socket that an earlier run left behind. 0 and *ret_fd
 * (owned by the caller), or a negative errno. -ENOTSOCK: the path is that of another file.
 * -EADDRINUSE: another process still answers there
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
/* True if the other end of a UNIX socket is root or the user that the node runs as. */
bool fp_listen_peer_is_owner(int fd);

#endif
