/*
 * A program with an allocator of its own, which ends by SIGABRT if it gets memory of another one,
 * or if it is called while a fork holds its lock. Its memory is mapped in large pieces, so it is
 * far.
 *
 * ownmalloc LIBRARY: calls of the C library that hand out or take memory, then forks beside
 * threads, with a library of thread-local data that was loaded late.
 * ownmalloc: a fork after a thread has values of many keys. See test_preload_ownmalloc.py.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <ifaddrs.h>
#include <locale.h>
#include <netdb.h>
#include <pthread.h>
#include <pwd.h>
#include <regex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wordexp.h>

#define EXPORTED __attribute__((visibility("default")))
#define PIECE    (8u << 20)
#define MAGIC    0x6f776e6d616c6cu
#define N_FORKS  4
#define N_BIG    (8u << 20) /* more than what is left of the first piece, which is local */

/* ---- the allocator: never reuses anything but the block that was freed last ---- */

struct block {
	uint64_t magic;
	size_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t forker;
static atomic_bool forks, is_running;
static char *next, *end;

static void say_and_abort(const char *text)
{
	(void)!write(STDERR_FILENO, text, strlen(text));
	abort();
}

static void check_caller(void)
{
	char name[16] = "";

	if (atomic_load(&forks) && pthread_equal(forker, pthread_self()))
		say_and_abort("allocates while a fork holds the lock\n");
	prctl(PR_GET_NAME, name);
	if (atomic_load(&is_running) && strncmp(name, "farpage-", 8) == 0)
		say_and_abort("a thread of the agent allocates from the program\n");
}

static void *take(size_t alignment, size_t size)
{
	char *p;

	check_caller();
	pthread_mutex_lock(&lock);
	p = (char *)(((uintptr_t)next + sizeof(struct block) + alignment - 1) & ~(alignment - 1));
	if (!next || p + size > end) {
		size_t len = (size + alignment + sizeof(struct block) + PIECE - 1) / PIECE * PIECE;

		next = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (next == MAP_FAILED)
			say_and_abort("no memory\n");
		end = next + len;
		p = (char *)(((uintptr_t)next + sizeof(struct block) + alignment - 1) & ~(alignment - 1));
	}
	next = p + size;
	pthread_mutex_unlock(&lock);
	*(struct block *)((uintptr_t)p - sizeof(struct block)) = (struct block){.magic = MAGIC, .size = size};
	return p;
}

static struct block *block_of(void *p)
{
	struct block *block = (struct block *)((uintptr_t)p - sizeof(*block));

