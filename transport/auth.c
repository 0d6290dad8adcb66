/*
 * Proofs, nonces and the comparison that leaks no timing. Room: transport; the only file that talks to
 * OpenSSL.
 */
#include "auth.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#define LABEL_BYTES 16

static_assert(sizeof("farpage/1 client") == LABEL_BYTES + 1, "labels are of one length");

/* What a proof is computed over, as on the wire. */
struct transcript {
	uint8_t label[LABEL_BYTES];
	uint8_t hello[sizeof(struct fp_wire_hello)];
	uint8_t challenge[sizeof(struct fp_wire_challenge)];
	uint8_t welcome[sizeof(struct fp_wire_welcome)];
};

int fp_auth_random(void *ret_bytes, size_t len)
{
	uint8_t *out = ret_bytes;

	while (len > 0) {
		ssize_t n = getrandom(out, len, 0);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			out += n;
			len -= (size_t)n;
		}
	}
	return 0;
}

/* The first ret_len bytes; zeros where there is no key. */
static int hmac(const void *key, size_t key_len, const void *bytes, size_t len, uint8_t *ret_proof,
                size_t ret_len)
{
	uint8_t proof[EVP_MAX_MD_SIZE] = {0};

	if (key && !HMAC(EVP_sha256(), key, (int)key_len, bytes, len, proof, NULL))
		return -ENOMEM;
	memcpy(ret_proof, proof, ret_len);
	return 0;
}

static int prove(const char *secret, const struct transcript *t, size_t len,
                 uint8_t ret_proof[FP_WIRE_PROOF_BYTES])
{
	return hmac(secret, secret ? strlen(secret) : 0, t, len, ret_proof, FP_WIRE_PROOF_BYTES);
}

int fp_auth_prove_client(const char *secret, const struct fp_wire_hello *hello,
                         const struct fp_wire_challenge *challenge, uint8_t ret_proof[FP_WIRE_PROOF_BYTES])
{
	struct transcript t;

	memcpy(t.label, "farpage/1 client", sizeof(t.label));
	fp_wire_hello_encode(hello, t.hello);
	fp_wire_challenge_encode(challenge, t.challenge);
	return prove(secret, &t, offsetof(struct transcript, welcome), ret_proof);
}

int fp_auth_prove_server(const char *secret, const struct fp_wire_hello *hello,
                         const struct fp_wire_challenge *challenge, const struct fp_wire_welcome *welcome,
                         uint8_t ret_proof[FP_WIRE_PROOF_BYTES])
{
	struct fp_wire_welcome granted = *welcome;
	struct transcript t;

	memset(granted.proof, 0, sizeof(granted.proof));
	memcpy(t.label, "farpage/1 server", sizeof(t.label));
	fp_wire_hello_encode(hello, t.hello);
	fp_wire_challenge_encode(challenge, t.challenge);
	fp_wire_welcome_encode(&granted, t.welcome);
	return prove(secret, &t, sizeof(t), ret_proof);
}

int fp_auth_prove_cm(const char *secret, const uint8_t token[FP_WIRE_TOKEN_BYTES],
                     const struct fp_wire_cm *cm, uint8_t ret_proof[FP_WIRE_CM_PROOF_BYTES])
{
	static const char label[] = "farpage/1 cm";
	const size_t label_len = sizeof(label) - 1, head_len = offsetof(struct fp_wire_cm, proof);
	bool by_token = cm->purpose == FP_WIRE_LINK;
	const void *key = by_token ? (const void *)token : secret;
	size_t key_len = by_token ? FP_WIRE_TOKEN_BYTES : secret ? strlen(secret) : 0;
	uint8_t bytes[sizeof(label) - 1 + sizeof(*cm)];

	memcpy(bytes, label, label_len);
	fp_wire_cm_encode(cm, bytes + label_len);
	return hmac(key, key_len, bytes, label_len + head_len, ret_proof, FP_WIRE_CM_PROOF_BYTES);
}

bool fp_auth_equal(const void *a, const void *b, size_t len)
{
	return CRYPTO_memcmp(a, b, len) == 0;
}
