/*
 * Leases that several sessions share: which sessions may read and write them, and when their memory
 * is freed. Over shm the adopter reads by an inherited mapping, as a forked child does.
 */
#include "family.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- readers and writers ---- */

static void reads_what_was_written(void **state)
{
	struct bed *bed = *state;
	const struct fp_lease *lease;

	family_holder_adopt(bed, &bed->child, &bed->parent);
	family_assert_marks(bed, &bed->child);
	family_assert_marks(bed, &bed->parent);
	assert_true(family_free_bytes(bed) == POOL_BYTES - N_LEASES * MIB); /* adopted bytes count once */
	assert_true(family_status_says(bed, "\"adopted_leases\":2,"));
	if (rig_load_store())
		assert_int_equal(fp_session_attach(bed->child.session, bed->ids[0], &lease), -EPERM);
	/*
	 * The adopter also sees later writes. So a session that needs the old bytes must prevent
	 * such writes.
	 */
	family_mark(bed->parent.link, bed->ids[0], 0x77);
	family_mark(bed->parent.link, bed->ids[0], (uint8_t)bed->ids[0]);
	family_assert_marks(bed, &bed->child);
}

/* Parent and child read the same leases at the same time, by requests of many segments. */
static void reads_along_with_its_parent(void **state)
{
	struct bed *bed = *state;
	struct holder *holders[] = {&bed->parent, &bed->child};
	struct job *jobs[8];

	family_skip_if_mapped("a mapping is read by loads");
	family_holder_adopt(bed, &bed->child, &bed->parent);
	for (unsigned i = 0; i < FP_ARRAY_LEN(jobs); i++) {
		jobs[i] = job_new(FP_IO_READ, bed->ids[i / 2 % 2], 0, 64, MIB / 64);
		assert_int_equal(fp_link_submit(holders[i % 2]->link, &jobs[i]->io), 0);
	}
	for (unsigned i = 0; i < FP_ARRAY_LEN(jobs); i++)
		(void)rig_await(holders[i % 2]->link);
	for (unsigned i = 0; i < FP_ARRAY_LEN(jobs); i++) {
		assert_int_equal(jobs[i]->io.status, 0);
		assert_filled(jobs[i]->buf, (uint8_t)bed->ids[i / 2 % 2], IO_BYTES);
		assert_filled(jobs[i]->buf + IO_BYTES, 0, OTHER_BYTES - IO_BYTES);
		assert_filled(jobs[i]->buf + OTHER_BYTES, (uint8_t)bed->ids[i / 2 % 2], IO_BYTES);
		job_free(jobs[i]);
	}
}

/*
 * A denied request has no effect. Even those of its segments that the child may write are not
 * written. The link goes on.
 */
static void write_is_denied(void **state)
{
	struct bed *bed = *state;
	const struct fp_lease *own;
	uint8_t bytes[IO_BYTES];
	struct job *job;

	family_holder_adopt(bed, &bed->child, &bed->parent);
	assert_int_equal(fp_session_lease(bed->child.session, MIB, &own), 0);
	memset(bytes, 0x99, sizeof(bytes));
	for (unsigned i = 0; i < N_LEASES; i++)
		assert_int_equal(rig_write(bed->child.link, bed->ids[i], 0, bytes, sizeof(bytes)), -EACCES);
	job = job_new(FP_IO_WRITE, own->id, 0, 3, IO_BYTES);
	memset(job->buf, 0x99, job->len);
	job->segs[1].lease_id = bed->ids[0];
	assert_int_equal(rig_run(bed->child.link, job), -EACCES);
	job_free(job);
	assert_int_equal(rig_read(bed->child.link, own->id, 0, bytes, sizeof(bytes)), 0);
	assert_filled(bytes, 0, sizeof(bytes));
	family_assert_marks(bed, &bed->child);
	family_mark(bed->child.link, own->id, 0x33);
	assert_int_equal(rig_read(bed->child.link, own->id, 0, bytes, sizeof(bytes)), 0);
	assert_filled(bytes, 0x33, sizeof(bytes));
	family_assert_marks(bed, &bed->parent);
}

