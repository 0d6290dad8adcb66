/* See thread.h. */
#include "thread.h"

#include <errno.h>
#include <link.h>
#include <locale.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockedmem.h"

/*
 * The C library allocates the stacks. In a forked child it gives the stacks of the parent's threads
 * to new threads, with their records and thread-local data. So the agent's threads start in a child
 * without any allocation. That matters if the program has an allocator of its own: it may be locked
 * then, or far. No program asks for just this size, so the agent gets the agent's stacks again.
 * Room for thread-local blocks comes on top: see tls_bytes.
 */
#define STACK_BYTES   ((256u << 10) + (12u << 10))
#define PRESENT_BYTES (64u << 10) /* far more than faults need; other pages become present on touch */
#define PAGE_BYTES    4096u

static _Atomic unsigned n_running;

/*
 * The locale of all agent threads: its data is the C library's own. The data of the program's
 * locale may be far.
 */
static locale_t plain_locale;

static __thread bool own __attribute__((tls_model("initial-exec")));

/*
 * Locks the stack from PRESENT_BYTES below this frame up to the thread's record at its end. Only a
 * few of its pages are present, because each child of a fork must copy and free those.
 */
static void lock_stack(struct fp_thread *thread)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t low = (uintptr_t)__builtin_frame_address(0) / page * page - PRESENT_BYTES;

	thread->locked_bytes = ((uintptr_t)pthread_self() / page + 1) * page - low;
	fp_lockedmem_lock((void *)low, thread->locked_bytes, true);
	(void)madvise((void *)low, PRESENT_BYTES, MADV_POPULATE_WRITE);
}

static void *begin(void *p)
{
	struct fp_thread *thread = p;

	own = true;
	atomic_store(&thread->tid, (pid_t)syscall(SYS_gettid));
	lock_stack(thread);
	uselocale(plain_locale);
	/* the thread names itself: another thread would have to go through /proc, which is slow */
	pthread_setname_np(pthread_self(), thread->name);
	return thread->run(thread->arg);
}

/* Adds the most that an object's thread-local block takes. */
static int add_tls(struct dl_phdr_info *object, size_t size, void *sum)
{
	(void)size;
	for (unsigned i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_TLS)
			*(size_t *)sum += object->dlpi_phdr[i].p_memsz + object->dlpi_phdr[i].p_align;
	return 0;
}

/*
 * How much of a stack the thread-local blocks of the program and its libraries take: the C library
 * puts them on top. Blocks of libraries that are loaded later lie elsewhere. So the first look is
 * enough; a forked child could not look, as another thread may have held the loader's lock.
 */
static size_t tls_bytes(void)
{
	static _Atomic size_t known; /* 0: not yet */
	size_t sum = atomic_load(&known);

	if (sum == 0) {
		dl_iterate_phdr(add_tls, &sum);
		sum = (sum + PAGE_BYTES) & ~(size_t)(PAGE_BYTES - 1);
		atomic_store(&known, sum);
	}
	return sum;
}

static int create(struct fp_thread *thread)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int r = pthread_attr_init(&attr);

	if (r)
		return -r;
	pthread_attr_setstacksize(&attr, STACK_BYTES + tls_bytes());
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread->id, &attr, begin, thread);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}

int fp_thread_start(struct fp_thread *thread, const char *name, void *(*run)(void *), void *arg)
{
	int r;

	atomic_store(&thread->tid, 0);
	thread->run = run;
	thread->arg = arg;
	thread->name = name;
	thread->locked_bytes = 0;
	if (!plain_locale)
		plain_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	r = create(thread);
	if (r < 0)
		return r;
	thread->running = true;
	atomic_fetch_add(&n_running, 1);
	return 0;
}

void fp_thread_join(struct fp_thread *thread)
{
	if (!thread->running)
		return;
	pthread_join(thread->id, NULL);
	fp_thread_abandon(thread);
}

void fp_thread_abandon(struct fp_thread *thread)
{
	if (!thread->running)
		return;
	fp_lockedmem_forget(thread->locked_bytes);
	thread->running = false;
	atomic_fetch_sub(&n_running, 1);
}

pid_t fp_thread_tid(const struct fp_thread *thread)
{
	return atomic_load(&thread->tid);
}

unsigned fp_thread_count(void)
{
	return atomic_load(&n_running);
}

bool fp_thread_is_own(void)
{
	return own;
}
