/*
 * What clients make the node keep. Room: daemon; see holding.h.
 */
#include "holding.h"

#include <limits.h>
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "cleanup.h"
#include "conn.h"
#include "node_server.h"

#define LOOK_BYTES 16384u /* sent since the last look, counted as unread without a look */
#define SEND_BYTES 1024u  /* the kernel's memory for one send, beside the bytes */
#ifndef SOCK_RCVBUF_LOCK
#define SOCK_SNDBUF_LOCK 1
#define SOCK_RCVBUF_LOCK 2
#endif
/* The kernel doubles these. Wide is what net.core.wmem_max usually allows. */
#define NARROW_BYTES      4096
#define WIDE_BYTES        212992
#define NARROW_RECV_BYTES 8192
#define WIDE_RECV_BYTES   65536
#define PLACE_BYTES       (4u * NARROW_BYTES) /* of a place, what a narrow socket may take */

void fp_holding_init(struct fp_node_server *server)
{
	uint64_t n_loops = server->config->shards > 1 ? 1 + server->config->shards : 1;
	struct fp_hostmem host;

	fp_hostmem_read("", &host);
	if (server->options.private_node || host.total_bytes == UINT64_MAX)
		return;
	server->keeping_bytes = fp_hostmem_kept_back(&host);
	server->clients.max_kept_bytes = FP_MAX(server->keeping_bytes / 4 / n_loops, 2ull);
}

uint64_t fp_holding_places(const struct fp_node_server *server)
{
	/* of five places, one is a stranger's */
	uint64_t bytes = server->keeping_bytes / 4 * 3 / 5 * 4;

	return server->keeping_bytes ? FP_MAX(bytes / FP_HOLDING_PLACE_BYTES, 1ull) : UINT64_MAX;
}

static void count_fds(struct fp_conn *conn, unsigned n)
{
	conn->client->n_waiting_fds += n - conn->n_waiting_fds;
	conn->client->clients->n_waiting_fds += n - conn->n_waiting_fds;
	conn->n_waiting_fds = n;
}

static void count_bytes(struct fp_conn *conn, size_t held_bytes, size_t kept_bytes)
{
	unsigned idx = conn->shard->idx;

	conn->client->held_bytes[idx] += held_bytes - conn->held_bytes;
	conn->client->kept_bytes[idx] += kept_bytes - conn->kept_bytes;
	conn->client->clients->kept_bytes[idx] += kept_bytes - conn->kept_bytes;
	conn->held_bytes = held_bytes;
	conn->kept_bytes = kept_bytes;
}

void fp_holding_drop(struct fp_conn *conn)
{
	if (!conn->client)
		return;
	count_bytes(conn, 0, 0);
	if (conn->n_waiting_fds) /* only the main loop passes descriptors */
		count_fds(conn, 0);
}

/*
 * A receive under way counts with what it may bring, if that is more than a place has room for. A
 * small socket buffer is part of the place.
 */
static size_t kept_bytes(const struct fp_conn *conn)
{
	size_t sum = conn->outbox.held_bytes + conn->stash_bytes;

	if (conn->receiving && conn->recv_bytes == FP_LOOP_BUF_BYTES)
		sum += conn->recv_bytes;
	sum += conn->unlooked_bytes + conn->queued_bytes;
	return conn->is_narrow ? sum - FP_MIN(conn->unlooked_bytes + conn->queued_bytes, PLACE_BYTES) : sum;
}

void fp_holding_count(struct fp_conn *conn)
{
	unsigned n_fds;

	if (!conn->client)
		return;
	count_bytes(conn, conn->outbox.held_bytes + conn->stash_bytes, kept_bytes(conn));
	/* they wait after BYE, too. A lease that is being made counts if its answer must wait */
	n_fds = conn->outbox.n_fds;
	if (conn->session && conn->session->memfd && conn->outbox.n)
		n_fds += conn->leasing;
	if (n_fds || conn->n_waiting_fds)
		count_fds(conn, n_fds);
}

/*
 * Once all clients together keep half of what they may, a client that has its even part of that
 * half is scanty. Clients below it can add less than another half.
 */
bool fp_holding_is_scanty(const struct fp_conn *conn)
{
	const struct fp_client *client = conn->client;
	unsigned idx = conn->shard->idx;
	uint64_t half;

	if (!client)
		return false;
	half = client->clients->max_kept_bytes / 2;
	return client->held_bytes[idx] >= FP_CLIENT_HELD_BYTES ||
	       (half && client->clients->kept_bytes[idx] >= half &&
	        client->kept_bytes[idx] >= half / client->clients->n);
}

static size_t unread_bytes(const struct fp_conn *conn)
{
	int bytes = 0, fin = !conn->is_unix && (conn->half_closed || conn->state == FP_CONN_KILLED);

	if (ioctl(conn->fd, SIOCOUTQ, &bytes) < 0 || bytes <= fin) /* tcp counts our FIN as a byte */
		return 0;
	return (size_t)bytes;
}

