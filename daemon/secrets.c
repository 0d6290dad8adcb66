/*
 * The secrets of a node. Room: daemon; see secrets.h.
 */
#include "secrets.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "auth.h"
#include "cleanup.h"
#include "client.h"
#include "log.h"
#include "secret.h"

#define MIN_BYTES 16

static const char *const right_names[] = {"lease", "status", "admin"};
static const char name_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

void fp_secrets_init(struct fp_secrets *secrets)
{
	*secrets = (struct fp_secrets){.n = 0};
}

void fp_secrets_done(struct fp_secrets *secrets)
{
	for (unsigned i = 0; i < secrets->n; i++) {
		struct fp_node_secret *secret = &secrets->items[i];

		free(secret->name);
		free(secret->file);
		fp_conf_strings_done(&secret->rights_said);
		fp_secret_free(secret->text);
	}
	free(secrets->items);
}

struct fp_node_secret *fp_secrets_add(struct fp_secrets *secrets)
{
	struct fp_node_secret *items = reallocarray(secrets->items, secrets->n + 1, sizeof(*items));

	if (!items)
		return NULL;
	secrets->items = items;
	items[secrets->n] = (struct fp_node_secret){.rights = FP_RIGHT_LEASE};
	return &items[secrets->n++];
}

/* ---- reading ---- */

static int check_name(const struct fp_secrets *secrets, const struct fp_node_secret *secret,
                      struct fp_conf_error *error)
{
	if (!secret->name[0] || strlen(secret->name) >= FP_CLIENT_NAME_LEN ||
	    secret->name[strspn(secret->name, name_chars)])
		return fp_conf_refuse(error,
		                      "auth.secrets: a name must be 1 to %d letters, digits, '.', '_' or '-'",
		                      FP_CLIENT_NAME_LEN - 1);
	if (fp_secrets_find(secrets, secret->name) != secret)
		return fp_conf_refuse(error, "auth.secrets: there are two with the name '%s'", secret->name);
	return 0;
}

static int read_rights(struct fp_node_secret *secret, struct fp_conf_error *error)
{
	const struct fp_conf_strings *said = &secret->rights_said;

	if (said->given)
		secret->rights = 0;
	for (size_t i = 0; i < said->n; i++) {
		unsigned right = 0;

		while (right < FP_ARRAY_LEN(right_names) && strcmp(said->items[i], right_names[right]) != 0)
			right++;
		if (right == FP_ARRAY_LEN(right_names))
			return fp_conf_refuse(
			    error,
			    "auth.secrets: %s: no right is called '%.60s'; there are lease, "
			    "status and admin",
			    secret->name, said->items[i]);
		secret->rights |= 1u << right;
	}
	return 0;
}

/* Other users must not be able to read the file. */
static int read_text(struct fp_node_secret *secret, struct fp_conf_error *error)
{
	struct stat st;
	char why[64];
	int r;

	if (stat(secret->file, &st) == 0 && (!S_ISREG(st.st_mode) || st.st_mode & S_IROTH))
		return fp_conf_refuse(
		    error,
		    "auth: secret_file: %s must be a regular file that others can't read: chmod o-r it",
		    secret->file);
	r = fp_secret_read(secret->file, &secret->text);
	if (r < 0)
		return fp_conf_refuse(error, "auth: secret_file: %s: %s", secret->file,
		                      r == -ENODATA ? "its first line, which is the secret, is empty"
		                                    : fp_strerror(r, why, sizeof(why)));
	if (strlen(secret->text) < MIN_BYTES)
		return fp_conf_refuse(
		    error,
		    "auth: the secret in %s must have %d to %d bytes; make one with: openssl rand -hex 32",
		    secret->file, MIN_BYTES, FP_SECRET_MAX_BYTES);
	return 0;
}

/* Two equal secrets would be one client. */
static int check_unlike(const struct fp_secrets *secrets, const struct fp_node_secret *secret,
                        struct fp_conf_error *error)
{
	for (const struct fp_node_secret *s = secrets->items; s < secret; s++)
		if (strcmp(s->text, secret->text) == 0)
			return fp_conf_refuse(error, "auth.secrets: %s and %s are the same secret", s->name,
			                      secret->name);
	return 0;
}

int fp_secrets_read(struct fp_secrets *secrets, struct fp_conf_error *error)
{
	int r = 0;

	if (secrets->n > FP_MAX_SECRETS)
		return fp_conf_refuse(error, "auth.secrets: there may be %d at most", FP_MAX_SECRETS);
	for (unsigned i = 0; r == 0 && i < secrets->n; i++) {
		struct fp_node_secret *secret = &secrets->items[i];

		r = check_name(secrets, secret, error);
		if (r == 0)
			r = read_rights(secret, error);
		if (r == 0)
			r = read_text(secret, error);
		if (r == 0)
			r = check_unlike(secrets, secret, error);
	}
	return r;
}

void fp_secrets_swap(struct fp_secrets *a, struct fp_secrets *b)
{
	struct fp_secrets other = *a;

	*a = *b;
	*b = other;
}

/* ---- finding ---- */

const struct fp_node_secret *fp_secrets_find(const struct fp_secrets *secrets, const char *name)
{
	for (unsigned i = 0; i < secrets->n; i++)
		if (strcmp(secrets->items[i].name, name) == 0)
			return &secrets->items[i];
	return NULL;
}

const struct fp_node_secret *fp_secrets_proven(const struct fp_secrets *secrets,
                                               const struct fp_wire_hello *hello,
                                               const struct fp_wire_challenge *challenge,
                                               const uint8_t proof[FP_WIRE_PROOF_BYTES])
{
	const struct fp_node_secret *proven = NULL;
	uint8_t right[FP_WIRE_PROOF_BYTES];

	for (unsigned i = 0; i < secrets->n; i++)
		if (fp_auth_prove_client(secrets->items[i].text, hello, challenge, right) == 0 &&
		    fp_auth_equal(right, proof, sizeof(right)))
			proven = &secrets->items[i];
	return proven;
}