	if (block->magic != MAGIC)
		say_and_abort("memory of another allocator\n");
	return block;
}

EXPORTED void *malloc(size_t size)
{
	return take(16, size);
}

EXPORTED void free(void *p)
{
	if (!p)
		return;
	check_caller();
	block_of(p)->magic = 0;
}

EXPORTED void *calloc(size_t n, size_t size)
{
	return take(16, n * size); /* fresh memory is zero */
}

EXPORTED void *realloc(void *p, size_t size)
{
	void *moved = take(16, size);
	size_t old = p ? block_of(p)->size : 0;

	memcpy(moved, p ? p : moved, old < size ? old : size);
	free(p);
	return moved;
}

EXPORTED void *aligned_alloc(size_t alignment, size_t size)
{
	return take(alignment, size);
}

EXPORTED int posix_memalign(void **ret_p, size_t alignment, size_t size)
{
	*ret_p = take(alignment, size);
	return 0;
}

static void lock_for_fork(void)
{
	pthread_mutex_lock(&lock);
	forker = pthread_self();
	atomic_store(&forks, true);
}

static void unlock_after_fork(void)
{
	atomic_store(&forks, false);
	pthread_mutex_unlock(&lock);
}

/* ---- the C library hands out memory, and takes it ---- */

static void want(bool is_so, const char *what)
{
	if (is_so)
		return;
	fprintf(stderr, "failed: %s (%s)\n", what, strerror(errno));
	_exit(1);
}

static void strings(void)
{
	char *s = strdup("hello"), *number, *line = NULL;
	FILE *f = fopen("/etc/passwd", "r");
	size_t n = 0;

	free(s);
	free(strndup("hello", 3));
	free(reallocarray(malloc(10), 10, 10));
	free(reallocarray(NULL, 10, 10));
	free(realpath("/usr/../etc", NULL));
	want(asprintf(&number, "%d", 42) == 2, "asprintf");
	free(number);
	want(f && getline(&line, &n, f) > 0, "getline");
	free(line);
	fclose(f);
	free(get_current_dir_name());
	free(getcwd(NULL, 0));
	f = open_memstream(&s, &n);
	fputs("hello", f);
	fclose(f);
	want(n == 5 && memcmp(s, "hello", 5) == 0, "open_memstream");
	free(s);
	free(aligned_alloc(64, 64));
}

static void records(void)
{
	struct dirent **list;
	struct addrinfo *info;
	struct ifaddrs *interfaces;
	wordexp_t words;
	regex_t regex;
	glob_t paths;
	int n = scandir("/etc", &list, NULL, alphasort);

	want(n > 0, "scandir");
	while (n-- > 0)
		free(list[n]);
	free(list);
	if (getaddrinfo("127.0.0.1", "80", NULL, &info) == 0)
		freeaddrinfo(info);
	if (getifaddrs(&interfaces) == 0)
		freeifaddrs(interfaces);
	want(glob("/etc/*", 0, NULL, &paths) == 0, "glob");
	globfree(&paths);
	want(wordexp("$HOME *", &words, 0) == 0, "wordexp");
	wordfree(&words);
	want(regcomp(&regex, "a(b|c)*d", REG_EXTENDED) == 0, "regcomp");
	regfree(&regex);
	want(getpwnam("root") != NULL, "getpwnam");
}

static void surroundings(void)
{
	locale_t plain = newlocale(LC_ALL_MASK, "C.UTF-8", NULL), copy = duplocale(plain);
	FILE *f = popen("true", "r");
	char *old;

	freelocale(plain);
	freelocale(copy);
	setlocale(LC_ALL, "C.UTF-8");
	want(f && pclose(f) == 0, "popen");
	want(system("true") == 0, "system");
	setenv("OWNMALLOC", "1", 1);
	old = strdup("OWNMALLOC=2");
	putenv(old);
	unsetenv("OWNMALLOC");
	free(old);
	printf("printf %d %s\n", 42, "text");
}

/* ---- forks, beside threads that allocate ---- */

static atomic_bool stopping;

static void *allocate(void *unused)
{
	while (!atomic_load(&stopping)) {
		free(malloc(100));
		free(strdup("a thread"));
		usleep(100);
	}
	return unused;
}

static void *copy_name(void *name)
{
	return strdup(name);
}

static void run_thread(void)
{
	char name[] = "of the child";
	pthread_t thread;
	void *copy;

	want(pthread_create(&thread, NULL, copy_name, name) == 0, "a thread");
	want(pthread_join(thread, &copy) == 0 && strcmp(copy, name) == 0, "the thread's copy");
	free(copy);
}

static void fill(uint32_t *big)
{
	for (uint32_t i = 0; i < N_BIG / sizeof(*big); i += 1024)
		big[i] = i;
}

static bool is_filled(const uint32_t *big)
{
	uint32_t i = 0;

	while (i < N_BIG / sizeof(*big) && big[i] == i)
		i += 1024;
	return i >= N_BIG / sizeof(*big);
}

static void *library; /* with thread-local data; its record is far */

static void fork_once(uint32_t *big, int depth)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		want(dlsym(library, "fp_tls_library") != NULL, "the child's record of a library");
		want(is_filled(big), "the child's memory");
		strings();
		run_thread();
		if (depth > 0)
			fork_once(big, depth - 1);
		_exit(0);
	}
	want(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child");
	want(is_filled(big), "the parent's memory");
}

static void forks_and_threads(const char *path)
{
	uint32_t *big = malloc(N_BIG);
	pthread_t threads[2];

	library = dlopen(path, RTLD_NOW);
	want(library != NULL, path);
	for (unsigned i = 0; i < 2; i++)
		want(pthread_create(&threads[i], NULL, allocate, NULL) == 0, "a thread");
	for (int i = 0; i < N_FORKS; i++) {
		fill(big); /* after that the record of the library is remote */
		fork_once(big, i % 2);
	}
	atomic_store(&stopping, true);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}

static void fork_with_many_keys(void)
{
	pthread_key_t key = 0;

	for (unsigned i = 0; i < 40; i++)
		pthread_key_create(&key, NULL);
	pthread_setspecific(key, &key);
	errno = 0;
	want(fork() < 0 && errno == ENOSYS, "a fork that is refused");
	want(system("true") == 0, "a child that is not forked");
}

int main(int argc, char **argv)
{
	pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
	atomic_store(&is_running, true);
	if (argc < 2) {
		fork_with_many_keys();
	} else {
		strings();
		records();
		surroundings();
		forks_and_threads(argv[1]);
	}
	puts("done");
	return 0;
}
