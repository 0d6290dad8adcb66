/*
 * Shared by verbs.c (domains, queue pairs), verbs_device.c (devices), verbs_cm.c (connection
 * management), verbs_manual.c (connections without rdma_cm), verbs_api.c (the libraries) and
 * verbs_fork.c (forked children). Room: transport; no other file includes it.
 */
#ifndef FP_VERBS_INTERNAL_H
#define FP_VERBS_INTERNAL_H

#include <stdatomic.h>
#include <sys/stat.h>

#include "verbs.h"
#include "verbs_api.h"

/*
 * How often to retry while the peer has posted no receive. READs and WRITEs hardly need it; 7 would
 * mean for ever.
 */
#define FP_VERBS_RNR_RETRIES 6
/*
 * The most READs in flight that we ask for or grant. No device needs more, and the number must fit
 * in the one byte that it has on the wire.
 */
#define FP_VERBS_MAX_READS 128

/*
 * A device that this process has open. Its context belongs to librdmacm, or to us if it was opened
 * by name. It stays open until the device is dead and its last domain gone.
 */
struct fp_verbs_device {
	struct fp_verbs_device *next;
	struct ibv_context *context;
	struct fp_verbs_limits limits;
	/* how many READs of its own a queue pair may have outstanding, and how many of its
	 * peer's */
	unsigned n_asks, n_answers;
	unsigned n_domains; /* domains on this device; protected by devices_lock */
	_Atomic bool dead;
	int cmd_fd, async_fd; /* copied from the context, which librdmacm may have freed */
	dev_t rdev;           /* of cmd_fd */
	/* as the kernel lists it */
	char place[256];
	bool listed;
	ino_t place_ino;
};

struct fp_verbs_domain {
	struct fp_verbs_device *device;
	struct ibv_pd *pd;
	_Atomic unsigned n_refs;
};

struct fp_verbs_conn {
	struct fp_verbs_conn *next, **at; /* all connections of this process; protected by conns_lock */
	struct fp_verbs_domain *domain;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	unsigned max_reads, max_inline;
	unsigned send_depth;
	unsigned n_sent;     /* work requests posted to the send queue and not yet known to be done */
	unsigned n_unmarked; /* unsignalled requests posted after the last signalled one */
	bool armed;
	int broken; /* 0, or the errno that posts return */
	void *user;
	uint32_t psn; /* connected without rdma_cm: the number of our first packet */
	uint8_t port_num, gid_index;
	bool has_gid;
	struct fp_verbs_conn_options options;
	/* connected through rdma_cm */
	struct rdma_cm_id *id;
	/*
	 * A client's connection has an event channel of its own. NULL: the connection uses the
	 * listener's channel.
	 */
	struct rdma_event_channel *events;
	/* Of a client: an epoll descriptor for its completion channel and its events. Else -1. */
	int wait_fd;
	uint8_t n_granted; /* READs that the peer may have outstanding here */
	bool admitted;     /* the listening side has accepted */
	int gone;          /* 0: the peer is connected; an errno: it is gone or not connected yet */
};

/*
 * Checks that *domain is on the context that rdma_cm gave; makes one there if *domain is NULL. 0,
 * -EXDEV, -ENOMEM, ...
 */
int fp_verbs_domain_of(struct ibv_context *context, struct fp_verbs_domain **domain);

/* ---- devices: verbs_device.c ---- */

/*
 * Gives the device of a context, and counts one more domain on it. -ENODEV, -EIO, -ENOMEM.
 * librdmacm gives the same context for a device each time.
 */
int fp_verbs_device_get(struct ibv_context *context, struct fp_verbs_device **ret_device);
/* Removes one domain from the device's count. A dead device is closed with its last domain. */
void fp_verbs_device_put(struct fp_verbs_device *device);
/*
 * Lists a device that rdma_cm has opened, so that we can close it, and a forked child finds it.
 * Errors are ignored.
 */
void fp_verbs_device_note(struct ibv_context *context);
/* Whether a device of that name is open and alive. *ret_context: its context, or NULL. */
bool fp_verbs_device_is_open(const char *name, struct ibv_context **ret_context);
/* Called when rdma_cm says that the device is being removed. */
void fp_verbs_device_gone(const struct ibv_context *context);
void fp_verbs_set_nonblocking(int fd);

/* ---- connections ---- */

/*
 * Makes a connection without a queue pair: completion queue, channel and bookkeeping. The
 * connection holds a reference to domain. Close it with fp_verbs_conn_close.
 */
int fp_verbs_conn_new(struct fp_verbs_domain *domain, const struct fp_verbs_conn_options *options,
                      struct fp_verbs_conn **ret_conn);
/*
 * Makes the queue pair with as much inline data as the device offers: tries create(conn, attr) with
 * less and less.
 */
int fp_verbs_conn_create_qp(struct fp_verbs_conn *conn,
                            int (*create)(struct fp_verbs_conn *conn, struct ibv_qp_init_attr *attr));

/* Changes the queue pair as mask says. 0 or a negative errno. */
int fp_verbs_conn_modify(struct fp_verbs_conn *conn, struct ibv_qp_attr *attr, int mask);

/* rdma_cm's part of fp_verbs_conn_close: tells the peer, destroys the queue pair and the id. */
void fp_verbs_cm_close(struct fp_verbs_conn *conn);

/* ---- in a forked child ---- */

/* Whether the parent loaded the libraries: then they have its state. */
bool fp_verbs_inherited(void);
/* Closes this process' copies of all descriptors of devices and connections, and forgets both. */
void fp_verbs_drop_descriptors(void);
/*
 * fp_verbs_devices_drop does the same for devices alone. fp_verbs_drop_descriptor closes one
 * descriptor (none if fd is negative). The parent's copies stay open.
 */
void fp_verbs_devices_drop(void);
void fp_verbs_drop_descriptor(int fd);
/*
 * Unloads librdmacm, so that the next load begins anew. If the program uses it too, it stays
 * loaded, and fp_verbs_load fails from then on.
 */
void fp_verbs_unload(void);

#endif
