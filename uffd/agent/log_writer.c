/*
 * See log_writer.h. Several threads may hand over lines at once: each takes the next place by `in`.
 * The writer takes them in that order.
 */
#include "log_writer.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "lockedmem.h"
#include "log.h"
#include "store.h"
#include "thread.h"

#define PATIENCE_NS (100 * FP_NSEC_PER_MSEC)
#define LINES       4u

static struct {
	pthread_mutex_t turn;     /* of starts and stops */
	_Atomic uint32_t *is_own; /* 0 in a forked child: the kernel zeroes it there */
	unsigned n_users;
	struct fp_thread thread;
	_Atomic bool runs;
	/* counts of lines: handed over, and written or left out; `out` is a futex, too */
	_Atomic uint32_t in, out;
	_Atomic bool is_late; /* a line took so long that nobody waits for the next ones */
	_Atomic uint32_t stopping, taken;
	struct {
		_Atomic bool ready;
		size_t len;
		char text[FP_LOG_LINE_BYTES];
	} line[LINES];
} writer = {.turn = PTHREAD_MUTEX_INITIALIZER};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t patience_ns)
{
	const struct timespec patience = {.tv_sec = (time_t)(patience_ns / FP_NSEC_PER_SEC),
	                                  .tv_nsec = (long)(patience_ns % FP_NSEC_PER_SEC)};

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, patience_ns ? &patience : NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* ---- the threads that log ---- */

static void await_line(uint32_t ticket)
{
	uint64_t until_ns = fp_clock_ns() + PATIENCE_NS;

	for (;;) {
		uint32_t out = atomic_load(&writer.out);
		uint64_t now = fp_clock_ns();

		if ((int32_t)(out - ticket) > 0 || atomic_load(&writer.is_late))
			return;
		if (now >= until_ns) {
			atomic_store(&writer.is_late, true);
			return;
		}
		futex_wait(&writer.out, out, until_ns - now);
	}
}

/* False if all places are taken. */
static bool take_place(uint32_t *ret_ticket)
{
	uint32_t ticket = atomic_load(&writer.in);

	do {
		if ((int32_t)(ticket - atomic_load(&writer.out)) >= (int32_t)LINES)
			return false;
	} while (!atomic_compare_exchange_weak(&writer.in, &ticket, ticket + 1));
	*ret_ticket = ticket;
	return true;
}

static bool take_line(const char *subsystem, const char *text, size_t len)
{
	uint32_t ticket;

	(void)subsystem;
	if (!atomic_load(&writer.runs) || !fp_thread_is_own())
		return !fp_log_takes_text();
	if (!take_place(&ticket))
		return true;
	memcpy(writer.line[ticket % LINES].text, text, len);
	writer.line[ticket % LINES].len = len;
	atomic_store(&writer.line[ticket % LINES].ready, true);
	atomic_fetch_add(&writer.taken, 1);
	futex_wake(&writer.taken);
	await_line(ticket);
	return true;
}

/* ---- the thread that writes ---- */

/* False if there is no line. */
static bool write_next(void)
{
	uint32_t i = atomic_load(&writer.out) % LINES;

	if (!atomic_load(&writer.line[i].ready))
		return false;
	if (fp_log_takes_text())
		fp_log_write(writer.line[i].text, writer.line[i].len);
	atomic_store(&writer.line[i].ready, false);
	atomic_fetch_add(&writer.out, 1);
	futex_wake(&writer.out);
	return true;
}

static void *run(void *arg)
{
	for (;;) {
		uint32_t taken = atomic_load(&writer.taken);

		if (write_next())
			continue;
		atomic_store(&writer.is_late, false);
		if (atomic_load(&writer.stopping))
			return arg;
		futex_wait(&writer.taken, taken, 0);
	}
}

/* ---- life ---- */

static bool is_own(void)
{
	return writer.is_own && atomic_load(writer.is_own);
}

static void make_mark(void)
{
	writer.is_own = fp_lockedmem_new(FP_PAGE_SIZE);
	if (writer.is_own && madvise((void *)writer.is_own, FP_PAGE_SIZE, MADV_WIPEONFORK) == 0)
		atomic_store(writer.is_own, 1);
}

/* In a forked child, where neither the thread nor those that held the turn run. */
static void begin_anew(void)
{
	pthread_mutex_init(&writer.turn, NULL);
	fp_thread_abandon(&writer.thread);
	atomic_store(&writer.runs, false);
	writer.n_users = 0;
	atomic_store(writer.is_own, 1);
}

static int start_thread(void)
{
	int r;

	for (unsigned i = 0; i < LINES; i++)
		atomic_store(&writer.line[i].ready, false);
	atomic_store(&writer.out, atomic_load(&writer.in));
	atomic_store(&writer.is_late, false);
	atomic_store(&writer.stopping, 0);
	r = fp_thread_start(&writer.thread, "farpage-log", run, NULL);
	if (r < 0)
		return r;
	atomic_store(&writer.runs, true);
	fp_log_divert(take_line);
	return 0;
}

int fp_log_writer_start(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int r = 0;

	pthread_once(&once, make_mark);
	if (!writer.is_own)
		return -ENOMEM;
	if (!is_own())
		begin_anew();
	pthread_mutex_lock(&writer.turn);
	if (writer.n_users == 0)
		r = start_thread();
	writer.n_users += r == 0;
	pthread_mutex_unlock(&writer.turn);
	return r;
}

void fp_log_writer_stop(void)
{
	if (!is_own())
		return;
	pthread_mutex_lock(&writer.turn);
	if (--writer.n_users == 0) {
		atomic_store(&writer.runs, false);
		atomic_store(&writer.stopping, 1);
		atomic_fetch_add(&writer.taken, 1);
		futex_wake(&writer.taken);
		fp_thread_join(&writer.thread);
	}
	pthread_mutex_unlock(&writer.turn);
}
