/*
 * The wire protocol, version 2: every byte that a client and a node exchange. doc/protocol.md
 * explains it. Room: transport; the daemon uses it too. Pure: bytes in, validated structs out; no
 * file descriptor, clock, thread or memory of its own. A decode function here validates a peer's
 * bytes before anything uses them. Only the receiver knows whether a lease exists and is long
 * enough: it checks that with fp_wire_seg_fits.
 *
 * The structs have no padding. They have the layout and the byte order of the wire, which is
 * little-endian. So the code builds on little-endian machines only. Decode functions return 0 and
 * fill *ret. On failure they leave it untouched and return -EPROTO (malformed) or -EPROTONOSUPPORT
 * (another version). Use nothing of a refused frame, and close its connection, which is out of
 * step.
 */
#ifndef FP_WIRE_H
#define FP_WIRE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP_WIRE_MAGIC        0x50524146u /* "FARP" in the order of the wire */
#define FP_WIRE_HEADER       1           /* the version of the header's layout, which never changes */
#define FP_WIRE_VERSION      2           /* of the messages: the only one that this build speaks */
#define FP_WIRE_REFUSES      2           /* the first version in which an ERROR can have a payload */
#define FP_WIRE_DEFAULT_PORT 7460
#define FP_WIRE_RDMA_PORT    7461 /* not 7460: soft iWARP takes its port from the kernel's TCP ports */

#define FP_WIRE_NONCE_BYTES    32
#define FP_WIRE_TOKEN_BYTES    16
#define FP_WIRE_PROOF_BYTES    32
#define FP_WIRE_NAME_BYTES     64
#define FP_WIRE_CM_NONCE_BYTES 16
#define FP_WIRE_CM_PROOF_BYTES 16
#define FP_WIRE_MAX_PING       4096u /* bytes that a PING may carry */
#define FP_WIRE_MAX_LINKS      64u   /* that one session may have */
#define FP_WIRE_MAX_SEGS       64u
#define FP_WIRE_MAX_SEG_BYTES  65536u
#define FP_WIRE_MAX_STATUS     65536u /* bytes of a STATUS_REPLY's JSON text */
#define FP_WIRE_MAX_LEASE_ID   65535u /* lease ids are 1 to this, so that a table can hold them */
#define FP_WIRE_LEASE_ALIGN    4096u  /* lease sizes are multiples of this */
#define FP_WIRE_MAX_LEASE      (1ull << 46)

/* A request has an even type, its answer the next odd one; ERROR answers any. */
enum fp_wire_type {
	FP_WIRE_ERROR = 0x01,
	FP_WIRE_HELLO = 0x02,
	FP_WIRE_CHALLENGE = 0x03,
	FP_WIRE_AUTH = 0x04,
	FP_WIRE_WELCOME = 0x05,
	FP_WIRE_PING = 0x06,
	FP_WIRE_PONG = 0x07,
	FP_WIRE_BYE = 0x08,
	FP_WIRE_FAREWELL = 0x09,
	FP_WIRE_LEASE = 0x10,
	FP_WIRE_LEASED = 0x11,
	FP_WIRE_RELEASE = 0x12,
	FP_WIRE_RELEASED = 0x13,
	FP_WIRE_INFO = 0x14,
	FP_WIRE_INFO_REPLY = 0x15,
	FP_WIRE_STATUS = 0x16,
	FP_WIRE_STATUS_REPLY = 0x17,
	FP_WIRE_DRAIN = 0x18,
	FP_WIRE_DRAINED = 0x19,
	FP_WIRE_ATTACH = 0x1a,
	FP_WIRE_ATTACHED = 0x1b,
	FP_WIRE_UNDRAIN = 0x1c,
	FP_WIRE_UNDRAINED = 0x1d,
	FP_WIRE_READ = 0x20,
	FP_WIRE_DATA = 0x21,
	FP_WIRE_WRITE = 0x22,
	FP_WIRE_WRITTEN = 0x23,
	FP_WIRE_QP = 0x24,
	FP_WIRE_QP_REPLY = 0x25,
	FP_WIRE_ADOPT = 0x26,
	FP_WIRE_ADOPTED = 0x27,
};