/*
 * A client may omit the check of its own writes. Then the node, or the node's device, denies the
 * write and breaks the link.
 */
static void write_of_a_cheat_is_denied(void **state)
{
	struct bed *bed = *state;
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;
	unsigned long denied_before;
	uint8_t bytes[IO_BYTES];
	int r;

	family_skip_if_mapped("who has a mapping may write it: the store does not");
	family_holder_adopt(bed, &bed->child, &bed->parent);
	denied_before = family_denied(bed);
	memset(bytes, 0x99, sizeof(bytes));
	for (unsigned i = 0; i < N_LEASES; i++) {
		((struct fp_lease *)bed->child.leases[i])->read_only = false;
		r = rig_write(bed->child.link, bed->ids[i], 0, bytes, sizeof(bytes));
		assert_true(r < 0 && (rig_keyed() || r == -EACCES));
		fp_link_close(fp_take_ptr(bed->child.link));
		assert_int_equal(fp_link_open(bed->child.session, &bed->child.link), 0);
		family_assert_marks(bed, &bed->child);
	}
	family_assert_marks(bed, &bed->parent);
	while (family_denied(bed) < denied_before + N_LEASES) {
		assert_true(fp_clock_ns() < end_ns);
		poll(NULL, 0, 5);
	}
}

static void later_leases_are_others(void **state)
{
	struct bed *bed = *state;
	const struct fp_lease *own;

	family_holder_adopt(bed, &bed->child, &bed->parent);
	assert_int_equal(fp_session_lease(bed->child.session, MIB, &own), 0);
	assert_int_not_equal(own->id, bed->ids[0]);
	assert_int_not_equal(own->id, bed->ids[1]);
	assert_false(own->read_only);
	family_mark(bed->child.link, own->id, 0x44);
	assert_int_equal(fp_session_release(bed->child.session, own->id), 0);
	family_assert_marks(bed, &bed->child);
	family_await_free(bed, POOL_BYTES - N_LEASES * MIB);
}

static void over_quota(void **state)
{
	struct bed *bed = *state;
	const struct fp_lease *own;

	family_holder_adopt(bed, &bed->child, &bed->parent); /* the bytes of one client count only once */
	assert_int_equal(fp_session_lease(bed->child.session, 2 * MIB, &own), -EDQUOT);
	assert_int_equal(fp_session_lease(bed->child.session, MIB, &own), 0);
	family_holder_adopt(bed, &bed->grandchild, &bed->child);
	assert_int_equal(fp_session_lease(bed->grandchild.session, 4096, &own), -EDQUOT);
	family_assert_marks(bed, &bed->grandchild);
}

/* ---- the right to adopt ---- */

static void unknown_sessions_and_wrong_tokens(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity right, wrong;

	assert_int_equal(fp_session_identity(bed->parent.session, &right), 0);
	family_holder_open(bed, &bed->child);
	wrong = right;
	wrong.token[15] ^= 1;
	assert_int_equal(fp_session_adopt(bed->child.session, &wrong, NULL), -ESTALE);
	wrong = right;
	wrong.id += 1000;
	assert_int_equal(fp_session_adopt(bed->child.session, &wrong, NULL), -ESTALE);
	wrong.id = 0;
	assert_int_equal(fp_session_adopt(bed->child.session, &wrong, NULL), -ESTALE);
	assert_int_equal(fp_session_release(bed->child.session, bed->ids[0]), -EACCES);
	/* none of these attempts had an effect */
	family_holder_adopt(bed, &bed->child, &bed->parent);
	family_assert_marks(bed, &bed->child);
	family_holder_leave(&bed->parent, false);
	family_holder_open(bed, &bed->grandchild);
	assert_int_equal(fp_session_adopt(bed->grandchild.session, &right, NULL), -ESTALE);
	family_assert_marks(bed, &bed->child);
}

