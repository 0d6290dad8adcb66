/*
 * The program that `farpage run` starts: found as a shell finds it, and refused with the reason if
 * the preload library can't be loaded into it.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "program.h"

static char folder[PATH_MAX];

static const char *path_of(const char *name)
{
	static char path[PATH_MAX + 16];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void write_file(const char *name, const void *bytes, size_t len, mode_t mode)
{
	int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, len), len);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static int begin(void **state)
{
	snprintf(folder, sizeof(folder), "/tmp/farpage-program.XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state)
{
	static const char *const names[] = {"here", "plain", "script", "loop", "elf"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		unlink(path_of(names[i]));
	return rmdir(folder);
}

static void found_as_a_shell_finds_it(void **state)
{
	char found[PATH_MAX], path[PATH_MAX + 64];

	write_file("here", "", 0, 0755);
	write_file("plain", "", 0, 0644);
	snprintf(path, sizeof(path), "/nonexistent:%s:/usr/bin:/bin", folder);
	setenv("PATH", path, 1);
	assert_int_equal(fp_program_find("here", found, sizeof(found)), 0);
	assert_string_equal(found, path_of("here"));
	assert_int_equal(fp_program_find("sh", found, sizeof(found)), 0);
	assert_int_equal(fp_program_find("plain", found, sizeof(found)), -EACCES);
	assert_int_equal(fp_program_find("absent-here", found, sizeof(found)), -ENOENT);
	assert_int_equal(fp_program_find("", found, sizeof(found)), -ENOENT);
	assert_int_equal(fp_program_find(path_of("plain"), found, sizeof(found)), -EACCES);
	assert_int_equal(fp_program_find(folder, found, sizeof(found)), -EACCES);
	assert_int_equal(fp_program_find(path_of("here"), found, 8), -ENAMETOOLONG);
}

/* In PATH, an empty element is the working directory. */
static void an_empty_element_is_here(void **state)
{
	char found[PATH_MAX];

	write_file("here", "", 0, 0755);
	setenv("PATH", "/nonexistent::/usr/bin", 1);
	assert_int_equal(chdir(folder), 0);
	assert_int_equal(fp_program_find("here", found, sizeof(found)), 0);
	assert_string_equal(found, "./here");
	assert_int_equal(chdir("/"), 0);
}

static void a_dynamic_program_and_its_scripts_pass(void **state)
{
	char error[512] = "";

	assert_int_equal(fp_program_check("/bin/sh", error, sizeof(error)),
	                 0); /* this test may have a sanitizer */
	write_file("script", "#! /bin/sh -e\n", 14, 0755);
	assert_int_equal(fp_program_check(path_of("script"), error, sizeof(error)), 0);
	write_file("script", "neither\n", 8, 0755); /* left to the kernel, which refuses it */
	assert_int_equal(fp_program_check(path_of("script"), error, sizeof(error)), 0);
	assert_string_equal(error, "");
}

static const char *loader = "/lib64/ld-linux-x86-64.so.2"; /* which write_elf names */
static const char *symbols = "";                           /* its one dynamic symbol, undefined */
static unsigned char binding = STB_GLOBAL;                 /* of that symbol */

/*
 * Writes an ELF header as this machine's linker does, with one program header of the given type,
 * and one section.
 */
static void write_elf(uint32_t type, uint16_t machine)
{
	struct {
		Elf64_Ehdr header;
		Elf64_Phdr segment;
		Elf64_Shdr sections[2];
		Elf64_Sym symbol;
		char loader[64], symbols[64];
	} elf = {0};
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(read(fd, &elf.header, sizeof(elf.header)), sizeof(elf.header));
	close(fd);
	elf.header.e_phoff = sizeof(elf.header);
	elf.header.e_phnum = 1;
	elf.header.e_phentsize = sizeof(elf.segment);
	if (machine)
		elf.header.e_machine = machine;
	elf.segment = (Elf64_Phdr){
	    .p_type = type, .p_offset = offsetof(__typeof__(elf), loader), .p_filesz = sizeof(elf.loader)};
	elf.header.e_shoff = offsetof(__typeof__(elf), sections);
	elf.header.e_shnum = 2;
	elf.header.e_shentsize = sizeof(elf.sections[0]);
	elf.sections[0] = (Elf64_Shdr){.sh_type = SHT_STRTAB,
	                               .sh_offset = offsetof(__typeof__(elf), symbols),
	                               .sh_size = sizeof(elf.symbols)};
	elf.sections[1] = (Elf64_Shdr){.sh_type = SHT_DYNSYM,
	                               .sh_offset = offsetof(__typeof__(elf), symbol),
	                               .sh_size = sizeof(elf.symbol)};
	elf.symbol.st_info = ELF64_ST_INFO(binding, STT_FUNC);
	snprintf(elf.loader, sizeof(elf.loader), "%s", loader);
	snprintf(elf.symbols, sizeof(elf.symbols), "%s", symbols);
	write_file("elf", &elf, sizeof(elf), 0755);
}

