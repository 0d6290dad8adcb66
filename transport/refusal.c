/* The words of refusals. Room: transport; see refusal.h. */
#include "refusal.h"

#include <stdio.h>

#include "cleanup.h"
#include "units.h"

#define RELOAD "in the node's configuration and reload it"
#define FILES  "LimitNOFILE= of farpaged (ulimit -n of farpage run, if that started the node)"
#define ENLARGE                                                                                              \
	"enlarge them in its configuration (with --pool-size, if farpage run started it), or use one more "  \
	"node"
#define FREE "free some there, raise MemoryMax= of farpaged if that is the limit, or use one more node"

typedef unsigned long long ull;

static const char *const names[FP_REFUSAL_CAUSES] = {
    [FP_REFUSAL_NONE] = "other",
    [FP_REFUSAL_DRAINING] = "draining",
    [FP_REFUSAL_POOLS] = "pools",
    [FP_REFUSAL_HOST_MEMORY] = "host_memory",
    [FP_REFUSAL_QUOTA] = "quota",
    [FP_REFUSAL_LEASES] = "max_leases",
    [FP_REFUSAL_MAPPED_LEASES] = "mapped_leases",
    [FP_REFUSAL_UNRECEIVED] = "unreceived",
    [FP_REFUSAL_LOCKED_MEMORY] = "locked_memory",
    [FP_REFUSAL_SESSIONS] = "max_sessions",
    [FP_REFUSAL_CONNECTIONS] = "max_connections",
    [FP_REFUSAL_LINKS] = "links",
    [FP_REFUSAL_OPERATORS] = "operators",
    [FP_REFUSAL_RIGHT] = "right",
    [FP_REFUSAL_ADOPTED_LEASES] = "adopted_leases",
    [FP_REFUSAL_SECRET] = "secret",
    [FP_REFUSAL_SESSION] = "session",
    [FP_REFUSAL_PROTOCOL] = "protocol",
    [FP_REFUSAL_VERSION] = "version",
};

const char *fp_refusal_name(enum fp_refusal_cause cause)
{
	return names[cause];
}

static uint64_t left(const struct fp_refusal *refusal)
{
	return refusal->limit - FP_MIN(refusal->used, refusal->limit);
}

/* "the node has 8 sessions, as many as max_sessions allows: raise ..." */
static void explain_places(const struct fp_refusal *refusal, const char *what, const char *key, char *buf,
                           size_t len)
{
	const char *setter = refusal->by_files ? "a quarter of LimitNOFILE=" : key;
	int n;

	if (refusal->is_share)
		n = snprintf(
		    buf, len,
		    "the client has %llu %s%s, as many as one client may have (three quarters of %s)",
		    (ull)refusal->used, what, fp_plural(refusal->used), setter);
	else
		n = snprintf(buf, len, "the node has %llu %s%s, as many as %s allows", (ull)refusal->used,
		             what, fp_plural(refusal->used), setter);
	if ((size_t)n < len && refusal->by_files)
		snprintf(buf + n, len - (size_t)n, ": raise " FILES);
	else if ((size_t)n < len)
		snprintf(buf + n, len - (size_t)n, ": raise limits.%s " RELOAD, key);
}

