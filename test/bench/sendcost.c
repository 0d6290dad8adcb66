/*
 * The cost of sending an answer over TCP on loopback: copied (IORING_OP_SENDMSG, as farpaged does)
 * and zero-copy (IORING_OP_SENDMSG_ZC). Room: test/bench. A child reads the bytes and discards
 * them. The two ways take turns several times, so that both have the same conditions. The program
 * prints the medians.
 *
 * On loopback zero copy gains less than on a network, because the receiver still copies the bytes.
 * On a network the card would read them.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <liburing.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"

#define PAGE         4096u
#define MEMORY_PAGES 65536u
#define MAX_PAGES    64u
#define ROUNDS       5

struct cost {
	double wall_us, cpu_us; /* for one answer */
};

struct sender {
	struct io_uring ring;
	int fd;
	uint8_t *memory;
	uint8_t header[24];
	struct iovec iov[1 + MAX_PAGES];
	struct msghdr msg;
};

static void die(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

static void discard(int fd)
{
	static uint8_t buf[1 << 20];

	while (read(fd, buf, sizeof(buf)) > 0)
		;
	_exit(0);
}

/* Connects over loopback to a child, which reads all that it gets. */
static int connect_reader(pid_t *ret_child)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(listener, (struct sockaddr *)&address, len) < 0 || listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&address, &len) < 0 ||
	    connect(fd, (struct sockaddr *)&address, len) < 0)
		die("loopback");
	*ret_child = fork();
	if (*ret_child == 0) {
		close(fd);
		discard(accept(listener, NULL, NULL));
	}
	close(listener);
	return fd;
}

static void gather(struct sender *s, unsigned pages)
{
	s->iov[0] = (struct iovec){s->header, sizeof(s->header)};
	for (unsigned i = 0; i < pages; i++)
		s->iov[1 + i] =
		    (struct iovec){s->memory + (size_t)((unsigned)rand() % MEMORY_PAGES) * PAGE, PAGE};
	s->msg = (struct msghdr){.msg_iov = s->iov, .msg_iovlen = 1 + pages};
}

/*
 * Sends the message once, and waits for all completions of that send. A zero-copy send has two
 * completions; the first tells how much was sent.
 */
static void send_one(struct sender *s, bool zero_copy)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&s->ring);
	struct io_uring_cqe *cqe;
	bool more;

	io_uring_prep_sendmsg(sqe, s->fd, &s->msg, MSG_NOSIGNAL | MSG_WAITALL);
	if (zero_copy)
		sqe->opcode = IORING_OP_SENDMSG_ZC;
	io_uring_submit_and_wait(&s->ring, 1);
	do {
		if (io_uring_wait_cqe(&s->ring, &cqe) < 0 || cqe->res < 0)
			die("sendmsg");
		more = cqe->flags & IORING_CQE_F_MORE;
		io_uring_cqe_seen(&s->ring, cqe);
	} while (more);
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * FP_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static struct cost measure(struct sender *s, unsigned pages, bool zero_copy)
{
	unsigned n = 400000 / (pages + 16);
	uint64_t wall = fp_clock_ns(), cpu = cpu_ns();

	for (unsigned i = 0; i < n; i++) {
		gather(s, pages);
		send_one(s, zero_copy);
	}
	return (struct cost){(double)(fp_clock_ns() - wall) / n / 1000, (double)(cpu_ns() - cpu) / n / 1000};
}

static int by_wall(const void *a, const void *b)
{
	const struct cost *x = a, *y = b;

	return (x->wall_us > y->wall_us) - (x->wall_us < y->wall_us);
}

static void compare(struct sender *s, unsigned pages)
{
	struct cost cost[2][ROUNDS];

	for (unsigned round = 0; round < ROUNDS; round++)
		for (unsigned zero_copy = 0; zero_copy < 2; zero_copy++)
			cost[zero_copy][round] = measure(s, pages, zero_copy);
	for (unsigned zero_copy = 0; zero_copy < 2; zero_copy++) {
		qsort(cost[zero_copy], ROUNDS, sizeof(cost[0][0]), by_wall);
		printf("%2u x 4 KiB  %-9s  %7.1f us, %7.1f us of CPU an answer\n", pages,
		       zero_copy ? "zero-copy" : "copied", cost[zero_copy][ROUNDS / 2].wall_us,
		       cost[zero_copy][ROUNDS / 2].cpu_us);
	}
}

int main(void)
{
	struct sender s = {0};
	pid_t child;

	s.fd = connect_reader(&child);
	s.memory = mmap(NULL, (size_t)MEMORY_PAGES * PAGE, PROT_READ | PROT_WRITE,
	                MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (s.memory == MAP_FAILED ||
	    io_uring_queue_init(8, &s.ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) < 0)
		die("set-up");
	compare(&s, 1);
	compare(&s, 16);
	compare(&s, 64);
	io_uring_queue_exit(&s.ring);
	close(s.fd);
	waitpid(child, NULL, 0);
	return 0;
}
