/*
 * The control side of a session. Room: transport. Control calls block. They run one at a time under
 * the session's lock. Links read the lease table without the lock.
 */
#include "control.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "kept_refusal.h"
#include "lockedmem.h"

#define DEFAULT_DEADLINE_NS (5 * FP_NSEC_PER_SEC)
/* How long we wait for the answer to BYE. A slower node notices the end of the stream instead. */
#define FAREWELL_NS FP_NSEC_PER_SEC

struct fp_control {
	struct fp_session base;
	/* constant once open */
	const struct fp_control_ops *ops;
	struct fp_url url;
	struct fp_wire_welcome welcome;
	char client_name[FP_WIRE_NAME_BYTES];
	const char *secret;                 /* not copied; NULL: none */
	const struct fp_rdma_options *rdma; /* likewise */
	uint64_t deadline_ns;
	pid_t opener;
	void *private;
	/*
	 * The lock protects the next members. A call holds the lock from its request to its answer,
	 * so calls never overlap.
	 */
	pthread_mutex_t lock;
	struct fp_handshake *handshake;
	uint64_t last_tag;
	int error;     /* the errno that broke the connection; 0 while it works */
	bool inherits; /* resumed or adopted: the node may have leases that this side does not know */
	struct fp_kept_refusal refusal; /* of the last call or link; it has its own lock */
	/* written under lock, read by links */
	_Atomic(struct fp_lease *) leases[FP_WIRE_MAX_LEASE_ID + 1];
};

static struct fp_control *control_of(const struct fp_session *session)
{
	return (struct fp_control *)session;
}

static struct fp_control *control_lock(struct fp_session *session)
{
	struct fp_control *control = control_of(session);

	pthread_mutex_lock(&control->lock);
	return control;
}

static void control_unlock(struct fp_control **control)
{
	pthread_mutex_unlock(&(*control)->lock);
}

/* In a forked child the mappings are no longer the session's: something else may lie there. */
static void lease_free(struct fp_control *control, struct fp_lease *lease, bool detach)
{
	if (lease && detach && control->ops->detach && control->opener == getpid())
		control->ops->detach(lease);
	fp_lockedmem_free(lease, sizeof(*lease));
}

static void leases_free(struct fp_control *control, bool detach)
{
	for (size_t i = 0; i < FP_ARRAY_LEN(control->leases); i++)
		lease_free(control, atomic_exchange(&control->leases[i], NULL), detach);
}

/* In a forked child only its copy of the socket is closed. */
static void control_free(struct fp_control *control, bool abort)
{
	bool forked = control->opener != getpid();

	leases_free(control, false);
	if (abort && !forked)
		fp_handshake_abort(control->handshake);
	else
		fp_handshake_close(control->handshake);
	if (control->ops->done)
		control->ops->done(&control->base, forked);
	pthread_mutex_destroy(&control->lock);
	fp_kept_refusal_done(&control->refusal);
	explicit_bzero(control->welcome.token, sizeof(control->welcome.token));
	free(control);
}

/* Frees a session that failed to open. */
static void control_drop(struct fp_control *control)
{
	if (control)
		control_free(control, false);
}
FP_DEFINE_CLEANUP(struct fp_control, control, control_drop)

static uint64_t deadline_of(const struct fp_session_options *options)
{
	return options->deadline_ns ? options->deadline_ns : DEFAULT_DEADLINE_NS;
}

uint64_t fp_control_open_by_ns(const struct fp_session_options *options)
{
	return fp_clock_ns() + (options->connect_ns ? options->connect_ns : deadline_of(options));
}

static int control_new(const struct fp_control_ops *ops, const struct fp_url *url,
                       const struct fp_session_options *options, struct fp_control **ret_control)
{
	struct fp_control *control = calloc(1, sizeof(*control));
	char name[FP_WIRE_NAME_BYTES];

	if (!control)
		return -ENOMEM;
	pthread_mutex_init(&control->lock, NULL);
	fp_kept_refusal_init(&control->refusal);
	control->base.transport = ops->transport;
	control->ops = ops;
	control->opener = getpid();
	control->url = *url;
	control->deadline_ns = deadline_of(options);
	fp_handshake_name_self(name, sizeof(name));
	fp_wire_name_set(control->client_name, options->client_name ? options->client_name : name);
	control->secret = options->secret;
	control->rdma = options->rdma;
	*ret_control = control;
	return 0;
}

