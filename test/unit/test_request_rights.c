/*
 * Who may ask a node for what: the rights of secrets, those of users without secrets, and what a
 * removed secret leaves.
 */
#include "node_rig.h"

#include <string.h>

#include "cleanup.h"

static void give_secret(const char *name, const char *text, unsigned rights)
{
	struct fp_auth_config *auth = &rig.server.config->auth;
	struct fp_node_secret *secret = fp_secrets_add(&auth->secrets);

	assert_non_null(secret);
	auth->given = true;
	secret->name = strdup(name);
	secret->text = strdup(text);
	secret->rights = rights;
}

static struct peer open_with_secret(const char *secret)
{
	struct peer peer = peer_connect_unix();

	peer_set_hello(&peer, FP_WIRE_CONTROL, 0, NULL);
	peer_shake_hands(&peer, secret);
	return peer;
}

static int status_of_answer(struct peer *control)
{
	struct fp_wire_header header;
	const uint8_t *payload;

	assert_true(peer_receive(control, &header, &payload));
	assert_int_equal(header.tag, control->tag);
	return header.status;
}

static void expect_rights(struct peer *control, bool may_lease, bool may_status, bool may_drain)
{
	const int drain = may_drain ? FP_WIRE_OK : FP_WIRE_NOT_PERMITTED;

	peer_send_lease(control, MIB);
	assert_int_equal(status_of_answer(control), may_lease ? FP_WIRE_OK : FP_WIRE_NOT_PERMITTED);
	peer_send_adopt(control, &control->welcome); /* adopting itself is refused even with the right */
	assert_int_equal(status_of_answer(control), may_lease ? FP_WIRE_BAD_VALUE : FP_WIRE_NOT_PERMITTED);
	peer_send(control, FP_WIRE_STATUS, NULL, 0);
	assert_int_equal(status_of_answer(control), may_status ? FP_WIRE_OK : FP_WIRE_NOT_PERMITTED);
	peer_send(control, FP_WIRE_DRAIN, NULL, 0);
	assert_int_equal(status_of_answer(control), drain);
	assert_int_equal(rig.server.draining, may_drain);
	peer_send(control, FP_WIRE_UNDRAIN, NULL, 0);
	assert_int_equal(status_of_answer(control), drain);
	assert_false(rig.server.draining);
}

static void test_rights_of_secrets(void **state)
{
	static const char *const texts[] = {"a secret with no right", "a secret that leases",
	                                    "a secret that looks", "a secret that manages"};
	static const unsigned rights[] = {0, FP_RIGHT_LEASE, FP_RIGHT_STATUS, FP_RIGHT_ADMIN};

	for (size_t i = 0; i < FP_ARRAY_LEN(texts); i++)
		give_secret(texts[i], texts[i], rights[i]);
	for (size_t i = 0; i < FP_ARRAY_LEN(texts); i++) {
		struct peer peer = open_with_secret(texts[i]);

		expect_rights(&peer, rights[i] == FP_RIGHT_LEASE, rights[i] == FP_RIGHT_STATUS,
		              rights[i] == FP_RIGHT_ADMIN);
		peer_close(&peer);
	}
}

/* Without secrets anybody leases; only the node's own user, on a UNIX socket, drains it. */
static void test_rights_without_secrets(void **state)
{
	struct peer near = peer_open(false, 0), over_tcp = peer_open(true, 0);

	expect_rights(&near, true, true, true);
	expect_rights(&over_tcp, true, true, false);
	peer_close(&near);
	peer_close(&over_tcp);
}

/* A secret that is removed takes its rights with it. Its clients still use their leases. */
static void test_removed_secret(void **state)
{
	const char *text = "a secret for a while";
	struct fp_secrets none;
	struct peer control;
	uint32_t id;

	give_secret("a", text, FP_RIGHTS_ALL);
	control = open_with_secret(text);
	id = peer_lease(&control, MIB);
	fp_secrets_init(&none);
	fp_secrets_swap(&rig.server.config->auth.secrets, &none);
	expect_rights(&control, false, false, false);
	peer_send_id(&control, FP_WIRE_ATTACH, id);
	peer_expect_leased(&control, FP_WIRE_ATTACHED);
	peer_send_id(&control, FP_WIRE_RELEASE, id);
	peer_expect(&control, FP_WIRE_RELEASED, 0);
	fp_secrets_done(&none);
	peer_close(&control);
}

/*
 * Somebody may overhear a token. If the node has secrets, the token gives no access to another
 * client's memory.
 */
static void test_adopt_of_another_client(void **state)
{
	struct peer parent, child, stranger;

	give_secret("one", "the first of two secrets", FP_RIGHTS_ALL);
	give_secret("two", "the second of two secrets", FP_RIGHTS_ALL);
	parent = open_with_secret("the first of two secrets");
	child = open_with_secret("the first of two secrets");
	stranger = open_with_secret("the second of two secrets");
	peer_lease(&parent, MIB);
	peer_send_adopt(&stranger, &parent.welcome);
	peer_expect_refusal(&stranger, FP_WIRE_GONE, FP_REFUSAL_SESSION);
	peer_send_adopt(&child, &parent.welcome);
	peer_expect(&child, FP_WIRE_ADOPTED, sizeof(struct fp_wire_adopted));
	peer_close(&parent);
	peer_close(&child);
	peer_close(&stranger);
}

static void test_drain(void **state)
{
	struct peer control = peer_open(false, 0), other = peer_open(true, 0);
	struct fp_wire_drained drained;

	peer_lease(&other, 3 * MIB);
	peer_send(&control, FP_WIRE_DRAIN, NULL, 0);
	assert_int_equal(fp_wire_drained_decode(peer_expect(&control, FP_WIRE_DRAINED, sizeof(drained)),
	                                        sizeof(drained), &drained),
	                 0);
	assert_int_equal(drained.sessions, 2);
	assert_int_equal(drained.leased_bytes, 3 * MIB);
	peer_send_lease(&other, MIB);
	peer_expect_refusal(&other, FP_WIRE_DRAINING, FP_REFUSAL_DRAINING);
	peer_send(&control, FP_WIRE_UNDRAIN, NULL, 0);
	peer_expect(&control, FP_WIRE_UNDRAINED, 0);
	peer_lease(&other, MIB);
	peer_close(&control);
	peer_close(&other);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, node_rig_setup, node_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_rights_of_secrets),
	    TEST(test_rights_without_secrets),
	    TEST(test_removed_secret),
	    TEST(test_adopt_of_another_client),
	    TEST(test_drain),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
