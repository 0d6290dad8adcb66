/* The stats page as a file: what its readers see, and the files that they refuse. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "fdutil.h"
#include "statsview.h"

static char folder[] = "/tmp/farpage-unit-XXXXXX", page_path[64];

static int make_folder(void **state)
{
	strcpy(folder + strlen(folder) - 6, "XXXXXX");
	if (!mkdtemp(folder))
		return -1;
	snprintf(page_path, sizeof(page_path), "%s/1.stats", folder);
	return 0;
}

static unsigned remove_all(const char *dir)
{
	char path[PATH_MAX];
	DIR *d = opendir(dir);
	unsigned n = 0;

	for (struct dirent *e; (e = readdir(d));) {
		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		n += remove(path) == 0;
	}
	closedir(d);
	return n;
}

static int remove_folder(void **state)
{
	remove_all(folder);
	return rmdir(folder);
}

static void create(void)
{
	struct fp_statspage *page = NULL;

	assert_int_equal(fp_statspage_create(page_path, false, &page), 0);
	fp_statspage_close(page);
}

/* Overwrites len bytes of the file at offset. */
static void patch(size_t offset, const void *bytes, size_t len)
{
	fp_autoclose int fd = open(page_path, O_WRONLY);

	assert_int_equal(pwrite(fd, bytes, len, (off_t)offset), len);
}

static int try_open(void)
{
	struct fp_statsview *view = NULL;
	int r = fp_statsview_open(page_path, &view);

	assert_true((r == 0) == (view != NULL));
	fp_statsview_close(view);
	return r;
}

static void a_reader_sees_what_is_counted(void **state)
{
	struct fp_statspage *page = NULL;
	struct fp_statsview *view = NULL;
	char name[16];
	struct stat st;

	assert_int_equal(fp_statspage_create(page_path, false, &page), 0);
	assert_int_equal(stat(page_path, &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0600);
	assert_int_equal(fp_statsview_open(page_path, &view), 0);
	page->faults[FP_FAULT_READ] = 7;
	fp_hist_record(&page->kind_latency[FP_FAULT_READ], 4200);
	fp_hist_record(&page->kind_latency[FP_FAULT_ZERO], 1300);
	assert_int_equal(view->page.faults[FP_FAULT_READ], 0);
	assert_int_equal(fp_statsview_look(view), 0);
	assert_int_equal(view->page.faults[FP_FAULT_READ], 7);
	assert_int_equal(fp_hist_count(&view->page.fault_latency), 2);
	assert_int_equal(fp_hist_min(&view->page.fault_latency), 1300);
	assert_int_equal(fp_hist_max(&view->page.fault_latency), 4200);
	assert_int_equal(view->page.pid, getpid());
	assert_int_equal(view->page.ppid, getppid());
	prctl(PR_GET_NAME, name);
	assert_string_equal(view->page.command, name);
	assert_true(view->page.start_realtime_ns > 1700000000ull * 1000000000);
	fp_statsview_close(view);
	fp_statspage_close(page);
	fp_statspage_close(NULL);
}

/* Runs in a child that ignores SIGXFSZ. No file may be left behind. */
static int create_past_limit(void)
{
	const struct rlimit limit = {.rlim_cur = sizeof(struct fp_statspage) - 1, .rlim_max = RLIM_INFINITY};
	struct fp_statspage *page = NULL;
	char name[16];

	if (setrlimit(RLIMIT_FSIZE, &limit) < 0 || fp_statspage_create(page_path, false, &page) != -EFBIG)
		return 1;
	if (fp_statspage_create_unseen(&page) < 0)
		return 2;
	prctl(PR_GET_NAME, name);
	if (page->pid != getpid() || strcmp(page->command, name) != 0 || access(page_path, F_OK) == 0)
		return 3;
	fp_hist_record(&page->fetch_latency, 4200);
	fp_statspage_close(page);
	return 0;
}

static void without_a_file(void **state)
{
	int status;
	pid_t pid;

	unlink(page_path);
	pid = fork();
	if (pid == 0)
		_exit(create_past_limit());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* A reader of the old page keeps it. Only the new page is in the folder. */
static void creating_again_replaces(void **state)
{
	struct fp_statspage *page = NULL;
	struct fp_statsview *former = NULL;

	create();
	assert_int_equal(fp_statsview_open(page_path, &former), 0);
	assert_int_equal(fp_statspage_create(page_path, false, &page), 0);
	page->lost_pages = 1;
	assert_int_equal(fp_statsview_look(former), 0);
	assert_int_equal(former->page.lost_pages, 0);
	fp_statsview_close(former);
	fp_statspage_close(page);
	assert_int_equal(remove_all(folder), 1);
}

/* While pages are created again and again, a reader always finds a complete page by the name. */
static void creating_is_atomic(void **state)
{
	int status;
	pid_t child;

	create();
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct fp_statspage *page = NULL;

		for (unsigned i = 0; i < 300; i++) {
			if (fp_statspage_create(page_path, false, &page) < 0)
				_exit(1);
			fp_statspage_close(page);
		}
		_exit(0);
	}
	while (waitpid(child, &status, WNOHANG) == 0)
		assert_int_equal(try_open(), 0);
	assert_int_equal(status, 0);
}

/* From now on seccomp answers system call nr with this action. */
static void meet(uint32_t nr, uint32_t action)
{
	struct sock_filter filter[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, action),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = {.len = 4, .filter = filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0)
		_exit(77);
}

/*
 * A process that is killed while it creates its page leaves a temporary file. Its name has the
 * process number: see temporary_names_tell_their_process.
 */
static void who_is_ended_meanwhile_leaves_no_page(void **state)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		struct fp_statspage *page;

		meet(SYS_fallocate, SECCOMP_RET_KILL_PROCESS);
		fp_statspage_create(page_path, false, &page);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
	assert_int_equal(access(page_path, F_OK), -1);
	assert_int_equal(remove_all(folder), 1);
}

