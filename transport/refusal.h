/*
 * Why a node refused something: which limit was met, how large it is and how much of it is in use.
 * The node counts and logs each refusal, and the client tells its user of it. Both use the words of
 * this file, so that user and operator speak of a refusal in the same words. Room: transport; the
 * daemon uses it, too. Pure.
 */
#ifndef FP_REFUSAL_H
#define FP_REFUSAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/*
 * Numbers of the wire. The comment of each cause says what limit counts, then a semicolon, then
 * what used counts. Without a semicolon, both count the same. "0, 0": both are 0.
 */
enum fp_refusal_cause {
	FP_REFUSAL_NONE = 0,     /* the node gave no cause, or one of a later version: 0, 0 */
	FP_REFUSAL_DRAINING = 1, /* 0, 0 */
	/* Bytes of the pools that the session can lease from; all but the most that one has
	 * left. 0, 0: the session maps its leases, and no pool can be mapped. */
	FP_REFUSAL_POOLS = 2,
	/* Bytes that the host can still give, 0 if it gave none; 0. At a handshake 0; how many
	 * connections or sessions there are. */
	FP_REFUSAL_HOST_MEMORY = 3,
	FP_REFUSAL_QUOTA = 4,  /* bytes of the client, in all its sessions */
	FP_REFUSAL_LEASES = 5, /* leases of the session */
	/* Leases that clients map: each takes a descriptor of the node. 0, 0: no descriptor is
	 * left. */
	FP_REFUSAL_MAPPED_LEASES = 6,
	FP_REFUSAL_UNRECEIVED = 7,    /* descriptors that the client has not received */
	FP_REFUSAL_LOCKED_MEMORY = 8, /* the node could not pin the lease for a device: 0, 0 */
	FP_REFUSAL_SESSIONS = 9,      /* sessions */
	FP_REFUSAL_CONNECTIONS = 10,  /* connections */
	FP_REFUSAL_LINKS = 11,        /* links of the session */
	FP_REFUSAL_OPERATORS = 12,    /* connections of operators' sessions */
	/* The client needs one of these rights: 1 lease, 2 status, 4 admin, or a sum of them; 0. */
	FP_REFUSAL_RIGHT = 13,
	FP_REFUSAL_ADOPTED_LEASES = 14, /* places for adopted leases, of the client's sessions */
	FP_REFUSAL_SECRET = 15,         /* 1 if the client gave a secret, 0 if it gave none; 0 */
	FP_REFUSAL_SESSION = 16,        /* a LINK, RESUME or ADOPT of a session that is not there: 0, 0 */
	FP_REFUSAL_PROTOCOL = 17,       /* not of the protocol, so it is never sent: 0, 0 */
	/* The node's version of the protocol, 0: one that sends no refusals; the newest of the
	 * client. */
	FP_REFUSAL_VERSION = 18,
	FP_REFUSAL_CAUSES /* how many causes there are; no cause */
};

struct fp_refusal {
	enum fp_refusal_cause cause;
	bool is_share; /* the limit is the share of one client: three quarters of what the node allows */
	bool by_files; /* the node's limit of open files sets it, not its configuration */
	uint64_t limit, used;
};

#define FP_REFUSAL_TEXT_LEN 320

/*
 * Says what was met and what to do, for a person, in a line without names: "the node's
 * pools have 0 B left of 64.0 MiB: ...". Returns buf (FP_REFUSAL_TEXT_LEN bytes), "" for
 * FP_REFUSAL_NONE.
 */
const char *fp_refusal_explain(const struct fp_refusal *refusal, char *buf, size_t len);

/* The name of a cause in the node's status: "draining", "pools", "quota", ... Static. */
const char *fp_refusal_name(enum fp_refusal_cause cause);

void fp_refusal_to_wire(const struct fp_refusal *refusal, struct fp_wire_refusal *ret_wire);
/* wire was decoded. A cause that this build does not know becomes FP_REFUSAL_NONE. */
void fp_refusal_from_wire(const struct fp_wire_refusal *wire, struct fp_refusal *ret_refusal);

#endif
