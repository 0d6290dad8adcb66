/*
 * A screen of the terminal. Room: tools; see screen.h. The signals that end it, and SIGWINCH, are
 * blocked and read from a descriptor. So curses' own handlers for these signals never run. Its
 * handler for ^Z runs.
 */
#include "screen.h"

#include <errno.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define NCURSES_NOMACROS
#include <curses.h>
#include <term.h>

#include "character.h"
#include "cleanup.h"
#include "clock.h"
#include "log.h"

#define ESCAPE       27
#define REDRAW       ('L' - '@')
#define ESCAPE_MS    100 /* the bytes of one key arrive within this time */
#define FOOTER_LINES 1

struct screen_line {
	enum fp_screen_style style;
	char *text;
};

/* What is drawn: the view, or its help. */
struct screen_page {
	unsigned first; /* body line in the first row below the head */
	unsigned n, n_head;
	struct screen_line *rows;
};

struct fp_screen {
	const struct fp_screen_view *view;
	struct screen_page pages[2]; /* the view, its help */
	struct screen_page *page;
	SCREEN *terminal;
	int signal_fd;
	bool utf8;
	bool quit;
};

static const char *const own_keys[] = {
    "Keys of every screen:",
    "  q, ^C               quit",
    "  ?                   this help; ?, q or Escape leaves it",
    "  Up, Down, k, j      scroll by a line",
    "  PageUp, PageDown    scroll by a page;",
    "                      so do b and the space bar",
    "  Home, End, g, G     go to the first or the last line",
    "  ^L                  draw everything again",
    "  ^Z                  stop; `fg` goes on",
    NULL,
};

/* ---- what is logged meanwhile ---- */

/* The last line, with its newline; "": none. */
static char logged[FP_LOG_LINE_BYTES];

static bool keep_line(const char *subsystem, const char *line, size_t len)
{
	snprintf(logged, sizeof(logged), "%.*s", (int)len, line);
	return true;
}

/* ---- text ---- */

/* An ASCII character like c. */
static char plain(wchar_t c)
{
	if (c >= ' ' && c < 0x7f)
		return (char)c;
	return c == L'µ' ? 'u' : c >= 0x2500 && c <= 0x25ff ? '#' : '?';
}

/* Makes text fit into width columns, in place: the result is never longer. Returns its columns. */
static unsigned fit(char *text, unsigned width, bool utf8)
{
	const char *from = text;
	unsigned column = 0;

	while (*from && column < width) {
		const char *begin = from;
		wchar_t c = fp_character_next(&from);
		int cells = wcwidth(c);

		if (!utf8 || cells <= 0 || c == FP_CHARACTER_WRONG) {
			*text++ = plain(c);
			column++;
			continue;
		}
		if (column + (unsigned)cells > width)
			break;
		memmove(text, begin, (size_t)(from - begin));
		text += from - begin;
		column += (unsigned)cells;
	}
	*text = '\0';
	return column;
}

static void clear_page(struct screen_page *page)
{
	for (unsigned i = 0; i < page->n; i++)
		free(page->rows[i].text);
	free(page->rows);
	*page = (struct screen_page){.first = page->first};
}

/* A line for which there is no memory is left out. */
__attribute__((format(printf, 3, 0))) static bool append(struct fp_screen *screen, enum fp_screen_style style,
                                                         const char *format, va_list args)
{
	struct screen_page *page = screen->page;
	struct screen_line *rows = reallocarray(page->rows, page->n + 1, sizeof(*rows));
	char *text;

	if (!rows)
		return false;
	page->rows = rows;
	if (vasprintf(&text, format, args) < 0)
		return false;
	fit(text, fp_screen_width(screen), screen->utf8);
	page->rows[page->n++] = (struct screen_line){style, text};
	return true;
}

void fp_screen_head(struct fp_screen *screen, enum fp_screen_style style, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	screen->page->n_head += append(screen, style, format, args);
	va_end(args);
}

void fp_screen_body(struct fp_screen *screen, enum fp_screen_style style, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	append(screen, style, format, args);
	va_end(args);
}

unsigned fp_screen_width(const struct fp_screen *screen)
{
	return (unsigned)FP_MAX(getmaxx(stdscr), 1);
}

/* How many head lines are shown: on a terminal of few rows, one row stays for the body. */
static unsigned shown_head(const struct fp_screen *screen)
{
	return FP_MIN(screen->page->n_head, (unsigned)FP_MAX(getmaxy(stdscr) - FOOTER_LINES - 1, 0));
}

unsigned fp_screen_height(const struct fp_screen *screen)
{
	return (unsigned)FP_MAX(getmaxy(stdscr) - FOOTER_LINES - (int)shown_head(screen), 1);
}

/* ---- drawing ---- */

