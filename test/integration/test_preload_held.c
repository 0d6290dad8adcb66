/*
 * Memory that the shim makes local and holds, because kernel code uses it that can't wait for a
 * page: mutexes that are robust or inherit priorities, some operations of futex(2), memory of an
 * AF_XDP socket. Each is used after its page could have left. Room: test/integration.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <linux/futex.h>
#include <linux/if_xdp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "barecall.h"
#include "underpreload.h"

#ifndef AF_XDP
#define AF_XDP 44
#endif
#ifndef SOL_XDP
#define SOL_XDP 283
#endif
#ifndef FUTEX_LOCK_PI2
#define FUTEX_LOCK_PI2 13
#endif

#define PAGE     4096u
#define APART    (17 * PAGE) /* read-ahead for one place brings in no other */
#define PLACES   16u
#define PRESSURE (4 * TEST_LOCAL_BYTES)
#define UMEM     (64 * PAGE)

static char *places, *pressure;

static char *map_far(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED && test_is_far(p));
	return p;
}

static bool is_present(const void *addr)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t entry = 0;

	assert_int_equal(pread(fd, &entry, sizeof(entry), (off_t)((uintptr_t)addr / PAGE * sizeof(entry))),
	                 sizeof(entry));
	close(fd);
	return entry >> 63;
}

/* Touches other far memory, until no page is local that may leave. */
static void press(void)
{
	for (unsigned round = 0; round < 2; round++)
		for (size_t i = 0; i < PRESSURE; i += PAGE)
			((volatile char *)pressure)[i]++;
}

/* A page of its own with bytes in it that is not local. */
static char *remote_place(unsigned n)
{
	char *place = places + (size_t)n * APART;

	test_fill(place, PAGE, n);
	press();
	assert_false(is_present(place));
	return place;
}

/* ---- mutexes ---- */

static void init_mutex(pthread_mutex_t *mutex, int protocol, int robust)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setprotocol(&attr, protocol);
	pthread_mutexattr_setrobust(&attr, robust);
	assert_int_equal(pthread_mutex_init(mutex, &attr), 0);
}

/* The page of such a mutex keeps its other bytes, and never leaves; that of another mutex does. */
static void mutexes_stay(void **state)
{
	char *inherits = remote_place(0), *robust = remote_place(1), *plain = remote_place(2);

	init_mutex((void *)inherits, PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_STALLED);
	init_mutex((void *)robust, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_ROBUST);
	init_mutex((void *)plain, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_STALLED);
	press();
	assert_true(is_present(inherits) && is_present(robust) && !is_present(plain));
	for (unsigned n = 0; n < 3; n++) {
		char expected[PAGE], *place = places + (size_t)n * APART;

		test_fill(expected, PAGE, n);
		assert_memory_equal(place + sizeof(pthread_mutex_t), expected + sizeof(pthread_mutex_t),
		                    PAGE - sizeof(pthread_mutex_t));
	}
}

/* A mutex may lie on two pages. */
static void mutex_on_a_border(void **state)
{
	char *mutex = remote_place(3) + PAGE - sizeof(pthread_mutex_t) / 2;

	init_mutex((void *)mutex, PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_ROBUST);
	press();
	assert_true(is_present(mutex) && is_present(mutex + sizeof(pthread_mutex_t) - 1));
}

static void *take_and_end(void *mutex)
{
	pthread_mutex_lock(mutex);
	return NULL;
}

/* The kernel passes on the mutex of a thread that has ended, though pages leave meanwhile. */
static void owner_ends(void **state)
{
	pthread_mutex_t *mutex = (void *)remote_place(4);
	pthread_t thread;

	for (int protocol = PTHREAD_PRIO_NONE; protocol <= PTHREAD_PRIO_INHERIT; protocol++) {
		init_mutex(mutex, protocol, PTHREAD_MUTEX_ROBUST);
		press();
		assert_int_equal(pthread_create(&thread, NULL, take_and_end, mutex), 0);
		pthread_join(thread, NULL);
		assert_int_equal(pthread_mutex_lock(mutex), EOWNERDEAD);
		assert_int_equal(pthread_mutex_consistent(mutex), 0);
		assert_int_equal(pthread_mutex_unlock(mutex), 0);
		assert_int_equal(pthread_mutex_destroy(mutex), 0);
	}
}

struct shared {
	pthread_mutex_t mutex;
	unsigned count;
};

static void *count_up(void *arg)
{
	struct shared *s = arg;

	for (unsigned i = 0; i < 2000; i++) {
		pthread_mutex_lock(&s->mutex);
		s->count++;
		if (i % 64 == 0)
			sched_yield();
		pthread_mutex_unlock(&s->mutex);
	}
	return NULL;
}