static void copy_has_each_count(void **state)
{
	struct fp_statspage *page, *copy;

	assert_int_equal(fp_statspage_create(page_path, false, &page), 0);
	assert_int_equal(fp_statspage_create_unseen(&copy), 0);
	fp_hist_record(&page->fetch_latency, 1000);
	fp_hist_record(&page->evict_latency, 2000);
	page->far_end = 7;
	fp_statspage_copy(copy, page);
	assert_memory_equal(copy, page, sizeof(*page));
	fp_statspage_close(copy);
	fp_statspage_close(page);
}

static void only_own_files_are_replaced(void **state)
{
	struct fp_statspage *page = NULL;
	char target[96];
	struct stat st;

	snprintf(target, sizeof(target), "%s/target", folder);
	assert_int_equal(mkdir(page_path, 0700), 0);
	assert_int_equal(fp_statspage_create(page_path, false, &page), -EISDIR);
	rmdir(page_path);
	assert_int_equal(symlink(target, page_path), 0);
	assert_int_equal(fp_statspage_create(page_path, false, &page), -EEXIST);
	assert_int_equal(lstat(target, &st), -1);
	unlink(page_path);
	if (geteuid() == 0) {
		create();
		assert_int_equal(chown(page_path, 65534, 65534), 0);
		assert_int_equal(fp_statspage_create(page_path, false, &page), -EEXIST);
		unlink(page_path);
	}
	assert_null(page);
	assert_int_equal(remove_all(folder), 0);
}

static void bad_paths_are_refused(void **state)
{
	struct fp_statspage *page = NULL;
	struct fp_statsview *view = NULL;
	char path[PATH_MAX + 10];

	snprintf(path, sizeof(path), "%s/none/1.stats", folder);
	assert_int_equal(fp_statspage_create(path, false, &page), -ENOENT);
	assert_int_equal(fp_statsview_open(path, &view), -ENOENT);
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(fp_statspage_create(path, false, &page), -ENAMETOOLONG);
	assert_null(page);
}

static void every_truncation_is_refused(void **state)
{
	create();
	for (off_t len = (off_t)sizeof(struct fp_statspage) - 1; len >= 0;
	     len = len > 64 ? len / 2 : len - 1) {
		assert_int_equal(truncate(page_path, len), 0);
		assert_int_equal(try_open(), len < 16 ? -EINVAL : -ENODATA);
	}
}

