/*
 * When a node's name is looked up, which answers are kept, and when the resolver is asked again.
 * The test replaces the resolver.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "handshake.h"
#include "names.h"

static struct {
	unsigned n_asked;
	bool silent;
	in_addr_t address;
} resolver;

/* Replaces the C library's function. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
	struct {
		struct addrinfo info;
		struct sockaddr_in address;
	} * answer;

	resolver.n_asked++;
	if (resolver.silent)
		return EAI_AGAIN;
	answer = calloc(1, sizeof(*answer));
	answer->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = resolver.address};
	if (service)
		answer->address.sin_port = htons((uint16_t)atoi(service));
	answer->info = (struct addrinfo){.ai_family = AF_INET,
	                                 .ai_socktype = hints->ai_socktype,
	                                 .ai_addr = (struct sockaddr *)&answer->address,
	                                 .ai_addrlen = sizeof(answer->address)};
	*res = &answer->info;
	return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
	free(list);
}

static int setup(void **state)
{
	memset(&resolver, 0, sizeof(resolver));
	resolver.address = htonl(INADDR_LOOPBACK);
	return 0;
}

/* A listening socket at a free port, which takes connections and sends nothing. */
static int listener_new(struct sockaddr_in *ret_address)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(*ret_address);

	*ret_address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(bind(fd, (struct sockaddr *)ret_address, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)ret_address, &len), 0);
	assert_int_equal(listen(fd, 64), 0);
	return fd;
}

/*
 * Connects as a resume does. Returns -ETIMEDOUT if a listener has accepted the connection, because
 * our listener never answers.
 */
static int dial(const char *host, const struct sockaddr_in *address)
{
	const struct fp_handshake_options hello = {.purpose = FP_WIRE_CONTROL, .client_name = "test"};
	struct fp_wire_welcome welcome;
	struct fp_handshake *dialog;
	struct fp_url url;
	char text[64];

	snprintf(text, sizeof(text), "tcp://%s:%u", host, ntohs(address->sin_port));
	assert_int_equal(fp_url_parse(text, &url), 0);
	fp_names_refresh(host);
	return fp_handshake_open(&url, &hello, fp_clock_ns() + 20 * FP_NSEC_PER_MSEC, &dialog, &welcome);
}

static void a_name_is_looked_up_once(void **state)
{
	struct sockaddr_in address;
	int fd = listener_new(&address);

	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(dial("once", &address), -ETIMEDOUT);
		resolver.silent = true;
	}
	assert_int_equal(resolver.n_asked, 1);
	close(fd);
}

static void what_is_not_known_is_asked_for_each_time(void **state)
{
	struct sockaddr_in address;
	int fd = listener_new(&address);

	resolver.silent = true;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(dial("unknown", &address), -ENXIO);
	assert_int_equal(resolver.n_asked, 2);
	resolver.silent = false;
	assert_int_equal(dial("unknown", &address), -ETIMEDOUT);
	close(fd);
}

/* The name leads to another address now. */
static void a_name_that_has_moved_is_found(void **state)
{
	struct sockaddr_in address;
	int fd = listener_new(&address);
	unsigned n = 0;

	resolver.address = htonl(INADDR_LOOPBACK + 1);
	assert_int_equal(dial("moves", &address), -ECONNREFUSED);
	resolver.address = htonl(INADDR_LOOPBACK);
	while (dial("moves", &address) != -ETIMEDOUT)
		assert_true(++n < 8);
	assert_int_equal(resolver.n_asked, 2);
	close(fd);
}

/* Only fp_names_refresh waits for the resolver, however often a node has failed. */
static void only_a_refresh_looks_up_again(void **state)
{
	struct fp_addresses addresses;

	assert_int_equal(fp_names_find("named", 1, &addresses), 0);
	for (unsigned i = 0; i < 9; i++) {
		fp_names_tried("named", false);
		assert_int_equal(fp_names_find("named", 1, &addresses), 0);
	}
	assert_int_equal(resolver.n_asked, 1);
	for (unsigned i = 0; i < 2; i++)
		fp_names_refresh("named");
	assert_int_equal(resolver.n_asked, 2);
}

/* The resolver fails together with the node: the old addresses stay in use. */
static void a_silent_resolver_takes_nothing_away(void **state)
{
	struct sockaddr_in address;
	int fd = listener_new(&address);

	assert_int_equal(dial("stays", &address), -ETIMEDOUT);
	close(fd);
	resolver.silent = true;
	for (unsigned i = 0; i < 12; i++)
		assert_int_equal(dial("stays", &address), -ECONNREFUSED);
	assert_int_equal(resolver.n_asked, 3); /* asked after four failures, and after eight */
	fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(dial("stays", &address), -ETIMEDOUT);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(a_name_is_looked_up_once, setup),
	    cmocka_unit_test_setup(what_is_not_known_is_asked_for_each_time, setup),
	    cmocka_unit_test_setup(a_name_that_has_moved_is_found, setup),
	    cmocka_unit_test_setup(only_a_refresh_looks_up_again, setup),
	    cmocka_unit_test_setup(a_silent_resolver_takes_nothing_away, setup),
	};

	return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
