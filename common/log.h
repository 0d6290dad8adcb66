/*
 * The logger: one line per event on stderr, with a level and a subsystem.
 * Room: common. Libraries return errors; programs (and the agent inside a program, rarely) log
 * them, once.
 */
#ifndef FP_LOG_H
#define FP_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

/* Values are syslog priorities, so that journald can be given them as they are. */
enum fp_log_level {
	FP_LOG_ERROR = 3,
	FP_LOG_WARNING = 4,
	FP_LOG_NOTICE = 5,
	FP_LOG_INFO = 6,
	FP_LOG_DEBUG = 7,
};

/*
 * Chooses what is printed. max_level: lines less urgent are dropped. Lines begin with "program: ";
 * when stderr is the journal (JOURNAL_STREAM names it) with the "<N>" priority prefix instead.
 * program must outlive the logger. Call before threads start. Default: FP_LOG_NOTICE, "farpage".
 */
void fp_log_init(const char *program, enum fp_log_level max_level);

#define FP_LOG_LINE_BYTES 1024 /* the longest line, with its end */

/*
 * Prints one line "program: subsystem: text" by a single write(2) on stderr. Formats on the stack
 * (lines are cut at FP_LOG_LINE_BYTES), never allocates, takes no lock, keeps errno: safe on any
 * thread. What fp_log_takes_text refuses is dropped. That may take its time, so fault threads must
 * not call it (they count, and post to the housekeeping thread).
 */
void fp_log(enum fp_log_level level, const char *subsystem, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Whether a line can be written now. A full pipe that nobody reads must keep neither a program from
 * its end nor a node from being resumed: it is waited for 100 ms at most. And what a program opened
 * as descriptor 2 since fp_log_init, to hold its data, is not written to.
 */
bool fp_log_takes_text(void);

/*
 * Has take see each finished line (of len bytes, its newline the last) on the thread that logs it.
 * True: take has it now. False: fp_log writes it, however long that takes.
 */
void fp_log_divert(bool (*take)(const char *subsystem, const char *line, size_t len));

/* Writes a finished line to stderr, as fp_log does: it may block. */
void fp_log_write(const char *line, size_t len);

/* A token bucket for lines that a storm could repeat. Zero-initialise; any thread. */
struct fp_log_limit {
	_Atomic uint64_t window_start_ns;
	_Atomic uint32_t in_window;
	_Atomic uint64_t suppressed;
};

/* True if a line may be printed now: at most burst lines a second. */
bool fp_log_allowed(struct fp_log_limit *limit, uint32_t burst);

/* strerror of a negative errno without malloc or locale: into buf (at least 64 bytes), returned. */
const char *fp_strerror(int negative_errno, char *buf, size_t len);

#endif
