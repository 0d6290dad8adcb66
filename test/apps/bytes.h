/*
 * Memory in which every word is known, for the test programs of this folder. Room: test/apps;
 * nothing here knows of Farpage.
 */
#ifndef BYTES_H
#define BYTES_H

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096u
#define MIB  (1u << 20)

static inline uint64_t word_of(size_t i, uint64_t seed)
{
	return (i + 1) * 0x9e3779b97f4a7c15u ^ seed;
}

static inline void fill(void *memory, size_t len, uint64_t seed)
{
	uint64_t *words = memory;

	for (size_t i = 0; i < len / sizeof(*words); i++)
		words[i] = word_of(i, seed);
}

/* Ends the program if a word differs from the one that fill wrote. */
static inline void verify(const void *memory, size_t len, uint64_t seed, const char *what)
{
	const uint64_t *words = memory;

	for (size_t i = 0; i < len / sizeof(*words); i++)
		if (words[i] != word_of(i, seed)) {
			printf("%s: word %zu is %#" PRIx64 ", not %#" PRIx64 "\n", what, i, words[i],
			       word_of(i, seed));
			exit(1);
		}
}

static inline void require(int condition, const char *what)
{
	if (condition)
		return;
	printf("failed: %s\n", what);
	perror(what);
	exit(1);
}

static inline void *map_bytes(size_t len)
{
	void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	require(memory != MAP_FAILED, "mmap");
	return memory;
}

/* Writes and reads back more memory than may be local, so that all other memory is paged out. */
static inline void push_out(void)
{
	static uint64_t round;
	const size_t len = 12 * MIB;
	void *memory = map_bytes(len);

	fill(memory, len, ++round);
	verify(memory, len, round, "push_out");
	munmap(memory, len);
}

#endif