static void once_and_without_leases(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity parent, child;
	const struct fp_lease *own;

	assert_int_equal(fp_session_identity(bed->parent.session, &parent), 0);
	assert_int_equal(fp_session_adopt(bed->parent.session, &parent, NULL), -EINVAL);
	family_holder_open(bed, &bed->child);
	assert_int_equal(fp_session_identity(bed->child.session, &child), 0);
	assert_int_equal(fp_session_adopt(bed->child.session, &child, NULL), -EINVAL);
	assert_int_equal(fp_session_lease(bed->child.session, MIB, &own), 0);
	assert_int_equal(fp_session_adopt(bed->child.session, &parent, NULL), -EINVAL);
	assert_int_equal(fp_session_release(bed->child.session, own->id), 0);
	family_holder_adopt(bed, &bed->child, &bed->parent);
	assert_int_equal(fp_session_adopt(bed->child.session, &parent, NULL), -EINVAL);
	assert_int_equal(fp_session_adopt(bed->parent.session, &child, NULL), -EINVAL);
	family_assert_marks(bed, &bed->child);
	family_assert_marks(bed, &bed->parent);
}

/*
 * A child shows the token of its parent's session (bytes from the handshake), to prove that it may
 * adopt. A resume does not change this token. So children need not be told of the resume.
 */
static void token_of_a_resumed_parent(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity before;
	struct fp_session *again;

	family_skip_if_mapped("a mapping does not break, so nothing is resumed");
	assert_int_equal(fp_session_identity(bed->parent.session, &before), 0);
	assert_int_equal(family_resume(bed, &before, &again), 0);
	family_holder_open(bed, &bed->child);
	assert_int_equal(fp_session_adopt(bed->child.session, &before, NULL), 0);
	family_holder_attach(bed, &bed->child);
	family_holder_leave(&bed->parent, true);
	bed->parent.session = again;
	assert_int_equal(fp_session_ping(again, 0, 0), 0);
	family_holder_open(bed, &bed->grandchild);
	assert_int_equal(fp_session_adopt(bed->grandchild.session, &before, NULL), 0);
	family_holder_attach(bed, &bed->grandchild);
	family_assert_marks(bed, &bed->child);
	family_assert_marks(bed, &bed->grandchild);
}

/* During the grace period of a parent that is cut off, its leases can be adopted. */
static void cut_off_parent(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity identity;

	family_skip_if_mapped("a mapping does not break, so nothing is cut off");
	assert_int_equal(fp_session_identity(bed->parent.session, &identity), 0);
	family_holder_open(bed, &bed->child);
	family_holder_open(bed, &bed->grandchild);
	family_holder_leave(&bed->parent, true);
	family_await_status(bed, "\"state\":\"cut off\"");
	assert_int_equal(fp_session_adopt(bed->child.session, &identity, NULL), 0);
	family_holder_attach(bed, &bed->child);
	family_await_status(bed, "\"sessions_expired\":1,");
	assert_int_equal(fp_session_adopt(bed->grandchild.session, &identity, NULL), -ESTALE);
	family_assert_marks(bed, &bed->child);
	assert_true(family_free_bytes(bed) == POOL_BYTES - N_LEASES * MIB);
	family_holder_leave(&bed->child, false);
	assert_true(family_free_bytes(bed) == POOL_BYTES);
}

/* ---- when the memory is freed ---- */

static void release(const struct bed *bed, struct holder *holder)
{
	for (unsigned i = 0; i < N_LEASES; i++) {
		family_unmap(holder, i); /* first, because mapped memory is not freed */
		assert_int_equal(fp_session_release(holder->session, bed->ids[i]), 0);
		assert_int_equal(fp_session_release(holder->session, bed->ids[i]), -EACCES);
	}
}

