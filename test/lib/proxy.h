/*
 * A TCP proxy that misbehaves on command: it breaks connections, and holds back what clients send.
 * Room: test/lib.
 */
#ifndef FP_TEST_PROXY_H
#define FP_TEST_PROXY_H

#include <stddef.h>
#include <stdint.h>

struct test_proxy;

/* Listens on a free port of loopback, and passes on to that port there. 0 or a negative errno. */
int test_proxy_start(uint16_t to_port, struct test_proxy **ret_proxy);
uint16_t test_proxy_port(const struct test_proxy *proxy);
/* Resets all connections, at both ends, before it returns. Bytes held back are lost. */
void test_proxy_cut(struct test_proxy *proxy);
/*
 * Lets allow_bytes more of the clients' bytes pass, on all connections together. It holds back the
 * rest, also of clients that close meanwhile. The node's bytes pass.
 */
void test_proxy_hold(struct test_proxy *proxy, size_t allow_bytes);
/* Returns once so many bytes are held back, or after ten seconds: then -ETIMEDOUT. */
int test_proxy_await_held(struct test_proxy *proxy, size_t held_bytes);
/*
 * Sends on what is held back, and returns once the node's socket has taken it or refused it: the
 * bytes that it refused.
 */
size_t test_proxy_release(struct test_proxy *proxy);
/* Cuts, and ends. NULL is fine. */
void test_proxy_stop(struct test_proxy *proxy);

#endif
