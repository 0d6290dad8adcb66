/*
 * Passes each call on to the transport of its session or link, after the checks that all transports
 * share. Room: transport.
 */
#include "transport.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "log.h"
#include "rdma_options.h"
#include "wire.h"

static_assert(FP_IO_MAX_SEGS == FP_WIRE_MAX_SEGS, "a request fits in a message");
static_assert(FP_SEG_MAX_BYTES == FP_WIRE_MAX_SEG_BYTES, "a segment fits in a message");

int fp_protocol_parse(const char *text, enum fp_protocol *ret_protocol)
{
	static const char *const names[] = {"auto", "inline", "eager", "registered"};

	for (unsigned i = 0; i < FP_ARRAY_LEN(names); i++) {
		if (strcmp(text, names[i]) == 0) {
			*ret_protocol = (enum fp_protocol)i;
			return 0;
		}
	}
	return -EINVAL;
}

int fp_session_open(const struct fp_url *url, const struct fp_session_options *options,
                    struct fp_session **ret_session)
{
	if (options->refusal)
		*options->refusal = (struct fp_refusal){.cause = FP_REFUSAL_NONE};
	return url->transport->session_open(url, options, ret_session);
}

/* NULL: strerror says it all. */
static const char *explain_connection(int error)
{
	switch (error) {
	case -ECONNREFUSED:
	case -ENOENT:
		return "nothing listens there: is farpaged running, and is the address right?";
	case -ENXIO:
		return "the name of the host cannot be resolved: check its spelling, /etc/hosts and DNS "
		       "(getent ahosts HOST)";
	case -ETIMEDOUT:
		return "no answer within the deadline";
	case -ECONNRESET:
		return "the node closed the connection: its log says why";
	case -EPROTO:
		return "what answers there is no memory node";
	case -EPROTONOSUPPORT:
		return "the node speaks another version of the protocol: install the same version of Farpage "
		       "there and here";
	case -EINVAL:
		return "not a node URL: use shm:PATH, tcp://HOST[:PORT], rdma://HOST[:PORT] or auto://HOST";
	case -ENAMETOOLONG:
		return "too long for a node URL: the path of a UNIX socket, and a host, may have 107 bytes";
	case -ENOTUNIQ:
		return "this node is named twice: name each node once, all addresses of it in one URL "
		       "(tcp://A,B)";
	case -E2BIG:
		return "too many addresses: a node URL may have 8, and there may be 16 nodes";
	default:
		return NULL;
	}
}

/* Where the node said which limit it is, fp_refusal_explain says more. */
static const char *explain_refused(int error)
{
	switch (error) {
	case -EACCES:
		return "the node refused the secret: give the one of its auth section with --secret-file";
	case -EKEYREJECTED:
		return "the node could not prove that it knows the secret: it is not to be trusted";
	case -EPERM:
		return "this user may not connect to it: a private node serves one user, others whom their "
		       "socket's group admits";
	case -EUSERS:
		return "the node has as many sessions, connections or leases as it allows: see limits: in "
		       "its "
		       "configuration";
	case -ENOSPC:
		return "the node has no memory to lend: farpage node status says where it went";
	case -EDQUOT:
		return "the client's quota at the node is used up: raise it in the node's configuration";
	case -ESTALE:
		return "the node does not know the session any more: its leases are gone";
	default:
		return NULL;
	}
}

const char *fp_session_explain(int error, const struct fp_refusal *refusal,
                               const struct fp_rdma_options *rdma, char *buf, size_t len)
{
	const char *text = explain_connection(error);

	if (refusal && refusal->cause != FP_REFUSAL_NONE)
		return fp_refusal_explain(refusal, buf, len);
	if (!text)
		text = explain_refused(error);
	if (text)
		return text;
	switch (error) {
	case -ELIBACC:
		return "rdma needs libibverbs.so.1 and librdmacm.so.1: install libibverbs1, "
		       "ibverbs-providers and librdmacm1 (rdma-core)";
	case -EOPNOTSUPP:
		return "the node does not serve this transport there: for rdma it needs listen: "
		       "rdma://ADDRESS "
		       "and an RDMA device with that address, for rdma+tcp an rdma: section";
	case -ENODEV:
		return fp_rdma_explain_device(rdma, buf, len);
	default:
		return fp_strerror(error, buf, len);
	}
}

void fp_session_close(struct fp_session *session)
{
	if (session)
		session->transport->session_close(session);
}

int fp_session_lease(struct fp_session *session, uint64_t size_bytes, const struct fp_lease **ret_lease)
{
	return session->transport->lease(session, size_bytes, ret_lease);
}

int fp_session_release(struct fp_session *session, uint32_t lease_id)
{
	return session->transport->release(session, lease_id);
}