static void parent_releases(void **state)
{
	struct bed *bed = *state;
	uint8_t bytes[IO_BYTES];

	family_holder_adopt(bed, &bed->child, &bed->parent);
	release(bed, &bed->parent);
	assert_int_equal(rig_read(bed->parent.link, bed->ids[0], 0, bytes, sizeof(bytes)), -EACCES);
	family_assert_marks(bed, &bed->child);
	assert_true(family_free_bytes(bed) == POOL_BYTES - N_LEASES * MIB);
	release(bed, &bed->child);
	assert_true(family_free_bytes(bed) == POOL_BYTES);
}

static void child_releases(void **state)
{
	struct bed *bed = *state;
	uint8_t bytes[IO_BYTES];

	family_holder_adopt(bed, &bed->child, &bed->parent);
	release(bed, &bed->child);
	assert_int_equal(rig_read(bed->child.link, bed->ids[0], 0, bytes, sizeof(bytes)), -EACCES);
	family_assert_marks(bed, &bed->parent);
	assert_true(family_free_bytes(bed) == POOL_BYTES - N_LEASES * MIB);
	release(bed, &bed->parent);
	assert_true(family_free_bytes(bed) == POOL_BYTES);
}

static void parent_ends(void **state)
{
	struct bed *bed = *state;
	const struct fp_lease *all;
	struct holder *child = &bed->child;
	uint8_t bytes[IO_BYTES];
	uint8_t *seen = NULL;
	uint64_t kept_bytes;

	family_holder_adopt(bed, child, &bed->parent);
	family_holder_leave(&bed->parent, false);
	assert_true(family_free_bytes(bed) == POOL_BYTES - N_LEASES * MIB);
	family_assert_marks(bed, child);
	if (child->inherited[0])
		seen = family_inherit(child->inherited[0]);
	family_holder_leave(child, false);
	kept_bytes = seen ? MIB : 0;
	assert_true(family_free_bytes(bed) == POOL_BYTES - kept_bytes);
	/*
	 * New leases read as zeros. A process that still maps the old lease still sees the old
	 * bytes.
	 */
	family_holder_open(bed, child);
	assert_int_equal(fp_session_lease(child->session, POOL_BYTES - kept_bytes, &all), 0);
	assert_int_equal(fp_link_open(child->session, &child->link), 0);
	for (uint64_t at = 0; at < 4 * MIB; at += 63 * IO_BYTES) {
		assert_int_equal(rig_read(child->link, all->id, at, bytes, sizeof(bytes)), 0);
		assert_filled(bytes, 0, sizeof(bytes));
	}
	if (seen) {
		assert_filled(seen, (uint8_t)bed->ids[0], IO_BYTES);
		munmap(seen, MIB);
	}
}

/*
 * The grandchild adopts all leases that the child has: the adopted ones, and the child's own. It
 * may write to none of them.
 */
static void grandchild_outlives_both(void **state)
{
	struct bed *bed = *state;
	const struct fp_lease *own, *lease;
	uint8_t bytes[IO_BYTES];
	uint32_t own_id;

	family_holder_adopt(bed, &bed->child, &bed->parent);
	assert_int_equal(fp_session_lease(bed->child.session, MIB, &own), 0);
	own_id = own->id;
	family_mark(bed->child.link, own_id, 0x55);
	family_holder_adopt(bed, &bed->grandchild, &bed->child);
	assert_true(family_status_says(bed, "\"adopted_leases\":3,"));
	family_holder_leave(&bed->parent, false);
	family_holder_leave(&bed->child, false);
	family_assert_marks(bed, &bed->grandchild);
	assert_true(family_free_bytes(bed) == POOL_BYTES - (N_LEASES + 1) * MIB);
	if (!rig_load_store()) {
		assert_int_equal(fp_session_attach(bed->grandchild.session, own_id, &lease), 0);
		assert_true(lease->read_only);
		assert_int_equal(rig_read(bed->grandchild.link, own_id, 0, bytes, sizeof(bytes)), 0);
		assert_filled(bytes, 0x55, sizeof(bytes));
		assert_int_equal(rig_write(bed->grandchild.link, own_id, 0, bytes, sizeof(bytes)), -EACCES);
	}
	family_holder_leave(&bed->grandchild, false);
	assert_true(family_free_bytes(bed) == POOL_BYTES);
}

