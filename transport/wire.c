/*
 * The codec of the wire protocol. Room: transport. Pure functions over bytes. All checks of a
 * peer's bytes are here.
 */
#include "wire.h"

#include <errno.h>
#include <string.h>

#include "cleanup.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the structs are the wire's bytes: Farpage runs on little-endian machines only");

/* The payload lengths that each type allows. A type without an entry does not exist. */
static const struct {
	uint32_t min, max;
} lengths[] = {
    [FP_WIRE_ERROR] = {0, sizeof(struct fp_wire_refusal)},
    [FP_WIRE_HELLO] = {sizeof(struct fp_wire_hello), sizeof(struct fp_wire_hello)},
    [FP_WIRE_CHALLENGE] = {sizeof(struct fp_wire_challenge), sizeof(struct fp_wire_challenge)},
    [FP_WIRE_AUTH] = {sizeof(struct fp_wire_auth), sizeof(struct fp_wire_auth)},
    [FP_WIRE_WELCOME] = {sizeof(struct fp_wire_welcome), sizeof(struct fp_wire_welcome)},
    [FP_WIRE_PING] = {0, FP_WIRE_MAX_PING},
    [FP_WIRE_PONG] = {0, FP_WIRE_MAX_PING},
    [FP_WIRE_BYE] = {0, 0},
    [FP_WIRE_FAREWELL] = {0, 0},
    [FP_WIRE_LEASE] = {sizeof(struct fp_wire_lease), sizeof(struct fp_wire_lease)},
    [FP_WIRE_LEASED] = {sizeof(struct fp_wire_leased), sizeof(struct fp_wire_leased)},
    [FP_WIRE_RELEASE] = {sizeof(struct fp_wire_release), sizeof(struct fp_wire_release)},
    [FP_WIRE_RELEASED] = {0, 0},
    [FP_WIRE_INFO] = {0, 0},
    [FP_WIRE_INFO_REPLY] = {sizeof(struct fp_wire_info), sizeof(struct fp_wire_info)},
    [FP_WIRE_STATUS] = {0, 0},
    [FP_WIRE_STATUS_REPLY] = {2, FP_WIRE_MAX_STATUS},
    [FP_WIRE_DRAIN] = {0, 0},
    [FP_WIRE_DRAINED] = {sizeof(struct fp_wire_drained), sizeof(struct fp_wire_drained)},
    [FP_WIRE_ATTACH] = {sizeof(struct fp_wire_attach), sizeof(struct fp_wire_attach)},
    [FP_WIRE_ATTACHED] = {sizeof(struct fp_wire_leased), sizeof(struct fp_wire_leased)},
    [FP_WIRE_UNDRAIN] = {0, 0},
    [FP_WIRE_UNDRAINED] = {0, 0},
    [FP_WIRE_READ] = {sizeof(struct fp_wire_io) + sizeof(struct fp_wire_seg), FP_WIRE_MAX_TABLE},
    [FP_WIRE_DATA] = {1, FP_WIRE_MAX_DATA},
    [FP_WIRE_WRITE] = {sizeof(struct fp_wire_io) + sizeof(struct fp_wire_seg) + 1, FP_WIRE_MAX_PAYLOAD},
    [FP_WIRE_WRITTEN] = {0, 0},
    [FP_WIRE_QP] = {sizeof(struct fp_wire_qp), sizeof(struct fp_wire_qp)},
    [FP_WIRE_QP_REPLY] = {sizeof(struct fp_wire_qp), sizeof(struct fp_wire_qp)},
    [FP_WIRE_ADOPT] = {sizeof(struct fp_wire_adopt), sizeof(struct fp_wire_adopt)},
    [FP_WIRE_ADOPTED] = {sizeof(struct fp_wire_adopted), sizeof(struct fp_wire_adopted)},
};

static bool type_known(uint8_t type)
{
	return (type >= FP_WIRE_ERROR && type <= FP_WIRE_FAREWELL) ||
	       (type >= FP_WIRE_LEASE && type <= FP_WIRE_UNDRAINED) ||
	       (type >= FP_WIRE_READ && type <= FP_WIRE_ADOPTED);
}

static bool all_zero(const void *bytes, size_t len)
{
	const uint8_t *p = bytes;

	while (len > 0 && p[len - 1] == 0)
		len--;
	return len == 0;
}

