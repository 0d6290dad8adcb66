/*
 * The secrets of a node. Room: daemon; see secrets.h.
 */
#include "secrets.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "auth.h"
#include "cleanup.h"
#include "client.h"
#include "secret.h"

#define PATH_LEN 64

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

/*
 * Names a key of a secret: "auth.secrets[2].file". A secret that is in no list has the name
 * auth.secret_file, whatever the key.
 */
static const char *path_of(const struct fp_secrets *secrets, const struct fp_node_secret *secret,
                           const char *key, char buf[PATH_LEN])
{
	if (secret->is_only)
		snprintf(buf, PATH_LEN, "auth.secret_file");
	else
		snprintf(buf, PATH_LEN, "auth.secrets[%u].%s", (unsigned)(secret - secrets->items), key);
	return buf;
}

static int check_name(const struct fp_secrets *secrets, const struct fp_node_secret *secret,
                      const struct fp_conf_places *places, struct fp_conf_error *error)
{
	char path[PATH_LEN];

	path_of(secrets, secret, "name", path);
	if (!secret->name[0] || strlen(secret->name) >= FP_CLIENT_NAME_LEN ||
	    secret->name[strspn(secret->name, name_chars)])
		return fp_conf_refuse(error, places, path, "must be 1 to %d letters, digits, '.', '_' or '-'",
		                      FP_CLIENT_NAME_LEN - 1);
	if (fp_secrets_find(secrets, secret->name) != secret)
		return fp_conf_refuse(error, places, path, "there are two secrets with the name '%s'",
		                      secret->name);
	return 0;
}

static int read_rights(const struct fp_secrets *secrets, struct fp_node_secret *secret,
                       const struct fp_conf_places *places, struct fp_conf_error *error)
{
	const struct fp_conf_strings *said = &secret->rights_said;
	char key[32], path[PATH_LEN];

	if (said->given)
		secret->rights = 0;
	for (size_t i = 0; i < said->n; i++) {
		unsigned right = 0;

		while (right < FP_ARRAY_LEN(right_names) && strcmp(said->items[i], right_names[right]) != 0)
			right++;
		snprintf(key, sizeof(key), "rights[%zu]", i);
		if (right == FP_ARRAY_LEN(right_names))
			return fp_conf_refuse(error, places, path_of(secrets, secret, key, path),
			                      "no right is called '%.60s'; there are lease, status and admin",
			                      said->items[i]);
		secret->rights |= 1u << right;
	}
	return 0;
}

/* "the user farpage" */
static const char *name_user(char *buf, size_t len)
{
	const struct passwd *user = getpwuid(geteuid());

	if (user)
		snprintf(buf, len, "the user %s", user->pw_name);
	else
		snprintf(buf, len, "the user id %u", geteuid());
	return buf;
}

static int read_text(const struct fp_secrets *secrets, struct fp_node_secret *secret,
                     const struct fp_conf_places *places, struct fp_conf_error *error)
{
	char path[PATH_LEN], user[64], why[256];
	int r = fp_secret_read(secret->file, &secret->text);

	if (r == 0)
		return 0;
	fp_secret_explain(r, secret->file, name_user(user, sizeof(user)), why, sizeof(why));
	return fp_conf_refuse(error, places, path_of(secrets, secret, "file", path), "%s: %s", secret->file,
	                      why);
}

/* Two equal secrets would be one client. */
static int check_unlike(const struct fp_secrets *secrets, const struct fp_node_secret *secret,
                        const struct fp_conf_places *places, struct fp_conf_error *error)
{
	char path[PATH_LEN];

	for (const struct fp_node_secret *s = secrets->items; s < secret; s++)
		if (strcmp(s->text, secret->text) == 0)
			return fp_conf_refuse(error, places, path_of(secrets, secret, "file", path),
			                      "%s and %s are the same secret", s->name, secret->name);
	return 0;
}

int fp_secrets_read(struct fp_secrets *secrets, const struct fp_conf_places *places,
                    struct fp_conf_error *error)
{
	int r = 0;

	if (secrets->n > FP_MAX_SECRETS)
		return fp_conf_refuse(error, places, "auth.secrets", "there may be %d at most",
		                      FP_MAX_SECRETS);
	for (unsigned i = 0; r == 0 && i < secrets->n; i++) {
		struct fp_node_secret *secret = &secrets->items[i];

		r = check_name(secrets, secret, places, error);
		if (r == 0)
			r = read_rights(secrets, secret, places, error);
		if (r == 0)
			r = read_text(secrets, secret, places, error);
		if (r == 0)
			r = check_unlike(secrets, secret, places, error);
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