static void adopter_is_resumed(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity identity, parent;
	struct fp_session *again;
	uint8_t bytes[IO_BYTES];

	family_skip_if_mapped("a mapping does not break, so nothing is resumed");
	family_holder_adopt(bed, &bed->child, &bed->parent);
	assert_int_equal(fp_session_identity(bed->child.session, &identity), 0);
	assert_int_equal(fp_session_identity(bed->parent.session, &parent), 0);
	assert_int_equal(family_resume(bed, &identity, &again), 0);
	family_holder_leave(&bed->child, true);
	bed->child.session = again;
	assert_int_equal(fp_session_adopt(again, &parent, NULL), -EINVAL);
	family_holder_leave(&bed->parent, false);
	family_holder_attach(bed, &bed->child);
	family_assert_marks(bed, &bed->child);
	memset(bytes, 0x99, sizeof(bytes));
	assert_int_equal(rig_write(bed->child.link, bed->ids[0], 0, bytes, sizeof(bytes)), -EACCES);
	family_assert_marks(bed, &bed->child);
	release(bed, &bed->child);
	assert_true(family_free_bytes(bed) == POOL_BYTES);
}

/*
 * A resume ends the old links of the resumed session only. Other sessions go on reading over their
 * own links and keys.
 */
static void parent_is_resumed(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity identity;
	struct fp_session *again;

	family_skip_if_mapped("a mapping does not break, so nothing is resumed");
	family_holder_adopt(bed, &bed->child, &bed->parent);
	for (unsigned round = 0; round < 3; round++) {
		assert_int_equal(fp_session_identity(bed->parent.session, &identity), 0);
		assert_int_equal(family_resume(bed, &identity, &again), 0);
		family_holder_leave(&bed->parent, true);
		bed->parent.session = again;
		family_assert_marks(bed, &bed->child);
	}
	for (unsigned i = 0; i < N_LEASES; i++) {
		assert_int_equal(fp_session_attach(again, bed->ids[i], &bed->parent.leases[i]), 0);
		assert_false(bed->parent.leases[i]->read_only);
	}
	assert_int_equal(fp_link_open(again, &bed->parent.link), 0);
	family_mark(bed->parent.link, bed->ids[0], (uint8_t)bed->ids[0]);
	family_assert_marks(bed, &bed->parent);
	family_assert_marks(bed, &bed->child);
}

/* ---- processes ---- */

/* A forked process sends its parent a line about each failure. */
#define REQUIRE(condition)                                                                                   \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			dprintf(STDERR_FILENO, "%s:%d: %s\n", __func__, __LINE__, #condition);               \
			_exit(1);                                                                            \
		}                                                                                            \
	} while (0)

static bool link_reads(struct fp_link *link, uint32_t lease_id, uint64_t at, uint8_t value)
{
	uint8_t bytes[IO_BYTES];

	if (rig_read(link, lease_id, at, bytes, sizeof(bytes)) != 0)
		return false;
	for (size_t i = 0; i < sizeof(bytes); i++)
		if (bytes[i] != value)
			return false;
	return true;
}

/*
 * Runs in a child that has a copy of its parent's session. When the parent has ended, the child
 * opens a session of its own and adopts. Before the adoption, the child's copy of the socket keeps
 * the parent's session alive. Over rdma the grace period does so.
 */