/* An ERROR has a whole refusal or none. */
static bool length_valid(uint8_t type, uint32_t length)
{
	return length >= lengths[type].min && length <= lengths[type].max &&
	       (type != FP_WIRE_ERROR || length == lengths[type].min || length == lengths[type].max);
}

/* The rules for a well-formed message of each kind. */
static bool header_valid(const struct fp_wire_header *m)
{
	return m->flags == 0 && type_known(m->type) && length_valid(m->type, m->length) &&
	       (m->status > 0) == (m->type == FP_WIRE_ERROR) && m->status >= 0;
}

static bool refusal_valid(const struct fp_wire_refusal *m)
{
	return (m->flags & ~(FP_WIRE_REFUSAL_SHARE | FP_WIRE_REFUSAL_FILES)) == 0 && m->reserved == 0;
}

static bool name_char_valid(char c)
{
	return c >= 0x20 && c <= 0x7e && c != '"' && c != '\\';
}

static bool name_valid(const char name[FP_WIRE_NAME_BYTES])
{
	size_t len = strnlen(name, FP_WIRE_NAME_BYTES);

	for (size_t i = 0; i < len; i++)
		if (!name_char_valid(name[i]))
			return false;
	return len < FP_WIRE_NAME_BYTES && all_zero(name + len, FP_WIRE_NAME_BYTES - len);
}

static bool hello_valid(const struct fp_wire_hello *m)
{
	bool names_session = m->session_id != 0 || !all_zero(m->token, sizeof(m->token));

	return m->min_version >= 1 && m->min_version <= m->max_version && m->reserved == 0 &&
	       (m->purpose == FP_WIRE_LINK || m->purpose == FP_WIRE_RESUME ||
	        (m->purpose == FP_WIRE_CONTROL && !names_session)) &&
	       name_valid(m->client_name);
}

static bool challenge_valid(const struct fp_wire_challenge *m)
{
	return m->version >= 1 && all_zero(m->reserved, sizeof(m->reserved)) &&
	       (m->flags & ~FP_WIRE_CHALLENGE_AUTH) == 0;
}

static bool welcome_valid(const struct fp_wire_welcome *m)
{
	return m->version >= 1 && m->reserved == 0 && m->session_id != 0 &&
	       !m->cm_port == !(m->features & FP_WIRE_FEATURE_CM) && m->max_payload >= FP_WIRE_MAX_PAYLOAD &&
	       m->max_outstanding >= 1;
}

static bool lease_size_valid(uint64_t size_bytes)
{
	return size_bytes > 0 && size_bytes <= FP_WIRE_MAX_LEASE && size_bytes % FP_WIRE_LEASE_ALIGN == 0;
}

static bool lease_id_valid(uint32_t lease_id)
{
	return lease_id >= 1 && lease_id <= FP_WIRE_MAX_LEASE_ID;
}

static bool lease_valid(const struct fp_wire_lease *m)
{
	return lease_size_valid(m->size_bytes) && m->flags == 0 && m->reserved == 0;
}

static bool leased_valid(const struct fp_wire_leased *m)
{
	bool has_key = m->flags & FP_WIRE_LEASED_KEY;

	return lease_size_valid(m->size_bytes) && lease_id_valid(m->lease_id) && m->reserved == 0 &&
	       (m->flags & ~(FP_WIRE_LEASED_MEMFD | FP_WIRE_LEASED_KEY | FP_WIRE_LEASED_READ_ONLY)) == 0 &&
	       (has_key ? m->address <= UINT64_MAX - m->size_bytes : m->address == 0 && m->key == 0);
}

static bool attach_valid(const struct fp_wire_attach *m)
{
	return lease_id_valid(m->lease_id) && m->reserved == 0;
}

static bool release_valid(const struct fp_wire_release *m)
{
	return lease_id_valid(m->lease_id) && m->reserved == 0;
}

static bool adopt_valid(const struct fp_wire_adopt *m)
{
	return m->session_id != 0;
}

static bool adopted_valid(const struct fp_wire_adopted *m)
{
	return m->n_leases <= FP_WIRE_MAX_LEASE_ID && m->reserved == 0;
}

static bool info_valid(const struct fp_wire_info *m)
{
	return m->free_bytes <= m->capacity_bytes && refusal_valid(&m->refusal);
}

static bool drained_valid(const struct fp_wire_drained *m)
{
	return m->reserved == 0;
}