int fp_session_info(struct fp_session *session, struct fp_node_info *ret_info)
{
	return session->transport->info(session, ret_info);
}

bool fp_session_is_refusal(int error)
{
	return error == -ENOSPC || error == -EDQUOT || error == -EUSERS || error == -EPERM;
}

uint64_t fp_node_info_room(const struct fp_node_info *info)
{
	uint64_t quota_left = info->quota_bytes - FP_MIN(info->charged_bytes, info->quota_bytes);

	return info->refusal.cause == FP_REFUSAL_NONE ? FP_MIN(info->free_bytes, quota_left) : 0;
}

void fp_session_refusal(struct fp_session *session, struct fp_refusal *ret_refusal)
{
	*ret_refusal = (struct fp_refusal){.cause = FP_REFUSAL_NONE};
	if (session->transport->refusal)
		session->transport->refusal(session, ret_refusal);
}

int fp_session_status(struct fp_session *session, char **ret_json)
{
	return session->transport->status(session, ret_json);
}

int fp_session_drain(struct fp_session *session, struct fp_drain_info *ret_info)
{
	return session->transport->drain(session, ret_info);
}

int fp_session_undrain(struct fp_session *session)
{
	return session->transport->undrain(session);
}

int fp_session_ping(struct fp_session *session, size_t len_bytes, uint64_t deadline_ns)
{
	return len_bytes <= FP_PING_MAX_BYTES ? session->transport->ping(session, len_bytes, deadline_ns)
	                                      : -EINVAL;
}

int fp_session_check(struct fp_session *session)
{
	return session->transport->check ? session->transport->check(session) : 0;
}

int fp_session_identity(struct fp_session *session, struct fp_session_identity *ret_identity)
{
	return session->transport->identity(session, ret_identity);
}

int fp_session_attach(struct fp_session *session, uint32_t lease_id, const struct fp_lease **ret_lease)
{
	return session->transport->attach(session, lease_id, ret_lease);
}

int fp_session_adopt(struct fp_session *session, const struct fp_session_identity *parent,
                     unsigned *ret_n_leases)
{
	return session->transport->adopt(session, parent, ret_n_leases);
}

void fp_session_abandon(struct fp_session *session)
{
	if (session)
		session->transport->abandon(session);
}

int fp_link_open(struct fp_session *session, struct fp_link **ret_link)
{
	int r = session->transport->link_open(session, ret_link);

	if (r == 0)
		(*ret_link)->session = session;
	return r;
}

void fp_link_close(struct fp_link *link)
{
	if (link)
		link->transport->link_close(link);
}

static void assert_owner(const struct fp_link *link)
{
	assert(!link->owned || pthread_equal(link->owner, pthread_self()));
}

void fp_link_break(struct fp_link *link)
{
	assert_owner(link);
	if (link->transport->link_break)
		link->transport->link_break(link);
}

void fp_link_register(struct fp_link *link, void *base, size_t len_bytes)
{
	if (link->transport->link_register)
		(void)link->transport->link_register(link, base, len_bytes);
}

void fp_link_io_done(struct fp_link *link, struct fp_io *io, int status)
{
	io->status = status;
	io->next = NULL;
	if (link->done)
		link->last_done->next = io;
	else
		link->done = io;
	link->last_done = io;
	link->n_done++;
}

int fp_link_take_done(struct fp_link *link, struct fp_io **ret_done, unsigned max)
{
	unsigned n = 0;

	for (; n < max && link->done; n++) {
		ret_done[n] = link->done;
		link->done = link->done->next;
	}
	link->n_done -= n;
	return (int)n;
}

static bool io_valid(const struct fp_io *io)
{
	if (io->n_segs < 1 || io->n_segs > FP_IO_MAX_SEGS)
		return false;
	for (unsigned i = 0; i < io->n_segs; i++)
		if (io->segs[i].len_bytes < 1 || io->segs[i].len_bytes > FP_SEG_MAX_BYTES)
			return false;
	return true;
}

void fp_link_hand_over(struct fp_link *link)
{
	link->owned = false;
}

int fp_link_submit(struct fp_link *link, struct fp_io *io)
{
	assert_owner(link);
	link->owner = pthread_self();
	link->owned = true;
	return io_valid(io) ? link->transport->submit(link, io) : -EINVAL;
}

const char *fp_link_why(const struct fp_link *link)
{
	return link->why;
}

int fp_link_poll(struct fp_link *link, struct fp_io **ret_done, unsigned max)
{
	assert_owner(link);
	return link->transport->poll(link, ret_done, max);
}

int fp_link_pollfd(struct fp_link *link, struct pollfd *ret_pollfd)
{
	assert_owner(link);
	return link->transport->pollfd(link, ret_pollfd);
}