/* The file shrinks between two looks of a reader: the reader's copy stays readable. */
static void a_page_that_is_cut_short_harms_no_reader(void **state)
{
	struct fp_statsview *view = NULL;

	create();
	assert_int_equal(fp_statsview_open(page_path, &view), 0);
	assert_int_equal(truncate(page_path, 4096), 0);
	assert_int_equal(fp_hist_count(&view->page.evict_latency), 0);
	assert_int_equal(fp_statsview_look(view), -ENODATA);
	assert_int_equal(truncate(page_path, 0), 0);
	assert_int_equal(fp_statsview_look(view), -EINVAL);
	assert_int_equal(fp_hist_count(&view->page.evict_latency), 0);
	fp_statsview_close(view);
}

/*
 * In another PID namespace the writer's process number means nothing. Its lock on the page still
 * shows that it lives.
 */
static void a_page_is_its_writers_as_long_as_it_is_mapped(void **state)
{
	struct fp_statspage *page = NULL, *other = NULL;
	struct fp_statsview *view = NULL;

	assert_int_equal(fp_statspage_create(page_path, true, &page), 0);
	page->start_ticks++; /* now the page names no process, as if seen from another namespace */
	assert_int_equal(fp_statsview_open(page_path, &view), 0);
	assert_false(view->dead);
	assert_int_equal(fp_statspage_create(page_path, true, &other), -EBUSY);
	fp_statspage_close(page);
	assert_int_equal(fp_statsview_look(view), 0);
	assert_true(view->dead);
	fp_statsview_close(view);
	assert_int_equal(fp_statspage_create(page_path, true, &other), 0);
	fp_statspage_close(other);
}

/* A program that calls exec has its process number still, but no page. */
static void a_page_without_lock_is_dead_though_its_process_lives(void **state)
{
	struct fp_statsview *view = NULL;

	create();
	assert_int_equal(fp_statsview_open(page_path, &view), 0);
	assert_int_equal(fp_statspage_alive(&view->page), 1);
	assert_true(view->dead);
	fp_statsview_close(view);
}