static void a_static_program_is_refused(void **state)
{
	char error[512];

	write_elf(PT_LOAD, 0);
	assert_int_equal(fp_program_check(path_of("elf"), error, sizeof(error)), -ENOEXEC);
	assert_non_null(strstr(error, "statically linked"));
	assert_non_null(strstr(error, "CGO_ENABLED=1"));
	write_elf(PT_INTERP, 0);
	assert_int_equal(fp_program_check(path_of("elf"), error, sizeof(error)), 0);
}

static void another_machine_is_refused(void **state)
{
	char error[512];

	write_elf(PT_INTERP, EM_SPARCV9);
	assert_int_equal(fp_program_check(path_of("elf"), error, sizeof(error)), -ENOEXEC);
	assert_non_null(strstr(error, "another machine"));
}

static void another_c_library_is_refused(void **state)
{
	char error[512];

	loader = "/lib/ld-musl-x86_64.so.1";
	write_elf(PT_INTERP, 0);
	assert_int_equal(fp_program_check(path_of("elf"), error, sizeof(error)), -ENOEXEC);
	assert_non_null(strstr(error, loader));
	loader = "/opt/glibc/lib/ld-2.31.so";
	write_elf(PT_INTERP, 0);
	assert_int_equal(fp_program_check(path_of("elf"), error, sizeof(error)), 0);
}

static void a_sanitizer_is_refused(void **state)
{
	static const char *const starts[] = {"__asan_init", "__tsan_init", "__msan_init", "__hwasan_init",
	                                     "__lsan_init"};
	char error[512];

	for (size_t i = 0; i < sizeof(starts) / sizeof(*starts); i++) {
		symbols = starts[i];
		write_elf(PT_INTERP, 0);
		assert_int_equal(fp_program_check(path_of("elf"), error, sizeof(error)), -ENOEXEC);
		assert_non_null(strstr(error, "sanitizer"));
	}
	binding = STB_WEAK; /* the program asks whether there is one */
	write_elf(PT_INTERP, 0);
	assert_int_equal(fp_program_check(path_of("elf"), error, sizeof(error)), 0);
	binding = STB_GLOBAL;
	symbols = "__ubsan_init"; /* it leaves memory alone */
	write_elf(PT_INTERP, 0);
	assert_int_equal(fp_program_check(path_of("elf"), error, sizeof(error)), 0);
	symbols = "";
}

/* The loader ignores LD_PRELOAD for a program that changes its user. */
static void a_program_that_gains_privileges_is_refused(void **state)
{
	char error[512];

	write_elf(PT_INTERP, 0);
	if (chown(path_of("elf"), geteuid() + 1, (gid_t)-1) < 0) {
		print_message("only root can give a file away\n");
		skip();
	}
	assert_int_equal(chmod(path_of("elf"), 04755), 0);
	assert_int_equal(fp_program_check(path_of("elf"), error, sizeof(error)), -EPERM);
	assert_non_null(strstr(error, "gains privileges"));
}

/*
 * Scripts whose interpreter is itself a script. They are followed as deep as the kernel follows
 * them, and no deeper.
 */
static void a_loop_of_scripts_ends(void **state)
{
	char error[512], text[PATH_MAX + 32];
	int len = snprintf(text, sizeof(text), "#!%s\n", path_of("loop"));

	write_file("loop", text, (size_t)len, 0755);
	assert_int_equal(fp_program_check(path_of("loop"), error, sizeof(error)), 0);
	assert_int_equal(fp_program_check(path_of("absent"), error, sizeof(error)), -ENOENT);
	assert_non_null(strstr(error, "absent"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(found_as_a_shell_finds_it),
	    cmocka_unit_test(an_empty_element_is_here),
	    cmocka_unit_test(a_dynamic_program_and_its_scripts_pass),
	    cmocka_unit_test(a_static_program_is_refused),
	    cmocka_unit_test(another_machine_is_refused),
	    cmocka_unit_test(another_c_library_is_refused),
	    cmocka_unit_test(a_sanitizer_is_refused),
	    cmocka_unit_test(a_program_that_gains_privileges_is_refused),
	    cmocka_unit_test(a_loop_of_scripts_ends),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
