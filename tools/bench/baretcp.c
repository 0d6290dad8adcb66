/* The bare request and answer. Room: tools/bench; see baretcp.h. This file may call nothing of the
 * product. */
#include "baretcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#define PAGE_BYTES    4096u
#define REQUEST_BYTES 48u /* as many as Farpage's READ of one page has */

struct page_ask {
	uint32_t page;
	uint8_t rest[REQUEST_BYTES - sizeof(uint32_t)];
};

static bool send_all(int fd, const void *bytes, size_t len)
{
	return send(fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static bool receive_all(int fd, void *bytes, size_t len)
{
	return recv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len;
}

static void send_at_once(int fd)
{
	const int yes = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

/* Answers until the asking process closes the connection, or ends. */
_Noreturn static void answer(int listen_fd, const char *pages, size_t n_pages)
{
	int fd = accept(listen_fd, NULL, NULL);
	struct page_ask request;

	send_at_once(fd);
	while (receive_all(fd, &request, sizeof(request)) && request.page < n_pages)
		if (!send_all(fd, pages + (size_t)request.page * PAGE_BYTES, PAGE_BYTES))
			break;
	_exit(0);
}

/* Listens on a free port of loopback. */
static int listen_anywhere(struct sockaddr_in *ret_address)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	int r, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&address, len) < 0 || listen(fd, 1) < 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &len) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	*ret_address = address;
	return fd;
}

static int connect_to(const struct sockaddr_in *address)
{
	int r, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	send_at_once(fd);
	return fd;
}

int fp_baretcp_open(struct fp_baretcp *bare, const void *pages, size_t n_pages)
{
	struct sockaddr_in address;
	int listen_fd = listen_anywhere(&address);

	if (listen_fd < 0)
		return listen_fd;
	bare->fd = connect_to(&address);
	bare->answerer = bare->fd < 0 ? -1 : fork();
	if (bare->answerer == 0) {
		close(bare->fd);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		answer(listen_fd, pages, n_pages);
	}
	if (bare->fd >= 0 && bare->answerer < 0) {
		int error = errno;

		close(bare->fd);
		bare->fd = -error;
	}
	close(listen_fd);
	return bare->fd < 0 ? bare->fd : 0;
}

int fp_baretcp_ask(const struct fp_baretcp *bare, uint32_t page, void *ret_page)
{
	const struct page_ask request = {.page = page};

	return send_all(bare->fd, &request, sizeof(request)) && receive_all(bare->fd, ret_page, PAGE_BYTES)
	           ? 0
	           : -ECONNRESET;
}

void fp_baretcp_close(struct fp_baretcp *bare)
{
	close(bare->fd);
	while (waitpid(bare->answerer, NULL, 0) < 0 && errno == EINTR)
		;
}