/*
 * Checks the session id and the features in the node's WELCOME. If they are wrong when we resume a
 * session, breaks the connection. Then the node keeps the session until its grace is over, and a
 * later attempt may still resume it.
 */
static int check_open(struct fp_control *control, const struct fp_handshake_options *hello)
{
	const struct fp_wire_welcome *resumed = hello->session;
	int r = 0;

	if (resumed && control->welcome.session_id != resumed->session_id)
		r = -EPROTO;
	else if (control->welcome.features != hello->features)
		r = -EOPNOTSUPP;
	if (r < 0 && resumed) {
		fp_handshake_abort(control->handshake);
		control->handshake = NULL;
	}
	return r;
}

int fp_control_open(const struct fp_control_ops *ops, const struct fp_url *url,
                    const struct fp_session_options *options, struct fp_session **ret_session)
{
	FP_CLEANUP(fp_cleanup_control) struct fp_control *control = NULL;
	struct fp_handshake_options hello = {.purpose = FP_WIRE_CONTROL, .refusal = options->refusal};
	struct fp_wire_welcome resumed = {0};
	int r;

	if (options->secret && !*options->secret)
		return -EINVAL;
	if (options->resume && ops->features & FP_WIRE_FEATURE_MEMFD)
		return -EOPNOTSUPP;
	r = control_new(ops, url, options, &control);
	if (r < 0)
		return r;
	hello.client_name = control->client_name;
	hello.secret = control->secret;
	/* an operator's session leases nothing, so it needs nothing of the transport */
	hello.features = options->is_operator ? FP_WIRE_FEATURE_OPERATOR : ops->features;
	control->inherits = options->resume;
	if (options->resume) {
		hello.purpose = FP_WIRE_RESUME;
		hello.session = &resumed;
		resumed.session_id = options->resume->id;
		memcpy(resumed.token, options->resume->token, sizeof(resumed.token));
	}
	r = fp_handshake_open(url, &hello, fp_control_open_by_ns(options), &control->handshake,
	                      &control->welcome);
	if (r == 0)
		r = check_open(control, &hello);
	if (r < 0)
		return r;
	*ret_session = &fp_take_ptr(control)->base;
	return 0;
}

const struct sockaddr *fp_control_address(const struct fp_session *session)
{
	return fp_handshake_address(control_of(session)->handshake);
}

const struct fp_wire_welcome *fp_control_welcome(const struct fp_session *session)
{
	return &control_of(session)->welcome;
}

const struct fp_rdma_options *fp_control_rdma(const struct fp_session *session)
{
	return control_of(session)->rdma;
}

void **fp_control_private(struct fp_session *session)
{
	return &control_of(session)->private;
}

void fp_control_set_refusal(struct fp_session *session, const struct fp_refusal *refusal)
{
	fp_kept_refusal_set(&control_of(session)->refusal, refusal);
}

int fp_control_open_link(struct fp_session *session, struct fp_handshake **ret_handshake,
                         struct fp_wire_welcome *ret_welcome)
{
	struct fp_control *control = control_of(session);
	struct fp_refusal refusal = {.cause = FP_REFUSAL_NONE};
	struct fp_handshake_options hello = {.purpose = FP_WIRE_LINK,
	                                     .client_name = control->client_name,
	                                     .secret = control->secret,
	                                     .refusal = &refusal,
	                                     .session = &control->welcome};
	int r = fp_handshake_open(&control->url, &hello, fp_clock_ns() + control->deadline_ns, ret_handshake,
	                          ret_welcome);

	if (r < 0)
		fp_kept_refusal_set(&control->refusal, &refusal);
	return r;
}

uint64_t fp_control_deadline_ns(const struct fp_session *session)
{
	return control_of(session)->deadline_ns;
}

const struct fp_lease *fp_control_find_lease(const struct fp_session *session, uint32_t lease_id)
{
	return lease_id <= FP_WIRE_MAX_LEASE_ID ? control_of(session)->leases[lease_id] : NULL;
}

