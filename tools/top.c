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

/* The faults of each program at the last look. */
struct sample {
	pid_t pid;
	uint64_t faults;
};

struct history {
	struct sample *samples;
	size_t n;
	uint64_t time_ns;
};

static uint64_t faults_before(const struct history *history, pid_t pid, uint64_t now)
{
	for (size_t i = 0; i < history->n; i++)
		if (history->samples[i].pid == pid)
			return FP_MIN(history->samples[i].faults, now);
	return now; /* new here: no rate yet */
}

/* Fills rates for pages and replaces the history. False: no memory. */
static bool take_rates(struct history *history, const struct fp_stats_dir *pages, uint64_t *rates)
{
	uint64_t now_ns = fp_clock_ns(), passed_ns = FP_MAX(now_ns - history->time_ns, 1u);
	struct sample *samples = calloc(pages->n + 1, sizeof(*samples));

	if (!samples)
		return false;
	for (size_t i = 0; i < pages->n; i++) {
		const struct fp_statspage *page = &pages->items[i]->page;
		uint64_t now = fp_stats_dir_faults(page),
		         since = now - faults_before(history, page->pid, now);

		samples[i] = (struct sample){page->pid, now};
		rates[i] = (uint64_t)((double)since * (double)FP_NSEC_PER_SEC / (double)passed_ns);
	}
	free(history->samples);
	*history = (struct history){samples, pages->n, now_ns};
	return true;
}

static int show(struct history *history, bool in_place)
{
	struct fp_stats_dir pages = {0};
	fp_autofree uint64_t *rates = NULL;
	int r = fp_stats_dir_read_live(&pages, "top");

	if (r == 0)
		rates = calloc(pages.n + 1, sizeof(*rates));
	if (rates && take_rates(history, &pages, rates)) {
		fputs(in_place ? "\033[H\033[J" : "", stdout);
		fp_pstable_text(&pages, rates, stdout);
		fputs(in_place ? "\nq: quit\n" : "\n", stdout);
	}
	fp_stats_dir_done(&pages);
	return r < 0 ? r : fp_tool_flush(&fp_tool_top);
}

/* True if the user wants to leave: a q on the terminal, ^C or a TERM. Waits for one interval. */
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

/* Keys arrive one by one and unseen; what was before comes back at the end. */
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
	struct history history = {.time_ns = fp_clock_ns()};
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
	free(history.samples);
	return r ? 1 : 0;
}

const struct fp_tool fp_tool_top = {
    .name = "top",
    .label = "top",
    .summary = "the same, refreshed each second, with fault rates",
    .help = "usage: farpage top\n"
            "\n"
            "Shows the programs of this user that have far memory, as `farpage ps` does, with faults a "
            "second, each\n"
            "second. q or ^C quits. Where output is not a terminal, one table follows the other.\n",
    .main = top_main,
};