static void put_line(int row, enum fp_screen_style style, const char *text)
{
	static const attr_t looks[] = {
	    [FP_SCREEN_PLAIN] = A_NORMAL, [FP_SCREEN_STRONG] = A_BOLD, [FP_SCREEN_REVERSE] = A_REVERSE};

	wattrset(stdscr, (int)looks[style]);
	if (style == FP_SCREEN_REVERSE) /* before the text, as a full line moves on to the next row */
		mvwhline(stdscr, row, 0, ' ' | looks[style], getmaxx(stdscr));
	mvwaddstr(stdscr, row, 0, text);
	wattrset(stdscr, A_NORMAL);
}

/* "1-20 of 57", if not all of the body is seen. */
static void put_place(const struct fp_screen *screen, int row)
{
	const struct screen_page *page = screen->page;
	unsigned n_body = page->n - page->n_head, height = fp_screen_height(screen);
	char text[64];
	int len;

	if (n_body <= height)
		return;
	len = snprintf(text, sizeof(text), "  %u-%u of %u", page->first + 1, page->first + height, n_body);
	if (len < getmaxx(stdscr))
		mvwaddstr(stdscr, row, getmaxx(stdscr) - len - 1, text);
}

static void put_footer(const struct fp_screen *screen)
{
	int row = getmaxy(stdscr) - FOOTER_LINES;
	char text[FP_LOG_LINE_BYTES + 64];

	if (*logged)
		snprintf(text, sizeof(text), "%.*s", (int)strcspn(logged, "\n"), logged);
	else if (screen->page != screen->pages)
		snprintf(text, sizeof(text), "q back");
	else
		snprintf(text, sizeof(text), "q quit  ? help%s%s", *screen->view->keys ? "  " : "",
		         screen->view->keys);
	fit(text, fp_screen_width(screen), screen->utf8);
	wmove(stdscr, row, 0);
	wclrtoeol(stdscr); /* a terminal of one row has body text there */
	put_line(row, FP_SCREEN_STRONG, text);
	put_place(screen, row);
}

/* Writes the page to the terminal. */
static void put_page(struct fp_screen *screen)
{
	struct screen_page *page = screen->page;
	unsigned height = fp_screen_height(screen), n_body = page->n - page->n_head;
	int row = 0;

	page->first = FP_MIN(page->first, n_body > height ? n_body - height : 0);
	werase(stdscr);
	for (unsigned i = 0; i < shown_head(screen); i++)
		put_line(row++, page->rows[i].style, page->rows[i].text);
	for (unsigned i = page->first; i < n_body && i < page->first + height; i++)
		put_line(row++, page->rows[page->n_head + i].style, page->rows[page->n_head + i].text);
	put_footer(screen);
	wrefresh(stdscr);
}

static void draw_help(struct fp_screen *screen)
{
	for (const char *const *line = screen->view->help; *line; line++)
		fp_screen_body(screen, FP_SCREEN_PLAIN, "%s", *line);
	for (const char *const *line = own_keys; *line; line++)
		fp_screen_body(screen, FP_SCREEN_PLAIN, "%s", *line);
}

/* For each drawing: curses begins with LINES and COLUMNS of the environment, which may say
 * anything. */
static void follow_size(void)
{
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col &&
	    is_term_resized(size.ws_row, size.ws_col))
		resizeterm(size.ws_row, size.ws_col);
}

static void draw(struct fp_screen *screen)
{
	follow_size();
	clear_page(screen->page);
	if (screen->page == screen->pages)
		screen->view->draw(screen, screen->view->user);
	else
		draw_help(screen);
	put_page(screen);
}

/* ---- keys and signals ---- */

/* put_page brings a first line that is too great back to the last page. */
static bool scroll_by_key(struct fp_screen *screen, int key)
{
	struct screen_page *page = screen->page;
	unsigned height = fp_screen_height(screen);

	if (key == KEY_DOWN || key == 'j')
		page->first++;
	else if (key == KEY_UP || key == 'k')
		page->first -= page->first > 0;
	else if (key == KEY_NPAGE || key == ' ')
		page->first += height;
	else if (key == KEY_PPAGE || key == 'b')
		page->first -= FP_MIN(page->first, height);
	else if (key == KEY_HOME || key == 'g')
		page->first = 0;
	else if (key == KEY_END || key == 'G')
		page->first = page->n;
	else
		return false;
	return true;
}

static void take_key(struct fp_screen *screen, int key)
{
	bool helps = screen->page != screen->pages;

	if (scroll_by_key(screen, key))
		return;
	if (key == REDRAW)
		clearok(curscr, TRUE);
	else if (key == '?' || (helps && (key == 'q' || key == 'Q' || key == ESCAPE)))
		screen->page = screen->pages + !helps;
	else if (key == 'q' || key == 'Q')
		screen->quit = true;
	else if (!helps && screen->view->key && key < KEY_MIN)
		screen->view->key(key, screen->view->user);
}

