/*
 * What farpaged's CPU does for a READ over tcp, beside a bare io_uring server that moves the same
 * bytes and does nothing else: no handshake, no checks, no shares. Room: test/bench.
 *
 *   tcpfloor FARPAGED
 *
 * Four links, each with the same number of READs under way, ask for 4 KiB or for 16 x 4 KiB. Two
 * threads are the clients. The bare server and farpaged with 1, 2 and 4 shards take turns. For each
 * the program prints the medians, least and greatest: requests a second, and CPU time of the
 * server's process for a request, with its ratio to the bare server's.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "fdutil.h"
#include "handshake.h"
#include "wire.h"

#define PAGE         4096u
#define MEMORY_BYTES (64u << 20)
#define MAX_PAGES    16u
#define SEND_BYTES   (128u << 10) /* farpaged sends no more at once */
#define MAX_ANSWERS  (SEND_BYTES / PAGE)
#define N_LINKS      4u
#define N_CLIENTS    2u
#define N_SERVERS    4u
#define ROUNDS       5u
#define ROUND_NS     (400 * FP_NSEC_PER_MSEC)
#define PATIENCE_NS  (10 * FP_NSEC_PER_SEC)

static void die(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

/* A random page of the memory: both servers read memory that is in no cache. */
static uint64_t random_offset(uint32_t *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (uint64_t)(*seed >> 8) % (MEMORY_BYTES / PAGE) * PAGE;
}

static size_t request_bytes(unsigned pages)
{
	return FP_WIRE_HEADER_BYTES + 8 + 16 * (size_t)pages;
}

static size_t answer_bytes(unsigned pages)
{
	return FP_WIRE_HEADER_BYTES + (size_t)pages * PAGE;
}

/* ---- the bare server ---- */

struct bare_conn {
	int fd;
	uint8_t buf[8192];
	size_t have_bytes; /* of requests that are not answered yet */
	bool sending;
	unsigned n_sent; /* answers of the send under way */
	struct iovec iov[MAX_ANSWERS * 2];
	struct msghdr msg;
};

static struct {
	struct io_uring ring;
	int listener;
	unsigned pages;
	uint32_t seed;
	uint8_t *memory;
	uint8_t header[FP_WIRE_HEADER_BYTES];
} bare;

#define OF_SEND 1u /* in user_data, beside the pointer to the connection */

static void bare_submit(struct io_uring_sqe *sqe, struct bare_conn *conn, uintptr_t kind)
{
	io_uring_sqe_set_data64(sqe, (uintptr_t)conn | kind);
}

static void bare_accept(void)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&bare.ring);

	io_uring_prep_accept(sqe, bare.listener, NULL, NULL, 0);
	bare_submit(sqe, NULL, 0);
}

static void bare_recv(struct bare_conn *conn)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&bare.ring);

	io_uring_prep_recv(sqe, conn->fd, conn->buf, sizeof(conn->buf), 0);
	bare_submit(sqe, conn, 0);
}

static void bare_send_rest(struct bare_conn *conn)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&bare.ring);

	io_uring_prep_sendmsg(sqe, conn->fd, &conn->msg, MSG_NOSIGNAL);
	bare_submit(sqe, conn, OF_SEND);
}

static void bare_send(struct bare_conn *conn)
{
	unsigned n = 0;

	if (conn->sending || conn->have_bytes < request_bytes(bare.pages))
		return;
	conn->n_sent = 0;
	while (conn->have_bytes >= request_bytes(bare.pages) &&
	       (conn->n_sent + 1) * answer_bytes(bare.pages) <= SEND_BYTES) {
		conn->have_bytes -= request_bytes(bare.pages);
		conn->n_sent++;
		conn->iov[n++] = (struct iovec){bare.header, sizeof(bare.header)};
		for (unsigned i = 0; i < bare.pages; i++)
			conn->iov[n++] = (struct iovec){bare.memory + random_offset(&bare.seed), PAGE};
	}
	conn->msg = (struct msghdr){.msg_iov = conn->iov, .msg_iovlen = n};
	conn->sending = true;
	bare_send_rest(conn);
}

