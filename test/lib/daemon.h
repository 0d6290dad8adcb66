/*
 * A memory node for tests: a real farpaged that dies with the test. Room: test/lib.
 */
#ifndef FP_TEST_DAEMON_H
#define FP_TEST_DAEMON_H

#include <stdint.h>
#include <sys/types.h>

/* Of a node over rdma whose configuration names none: it serves nobody else where others could
 * reach it. */
#define TEST_DAEMON_SECRET "0123456789abcdef0123456789abcdef"
/* In a configuration: it is to have that secret. */
#define TEST_DAEMON_AUTH "# and a secret\n"

struct test_daemon {
	pid_t pid; /* 0: not running */
	char url[128];
	char dir[64];       /* of its socket; removed when it is stopped */
	const char *secret; /* that it wants by itself, also in the file `secret` of dir; NULL: none */
};

/*
 * Starts the farpaged at path with one pool of pool_bytes, taken from the system on demand, reached
 * over scheme ("shm"; "tcp" and "rdma+tcp", on a free port of loopback; "rdma", on one of
 * test_daemon_rdma_host), and waits until it serves. It is killed when the calling thread ends,
 * whatever happens to the test. 0 or a negative errno. Release with test_daemon_stop.
 */
int test_daemon_start(const char *path, const char *scheme, uint64_t pool_bytes,
                      struct test_daemon *ret_daemon);

/*
 * The same with a configuration: the YAML in config, which ends with a newline, and a listener as
 * above, which it must not name itself. The daemon runs with the rights and the environment of the
 * test.
 */
int test_daemon_start_config(const char *path, const char *scheme, const char *config,
                             struct test_daemon *ret_daemon);

/* Kills it and waits until it is gone; its folder stays. */
void test_daemon_kill(struct test_daemon *daemon);
/* Another daemon over shm in the place of one that has ended, a child of the caller. */
int test_daemon_restart(const char *path, uint64_t pool_bytes, struct test_daemon *daemon);

/* The address that an rdma device of this machine answers at, from FARPAGE_TEST_RDMA. NULL: there
 * is none. */
const char *test_daemon_rdma_host(void);

/* Kills it and waits for its end. Does nothing if it was never started or is dead already. */
void test_daemon_stop(struct test_daemon *daemon);

#endif
