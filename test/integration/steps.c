/*
 * A signal after the Nth instruction. A tracer steps through a call of the program and sends a
 * signal after an instruction chosen at random. The instruction may be in the preload library, the
 * agent, the allocator or the C library. The handler does things that handlers may do, and other
 * things that programs do in handlers. Nothing may hang, fail, or have wrong bytes. The seed is
 * printed. FP_TEST_SEED sets the seed, FP_TEST_SECONDS the duration.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "testrng.h"
#include "underpreload.h"

#if !defined(__x86_64__)

int main(void)
{
	return TEST_SKIPPED;
}

#else

#define PAGE     4096u
#define PRESSURE (4 * TEST_LOCAL_BYTES)
#define PAGES    8u  /* the calls are made on these pages */
#define KEPT     64u /* pages that must keep their bytes */
#define SECONDS  20
#define LEAST    3u   /* least number of interrupted calls */
#define PATIENCE 120u /* seconds allowed for one call */
/* glibc copies without rep instructions: a step does only one byte of such an instruction */
#define NO_REP   "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824"
#define MARK()   __asm__ volatile("int3" ::: "memory") /* the tracer begins or ends stepping here */

/* Shared by the program and its tracer. */
static struct plan {
	volatile unsigned call, handler;
	volatile unsigned long after; /* the signal comes after so many instructions; 0: never */
	volatile unsigned handled;
	volatile bool traced, over;
} * plan;

/* ---- the program: its memory ---- */

static char *pressure, *pages, *kept, *own_pages;
static int zero, null, pair[2];
static pthread_mutex_t *mutex;
static pthread_cond_t *condition;
static sigjmp_buf out;
/* The interrupted call is async-signal safe, so a handler may jump out of it. */
static volatile bool may_jump;
static volatile unsigned turn;

/*
 * Checks without cmocka, because handlers use it too: a failed assertion of cmocka would jump out
 * of the handler.
 */
#define MUST(so)                                                                                             \
	do {                                                                                                 \
		if (!(so)) {                                                                                 \
			dprintf(2, "not so: %s (errno %d; call %u, handler %u, after %lu)\n", #so, errno,    \
			        plan->call, plan->handler, plan->after);                                     \
			_exit(1);                                                                            \
		}                                                                                            \
	} while (0)

static char *map(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(p != MAP_FAILED);
	return p;
}

static void touch_some(void)
{
	for (unsigned i = 0; i < 3; i++)
		((volatile char *)pressure)[(++turn * 37 + i * 7) * PAGE % PRESSURE]++;
}

static void evict(void)
{
	for (size_t i = 0; i < PRESSURE; i += PAGE)
		((volatile char *)pressure)[i]++;
}

static char kept_byte(unsigned page)
{
	return (char)(page * 7 + 1);
}

static void check_kept(void)
{
	for (unsigned n = 0; n < 4; n++) {
		unsigned page = (turn + n * 17) % KEPT;

		MUST(kept[page * PAGE + turn % PAGE] == kept_byte(page));
	}
}

/* ---- actions of handlers ---- */

