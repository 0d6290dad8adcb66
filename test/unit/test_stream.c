/*
 * The byte stream without a device: its connection is played by this file, which keeps what is sent
 * and completes what a test wants to have completed.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "verbs_stream.h"

#define PREFIX_BYTES 4u
#define MAX_SENT     64u
#define WC_SAID      12 /* wc_status of what fails first */

struct message {
	uint32_t len_bytes;
	uint8_t bytes[16];
};

static struct message sent[MAX_SENT];
static unsigned n_sent;
static struct fp_verbs_completion completions[MAX_SENT];
static unsigned n_completions;
static uint8_t *receives[MAX_SENT]; /* posted, by the id of their work */
static uint64_t first_receive;
static int post_result;

int fp_verbs_register(struct fp_verbs_domain *domain, void *base, size_t len_bytes,
                      enum fp_verbs_access access, struct fp_verbs_region *ret_region)
{
	*ret_region = (struct fp_verbs_region){.base = base, .len_bytes = len_bytes};
	return 0;
}

void fp_verbs_deregister(struct fp_verbs_region *region)
{
}

struct fp_verbs_domain *fp_verbs_conn_domain(const struct fp_verbs_conn *conn)
{
	return NULL;
}

struct fp_verbs_domain *fp_verbs_domain_ref(struct fp_verbs_domain *domain)
{
	return domain;
}

void fp_verbs_domain_unref(struct fp_verbs_domain *domain)
{
}

void fp_verbs_conn_close(struct fp_verbs_conn *conn)
{
}

int fp_verbs_conn_flush(struct fp_verbs_conn *conn)
{
	return 0;
}

int fp_verbs_post(struct fp_verbs_conn *conn, const struct fp_verbs_work *work, unsigned n)
{
	if (post_result < 0)
		return post_result;
	assert_int_equal(n, 1);
	assert_int_equal(work->op, FP_VERBS_SEND);
	assert_true(n_sent < MAX_SENT);
	sent[n_sent].len_bytes = work->len_bytes;
	memcpy(sent[n_sent++].bytes, work->local, FP_MIN(work->len_bytes, 16u));
	completions[n_completions++] = (struct fp_verbs_completion){.id = work->id, .op = FP_VERBS_SEND};
	return 0;
}

int fp_verbs_post_recv(struct fp_verbs_conn *conn, const struct fp_verbs_work *work, unsigned n)
{
	assert_true(work->id < MAX_SENT);
	if (!receives[work->id] && !first_receive)
		first_receive = work->id;
	receives[work->id] = work->local;
	return 0;
}

int fp_verbs_dispatch(struct fp_verbs_conn *conn,
                      void (*done)(const struct fp_verbs_completion *completion, void *user), void *user)
{
	int n = (int)n_completions;

	for (unsigned i = 0; i < n_completions; i++)
		done(&completions[i], user);
	n_completions = 0;
	return n;
}

const char *fp_verbs_status_text(int wc_status)
{
	return wc_status == WC_SAID ? "said by the device" : "flushed";
}

int fp_verbs_arm(struct fp_verbs_conn *conn, struct pollfd *ret_pollfd)
{
	*ret_pollfd = (struct pollfd){.fd = -1};
	return 0;
}

/* The peer says something, with credits. */
static void hear(uint8_t credits, const char *bytes)
{
	uint8_t *message = receives[first_receive];

	memset(message, 0, PREFIX_BYTES);
	message[0] = credits;
	memcpy(message + PREFIX_BYTES, bytes, strlen(bytes));
	completions[n_completions++] = (struct fp_verbs_completion){
	    .id = first_receive, .op = FP_VERBS_RECV, .len_bytes = PREFIX_BYTES + (uint32_t)strlen(bytes)};
}

static int set_up(void **state)
{
	struct fp_verbs_stream *stream;

	n_sent = n_completions = 0;
	first_receive = 0;
	post_result = 0;
	memset(receives, 0, sizeof(receives));
	assert_int_equal(fp_verbs_stream_new(NULL, &stream), 0);
	*state = stream;
	return 0;
}

static int tear_down(void **state)
{
	fp_verbs_stream_close(*state);
	return 0;
}

/* A nudge is a message that carries nothing, and leaves the peer room for what has to be said. */
static void nudges_say_nothing(void **state)
{
	unsigned n = 0;

	assert_int_equal(fp_verbs_stream_send(*state, "hello", 5), 5);
	while (fp_verbs_stream_nudge(*state))
		n++;
	assert_int_equal(n, FP_VERBS_STREAM_BUFFERS / 2 - 1);
	assert_int_equal(n_sent, 1 + n);
	for (unsigned i = 1; i < n_sent; i++) {
		assert_int_equal(sent[i].len_bytes, PREFIX_BYTES);
		assert_memory_equal(sent[i].bytes, "\0\0\0\0", PREFIX_BYTES);
	}
	assert_int_equal(fp_verbs_stream_send(*state, "once more", 9), 9);
}

/* Who has answered needs none; and the stream goes on as if there had been none. */
static void an_answer_ends_them(void **state)
{
	char bytes[16];

	assert_int_equal(fp_verbs_stream_send(*state, "hello", 5), 5);
	assert_true(fp_verbs_stream_nudge(*state));
	hear(2, "welcome");
	assert_int_equal(fp_verbs_stream_receive(*state, bytes, sizeof(bytes)), 7);
	assert_memory_equal(bytes, "welcome", 7);
	assert_false(fp_verbs_stream_nudge(*state));
	assert_int_equal(n_sent, 2);
	assert_int_equal(fp_verbs_stream_receive(*state, bytes, sizeof(bytes)), -EAGAIN);
}

/* The first error is the reason: what is flushed behind it only follows. */
static void what_the_device_says_is_told(void **state)
{
	assert_int_equal(fp_verbs_stream_send(*state, "hello", 5), 5);
	assert_int_equal(fp_verbs_stream_send(*state, "again", 5), 5);
	assert_null(fp_verbs_stream_why(*state));
	completions[n_completions - 1].status = -ETIMEDOUT;
	completions[n_completions - 1].wc_status = WC_SAID;
	completions[n_completions++] =
	    (struct fp_verbs_completion){.id = 77, .op = FP_VERBS_RECV, .status = -ECANCELED, .wc_status = 5};
	assert_int_equal(fp_verbs_stream_send(*state, "more", 4), -ECONNRESET);
	assert_string_equal(fp_verbs_stream_why(*state), "said by the device");
}

static void a_broken_stream_has_none(void **state)
{
	post_result = -ECONNRESET;
	assert_false(fp_verbs_stream_nudge(*state));
	post_result = 0;
	assert_false(fp_verbs_stream_nudge(*state));
	assert_int_equal(n_sent, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(nudges_say_nothing, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(an_answer_ends_them, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(what_the_device_says_is_told, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_broken_stream_has_none, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
