/*
 * farpage top: the table of `farpage ps`, each second, with fault rates. Room: tools.
 */
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "stats_dir.h"
#include "pstable.h"
#include "tool.h"

#define INTERVAL_MS 1000

/* The table shown last, and its time. */
struct history {
	struct fp_stats_dir pages;
	uint64_t time_ns;
};

/* Faults a second since the last look; 0 for a new program. */
static uint64_t rate_of(const struct history *before, const struct fp_statspage *page, uint64_t now_ns)
{
	const struct fp_statsview *last = fp_stats_dir_find(&before->pages, page->pid);
	uint64_t faults = fp_stats_dir_faults(page), passed_ns = FP_MAX(now_ns - before->time_ns, 1u);
	uint64_t since = last ? faults - FP_MIN(faults, fp_stats_dir_faults(&last->page)) : 0;

	return (uint64_t)((double)since * (double)FP_NSEC_PER_SEC / (double)passed_ns);
}

static int show(struct history *history, bool in_place)
{
	struct history now = {.time_ns = fp_clock_ns()};
	fp_autofree uint64_t *rates = NULL;
	int r = fp_stats_dir_read_live(&now.pages, "top");

	if (r == 0)
		rates = calloc(now.pages.n + 1, sizeof(*rates));
	for (size_t i = 0; rates && i < now.pages.n; i++)
		rates[i] = rate_of(history, &now.pages.items[i]->page, now.time_ns);
	if (rates) {
		fputs(in_place ? "\033[H\033[J" : "", stdout);
		r = fp_tool_show(&fp_tool_top, fp_pstable_text(&now.pages, rates), false);
		fputs(in_place ? "\nq: quit\n" : "\n", stdout);
	}
	fp_stats_dir_done(&history->pages);
	*history = now;
	return r ?: fp_tool_flush(&fp_tool_top);
}

/* Waits for one interval. True if the user wants to quit: a q on the terminal, ^C or SIGTERM. */
static bool wait_for_quit(int signal_fd, bool keys)
{
	struct pollfd fds[] = {{.fd = signal_fd, .events = POLLIN},
	                       {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN}};
	char key;

	if (poll(fds, FP_ARRAY_LEN(fds), INTERVAL_MS) <= 0)
		return false;
	if (fds[0].revents)
		return true;
	return read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q';
}

static int open_signals(void)
{
	sigset_t ends;

	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGHUP);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	return signalfd(-1, &ends, SFD_CLOEXEC);
}

/*
 * Sets the terminal to deliver keys one by one and without echo. The caller restores *ret_before at
 * the end.
 */
static bool set_keys(struct termios *ret_before)
{
	struct termios keys;

	if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, ret_before) < 0)
		return false;
	keys = *ret_before;
	keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	return tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0;
}

static int top_main(int argc, char **argv)
{
	fp_autoclose int signal_fd = -1;
	struct history history = {0};
	struct termios before;
	bool keys, in_place = isatty(STDOUT_FILENO);
	int r;

	fp_option_parse(&fp_tool_top, argc, argv, NULL);
	signal_fd = open_signals();
	keys = in_place && set_keys(&before);
	do
		r = show(&history, in_place);
	while (r == 0 && !wait_for_quit(signal_fd, keys));
	if (keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &before);
	fp_stats_dir_done(&history.pages);
	return r ? 1 : 0;
}

const struct fp_tool fp_tool_top = {
    .name = "top",
    .label = "top",
    .summary = "the same, refreshed each second, with fault rates",
    .help = "usage: farpage top\n\n"
            "Shows the programs of this user that have far memory, as `farpage ps` does, with faults a "
            "second, each second. q or ^C quits. Where output is not a terminal, one table follows the "
            "other.\n\n",
    .main = top_main,
};