static void use_files(void)
{
	char *p = pressure + turn++ * 97 * PAGE % PRESSURE;
	struct stat st;
	int fd;

	MUST(read(zero, p, 100) == 100);
	MUST(write(null, p, PAGE) == PAGE);
	MUST((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0);
	MUST(fstat(fd, &st) == 0);
	MUST(dup2(fd, 200) == 200);
	MUST(close(fd) == 0 && close(200) == 0);
}

static void use_mappings(void)
{
	char *p = map(16 * PAGE);

	p[0] = 1;
	p[9 * PAGE] = 2;
	MUST(mprotect(p, PAGE, PROT_READ) == 0);
	MUST(madvise(p + 9 * PAGE, PAGE, MADV_DONTNEED) == 0);
	MUST(p[9 * PAGE] == 0 && p[0] == 1);
	MUST(munmap(p, 16 * PAGE) == 0);
}

static void use_own_mapping(void)
{
	own_pages[PAGE] = 5;
	MUST(madvise(own_pages, 4 * PAGE, MADV_DONTNEED) == 0);
	MUST(own_pages[PAGE] == 0);
	MUST(mprotect(own_pages, 4 * PAGE, PROT_READ) == 0);
	MUST(mprotect(own_pages, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
	MUST(mmap(own_pages, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	     own_pages);
	MUST(own_pages[0] == 0);
	own_pages[0] = 6;
}

static void use_masks(void)
{
	struct sigaction action;
	sigset_t all, before;
	stack_t stack;

	sigfillset(&all);
	MUST(sigprocmask(SIG_BLOCK, &all, &before) == 0);
	touch_some();
	MUST(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
	MUST(sigaction(SIGUSR2, NULL, &action) == 0);
	MUST(sigaltstack(NULL, &stack) == 0);
}

static void jump(void)
{
	touch_some();
	if (may_jump)
		siglongjmp(out, 1);
}

static void use_child(void)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		touch_some();
		_exit(kept[5 * PAGE] == kept_byte(5) ? 7 : 8);
	}
	MUST(pid > 0 && waitpid(pid, &status, 0) == pid);
	MUST(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static const struct {
	void (*run)(void);
	bool forks;
} handlers[] = {
    {touch_some, false}, {use_files, false}, {use_mappings, false}, {use_own_mapping, false},
    {use_masks, false},  {jump, false},      {evict, false},        {use_child, true},
};

#define N_HANDLERS (sizeof(handlers) / sizeof(handlers[0]))

static void on_signal(int sig)
{
	int saved = errno;

	plan->handled++;
	handlers[plan->handler].run();
	errno = saved;
}

/* ---- calls to interrupt ---- */

static void *touch_in_thread(void *arg)
{
	touch_some();
	return arg;
}

static void call_malloc(void)
{
	char *p = malloc(100);

	MUST(p);
	memset(p, 1, 100);
	free(p);
}

static void call_malloc_large(void)
{
	char *p = malloc(160 << 10);

	MUST(p);
	p[5000] = 1;
	p = realloc(p, 1200 << 10);
	MUST(p && p[5000] == 1);
	free(p);
	p = calloc(1, 140 << 10);
	MUST(p && p[(140 << 10) - 1] == 0);
	free(p);
}

static void call_mmap(void)
{
	use_mappings();
}

static void call_munmap_hole(void)
{
	char *p = map(60 * PAGE);

	for (unsigned i = 0; i < 60; i += 10)
		p[i * PAGE] = (char)i;
	MUST(munmap(p + 20 * PAGE, 10 * PAGE) == 0);
	MUST(p[10 * PAGE] == 10);
	MUST(munmap(p, 60 * PAGE) == 0);
}

static void call_mremap(void)
{
	char *p = map(16 * PAGE);

	p[PAGE] = 9;
	p = mremap(p, 16 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
	MUST(p != MAP_FAILED && p[PAGE] == 9);
	MUST(munmap(p, 64 * PAGE) == 0);
}

static void call_mlock(void)
{
	MUST(mlock(pages, 2 * PAGE) == 0);
	MUST(munlock(pages, 2 * PAGE) == 0);
}

static void call_read(void)
{
	MUST(read(zero, pages + 3 * PAGE, 3 * PAGE) == 3 * PAGE);
	MUST(pages[4 * PAGE + 5] == 0);
}

static void call_write(void)
{
	MUST(write(null, pages, 6 * PAGE) == 6 * PAGE);
}

static void call_open(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	MUST(fd >= 0 && dup2(fd, 100) == 100);
	close(fd);
	close(100);
}

static void call_sigaction(void)
{
	const struct sigaction action = {.sa_handler = SIG_IGN};
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	MUST(sigaction(SIGUSR2, &action, NULL) == 0);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	MUST(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
}

static void call_poll(void)
{
	struct pollfd *fd = (void *)(pages + 7 * PAGE);

	*fd = (struct pollfd){.fd = zero, .events = POLLIN};
	MUST(poll(fd, 1, 0) == 1);
}

static void call_sendmsg(void)
{
	struct iovec *iov = (void *)(pages + PAGE);
	struct msghdr message = {.msg_iov = iov, .msg_iovlen = 1};

	*iov = (struct iovec){pages + 2 * PAGE, PAGE + 10};
	MUST(sendmsg(pair[0], &message, 0) == PAGE + 10);
	MUST(recvmsg(pair[1], &message, MSG_WAITALL) == PAGE + 10);
}

static void call_wait(void)
{
	struct timespec now;

	pthread_mutex_lock(mutex);
	clock_gettime(CLOCK_REALTIME, &now);
	pthread_cond_timedwait(condition, mutex, &now);
	pthread_mutex_unlock(mutex);
}

static void call_mincore(void)
{
	MUST(mincore(pages, PAGES * PAGE, (unsigned char *)pages + 5 * PAGE) == 0);
}

static void call_stat(void)
{
	char *name = pages + 6 * PAGE;

	MUST(getcwd(name, PAGE));
	MUST(stat(name, (struct stat *)(pages + 4 * PAGE)) == 0);
}

static void call_thread(void)
{
	pthread_t thread;
	void *ret;

	MUST(pthread_create(&thread, NULL, touch_in_thread, pages) == 0);
	MUST(pthread_join(thread, &ret) == 0 && ret == pages);
}

static void call_fork(void)
{
	use_child();
}

static void call_spawn(void)
{
	char name[] = "true", *argv[] = {name, NULL}, *env[] = {NULL};
	int status = -1;
	pid_t pid;

	MUST(posix_spawn(&pid, "/bin/true", NULL, NULL, argv, env) == 0);
	MUST(waitpid(pid, &status, 0) == pid && status == 0);
}

static void call_nothing(void)
{
	touch_some();
}

/*
 * is_safe: the call is async-signal safe. allocates: the call may hold the allocator's locks when a
 * signal interrupts it. A fork in the handler would wait for these locks.
 */
static const struct {
	void (*run)(void);
	bool is_safe, allocates;
} calls[] = {
    {call_nothing, true, false}, {call_malloc, false, true},      {call_malloc_large, false, true},
    {call_mmap, true, false},    {call_munmap_hole, true, false}, {use_own_mapping, false, false},
    {call_mremap, false, false}, {call_mlock, true, false},       {call_read, true, false},
    {call_write, true, false},   {call_open, true, false},        {call_sigaction, true, false},
    {call_poll, true, false},    {call_sendmsg, false, false},    {call_wait, false, false},
    {call_mincore, true, false}, {call_stat, true, false},        {call_thread, false, true},
    {call_fork, false, true},    {call_spawn, false, true},       {use_masks, false, false},
};

#define N_CALLS (sizeof(calls) / sizeof(calls[0]))

static void begin(void)
{
	const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

	pressure = map(PRESSURE);
	pages = map(PAGES * PAGE);
	own_pages = map(4 * PAGE);
	kept = map(KEPT * PAGE);
	for (unsigned page = 0; page < KEPT; page++)
		memset(kept + page * PAGE, kept_byte(page), PAGE);
	mutex = (void *)map(PAGE);
	condition = (void *)(mutex + 1);
	pthread_mutex_init(mutex, NULL);
	pthread_cond_init(condition, NULL);
	zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	MUST(zero >= 0 && null >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	sigaction(SIGUSR1, &action, NULL);
}

/* Makes one call, and repairs what a jump out of it may have left broken. */
static void make_call(void)
{
	mprotect(pages, PAGES * PAGE, PROT_READ | PROT_WRITE);
	munlock(pages, PAGES * PAGE);
	for (unsigned i = 0; i < PAGES; i++)
		pages[i * PAGE] = 1;
	if (turn++ % 4 == 0)
		evict();
	if (sigsetjmp(out, 1) == 0) {
		may_jump = calls[plan->call].is_safe;
		MARK();
		calls[plan->call].run();
	}
	may_jump = false;
	MARK();
	check_kept();
}

/* ---- the tracer ---- */

static pid_t program;

static void interrupt_wait(int sig)
{
}

static void give_up(void)
{
	dprintf(2, "it stands still: call %u, handler %u, after %lu, handled %u\n", plan->call, plan->handler,
	        plan->after, plan->handled);
	kill(program, SIGKILL);
	_exit(1);
}

/* If a signal ended the program, says where. A check that failed has printed it already. */
static void tell_end(int status)
{
	if (WIFSIGNALED(status))
		dprintf(2, "ended by signal %d: call %u, handler %u, after %lu, handled %u\n",
		        WTERMSIG(status), plan->call, plan->handler, plan->after, plan->handled);
}

/*
 * Waits until the program stops. Returns the signal that the program got, 0 at a mark, SIGTRAP
 * after a step. If the program has ended, ends the tracer too.
 */
static int wait_for_stop(void)
{
	siginfo_t info;
	int status;

	alarm(PATIENCE);
	if (waitpid(program, &status, __WALL) != program)
		give_up();
	if (!WIFSTOPPED(status)) {
		tell_end(status);
		_exit(1);
	}
	alarm(0);
	if (status >> 16)
		return SIGTRAP; /* ptrace's own event */
	if (WSTOPSIG(status) == SIGTRAP && ptrace(PTRACE_GETSIGINFO, program, 0, &info) == 0 &&
	    info.si_code == SI_KERNEL)
		return 0;
	return WSTOPSIG(status);
}

static void go_on_to_mark(void)
{
	int sig = 0;

	do
		ptrace(PTRACE_CONT, program, 0, sig == SIGTRAP ? 0 : sig);
	while ((sig = wait_for_stop()));
}

/* Steps from the mark before a call to the mark behind it. Returns the number of instructions. */
static unsigned long step(void)
{
	unsigned long n = 0;
	int sig = 0;

	do {
		ptrace(PTRACE_SINGLESTEP, program, 0, sig == SIGTRAP ? 0 : sig);
		sig = wait_for_stop();
		n += sig == SIGTRAP;
	} while (sig && n != plan->after);
	if (sig) {
		syscall(SYS_tgkill, program, program, SIGUSR1);
		go_on_to_mark();
	}
	return n;
}

static unsigned long one_call(unsigned call, unsigned handler, unsigned long after)
{
	plan->call = call;
	plan->handler = handler;
	plan->after = after;
	go_on_to_mark();
	return step();
}

/*
 * A plain program fails too if the handler forks while the allocator's locks are held, or changes
 * own_pages while the call relies on them.
 */
static bool may_interrupt(unsigned call, unsigned handler)
{
	bool both_change = calls[call].run == use_own_mapping && handlers[handler].run == use_own_mapping;

	return !both_change && !(calls[call].allocates && handlers[handler].forks);
}

static void trace(void)
{
	uint64_t rng = test_seed("steps");
	unsigned long lengths[N_CALLS] = {0}, n_calls = 0, n_handled = 0;
	const char *seconds = getenv("FP_TEST_SECONDS");
	time_t end = time(NULL) + (seconds ? strtol(seconds, NULL, 10) : SECONDS);

	while (time(NULL) < end || n_handled < LEAST) {
		unsigned call = (unsigned)(test_random(&rng) % N_CALLS),
		         handler = (unsigned)(test_random(&rng) % N_HANDLERS);
		unsigned handled = plan->handled;

		if (!may_interrupt(call, handler))
			continue;
		if (lengths[call] == 0)
			lengths[call] = one_call(call, handler, 0);
		(void)one_call(call, handler, 1 + test_random(&rng) % lengths[call]);
		n_calls++;
		n_handled += plan->handled != handled;
	}
	printf("%lu calls, %lu of them interrupted\n", n_calls, n_handled);
}

static int run_tracer(const char *pid, int fd)
{
	const struct sigaction action = {.sa_handler = interrupt_wait};

	program = (pid_t)strtol(pid, NULL, 10);
	plan = mmap(NULL, sizeof(*plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (plan == MAP_FAILED || ptrace(PTRACE_SEIZE, program, 0, 0) < 0) {
		printf("no tracing here: %s\n", strerror(errno));
		return TEST_SKIPPED;
	}
	sigaction(SIGALRM, &action, NULL);
	plan->traced = true;
	go_on_to_mark();
	go_on_to_mark(); /* the program is now behind its first call */
	trace();
	plan->over = true;
	ptrace(PTRACE_DETACH, program, 0, 0);
	return 0;
}

/* ---- both processes ---- */

static pid_t start_tracer(int fd)
{
	char pid[16], plan_fd[16];
	char name[] = "steps", option[] = "--trace";
	char *argv[] = {name, option, pid, plan_fd, NULL};
	pid_t tracer;

	snprintf(pid, sizeof(pid), "%d", getpid());
	snprintf(plan_fd, sizeof(plan_fd), "%d", fd);
	unsetenv("LD_PRELOAD");
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	MUST(posix_spawn(&tracer, "/proc/self/exe", NULL, NULL, argv, environ) == 0);
	return tracer;
}

static int tests(void)
{
	int fd = memfd_create("plan", 0), status;
	pid_t tracer;

	if (fd < 0 || ftruncate(fd, sizeof(*plan)) < 0)
		return 1;
	plan = mmap(NULL, sizeof(*plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (plan == MAP_FAILED)
		return 1;
	begin();
	tracer = start_tracer(fd);
	while (!plan->traced && waitpid(tracer, &status, WNOHANG) == 0)
		sched_yield();
	if (!plan->traced)
		return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	while (!plan->over)
		make_call();
	MUST(waitpid(tracer, &status, 0) == tracer);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "--trace") == 0)
		return run_tracer(argv[2], atoi(argv[3]));
	setenv("GLIBC_TUNABLES", NO_REP, 0);
	return test_under_preload(argc, argv, tests);
}

#endif
