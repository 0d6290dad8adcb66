/*
 * The logger. Room: common. A line is built on the stack and leaves in one write(2), so lines of
 * several threads never mix. Nothing here allocates or locks.
 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "printable.h"

#define PATIENCE_NS (100 * FP_NSEC_PER_MSEC)

static const char *_Atomic log_program = "farpage";
static _Atomic enum fp_log_level log_max_level = FP_LOG_NOTICE;
static atomic_bool log_to_journal, log_shows_times;
static struct {
	atomic_bool known;
	_Atomic dev_t dev;
	_Atomic ino_t ino; /* 0: descriptor 2 was closed at the start */
} stderr_at_start;
static bool (*_Atomic log_take)(const char *subsystem, const char *line, size_t len);

/*
 * True if stderr is still the journal. systemd names the device and inode of the stream that it
 * connected, but stderr may have been redirected since.
 */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
	       st.st_dev == dev && st.st_ino == ino;
}

static void note_stderr(void)
{
	struct stat st = {.st_ino = 0};

	(void)fstat(STDERR_FILENO, &st);
	stderr_at_start.dev = st.st_dev;
	stderr_at_start.ino = st.st_ino;
	stderr_at_start.known = true;
}

void fp_log_init(const char *program, enum fp_log_level max_level)
{
	log_program = program;
	log_max_level = max_level;
	log_to_journal = stderr_is_journal();
	note_stderr();
}

void fp_log_show_times(void)
{
	struct stat st;

	tzset();
	log_shows_times = !log_to_journal &&
	                  (isatty(STDERR_FILENO) || (fstat(STDERR_FILENO, &st) == 0 && S_ISREG(st.st_mode)));
}

/* "2026-11-23 17:22:25.123 "; nothing if lines show no times. Returns its length. */
static size_t print_time(char *buf, size_t len)
{
	struct timespec now;
	struct tm local;
	size_t n;

	if (!log_shows_times || clock_gettime(CLOCK_REALTIME, &now) < 0 || !localtime_r(&now.tv_sec, &local))
		return 0;
	n = strftime(buf, len, "%Y-%m-%d %H:%M:%S", &local);
	return n + (size_t)snprintf(buf + n, len - n, ".%03ld ", now.tv_nsec / (long)FP_NSEC_PER_MSEC);
}

/* Cuts a line that is too long and ends it with "...". Never cuts within a UTF-8 character: the
 * journal would take the line for a blob. */
static size_t cut_line(char *line, size_t size)
{
	size_t end = size - strlen("...\n");

	while (end > 0 && (line[end] & 0xC0) == 0x80)
		end--;
	memcpy(line + end, "...", 3);
	return end + 3;
}

/*
 * True if a write would exceed RLIMIT_FSIZE, and so end the process by SIGXFSZ. Uses bare calls,
 * because the shim's versions of the C library's calls may not be ready yet.
 */
static bool stderr_is_full(void)
{
	struct rlimit limit;
	struct stat st;
	long at;

	if (getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
	    fstat(STDERR_FILENO, &st) < 0 || !S_ISREG(st.st_mode))
		return false;
	if (syscall(SYS_fcntl, STDERR_FILENO, F_GETFL) & O_APPEND)
		at = st.st_size;
	else
		at = syscall(SYS_lseek, STDERR_FILENO, 0, SEEK_CUR);
	return at >= 0 && (rlim_t)at >= limit.rlim_cur;
}

/* ---- the owner of descriptor 2 ---- */

/*
 * True if descriptor 2 now holds the program's data. A program may close its standard error, and
 * the next file that it opens gets number 2. We assume data if the file is not the one from the
 * start, and is of one of two kinds. One kind is a socket. The other is a file that is open for
 * reading and writing, without O_APPEND.
 */
static bool stderr_is_programs(void)
{
	long flags = syscall(SYS_fcntl, STDERR_FILENO, F_GETFL);
	struct stat st;

	if (!stderr_at_start.known || fstat(STDERR_FILENO, &st) < 0 ||
	    (st.st_dev == stderr_at_start.dev && st.st_ino == stderr_at_start.ino))
		return false;
	return S_ISSOCK(st.st_mode) || ((S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)) &&
	                                (flags & O_ACCMODE) == O_RDWR && !(flags & O_APPEND));
}

bool fp_log_takes_text(void)
{
	struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};
	const struct timespec patience = {.tv_nsec = PATIENCE_NS};

	return syscall(SYS_ppoll, &fd, 1, &patience, NULL, 0) == 1 &&
	       (fd.revents & (POLLOUT | POLLERR)) == POLLOUT && !stderr_is_programs();
}

void fp_log_divert(bool (*take)(const char *subsystem, const char *line, size_t len))
{
	log_take = take;
}

void fp_log_write(const char *line, size_t len)
{
	while (!stderr_is_full() && write(STDERR_FILENO, line, len) < 0 && errno == EINTR)
		;
}

void fp_log(enum fp_log_level level, const char *subsystem, const char *format, ...)
{
	bool (*take)(const char *subsystem, const char *line, size_t len) = log_take;
	int saved_errno = errno;
	char line[FP_LOG_LINE_BYTES];
	size_t len;
	va_list args;

	if (level > log_max_level)
		return;
	len = print_time(line, sizeof(line));
	if (log_to_journal)
		len = (size_t)snprintf(line, sizeof(line), "<%d>%s: ", (int)level, subsystem);
	else
		len += (size_t)snprintf(line + len, sizeof(line) - len, "%s: %s: ", log_program, subsystem);
	if (len < sizeof(line)) {
		va_start(args, format);
		errno = saved_errno; /* the format may contain %m */
		len += (size_t)vsnprintf(line + len, sizeof(line) - len, format, args);
		va_end(args);
	}
	if (len >= sizeof(line))
		len = cut_line(line, sizeof(line));
	fp_printable_blank(line, len, ' ', 0);
	line[len++] = '\n';
	if (take ? !take(subsystem, line, len) : fp_log_takes_text())
		fp_log_write(line, len);
	errno = saved_errno;
}

bool fp_log_allowed(struct fp_log_limit *limit, uint32_t burst)
{
	uint64_t now = fp_clock_ns(), start = limit->window_start_ns;

	if ((start == 0 || now - start >= FP_NSEC_PER_SEC) &&
	    atomic_compare_exchange_strong(&limit->window_start_ns, &start, now))
		limit->in_window = 0;
	if (limit->in_window++ < burst)
		return true;
	limit->suppressed++;
	return false;
}

const char *fp_strerror(int negative_errno, char *buf, size_t len)
{
	const char *text = strerrordesc_np(-negative_errno);

	if (text)
		snprintf(buf, len, "%s", text);
	else
		snprintf(buf, len, "error %d", -negative_errno);
	return buf;
}
