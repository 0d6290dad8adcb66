/*
 * Sessions and their connections: heartbeats, the ways in which a session ends, and how it survives
 * a lost connection.
 */
#include "rig.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proxy.h"

#define CONFIG_SHORT CONFIG_PLAIN "limits: { grace: 300ms }\n"
#define IO_BYTES     FP_SEG_MAX_BYTES

/*
 * A node, a session, and another client that watches. The session reaches the node by a proxy (tcp)
 * or directly.
 */
struct bed {
	struct test_daemon node;
	struct test_proxy *proxy; /* NULL: this transport has none */
	struct fp_url url, direct;
	struct fp_session *session, *onlooker;
	const struct fp_lease *lease; /* 1 MiB, filled with 0x11 */
	struct fp_link *link;
};

static bool resumable(void)
{
	return !rig_load_store();
}

/* Only over tcp can a proxy simulate a broken cable. Tests of other transports cut real ones. */
static bool has_proxy(void)
{
	return strcmp(rig_scheme, "tcp") == 0;
}

static void skip_unless(bool possible, const char *why)
{
	if (!possible) {
		print_message("skipped over %s: %s\n", rig_scheme, why);
		skip();
	}
}

#define SKIP_UNLESS_RESUMABLE() skip_unless(resumable(), "a mapping does not break, so nothing is resumed")
#define SKIP_UNLESS_PROXY()     skip_unless(has_proxy(), "only tcp has a proxy")

static void fill(struct fp_link *link, uint32_t lease_id, uint64_t offset_bytes, uint8_t value)
{
	uint8_t bytes[IO_BYTES];

	memset(bytes, value, sizeof(bytes));
	assert_int_equal(rig_write(link, lease_id, offset_bytes, bytes, sizeof(bytes)), 0);
}

static void assert_remote(struct fp_link *link, uint32_t lease_id, uint64_t offset_bytes, uint8_t value)
{
	uint8_t bytes[IO_BYTES];

	assert_int_equal(rig_read(link, lease_id, offset_bytes, bytes, sizeof(bytes)), 0);
	assert_filled(bytes, value, sizeof(bytes));
}

static int setup_with(void **state, const char *config)
{
	struct bed *bed = calloc(1, sizeof(*bed));
	char url[64];

	assert_non_null(bed);
	*state = bed;
	assert_int_equal(test_daemon_start_config(rig_farpaged, rig_scheme, config, &bed->node), 0);
	assert_int_equal(fp_url_parse(bed->node.url, &bed->direct), 0);
	bed->url = bed->direct;
	if (has_proxy()) {
		assert_int_equal(test_proxy_start(bed->direct.port, &bed->proxy), 0);
		snprintf(url, sizeof(url), "tcp://127.0.0.1:%u", test_proxy_port(bed->proxy));
		assert_int_equal(fp_url_parse(url, &bed->url), 0);
	}
	assert_int_equal(rig_open(&bed->direct, NULL, 0, &bed->onlooker), 0);
	assert_int_equal(rig_open(&bed->url, NULL, 0, &bed->session), 0);
	assert_int_equal(fp_session_lease(bed->session, MIB, &bed->lease), 0);
	assert_int_equal(fp_link_open(bed->session, &bed->link), 0);
	for (uint64_t at = 0; at < MIB; at += IO_BYTES)
		fill(bed->link, bed->lease->id, at, 0x11);
	return 0;
}

static int setup(void **state)
{
	return setup_with(state, CONFIG_PLAIN);
}

static int setup_short(void **state)
{
	return setup_with(state, CONFIG_SHORT);
}

static int teardown(void **state)
{
	struct bed *bed = *state;

	fp_link_close(bed->link);
	fp_session_close(bed->session);
	fp_session_close(bed->onlooker);
	test_proxy_stop(bed->proxy);
	test_daemon_stop(&bed->node);
	free(bed);
	return 0;
}

static uint64_t free_bytes(const struct bed *bed)
{
	struct fp_node_info info;

	assert_int_equal(fp_session_info(bed->onlooker, &info), 0);
	return info.free_bytes;
}

static void await_free(const struct bed *bed, uint64_t wanted_bytes)
{
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;

	while (free_bytes(bed) != wanted_bytes) {
		assert_true(fp_clock_ns() < end_ns);
		poll(NULL, 0, 5);
	}
}

static void await_status(const struct bed *bed, const char *text)
{
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;

	for (bool there = false; !there;) {
		char *json;

		assert_true(fp_clock_ns() < end_ns);
		assert_int_equal(fp_session_status(bed->onlooker, &json), 0);
		there = strstr(json, text);
		free(json);
		poll(NULL, 0, there ? 0 : 5);
	}
}

