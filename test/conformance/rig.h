/*
 * Shared by the cases of the conformance suite: a real node with a session and a link, a node that
 * the test simulates, and requests. Room: test/conformance. A failure in this file fails the
 * calling test.
 */
#ifndef FP_TEST_RIG_H
#define FP_TEST_RIG_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "handshake.h"
#include "transport.h"
#include "wire.h"

#define MIB           (1ull << 20)
#define POOL_BYTES    (64 * MIB)
#define PATIENCE_NS   (20 * FP_NSEC_PER_SEC) /* how long a case waits before it fails */
#define CONFIG_PLAIN  "pools: [ { name: main, size: 64M } ]\nlog_level: warning\n"
#define CONFIG_QUOTA  CONFIG_PLAIN "limits: { client_quota: 8M }\n"
#define RIG_SECRET    TEST_DAEMON_SECRET
#define CONFIG_SECRET CONFIG_PLAIN TEST_DAEMON_AUTH

/* The suite's arguments: the transport, the daemon, the cases. */
extern const char *rig_scheme, *rig_farpaged;

struct rig {
	struct test_daemon node;
	struct fp_url url;
	struct fp_session *session;
	const struct fp_lease *lease; /* 1 MiB */
	struct fp_link *link;
};

/* True if leases are mapped here, so that they outlive the node. */
bool rig_load_store(void);
/* True if the node's process has no part in reads and writes. */
bool rig_one_sided(void);
/* True if leases are registered with a device of the node. */
bool rig_keyed(void);
/* True if the control connection is a socket. */
bool rig_socket(void);
/* The reason why the scheme can't be tested here, or NULL. */
const char *rig_obstacle(void);
/* Skips the calling case, and prints why. */
#define rig_skip(why)                                                                                        \
	do {                                                                                                 \
		print_message("skipped: %s\n", why);                                                         \
		skip();                                                                                      \
	} while (0)

/*
 * cmocka fixtures: rig_setup makes a node with a plain configuration, a session, a lease and a
 * link. The others make only a node.
 */
int rig_setup(void **state);
int rig_setup_node(void **state);
int rig_setup_quota(void **state);
int rig_setup_secret(void **state);
int rig_teardown(void **state);

/*
 * rig_open calls fp_session_open with a deadline (0: PATIENCE_NS) and with the secret from
 * rig_secret. rig_secret returns its argument, except for two values. For NULL it returns the
 * secret of a node whose configuration sets no secret: TEST_DAEMON_SECRET over rdma, NULL over
 * other transports. For RIG_NO_SECRET it returns NULL: the client uses no secret.
 */
#define RIG_NO_SECRET "none"
const char *rig_secret(const char *secret);
int rig_open(const struct fp_url *url, const char *secret, uint64_t deadline_ns,
             struct fp_session **ret_session);

/* A request of n_segs segments of seg_bytes each, one after the other from offset_bytes on. */
struct job {
	struct fp_io io;
	struct fp_seg segs[FP_IO_MAX_SEGS];
	uint8_t *buf;
	size_t len;
	unsigned n_done; /* how often it came out of poll */
};

struct job *job_new(enum fp_io_op op, uint32_t lease_id, uint64_t offset_bytes, unsigned n_segs,
                    uint32_t seg_bytes);
void job_free(struct job *job);

/* Waits, as a caller would, until the link returns one io. */
struct job *rig_await(struct fp_link *link);
/* Submits the job, waits, and returns its status. Nothing else may be outstanding. */
int rig_run(struct fp_link *link, struct job *job);
/* A request of one segment, from or to buf. */
int rig_read(struct fp_link *link, uint32_t lease_id, uint64_t offset_bytes, void *buf, size_t len);
int rig_write(struct fp_link *link, uint32_t lease_id, uint64_t offset_bytes, const void *buf, size_t len);

void assert_filled(const uint8_t *buf, uint8_t value, size_t len);

/*
 * A node that the test simulates. Its thread accepts one connection, and calls the function `serve`
 * with it.
 */
struct fake_node {
	struct fp_url url;
	int listener;
	char dir[64];
	pthread_t thread;
	void (*serve)(int fd);
};

void fake_node_start(struct fake_node *node, void (*serve)(int fd));
void fake_node_stop(struct fake_node *node);

/* The cases, grouped by subject. Each function returns the number of failures. */
int run_handshake_cases(void);
int run_lease_cases(void);
int run_io_cases(void);
int run_fault_cases(void);
int run_resume_cases(void);
int run_adopt_cases(void);

#endif
