/* The logger, read through a pipe in place of stderr. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"

static int real_stderr, reader;

static int replace_stderr(void **state)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -1;
	real_stderr = dup(STDERR_FILENO);
	dup2(fds[1], STDERR_FILENO);
	close(fds[1]);
	reader = fds[0];
	unsetenv("JOURNAL_STREAM");
	fp_log_init("unit", FP_LOG_NOTICE);
	return 0;
}

static int restore_stderr(void **state)
{
	dup2(real_stderr, STDERR_FILENO);
	close(real_stderr);
	close(reader);
	return 0;
}

/* The lines logged since the last call. */
static const char *logged(void)
{
	static char text[4096];
	ssize_t n = read(reader, text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = '\0';
	return text;
}

static void a_line_names_program_and_subsystem(void **state)
{
	fp_log(FP_LOG_ERROR, "store", "node %s is gone: %d", "tcp://a", 7);
	assert_string_equal(logged(), "unit: store: node tcp://a is gone: 7\n");
}

static void less_urgent_lines_are_dropped(void **state)
{
	fp_log(FP_LOG_INFO, "store", "chatter");
	assert_string_equal(logged(), "");
	fp_log_init("unit", FP_LOG_DEBUG);
	fp_log(FP_LOG_DEBUG, "store", "chatter");
	assert_string_equal(logged(), "unit: store: chatter\n");
}

/*
 * Programs inherit JOURNAL_STREAM even if their stderr was redirected. So it counts only if it
 * matches stderr.
 */
static void the_journal_gets_priorities(void **state)
{
	char stream[64];
	struct stat st;

	assert_int_equal(fstat(STDERR_FILENO, &st), 0);
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
	         (unsigned long long)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	fp_log_init("unit", FP_LOG_NOTICE);
	fp_log(FP_LOG_WARNING, "pool", "low");
	assert_string_equal(logged(), "<4>pool: low\n");

	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
	         (unsigned long long)st.st_ino + 1);
	setenv("JOURNAL_STREAM", stream, 1);
	fp_log_init("unit", FP_LOG_NOTICE);
	fp_log(FP_LOG_WARNING, "pool", "low");
	assert_string_equal(logged(), "unit: pool: low\n");
	setenv("JOURNAL_STREAM", "nonsense", 1);
	fp_log_init("unit", FP_LOG_NOTICE);
	fp_log(FP_LOG_WARNING, "pool", "low");
	assert_string_equal(logged(), "unit: pool: low\n");
}

static void errno_is_kept(void **state)
{
	errno = EPIPE;
	fp_log(FP_LOG_ERROR, "conn", "send: %m");
	assert_int_equal(errno, EPIPE);
	assert_string_equal(logged(), "unit: conn: send: Broken pipe\n");

	close(STDERR_FILENO);
	errno = EPIPE;
	fp_log(FP_LOG_ERROR, "conn", "nobody hears this");
	assert_int_equal(errno, EPIPE);
}

/*
 * Tries every length near the limit. A line that fits is whole; a longer one is cut and marked.
 * Each is one line.
 */
static void long_lines_are_cut(void **state)
{
	char text[1100];

	for (size_t len = 990; len < 1090; len++) {
		const size_t whole = strlen("unit: a: ") + len + 1;
		const char *line;

		memset(text, 'x', len);
		text[len] = '\0';
		fp_log(FP_LOG_ERROR, "a", "%s", text);
		line = logged();
		assert_int_equal(strlen(line), FP_MIN(whole, 1024u));
		assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
		if (whole <= 1024)
			assert_memory_equal(line + strlen("unit: a: "), text, len);
		else
			assert_string_equal(line + 1020, "...\n");
	}
}

static void a_cut_leaves_whole_characters(void **state)
{
	char text[1100];

	for (size_t shift = 0; shift < 3; shift++) {
		const char *line;
		size_t cut;

		memset(text, 'x', shift);
		for (size_t i = shift; i + 3 < sizeof(text); i += 3)
			strcpy(text + i, "€");
		fp_log(FP_LOG_ERROR, "a", "%s", text);
		line = logged();
		cut = (size_t)(strstr(line, "...\n") - line);
		assert_memory_equal(line + cut - 3, "€", 3);
		assert_true(cut + 4 <= 1024 && cut + 4 > 1024 - 3);
	}
}

static void an_event_is_one_line(void **state)
{
	fp_log(FP_LOG_ERROR, "conn", "peer says '%s'", "a\nfarpaged: pool: all is well\x1b[2J\x7f\t");
	assert_string_equal(logged(), "unit: conn: peer says 'a farpaged: pool: all is well [2J  '\n");
}

/* U+009B begins a command of the terminal, as ESC [ does. */
static void no_line_commands_a_terminal(void **state)
{
	fp_log(FP_LOG_ERROR, "stats", "%s",
	       "/tmp/\xc2\x9b"
	       "2J/caf\xc3\xa9\xc2\xa0\xc2\x80");
	assert_string_equal(logged(), "unit: stats: /tmp/  2J/caf\xc3\xa9\xc2\xa0  \n");
	fp_log(FP_LOG_ERROR, "stats", "%s", "\xc2");
	assert_string_equal(logged(), "unit: stats: \xc2\n");
}

