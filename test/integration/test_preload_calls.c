/*
 * Calls of the C library on far memory that was paged out: the calls of callsteps.c, calls with
 * more bytes than can be resident, objects on which threads wait, and calls that do not return.
 * Room: test/integration.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include <linux/filter.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#include "callslong.h"
#include "callsteps.h"
#include "underpreload.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef SYS_futex_requeue
#define SYS_futex_requeue 456
#endif

#define PAGE     STEP_PAGE
#define PRESSURE (4 * TEST_LOCAL_BYTES)
#define GAP      ((size_t)128 * PAGE)

char *test_big_far, *test_big_local, test_folder[64];
static char *far_areas, *pressure;

/* ---- paging out ---- */

void test_evict_all(void)
{
	for (int round = 0; round < 2; round++)
		for (size_t i = 0; i < PRESSURE; i += PAGE)
			((volatile char *)pressure)[i]++;
}

static bool is_present(const void *addr)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t entry = 0;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &entry, sizeof(entry), (off_t)((uintptr_t)addr / PAGE * sizeof(entry))),
	                 sizeof(entry));
	close(fd);
	return entry >> 63;
}

void test_evict(const char *start, size_t len)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	/*
	 * A call that never returned may have left a pin. That pin ends when the thread pins again.
	 */
	assert_int_equal(write(null, start, 1), 1);
	close(null);
	test_evict_all();
	for (size_t i = 0; i < len; i += PAGE)
		for (int tries = 0; is_present(start + i); tries++) {
			if (tries >= 50)
				fail_msg("%p of %p stays", (const void *)(start + i), (const void *)start);
			test_evict_all();
		}
}

static void steps(void **state)
{
	test_call_steps(far_areas);
}

bool test_is_pinning(void)
{
	const char *mode = getenv("FARPAGE_FAULT_MODE");

	return (mode && strcmp(mode, "inline") == 0) || getenv("FP_TEST_USER_ONLY");
}

bool test_is_refused(long result, int error)
{
	if (!test_is_pinning() || result >= 0)
		return false;
	assert_int_equal(errno, error);
	return true;
}

