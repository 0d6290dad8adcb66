/*
 * children fork|spawn|vfork|exec: a program that has more memory than may be local. It starts a
 * child in the named way, and checks its bytes. Its output does not depend on where its memory is.
 * Room: test/apps; it knows nothing of Farpage.
 */
#include <errno.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS (64u << 20 >> 3)
#define DEPTH 3 /* generations of forked children */

static char echo_name[] = "echo", echo_text[] = "the other program";
static char *const echo_argv[] = {echo_name, echo_text, NULL};

static uint64_t word_of(uint64_t i, uint64_t seed)
{
	return (i + 1) * 0x9e3779b97f4a7c15u ^ seed;
}

static void fill(uint64_t *words, uint64_t seed)
{
	for (uint64_t i = 0; i < WORDS; i++)
		words[i] = word_of(i, seed);
}

static void verify(const uint64_t *words, uint64_t seed, const char *who)
{
	for (uint64_t i = 0; i < WORDS; i++)
		if (words[i] != word_of(i, seed)) {
			printf("%s: word %ju is %#jx\n", who, (uintmax_t)i, (uintmax_t)words[i]);
			exit(1);
		}
	printf("%s: every word as it should be\n", who);
	fflush(stdout);
}

static int wait_for(pid_t pid)
{
	int status;

	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/*
 * Forks a child. The child checks its parent's bytes, writes bytes of its own, and forks in its
 * turn. When the child has ended, the parent's bytes must be unchanged.
 */
static int generation(uint64_t *words, uint64_t depth)
{
	pid_t pid;
	int status;

	if (depth == DEPTH)
		return 0;
	pid = fork();
	if (pid == 0) {
		verify(words, depth, "child");
		fill(words, depth + 1);
		exit(generation(words, depth + 1));
	}
	status = wait_for(pid);
	verify(words, depth, "parent");
	return status;
}

static int spawned(void)
{
	pid_t pid = -1;
	int r = posix_spawn(&pid, "/bin/echo", NULL, NULL, echo_argv, environ);

	return r == 0 ? wait_for(pid) : -1;
}

static int vforked(void)
{
	pid_t pid = vfork();

	if (pid == 0) {
		execv("/bin/echo", echo_argv);
		_exit(127);
	}
	return wait_for(pid);
}

int main(int argc, char **argv)
{
	const char *way = argc == 2 ? argv[1] : "";
	uint64_t *words = malloc(WORDS * sizeof(*words));
	int status = 2;

	if (!words)
		return 2;
	fill(words, 0);
	if (strcmp(way, "fork") == 0)
		status = generation(words, 0);
	else if (strcmp(way, "spawn") == 0)
		status = spawned();
	else if (strcmp(way, "vfork") == 0)
		status = vforked();
	else if (strcmp(way, "exec") == 0)
		execv("/bin/echo", echo_argv);
	verify(words, 0, "program");
	free(words);
	return status;
}
