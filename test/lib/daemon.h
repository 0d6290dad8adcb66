/*
 * A memory node for tests: a real farpaged that dies with the test. Room: test/lib.
 */
#ifndef FP_TEST_DAEMON_H
#define FP_TEST_DAEMON_H

#include <stdint.h>
#include <sys/types.h>

/*
 * The tests give this secret to a node over rdma if its configuration sets none. So nobody else who
 * can reach the node can use it.
 */
#define TEST_DAEMON_SECRET "0123456789abcdef0123456789abcdef"
/* A line for a configuration: makes clients prove the secret above. */
#define TEST_DAEMON_AUTH "# and a secret\n"

struct test_daemon {
	pid_t pid; /* 0: not running */
	char url[128];
	char dir[64]; /* folder of its socket; test_daemon_stop removes it */
	/*
	 * The secret that clients of this node must prove; NULL: none. A file named secret in the
	 * folder dir has it too.
	 */
	const char *secret;
};

/*
 * Starts the farpaged at path with one pool of pool_bytes, which it takes from the system on
 * demand. Waits until it serves. The scheme is "shm", "tcp", "rdma+tcp" or "rdma". Over tcp and
 * rdma+tcp the node listens on a free port of loopback, over rdma on a port of
 * test_daemon_rdma_host. The daemon is killed when the calling thread ends, however the test ends.
 * Returns 0 or a negative errno. Release with test_daemon_stop.
 */
int test_daemon_start(const char *path, const char *scheme, uint64_t pool_bytes,
                      struct test_daemon *ret_daemon);

/*
 * Does the same with a configuration: YAML that ends with a newline. This function adds a listener
 * for the scheme, so the YAML must name none. The node has as many shards as the environment
 * variable FARPAGE_TEST_SHARDS says; the default is 1. The daemon has the test's rights and
 * environment.
 */
int test_daemon_start_config(const char *path, const char *scheme, const char *config,
                             struct test_daemon *ret_daemon);

/* Kills the node and waits until it is gone. Its folder stays. */
void test_daemon_kill(struct test_daemon *daemon);
/* Starts another daemon over shm in place of one that has ended. It is a child of the caller. */
int test_daemon_restart(const char *path, uint64_t pool_bytes, struct test_daemon *daemon);

/* The address of an rdma device of this machine, from FARPAGE_TEST_RDMA. NULL: there is none. */
const char *test_daemon_rdma_host(void);

/* Kills the node and waits for its end. Does nothing if it was never started or is dead already. */
void test_daemon_stop(struct test_daemon *daemon);

#endif
