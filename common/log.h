/*
 * The logger: one line per event on stderr, with a level and a subsystem. Room: common. Libraries
 * return errors. Programs log each error once; the agent inside a program seldom logs.
 */
#ifndef FP_LOG_H
#define FP_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

/* The values are syslog's priorities, so journald takes them as they are. */
enum fp_log_level {
	FP_LOG_ERROR = 3,
	FP_LOG_WARNING = 4,
	FP_LOG_NOTICE = 5,
	FP_LOG_INFO = 6,
	FP_LOG_DEBUG = 7,
};

/*
 * Chooses which lines are printed, and how they begin. Lines that are less urgent than max_level
 * are dropped. A line begins with the string program and ": ". If stderr is the journal
 * (JOURNAL_STREAM names it), a line begins with its priority, "<N>", instead. The string program
 * must outlive the logger. Call this before threads start. Default: FP_LOG_NOTICE and "farpage".
 */
void fp_log_init(const char *program, enum fp_log_level max_level);

/*
 * From now on, lines on a terminal or in a file begin with the local time. Other lines do not: the
 * journal adds the time itself. Only our own programs may call this, because it takes the C
 * library's lock of the time zone. Call it after fp_log_init, before threads start.
 */
void fp_log_show_times(void);

#define FP_LOG_LINE_BYTES 1024 /* the longest line, with its newline */

/*
 * Prints one line "program: subsystem: text" by a single write(2) on stderr. Safe on any thread: it
 * formats on the stack, never allocates, takes no lock and keeps errno. Lines are cut at
 * FP_LOG_LINE_BYTES. A line is dropped if fp_log_takes_text returns false. That check may take its
 * time, so fault threads must not log: they count what happens, and another thread logs it.
 */
void fp_log(enum fp_log_level level, const char *subsystem, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * True if a line can be written now. If stderr is a full pipe that nobody reads, this waits 100 ms
 * at most. It must not wait longer: a program must still be able to end, and a node to be resumed.
 * Also false if the program has opened a file or socket for its data as descriptor 2 since
 * fp_log_init.
 */
bool fp_log_takes_text(void);

/*
 * From now on the thread that logs a line first passes the finished line to the function take. The
 * line has len bytes, the last of which is a newline. If take returns true, it has handled the
 * line. Otherwise fp_log writes the line, however long that takes.
 */
void fp_log_divert(bool (*take)(const char *subsystem, const char *line, size_t len));

/* Writes a finished line to stderr, as fp_log does: it may block. */
void fp_log_write(const char *line, size_t len);

/*
 * A token bucket. It limits lines that an error may repeat very often. Its first value is all
 * zeros. Any thread may use it.
 */
struct fp_log_limit {
	_Atomic uint64_t window_start_ns;
	_Atomic uint32_t in_window;
	_Atomic uint64_t suppressed;
};

/* True if a line may be printed now: at most burst lines a second. */
bool fp_log_allowed(struct fp_log_limit *limit, uint32_t burst);

/*
 * Writes strerror of a negative errno into buf (at least 64 bytes) and returns buf. Uses no malloc
 * and no locale.
 */
const char *fp_strerror(int negative_errno, char *buf, size_t len);

#endif
