/*
 * What verbs.c (devices, domains, queue pairs), verbs_cm.c (connection management), verbs_api.c (the
 * libraries) and verbs_fork.c (what a forked child forgets) share. Room: transport; included by no other
 * file.
 */
#ifndef FP_VERBS_INTERNAL_H
#define FP_VERBS_INTERNAL_H

#include <stdatomic.h>

#include "verbs.h"
#include "verbs_api.h"

#define FP_VERBS_MAX_READS 128 /* that we ask for or grant; a byte on the wire, and no device needs more */

/*
 * A device of this process. Its context belongs to librdmacm, or to us (opened by name), and stays open until
 * the device is dead and its last domain gone.
 */
struct fp_verbs_device {
	struct fp_verbs_device *next;
	struct ibv_context *context;
	struct fp_verbs_limits limits;
	unsigned n_asks, n_answers; /* READs that a queue pair may have outstanding, that it may answer */
	unsigned n_domains;         /* under the lock of the list */
	_Atomic bool dead;
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

/* Lists a device that rdma_cm has opened, so that a forked child finds it. A failure is none. */
void fp_verbs_device_note(struct ibv_context *context);

/*
 * A connection without a queue pair: completion queue, channel and bookkeeping. Holds domain. Released by
 * fp_verbs_conn_close.
 */
int fp_verbs_conn_new(struct fp_verbs_domain *domain, const struct fp_verbs_conn_options *options,
                      struct fp_verbs_conn **ret_conn);
/*
 * Makes the queue pair with as much inline data as the device offers: create(conn, attr, ...) is tried with
 * less and less.
 */
int fp_verbs_conn_create_qp(struct fp_verbs_conn *conn,
                            int (*create)(struct fp_verbs_conn *conn, struct ibv_qp_init_attr *attr));

/* rdma_cm's part of fp_verbs_conn_close: tells the peer, destroys the queue pair and the id. */
void fp_verbs_cm_close(struct fp_verbs_conn *conn);

/* --- in a forked child -------------------------------------------------------------------------------- */

/* Whether the libraries were loaded by another process, whose state they have then. */
bool fp_verbs_inherited(void);
/* Closes this process' copies of all descriptors of devices and connections, and has neither any more. */
void fp_verbs_drop_descriptors(void);
/*
 * Lets go of the libraries, so that librdmacm begins anew when it is loaded next; fp_verbs_load fails from
 * then on where somebody else holds it.
 */
void fp_verbs_unload(void);

#endif
