/*
 * What verbs.c (domains, queue pairs), verbs_device.c (devices), verbs_cm.c (connection
 * management), verbs_manual.c (connections by hand), verbs_api.c (the libraries) and verbs_fork.c
 * (what a forked child forgets) share. Room: transport; included by no other file.
 */
#ifndef FP_VERBS_INTERNAL_H
#define FP_VERBS_INTERNAL_H

#include <stdatomic.h>
#include <sys/stat.h>

#include "verbs.h"
#include "verbs_api.h"

/* Of a peer that is not ready. READs and WRITEs hardly meet one; 7 would be for ever. */
#define FP_VERBS_RNR_RETRIES 6
#define FP_VERBS_MAX_READS   128 /* that we ask for or grant; a byte on the wire, and no device needs more */

/*
 * A device of this process. Its context belongs to librdmacm, or to us (opened by name), and stays
 * open until the device is dead and its last domain gone.
 */
struct fp_verbs_device {
	struct fp_verbs_device *next;
	struct ibv_context *context;
	struct fp_verbs_limits limits;
	unsigned n_asks, n_answers; /* READs that a queue pair may have outstanding, that it may answer */
	unsigned n_domains;         /* under the lock of the list */
	_Atomic bool dead;
	int cmd_fd, async_fd; /* the context's, which librdmacm may have freed */
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
	struct fp_verbs_conn *next, **at; /* all of the process, under the lock of the list; at NULL: none */
	struct fp_verbs_domain *domain;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	unsigned max_reads, max_inline;
	unsigned send_depth;
	unsigned n_sent;     /* work requests posted to the send queue and not known to be done */
	unsigned n_unmarked; /* of them, those posted after the last signalled one */
	bool armed;
	int broken; /* 0, or the errno with which posts fail */
	void *user;
	uint32_t psn; /* connected by hand: ours */
	uint8_t port_num, gid_index;
	bool has_gid;
	struct fp_verbs_conn_options options;
	/* connected through rdma_cm */
	struct rdma_cm_id *id;
	struct rdma_event_channel *events; /* its own: the client's side; NULL: the listener's */
	int wait_fd;                       /* client: an epoll of completion channel and events; else -1 */
	uint8_t n_granted;                 /* READs that the peer may have outstanding here */
	bool admitted;                     /* the listening side has accepted */
	int gone;                          /* what rdma_cm said about the peer */
};

/* The domain of a context that rdma_cm gave: *domain checked or made. 0, -EXDEV, -ENOMEM, ... */
int fp_verbs_domain_of(struct ibv_context *context, struct fp_verbs_domain **domain);

/* ---- devices: verbs_device.c ---- */

/* The device of a context, with one domain more; -ENODEV, -EIO, -ENOMEM. What librdmacm opened it
 * hands out again. */
int fp_verbs_device_get(struct ibv_context *context, struct fp_verbs_device **ret_device);
/* One domain less. A device that is dead is let go of with its last. */
void fp_verbs_device_put(struct fp_verbs_device *device);
/* Lists a device that rdma_cm has opened, so that it can be let go of, and a forked child finds it.
 * A failure is none. */
void fp_verbs_device_note(struct ibv_context *context);
/* One by that name that is open and alive. */
bool fp_verbs_device_is_open(const char *name, struct ibv_context **ret_context);
/* rdma_cm says that it is being removed. */
void fp_verbs_device_gone(const struct ibv_context *context);
void fp_verbs_set_nonblocking(int fd);

/* ---- connections ---- */

/*
 * A connection without a queue pair: completion queue, channel and bookkeeping. Holds domain.
 * Released by fp_verbs_conn_close.
 */
int fp_verbs_conn_new(struct fp_verbs_domain *domain, const struct fp_verbs_conn_options *options,
                      struct fp_verbs_conn **ret_conn);
/*
 * Makes the queue pair with as much inline data as the device offers: create(conn, attr, ...) is
 * tried with less and less.
 */
int fp_verbs_conn_create_qp(struct fp_verbs_conn *conn,
                            int (*create)(struct fp_verbs_conn *conn, struct ibv_qp_init_attr *attr));

/* Changes the queue pair as mask says. 0 or a negative errno. */
int fp_verbs_conn_modify(struct fp_verbs_conn *conn, struct ibv_qp_attr *attr, int mask);

/* rdma_cm's part of fp_verbs_conn_close: tells the peer, destroys the queue pair and the id. */
void fp_verbs_cm_close(struct fp_verbs_conn *conn);

/* ---- in a forked child ---- */

/* Whether the libraries were loaded by another process, whose state they have then. */
bool fp_verbs_inherited(void);
/* Closes this process' copies of all descriptors of devices and connections, and has neither any
 * more. */
void fp_verbs_drop_descriptors(void);
/* Of devices alone; of one, if it is one. What they stand for lives on in the parent. */
void fp_verbs_devices_drop(void);
void fp_verbs_drop_descriptor(int fd);
/*
 * Lets go of the libraries, so that librdmacm begins anew when it is loaded next; fp_verbs_load
 * fails from then on where somebody else holds it.
 */
void fp_verbs_unload(void);

#endif
