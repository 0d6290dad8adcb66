/*
 * Memory that the shim makes local and holds, because kernel code uses it that can't wait for a
 * page: mutexes that are robust or inherit priorities, some operations of futex(2), memory of an
 * AF_XDP socket, the area of rseq. Each is used after its page could have left. Room:
 * test/integration.
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
#include <linux/kvm.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
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
#define GAP      (128 * PAGE) /* read-ahead beyond the pressure brings in nothing else */

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

	assert_int_equal(syscall(SYS_set_robust_list, mutex, 3 * sizeof(void *)), -1);
	assert_int_equal(errno, ENOSYS);
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

/* ---- rseq ---- */

/* The kernel writes the area when the thread has been interrupted; the page stays. */
static void area_of_rseq(void **state)
{
	const unsigned signature = 0x53053053;
	uint32_t *area = (void *)(places + (size_t)14 * APART);

	memset(area, 0, 32);
	press();
	assert_false(is_present(area));
	if (syscall(SYS_rseq, area, 32, 0, signature) < 0) {
		print_message("no area of rseq is free here: %s\n", strerror(errno));
		return;
	}
	for (unsigned i = 0; i < 20; i++) {
		press();
		sched_yield();
	}
	assert_true(is_present(area));
	assert_int_equal(syscall(SYS_rseq, area, 32, 1, signature), 0);
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

/* ---- guests ---- */

#define GUEST_BYTES (1u << 20)
#define GUEST_FROM  16u /* the guest adds one to the first byte of each of these pages */
#define GUEST_TO    144u

#if defined(__x86_64__)

/* mov ax, 0x1000; again: mov ds, ax; inc byte [0]; add ax, 0x100; cmp ax, 0x9000; jb again; hlt */
static const uint8_t guest_code[] = {0xb8, 0x00, 0x10, 0x8e, 0xd8, 0xfe, 0x06, 0x00, 0x00,
                                     0x05, 0x00, 0x01, 0x3d, 0x00, 0x90, 0x72, 0xf2, 0xf4};

static void run_guest(int vcpu, const struct kvm_run *run)
{
	struct kvm_regs regs = {.rflags = 2};
	struct kvm_sregs segments;

	assert_int_equal(ioctl(vcpu, KVM_GET_SREGS, &segments), 0);
	segments.cs.base = segments.cs.selector = 0;
	assert_int_equal(ioctl(vcpu, KVM_SET_SREGS, &segments), 0);
	assert_int_equal(ioctl(vcpu, KVM_SET_REGS, &regs), 0);
	assert_int_equal(ioctl(vcpu, KVM_RUN, 0), 0);
	assert_int_equal(run->exit_reason, KVM_EXIT_HLT);
}

/* A guest whose memory leaves comes to all of it. In fault mode inline it is refused. */
static void guest(void **state)
{
	bool is_inline = strcmp(getenv("FARPAGE_FAULT_MODE"), "inline") == 0;
	struct kvm_userspace_memory_region region = {.memory_size = GUEST_BYTES};
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), machine, vcpu, len;
	char *memory = map_far(GUEST_BYTES);
	struct kvm_run *run;

	region.userspace_addr = (uintptr_t)memory;
	if (kvm < 0 || is_inline) {
		assert_int_equal(ioctl(-1, KVM_SET_USER_MEMORY_REGION, &region), -1);
		assert_int_equal(errno, is_inline ? ENOSYS : EBADF);
		return;
	}
	machine = ioctl(kvm, KVM_CREATE_VM, 0);
	assert_int_equal(ioctl(machine, KVM_SET_USER_MEMORY_REGION, &region), 0);
	assert_int_equal(ioctl(machine, KVM_SET_TSS_ADDR, 0xfffbd000), 0);
	vcpu = ioctl(machine, KVM_CREATE_VCPU, 0);
	len = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	run = mmap(NULL, (size_t)len, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	assert_true(vcpu >= 0 && run != MAP_FAILED);
	memcpy(memory, guest_code, sizeof(guest_code));
	for (unsigned i = GUEST_FROM; i < GUEST_TO; i++)
		memory[i * PAGE] = (char)i;
	for (unsigned round = 0; round < 2; round++) {
		press();
		run_guest(vcpu, run);
	}
	for (unsigned i = GUEST_FROM; i < GUEST_TO; i++)
		assert_int_equal((uint8_t)memory[i * PAGE], (uint8_t)(i + 2));
	munmap(run, (size_t)len);
	close(vcpu);
	close(machine);
	close(kvm);
}

#else

static void guest(void **state)
{
	skip();
}

#endif

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
	    cmocka_unit_test(area_of_rseq),
	    cmocka_unit_test(guest),
	};

	places = map_far((size_t)PLACES * APART);
	pressure = map_far(PRESSURE + 2 * GAP) + GAP;
	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