/* The addresses belong to the child, where the same addresses are not far. */
static void another_process(void **state)
{
	struct iovec to = {test_big_local, BIG}, from = {test_big_far, BIG};
	int pair[2];
	char byte;
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	pid = fork();
	close(pair[pid != 0]);
	if (pid == 0) {
		mmap(test_big_far, BIG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1,
		     0);
		memset(test_big_far, 'c', BIG);
		(void)!write(pair[1], "", 1);
		_exit((int)read(pair[1], &byte, 1)); /* ends when the parent closes its end */
	}
	memset(test_big_local, 0, BIG);
	assert_int_equal(read(pair[0], &byte, 1), 1);
	assert_int_equal(process_vm_readv(pid, &to, 1, &from, 1, 0), BIG);
	assert_int_equal(test_big_local[0] + test_big_local[BIG - 1], 2 * 'c');
	close(pair[0]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* ---- objects on which threads wait ---- */

#define ROUNDS  200
#define THREADS 4

struct objects {
	pthread_mutex_t mutex;
	char a[PAGE];
	pthread_cond_t cond;
	char b[PAGE];
	pthread_rwlock_t rwlock;
	char c[PAGE];
	pthread_barrier_t barrier;
	char d[PAGE];
	sem_t sem;
	char e[PAGE];
	pthread_once_t once;
	pthread_mutex_t inherits;
	unsigned turn, total;
};

static void *take_turns(void *arg)
{
	struct objects *o = arg;

	pthread_barrier_wait(&o->barrier);
	for (unsigned i = 0; i < ROUNDS; i++) {
		pthread_mutex_lock(&o->mutex);
		o->turn++;
		pthread_cond_broadcast(&o->cond);
		while (o->turn % THREADS != 0 && o->turn < (i + 1) * THREADS)
			pthread_cond_wait(&o->cond, &o->mutex);
		pthread_mutex_unlock(&o->mutex);
		pthread_rwlock_wrlock(&o->rwlock);
		o->total++;
		pthread_rwlock_unlock(&o->rwlock);
		pthread_rwlock_rdlock(&o->rwlock);
		pthread_rwlock_unlock(&o->rwlock);
		pthread_mutex_lock(&o->inherits);
		o->total++;
		pthread_mutex_unlock(&o->inherits);
		sem_wait(&o->sem);
		sem_post(&o->sem);
	}
	return NULL;
}

static atomic_bool go_on;

static void *keep_evicting(void *unused)
{
	while (go_on)
		test_evict_all();
	return NULL;
}

static void init_objects(struct objects *o)
{
	pthread_mutexattr_t attr;

	memset(o, 0, sizeof(*o));
	pthread_mutex_init(&o->mutex, NULL);
	pthread_cond_init(&o->cond, NULL);
	pthread_rwlock_init(&o->rwlock, NULL);
	pthread_barrier_init(&o->barrier, NULL, THREADS);
	sem_init(&o->sem, 0, 1);
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(&o->inherits, &attr);
}

/* All objects on which these threads wait lie in far memory, whose pages leave all the time. */
static void threads(void **state)
{
	struct objects *o = (void *)(far_areas + 100);
	pthread_t thread[THREADS], evictor;

	init_objects(o);
	go_on = true;
	assert_int_equal(pthread_create(&evictor, NULL, keep_evicting, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, take_turns, o), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	go_on = false;
	pthread_join(evictor, NULL);
	assert_int_equal(o->turn, THREADS * ROUNDS);
}

/* ---- arguments that point at more memory ---- */

struct waiter {
	uint64_t value, address;
	uint32_t flags, reserved;
};

static void *wake(void *word)
{
	*(atomic_uint *)word = 1;
	while (go_on) {
		syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		sched_yield();
	}
	return NULL;
}

static void waits_for_many(void **state)
{
	struct waiter *waiters = (void *)far_areas;
	struct timespec *until = (void *)(far_areas + PAGE);
	pthread_t thread;
	long woken;

	memset(test_big_far, 0, 8 * PAGE);
	for (unsigned i = 0; i < 8; i++)
		waiters[i] = (struct waiter){.address = (uintptr_t)test_big_far + i * PAGE, .flags = 2 | 128};
	clock_gettime(CLOCK_MONOTONIC, until);
	until->tv_sec += 60;
	go_on = true;
	test_evict(far_areas, 2 * PAGE);
	test_evict(test_big_far, 8 * PAGE);
	assert_int_equal(pthread_create(&thread, NULL, wake, test_big_far + 5 * PAGE), 0);
	woken = syscall(SYS_futex_waitv, waiters, 8, 0, until, CLOCK_MONOTONIC);
	go_on = false;
	pthread_join(thread, NULL);
	if (test_is_refused(woken, woken < 0 ? ENOSYS : 0))
		return;
	if (woken < 0 && errno == ENOSYS)
		skip();
	assert_true(woken == 5 || errno == EAGAIN);
}

/*
 * Asks the kernel to wake a waiter or to move it to another word. Nobody waits, but the kernel
 * still looks at both words.
 */
static void requeue(void **state)
{
	struct waiter *waiters = (void *)(far_areas + PAGE - 20);
	_Atomic uint32_t *first = (void *)(test_big_far + 8), *second = (void *)(test_big_far + PAGE + 8);
	long r;

	*first = 7;
	*second = 8;
	waiters[0] = (struct waiter){.value = 7, .address = (uintptr_t)first, .flags = 2};
	waiters[1] = (struct waiter){.value = 8, .address = (uintptr_t)second, .flags = 2};
	test_evict(far_areas, 2 * PAGE);
	test_evict(test_big_far, 2 * PAGE);
	r = syscall(SYS_futex_requeue, waiters, 0, 1, 1);
	if (test_is_refused(r, ENOSYS))
		return;
	if (r < 0 && errno == ENOSYS)
		skip();
	assert_int_equal(r, 0);
}

/* The components of XSAVE: those that the processor has, and those that are permitted. */
static void processor(void **state)
{
	static const int asks[] = {0x1021, 0x1022, 0x1024};
	uint64_t *told = (void *)(test_big_far + PAGE - 4), here = 0;

	for (size_t i = 0; i < sizeof(asks) / sizeof(*asks); i++) {
		if (syscall(SYS_arch_prctl, asks[i], &here) < 0)
			skip(); /* the kernel is too old, or the processor has no XSAVE */
		memset(told, 0, sizeof(*told));
		test_evict(test_big_far, 2 * PAGE);
		assert_int_equal(syscall(SYS_arch_prctl, asks[i], told), 0);
		assert_memory_equal(told, &here, sizeof(here));
	}
}

/*
 * The shim does not know the filter to which the argument points. So the call gives EFAULT once the
 * filter is paged out.
 */
static void filters(void **state)
{
	const struct sock_filter all = {.code = BPF_RET | BPF_K, .k = 3};
	struct sock_filter *filter = (void *)(test_big_far + 4 * PAGE),
	                   *got = (void *)(test_big_far + 8 * PAGE);
	struct sock_fprog *program = (void *)(test_big_far + PAGE - 8);
	socklen_t *len = (void *)(test_big_far + 12 * PAGE);
	int pair[2];
	char bytes[8];

	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
	memset(test_big_far, 0, 16 * PAGE);
	*filter = all;
	*program = (struct sock_fprog){.len = 1, .filter = filter};
	*len = 1;
	test_evict(test_big_far, 16 * PAGE);
	if (test_is_refused(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, program, sizeof(*program)),
	                    EFAULT)) {
		(void)*(volatile struct sock_filter *)filter;
		assert_int_equal(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, program, sizeof(*program)),
		                 0);
	}
	test_evict(test_big_far, 16 * PAGE);
	assert_int_equal(getsockopt(pair[1], SOL_SOCKET, SO_GET_FILTER, got, len), 0);
	assert_int_equal(*len, 1);
	assert_memory_equal(got, &all, sizeof(all));
	assert_int_equal(send(pair[0], "12345", 5, 0), 5);
	assert_int_equal(recv(pair[1], bytes, sizeof(bytes), 0), 3);
	close(pair[0]);
	close(pair[1]);
}

/* ---- pins that are left by a call that does not return ---- */

static int silent[2];

static void *read_for_ever(void *arg)
{
	read(silent[0], arg, 2 * PAGE);
	return NULL;
}

static void cancelled(void **state)
{
	pthread_t thread;
	void *result;

	assert_int_equal(pipe(silent), 0);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(pthread_create(&thread, NULL, read_for_ever, test_big_far), 0);
		usleep(i * 100);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		assert_ptr_equal(result, PTHREAD_CANCELED);
	}
	test_evict(test_big_far, 2 * PAGE);
	close(silent[0]);
	close(silent[1]);
}

