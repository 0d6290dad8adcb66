/*
 * A TCP proxy that misbehaves on command: it breaks connections, and holds back bytes of clients.
 * Room: test/lib.
 */
#ifndef FP_TEST_PROXY_H
#define FP_TEST_PROXY_H

#include <stddef.h>
#include <stdint.h>

struct test_proxy;

/* Listens on a free port of loopback, and forwards to to_port there. 0 or a negative errno. */
int test_proxy_start(uint16_t to_port, struct test_proxy **ret_proxy);
uint16_t test_proxy_port(const struct test_proxy *proxy);
/* Resets all connections, at both ends, before it returns. Bytes held back are lost. */
void test_proxy_cut(struct test_proxy *proxy);
/*
 * Forwards only allow_bytes more of the clients' bytes, counted over all connections. Holds back
 * the rest, even if the client closes. The node's bytes pass.
 */
void test_proxy_hold(struct test_proxy *proxy, size_t allow_bytes);
/* Waits until the proxy holds back held_bytes bytes. -ETIMEDOUT after ten seconds. */
int test_proxy_await_held(struct test_proxy *proxy, size_t held_bytes);
/*
 * Forwards the bytes that it holds back, and waits until the node's socket has taken or refused
 * them. Returns how many bytes the socket refused.
 */
size_t test_proxy_release(struct test_proxy *proxy);
/* Cuts and stops. NULL is fine. */
void test_proxy_stop(struct test_proxy *proxy);

#endif
