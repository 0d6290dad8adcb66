/*
 * Proofs: compared with values computed independently from doc/protocol.md, and changed by each
 * field that they must cover. OpenSSL must keep no memory for them, because that could be far
 * memory of the program.
 */
#include "auth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include <cmocka.h>

#define SECRET      "a shared secret of some length"
#define LONG_SECRET SECRET SECRET SECRET

struct talk {
	struct fp_wire_hello hello;
	struct fp_wire_challenge challenge;
	struct fp_wire_welcome welcome;
};

static struct talk talk_example(void)
{
	struct talk t = {
	    .hello = {.min_version = 1, .max_version = 1, .purpose = FP_WIRE_CONTROL},
	    .challenge = {.version = 1, .flags = FP_WIRE_CHALLENGE_AUTH},
	    .welcome = {.version = 1, .session_id = 7, .max_payload = 4195336, .max_outstanding = 64},
	};

	for (uint8_t i = 0; i < 32; i++) {
		t.hello.nonce[i] = i;
		t.challenge.nonce[i] = (uint8_t)(32 + i);
	}
	fp_wire_name_set(t.hello.client_name, "client");
	memset(t.welcome.token, 0xaa, sizeof(t.welcome.token));
	return t;
}

/* HMAC-SHA256 of labels and payloads, computed by another implementation. */
static const uint8_t client_proof[32] = {
    0x73, 0x61, 0xeb, 0x1d, 0x92, 0xbd, 0xe7, 0xb2, 0xf4, 0x79, 0x5f, 0xd2, 0x51, 0xc0, 0xd8, 0xc6,
    0x79, 0x96, 0xab, 0x07, 0x5d, 0x48, 0xe6, 0xd8, 0x4c, 0xf5, 0xd1, 0x05, 0x3e, 0x35, 0x01, 0x70,
};
static const uint8_t server_proof[32] = {
    0x29, 0xbc, 0x5f, 0xc4, 0x42, 0x8f, 0x10, 0x0e, 0x23, 0xcf, 0xe4, 0x33, 0x87, 0x1d, 0x15, 0xa6,
    0xc8, 0xf0, 0x6d, 0x16, 0xf2, 0xe4, 0x0e, 0xa1, 0x01, 0xa3, 0xe2, 0xcd, 0x3a, 0x81, 0x5d, 0x72,
};

static void known_proofs(void **state)
{
	struct talk t = talk_example();
	uint8_t proof[FP_WIRE_PROOF_BYTES];

	assert_int_equal(fp_auth_prove_client(SECRET, &t.hello, &t.challenge, proof), 0);
	assert_memory_equal(proof, client_proof, sizeof(proof));
	assert_int_equal(fp_auth_prove_server(SECRET, &t.hello, &t.challenge, &t.welcome, proof), 0);
	assert_memory_equal(proof, server_proof, sizeof(proof));
	memset(t.welcome.proof, 0xff, sizeof(t.welcome.proof)); /* the proof does not cover itself */
	assert_int_equal(fp_auth_prove_server(SECRET, &t.hello, &t.challenge, &t.welcome, proof), 0);
	assert_memory_equal(proof, server_proof, sizeof(proof));
}

/* A secret that is longer than a block of the hash. */
static void long_secret(void **state)
{
	static const uint8_t expected[FP_WIRE_PROOF_BYTES] = {
	    0x0a, 0xb9, 0x44, 0x52, 0x08, 0xbd, 0x18, 0x5c, 0x0c, 0x57, 0x68, 0x9e, 0x98, 0x8b, 0x9f, 0x86,
	    0xf2, 0x6d, 0xde, 0xdf, 0xd1, 0x1c, 0x4c, 0x05, 0x1f, 0xcf, 0x08, 0xe0, 0x23, 0x81, 0xbf, 0xef,
	};
	struct talk t = talk_example();
	uint8_t proof[FP_WIRE_PROOF_BYTES];

	assert_int_equal(fp_auth_prove_client(LONG_SECRET, &t.hello, &t.challenge, proof), 0);
	assert_memory_equal(proof, expected, sizeof(proof));
}

static void no_secret_is_zeros(void **state)
{
	static const uint8_t zeros[FP_WIRE_PROOF_BYTES];
	struct talk t = talk_example();
	uint8_t proof[FP_WIRE_PROOF_BYTES];

	assert_int_equal(fp_auth_prove_client(NULL, &t.hello, &t.challenge, proof), 0);
	assert_memory_equal(proof, zeros, sizeof(proof));
	assert_int_equal(fp_auth_prove_server(NULL, &t.hello, &t.challenge, &t.welcome, proof), 0);
	assert_memory_equal(proof, zeros, sizeof(proof));
}

