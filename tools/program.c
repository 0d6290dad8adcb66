/*
 * The program to start. Room: tools.
 */
#include "program.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"

#define MAX_INTERPRETERS 4 /* the kernel follows as many */

/*
 * The ELF header of this program, a symbol of the linker. It shows the machine for which the shim
 * was built.
 */
extern const Elf64_Ehdr __ehdr_start __attribute__((visibility("hidden")));

/* Returns 0 if path is a file that may be executed. */
static int check_executable(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || access(path, X_OK) < 0)
		return -EACCES;
	return 0;
}

/* Tries one element of PATH, len bytes long. An empty element means the current folder. */
static int try_folder(const char *folder, size_t len, const char *command, char *ret_path, size_t path_len)
{
	int n = snprintf(ret_path, path_len, "%.*s%s%s", (int)len, folder, len ? "/" : "./", command);

	return (size_t)n < path_len ? check_executable(ret_path) : -ENAMETOOLONG;
}

int fp_program_find(const char *command, char *ret_path, size_t len)
{
	const char *folder = getenv("PATH");
	int result = -ENOENT;

	if (!*command)
		return -ENOENT;
	if (strchr(command, '/'))
		return (size_t)snprintf(ret_path, len, "%s", command) < len ? check_executable(command)
		                                                            : -ENAMETOOLONG;
	if (!folder)
		folder = "/usr/local/bin:/usr/bin:/bin";
	for (;; folder++) {
		size_t n = strcspn(folder, ":");
		int r = try_folder(folder, n, command, ret_path, len);

		if (r == 0)
			return 0;
		if (r == -EACCES)
			result = r;
		folder += n;
		if (!*folder)
			return result;
	}
}

/* True if the kernel would set AT_SECURE, so that the loader ignores LD_PRELOAD. */
static bool gains_privilege(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return false;
	return ((st.st_mode & S_ISUID) && st.st_uid != getuid()) ||
	       ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getgid()) ||
	       (getuid() != 0 && fgetxattr(fd, "security.capability", NULL, 0) > 0);
}

static bool read_segment(int fd, const Elf64_Ehdr *header, unsigned i, Elf64_Phdr *ret_segment)
{
	off_t at = (off_t)(header->e_phoff + (uint64_t)i * header->e_phentsize);

	return pread(fd, ret_segment, sizeof(*ret_segment), at) == sizeof(*ret_segment);
}

/*
 * Writes the path of the dynamic loader that the ELF file names. 1; 0: it names none, or a negative
 * errno.
 */
static int find_loader(int fd, const Elf64_Ehdr *header, char *ret_path, size_t len)
{
	Elf64_Phdr segment;

	for (unsigned i = 0; i < header->e_phnum; i++) {
		ssize_t n;

		if (!read_segment(fd, header, i, &segment))
			return -ENOEXEC;
		if (segment.p_type != PT_INTERP)
			continue;
		n = pread(fd, ret_path, FP_MIN(len - 1, (size_t)segment.p_filesz), (off_t)segment.p_offset);
		if (n < 0)
			return -errno;
		ret_path[n] = '\0';
		return 1;
	}
	return 0;
}

/* True if this is the loader of another C library, such as ld-musl-x86_64.so.1. */
static bool is_foreign_loader(const char *path)
{
	static const char *const others[] = {"ld-musl", "ld-uClibc", "ld64-uClibc", "linker"};
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	for (size_t i = 0; i < FP_ARRAY_LEN(others); i++)
		if (strncmp(name, others[i], strlen(others[i])) == 0)
			return true;
	return false;
}

/* Reads a section whole. The caller frees it. NULL: it can't be read, or memory is short. */
static char *read_section(int fd, const Elf64_Shdr *section)
{
	char *bytes = section->sh_size < SIZE_MAX ? malloc(section->sh_size + 1) : NULL;

	if (!bytes ||
	    pread(fd, bytes, section->sh_size, (off_t)section->sh_offset) != (ssize_t)section->sh_size) {
		free(bytes);
		return NULL;
	}
	bytes[section->sh_size] = '\0';
	return bytes;
}

/* True for the name of a sanitizer's start function. */
static bool is_sanitizer_start(const char *name)
{
	static const char *const starts[] = {"__asan_init", "__tsan_init", "__msan_init", "__hwasan_init",
	                                     "__lsan_init"};

	for (size_t i = 0; i < FP_ARRAY_LEN(starts); i++)
		if (strcmp(name, starts[i]) == 0)
			return true;
	return false;
}

static bool read_section_header(int fd, const Elf64_Ehdr *header, unsigned i, Elf64_Shdr *ret_section)
{
	off_t at = (off_t)(header->e_shoff + (uint64_t)i * header->e_shentsize);

	return i < header->e_shnum &&
	       pread(fd, ret_section, sizeof(*ret_section), at) == sizeof(*ret_section);
}

/* A weak symbol that is undefined only asks whether there is a sanitizer. */
static bool is_asked(const Elf64_Sym *symbol)
{
	return symbol->st_shndx == SHN_UNDEF && ELF64_ST_BIND(symbol->st_info) == STB_WEAK;
}

