/*
 * A user's RDMA settings: device, retries, timeouts and depth of queue pairs. Room: transport. The
 * same table of keys serves the configuration files of both ends and the environment.
 */
#ifndef FP_RDMA_OPTIONS_H
#define FP_RDMA_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "verbs.h"
#include "yamlconf.h"

struct fp_rdma_options {
	char *device;         /* name of the device for rdma+tcp; NULL: the first with an active port */
	uint64_t device_port; /* port of that device; 0: the first active one */
	/* Repeats of an unacknowledged request. The client's value counts for both ends. */
	uint64_t retry_count;
	uint64_t ack_timeout_ns; /* wait before each repeat; 0: 268 ms */
	uint64_t send_depth;     /* most work requests of one link in flight */
};

extern const struct fp_rdma_options fp_rdma_defaults;

/*
 * The keys of a YAML mapping "rdma:". The first table is for clients, the second for nodes, which
 * send no requests.
 */
extern const struct fp_conf_field fp_rdma_fields[], fp_rdma_node_fields[];

/* A copy, also of the device's name. NULL: no memory. */
struct fp_rdma_options *fp_rdma_options_dup(const struct fp_rdma_options *rdma);
/* Frees such a copy. NULL is fine. */
void fp_rdma_options_free(struct fp_rdma_options *rdma);

/* The connection options that rdma asks for. NULL: the defaults. */
struct fp_verbs_conn_options fp_rdma_conn_options(const struct fp_rdma_options *rdma);

/*
 * Tells a person that there is no device (-ENODEV) for these options, and which devices exist. rdma
 * NULL: the defaults. Returns buf.
 */
const char *fp_rdma_explain_device(const struct fp_rdma_options *rdma, char *buf, size_t len);

#endif