bool fp_control_allows(const struct fp_session *session, const struct fp_io *io)
{
	for (unsigned i = 0; i < io->n_segs; i++) {
		const struct fp_seg *seg = &io->segs[i];
		const struct fp_lease *lease = fp_control_find_lease(session, seg->lease_id);
		struct fp_wire_seg wire = {seg->lease_id, seg->len_bytes, seg->offset_bytes};

		if (!lease || !fp_wire_seg_fits(&wire, lease->size_bytes) ||
		    (io->op == FP_IO_WRITE && lease->read_only))
			return false;
	}
	return true;
}

/*
 * Takes the answer to a call that had timed out. If it brings a lease, we give that back, because
 * no call waits for it. A lease that we have did not come late.
 */
static int drop_late_answer(struct fp_control *control, const struct fp_wire_header *header,
                            const void *payload, uint64_t deadline_ns)
{
	uint8_t bytes[sizeof(struct fp_wire_release)];
	struct fp_wire_leased leased;

	if (header->tag - 1 >= control->last_tag)
		return -EPROTO;
	if (header->type != FP_WIRE_LEASED)
		return 0;
	if (fp_wire_leased_decode(payload, header->length, &leased) < 0 || control->leases[leased.lease_id])
		return -EPROTO;
	fp_wire_release_encode(&(struct fp_wire_release){.lease_id = leased.lease_id}, bytes);
	return fp_handshake_send(control->handshake, FP_WIRE_RELEASE, ++control->last_tag, bytes,
	                         sizeof(bytes), deadline_ns);
}

/* A control call: the request, and its deadline (0: the session's default). */
struct question {
	enum fp_wire_type type;
	const void *payload;
	size_t len;
	uint64_t deadline_ns;
};

static int exchange(struct fp_control *control, const struct question *question, size_t *ret_len,
                    const void **ret_payload)
{
	uint64_t tag = ++control->last_tag;
	uint64_t deadline_ns =
	    question->deadline_ns ? question->deadline_ns : fp_clock_ns() + control->deadline_ns;
	struct fp_wire_header header;
	int r = fp_handshake_send(control->handshake, question->type, tag, question->payload, question->len,
	                          deadline_ns);

	while (r >= 0) {
		r = fp_handshake_receive(control->handshake, deadline_ns, &header, ret_payload);
		if (r < 0)
			break;
		if (header.tag != tag) {
			r = drop_late_answer(control, &header, *ret_payload, deadline_ns);
			if (r >= 0 && fp_clock_ns() >= deadline_ns) /* late answers may come without end */
				r = -ETIMEDOUT;
			continue;
		}
		if (header.type != FP_WIRE_ERROR && header.type != question->type + 1)
			return -EPROTO;
		*ret_len = header.length;
		return header.status;
	}
	return r;
}

/*
 * One control call, with the lock held: sends a request and waits for its answer. Any failure but a
 * timeout leaves the connection out of step, and every later call fails with the same error.
 */
static int ask(struct fp_control *control, const struct question *question, size_t *ret_len,
               const void **ret_payload)
{
	struct fp_refusal refusal;
	int r = control->error;

	if (r == 0) /* the program may own this descriptor by now: send it no byte */
		r = fp_handshake_check(control->handshake);
	if (r == 0)
		r = exchange(control, question, ret_len, ret_payload);
	if (r > 0) {
		fp_handshake_refusal(*ret_payload, *ret_len, &refusal);
		fp_kept_refusal_set(&control->refusal, &refusal);
		return fp_wire_status_to_errno(r);
	}
	if (r < 0 && r != -ETIMEDOUT)
		control->error = r;
	return r;
}

static int call(struct fp_control *control, enum fp_wire_type type, const void *request, size_t request_len,
                size_t *ret_len, const void **ret_payload)
{
	struct question question = {type, request, request_len, 0};

	return ask(control, &question, ret_len, ret_payload);
}

/* The answer does not fit the request: nothing more from this connection can be trusted. */
static int out_of_step(struct fp_control *control)
{
	return control->error = -EPROTO;
}

/*
 * Gives the leases back at once. It matters little whether BYE arrives: the node sees the end of
 * the stream too. A forked child says nothing.
 */
