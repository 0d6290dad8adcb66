/*
 * Listening sockets. Room: daemon; see listen.h.
 */
#include "listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "units.h"
#include "wire.h"

/* For TCP. A client that finds the queue full tries again only after a second. */
#define BACKLOG       4096
#define UNIX_BACKLOG  128 /* for UNIX sockets, where connect(2) waits while the queue is full */
#define BIND_RETRIES  20
#define BIND_PAUSE_NS 50000000

static int parse_unix(const char *path, struct fp_listen_address *ret_address)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	size_t len = strlen(path);

	if (len < 2 || (path[0] != '/' && path[0] != '@'))
		return -EINVAL;
	if (len >= sizeof(sun.sun_path))
		return -ENAMETOOLONG;
	memcpy(sun.sun_path, path, len + 1);
	if (path[0] == '@')
		sun.sun_path[0] = '\0';
	*ret_address = (struct fp_listen_address){0};
	memcpy(&ret_address->sockaddr, &sun, sizeof(sun));
	/* the length tells where an abstract name ends, because it has no NUL */
	ret_address->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (path[0] == '/'));
	return 0;
}

static int parse_inet(const char *text, uint16_t default_port, struct fp_listen_address *ret_address)
{
	const char *colon = strrchr(text, ':'), *bracket = strrchr(text, ']');
	struct sockaddr_in in4 = {.sin_family = AF_INET};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
	char host[INET6_ADDRSTRLEN + 2];
	size_t len;
	uint64_t port = default_port;

	if (bracket && bracket > colon)
		colon = NULL; /* this colon is a part of the address */
	if (colon && fp_number_parse(colon + 1, 0, UINT16_MAX, &port) < 0)
		return -EINVAL;
	len = colon ? (size_t)(colon - text) : strlen(text);
	if (len == 0 || len >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, len);
	host[len] = '\0';
	in4.sin_port = in6.sin6_port = htons((uint16_t)port);
	*ret_address = (struct fp_listen_address){0};
	if (host[0] == '[' && host[len - 1] == ']') {
		host[len - 1] = '\0';
		ret_address->len = sizeof(in6);
		if (inet_pton(AF_INET6, host + 1, &in6.sin6_addr) != 1)
			return -EINVAL;
		memcpy(&ret_address->sockaddr, &in6, sizeof(in6));
		return 0;
	}
	ret_address->len = sizeof(in4);
	if (inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &in4.sin_addr) != 1)
		return -EINVAL;
	memcpy(&ret_address->sockaddr, &in4, sizeof(in4));
	return 0;
}

int fp_listen_parse(const char *text, struct fp_listen_address *ret_address)
{
	struct fp_listen_address address;
	int r = -EINVAL;

	if (strncmp(text, "unix:", 5) == 0)
		r = parse_unix(text + 5, &address);
	else if (strncmp(text, "tcp://", 6) == 0)
		r = parse_inet(text + 6, FP_WIRE_DEFAULT_PORT, &address);
	else if (strncmp(text, "rdma://", 7) == 0)
		r = parse_inet(text + 7, FP_WIRE_RDMA_PORT, &address);
	if (r < 0)
		return r;
	address.rdma = text[0] == 'r';
	*ret_address = address;
	return 0;
}

static bool inet4_overlaps(const struct sockaddr_in *a, const struct sockaddr_in *b)
{
	return a->sin_port && a->sin_port == b->sin_port &&
	       (a->sin_addr.s_addr == b->sin_addr.s_addr || a->sin_addr.s_addr == INADDR_ANY ||
	        b->sin_addr.s_addr == INADDR_ANY);
}

static bool inet6_overlaps(const struct sockaddr_in6 *a, const struct sockaddr_in6 *b)
{
	return a->sin6_port && a->sin6_port == b->sin6_port &&
	       (memcmp(&a->sin6_addr, &b->sin6_addr, sizeof(a->sin6_addr)) == 0 ||
	        IN6_IS_ADDR_UNSPECIFIED(&a->sin6_addr) || IN6_IS_ADDR_UNSPECIFIED(&b->sin6_addr));
}

/* A socket of [::] takes the port for IPv4, too: see set_options. */
static bool dual_stack_overlaps(const struct fp_listen_address *a, const struct fp_listen_address *b)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&a->sockaddr;
	const struct sockaddr_in *in4 = (const struct sockaddr_in *)&b->sockaddr;

	return a->sockaddr.ss_family == AF_INET6 && b->sockaddr.ss_family == AF_INET && in6->sin6_port &&
	       in6->sin6_port == in4->sin_port && IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr);
}

