/*
 * Mutual challenge-response over a shared secret: each side proves that it knows the secret, which
 * never travels. Room: transport; the daemon uses it for the node's proof. A proof is
 *
 *   HMAC-SHA256(secret, label || HELLO || CHALLENGE [|| WELCOME with its proof zeroed])
 *
 * label is "farpage/1 client" or "farpage/1 server"; the messages are the payloads as on the wire.
 * A proof covers both nonces and every parameter of the handshake. So nothing can be replayed,
 * reflected or downgraded. HMAC: RFC 2104; the pattern: ISO/IEC 9798-4, three passes.
 */
#ifndef FP_AUTH_H
#define FP_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* Fills bytes from the kernel's generator, for nonces and tokens. 0 or a negative errno. */
int fp_auth_random(void *ret_bytes, size_t len);

/* The client's proof; zeros if secret is NULL. Returns 0. */
int fp_auth_prove_client(const char *secret, const struct fp_wire_hello *hello,
                         const struct fp_wire_challenge *challenge, uint8_t ret_proof[FP_WIRE_PROOF_BYTES]);

/*
 * The node's proof. It also covers welcome, but not welcome->proof. Zeros if secret is NULL.
 * Returns 0.
 */
int fp_auth_prove_server(const char *secret, const struct fp_wire_hello *hello,
                         const struct fp_wire_challenge *challenge, const struct fp_wire_welcome *welcome,
                         uint8_t ret_proof[FP_WIRE_PROOF_BYTES]);

/*
 * The proof in the private data of a connection request: the first FP_WIRE_CM_PROOF_BYTES of
 * HMAC-SHA256(the session's token, "farpage/1 cm" || cm up to its proof). It keeps strangers from
 * queue pairs. A stranger may replay it, but reaches no memory without the keys of the leases.
 * Returns 0.
 */
int fp_auth_prove_cm(const uint8_t token[FP_WIRE_TOKEN_BYTES], const struct fp_wire_cm *cm,
                     uint8_t ret_proof[FP_WIRE_CM_PROOF_BYTES]);

/* Compares proofs or tokens in a time that does not depend on their content. */
bool fp_auth_equal(const void *a, const void *b, size_t len);

#endif
