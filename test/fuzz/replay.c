/*
 * Gives a fuzz target every file of a folder, whole and cut short at each length: a corpus as a plain test.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "fuzz.h"

#define MAX_INPUT_BYTES 65536

/* Each prefix lies at the very end of its own memory, so that the sanitizers see a read beyond it. */
static void replay_prefixes(const uint8_t *bytes, size_t len)
{
	for (size_t n = 0; n <= len; n++) {
		fp_autofree uint8_t *copy = malloc(n);

		if (n > 0)
			memcpy(copy, bytes, n);
		LLVMFuzzerTestOneInput(copy, n);
	}
}

static int replay_file(int folder, const char *name)
{
	fp_autoclose int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
	static uint8_t bytes[MAX_INPUT_BYTES];
	ssize_t len = read(fd, bytes, sizeof(bytes));

	if (len < 0) {
		perror(name);
		return 1;
	}
	printf("%s: %zd bytes\n", name, len);
	replay_prefixes(bytes, (size_t)len);
	return 0;
}

int main(int argc, char **argv)
{
	DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
	unsigned files = 0;
	int failed = 0;

	if (!folder) {
		fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
		return 2;
	}
	for (struct dirent *e; (e = readdir(folder));)
		if (e->d_type == DT_REG) {
			failed |= replay_file(dirfd(folder), e->d_name);
			files++;
		}
	closedir(folder);
	return failed || files == 0;
}
