/*
 * Gives a fuzz target every file of a folder: whole, cut short at each length, and changed at
 * random as often as asked. So a corpus is a plain test.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "fuzz.h"
#include "testrng.h"

#define MAX_INPUT_BYTES 65536
#define MAX_CHANGES     4

struct replay {
	bool whole;         /* gives each file unchanged, and nothing else */
	unsigned mutations; /* random changes of each file */
	uint64_t rng;
};

/* The bytes lie at the end of a separate block, so that the sanitizers see a read beyond them. */
static void give(const uint8_t *bytes, size_t len)
{
	fp_autofree uint8_t *copy = malloc(len);

	if (len > 0)
		memcpy(copy, bytes, len);
	LLVMFuzzerTestOneInput(copy, len);
}

/* Replaces a byte, flips a bit, removes a piece, or copies a piece over another. */
static size_t change(uint8_t *bytes, size_t len, uint64_t *rng)
{
	size_t at = test_random(rng) % len, from = test_random(rng) % len;
	size_t n = 1 + test_random(rng) % (len - FP_MAX(at, from));

	switch (test_random(rng) % 4) {
	case 0:
		bytes[at] = (uint8_t)test_random(rng);
		return len;
	case 1:
		bytes[at] ^= (uint8_t)(1u << test_random(rng) % 8);
		return len;
	case 2:
		memmove(bytes + at, bytes + at + n, len - at - n);
		return len - n;
	default:
		memmove(bytes + at, bytes + from, n);
		return len;
	}
}

static void give_mutations(struct replay *replay, const uint8_t *bytes, size_t len)
{
	static uint8_t changed[MAX_INPUT_BYTES];

	for (unsigned i = 0; i < replay->mutations; i++) {
		size_t changed_len = len;

		memcpy(changed, bytes, len);
		for (uint64_t n = 1 + test_random(&replay->rng) % MAX_CHANGES; n > 0 && changed_len > 0; n--)
			changed_len = change(changed, changed_len, &replay->rng);
		give(changed, changed_len);
	}
}

static int replay_file(struct replay *replay, int folder, const char *name)
{
	fp_autoclose int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
	static uint8_t bytes[MAX_INPUT_BYTES];
	ssize_t len = read(fd, bytes, sizeof(bytes));

	if (len < 0) {
		perror(name);
		return 1;
	}
	if (replay->whole) {
		give(bytes, (size_t)len);
		return 0;
	}
	printf("%s: %zd bytes\n", name, len);
	fflush(stdout);
	for (size_t n = 0; n <= (size_t)len; n++)
		give(bytes, n);
	give_mutations(replay, bytes, (size_t)len);
	return 0;
}

/* Returns the number of files, or -1. */
static int replay_folder(struct replay *replay, DIR *folder)
{
	int files = 0;

	rewinddir(folder);
	for (struct dirent *e; (e = readdir(folder));) {
		if (e->d_type != DT_REG)
			continue;
		if (replay_file(replay, dirfd(folder), e->d_name))
			return -1;
		files++;
	}
	return files;
}

__attribute__((weak)) unsigned fuzz_missing(void)
{
	return 0;
}

int main(int argc, char **argv)
{
	DIR *folder = argc == 3 ? opendir(argv[1]) : NULL;
	struct replay replay = {.whole = true};
	bool failed;

	if (!folder) {
		fprintf(stderr, "usage: %s FOLDER MUTATIONS\n", argv[0]);
		return 2;
	}
	replay.mutations = (unsigned)atoi(argv[2]);
	replay.rng = test_seed(argv[0]);
	failed = replay_folder(&replay, folder) <= 0 || fuzz_missing() > 0;
	replay.whole = false;
	failed |= replay_folder(&replay, folder) <= 0;
	closedir(folder);
	return failed;
}