/* Locks fail over NFS if its lock service does not run. */
static void where_locks_fail_a_page_of_nobody_is_dead(void **state)
{
	struct fp_statspage *page = NULL;
	struct fp_statsview *view = NULL;
	int status;
	pid_t pid;

	assert_int_equal(fp_statspage_create(page_path, true, &page), 0);
	page->start_ticks++; /* now the page names a process that does not exist */
	pid = fork();
	if (pid == 0) {
		meet(SYS_flock, SECCOMP_RET_ERRNO | ENOLCK);
		_exit(fp_statsview_open(page_path, &view) < 0 || !view->dead);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	fp_statspage_close(page);
}

static void other_versions_are_told_from_other_files(void **state)
{
	const uint32_t version = FP_STATSPAGE_VERSION + 1, size = sizeof(struct fp_statspage) + 8;
	const uint64_t magic = FP_STATSPAGE_MAGIC + 1;

	create();
	patch(offsetof(struct fp_statspage, version), &version, sizeof(version));
	assert_int_equal(try_open(), -EPROTO);
	assert_int_equal(truncate(page_path, 16), 0);
	assert_int_equal(try_open(), -EPROTO);
	create();
	patch(offsetof(struct fp_statspage, size_bytes), &size, sizeof(size));
	assert_int_equal(try_open(), -EPROTO);
	patch(0, &magic, sizeof(magic));
	assert_int_equal(try_open(), -EINVAL);
}

static void texts_without_end_are_refused(void **state)
{
	static const struct {
		size_t offset, len;
	} texts[] = {
	    {offsetof(struct fp_statspage, command), 64},
	    {offsetof(struct fp_statspage, fault_mode), 16},
	    {offsetof(struct fp_statspage, capture), 16},
	    {offsetof(struct fp_statspage, node[FP_STATSPAGE_NODES - 1].url), 128},
	    {offsetof(struct fp_statspage, node[FP_STATSPAGE_NODES - 1].way), 128},
	};
	char endless[128];

	memset(endless, 'x', sizeof(endless));
	for (unsigned i = 0; i < FP_ARRAY_LEN(texts); i++) {
		create();
		patch(texts[i].offset, endless, texts[i].len - 1);
		assert_int_equal(try_open(), 0);
		patch(texts[i].offset, endless, texts[i].len);
		assert_int_equal(try_open(), -EINVAL);
	}
}

/* A reader must not wait at a FIFO without a writer. */
static void things_that_are_no_files_are_refused(void **state)
{
	assert_int_equal(mkdir(page_path, 0700), 0);
	assert_int_equal(try_open(), -EINVAL);
	rmdir(page_path);
	assert_int_equal(mkfifo(page_path, 0600), 0);
	assert_int_equal(try_open(), -EINVAL);
}

static void a_page_tells_whether_its_writer_lives(void **state)
{
	struct fp_statsview *view = NULL;
	struct fp_statspage *page = NULL;
	siginfo_t info;
	pid_t child;

	assert_int_equal(fp_statspage_create(page_path, false, &page), 0);
	assert_int_equal(fp_statspage_alive(page), 1);
	page->start_ticks++; /* now another process seems to have the number */
	assert_int_equal(fp_statspage_alive(page), 0);
	fp_statspage_close(page);

	child = fork();
	if (child == 0)
		_exit(fp_statspage_create(page_path, false, &page) < 0);
	assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(fp_statsview_open(page_path, &view), 0);
	assert_int_equal(view->page.pid, child);
	assert_int_equal(fp_statspage_alive(&view->page), 0); /* the process is a zombie */
	waitpid(child, NULL, 0);
	assert_int_equal(fp_statspage_alive(&view->page), 0);
	fp_statsview_close(view);
}

static void *wait_for_ever(void *arg)
{
	for (;;)
		pause();
	return NULL;
}

static void go_on_without_main_thread(void)
{
	struct fp_statspage *page;
	pthread_t thread;

	if (fp_statspage_create(page_path, false, &page) < 0 ||
	    pthread_create(&thread, NULL, wait_for_ever, NULL))
		_exit(1);
	pthread_exit(NULL);
}

/* Its process is in state Z, like one that has ended. */
static void a_writer_lives_without_its_main_thread(void **state)
{
	struct fp_statsview *view = NULL;
	char path[32], text[512] = "";
	pid_t child = fork();

	if (child == 0)
		go_on_without_main_thread();
	snprintf(path, sizeof(path), "/proc/%d/stat", child);
	for (unsigned i = 0; i < 10000 && !strstr(text, ") Z "); i++) {
		usleep(1000);
		assert_true(fp_fd_read_file(path, text, sizeof(text) - 1) > 0);
	}
	assert_non_null(strstr(text, ") Z "));
	assert_int_equal(fp_statsview_open(page_path, &view), 0);
	assert_int_equal(fp_statspage_alive(&view->page), 1);
	assert_false(view->dead);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	fp_statsview_close(view);
}

static void a_name_with_parentheses_is_read(void **state)
{
	struct fp_statsview *view = NULL;
	char before[16];

	prctl(PR_GET_NAME, before);
	prctl(PR_SET_NAME, "a) R (b) 1 2");
	create();
	prctl(PR_SET_NAME, before);
	assert_int_equal(fp_statsview_open(page_path, &view), 0);
	assert_string_equal(view->page.command, "a) R (b) 1 2");
	assert_int_equal(fp_statspage_alive(&view->page), 1);
	fp_statsview_close(view);
}

static void a_file_in_a_folder_is_ours_and_no_link(void **state)
{
	fp_autoclose int dir_fd = open(folder, O_RDONLY | O_DIRECTORY);
	struct fp_statsview *view = NULL;
	char link[96];

	create();
	assert_int_equal(fp_statsview_openat(dir_fd, "1.stats", false, &view), 0);
	fp_statsview_close(view);
	snprintf(link, sizeof(link), "%s/2.stats", folder);
	assert_int_equal(symlink(page_path, link), 0);
	assert_int_equal(fp_statsview_openat(dir_fd, "2.stats", false, &view), -ELOOP);
	assert_int_equal(fp_statsview_openat(dir_fd, "3.stats", false, &view), -ENOENT);
	if (geteuid() == 0) {
		assert_int_equal(chown(page_path, 65534, 65534), 0);
		assert_int_equal(fp_statsview_openat(dir_fd, "1.stats", false, &view), -EPERM);
	}
}

/* A page that is being created has a temporary name, which contains the process number. */
static void temporary_names_tell_their_process(void **state)
{
	char name[64];
	pid_t pid = fork();

	snprintf(name, sizeof(name), "%d.stats.abcdef", (int)getpid());
	assert_int_equal(fp_statspage_maker(name), getpid());
	if (pid == 0)
		_exit(0);
	snprintf(name, sizeof(name), "%d.stats.abcdef", (int)pid);
	assert_int_equal(fp_statspage_maker(name), pid); /* ended, but its parent has not waited for it */
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(fp_statspage_maker(name), 0);
	name[strlen(name) - 1] = '\0';
	assert_int_equal(fp_statspage_maker(name), -EINVAL);
	assert_int_equal(fp_statspage_maker(".stats.abcdef"), -EINVAL);
	assert_int_equal(fp_statspage_maker("-1.stats.abcdef"), -EINVAL);
	assert_int_equal(fp_statspage_maker("4294967297.stats.abcdef"), -EINVAL);
	assert_int_equal(fp_statspage_maker("run-1"), -EINVAL);
}

static void names_tell_their_process(void **state)
{
	static const char *const wrong[] = {
	    "",         ".stats",   "0.stats",   "01.stats",         "-1.stats",
	    "x1.stats", "1.statsx", "1.stats.x", "4294967297.stats", "1"};
	char path[64];

	assert_int_equal(fp_statspage_owner("42.stats"), 42);
	for (size_t i = 0; i < FP_ARRAY_LEN(wrong); i++)
		assert_int_equal(fp_statspage_owner(wrong[i]), -EINVAL);
	setenv("FARPAGE_RUNTIME_DIR", "/somewhere", 1);
	assert_int_equal(fp_statspage_path(42, path, sizeof(path)), 0);
	assert_string_equal(path, "/somewhere/42.stats");
	assert_int_equal(fp_statspage_path(42, path, strlen("/somewhere/42.stats")), -ENAMETOOLONG);
	unsetenv("FARPAGE_RUNTIME_DIR");
}

static void kinds_have_distinct_names(void **state)
{
	for (unsigned i = 0; i < FP_FAULT_KINDS; i++)
		for (unsigned j = 0; j < i; j++)
			assert_string_not_equal(fp_fault_kind_name(i), fp_fault_kind_name(j));
	assert_string_equal(fp_fault_kind_name(FP_FAULT_ZERO), "zero");
}

#define page_test(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    page_test(a_reader_sees_what_is_counted),
	    page_test(without_a_file),
	    page_test(creating_again_replaces),
	    page_test(creating_is_atomic),
	    page_test(who_is_ended_meanwhile_leaves_no_page),
	    page_test(copy_has_each_count),
	    page_test(only_own_files_are_replaced),
	    page_test(bad_paths_are_refused),
	    page_test(every_truncation_is_refused),
	    page_test(a_page_that_is_cut_short_harms_no_reader),
	    page_test(a_page_is_its_writers_as_long_as_it_is_mapped),
	    page_test(a_page_without_lock_is_dead_though_its_process_lives),
	    page_test(where_locks_fail_a_page_of_nobody_is_dead),
	    page_test(other_versions_are_told_from_other_files),
	    page_test(texts_without_end_are_refused),
	    page_test(things_that_are_no_files_are_refused),
	    page_test(a_page_tells_whether_its_writer_lives),
	    page_test(a_writer_lives_without_its_main_thread),
	    page_test(a_name_with_parentheses_is_read),
	    page_test(a_file_in_a_folder_is_ours_and_no_link),
	    cmocka_unit_test(temporary_names_tell_their_process),
	    cmocka_unit_test(names_tell_their_process),
	    cmocka_unit_test(kinds_have_distinct_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