static void explain_bytes(const struct fp_refusal *refusal, char *buf, size_t len)
{
	char limit[16], rest[16];

	fp_size_format(refusal->limit, limit, sizeof(limit));
	fp_size_format(left(refusal), rest, sizeof(rest));
	if (refusal->cause == FP_REFUSAL_POOLS && !refusal->limit)
		snprintf(buf, len,
		         "none of the node's pools can be mapped over shm, because their backing is "
		         "anonymous: use the backing memfd or hugetlb, or connect over tcp");
	else if (refusal->cause == FP_REFUSAL_POOLS && left(refusal))
		snprintf(buf, len, "of the node's pools (%s), none has more than %s left: " ENLARGE, limit,
		         rest);
	else if (refusal->cause == FP_REFUSAL_POOLS)
		snprintf(buf, len, "the node's pools have 0 B left of %s: " ENLARGE, limit);
	else if (refusal->cause == FP_REFUSAL_HOST_MEMORY && refusal->used)
		snprintf(buf, len,
		         "%s %llu connection%s, and the memory that the node's host keeps for %s is used up: "
		         "let some of them end, raise MemoryMax= of farpaged if that is the limit, or use "
		         "one more node",
		         refusal->is_share ? "the client has" : "the node has", (ull)refusal->used,
		         fp_plural(refusal->used), refusal->is_share ? "one client's" : "them");
	else if (refusal->cause == FP_REFUSAL_HOST_MEMORY && refusal->limit)
		snprintf(buf, len, "the node's host has only %s of memory left for leases: " FREE, limit);
	else if (refusal->cause == FP_REFUSAL_HOST_MEMORY)
		snprintf(buf, len, "the node's host could not give the memory: " FREE);
	else
		snprintf(buf, len,
		         "the client's quota of %s has %s left: raise the quota of its secret, or "
		         "limits.client_quota, " RELOAD,
		         limit, rest);
}

static void explain_right(const struct fp_refusal *refusal, char *buf, size_t len)
{
	static const char *const rights[] = {
	    [1] = "lease", [2] = "status", [4] = "admin", [6] = "status, or admin to drain as well"};
	const char *right = refusal->limit < FP_ARRAY_LEN(rights) ? rights[refusal->limit] : NULL;

	snprintf(buf, len, "the client lacks the right %s: add it to the rights of its secret " RELOAD "%s",
	         right ? right : "for that",
	         refusal->limit == 4 ? "; where the node has no secret, only its own user and root have it, "
	                               "over its UNIX socket (shm:PATH)"
	                             : "");
}

static void explain_number(const struct fp_refusal *refusal, char *buf, size_t len)
{
	ull limit = refusal->limit, used = refusal->used;

	switch (refusal->cause) {
	case FP_REFUSAL_LEASES:
		snprintf(buf, len,
		         "the session has %llu lease%s, as many as max_leases allows: raise "
		         "limits.max_leases " RELOAD,
		         used, fp_plural(used));
		break;
	case FP_REFUSAL_MAPPED_LEASES:
		if (!limit) {
			snprintf(buf, len,
			         "the node has no file descriptor left for the lease: raise " FILES);
			break;
		}
		snprintf(buf, len, "%s %llu lease%s that are mapped (shm), as many as %s: raise " FILES,
		         refusal->is_share ? "the client has" : "the node has", used, fp_plural(used),
		         refusal->is_share ? "one client may have" : "half of LimitNOFILE= allows");
		break;
	case FP_REFUSAL_UNRECEIVED:
		if (refusal->by_files && !refusal->is_share) {
			snprintf(buf, len,
			         "the descriptors of %llu lease%s wait for clients to receive them, as many "
			         "as a sixteenth of LimitNOFILE= allows: raise " FILES,
			         used, fp_plural(used));
			break;
		}
		snprintf(buf, len,
		         "the client has not received the descriptors of its last %llu lease%s: it must "
		         "read the node's answers first",
		         used, fp_plural(used));
		break;
	case FP_REFUSAL_LINKS:
		snprintf(buf, len,
		         "the session has %llu link%s, as many as a session may have: close some of "
		         "them",
		         limit, fp_plural(limit));
		break;
	case FP_REFUSAL_OPERATORS:
		snprintf(buf, len,
		         "%s %llu session%s of operators, as many as %s: end one of them (farpage node)",
		         refusal->is_share ? "the client has" : "the node has", used, fp_plural(used),
		         refusal->is_share ? "one client may have" : "there may be");
		break;
	default: /* FP_REFUSAL_ADOPTED_LEASES */
		snprintf(buf, len,
		         "the client's forked processes have adopted as many leases as they may (%llu): let "
		         "some of them end",
		         limit);
	}
}