bool fp_listen_overlaps(const struct fp_listen_address *a, const struct fp_listen_address *b)
{
	if (a->sockaddr.ss_family != b->sockaddr.ss_family)
		return dual_stack_overlaps(a, b) || dual_stack_overlaps(b, a);
	if (a->sockaddr.ss_family == AF_INET)
		return inet4_overlaps((const struct sockaddr_in *)&a->sockaddr,
		                      (const struct sockaddr_in *)&b->sockaddr);
	if (a->sockaddr.ss_family == AF_INET6)
		return inet6_overlaps((const struct sockaddr_in6 *)&a->sockaddr,
		                      (const struct sockaddr_in6 *)&b->sockaddr);
	return a->len == b->len && memcmp(&a->sockaddr, &b->sockaddr, a->len) == 0;
}

/* Binds to any port, which is given back at once. */
bool fp_listen_is_here(const struct fp_listen_address *address)
{
	struct sockaddr_storage any = address->sockaddr;
	fp_autoclose int fd = -1;

	if (any.ss_family == AF_INET)
		((struct sockaddr_in *)&any)->sin_port = 0;
	else if (any.ss_family == AF_INET6)
		((struct sockaddr_in6 *)&any)->sin6_port = 0;
	else
		return true;
	fd = socket(any.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	return fd < 0 || bind(fd, (const struct sockaddr *)&any, address->len) == 0 || errno != EADDRNOTAVAIL;
}

bool fp_listen_is_local(const struct fp_listen_address *address)
{
	const struct sockaddr *sa = (const struct sockaddr *)&address->sockaddr;

	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *in4 = (const struct sockaddr_in *)&address->sockaddr;

		return ntohl(in4->sin_addr.s_addr) >> 24 == 127;
	}
	if (sa->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&address->sockaddr;

		return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
	}
	return sa->sa_family == AF_UNIX;
}

static const char *socket_file(const struct fp_listen_address *address)
{
	const struct sockaddr_un *sun = (const struct sockaddr_un *)&address->sockaddr;

	return sun->sun_family == AF_UNIX && sun->sun_path[0] ? sun->sun_path : NULL;
}

/* True if the file is a socket without a listener. */
static bool is_stale(const char *path, const struct fp_listen_address *address)
{
	fp_autoclose int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct stat st;

	return fd >= 0 && lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) &&
	       connect(fd, (const struct sockaddr *)&address->sockaddr, address->len) < 0 &&
	       errno == ECONNREFUSED;
}

static int try_bind(int fd, const struct fp_listen_address *address)
{
	const char *path = socket_file(address);
	int r = bind(fd, (const struct sockaddr *)&address->sockaddr, address->len) < 0 ? -errno : 0;

	if (r == -EADDRINUSE && path && is_stale(path, address) && unlink(path) == 0)
		r = bind(fd, (const struct sockaddr *)&address->sockaddr, address->len) < 0 ? -errno : 0;
	return r;
}

/*
 * Tries again for up to a second. A killed daemon's socket still answers for a moment, because the
 * kernel ends the daemon's io_uring only after the process.
 */
static int bind_to(int fd, const struct fp_listen_address *address)
{
	const struct timespec pause = {.tv_nsec = BIND_PAUSE_NS};
	mode_t old_mask = umask(0117); /* owner and group may connect */
	int r = try_bind(fd, address);

	for (unsigned i = 0; r == -EADDRINUSE && i < BIND_RETRIES; i++) {
		nanosleep(&pause, NULL);
		r = try_bind(fd, address);
	}
	umask(old_mask);
	return r;
}

bool fp_listen_is_taken_by_file(const struct fp_listen_address *address)
{
	const char *path = socket_file(address);
	struct stat st;

	return path && lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode);
}

/*
 * SO_REUSEADDR: a restart need not wait for old connections to time out. Accepted sockets inherit
 * TCP_NODELAY from the listener. IPV6_V6ONLY: [::] means IPv4, too, whatever net.ipv6.bindv6only
 * says.
 */
static int set_options(int fd, int family)
{
	const int zero = 0, one = 1;

	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0)
		return -errno;
	if (family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)) < 0)
		return -errno;
	return 0;
}

