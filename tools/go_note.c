/*
 * The note of Go's linker. Room: tools; see go_note.h. The user names the file: nothing in it is
 * trusted.
 */
#include "go_note.h"

#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define SEGMENTS_MAX 64u
#define NOTES_BYTES  4096u

static uint64_t align4(uint64_t n)
{
	return (n + 3) & ~3ull;
}

/* True if one of the notes in [notes, notes + len) is named "Go". */
static bool has_go_note(const char *notes, uint64_t len)
{
	Elf64_Nhdr note;

	for (uint64_t at = 0; at + sizeof(note) <= len;
	     at += sizeof(note) + align4(note.n_namesz) + align4(note.n_descsz)) {
		memcpy(&note, notes + at, sizeof(note));
		if (note.n_namesz >= 3 && note.n_namesz <= len - at - sizeof(note) &&
		    memcmp(notes + at + sizeof(note), "Go", 3) == 0)
			return true;
	}
	return false;
}

bool fp_go_note_found(int fd, const Elf64_Ehdr *header)
{
	Elf64_Phdr segment;
	char notes[NOTES_BYTES];

	for (unsigned i = 0; i < header->e_phnum && i < SEGMENTS_MAX; i++) {
		off_t at = (off_t)(header->e_phoff + (uint64_t)i * header->e_phentsize);
		ssize_t n;

		if (pread(fd, &segment, sizeof(segment), at) != sizeof(segment))
			return false;
		if (segment.p_type != PT_NOTE)
			continue;
		n = pread(fd, notes, segment.p_filesz < sizeof(notes) ? segment.p_filesz : sizeof(notes),
		          (off_t)segment.p_offset);
		if (n > 0 && has_go_note(notes, (uint64_t)n))
			return true;
	}
	return false;
}