/* The kernel may have taken a part only: then the rest follows. */
static void bare_sent(struct bare_conn *conn, size_t n)
{
	struct msghdr *msg = &conn->msg;

	while (msg->msg_iovlen && n >= msg->msg_iov->iov_len) {
		n -= msg->msg_iov->iov_len;
		msg->msg_iov++;
		msg->msg_iovlen--;
	}
	if (msg->msg_iovlen) {
		msg->msg_iov->iov_base = (char *)msg->msg_iov->iov_base + n;
		msg->msg_iov->iov_len -= n;
		bare_send_rest(conn);
		return;
	}
	conn->sending = false;
	bare_send(conn);
}

static void bare_complete(const struct io_uring_cqe *cqe)
{
	struct bare_conn *conn = (struct bare_conn *)(uintptr_t)(cqe->user_data & ~(uint64_t)OF_SEND);

	if (!conn) {
		conn = calloc(1, sizeof(*conn));
		if (!conn || cqe->res < 0)
			die("accept");
		conn->fd = cqe->res;
		bare_accept();
		bare_recv(conn);
	} else if (cqe->user_data & OF_SEND) {
		if (cqe->res >= 0)
			bare_sent(conn, (size_t)cqe->res);
	} else if (cqe->res > 0) {
		conn->have_bytes += (size_t)cqe->res;
		bare_send(conn);
		bare_recv(conn);
	} else {
		close(conn->fd); /* few ever end, so none is freed */
	}
}

static void bare_serve(void)
{
	struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
	struct io_uring_cqe *cqe;

	if (io_uring_queue_init_params(256, &bare.ring, &params) < 0)
		die("io_uring");
	bare_accept();
	for (;;) {
		unsigned head, n = 0;

		io_uring_submit_and_wait(&bare.ring, 1);
		io_uring_for_each_cqe(&bare.ring, head, cqe)
		{
			bare_complete(cqe);
			n++;
		}
		io_uring_cq_advance(&bare.ring, n);
	}
}

static uint8_t *memory_of_a_memfd(void)
{
	int fd = memfd_create("tcpfloor", MFD_CLOEXEC);
	void *memory = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, MEMORY_BYTES) == 0)
		memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (memory == MAP_FAILED)
		die("memory");
	return memory;
}

/* Starts a bare server that answers requests for so many pages. Returns its port. */
static uint16_t bare_start(unsigned pages, pid_t *ret_pid)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);

	bare.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(bare.listener, (struct sockaddr *)&address, len) < 0 || listen(bare.listener, 8) < 0 ||
	    getsockname(bare.listener, (struct sockaddr *)&address, &len) < 0)
		die("loopback");
	*ret_pid = fork();
	if (*ret_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		bare.pages = pages;
		bare.memory = memory_of_a_memfd(); /* like that of a lease */
		fp_wire_header_encode(FP_WIRE_DATA, FP_WIRE_OK, 1, (size_t)pages * PAGE, bare.header);
		bare_serve();
	}
	close(bare.listener);
	return ntohs(address.sin_port);
}

/* ---- farpaged ---- */

struct server {
	const char *name;
	pid_t pid;
	uint16_t port; /* of a bare server; 0: it is a farpaged */
	struct test_daemon node;
	struct fp_url url;
	struct fp_handshake *control;
	struct fp_wire_welcome session;
	uint32_t lease_id;
};

static int open_lease(struct server *server)
{
	struct fp_handshake_options options = {.purpose = FP_WIRE_CONTROL, .client_name = "tcpfloor"};
	uint64_t deadline_ns = fp_clock_ns() + PATIENCE_NS;
	struct fp_wire_lease lease = {.size_bytes = MEMORY_BYTES};
	struct fp_wire_header header;
	struct fp_wire_leased leased;
	uint8_t bytes[sizeof(lease)];
	const void *payload;
	int r = fp_handshake_open(&server->url, &options, deadline_ns, &server->control, &server->session);

	if (r < 0)
		return r;
	fp_wire_lease_encode(&lease, bytes);
	r = fp_handshake_send(server->control, FP_WIRE_LEASE, 1, bytes, sizeof(bytes), deadline_ns);
	if (r == 0)
		r = fp_handshake_receive(server->control, deadline_ns, &header, &payload);
	if (r == 0)
		r = fp_wire_leased_decode(payload, header.length, &leased);
	if (r == 0)
		server->lease_id = leased.lease_id;
	return r;
}