int fp_listen_open(const struct fp_listen_address *address, int *ret_fd)
{
	fp_autoclose int fd = socket(address->sockaddr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return -errno;
	r = address->sockaddr.ss_family != AF_UNIX ? set_options(fd, address->sockaddr.ss_family) : 0;
	if (r < 0)
		return r;
	r = fp_listen_is_taken_by_file(address) ? -ENOTSOCK : bind_to(fd, address);
	if (r < 0)
		return r;
	if (listen(fd, address->sockaddr.ss_family == AF_UNIX ? UNIX_BACKLOG : BACKLOG) < 0)
		return -errno;
	*ret_fd = fp_take_fd(fd);
	return 0;
}

void fp_listen_close(const struct fp_listen_address *address, int fd)
{
	if (socket_file(address))
		unlink(socket_file(address));
	close(fd);
}

/* Writes the numeric host, without brackets. Returns the port. */
static uint16_t host_of(const struct sockaddr_storage *addr, char *host, size_t len)
{
	const struct sockaddr_in *in4 = (const struct sockaddr_in *)addr;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;
	bool v6 = addr->ss_family == AF_INET6;

	snprintf(host, len, "?");
	inet_ntop(addr->ss_family, v6 ? (const void *)&in6->sin6_addr : &in4->sin_addr, host, (socklen_t)len);
	return ntohs(v6 ? in6->sin6_port : in4->sin_port);
}

static const char *inet_text(const struct sockaddr_storage *addr, char *buf, size_t len)
{
	char host[INET6_ADDRSTRLEN];
	uint16_t port = host_of(addr, host, sizeof(host));

	snprintf(buf, len, addr->ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, port);
	return buf;
}

const char *fp_listen_url(const struct fp_listen_address *address, int fd, char *buf, size_t len)
{
	struct sockaddr_storage addr = {0};
	const struct sockaddr_un *sun = (const struct sockaddr_un *)&addr;
	socklen_t addr_len = sizeof(addr);
	char inet[INET6_ADDRSTRLEN + 16];

	getsockname(fd, (struct sockaddr *)&addr, &addr_len);
	if (addr.ss_family != AF_UNIX)
		snprintf(buf, len, "%s://%s", address->rdma ? "rdma" : "tcp",
		         inet_text(&addr, inet, sizeof(inet)));
	else if (sun->sun_path[0])
		snprintf(buf, len, "shm:%s", sun->sun_path);
	else
		snprintf(buf, len, "shm:@%.*s", (int)(addr_len - offsetof(struct sockaddr_un, sun_path) - 1),
		         sun->sun_path + 1);
	return buf;
}

/* An IPv4 address that is mapped into IPv6 becomes plain IPv4. */
void fp_listen_own_address(int fd, struct sockaddr_storage *ret_address)
{
	socklen_t len = sizeof(*ret_address);
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)ret_address;
	struct sockaddr_in in4 = {.sin_family = AF_INET};

	*ret_address = (struct sockaddr_storage){0};
	if (getsockname(fd, (struct sockaddr *)ret_address, &len) < 0 || ret_address->ss_family != AF_INET6 ||
	    !IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr))
		return;
	memcpy(&in4.sin_addr, &in6->sin6_addr.s6_addr[12], sizeof(in4.sin_addr));
	in4.sin_port = in6->sin6_port;
	*ret_address = (struct sockaddr_storage){0};
	memcpy(ret_address, &in4, sizeof(in4));
}

struct ucred fp_listen_peer_cred(int fd)
{
	struct ucred cred = {.uid = (uid_t)-1};
	socklen_t len = sizeof(cred);

	(void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len);
	return cred;
}

bool fp_listen_peer_is_owner(int fd)
{
	uid_t uid = fp_listen_peer_cred(fd).uid;

	return uid == 0 || uid == geteuid();
}

const char *fp_listen_peer_name(int fd, char *buf, size_t len)
{
	struct sockaddr_storage addr = {0};
	socklen_t addr_len = sizeof(addr);
	struct ucred cred;

	if (getpeername(fd, (struct sockaddr *)&addr, &addr_len) < 0) {
		snprintf(buf, len, "a peer that is gone");
		return buf;
	}
	if (addr.ss_family != AF_UNIX)
		return inet_text(&addr, buf, len);
	cred = fp_listen_peer_cred(fd);
	snprintf(buf, len, "pid %d uid %u", cred.pid, cred.uid);
	return buf;
}