/* The status of an ERROR. Numbers of our own: errno values differ between systems. */
enum fp_wire_status {
	FP_WIRE_OK = 0,
	FP_WIRE_MALFORMED = 1,   /* not understood, or out of turn: the connection closes */
	FP_WIRE_VERSION_GAP = 2, /* no version in common */
	/*
	 * wrong or missing proof, unknown session, wrong token, no such lease, bytes outside of it,
	 * or a WRITE to a read-only one
	 */
	FP_WIRE_DENIED = 3,
	FP_WIRE_FULL = 4, /* the pools have no piece of that size */
	FP_WIRE_OVER_QUOTA = 5,
	FP_WIRE_DRAINING = 6,  /* the node grants no new leases */
	FP_WIRE_BUSY = 7,      /* too many sessions or links */
	FP_WIRE_BAD_VALUE = 8, /* understood, but a value is not allowed */
	FP_WIRE_NOT_PERMITTED = 9,
	FP_WIRE_BROKEN = 10, /* an error inside the node */
	/*
	 * RESUME and ADOPT: there is no such session, or the token is wrong. Its leases are gone.
	 */
	FP_WIRE_GONE = 11,
};

/* The purpose of a connection, in HELLO. */
enum fp_wire_purpose {
	FP_WIRE_CONTROL = 1, /* opens a session */
	FP_WIRE_LINK = 2,    /* a data path of an existing session */
	FP_WIRE_RESUME = 3,  /* a new control connection of an existing session */
};

/*
 * Features: the client asks for them in HELLO, and WELCOME has those of them that the node grants.
 */
#define FP_WIRE_FEATURE_MEMFD    (1u << 0) /* LEASED carries the lease's memfd; UNIX sockets only */
#define FP_WIRE_FEATURE_KEYS     (1u << 1) /* LEASED carries address and key: one-sided READ and WRITE */
#define FP_WIRE_FEATURE_CM       (1u << 2) /* with KEYS: rdma_cm connects its queue pairs */
#define FP_WIRE_FEATURE_OPERATOR (1u << 3) /* the session looks after the node, and leases nothing */
#define FP_WIRE_CHALLENGE_AUTH   (1u << 0) /* the node wants a proof and will give one */
#define FP_WIRE_LEASED_MEMFD     (1u << 0) /* SCM_RIGHTS came with this frame's first byte */
#define FP_WIRE_LEASED_KEY       (1u << 1) /* address and key are valid */
#define FP_WIRE_LEASED_READ_ONLY (1u << 2) /* ATTACHED: an adopted lease, which this session may not write */

/*
 * Every frame begins with this header. All versions have this layout, so that each end can
 * recognise a version that it does not know.
 */
struct fp_wire_header {
	uint32_t magic;
	uint8_t version; /* FP_WIRE_HEADER */
	uint8_t type;    /* enum fp_wire_type */
	uint16_t flags;  /* 0 */
	uint32_t length; /* bytes of payload that follow */
	int32_t status;  /* enum fp_wire_status: non-zero in ERROR, 0 in all others */
	uint64_t tag;    /* chosen by the requester, repeated in the answer */
};

/*
 * Which limit a refused request met. It is the payload of an ERROR whose status does not say all,
 * and a part of INFO_REPLY. refusal.h has its words.
 */
struct fp_wire_refusal {
	uint16_t cause; /* enum fp_refusal_cause; a receiver takes one that it does not know for NONE */
	uint16_t flags;
	uint32_t reserved;
	uint64_t limit; /* bytes or a number, see enum fp_refusal_cause */
	uint64_t used;  /* of it */
};

#define FP_WIRE_REFUSAL_SHARE (1u << 0) /* the limit is one client's share of what the node allows */
#define FP_WIRE_REFUSAL_FILES (1u << 1) /* the node's limit of open files sets it */

struct fp_wire_hello {
	uint8_t min_version;
	uint8_t max_version;
	uint8_t purpose;
	uint8_t reserved;
	uint32_t features;
	uint64_t session_id; /* session that LINK or RESUME names; CONTROL: 0, and token is zeros */
	uint8_t token[FP_WIRE_TOKEN_BYTES];
	uint8_t nonce[FP_WIRE_NONCE_BYTES];
	char client_name[FP_WIRE_NAME_BYTES]; /* see fp_wire_name_set */
};

struct fp_wire_challenge {
	uint8_t nonce[FP_WIRE_NONCE_BYTES];
	uint8_t version; /* chosen by the node, within the client's range */
	uint8_t reserved[3];
	uint32_t flags;
};

struct fp_wire_auth {
	uint8_t proof[FP_WIRE_PROOF_BYTES]; /* zeros if the client has no secret */
};