static bool qp_valid(const struct fp_wire_qp *m)
{
	return m->qpn >= 1 && m->qpn < 1u << 24 && m->psn < 1u << 24 && m->mtu >= 1 && m->mtu <= 5 &&
	       m->reserved == 0;
}

static bool cm_valid(const struct fp_wire_cm *m)
{
	return m->magic == FP_WIRE_MAGIC && m->min_version >= 1 && m->min_version <= m->max_version &&
	       m->purpose == FP_WIRE_LINK && m->reserved == 0 && m->session_id != 0;
}

static bool cm_reply_valid(const struct fp_wire_cm_reply *m)
{
	return m->magic == FP_WIRE_MAGIC && m->version >= 1 && all_zero(m->reserved, sizeof(m->reserved)) &&
	       m->status >= 0 && m->reserved2 == 0;
}

#define DEFINE_ENCODE(name)                                                                                  \
	void fp_wire_##name##_encode(const struct fp_wire_##name *message, void *ret_bytes)                  \
	{                                                                                                    \
		memcpy(ret_bytes, message, sizeof(*message));                                                \
	}

/*
 * The parameter `fits` is the operator that compares the length of the payload with the struct's
 * size.
 */
#define DEFINE_DECODE(name, fits)                                                                            \
	int fp_wire_##name##_decode(const void *bytes, size_t len, struct fp_wire_##name *ret)               \
	{                                                                                                    \
		struct fp_wire_##name m;                                                                     \
                                                                                                             \
		if (!(len fits sizeof(m)))                                                                   \
			return -EPROTO;                                                                      \
		memcpy(&m, bytes, sizeof(m));                                                                \
		if (!name##_valid(&m))                                                                       \
			return -EPROTO;                                                                      \
		*ret = m;                                                                                    \
		return 0;                                                                                    \
	}

#define DEFINE_CODEC(name)                                                                                   \
	DEFINE_ENCODE(name)                                                                                  \
	DEFINE_DECODE(name, ==)

FP_WIRE_MESSAGES(DEFINE_CODEC)
DEFINE_DECODE(cm, >=)
DEFINE_DECODE(cm_reply, >=)

void fp_wire_cm_encode(const struct fp_wire_cm *message, void *ret_bytes)
{
	struct fp_wire_cm m = *message;

	m.magic = FP_WIRE_MAGIC;
	memcpy(ret_bytes, &m, sizeof(m));
}

void fp_wire_cm_reply_encode(const struct fp_wire_cm_reply *message, void *ret_bytes)
{
	struct fp_wire_cm_reply m = *message;

	m.magic = FP_WIRE_MAGIC;
	memcpy(ret_bytes, &m, sizeof(m));
}

void fp_wire_header_encode(enum fp_wire_type type, enum fp_wire_status status, uint64_t tag, size_t length,
                           void *ret_bytes)
{
	struct fp_wire_header m = {
	    .magic = FP_WIRE_MAGIC,
	    .version = FP_WIRE_HEADER,
	    .type = (uint8_t)type,
	    .length = (uint32_t)length,
	    .status = status,
	    .tag = tag,
	};

	assert(header_valid(&m));
	memcpy(ret_bytes, &m, sizeof(m));
}

int fp_wire_header_decode(const void *bytes, struct fp_wire_header *ret)
{
	struct fp_wire_header m;

	memcpy(&m, bytes, sizeof(m));
	if (m.magic != FP_WIRE_MAGIC)
		return -EPROTO;
	if (m.version != FP_WIRE_HEADER)
		return -EPROTONOSUPPORT;
	if (!header_valid(&m))
		return -EPROTO;
	*ret = m;
	return 0;
}

size_t fp_wire_table_encode(const struct fp_wire_seg *segs, unsigned n_segs, void *ret_bytes)
{
	struct fp_wire_io io = {.n_segs = n_segs};
	uint8_t *out = ret_bytes;

	assert(n_segs >= 1 && n_segs <= FP_WIRE_MAX_SEGS);
	memcpy(out, &io, sizeof(io));
	memcpy(out + sizeof(io), segs, n_segs * sizeof(*segs));
	return sizeof(io) + n_segs * sizeof(*segs);
}

static bool seg_valid(const struct fp_wire_seg *seg)
{
	return lease_id_valid(seg->lease_id) && seg->len_bytes >= 1 &&
	       seg->len_bytes <= FP_WIRE_MAX_SEG_BYTES && seg->offset_bytes <= FP_WIRE_MAX_LEASE;
}

int fp_wire_table_decode(const struct fp_wire_header *header, const void *payload, size_t have,
                         struct fp_wire_table *ret)
{
	const uint8_t *in = payload;
	struct fp_wire_table table = {0};
	struct fp_wire_io io;

	if (have < sizeof(io))
		return 0;
	memcpy(&io, in, sizeof(io));
	table.n_segs = io.n_segs;
	if (io.reserved != 0 || table.n_segs < 1 || table.n_segs > FP_WIRE_MAX_SEGS)
		return -EPROTO;
	table.table_bytes = (uint32_t)(sizeof(io) + table.n_segs * sizeof(table.segs[0]));
	if (table.table_bytes > header->length)
		return -EPROTO;
	if (have < table.table_bytes)
		return 0;
	memcpy(table.segs, in + sizeof(io), table.n_segs * sizeof(table.segs[0]));
	for (unsigned i = 0; i < table.n_segs; i++) {
		if (!seg_valid(&table.segs[i]))
			return -EPROTO;
		table.data_bytes += table.segs[i].len_bytes;
	}
	if (header->length != table.table_bytes + (header->type == FP_WIRE_WRITE ? table.data_bytes : 0))
		return -EPROTO;
	*ret = table;
	return 1;
}

bool fp_wire_seg_fits(const struct fp_wire_seg *seg, uint64_t lease_bytes)
{
	return seg->len_bytes <= lease_bytes && seg->offset_bytes <= lease_bytes - seg->len_bytes;
}

static int choose_version(uint8_t min_version, uint8_t max_version, uint8_t *ret_version)
{
	if (min_version > FP_WIRE_VERSION || max_version < FP_WIRE_VERSION)
		return -EPROTONOSUPPORT;
	*ret_version = FP_WIRE_VERSION;
	return 0;
}

int fp_wire_version_choose(const struct fp_wire_hello *hello, uint8_t *ret_version)
{
	return choose_version(hello->min_version, hello->max_version, ret_version);
}

int fp_wire_cm_version_choose(const struct fp_wire_cm *cm, uint8_t *ret_version)
{
	return choose_version(cm->min_version, cm->max_version, ret_version);
}

void fp_wire_name_set(char name[FP_WIRE_NAME_BYTES], const char *text)
{
	size_t len = strnlen(text, FP_WIRE_NAME_BYTES - 1);

	memset(name, 0, FP_WIRE_NAME_BYTES);
	for (size_t i = 0; i < len; i++)
		name[i] = name_char_valid(text[i]) ? text[i] : '_';
}

/* If several statuses share an errno, a node sends the first for it. If a status has several, a
 * client gets the first for it. */
static const struct {
	enum fp_wire_status status;
	int error;
} statuses[] = {
    {FP_WIRE_OK, 0},
    {FP_WIRE_MALFORMED, -EPROTO},
    {FP_WIRE_VERSION_GAP, -EPROTONOSUPPORT},
    {FP_WIRE_DENIED, -EACCES},
    {FP_WIRE_FULL, -ENOSPC},
    {FP_WIRE_OVER_QUOTA, -EDQUOT},
    /* To a client this means the same as full: it asks another node. */
    {FP_WIRE_DRAINING, -ENOSPC},
    {FP_WIRE_DRAINING, -ESHUTDOWN},
    {FP_WIRE_BUSY, -EUSERS},
    {FP_WIRE_BAD_VALUE, -EINVAL},
    {FP_WIRE_NOT_PERMITTED, -EPERM},
    {FP_WIRE_BROKEN, -EREMOTEIO},
    {FP_WIRE_GONE, -ESTALE},
};

int fp_wire_status_to_errno(int32_t status)
{
	for (size_t i = 0; i < FP_ARRAY_LEN(statuses); i++)
		if ((int32_t)statuses[i].status == status)
			return statuses[i].error;
	return -EREMOTEIO;
}

enum fp_wire_status fp_wire_status_from_errno(int negative_errno)
{
	for (size_t i = 0; i < FP_ARRAY_LEN(statuses); i++)
		if (statuses[i].error == negative_errno)
			return statuses[i].status;
	return FP_WIRE_BROKEN;
}