static void orphan(const struct bed *bed, struct fp_session *parents, const struct fp_lease *lease,
                   pid_t parent)
{
	struct fp_session_identity identity;
	struct fp_session *own;
	const struct fp_lease *adopted;
	struct fp_link *link;
	const uint8_t *bytes = lease->base;
	uint32_t id = lease->id;

	REQUIRE(fp_session_identity(parents, &identity) == 0);
	while (getppid() == parent)
		poll(NULL, 0, 1);
	if (rig_keyed())
		fp_transport_forked(); /* the parent's devices can't be used in this process */
	REQUIRE(rig_open(&bed->site->url, NULL, 0, &own) == 0);
	REQUIRE(fp_session_adopt(own, &identity, NULL) == 0);
	fp_session_abandon(parents);
	if (rig_load_store()) {
		REQUIRE(bytes[0] == 0x66 && bytes[MIB - 1] == 0);
	} else {
		REQUIRE(fp_session_attach(own, id, &adopted) == 0);
		REQUIRE(fp_link_open(own, &link) == 0);
		REQUIRE(link_reads(link, id, 0, 0x66) && link_reads(link, id, OTHER_BYTES, 0));
		fp_link_close(link);
	}
	fp_session_close(own);
	_exit(0);
}

/*
 * This process takes a lease, writes to it and forks. It tells the test its child's number, and
 * ends before the child has done anything.
 */
static void leave_an_orphan(const struct bed *bed, int says, bool killed)
{
	struct fp_session *session;
	const struct fp_lease *lease;
	struct fp_link *link;
	uint8_t bytes[IO_BYTES];
	pid_t self = getpid(), pid;

	if (rig_keyed())
		fp_transport_forked(); /* this process was forked, too */
	memset(bytes, 0x66, sizeof(bytes));
	REQUIRE(rig_open(&bed->site->url, NULL, 0, &session) == 0);
	REQUIRE(fp_session_lease(session, MIB, &lease) == 0);
	REQUIRE(fp_link_open(session, &link) == 0);
	REQUIRE(rig_write(link, lease->id, 0, bytes, sizeof(bytes)) == 0);
	pid = fork();
	REQUIRE(pid >= 0);
	if (pid == 0) {
		fp_link_close(link);
		orphan(bed, session, lease, self);
	}
	REQUIRE(write(says, &pid, sizeof(pid)) == sizeof(pid));
	if (killed)
		kill(self, SIGKILL);
	_exit(0);
}

static void orphan_adopts(void **state)
{
	struct bed *bed = *state;
	int status, pipe_fds[2];
	pid_t pid, child;

	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* makes this process the parent of orphans */
	for (unsigned killed = 0; killed < 2; killed++) {
		assert_int_equal(pipe(pipe_fds), 0);
		pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			leave_an_orphan(bed, pipe_fds[1], killed);
		close(pipe_fds[1]);
		assert_int_equal(read(pipe_fds[0], &child, sizeof(child)), sizeof(child));
		close(pipe_fds[0]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, killed ? SIGKILL : 0);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
		if (rig_socket()) /* over rdma the leases stay until the parent's grace period ends */
			family_await_free(bed, POOL_BYTES - N_LEASES * MIB);
	}
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

int run_adopt_cases(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, family_setup, family_teardown)
	const struct CMUnitTest tests[] = {
	    CASE(reads_what_was_written),
	    CASE(reads_along_with_its_parent),
	    CASE(write_is_denied),
	    CASE(write_of_a_cheat_is_denied),
	    CASE(later_leases_are_others),
	    cmocka_unit_test_setup_teardown(over_quota, family_setup_quota, family_teardown),
	    CASE(unknown_sessions_and_wrong_tokens),
	    CASE(once_and_without_leases),
	    CASE(token_of_a_resumed_parent),
	    cmocka_unit_test_setup_teardown(cut_off_parent, family_setup_short, family_teardown),
	    CASE(parent_releases),
	    CASE(child_releases),
	    CASE(parent_ends),
	    CASE(grandchild_outlives_both),
	    CASE(adopter_is_resumed),
	    CASE(parent_is_resumed),
	    cmocka_unit_test_setup_teardown(orphan_adopts, family_setup_plain, family_teardown),
	};

	return cmocka_run_group_tests_name("adopt", tests, family_setup_shared, family_teardown_shared);
}
