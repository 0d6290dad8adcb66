/*
 * A library that, when it is preloaded, changes the value of --seed in a program's arguments. So a
 * workload of `farpage bench apps` computes something else. Room: test/lib.
 */
#include <string.h>

__attribute__((constructor)) static void change_seed(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i++)
		if (strcmp(argv[i], "--seed") == 0)
			argv[i + 1][0] = argv[i + 1][0] == '1' ? '2' : '1';
}