static void assert_changes(const struct talk *t, const char *secret)
{
	uint8_t proof[FP_WIRE_PROOF_BYTES];

	assert_int_equal(fp_auth_prove_server(secret, &t->hello, &t->challenge, &t->welcome, proof), 0);
	assert_memory_not_equal(proof, server_proof, sizeof(proof));
}

#define changed(change)                                                                                      \
	do {                                                                                                 \
		struct talk t = talk_example();                                                              \
                                                                                                             \
		change;                                                                                      \
		assert_changes(&t, SECRET);                                                                  \
	} while (0)

static void everything_counts(void **state)
{
	struct talk unchanged = talk_example();

	assert_changes(&unchanged, "a shared secret of some lengtH");
	changed(t.hello.nonce[31] ^= 1);
	changed(t.hello.min_version = 0);
	changed(t.hello.max_version = 2);
	changed(t.hello.purpose = FP_WIRE_LINK);
	changed(t.hello.features = 1);
	changed(t.hello.session_id = 1);
	changed(t.hello.client_name[0] = 'C');
	changed(t.challenge.nonce[0] ^= 0x80);
	changed(t.challenge.version = 2);
	changed(t.challenge.flags = 0);
	changed(t.welcome.session_id = 8);
	changed(t.welcome.token[15] = 0);
	changed(t.welcome.features = 1);
	changed(t.welcome.max_outstanding = 65);
	changed(t.welcome.grace_ms = 1);
	changed(t.welcome.idle_ms = 1);
}

/* Expected values come from another implementation, as above. */
static void cm_proofs(void **state)
{
	static const uint8_t expected[FP_WIRE_CM_PROOF_BYTES] = {
	    0x1b, 0x91, 0x7e, 0x39, 0xe6, 0x80, 0x48, 0x61, 0x69, 0x1c, 0xc8, 0xed, 0xf9, 0x77, 0x9b, 0x0a,
	};
	struct fp_wire_cm cm = {.min_version = 1, .max_version = 1, .purpose = FP_WIRE_LINK, .session_id = 7};
	uint8_t token[FP_WIRE_TOKEN_BYTES], proof[FP_WIRE_CM_PROOF_BYTES];

	for (unsigned i = 0; i < sizeof(cm.nonce); i++)
		cm.nonce[i] = (uint8_t)i;
	memset(token, 0xaa, sizeof(token));
	assert_int_equal(fp_auth_prove_cm(token, &cm, proof), 0);
	assert_memory_equal(proof, expected, sizeof(proof));
	memset(cm.proof, 0xff, sizeof(cm.proof)); /* the proof does not cover itself */
	assert_int_equal(fp_auth_prove_cm(token, &cm, proof), 0);
	assert_memory_equal(proof, expected, sizeof(proof));
	cm.session_id = 8;
	assert_int_equal(fp_auth_prove_cm(token, &cm, proof), 0);
	assert_memory_not_equal(proof, expected, sizeof(proof));
	cm.session_id = 7;
	token[15] ^= 1;
	assert_int_equal(fp_auth_prove_cm(token, &cm, proof), 0);
	assert_memory_not_equal(proof, expected, sizeof(proof));
}

static unsigned n_allocations;

static void *allocate(size_t size, const char *file, int line)
{
	n_allocations++;
	return malloc(size);
}

static void *reallocate(void *ptr, size_t size, const char *file, int line)
{
	n_allocations++;
	return realloc(ptr, size);
}

static void release(void *ptr, const char *file, int line)
{
	free(ptr);
}

/*
 * OpenSSL would keep what it allocated and use it the next time. By then it could be far memory of
 * the program.
 */
static void nothing_is_kept(void **state)
{
	assert_int_equal(n_allocations, 0);
}

static void comparison(void **state)
{
	uint8_t a[32] = {0}, b[32] = {0};

	assert_true(fp_auth_equal(a, b, sizeof(a)));
	b[31] = 1;
	assert_false(fp_auth_equal(a, b, sizeof(a)));
	assert_true(fp_auth_equal(a, b, 31));
}

static void random_differs(void **state)
{
	uint8_t a[32] = {0}, b[32] = {0};

	assert_int_equal(fp_auth_random(a, sizeof(a)), 0);
	assert_int_equal(fp_auth_random(b, sizeof(b)), 0);
	assert_memory_not_equal(a, b, sizeof(a));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(known_proofs),      cmocka_unit_test(no_secret_is_zeros),
	    cmocka_unit_test(everything_counts), cmocka_unit_test(comparison),
	    cmocka_unit_test(random_differs),    cmocka_unit_test(cm_proofs),
	    cmocka_unit_test(long_secret),       cmocka_unit_test(nothing_is_kept), /* by any test */
	};

	if (!CRYPTO_set_mem_functions(allocate, reallocate, release))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