static void say_bye(struct fp_control *control)
{
	struct question bye = {.type = FP_WIRE_BYE};
	const void *payload;
	size_t len;

	if (control->opener != getpid())
		return;
	bye.deadline_ns = fp_clock_ns() + FP_MIN(control->deadline_ns, FAREWELL_NS);
	(void)ask(control, &bye, &len, &payload);
}

void fp_control_close(struct fp_session *session)
{
	leases_free(control_of(session), true); /* first: unmap before the node is told */
	say_bye(control_of(session));
	control_free(control_of(session), false);
}

void fp_control_abandon(struct fp_session *session)
{
	control_free(control_of(session), true);
}

/*
 * Takes the lock. If another call holds it, waits until deadline_ns. If somebody sets the clock
 * meanwhile, the wait may become longer. It still ends, because the other call gives up at its own
 * deadline.
 */
static int lock_by(struct fp_control *control, uint64_t deadline_ns)
{
	uint64_t now_ns = fp_clock_ns(), left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	left_ns += (uint64_t)until.tv_nsec;
	until.tv_sec += (time_t)(left_ns / FP_NSEC_PER_SEC);
	until.tv_nsec = (long)(left_ns % FP_NSEC_PER_SEC);
	return -pthread_mutex_timedlock(&control->lock, &until);
}

int fp_control_ping(struct fp_session *session, size_t len_bytes, uint64_t deadline_ns)
{
	struct fp_control *control = control_of(session);
	uint8_t bytes[FP_WIRE_MAX_PING];
	struct question ping = {FP_WIRE_PING, bytes, len_bytes, deadline_ns};
	const void *payload;
	size_t len;
	int r;

	static_assert(FP_PING_MAX_BYTES == FP_WIRE_MAX_PING, "a ping fits in a frame");
	if (!ping.deadline_ns)
		ping.deadline_ns = fp_clock_ns() + control->deadline_ns;
	r = lock_by(control, ping.deadline_ns);
	if (r < 0)
		return r;
	for (size_t i = 0; i < len_bytes; i++)
		bytes[i] = (uint8_t)(control->last_tag + i);
	r = ask(control, &ping, &len, &payload);
	if (r == 0 && (len != len_bytes || memcmp(payload, bytes, len) != 0))
		r = out_of_step(control);
	pthread_mutex_unlock(&control->lock);
	return r;
}

int fp_control_check(struct fp_session *session)
{
	const struct fp_control *control = control_of(session);

	return control->error ? control->error : fp_handshake_check(control->handshake);
}

int fp_control_identity(struct fp_session *session, struct fp_session_identity *ret_identity)
{
	const struct fp_control *control = control_of(session);
	struct fp_session_identity identity = {.id = control->welcome.session_id,
	                                       .idle_ns = control->welcome.idle_ms * FP_NSEC_PER_MSEC,
	                                       .grace_ns = control->welcome.grace_ms * FP_NSEC_PER_MSEC};

	static_assert(sizeof(identity.token) == FP_WIRE_TOKEN_BYTES, "a token fits");
	memcpy(identity.token, control->welcome.token, sizeof(identity.token));
	*ret_identity = identity;
	return 0;
}

static int ask_release(struct fp_control *control, uint32_t lease_id)
{
	struct fp_wire_release release = {.lease_id = lease_id};
	uint8_t bytes[sizeof(release)];
	const void *payload;
	size_t len;

	fp_wire_release_encode(&release, bytes);
	return call(control, FP_WIRE_RELEASE, bytes, sizeof(bytes), &len, &payload);
}

/* Checks an answer that decodes but may still not fit the request. */
static bool lease_answers(const struct fp_control *control, const struct fp_wire_leased *leased)
{
	bool memfd_due = control->welcome.features & FP_WIRE_FEATURE_MEMFD;
	bool key_due = control->welcome.features & FP_WIRE_FEATURE_KEYS;

	return !control->leases[leased->lease_id] &&
	       memfd_due == ((leased->flags & FP_WIRE_LEASED_MEMFD) != 0) &&
	       key_due == ((leased->flags & FP_WIRE_LEASED_KEY) != 0);
}

/*
 * A call whose answer must be a lease. Any other answer means that the connection is out of step.
 */
