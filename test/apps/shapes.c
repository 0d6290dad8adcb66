/*
 * shapes WAY [LIBRARY]: unusual programs that check their bytes. Some have thousands of short-lived
 * threads, or many signals on a signal stack in the heap. Others have guard pages with a SIGSEGV
 * handler, or load and unload libraries. The output does not depend on where the memory is. Room:
 * test/apps; it knows nothing of Farpage.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <printf.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes.h"

#define TABLE_BYTES (16u * MIB)
#define SLICE_BYTES (256u << 10)

/* ---- threads ---- */

#define THREADS 3000u
#define AT_ONCE 12u

static char *table;

static void *short_life(void *arg)
{
	static __thread uint64_t own[512];
	size_t n = (size_t)arg, at = n * 7919 % (TABLE_BYTES / PAGE) * PAGE;
	char *heap = malloc(SLICE_BYTES);

	require(heap != NULL, "malloc in a thread");
	fill(own, sizeof(own), n);
	for (size_t i = n % 16 * PAGE; i < SLICE_BYTES; i += 16 * PAGE)
		fill(heap + i, PAGE, n);
	verify(table + at, PAGE, at, "the table, in a thread");
	for (size_t i = n % 16 * PAGE; i < SLICE_BYTES; i += 16 * PAGE)
		verify(heap + i, PAGE, n, "a thread's heap");
	verify(own, sizeof(own), n, "a thread's own");
	free(heap);
	return arg;
}

static void fill_table(void)
{
	table = malloc(TABLE_BYTES);
	require(table != NULL, "malloc");
	for (size_t at = 0; at < TABLE_BYTES; at += PAGE)
		fill(table + at, PAGE, at);
}

static void verify_table(const char *what)
{
	for (size_t at = 0; at < TABLE_BYTES; at += PAGE)
		verify(table + at, PAGE, at, what);
}

static void threads(void)
{
	pthread_t thread[AT_ONCE];

	fill_table();
	for (size_t n = 0; n < THREADS; n++) {
		void *result;

		if (n >= AT_ONCE)
			require(!pthread_join(thread[n % AT_ONCE], &result) && (size_t)result == n - AT_ONCE,
			        "join");
		require(!pthread_create(&thread[n % AT_ONCE], NULL, short_life, (void *)n), "pthread_create");
	}
	for (size_t n = 0; n < AT_ONCE; n++)
		require(!pthread_join(thread[n], NULL), "join");
	verify_table("the table");
}

/* ---- signals ---- */

#define SENT 4000

static uint64_t *counters; /* each counter is in a page of its own */
static atomic_ulong handled;

/* Reads and writes memory that is mostly far, on a stack that may be far, too. */
static void on_signal(int signo)
{
	unsigned long n = atomic_fetch_add(&handled, 1);
	size_t at = n * 31 % (TABLE_BYTES / PAGE) * PAGE;
	int saved = errno;

	if (*(uint64_t *)(table + at) != word_of(0, at))
		_exit(3);
	counters[n % 1024 * (PAGE / sizeof(*counters))]++;
	errno = saved;
}

static void *shower(void *target)
{
	for (int i = 0; i < SENT; i++) {
		pthread_kill(*(pthread_t *)target, i % 2 ? SIGUSR1 : SIGUSR2);
		if (i % 64 == 0)
			sched_yield();
	}
	return NULL;
}

static void handle_on_heap(const int *signals)
{
	stack_t stack = {.ss_size = 64u << 10};
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};

	stack.ss_sp = map_bytes(stack.ss_size);
	require(sigaltstack(&stack, NULL) == 0, "sigaltstack");
	for (; *signals; signals++)
		require(sigaction(*signals, &action, NULL) == 0, "sigaction");
}

static void signals(void)
{
	const int numbers[] = {SIGALRM, SIGUSR1, SIGUSR2, 0};
	const struct itimerval tick = {{0, 700}, {0, 700}}, stop = {{0, 0}, {0, 0}};
	pthread_t self = pthread_self(), sender;
	unsigned long sum = 0;

	fill_table();
	counters = calloc(1024, PAGE);
	require(counters != NULL, "calloc");
	handle_on_heap(numbers);
	setitimer(ITIMER_REAL, &tick, NULL);
	require(!pthread_create(&sender, NULL, shower, &self), "pthread_create");
	for (int round = 0; round < 4; round++)
		verify_table("the table, under signals");
	require(!pthread_join(sender, NULL), "join");
	setitimer(ITIMER_REAL, &stop, NULL);
	for (size_t i = 0; i < 1024; i++)
		sum += counters[i * (PAGE / sizeof(*counters))];
	require(sum == atomic_load(&handled) && sum > 0, "every signal counted once");
}

/* ---- guard pages ---- */

