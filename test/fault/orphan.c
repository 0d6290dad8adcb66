/*
 * orphan: a program that has more memory than may be local, and a child with a copy of it. Room:
 * test/fault; it knows nothing of Farpage.
 *
 * The child checks its parent's bytes and writes its own. Then it prints "parent PID child PID".
 * From then on the parent does nothing. For each of two lines of input the child checks its bytes
 * and writes new ones. At the end it prints "child: as it should be" and has status 0.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PAGE_WORDS (4096 / sizeof(uint64_t))
#define WORDS      ((18u << 20) / sizeof(uint64_t))

static uint64_t word_of(uint64_t i, uint64_t seed)
{
	return (i + 1) * 0x9e3779b97f4a7c15u ^ seed;
}

static void fill(uint64_t *words)
{
	for (uint64_t i = 0; i < WORDS; i += PAGE_WORDS)
		words[i] = word_of(i, 0);
}

/* Checks that the bytes are those of seed, and writes those of seed + 1. */
static void turn(uint64_t *words, uint64_t seed)
{
	for (uint64_t i = 0; i < WORDS; i += PAGE_WORDS) {
		if (words[i] != word_of(i, seed)) {
			printf("word %ju is %#jx\n", (uintmax_t)i, (uintmax_t)words[i]);
			exit(1);
		}
		words[i] = word_of(i, seed + 1);
	}
}

static void live_on(uint64_t *words)
{
	turn(words, 0);
	printf("parent %d child %d\n", getppid(), getpid());
	fflush(stdout);
	getchar();
	turn(words, 1);
	turn(words, 2);
	puts("child: as it should be");
	exit(0);
}

int main(void)
{
	uint64_t *words = malloc(WORDS * sizeof(*words));
	pid_t pid;

	if (!words)
		return 2;
	fill(words);
	pid = fork();
	if (pid == 0)
		live_on(words);
	if (pid < 0)
		return 2;
	for (;;)
		pause();
}