static void explain_version(const struct fp_refusal *refusal, char *buf, size_t len)
{
	ull node = refusal->limit, client = refusal->used;

	if (!node)
		snprintf(buf, len,
		         "the node speaks an older version of the protocol than the client, which speaks "
		         "version %llu: update Farpage on the node",
		         client);
	else
		snprintf(buf, len,
		         "the node speaks version %llu of the protocol, the client version %llu: update "
		         "Farpage on the %s",
		         node, client, node < client ? "node" : "client's machine");
}

const char *fp_refusal_explain(const struct fp_refusal *refusal, char *buf, size_t len)
{
	switch (refusal->cause) {
	case FP_REFUSAL_NONE:
	case FP_REFUSAL_CAUSES:
		snprintf(buf, len, "%s", "");
		break;
	case FP_REFUSAL_DRAINING:
		snprintf(buf, len,
		         "the node is drained and grants no further lease: use another node, or let it lend "
		         "again with farpage node undrain");
		break;
	case FP_REFUSAL_POOLS:
	case FP_REFUSAL_HOST_MEMORY:
	case FP_REFUSAL_QUOTA:
		explain_bytes(refusal, buf, len);
		break;
	case FP_REFUSAL_LOCKED_MEMORY:
		snprintf(buf, len,
		         "the node could not pin the lease for its RDMA device: raise LimitMEMLOCK= of "
		         "farpaged");
		break;
	case FP_REFUSAL_SECRET:
		snprintf(buf, len,
		         "%s: give one of its auth section with --secret-file or FARPAGE_SECRET_FILE",
		         refusal->limit ? "the node does not know this secret" : "the node wants a secret");
		break;
	case FP_REFUSAL_SESSION:
		snprintf(buf, len,
		         "the node knows no such session: it has ended, or its token is wrong; start the "
		         "program again");
		break;
	case FP_REFUSAL_PROTOCOL:
		snprintf(buf, len, "the client does not speak the protocol of this version");
		break;
	case FP_REFUSAL_VERSION:
		explain_version(refusal, buf, len);
		break;
	case FP_REFUSAL_SESSIONS:
		explain_places(refusal, "session", "max_sessions", buf, len);
		break;
	case FP_REFUSAL_CONNECTIONS:
		explain_places(refusal, "connection", "max_connections", buf, len);
		break;
	case FP_REFUSAL_RIGHT:
		explain_right(refusal, buf, len);
		break;
	default:
		explain_number(refusal, buf, len);
	}
	return buf;
}

void fp_refusal_to_wire(const struct fp_refusal *refusal, struct fp_wire_refusal *ret_wire)
{
	*ret_wire = (struct fp_wire_refusal){
	    .cause = (uint16_t)refusal->cause,
	    .flags = (uint16_t)((refusal->is_share ? FP_WIRE_REFUSAL_SHARE : 0) |
	                        (refusal->by_files ? FP_WIRE_REFUSAL_FILES : 0)),
	    .limit = refusal->limit,
	    .used = refusal->used,
	};
}

void fp_refusal_from_wire(const struct fp_wire_refusal *wire, struct fp_refusal *ret_refusal)
{
	*ret_refusal = (struct fp_refusal){
	    .cause = wire->cause < FP_REFUSAL_CAUSES ? (enum fp_refusal_cause)wire->cause : FP_REFUSAL_NONE,
	    .is_share = wire->flags & FP_WIRE_REFUSAL_SHARE,
	    .by_files = wire->flags & FP_WIRE_REFUSAL_FILES,
	    .limit = wire->limit,
	    .used = wire->used,
	};
	if (ret_refusal->cause == FP_REFUSAL_NONE)
		*ret_refusal = (struct fp_refusal){.cause = FP_REFUSAL_NONE};
}