static void farpaged_start(const char *path, const char *shards, struct server *server)
{
	const char *config = "pools: [ { name: main, size: 64M, preallocate: true } ]\n"
	                     "limits: { idle_timeout: 1h }\nlog_level: warning\n";

	setenv("FARPAGE_TEST_SHARDS", shards, 1);
	if (test_daemon_start_config(path, "tcp", config, &server->node) < 0 ||
	    fp_url_parse(server->node.url, &server->url) < 0 || open_lease(server) < 0)
		die("farpaged");
	server->pid = server->node.pid;
}

/* ---- the clients ---- */

struct link {
	int fd;
	size_t have_bytes; /* of the answer that is arriving */
	unsigned n_done;
	uint32_t seed;
};

struct load {
	const struct server *server;
	unsigned pages, depth;
	uint64_t until_ns;
	struct link links[N_LINKS];
};

static int connect_bare(uint16_t port)
{
	struct sockaddr_in address = {
	    .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static int connect_farpaged(const struct server *server)
{
	struct fp_handshake_options options = {
	    .purpose = FP_WIRE_LINK, .client_name = "tcpfloor", .session = &server->session};
	struct fp_handshake *handshake;
	struct fp_wire_welcome welcome;

	if (fp_handshake_open(&server->url, &options, fp_clock_ns() + PATIENCE_NS, &handshake, &welcome) < 0)
		die("link");
	return fp_handshake_take_socket(handshake);
}

static void send_requests(struct link *link, const struct load *load, unsigned n)
{
	struct fp_wire_seg segs[MAX_PAGES];
	uint8_t bytes[8192], *at = bytes;

	for (unsigned i = 0; i < n; i++) {
		for (unsigned j = 0; j < load->pages; j++)
			segs[j] = (struct fp_wire_seg){.lease_id = load->server->lease_id,
			                               .len_bytes = PAGE,
			                               .offset_bytes = random_offset(&link->seed)};
		fp_wire_header_encode(FP_WIRE_READ, FP_WIRE_OK, 1, 8 + 16 * load->pages, at);
		fp_wire_table_encode(segs, load->pages, at + FP_WIRE_HEADER_BYTES);
		at += request_bytes(load->pages);
	}
	if (n && send(link->fd, bytes, (size_t)(at - bytes), MSG_NOSIGNAL) != at - bytes)
		die("send");
}

static void link_open(struct link *link, const struct load *load, uint32_t seed)
{
	*link = (struct link){.seed = seed};
	link->fd = load->server->port ? connect_bare(load->server->port) : connect_farpaged(load->server);
	send_requests(link, load, load->depth);
}

/* Takes what has arrived, and asks again for as many answers as are complete. */
static void link_go_on(struct link *link, const struct load *load)
{
	static _Thread_local uint8_t buf[256u << 10];
	ssize_t n = recv(link->fd, buf, sizeof(buf), MSG_DONTWAIT);
	struct fp_wire_header header;
	size_t have;

	if (n <= 0) {
		if (n == 0 || errno != EAGAIN)
			die("recv");
		return;
	}
	if (!link->have_bytes && (size_t)n >= FP_WIRE_HEADER_BYTES &&
	    (fp_wire_header_decode(buf, &header) < 0 || header.type != FP_WIRE_DATA))
		die("an answer without data");
	have = link->have_bytes + (size_t)n;
	link->n_done += (unsigned)(have / answer_bytes(load->pages));
	send_requests(link, load, (unsigned)(have / answer_bytes(load->pages)));
	link->have_bytes = have % answer_bytes(load->pages);
}

struct client {
	pthread_t thread;
	struct load *load;
	unsigned first;
};

static void *run_client(void *arg)
{
	const struct client *client = arg;
	struct load *load = client->load;
	struct pollfd fds[N_LINKS / N_CLIENTS];

	for (unsigned i = 0; i < FP_ARRAY_LEN(fds); i++)
		fds[i] = (struct pollfd){.fd = load->links[client->first + i].fd, .events = POLLIN};
	while (fp_clock_ns() < load->until_ns) {
		poll(fds, FP_ARRAY_LEN(fds), 10);
		for (unsigned i = 0; i < FP_ARRAY_LEN(fds); i++)
			if (fds[i].revents)
				link_go_on(&load->links[client->first + i], load);
	}
	return NULL;
}

static unsigned run_clients(struct load *load, uint64_t for_ns)
{
	struct client clients[N_CLIENTS];
	unsigned n_done = 0;

	load->until_ns = fp_clock_ns() + for_ns;
	for (unsigned i = 0; i < N_CLIENTS; i++) {
		clients[i] = (struct client){.load = load, .first = i * N_LINKS / N_CLIENTS};
		pthread_create(&clients[i].thread, NULL, run_client, &clients[i]);
	}
	for (unsigned i = 0; i < N_CLIENTS; i++)
		pthread_join(clients[i].thread, NULL);
	for (unsigned i = 0; i < N_LINKS; i++) {
		n_done += load->links[i].n_done;
		load->links[i].n_done = 0;
	}
	return n_done;
}

/* ---- figures ---- */

struct cost {
	double requests_a_second, cpu_us;
};

static uint64_t cpu_ns(pid_t pid)
{
	struct timespec ts;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &ts) < 0)
		die("the server's clock");
	return (uint64_t)ts.tv_sec * FP_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static struct cost measure(const struct server *server, unsigned pages, unsigned depth)
{
	struct load load = {.server = server, .pages = pages, .depth = depth};
	uint64_t wall, cpu;
	unsigned n;

	for (unsigned i = 0; i < N_LINKS; i++)
		link_open(&load.links[i], &load, i + 1);
	run_clients(&load, ROUND_NS / 10);
	cpu = cpu_ns(server->pid);
	wall = fp_clock_ns();
	n = run_clients(&load, ROUND_NS);
	wall = fp_clock_ns() - wall;
	cpu = cpu_ns(server->pid) - cpu;
	for (unsigned i = 0; i < N_LINKS; i++)
		fp_fd_close(load.links[i].fd);
	return (struct cost){n * 1e9 / (double)wall, (double)cpu / 1000 / n};
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print(const double *values, int digits, const char *unit)
{
	double sorted[ROUNDS];

	memcpy(sorted, values, sizeof(sorted));
	qsort(sorted, ROUNDS, sizeof(sorted[0]), compare);
	printf(" %7.*f [%.*f %.*f] %s", digits, sorted[ROUNDS / 2], digits, sorted[0], digits,
	       sorted[ROUNDS - 1], unit);
}

static void compare_servers(const struct server *servers, unsigned pages, unsigned depth)
{
	double rate[N_SERVERS][ROUNDS], cpu_us[N_SERVERS][ROUNDS], ratio[N_SERVERS][ROUNDS];

	for (unsigned round = 0; round < ROUNDS; round++)
		for (unsigned i = 0; i < N_SERVERS; i++) {
			struct cost cost = measure(&servers[i], pages, depth);

			rate[i][round] = cost.requests_a_second;
			cpu_us[i][round] = cost.cpu_us;
			ratio[i][round] = cost.cpu_us / cpu_us[0][round];
		}
	printf("%u x 4 KiB, %u READs under way on each of %u links\n", pages, depth, N_LINKS);
	for (unsigned i = 0; i < N_SERVERS; i++) {
		printf("  %-18s", servers[i].name);
		print(rate[i], 0, "a second,");
		print(cpu_us[i], 2, "us of CPU,");
		print(ratio[i], 2, "x bare\n");
	}
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const unsigned depths[] = {1, 8}, sizes[] = {1, MAX_PAGES};
	static const char *const shards[] = {"1", "2", "4"};
	static struct server servers[N_SERVERS] = {{.name = "bare"},
	                                           {.name = "farpaged, 1 shard"},
	                                           {.name = "farpaged, 2 shards"},
	                                           {.name = "farpaged, 4 shards"}};

	if (argc != 2)
		return 2;
	for (unsigned i = 1; i < N_SERVERS; i++)
		farpaged_start(argv[1], shards[i - 1], &servers[i]);
	for (unsigned i = 0; i < FP_ARRAY_LEN(sizes); i++) {
		servers[0].port = bare_start(sizes[i], &servers[0].pid);
		for (unsigned j = 0; j < FP_ARRAY_LEN(depths); j++)
			compare_servers(servers, sizes[i], depths[j]);
		kill(servers[0].pid, SIGKILL);
		waitpid(servers[0].pid, NULL, 0);
	}
	for (unsigned i = 1; i < N_SERVERS; i++) {
		fp_handshake_close(servers[i].control);
		test_daemon_stop(&servers[i].node);
	}
	return 0;
}
