/*
 * A screen: it fills the terminal, is drawn anew in each interval, and takes keys. Room: tools;
 * only screen.c includes curses.
 *
 * A view writes lines of text; the screen cuts them at the width of the terminal. From top to
 * bottom: head lines, which stay; body lines, which scroll; and a last line of the screen's own. It
 * names the keys, or shows what was logged since the last look. The screen's own keys: q and ^C
 * quit, ? shows the help, ^L draws everything again; arrows, j, k, page keys, Home and End scroll.
 * It follows a change of the terminal's size at once.
 */
#ifndef FP_SCREEN_H
#define FP_SCREEN_H

#include <stdbool.h>

struct fp_screen;

enum fp_screen_style {
	FP_SCREEN_PLAIN,
	FP_SCREEN_STRONG,  /* bold */
	FP_SCREEN_REVERSE, /* over the whole width, for titles */
};

/* What a screen shows. All functions are called by fp_screen_run, on its thread. */
struct fp_screen_view {
	/* For the last line, the view's own keys: "p phase  s sort". "": none. */
	const char *keys;
	/* The lines of the help, above those about the screen's own keys. NULL ends them. */
	const char *const *help;
	/*
	 * Takes new figures: before the first drawing, then after each interval. Returns 0, or a
	 * negative errno that ends the screen. What it logs does not disturb the terminal.
	 */
	int (*look)(void *user);
	/* Writes all lines, by fp_screen_head first, then by fp_screen_body. Also called after a
	 * key and after a change of size: it must show the figures of the last look. */
	void (*draw)(struct fp_screen *screen, void *user);
	/* Takes a character that is no key of the screen's own. NULL: the view has no keys. */
	void (*key)(int key, void *user);
	void *user;
};

/*
 * True if standard input and output are a terminal on which a screen can be drawn. If not, a
 * command prints plain text instead.
 */
bool fp_screen_possible(void);

/*
 * Shows view until the user quits, a TERM, HUP or QUIT comes, or look fails; then the terminal is
 * as before. Blocks. Returns 0, or a negative errno after a message. If look failed, it is look's
 * error, and the message is what look logged last. -ENOMEM, -EMFILE: the terminal could not be
 * opened. Call only if fp_screen_possible, once at a time. The locale must be set (setlocale).
 */
int fp_screen_run(const struct fp_screen_view *view, unsigned interval_ms);

/*
 * For draw: the columns of the terminal, and the rows that are left for body lines. The head lines
 * so far and the last line take the other rows. Both are at least 1.
 */
unsigned fp_screen_width(const struct fp_screen *screen);
unsigned fp_screen_height(const struct fp_screen *screen);

/*
 * One line of text, in UTF-8. What the terminal cannot show becomes "?", or a character like it:
 * control characters, and in a locale without UTF-8 what is not ASCII ("u" for "µ", "#" for
 * blocks).
 */
void fp_screen_head(struct fp_screen *screen, enum fp_screen_style style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void fp_screen_body(struct fp_screen *screen, enum fp_screen_style style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