static int ask_leased(struct fp_control *control, enum fp_wire_type type, const void *request,
                      size_t request_len, struct fp_wire_leased *ret_leased)
{
	const void *payload;
	size_t len;
	int r = call(control, type, request, request_len, &len, &payload);

	if (r < 0)
		return r;
	r = fp_wire_leased_decode(payload, len, ret_leased);
	return r == 0 && lease_answers(control, ret_leased) ? 0 : out_of_step(control);
}

static int ask_lease(struct fp_control *control, uint64_t size_bytes, struct fp_wire_leased *ret_leased)
{
	struct fp_wire_lease lease = {.size_bytes = size_bytes};
	uint8_t bytes[sizeof(lease)];
	int r;

	fp_wire_lease_encode(&lease, bytes);
	r = ask_leased(control, FP_WIRE_LEASE, bytes, sizeof(bytes), ret_leased);
	if (r == 0 && (ret_leased->size_bytes < size_bytes || ret_leased->flags & FP_WIRE_LEASED_READ_ONLY))
		return out_of_step(control);
	return r;
}

static int ask_attach(struct fp_control *control, uint32_t lease_id, struct fp_wire_leased *ret_leased)
{
	struct fp_wire_attach attach = {.lease_id = lease_id};
	uint8_t bytes[sizeof(attach)];
	int r;

	fp_wire_attach_encode(&attach, bytes);
	r = ask_leased(control, FP_WIRE_ATTACH, bytes, sizeof(bytes), ret_leased);
	return r == 0 && ret_leased->lease_id != lease_id ? out_of_step(control) : r;
}

/*
 * Uses no malloc, because the agent's reclaim thread takes leases. A fork may hold the allocator's
 * locks while it waits for that thread.
 */
static int attach_lease(struct fp_control *control, const struct fp_wire_leased *leased, int memfd,
                        struct fp_lease **ret_lease)
{
	struct fp_lease *lease = fp_lockedmem_new(sizeof(*lease));
	int r;

	if (!lease)
		return -ENOMEM;
	*lease = (struct fp_lease){.id = leased->lease_id,
	                           .size_bytes = leased->size_bytes,
	                           .read_only = leased->flags & FP_WIRE_LEASED_READ_ONLY,
	                           .remote_address = leased->address,
	                           .remote_key = leased->key};
	r = control->ops->attach ? control->ops->attach(lease, leased, memfd) : 0;
	if (r < 0)
		fp_lockedmem_free(lease, sizeof(*lease));
	else
		*ret_lease = lease;
	return r;
}

int fp_control_lease(struct fp_session *session, uint64_t size_bytes, const struct fp_lease **ret_lease)
{
	FP_CLEANUP(control_unlock) struct fp_control *control = control_lock(session);
	struct fp_wire_leased leased;
	struct fp_lease *lease;
	fp_autoclose int memfd = -1;
	int r;

	if (size_bytes == 0 || size_bytes % FP_WIRE_LEASE_ALIGN || size_bytes > FP_WIRE_MAX_LEASE)
		return -EINVAL;
	r = ask_lease(control, size_bytes, &leased);
	if (r < 0)
		return r;
	memfd = fp_handshake_take_memfd(control->handshake);
	r = attach_lease(control, &leased, memfd, &lease);
	if (r < 0) {
		(void)ask_release(control, leased.lease_id);
		return r;
	}
	control->leases[lease->id] = lease;
	*ret_lease = lease;
	return 0;
}

int fp_control_attach(struct fp_session *session, uint32_t lease_id, const struct fp_lease **ret_lease)
{
	FP_CLEANUP(control_unlock) struct fp_control *control = control_lock(session);
	struct fp_wire_leased leased;
	struct fp_lease *lease;
	int r = 0;

	if (lease_id < 1 || lease_id > FP_WIRE_MAX_LEASE_ID)
		return -EACCES;
	lease = control->leases[lease_id];
	if (!lease) {
		r = ask_attach(control, lease_id, &leased);
		if (r == 0)
			r = attach_lease(control, &leased, -1, &lease);
	}
	if (r < 0)
		return r;
	control->leases[lease_id] = lease;
	*ret_lease = lease;
	return 0;
}

