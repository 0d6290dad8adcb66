/*
 * A session whose leases other sessions adopt, and what the cases about adoption share. Room:
 * test/conformance. A failure in this file fails the calling test.
 */
#ifndef FP_TEST_FAMILY_H
#define FP_TEST_FAMILY_H

#include "rig.h"

#define IO_BYTES    4096u
#define N_LEASES    2u
#define OTHER_BYTES (MIB - IO_BYTES) /* offset of the second mark in a lease */

/* One of the sessions that have the leases. */
struct holder {
	struct fp_session *session;
	struct fp_link *link;
	const struct fp_lease *leases[N_LEASES]; /* over shm only the parent has leases */
	uint8_t *inherited[N_LEASES];            /* over shm: the mappings by which this holder reads them */
};

/* A node, and a client that watches it. Most cases share one node. */
struct site {
	struct test_daemon node;
	struct fp_url url;
	struct fp_session *onlooker;
};

/*
 * A session with N_LEASES leases of a MiB, marked with their ids. There is space for the sessions
 * that adopt them.
 */
struct bed {
	struct site *site, own;
	struct holder parent, child, grandchild;
	uint32_t ids[N_LEASES];
};

/*
 * cmocka fixtures. The first two are for a group: they make and end the node that its cases share.
 * The others are for a case: they make a parent with its leases, on the shared node or on a
 * separate one. A separate node is like the shared one, or has a short grace period, or has a quota
 * of 3 MiB.
 */
int family_setup_shared(void **state);
int family_teardown_shared(void **state);
int family_setup(void **state);
int family_setup_plain(void **state);
int family_setup_short(void **state);
int family_setup_quota(void **state);
int family_teardown(void **state);

/* Writes value where family_assert_marks reads it. */
void family_mark(struct fp_link *link, uint32_t lease_id, uint8_t value);
/* Checks that the holder reads the parent's first bytes. */
void family_assert_marks(const struct bed *bed, const struct holder *holder);
/*
 * Maps the parent's memory a second time, at an address for the child. This takes the place of a
 * fork.
 */
uint8_t *family_inherit(void *base);

/*
 * Parts of family_holder_adopt. The first opens a session. The second attaches all leases, and
 * opens a link.
 */
void family_holder_open(const struct bed *bed, struct holder *holder);
void family_holder_attach(const struct bed *bed, struct holder *holder);
/*
 * Adopts the parent's leases into the holder's session. Opens that session first if there is none.
 */
void family_holder_adopt(const struct bed *bed, struct holder *holder, const struct holder *parent);
/* Unmaps the lease with that index. Does nothing if the lease is not mapped. */
void family_unmap(struct holder *holder, unsigned i);
/* Closes the holder's link, if any, unmaps its leases, and closes or abandons its session. */
void family_holder_leave(struct holder *holder, bool abandons);

/* These read the node's status, through the client that watches the node. */
uint64_t family_free_bytes(const struct bed *bed);
void family_await_free(const struct bed *bed, uint64_t wanted_bytes);
bool family_status_says(const struct bed *bed, const char *text);
void family_await_status(const struct bed *bed, const char *text);
/* The number of requests that the node, or its device, has denied so far. */
unsigned long family_denied(const struct bed *bed);

int family_resume(const struct bed *bed, const struct fp_session_identity *identity,
                  struct fp_session **ret_session);
/* Skips the calling case if it runs over shm. */
void family_skip_if_mapped(const char *why);

#endif