static int resume(const struct fp_url *url, const struct fp_session_identity *identity,
                  struct fp_session **ret_session)
{
	struct fp_session_options options = {.client_name = "conformance",
	                                     .secret = rig_secret(NULL),
	                                     .deadline_ns = PATIENCE_NS,
	                                     .resume = identity};

	return fp_session_open(url, &options, ret_session);
}

/* The session and its lease go on over a new connection. The client closes the old connection. */
static void take_over(struct bed *bed, const struct fp_session_identity *identity)
{
	uint32_t id = bed->lease->id;
	struct fp_session *again;

	assert_int_equal(resume(&bed->direct, identity, &again), 0);
	fp_link_close(fp_take_ptr(bed->link));
	fp_session_abandon(bed->session);
	bed->session = again;
	assert_int_equal(fp_session_attach(again, id, &bed->lease), 0);
	assert_int_equal(bed->lease->id, id);
	assert_int_equal(bed->lease->size_bytes, MIB);
	assert_int_equal(fp_link_open(again, &bed->link), 0);
}

static void ping_echoes(void **state)
{
	static const size_t lengths[] = {0, 1, 255, 4095, 4096};
	struct bed *bed = *state;

	for (size_t i = 0; i < FP_ARRAY_LEN(lengths); i++)
		assert_int_equal(fp_session_ping(bed->session, lengths[i], 0), 0);
	assert_int_equal(fp_session_ping(bed->session, FP_PING_MAX_BYTES + 1, 0), -EINVAL);
}

/* A late answer does not break the session. Later calls get their own answers. */
static void ping_gives_up(void **state)
{
	struct bed *bed = *state;
	siginfo_t info;

	assert_int_equal(kill(bed->node.pid, SIGSTOP), 0);
	assert_int_equal(waitid(P_PID, (id_t)bed->node.pid, &info, WSTOPPED | WNOWAIT), 0);
	assert_int_equal(fp_session_ping(bed->session, 4096, fp_clock_ns() + 20 * FP_NSEC_PER_MSEC),
	                 -ETIMEDOUT);
	assert_int_equal(fp_session_ping(bed->session, 16, fp_clock_ns() + 20 * FP_NSEC_PER_MSEC),
	                 -ETIMEDOUT);
	assert_int_equal(kill(bed->node.pid, SIGCONT), 0);
	assert_int_equal(fp_session_ping(bed->session, 100, 0), 0);
	assert_remote(bed->link, bed->lease->id, 0, 0x11);
}

static void ping_finds_the_node_dead(void **state)
{
	struct bed *bed = *state;
	int r;

	test_daemon_stop(&bed->node);
	r = fp_session_ping(bed->session, 0, 0);
	assert_true(r < 0 && r != -ETIMEDOUT);
}

static void mappings_are_not_resumed(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity identity;
	struct fp_session *again;

	skip_unless(!resumable(), "its sessions are resumed");
	assert_int_equal(fp_session_identity(bed->session, &identity), 0);
	assert_true(identity.grace_ns == 0);
	assert_int_equal(resume(&bed->direct, &identity, &again), -EOPNOTSUPP);
}

static void leases_and_bytes_survive(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity identity;
	const struct fp_lease *lease;

	SKIP_UNLESS_RESUMABLE();
	assert_int_equal(fp_session_identity(bed->session, &identity), 0);
	assert_true(identity.grace_ns == 30 * FP_NSEC_PER_SEC);
	take_over(bed, &identity);
	for (uint64_t at = 0; at < MIB; at += IO_BYTES)
		assert_remote(bed->link, bed->lease->id, at, 0x11);
	fill(bed->link, bed->lease->id, 0, 0x22);
	assert_remote(bed->link, bed->lease->id, 0, 0x22);
	/*
	 * Attaching again gives the same lease. A lease that the session does not have is refused.
	 */
	assert_int_equal(fp_session_attach(bed->session, bed->lease->id, &lease), 0);
	assert_ptr_equal(lease, bed->lease);
	assert_int_equal(fp_session_attach(bed->session, bed->lease->id + 1, &lease), -EACCES);
	assert_int_equal(fp_session_attach(bed->session, 0, &lease), -EACCES);
	assert_int_equal(fp_session_lease(bed->session, MIB, &lease), 0);
	assert_int_not_equal(lease->id, bed->lease->id);
	assert_int_equal(fp_session_release(bed->session, bed->lease->id), 0);
	await_free(bed, POOL_BYTES - MIB);
}

