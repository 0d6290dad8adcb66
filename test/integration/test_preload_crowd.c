/*
 * Hundreds of forked children at once. Each writes all the memory that it shares with its parent,
 * which is more than may be local. The test does not check how many children get a session: a child
 * without a session or lease keeps its pages local. Room: test/integration.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "underpreload.h"

#define CHILDREN 300u
#define BYTES    (5 * (size_t)TEST_LOCAL_BYTES / 4)

/*
 * Writes all its memory, and then a byte to the pipe `ready`. Waits until the pipe `go` is closed.
 * The exit status says whether its bytes are right.
 */
static _Noreturn void live(char *p, unsigned seed, int ready, int go)
{
	char none;

	if (!test_is_filled(p, BYTES, 0))
		_exit(1);
	test_fill(p, BYTES, seed);
	if (write(ready, "", 1) != 1 || close(ready) < 0 || read(go, &none, 1) != 0)
		_exit(2);
	_exit(test_is_filled(p, BYTES, seed) ? 0 : 3);
}

static void hundreds_at_once(void **state)
{
	char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), none;
	int ready[2], go[2], status;

	assert_ptr_not_equal(p, MAP_FAILED);
	test_fill(p, BYTES, 0);
	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe(go), 0);
	for (unsigned i = 1; i <= CHILDREN; i++) {
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0) {
			close(go[1]);
			close(ready[0]);
			live(p, i, ready[1], go[0]);
		}
	}
	close(ready[1]);
	for (unsigned i = 0; i < CHILDREN; i++)
		assert_int_equal(read(ready[0], &none, 1), 1); /* 0: some children have ended */
	close(go[1]);
	for (unsigned i = 0; i < CHILDREN; i++) {
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	assert_true(test_is_filled(p, BYTES, 0));
}

static int tests(void)
{
	const struct CMUnitTest all[] = {cmocka_unit_test(hundreds_at_once)};

	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
