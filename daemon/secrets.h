/*
 * The secrets of a node. Each has a name, rights and a quota. All peers that prove the same secret
 * are one client, which has the secret's name. Room: daemon. No other file of the daemon keeps the
 * texts.
 */
#ifndef FP_SECRETS_H
#define FP_SECRETS_H

#include <stdbool.h>
#include <stdint.h>

#include "wire.h"
#include "yamlconf.h"

#define FP_MAX_SECRETS 32 /* each proof is compared with all of them */

enum fp_right {
	FP_RIGHT_LEASE = 1 << 0,  /* LEASE, ADOPT */
	FP_RIGHT_STATUS = 1 << 1, /* STATUS */
	FP_RIGHT_ADMIN = 1 << 2,  /* DRAIN, UNDRAIN */
	FP_RIGHTS_ALL = (1 << 3) - 1,
};

struct fp_node_secret {
	char *name, *file;
	struct fp_conf_strings rights_said;
	unsigned rights;      /* enum fp_right */
	uint64_t quota_bytes; /* 0: limits.client_quota applies */
	char *text;
	bool is_only; /* true: it is the one of auth.secret_file, and is in no list */
};

struct fp_secrets {
	struct fp_node_secret *items;
	unsigned n;
};

void fp_secrets_init(struct fp_secrets *secrets);
void fp_secrets_done(struct fp_secrets *secrets);

/* Appends a secret without name and file, with the right to lease. NULL: no memory. */
struct fp_node_secret *fp_secrets_add(struct fp_secrets *secrets);

/* Checks names and rights and reads the files. 0, or -EINVAL and error->text. Blocks on the
 * files. */
int fp_secrets_read(struct fp_secrets *secrets, const struct fp_conf_places *places,
                    struct fp_conf_error *error);

/* Exchanges the contents of two lists of secrets. */
void fp_secrets_swap(struct fp_secrets *a, struct fp_secrets *b);

/* Returns the secret of that name, or NULL. */
const struct fp_node_secret *fp_secrets_find(const struct fp_secrets *secrets, const char *name);

/*
 * Returns the secret that the client's proof shows, or NULL. Compares with each secret in constant
 * time.
 */
const struct fp_node_secret *fp_secrets_proven(const struct fp_secrets *secrets,
                                               const struct fp_wire_hello *hello,
                                               const struct fp_wire_challenge *challenge,
                                               const uint8_t proof[FP_WIRE_PROOF_BYTES]);

#endif