static void wrong_token(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity first, second;
	struct fp_session *again;

	SKIP_UNLESS_RESUMABLE();
	assert_int_equal(fp_session_identity(bed->session, &first), 0);
	take_over(bed, &first);
	assert_int_equal(fp_session_identity(bed->session, &second), 0);
	assert_true(first.id == second.id);
	assert_memory_equal(first.token, second.token, sizeof(first.token));
	second.id += 1000;
	assert_int_equal(resume(&bed->direct, &second, &again), -ESTALE);
	second.id -= 1000;
	second.token[0] ^= 1;
	assert_int_equal(resume(&bed->direct, &second, &again), -ESTALE);
	second.token[0] ^= 1;
	assert_int_equal(fp_session_ping(bed->session, 0, 0), 0); /* none of these had an effect */
	take_over(bed, &second);
	assert_remote(bed->link, bed->lease->id, 0, 0x11);
}

/* A client resumes its own session while the session is alive. The new connection takes it over. */
static void resuming_ends_the_old_end(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity identity;
	struct fp_session *again;
	struct job *job;

	SKIP_UNLESS_RESUMABLE();
	assert_int_equal(fp_session_identity(bed->session, &identity), 0);
	assert_int_equal(resume(&bed->direct, &identity, &again), 0);
	assert_true(fp_session_ping(bed->session, 0, 0) < 0);
	job = job_new(FP_IO_READ, bed->lease->id, 0, 1, 4096);
	assert_true(rig_run(bed->link, job) < 0);
	job_free(job);
	fp_session_close(bed->session); /* the BYE of the old connection has no effect any more */
	bed->session = again;
	assert_int_equal(fp_session_attach(again, 1, &bed->lease), 0);
	fp_link_close(fp_take_ptr(bed->link));
	assert_int_equal(fp_link_open(again, &bed->link), 0);
	assert_remote(bed->link, bed->lease->id, MIB - IO_BYTES, 0x11);
}

static void cut_and_resumed(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity identity;
	int r;

	SKIP_UNLESS_PROXY();
	for (unsigned round = 0; round < 5; round++) {
		if (round > 0) { /* the first session goes through the proxy, so the later ones must too */
			fp_link_close(fp_take_ptr(bed->link));
			assert_int_equal(fp_session_identity(bed->session, &identity), 0);
			fp_session_abandon(bed->session);
			assert_int_equal(resume(&bed->url, &identity, &bed->session), 0);
			assert_int_equal(fp_session_attach(bed->session, 1, &bed->lease), 0);
			assert_int_equal(fp_link_open(bed->session, &bed->link), 0);
		}
		test_proxy_cut(bed->proxy);
		r = fp_session_ping(bed->session, 0, 0);
		assert_true(r < 0 && r != -ETIMEDOUT);
		await_status(bed, "\"state\":\"cut off\"");
		assert_true(free_bytes(bed) == POOL_BYTES - MIB);
		assert_int_equal(fp_session_identity(bed->session, &identity), 0);
		take_over(bed, &identity);
		assert_remote(bed->link, bed->lease->id, 0, 0x11);
	}
}

/*
 * The client gives up a WRITE, resumes its session, and writes to the same place again. Until then
 * the proxy holds back a part of the old WRITE, or all of it. These bytes must have no effect when
 * they reach the node.
 */
static void late_write_never_lands(void **state)
{
	static const size_t allowed[] = {0, 24, 48, 10000, IO_BYTES};
	struct bed *bed = *state;
	struct fp_session_identity identity;

	SKIP_UNLESS_PROXY();
	for (size_t i = 0; i < FP_ARRAY_LEN(allowed); i++) {
		struct job *job = job_new(FP_IO_WRITE, bed->lease->id, 0, 1, IO_BYTES);
		size_t frame_bytes = 24 + 8 + 16 + IO_BYTES;

		memset(job->buf, 0xdd, job->len);
		test_proxy_hold(bed->proxy, allowed[i]);
		job->io.deadline_ns = fp_clock_ns() + 50 * FP_NSEC_PER_MSEC;
		assert_int_equal(rig_run(bed->link, job), -ETIMEDOUT);
		assert_int_equal(test_proxy_await_held(bed->proxy, frame_bytes - allowed[i]), 0);
		assert_int_equal(fp_session_identity(bed->session, &identity), 0);
		take_over(bed, &identity);
		fill(bed->link, bed->lease->id, 0, 0x33);
		(void)test_proxy_release(bed->proxy);
		assert_int_equal(fp_session_ping(bed->session, 0, 0), 0);
		assert_remote(bed->link, bed->lease->id, 0, 0x33);
		await_status(bed, "\"links\":1,");
		assert_remote(bed->link, bed->lease->id, 0, 0x33);
		job_free(job);
		/* the writes of the next round go through the proxy again */
		fp_link_close(fp_take_ptr(bed->link));
		assert_int_equal(fp_session_identity(bed->session, &identity), 0);
		fp_session_abandon(bed->session);
		assert_int_equal(resume(&bed->url, &identity, &bed->session), 0);
		assert_int_equal(fp_session_attach(bed->session, 1, &bed->lease), 0);
		assert_int_equal(fp_link_open(bed->session, &bed->link), 0);
	}
}