static bool ends_sequence(int key)
{
	return key >= '@' && key <= '~';
}

/*
 * Curses gives ESC alone if it does not know the sequence that ESC begins. Then drops the bytes of
 * the sequence, which are no keys. ESC without any is the key Escape.
 */
static void take_escape(struct fp_screen *screen)
{
	int key = wgetch(stdscr);

	if (key == ERR)
		take_key(screen, ESCAPE);
	else if (key == '[' || key == 'O')
		do
			key = wgetch(stdscr);
		while (key != ERR && !ends_sequence(key));
}

/* The end of the terminal quits, too. */
static void take_keys(struct fp_screen *screen)
{
	int key = wgetch(stdscr);

	if (key == ERR)
		screen->quit = true;
	for (; key != ERR && !screen->quit; key = wgetch(stdscr))
		if (key == ESCAPE)
			take_escape(screen);
		else
			take_key(screen, key);
}

/* SIGWINCH only causes a drawing. All other signals end the screen. */
static void take_signal(struct fp_screen *screen)
{
	struct signalfd_siginfo signal;

	if (read(screen->signal_fd, &signal, sizeof(signal)) == sizeof(signal) &&
	    signal.ssi_signo != SIGWINCH)
		screen->quit = true;
}

/* Takes what comes until one of them asks for a drawing, or until_ns. */
static void wait_for_input(struct fp_screen *screen, uint64_t until_ns)
{
	struct pollfd fds[] = {{.fd = screen->signal_fd, .events = POLLIN},
	                       {.fd = STDIN_FILENO, .events = POLLIN}};
	uint64_t now_ns = fp_clock_ns();
	int wait_ms = now_ns < until_ns ? (int)((until_ns - now_ns) / FP_NSEC_PER_MSEC) + 1 : 0;

	if (poll(fds, FP_ARRAY_LEN(fds), wait_ms) <= 0)
		return;
	if (fds[0].revents)
		take_signal(screen);
	if (fds[1].revents)
		take_keys(screen);
}

/* ---- start and end ---- */

bool fp_screen_possible(void)
{
	bool possible;
	int error;

	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || setupterm(NULL, STDOUT_FILENO, &error) != OK)
		return false;
	possible = cursor_address != NULL;
	del_curterm(cur_term);
	return possible;
}

static int open_terminal(struct fp_screen *screen, sigset_t *ret_mask)
{
	sigset_t signals;

	screen->utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	sigaddset(&signals, SIGQUIT);
	sigaddset(&signals, SIGWINCH);
	screen->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	if (screen->signal_fd < 0)
		return -errno;
	sigprocmask(SIG_BLOCK, &signals, ret_mask);
	screen->terminal = newterm(NULL, stdout, stdin);
	if (!screen->terminal) {
		sigprocmask(SIG_SETMASK, ret_mask, NULL);
		close(screen->signal_fd);
		return -ENOMEM;
	}
	set_escdelay(ESCAPE_MS);
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	nodelay(stdscr, TRUE);
	curs_set(0);
	return 0;
}

static void close_terminal(struct fp_screen *screen, const sigset_t *mask)
{
	clear_page(&screen->pages[0]);
	clear_page(&screen->pages[1]);
	endwin();
	delscreen(screen->terminal);
	close(screen->signal_fd);
	sigprocmask(SIG_SETMASK, mask, NULL);
}

static void say(int error)
{
	char reason[64];

	fp_log(FP_LOG_ERROR, "screen", "%s", fp_strerror(error, reason, sizeof(reason)));
}

int fp_screen_run(const struct fp_screen_view *view, unsigned interval_ms)
{
	struct fp_screen screen = {.view = view, .page = screen.pages};
	uint64_t look_ns = fp_clock_ns();
	sigset_t mask;
	int r = open_terminal(&screen, &mask);

	if (r < 0) {
		say(r);
		return r;
	}
	*logged = '\0';
	fp_log_divert(keep_line);
	while (r == 0 && !screen.quit) {
		if (fp_clock_ns() >= look_ns) {
			*logged = '\0';
			r = view->look(view->user);
			look_ns = fp_clock_ns() + interval_ms * FP_NSEC_PER_MSEC;
		}
		if (r == 0)
			draw(&screen);
		if (r == 0)
			wait_for_input(&screen, look_ns);
	}
	close_terminal(&screen, &mask);
	fp_log_divert(NULL);
	if (r < 0 && *logged)
		fp_log_write(logged, strlen(logged));
	else if (r < 0)
		say(r);
	return r;
}
