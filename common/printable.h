/*
 * Characters that may not reach a terminal or a log, because they are no text: a terminal obeys
 * control characters, and format characters turn the direction of what follows or are not seen.
 * Room: common. Pure; any thread, also in a signal handler.
 */
#ifndef FP_PRINTABLE_H
#define FP_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Returns how many bytes the character at `at` has, 1 at least. *ret_bad: it is a control or format
 * character of UTF-8, or a byte that is no UTF-8 but a control character (0x80 to 0x9f). len: how
 * many bytes there are, 1 at least.
 */
size_t fp_printable_char(const char *at, size_t len, bool *ret_bad);

/* Replaces each byte of such characters, except newlines if `lines` is not 0, by `with`. */
void fp_printable_blank(char *text, size_t len, char with, int lines);

#endif