/*
 * True if the program was built with a sanitizer that owns the program's memory. Its runtime lies
 * in the program or in a library; either way, the dynamic symbols show it.
 */
static bool has_sanitizer(int fd, const Elf64_Ehdr *header)
{
	fp_autofree char *symbols = NULL, *names = NULL;
	Elf64_Shdr table = {0}, strings;
	unsigned i = 0;

	while (read_section_header(fd, header, i, &table) && table.sh_type != SHT_DYNSYM)
		i++;
	if (table.sh_type != SHT_DYNSYM || !read_section_header(fd, header, table.sh_link, &strings))
		return false;
	symbols = read_section(fd, &table);
	names = read_section(fd, &strings);
	for (size_t k = 0; symbols && names && k < table.sh_size / sizeof(Elf64_Sym); k++) {
		Elf64_Sym symbol;

		memcpy(&symbol, symbols + k * sizeof(symbol), sizeof(symbol));
		if (symbol.st_name < strings.sh_size && !is_asked(&symbol) &&
		    is_sanitizer_start(names + symbol.st_name))
			return true;
	}
	return false;
}

static bool is_native(const Elf64_Ehdr *header)
{
	return header->e_ident[EI_CLASS] == __ehdr_start.e_ident[EI_CLASS] &&
	       header->e_ident[EI_DATA] == __ehdr_start.e_ident[EI_DATA] &&
	       header->e_machine == __ehdr_start.e_machine;
}

static int check_elf(int fd, const Elf64_Ehdr *header, const char *path, char *error, size_t error_len)
{
	char loader[PATH_MAX];
	int dynamic;

	if (!is_native(header)) {
		snprintf(error, error_len, "%s is built for another machine than Farpage is", path);
		return -ENOEXEC;
	}
	dynamic = find_loader(fd, header, loader, sizeof(loader));
	if (dynamic == 0) {
		snprintf(
		    error, error_len,
		    "%s is statically linked: a preloaded library can't reach it. Use a dynamically linked "
		    "build of it (of a Go program: CGO_ENABLED=1 and a package that uses cgo, so that the "
		    "C library is in it), or link it with libfarpage",
		    path);
		return -ENOEXEC;
	}
	if (dynamic > 0 && is_foreign_loader(loader)) {
		snprintf(
		    error, error_len,
		    "%s is built for another C library than Farpage (its loader is %s). Use a build of it "
		    "for the GNU C library",
		    path, loader);
		return -ENOEXEC;
	}
	if (has_sanitizer(fd, header)) {
		snprintf(
		    error, error_len,
		    "%s is built with a sanitizer (address, thread, memory or leak), which takes the place "
		    "of malloc and of calls that Farpage needs. Run it without Farpage, or use a build "
		    "without the sanitizer",
		    path);
		return -ENOEXEC;
	}
	if (gains_privilege(fd)) {
		snprintf(
		    error, error_len,
		    "%s gains privileges when it starts (set-user-ID, set-group-ID or file capabilities), so "
		    "the loader would ignore Farpage. Run it as the user that it changes to",
		    path);
		return -EPERM;
	}
	return 0;
}

/* Writes to path the interpreter that a script's first line names. False if it names none. */
static bool interpreter_of(char *head, char *path, size_t len)
{
	char *name = head + 2 + strspn(head + 2, " \t");

	if (strncmp(head, "#!", 2) != 0)
		return false;
	name[strcspn(name, " \t\n")] = '\0';
	return *name && (size_t)snprintf(path, len, "%s", name) < len;
}

/*
 * Checks the file at path. Returns 1 if it is a script: path is then its interpreter. Returns 0 if
 * the loader will preload a library into the program, or if that is unknown. Otherwise returns a
 * negative errno, and error has the reason.
 */
static int check_file(char *path, size_t len, char *error, size_t error_len)
{
	fp_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	char reason[64];
	union {
		Elf64_Ehdr elf;
		char text[256];
	} head = {0};

	if (fd < 0 && errno == EACCES)
		return 0; /* an unreadable file may still be executable */
	if (fd < 0 || pread(fd, head.text, sizeof(head.text) - 1, 0) < 0) {
		int r = -errno;

		snprintf(error, error_len, "%s: %s", path, fp_strerror(r, reason, sizeof(reason)));
		return r;
	}
	if (memcmp(head.elf.e_ident, ELFMAG, SELFMAG) == 0)
		return check_elf(fd, &head.elf, path, error, error_len);
	return interpreter_of(head.text, path, len);
}

int fp_program_check(const char *path, char *error, size_t error_len)
{
	char file[PATH_MAX];
	int r = 1;

	snprintf(file, sizeof(file), "%s", path);
	for (unsigned depth = 0; r == 1 && depth <= MAX_INTERPRETERS; depth++)
		r = check_file(file, sizeof(file), error, error_len);
	return r < 0 ? r : 0;
}
