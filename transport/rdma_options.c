/* See rdma_options.h. */
#include "rdma_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "cm_server.h"
#include "log.h"

#define ACK_TIMEOUT_UNIT_NS 4096u /* a queue pair's timeout is this times a power of two */
#define ACK_TIMEOUT_MAX     31u
#define MAX_DEVICES         16u

const struct fp_rdma_options fp_rdma_defaults = {.retry_count = 7, .send_depth = 256};

#define DEVICE      FP_CONF_KEY("device", STRING, fp_rdma_options, device)
#define DEVICE_PORT FP_CONF_KEY("device_port", U64, fp_rdma_options, device_port, .min = 1, .max = 255)

/*
 * Old keys without effect. Every process of a program reads its file, so there the line is of level
 * debug. RNR retries are for a message that arrives before its receive is
 * posted, and we send no messages.
 */
#define OLD_KEY(name, level)                                                                                 \
	{                                                                                                    \
		.key = (name), .type = FP_CONF_NOTHING, .min = (level)                                       \
	}

const struct fp_conf_field fp_rdma_fields[] = {
    DEVICE,
    DEVICE_PORT,
    FP_CONF_KEY("retry_count", U64, fp_rdma_options, retry_count, .max = 7),
    FP_CONF_KEY("ack_timeout", TIME, fp_rdma_options, ack_timeout_ns, .min = FP_NSEC_PER_MSEC,
                .max = 8 * FP_NSEC_PER_SEC),
    FP_CONF_KEY("send_depth", U64, fp_rdma_options, send_depth, .min = 1, .max = 1024),
    OLD_KEY("rnr_retry_count", FP_LOG_DEBUG),
    {.key = NULL},
};

const struct fp_conf_field fp_rdma_node_fields[] = {
    DEVICE,
    DEVICE_PORT,
    OLD_KEY("rnr_retry_count", FP_LOG_WARNING),
    OLD_KEY("ack_timeout", FP_LOG_WARNING),
    {.key = NULL},
};

void fp_rdma_options_free(struct fp_rdma_options *rdma)
{
	if (rdma)
		free(rdma->device);
	free(rdma);
}

struct fp_rdma_options *fp_rdma_options_dup(const struct fp_rdma_options *rdma)
{
	struct fp_rdma_options *copy = malloc(sizeof(*copy));

	if (!copy)
		return NULL;
	*copy = *rdma;
	copy->device = rdma->device ? strdup(rdma->device) : NULL;
	if (!rdma->device == !copy->device)
		return copy;
	free(copy);
	return NULL;
}

/*
 * Returns the exponent of the shortest timeout that is not below `ns`. Returns 0 if `ns` is 0,
 * which means that no timeout was chosen.
 */
static uint8_t ack_timeout_of(uint64_t ns)
{
	uint8_t exponent = ns > 0;

	while (exponent && exponent < ACK_TIMEOUT_MAX && (uint64_t)ACK_TIMEOUT_UNIT_NS << exponent < ns)
		exponent++;
	return exponent;
}

struct fp_verbs_conn_options fp_rdma_conn_options(const struct fp_rdma_options *rdma)
{
	if (!rdma)
		rdma = &fp_rdma_defaults;
	return (struct fp_verbs_conn_options){
	    .send_depth = (unsigned)rdma->send_depth,
	    .retry_count = (uint8_t)rdma->retry_count,
	    .ack_timeout = ack_timeout_of(rdma->ack_timeout_ns),
	    .port_num = (uint8_t)rdma->device_port,
	};
}

const char *fp_rdma_explain_device(const struct fp_rdma_options *rdma, char *buf, size_t len)
{
	struct fp_rdma_device devices[MAX_DEVICES];
	unsigned n = fp_rdma_devices(devices, MAX_DEVICES);
	const char *name = rdma && rdma->device ? rdma->device : NULL;
	char port[8] = "";
	size_t at;

	if (rdma && rdma->device_port)
		snprintf(port, sizeof(port), " %u", (unsigned)rdma->device_port);
	at = (size_t)snprintf(
	    buf, len, "there is no RDMA device%s%.63s%s with an active port%s here: this machine has ",
	    name ? " '" : "", name ? name : "", name ? "'" : "", port);
	for (unsigned i = 0; i < n && at < len; i++)
		at += (size_t)snprintf(buf + at, len - at, "%s%s (%s%s)", i ? ", " : "", devices[i].name,
		                       devices[i].state, devices[i].iwarp ? ", iWARP: not for rdma+tcp" : "");
	if (at < len)
		snprintf(buf + at, len - at, "%s; see `rdma link`", n ? "" : "none");
	return buf;
}