/*
 * Memory that the kernel keeps for the socket as ours: answers, and of tcp input as well.
 * *ret_recv_bytes: the size of its receive buffer.
 */
static size_t socket_bytes(const struct fp_conn *conn, uint32_t *ret_recv_bytes)
{
	uint32_t info[SK_MEMINFO_VARS] = {0};
	socklen_t len = sizeof(info);

	if (conn->is_unix)
		return unread_bytes(conn);
	(void)getsockopt(conn->fd, SOL_SOCKET, SO_MEMINFO, info, &len);
	*ret_recv_bytes = info[SK_MEMINFO_RCVBUF];
	return (size_t)info[SK_MEMINFO_RMEM_ALLOC] + info[SK_MEMINFO_WMEM_QUEUED];
}

/* While a receive is under way, the socket has no input that waits. */
void fp_holding_look(struct fp_conn *conn)
{
	uint32_t recv_bytes;

	if (conn->receiving && !conn->queued_bytes && !conn->unlooked_bytes)
		return;
	conn->queued_bytes = socket_bytes(conn, &recv_bytes);
	conn->unlooked_bytes = 0;
	fp_holding_count(conn);
}

void fp_holding_received(struct fp_conn *conn, size_t bytes)
{
	conn->promised_bytes -= (uint32_t)FP_MIN(bytes, conn->promised_bytes);
}

/* A look takes a third of a microsecond, so not every send makes one. */
void fp_holding_sent(struct fp_conn *conn, size_t bytes)
{
	conn->unlooked_bytes += bytes + SEND_BYTES;
	if (conn->unlooked_bytes > LOOK_BYTES)
		fp_holding_look(conn);
}

static void set_option(const struct fp_conn *conn, int level, int option, int value)
{
	(void)setsockopt(conn->fd, level, option, &value, sizeof(value));
}

/*
 * Of tcp, the window alone gets small at first: a receive buffer that has shrunk drops what is on
 * its way, and the peer sends it again and again.
 */
static void set_socket_buffers(const struct fp_conn *conn, bool narrow)
{
	set_option(conn, SOL_SOCKET, SO_SNDBUF, narrow ? NARROW_BYTES : WIDE_BYTES);
	if (!conn->is_unix && conn->is_small)
		set_option(conn, SOL_SOCKET, SO_RCVBUF, WIDE_RECV_BYTES);
	/* without the lock, the kernel tunes them */
	set_option(conn, SOL_SOCKET, SO_BUF_LOCK, narrow ? SOCK_SNDBUF_LOCK | SOCK_RCVBUF_LOCK : 0);
	if (!conn->is_unix)
		set_option(conn, IPPROTO_TCP, TCP_WINDOW_CLAMP, narrow ? 2 * NARROW_BYTES : INT_MAX);
}

void fp_holding_fit_socket(struct fp_conn *conn)
{
	bool narrow = fp_holding_is_scanty(conn);

	if (conn->is_narrow == narrow)
		return;
	conn->queued_bytes = socket_bytes(conn, &conn->promised_bytes);
	conn->unlooked_bytes = 0;
	set_socket_buffers(conn, narrow);
	conn->is_narrow = narrow;
	conn->is_small = false;
	fp_holding_count(conn);
}

/*
 * A window counts payload alone, and segments of one byte take a hundred times as much. So the
 * receive buffer follows, once all has been received that the wide window had room for.
 */
static void shrink(struct fp_conn *conn)
{
	if (conn->is_unix || conn->is_small || conn->promised_bytes)
		return;
	set_option(conn, SOL_SOCKET, SO_RCVBUF, NARROW_RECV_BYTES);
	conn->is_small = true;
}

void fp_holding_tick(struct fp_conn *conn)
{
	fp_holding_look(conn);
	if (conn->is_narrow)
		shrink(conn);
	else if (!conn->receiving && fp_holding_is_scanty(conn))
		fp_holding_fit_socket(conn);
}

/* True if nobody can receive what is left in a socket of tcp, because the peer has reset it. */
static bool is_reset(const struct fp_conn *conn)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	return getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 || info.tcpi_state == TCP_CLOSE;
}

bool fp_holding_outlives(const struct fp_conn *conn)
{
	if (!conn->client || !unread_bytes(conn))
		return false;
	if (conn->is_unix)
		return conn->client->clients->max_kept_bytes;
	return conn->state == FP_CONN_CLOSING && !is_reset(conn);
}

void fp_holding_end(const struct fp_conn *conn)
{
	const struct linger at_once = {.l_onoff = 1};

	if (!conn->is_unix && unread_bytes(conn))
		(void)setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}