struct fp_wire_welcome {
	uint8_t version;
	uint8_t reserved;
	uint16_t cm_port; /* with CM: the port where the node listens for links; else 0 */
	uint32_t features;
	uint64_t session_id;
	uint8_t token[FP_WIRE_TOKEN_BYTES]; /* admits links and a RESUME; zeros in the answer to a LINK */
	uint32_t max_payload;     /* longest payload that the node takes: at least FP_WIRE_MAX_PAYLOAD */
	uint32_t max_outstanding; /* how many requests in flight are useful on one link, at least 1 */
	uint32_t grace_ms;        /* how long the node keeps the leases of a session that is cut off */
	uint32_t idle_ms;         /* silence after which the node drops a control connection; 0: never */
	uint8_t proof[FP_WIRE_PROOF_BYTES]; /* zeros if the node has no secret */
};

struct fp_wire_lease {
	uint64_t size_bytes;
	uint32_t flags;
	uint32_t reserved;
};

/* LEASED and ATTACHED. */
struct fp_wire_leased {
	uint64_t size_bytes; /* at least the size asked for, because pools round up to their unit */
	uint32_t lease_id;
	uint32_t flags;
	uint64_t address; /* with FP_WIRE_LEASED_KEY: where the lease begins for READ and WRITE; else 0 */
	uint32_t key;     /* with FP_WIRE_LEASED_KEY; else 0 */
	uint32_t reserved;
};

/* Makes a lease of a resumed session reachable over this connection; the answer is a struct
 * fp_wire_leased.
 */
struct fp_wire_attach {
	uint32_t lease_id;
	uint32_t reserved;
};

struct fp_wire_release {
	uint32_t lease_id;
	uint32_t reserved;
};

/* Gives a session without leases those of another session, read-only. */
struct fp_wire_adopt {
	uint64_t session_id; /* not 0 */
	uint8_t token[FP_WIRE_TOKEN_BYTES];
};

struct fp_wire_adopted {
	uint32_t n_leases;
	uint32_t reserved;
};

struct fp_wire_info {
	uint64_t capacity_bytes; /* size of all pools from which this session can lease */
	uint64_t free_bytes;
	uint64_t leased_bytes;  /* to this session */
	uint64_t quota_bytes;   /* quota of its client, for all sessions of that client; 0: none */
	uint64_t charged_bytes; /* to its client, for all sessions of that client */
	/* The refusal that a LEASE of the smallest size would get now; cause NONE: none. */
	struct fp_wire_refusal refusal;
};

struct fp_wire_drained {
	uint64_t leased_bytes; /* of all sessions */
	uint32_t sessions;
	uint32_t reserved;
};

/*
 * QP and QP_REPLY: the address of a queue pair at one end. The other end needs it to connect
 * without rdma_cm.
 */
struct fp_wire_qp {
	uint32_t qpn; /* 24 bits, not 0 */
	uint32_t psn; /* 24 bits */
	uint16_t lid;
	uint8_t mtu;     /* enum ibv_mtu: 1 (256 bytes) to 5 (4096) */
	uint8_t n_reads; /* how many READs this end can answer at the same time */
	uint32_t reserved;
	uint8_t gid[16];
};

/*
 * The private data of an rdma_cm connection request. The proof covers the fields before it, see
 * fp_auth_prove_cm. The purpose is LINK.
 */
struct fp_wire_cm {
	uint32_t magic; /* filled in by encode */
	uint8_t min_version;
	uint8_t max_version;
	uint8_t purpose;
	uint8_t reserved;
	uint64_t session_id;
	uint8_t nonce[FP_WIRE_CM_NONCE_BYTES];
	uint8_t proof[FP_WIRE_CM_PROOF_BYTES];
};

/* The private data of an acceptance or rejection. */
struct fp_wire_cm_reply {
	uint32_t magic; /* filled in by encode */
	uint8_t version;
	uint8_t reserved[3];
	int32_t status; /* enum fp_wire_status: FP_WIRE_OK when accepted */
	uint32_t reserved2;
};

/*
 * The payload of a READ or WRITE begins with this struct. Then come n_segs segments. In a WRITE,
 * their bytes follow in the same order.
 */
struct fp_wire_io {
	uint32_t n_segs;
	uint32_t reserved;
};

struct fp_wire_seg {
	uint32_t lease_id;
	uint32_t len_bytes;
	uint64_t offset_bytes;
};

/* A decoded READ or WRITE. */
struct fp_wire_table {
	unsigned n_segs;
	uint32_t table_bytes; /* bytes of header and segments, before the data of a WRITE */
	uint32_t data_bytes;  /* sum of the segments' lengths */
	struct fp_wire_seg segs[FP_WIRE_MAX_SEGS];
};

#define FP_WIRE_HEADER_BYTES sizeof(struct fp_wire_header)
#define FP_WIRE_MAX_TABLE    (sizeof(struct fp_wire_io) + FP_WIRE_MAX_SEGS * sizeof(struct fp_wire_seg))
#define FP_WIRE_MAX_DATA     (FP_WIRE_MAX_SEGS * FP_WIRE_MAX_SEG_BYTES)
#define FP_WIRE_MAX_PAYLOAD  (FP_WIRE_MAX_TABLE + FP_WIRE_MAX_DATA) /* a full WRITE: no payload is longer */