static void abandoned_session_is_kept(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity identity;

	SKIP_UNLESS_RESUMABLE();
	assert_int_equal(fp_session_identity(bed->session, &identity), 0);
	fp_link_close(fp_take_ptr(bed->link));
	fp_session_abandon(fp_take_ptr(bed->session));
	await_status(bed, "\"state\":\"cut off\"");
	assert_true(free_bytes(bed) == POOL_BYTES - MIB);
	assert_int_equal(resume(&bed->direct, &identity, &bed->session), 0);
	assert_int_equal(fp_session_attach(bed->session, 1, &bed->lease), 0);
	assert_int_equal(fp_link_open(bed->session, &bed->link), 0);
	assert_remote(bed->link, 1, 0, 0x11);
}

static void grace_ends(void **state)
{
	struct bed *bed = *state;
	struct fp_session_identity identity;
	struct fp_session *again;
	uint64_t start_ns;

	SKIP_UNLESS_RESUMABLE();
	assert_int_equal(fp_session_identity(bed->session, &identity), 0);
	assert_true(identity.grace_ns == 300 * FP_NSEC_PER_MSEC);
	fp_link_close(fp_take_ptr(bed->link));
	start_ns = fp_clock_ns();
	fp_session_abandon(fp_take_ptr(bed->session));
	await_free(bed, POOL_BYTES);
	assert_true(fp_clock_ns() - start_ns >= identity.grace_ns);
	assert_int_equal(resume(&bed->direct, &identity, &again), -ESTALE);
}

static void bye_frees_at_once(void **state)
{
	struct bed *bed = *state;

	fp_link_close(fp_take_ptr(bed->link));
	fp_session_close(fp_take_ptr(bed->session));
	assert_true(free_bytes(bed) == POOL_BYTES);
}

/*
 * A process is killed. Its session ends at once, and not after the grace period, which is longer
 * than this test waits. Only over a socket can the node tell the end of a process from a broken
 * cable.
 */
static void killed_client_frees_at_once(void **state)
{
	struct bed *bed = *state;
	const struct fp_lease *lease;
	struct fp_session *session;
	int status, pipe_fds[2];
	char byte;
	pid_t pid;

	skip_unless(rig_load_store() || has_proxy(), "the end of a process looks like a broken connection");
	assert_int_equal(pipe(pipe_fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		if (rig_open(&bed->direct, NULL, 0, &session) == 0 &&
		    fp_session_lease(session, MIB, &lease) == 0)
			(void)!write(pipe_fds[1], "x", 1);
		pause();
		_exit(1);
	}
	close(pipe_fds[1]);
	assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
	assert_true(free_bytes(bed) == POOL_BYTES - 2 * MIB);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	await_free(bed, POOL_BYTES - MIB);
	close(pipe_fds[0]);
}

/* A forked child closes its copy of the session. That has no effect on the session. */
static void forked_child_says_nothing(void **state)
{
	struct bed *bed = *state;
	int status;

	for (unsigned how = 0; how < 2; how++) {
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0) {
			if (how == 0)
				fp_session_close(bed->session);
			else
				fp_session_abandon(bed->session);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		assert_int_equal(fp_session_ping(bed->session, 64, 0), 0);
		assert_remote(bed->link, bed->lease->id, 0, 0x11);
	}
}

int run_resume_cases(void)
{
#define CASE(name)       cmocka_unit_test_setup_teardown(name, setup, teardown)
#define SHORT_CASE(name) cmocka_unit_test_setup_teardown(name, setup_short, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(ping_echoes),
	    CASE(ping_gives_up),
	    CASE(ping_finds_the_node_dead),
	    CASE(mappings_are_not_resumed),
	    CASE(leases_and_bytes_survive),
	    CASE(wrong_token),
	    CASE(resuming_ends_the_old_end),
	    CASE(cut_and_resumed),
	    CASE(late_write_never_lands),
	    CASE(abandoned_session_is_kept),
	    SHORT_CASE(grace_ends),
	    CASE(bye_frees_at_once),
	    CASE(killed_client_frees_at_once),
	    CASE(forked_child_says_nothing),
	};

	return cmocka_run_group_tests_name("resume", tests, NULL, NULL);
}