static atomic_uint opened;

/* Makes the page writable, as the write barrier of a garbage collector does. */
static void on_guard(int signo, siginfo_t *info, void *context)
{
	char *page = (char *)((uintptr_t)info->si_addr & ~(uintptr_t)(PAGE - 1));

	if (page < table || page >= table + TABLE_BYTES || mprotect(page, PAGE, PROT_READ | PROT_WRITE) < 0)
		_exit(4);
	atomic_fetch_add(&opened, 1);
}

static void guards(void)
{
	struct sigaction action = {.sa_sigaction = on_guard, .sa_flags = SA_SIGINFO};
	unsigned expected = 0;

	table = map_bytes(TABLE_BYTES);
	for (size_t at = 0; at < TABLE_BYTES; at += PAGE)
		fill(table + at, PAGE, at);
	require(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
	for (int round = 0; round < 2; round++) {
		int prot = round ? PROT_NONE : PROT_READ;

		require(mprotect(table, TABLE_BYTES, prot) == 0, "mprotect");
		for (size_t at = (size_t)round * PAGE; at < TABLE_BYTES; at += 7 * PAGE, expected++)
			*(uint64_t *)(table + at) = word_of(0, at);
		require(mprotect(table, TABLE_BYTES, PROT_READ | PROT_WRITE) == 0, "mprotect");
		verify_table("guarded memory");
	}
	require(atomic_load(&opened) == expected, "one SIGSEGV a guarded page");
	printf("%u guards\n", expected);
}

/* ---- printf ---- */

static int print_word(FILE *out, const struct printf_info *info, const void *const *args)
{
	return fprintf(out, "<%" PRIx64 ">", *(const uint64_t *)args[0]);
}

static int one_word(const struct printf_info *info, size_t n, int *types, int *sizes)
{
	if (n > 0)
		types[0] = PA_INT | PA_FLAG_LONG;
	return 1;
}

/*
 * Registers a printf conversion, as libraries such as libquadmath do. Every later printf looks it
 * up.
 */
static void formats(void)
{
	char text[32];

	require(register_printf_modifier(L"Q") >= 0, "register_printf_modifier");
	require(register_printf_specifier('W', print_word, one_word) == 0, "register_printf_specifier");
	fill_table();
	for (int round = 0; round < 8; round++) {
		push_out();
		verify_table("the table");
	}
	snprintf(text, sizeof(text), "%W", (uint64_t)0xfa6);
	require(strcmp(text, "<fa6>") == 0, "a specifier of its own");
}

/* ---- locale ---- */

/* Each new thread reads the locale, also in a child. */
static void locale(void)
{
	require(setlocale(LC_ALL, "C.UTF-8") != NULL, "setlocale");
	fill_table();
	push_out();
	for (int i = 0; i < 4; i++) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			push_out();
			verify_table("the table, in a child");
			_exit(isalpha('x') ? 0 : 1);
		}
		require(waitpid(child, &status, 0) == child && status == 0, "child");
		push_out();
	}
	verify_table("the table");
}

/* ---- libraries ---- */

#define LOADS 200

typedef void *plugin_make(size_t len, uint64_t seed);

static void libraries(const char *path)
{
	const size_t len = 128u << 10;
	void *made[LOADS];

	fill_table();
	for (uint64_t i = 0; i < LOADS; i++) {
		void *library = dlopen(path, RTLD_NOW | (i % 2 ? RTLD_GLOBAL : RTLD_LOCAL) |
		                                 (i % 4 < 2 ? 0 : RTLD_DEEPBIND));
		plugin_make *make = library ? (plugin_make *)dlsym(library, "plugin_make") : NULL;

		if (!make) {
			printf("dlopen: %s\n", dlerror());
			exit(1);
		}
		made[i] = make(len, i);
		require(made[i] && dlclose(library) == 0, "dlclose");
	}
	require(!dlopen(path, RTLD_NOW | RTLD_NOLOAD), "unloaded");
	for (uint64_t i = 0; i < LOADS; i++) {
		verify(made[i], len, i, "what a library left");
		free(made[i]);
	}
	verify_table("the table");
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";

	if (strcmp(way, "threads") == 0)
		threads();
	else if (strcmp(way, "signals") == 0)
		signals();
	else if (strcmp(way, "guards") == 0)
		guards();
	else if (strcmp(way, "locale") == 0)
		locale();
	else if (strcmp(way, "formats") == 0)
		formats();
	else if (strcmp(way, "libraries") == 0 && argc == 3)
		libraries(argv[2]);
	else if (strcmp(way, "table") == 0)
		fill_table(), push_out(), verify_table("the table");
	else
		return 2;
	printf("%s: every word as it should be\n", way);
	return 0;
}