static_assert(sizeof(struct fp_wire_header) == 24, "header");
static_assert(offsetof(struct fp_wire_header, version) == 4, "header.version");
static_assert(offsetof(struct fp_wire_header, flags) == 6, "header.flags");
static_assert(offsetof(struct fp_wire_header, length) == 8, "header.length");
static_assert(offsetof(struct fp_wire_header, status) == 12, "header.status");
static_assert(offsetof(struct fp_wire_header, tag) == 16, "header.tag");
static_assert(sizeof(struct fp_wire_refusal) == 24, "refusal");
static_assert(offsetof(struct fp_wire_refusal, flags) == 2, "refusal.flags");
static_assert(offsetof(struct fp_wire_refusal, limit) == 8, "refusal.limit");
static_assert(sizeof(struct fp_wire_hello) == 128, "hello");
static_assert(offsetof(struct fp_wire_hello, features) == 4, "hello.features");
static_assert(offsetof(struct fp_wire_hello, session_id) == 8, "hello.session_id");
static_assert(offsetof(struct fp_wire_hello, token) == 16, "hello.token");
static_assert(offsetof(struct fp_wire_hello, nonce) == 32, "hello.nonce");
static_assert(offsetof(struct fp_wire_hello, client_name) == 64, "hello.client_name");
static_assert(sizeof(struct fp_wire_challenge) == 40, "challenge");
static_assert(offsetof(struct fp_wire_challenge, version) == 32, "challenge.version");
static_assert(offsetof(struct fp_wire_challenge, flags) == 36, "challenge.flags");
static_assert(sizeof(struct fp_wire_auth) == 32, "auth");
static_assert(sizeof(struct fp_wire_welcome) == 80, "welcome");
static_assert(offsetof(struct fp_wire_welcome, features) == 4, "welcome.features");
static_assert(offsetof(struct fp_wire_welcome, session_id) == 8, "welcome.session_id");
static_assert(offsetof(struct fp_wire_welcome, token) == 16, "welcome.token");
static_assert(offsetof(struct fp_wire_welcome, max_payload) == 32, "welcome.max_payload");
static_assert(offsetof(struct fp_wire_welcome, max_outstanding) == 36, "welcome.max_outstanding");
static_assert(offsetof(struct fp_wire_welcome, grace_ms) == 40, "welcome.grace_ms");
static_assert(offsetof(struct fp_wire_welcome, idle_ms) == 44, "welcome.idle_ms");
static_assert(offsetof(struct fp_wire_welcome, proof) == 48, "welcome.proof");
static_assert(sizeof(struct fp_wire_lease) == 16, "lease");
static_assert(offsetof(struct fp_wire_lease, flags) == 8, "lease.flags");
static_assert(sizeof(struct fp_wire_leased) == 32, "leased");
static_assert(offsetof(struct fp_wire_leased, lease_id) == 8, "leased.lease_id");
static_assert(offsetof(struct fp_wire_leased, flags) == 12, "leased.flags");
static_assert(offsetof(struct fp_wire_leased, address) == 16, "leased.address");
static_assert(offsetof(struct fp_wire_leased, key) == 24, "leased.key");
static_assert(sizeof(struct fp_wire_attach) == 8, "attach");
static_assert(sizeof(struct fp_wire_release) == 8, "release");
static_assert(sizeof(struct fp_wire_adopt) == 24, "adopt");
static_assert(offsetof(struct fp_wire_adopt, token) == 8, "adopt.token");
static_assert(sizeof(struct fp_wire_adopted) == 8, "adopted");
static_assert(sizeof(struct fp_wire_info) == 64, "info");
static_assert(offsetof(struct fp_wire_info, charged_bytes) == 32, "info.charged_bytes");
static_assert(offsetof(struct fp_wire_info, refusal) == 40, "info.refusal");
static_assert(sizeof(struct fp_wire_drained) == 16, "drained");
static_assert(offsetof(struct fp_wire_drained, sessions) == 8, "drained.sessions");
static_assert(sizeof(struct fp_wire_qp) == 32, "qp");
static_assert(offsetof(struct fp_wire_qp, lid) == 8, "qp.lid");
static_assert(offsetof(struct fp_wire_qp, mtu) == 10, "qp.mtu");
static_assert(offsetof(struct fp_wire_qp, gid) == 16, "qp.gid");
static_assert(sizeof(struct fp_wire_cm) == 48, "cm");
static_assert(offsetof(struct fp_wire_cm, session_id) == 8, "cm.session_id");
static_assert(offsetof(struct fp_wire_cm, nonce) == 16, "cm.nonce");
static_assert(offsetof(struct fp_wire_cm, proof) == 32, "cm.proof");
static_assert(sizeof(struct fp_wire_cm_reply) == 16, "cm_reply");
static_assert(offsetof(struct fp_wire_cm_reply, status) == 8, "cm_reply.status");
static_assert(sizeof(struct fp_wire_io) == 8, "io");
static_assert(sizeof(struct fp_wire_seg) == 16, "seg");
static_assert(offsetof(struct fp_wire_seg, len_bytes) == 4, "seg.len_bytes");
static_assert(offsetof(struct fp_wire_seg, offset_bytes) == 8, "seg.offset_bytes");

