/*
 * The characters of a text in UTF-8, and their width on a terminal. Room: tools. Pure, but for the
 * locale: in one without UTF-8, the C library knows the width of ASCII alone.
 */
#ifndef FP_CHARACTER_H
#define FP_CHARACTER_H

#include <wchar.h>

#define FP_CHARACTER_WRONG ((wchar_t)0xfffd)

/* Takes the next character of a text that has not ended: *text then points behind it. Bytes that
 * are no character of UTF-8 give FP_CHARACTER_WRONG. */
wchar_t fp_character_next(const char **text);

/* How many columns a terminal takes for it; 1 if that is not known. */
unsigned fp_character_columns(wchar_t c);

#endif