/* A process that must end does not wait for the reader of its log. */
static void a_full_pipe_keeps_nobody(void **state)
{
	int fds[2];

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_int_equal(fcntl(fds[1], F_SETPIPE_SZ, 4096), 4096);
	for (unsigned i = 0; i < 4096; i++)
		assert_int_equal(write(fds[1], "x", 1), 1);
	dup2(fds[1], STDERR_FILENO);
	alarm(60);
	fp_log(FP_LOG_ERROR, "conn", "nobody reads this");
	alarm(0);
	close(fds[0]);
	close(fds[1]);
	fp_log(FP_LOG_ERROR, "conn", "a reader that is gone raises no SIGPIPE");
}

static off_t logged_to(int type, int flags)
{
	char name[] = "/tmp/farpage-log.XXXXXX";
	int made = type == S_IFREG ? mkstemp(name) : -1, fd, pair[2] = {-1, -1};
	char bytes[100];
	off_t len;

	if (type == S_IFREG)
		fd = open(name, flags | O_CLOEXEC);
	else
		fd = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0 ? dup(pair[0]) : -1;
	assert_true(fd >= 0);
	dup2(fd, STDERR_FILENO);
	fp_log(FP_LOG_ERROR, "pager", "text");
	len = type == S_IFREG ? lseek(made, 0, SEEK_END) : recv(pair[1], bytes, sizeof(bytes), 0);
	if (type == S_IFREG)
		unlink(name);
	for (unsigned i = 0; i < 2; i++)
		close(pair[i]);
	close(made);
	close(fd);
	return len;
}

/* A program closed its standard error, and then opened a file that got the same number. */
static void data_of_the_program_is_not_written_to(void **state)
{
	const off_t len = (off_t)strlen("unit: pager: text\n");

	assert_int_equal(logged_to(S_IFREG, O_RDWR), 0);
	assert_int_equal(logged_to(S_IFREG, O_RDWR | O_APPEND), len);
	assert_int_equal(logged_to(S_IFREG, O_WRONLY), len);
	assert_int_equal(logged_to(S_IFSOCK, 0), -1);
}

static char taken[64];

static bool take_errors(const char *subsystem, const char *line, size_t len)
{
	if (strcmp(subsystem, "error") != 0)
		return false;
	memcpy(taken, line, len);
	return true;
}

static void lines_can_be_diverted(void **state)
{
	fp_log_divert(take_errors);
	fp_log(FP_LOG_ERROR, "error", "one");
	assert_string_equal(logged(), "");
	assert_string_equal(taken, "unit: error: one\n");
	fp_log(FP_LOG_ERROR, "other", "two");
	assert_string_equal(logged(), "unit: other: two\n");
	fp_log_divert(NULL);
}

static void a_program_name_may_be_long(void **state)
{
	static char name[2000];

	memset(name, 'p', sizeof(name) - 1);
	fp_log_init(name, FP_LOG_NOTICE);
	fp_log(FP_LOG_ERROR, "conn", "text");
	assert_int_equal(strlen(logged()), 1024);
}

static void a_storm_is_limited(void **state)
{
	struct fp_log_limit limit = {0};
	unsigned allowed = 0;

	for (unsigned i = 0; i < 10; i++)
		allowed += fp_log_allowed(&limit, 3);
	assert_int_equal(allowed, 3);
	assert_int_equal(limit.suppressed, 7);
	limit.window_start_ns -= FP_NSEC_PER_SEC;
	assert_true(fp_log_allowed(&limit, 3));
	assert_int_equal(limit.suppressed, 7);
	assert_false(fp_log_allowed(&limit, 0));
}

static void errors_have_words(void **state)
{
	char buf[64];

	assert_string_equal(fp_strerror(-ENOENT, buf, sizeof(buf)), "No such file or directory");
	assert_ptr_equal(fp_strerror(-ENOENT, buf, sizeof(buf)), buf);
	assert_string_equal(fp_strerror(-4095, buf, sizeof(buf)), "error 4095");
}

#define log_test(f) cmocka_unit_test_setup_teardown(f, replace_stderr, restore_stderr)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    log_test(a_line_names_program_and_subsystem),
	    log_test(less_urgent_lines_are_dropped),
	    log_test(the_journal_gets_priorities),
	    log_test(errno_is_kept),
	    log_test(long_lines_are_cut),
	    log_test(a_cut_leaves_whole_characters),
	    log_test(an_event_is_one_line),
	    log_test(no_line_commands_a_terminal),
	    log_test(a_full_pipe_keeps_nobody),
	    log_test(data_of_the_program_is_not_written_to),
	    log_test(lines_can_be_diverted),
	    log_test(a_program_name_may_be_long),
	    cmocka_unit_test(a_storm_is_limited),
	    cmocka_unit_test(errors_have_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