/*
 * Writes the 24 bytes of a header, with magic and version. status is FP_WIRE_OK for all types but
 * ERROR.
 */
void fp_wire_header_encode(enum fp_wire_type type, enum fp_wire_status status, uint64_t tag, size_t length,
                           void *ret_bytes);
/*
 * Decodes FP_WIRE_HEADER_BYTES. Checks magic, version and type, and that flags, status and length
 * are possible for the type. Afterwards length is safe to use as the size of a buffer.
 */
int fp_wire_header_decode(const void *bytes, struct fp_wire_header *ret);

/*
 * The messages of fixed size. Encode writes sizeof(*message) bytes. Decode takes a whole payload of
 * len bytes. struct fp_wire_auth has no fields to check: copy it.
 */
#define FP_WIRE_MESSAGES(X)                                                                                  \
	X(hello)                                                                                             \
	X(challenge)                                                                                         \
	X(welcome)                                                                                           \
	X(lease)                                                                                             \
	X(leased)                                                                                            \
	X(release)                                                                                           \
	X(info)                                                                                              \
	X(drained)                                                                                           \
	X(refusal)                                                                                           \
	X(attach)                                                                                            \
	X(adopt)                                                                                             \
	X(adopted)                                                                                           \
	X(qp)

#define FP_WIRE_DECLARE(name)                                                                                \
	void fp_wire_##name##_encode(const struct fp_wire_##name *message, void *ret_bytes);                 \
	int fp_wire_##name##_decode(const void *bytes, size_t len, struct fp_wire_##name *ret);

FP_WIRE_MESSAGES(FP_WIRE_DECLARE)
/* Fabrics pad private data. So decoding needs at least the struct's bytes, and ignores the rest. */
FP_WIRE_DECLARE(cm)
FP_WIRE_DECLARE(cm_reply)

/*
 * Encodes the table of a READ or WRITE: n_segs (1..FP_WIRE_MAX_SEGS) of segs, at most
 * FP_WIRE_MAX_TABLE bytes. Returns the bytes written.
 */
size_t fp_wire_table_encode(const struct fp_wire_seg *segs, unsigned n_segs, void *ret_bytes);
/*
 * Decodes the table from the first `have` bytes of the payload of a READ or WRITE with this
 * (decoded) header. Returns 1 and *ret; 0 if the table needs more bytes than `have`. -EPROTO if it
 * can't be right: no or too many segments, a length out of range, an offset that wraps, or a sum of
 * sizes other than header->length.
 */
int fp_wire_table_decode(const struct fp_wire_header *header, const void *payload, size_t have,
                         struct fp_wire_table *ret);

/* True if the segment lies inside a lease of lease_bytes. */
bool fp_wire_seg_fits(const struct fp_wire_seg *seg, uint64_t lease_bytes);

/*
 * Chooses the version for a node's answer to a HELLO, or to a connection request. 0 and
 * *ret_version, or -EPROTONOSUPPORT.
 */
int fp_wire_version_choose(const struct fp_wire_hello *hello, uint8_t *ret_version);
int fp_wire_cm_version_choose(const struct fp_wire_cm *cm, uint8_t *ret_version);

/*
 * Fills a client name for HELLO: cut to fit, and padded with zeros. Each character that is not
 * printable ASCII, and each " and \, becomes '_'.
 */
void fp_wire_name_set(char name[FP_WIRE_NAME_BYTES], const char *text);

/*
 * The negative errno of a status; 0 for FP_WIRE_OK, -EREMOTEIO for a status that is not in the
 * list.
 */
int fp_wire_status_to_errno(int32_t status);
/* The status for a negative errno; FP_WIRE_BROKEN for an errno that no status has. */
enum fp_wire_status fp_wire_status_from_errno(int negative_errno);

#endif