/* Threads wait for a mutex in the kernel, and pages leave meanwhile; then in a forked child. */
static void waiters(void **state)
{
	struct shared *s = (void *)remote_place(5);
	pthread_t threads[4];
	int status;
	pid_t pid;

	s->count = 0;
	init_mutex(&s->mutex, PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_STALLED);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_up, s), 0);
	press();
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(s->count, 8000);
	pid = fork();
	if (pid == 0) {
		press();
		count_up(s);
		_exit(s->count == 10000 ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(s->count, 8000);
}

/* Memory that was held is far again once it is unmapped and mapped anew. */
static void unmapped(void **state)
{
	char *p = map_far(UMEM);

	init_mutex((void *)p, PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_STALLED);
	assert_true(!test_is_far(p) && test_is_far(p + PAGE));
	assert_int_equal(munmap(p, UMEM), 0);
	assert_ptr_equal(
	    mmap(p, UMEM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), p);
	assert_true(test_is_far(p) && p[0] == 0);
	munmap(p, UMEM);
}

/* ---- futexes by number ---- */

static long futex(void *word, int op, long value, const void *other, void *second, long third)
{
	return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, other, second, third);
}

/* A word that is not local, and has this value. */
static uint32_t *remote_word(unsigned n, uint32_t value)
{
	uint32_t *word = (void *)(places + (size_t)n * APART);

	*word = value;
	press();
	assert_false(is_present(word));
	return word;
}

static void futexes_of_owners(void **state)
{
	static const int locks[] = {FUTEX_LOCK_PI, FUTEX_TRYLOCK_PI, FUTEX_LOCK_PI2};
	uint32_t me = (uint32_t)syscall(SYS_gettid), *word;

	for (unsigned i = 0; i < 3; i++) {
		word = remote_word(6 + i, 0);
		if (futex(word, locks[i], 0, NULL, NULL, 0) < 0) {
			assert_int_equal(locks[i], FUTEX_LOCK_PI2);
			assert_int_equal(errno, ENOSYS); /* before Linux 5.14 */
			continue;
		}
		assert_int_equal(*word, me);
		press();
		assert_true(is_present(word));
		assert_int_equal(futex(word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0), 0);
		assert_int_equal(*word, 0);
	}
	word = remote_word(9, me);
	assert_int_equal(futex(word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0), 0);
	assert_int_equal(*word, 0);
}

static void futexes_of_two_words(void **state)
{
	const struct timespec past = {0};
	uint32_t first = 5, *second = remote_word(10, 7);
	const int add = FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 0);

	assert_int_equal(futex(&first, FUTEX_WAKE_OP, 1, (void *)1, second, add), 0);
	assert_int_equal(*second, 10);
	second = remote_word(11, 0);
	assert_int_equal(futex(&first, FUTEX_CMP_REQUEUE_PI, 1, (void *)1, second, 5), 0);
	second = remote_word(12, 0);
	assert_int_equal(futex(&first, FUTEX_WAIT_REQUEUE_PI, 5, &past, second, 0), -1);
	assert_int_equal(errno, ETIMEDOUT);
	assert_true(is_present(second));
}

/* A bare call that can't wait fails with EFAULT, and changes nothing. */
static void bare_futex(void **state)
{
#ifndef NO_BARE_CALLS
	uint32_t *word = remote_word(13, 0);

	assert_int_equal(bare(SYS_futex, word, FUTEX_LOCK_PI | FUTEX_PRIVATE_FLAG, 0, 0, 0, 0), -EFAULT);
	assert_int_equal(*word, 0);
	*word = 0; /* now the page is local, and may be written */
	assert_int_equal(bare(SYS_futex, word, FUTEX_LOCK_PI | FUTEX_PRIVATE_FLAG, 0, 0, 0, 0), 0);
	assert_int_equal(bare(SYS_futex, word, FUTEX_UNLOCK_PI | FUTEX_PRIVATE_FLAG, 0, 0, 0, 0), 0);
#endif
}

/* ---- AF_XDP ---- */

static void register_umem(bool by_number)
{
	struct xdp_umem_reg umem = {.len = UMEM, .chunk_size = PAGE};
	int fd = socket(AF_XDP, SOCK_RAW, 0);
	char *p;

	if (fd < 0) {
		print_message("no AF_XDP sockets here: %s\n", strerror(errno));
		return;
	}
	p = map_far(UMEM);
	test_fill(p, UMEM, 1);
	press();
	assert_false(is_present(p));
	umem.addr = (uintptr_t)p;
	if (by_number)
		assert_int_equal(syscall(SYS_setsockopt, fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof(umem)), 0);
	else
		assert_int_equal(setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof(umem)), 0);
	press();
	assert_true(is_present(p) && is_present(p + UMEM - 1) && test_is_filled(p, UMEM, 1));
	close(fd);
	munmap(p, UMEM);
}

static void xdp_memory(void **state)
{
	register_umem(false);
	register_umem(true);
}

/* ---- */

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(mutexes_stay),
	    cmocka_unit_test(mutex_on_a_border),
	    cmocka_unit_test(owner_ends),
	    cmocka_unit_test(waiters),
	    cmocka_unit_test(unmapped),
	    cmocka_unit_test(futexes_of_owners),
	    cmocka_unit_test(futexes_of_two_words),
	    cmocka_unit_test(bare_futex),
	    cmocka_unit_test(xdp_memory),
	};

	places = map_far((size_t)PLACES * APART);
	pressure = map_far(PRESSURE);
	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
