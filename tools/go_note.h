/*
 * Whether a program was made by the Go tool chain. Room: tools.
 */
#ifndef FP_GO_NOTE_H
#define FP_GO_NOTE_H

#include <elf.h>
#include <stdbool.h>

/* True if Go's linker made the file open at fd: it has a note of that name. header is the file's
 * own, of this machine's class and byte order. False as well where the file can't be read or makes
 * no sense. */
bool fp_go_note_found(int fd, const Elf64_Ehdr *header);

#endif