int fp_control_adopt(struct fp_session *session, const struct fp_session_identity *parent,
                     unsigned *ret_n_leases)
{
	FP_CLEANUP(control_unlock) struct fp_control *control = control_lock(session);
	struct fp_wire_adopt adopt = {.session_id = parent->id};
	uint8_t bytes[sizeof(adopt)];
	struct fp_wire_adopted adopted;
	const void *payload;
	size_t len;
	int r;

	if (!parent->id)
		return -ESTALE;
	memcpy(adopt.token, parent->token, sizeof(adopt.token));
	fp_wire_adopt_encode(&adopt, bytes);
	control->inherits = true; /* after an error too: the node may adopt although this call gave up */
	r = call(control, FP_WIRE_ADOPT, bytes, sizeof(bytes), &len, &payload);
	explicit_bzero(&adopt, sizeof(adopt));
	explicit_bzero(bytes, sizeof(bytes));
	if (r < 0)
		return r;
	if (fp_wire_adopted_decode(payload, len, &adopted) < 0)
		return out_of_step(control);
	if (ret_n_leases)
		*ret_n_leases = adopted.n_leases;
	return 0;
}

/*
 * The lease is gone here whatever the node answers. A node that can't be told takes it back when
 * the session ends.
 */
int fp_control_release(struct fp_session *session, uint32_t lease_id)
{
	FP_CLEANUP(control_unlock) struct fp_control *control = control_lock(session);
	struct fp_lease *lease;

	if (lease_id < 1 || lease_id > FP_WIRE_MAX_LEASE_ID)
		return -EACCES;
	lease = atomic_exchange(&control->leases[lease_id], NULL);
	lease_free(control, lease, true);
	return lease || control->inherits ? ask_release(control, lease_id) : -EACCES;
}

/*
 * Holds the lock until the payload has been read, because the payload lies in the handshake's
 * buffer.
 */
int fp_control_info(struct fp_session *session, struct fp_node_info *ret_info)
{
	FP_CLEANUP(control_unlock) struct fp_control *control = control_lock(session);
	struct fp_wire_info info;
	const void *payload;
	size_t len;
	int r = call(control, FP_WIRE_INFO, NULL, 0, &len, &payload);

	if (r < 0)
		return r;
	if (fp_wire_info_decode(payload, len, &info) < 0)
		return out_of_step(control);
	*ret_info = (struct fp_node_info){.capacity_bytes = info.capacity_bytes,
	                                  .free_bytes = info.free_bytes,
	                                  .quota_bytes = info.quota_bytes ? info.quota_bytes : UINT64_MAX,
	                                  .charged_bytes = info.charged_bytes};
	fp_refusal_from_wire(&info.refusal, &ret_info->refusal);
	return 0;
}

void fp_control_refusal(struct fp_session *session, struct fp_refusal *ret_refusal)
{
	fp_kept_refusal_get(&control_of(session)->refusal, ret_refusal);
}

int fp_control_status(struct fp_session *session, char **ret_json)
{
	FP_CLEANUP(control_unlock) struct fp_control *control = control_lock(session);
	const void *payload;
	char *json;
	size_t len;
	int r = call(control, FP_WIRE_STATUS, NULL, 0, &len, &payload);

	if (r < 0)
		return r;
	json = strndup(payload, len);
	if (!json)
		return -ENOMEM;
	*ret_json = json;
	return 0;
}

int fp_control_undrain(struct fp_session *session)
{
	FP_CLEANUP(control_unlock) struct fp_control *control = control_lock(session);
	const void *payload;
	size_t len;

	return call(control, FP_WIRE_UNDRAIN, NULL, 0, &len, &payload);
}

int fp_control_drain(struct fp_session *session, struct fp_drain_info *ret_info)
{
	FP_CLEANUP(control_unlock) struct fp_control *control = control_lock(session);
	struct fp_wire_drained drained;
	const void *payload;
	size_t len;
	int r = call(control, FP_WIRE_DRAIN, NULL, 0, &len, &payload);

	if (r < 0)
		return r;
	if (fp_wire_drained_decode(payload, len, &drained) < 0)
		return out_of_step(control);
	*ret_info =
	    (struct fp_drain_info){.leased_bytes = drained.leased_bytes, .sessions = drained.sessions};
	return 0;
}
