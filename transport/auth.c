/*
 * Proofs, nonces and a comparison that leaks no timing. Room: transport; the only file that uses
 * OpenSSL. It calls only OpenSSL's old hash functions, because they keep no state. The newer ones
 * keep tables in memory that the program uses too. That memory may be far, and to fetch a far page
 * the agent may first need a proof.
 */
#define OPENSSL_API_COMPAT 0x10100000L
#include "auth.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/sha.h>

#define LABEL_BYTES 16

static_assert(sizeof("farpage/1 client") == LABEL_BYTES + 1, "labels are of one length");

/* The bytes that a proof covers, as on the wire. */
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

/* Not SHA256(), which looks its algorithm up in shared tables. */
static void hash(const void *start, size_t start_len, const void *bytes, size_t len,
                 uint8_t ret_digest[SHA256_DIGEST_LENGTH])
{
	SHA256_CTX context;

	SHA256_Init(&context);
	SHA256_Update(&context, start, start_len);
	SHA256_Update(&context, bytes, len);
	SHA256_Final(ret_digest, &context);
	OPENSSL_cleanse(&context, sizeof(context));
}

static void change(uint8_t block[SHA256_CBLOCK], uint8_t by)
{
	for (unsigned i = 0; i < SHA256_CBLOCK; i++)
		block[i] ^= by;
}

/* Gives the first ret_len bytes of an HMAC-SHA256 (RFC 2104); zeros if there is no key. */
static int hmac(const void *key, size_t key_len, const void *bytes, size_t len, uint8_t *ret_proof,
                size_t ret_len)
{
	uint8_t block[SHA256_CBLOCK] = {0}, inner[SHA256_DIGEST_LENGTH], proof[SHA256_DIGEST_LENGTH] = {0};

	if (key) {
		if (key_len > sizeof(block))
			hash(key, key_len, NULL, 0, block);
		else
			memcpy(block, key, key_len);
		change(block, 0x36);
		hash(block, sizeof(block), bytes, len, inner);
		change(block, 0x36 ^ 0x5c);
		hash(block, sizeof(block), inner, sizeof(inner), proof);
		OPENSSL_cleanse(block, sizeof(block));
	}
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

int fp_auth_prove_cm(const uint8_t token[FP_WIRE_TOKEN_BYTES], const struct fp_wire_cm *cm,
                     uint8_t ret_proof[FP_WIRE_CM_PROOF_BYTES])
{
	static const char label[] = "farpage/1 cm";
	const size_t label_len = sizeof(label) - 1, head_len = offsetof(struct fp_wire_cm, proof);
	uint8_t bytes[sizeof(label) - 1 + sizeof(*cm)];

	memcpy(bytes, label, label_len);
	fp_wire_cm_encode(cm, bytes + label_len);
	return hmac(token, FP_WIRE_TOKEN_BYTES, bytes, label_len + head_len, ret_proof,
	            FP_WIRE_CM_PROOF_BYTES);
}

bool fp_auth_equal(const void *a, const void *b, size_t len)
{
	return CRYPTO_memcmp(a, b, len) == 0;
}