static sigjmp_buf out;

static void jump(int sig)
{
	siglongjmp(out, 1);
}

static void jumped_out(void **state)
{
	struct sigaction action = {.sa_handler = jump};
	struct itimerval soon = {.it_value.tv_usec = 5000};
	volatile int times = 0;

	assert_int_equal(pipe(silent), 0);
	sigaction(SIGALRM, &action, NULL);
	sigsetjmp(out, 1);
	if (times++ < 10) {
		setitimer(ITIMER_REAL, &soon, NULL);
		read(silent[0], test_big_far, 2 * PAGE);
		fail();
	}
	assert_int_equal(write(silent[1], far_areas, 10), 10); /* this replaces the pin that was left */
	test_evict(test_big_far, 2 * PAGE);
	close(silent[0]);
	close(silent[1]);
}

/* ---- */

static int begin(void **state)
{
	far_areas = mmap(NULL, STEP_AREAS * STEP_AREA_BYTES, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/*
	 * The gaps separate the areas: read-ahead for a sweep must not bring in pages of the next
	 * area.
	 */
	pressure = mmap(NULL, PRESSURE + 2 * GAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pressure += GAP;
	test_big_far = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	test_big_local =
	    mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	assert_true(test_is_far(far_areas) && test_is_far(pressure) && test_is_far(test_big_far) &&
	            !test_is_far(test_big_local));
	signal(SIGUSR1, SIG_DFL);
	strcpy(test_folder, "/tmp/farpage-calls.XXXXXX");
	return mkdtemp(test_folder) ? chdir(test_folder) : -1;
}

static int end(void **state)
{
	unlink("steps");
	unlink("shifted");
	unlink("stream");
	unlink("long");
	return chdir("/") | rmdir(test_folder);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(steps),
	    cmocka_unit_test(test_long_files),
	    cmocka_unit_test(test_long_vectors),
	    cmocka_unit_test(test_long_streams),
	    cmocka_unit_test(test_long_pipe),
	    cmocka_unit_test(test_long_datagram),
	    cmocka_unit_test(test_many_vectors),
	    cmocka_unit_test(test_whole_vectors),
	    cmocka_unit_test(test_from_a_pipe),
	    cmocka_unit_test(test_callbacks),
	    cmocka_unit_test(test_long_receive),
	    cmocka_unit_test(test_long_name),
	    cmocka_unit_test(threads),
	    cmocka_unit_test(cancelled),
	    cmocka_unit_test(jumped_out),
	    cmocka_unit_test(waits_for_many),
	    cmocka_unit_test(filters),
	    cmocka_unit_test(requeue),
	    cmocka_unit_test(processor),
	    cmocka_unit_test(another_process),
	    cmocka_unit_test(test_long_text),
	};

	return cmocka_run_group_tests(all, begin, end);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
