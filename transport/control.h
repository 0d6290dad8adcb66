/*
 * The control side of a session, the same for all transports: one CONTROL connection, the calls
 * over it, and the leases granted by these calls. Room: transport. Each transport makes leases
 * reachable in its own way, through struct fp_control_ops.
 */
#ifndef FP_CONTROL_H
#define FP_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "handshake.h"
#include "transport.h"
#include "wire.h"

/* The most requests that a link takes at once. */
#define FP_LINK_MAX_OUTSTANDING 256u

struct fp_control;

struct fp_control_ops {
	const struct fp_transport *transport;
	uint32_t features; /* features to ask for; -EOPNOTSUPP if the node does not grant all */
	/*
	 * Makes a lease reachable after it was granted or attached. leased is the node's answer,
	 * validated; lease has its address and key already. The caller keeps memfd (-1: none came).
	 * 0 or a negative errno. NULL: nothing to do.
	 */
	int (*attach)(struct fp_lease *lease, const struct fp_wire_leased *leased, int memfd);
	/* Undoes attach. Not called in a forked child. */
	void (*detach)(struct fp_lease *lease);
	/*
	 * Called when the session ends, after its connection was closed. Frees *fp_control_private.
	 * In a forked child it frees only this process' copy. NULL: nothing to do.
	 */
	void (*done)(struct fp_session *session, bool forked);
};

/*
 * The session's operations of struct fp_transport. The session passed to them is a struct
 * fp_control.
 */
int fp_control_open(const struct fp_control_ops *ops, const struct fp_url *url,
                    const struct fp_session_options *options, struct fp_session **ret_session);
void fp_control_close(struct fp_session *session);
int fp_control_lease(struct fp_session *session, uint64_t size_bytes, const struct fp_lease **ret_lease);
int fp_control_release(struct fp_session *session, uint32_t lease_id);
int fp_control_info(struct fp_session *session, struct fp_node_info *ret_info);
void fp_control_refusal(struct fp_session *session, struct fp_refusal *ret_refusal);
int fp_control_status(struct fp_session *session, char **ret_json);
int fp_control_drain(struct fp_session *session, struct fp_drain_info *ret_info);
int fp_control_undrain(struct fp_session *session);
int fp_control_ping(struct fp_session *session, size_t len_bytes, uint64_t deadline_ns);
int fp_control_check(struct fp_session *session);
int fp_control_identity(struct fp_session *session, struct fp_session_identity *ret_identity);
int fp_control_attach(struct fp_session *session, uint32_t lease_id, const struct fp_lease **ret_lease);
int fp_control_adopt(struct fp_session *session, const struct fp_session_identity *parent,
                     unsigned *ret_n_leases);
void fp_control_abandon(struct fp_session *session);

#define FP_CONTROL_OPERATIONS                                                                                \
	.session_close = fp_control_close, .lease = fp_control_lease, .release = fp_control_release,         \
	.info = fp_control_info, .refusal = fp_control_refusal, .status = fp_control_status,                 \
	.drain = fp_control_drain, .undrain = fp_control_undrain, .ping = fp_control_ping,                   \
	.identity = fp_control_identity, .attach = fp_control_attach, .adopt = fp_control_adopt,             \
	.abandon = fp_control_abandon

/*
 * Opens a LINK connection of this session to the session's URL. 0, *ret_handshake and *ret_welcome.
 * Use *ret_handshake to exchange frames before the connection becomes a data path. Then call
 * fp_handshake_take_socket.
 */
int fp_control_open_link(struct fp_session *session, struct fp_handshake **ret_handshake,
                         struct fp_wire_welcome *ret_welcome);
/*
 * Stores what fp_control_refusal returns, for links that do not open by fp_control_open_link. Any
 * thread may call it. It waits for no call under way.
 */
void fp_control_set_refusal(struct fp_session *session, const struct fp_refusal *refusal);
/*
 * The node's WELCOME. It never changes, and nor do the results of the next two functions. Any
 * thread may call all three.
 */
const struct fp_wire_welcome *fp_control_welcome(const struct fp_session *session);
/* The address by which the node was reached; of a UNIX socket only its family. */
const struct sockaddr *fp_control_address(const struct fp_session *session);
/* The options' rdma; NULL: the defaults. */
const struct fp_rdma_options *fp_control_rdma(const struct fp_session *session);
/* A pointer for the transport's own use, NULL at first. Not locked. */
void **fp_control_private(struct fp_session *session);

/*
 * The first function returns how long a request of this session may take. The second returns the
 * deadline of an opening that begins now.
 */
uint64_t fp_control_deadline_ns(const struct fp_session *session);
uint64_t fp_control_open_by_ns(const struct fp_session_options *options);

/* The lease of that id, or NULL. Lock-free: any thread. */
const struct fp_lease *fp_control_find_lease(const struct fp_session *session, uint32_t lease_id);
/*
 * Whether each segment of an io lies in a lease, and, if the io is a write, in a lease that may be
 * written. Lock-free: any thread.
 */
bool fp_control_allows(const struct fp_session *session, const struct fp_io *io);

#endif
