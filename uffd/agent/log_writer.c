/*
 * See log_writer.h. Several threads may hand over lines at once: each takes the next place by `in`.
 * The writer takes them in that order.
 */
#include "log_writer.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define PATIENCE_NS (100 * FP_NSEC_PER_MSEC)

/* That of the far memory that was started first: its lines are those of all. */
static struct fp_log_writer *_Atomic current;

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

static void await_line(struct fp_log_writer *writer, uint32_t ticket)
{
	uint64_t until_ns = fp_clock_ns() + PATIENCE_NS;

	for (;;) {
		uint32_t out = atomic_load(&writer->out);
		uint64_t now = fp_clock_ns();

		if ((int32_t)(out - ticket) > 0 || atomic_load(&writer->is_late))
			return;
		if (now >= until_ns) {
			atomic_store(&writer->is_late, true);
			return;
		}
		futex_wait(&writer->out, out, until_ns - now);
	}
}

/* False if all places are taken. */
static bool take_place(struct fp_log_writer *writer, uint32_t *ret_ticket)
{
	uint32_t ticket = atomic_load(&writer->in);

	do {
		if (ticket - atomic_load(&writer->out) >= FP_LOG_WRITER_LINES)
			return false;
	} while (!atomic_compare_exchange_weak(&writer->in, &ticket, ticket + 1));
	*ret_ticket = ticket;
	return true;
}

static bool take_line(const char *subsystem, const char *text, size_t len)
{
	struct fp_log_writer *writer = atomic_load(&current);
	uint32_t ticket;

	(void)subsystem;
	if (!writer || !fp_thread_is_own())
		return !fp_log_takes_text();
	if (!take_place(writer, &ticket))
		return true;
	memcpy(writer->line[ticket % FP_LOG_WRITER_LINES].text, text, len);
	writer->line[ticket % FP_LOG_WRITER_LINES].len = len;
	atomic_store(&writer->line[ticket % FP_LOG_WRITER_LINES].ready, true);
	atomic_fetch_add(&writer->taken, 1);
	futex_wake(&writer->taken);
	await_line(writer, ticket);
	return true;
}

/* ---- the thread that writes ---- */

/* False if there is no line. */
static bool write_next(struct fp_log_writer *writer)
{
	uint32_t i = atomic_load(&writer->out) % FP_LOG_WRITER_LINES;

	if (!atomic_load(&writer->line[i].ready))
		return false;
	if (fp_log_takes_text())
		fp_log_write(writer->line[i].text, writer->line[i].len);
	atomic_store(&writer->line[i].ready, false);
	atomic_fetch_add(&writer->out, 1);
	futex_wake(&writer->out);
	return true;
}

static void *run(void *arg)
{
	struct fp_log_writer *writer = arg;

	for (;;) {
		uint32_t taken = atomic_load(&writer->taken);

		if (write_next(writer))
			continue;
		atomic_store(&writer->is_late, false);
		if (atomic_load(&writer->stopping))
			return NULL;
		futex_wait(&writer->taken, taken, 0);
	}
}

/* ---- life ---- */

int fp_log_writer_start(struct fp_log_writer *writer)
{
	struct fp_log_writer *none = NULL;
	int r;

	for (unsigned i = 0; i < FP_LOG_WRITER_LINES; i++)
		atomic_store(&writer->line[i].ready, false);
	atomic_store(&writer->out, atomic_load(&writer->in));
	atomic_store(&writer->is_late, false);
	atomic_store(&writer->stopping, 0);
	r = fp_thread_start(&writer->thread, "farpage-log", run, writer);
	if (r < 0)
		return r;
	if (atomic_compare_exchange_strong(&current, &none, writer))
		fp_log_divert(take_line);
	return 0;
}

void fp_log_writer_stop(struct fp_log_writer *writer)
{
	struct fp_log_writer *own = writer;

	if (!writer->thread.running)
		return;
	(void)atomic_compare_exchange_strong(&current, &own, NULL);
	atomic_store(&writer->stopping, 1);
	atomic_fetch_add(&writer->taken, 1);
	futex_wake(&writer->taken);
	fp_thread_join(&writer->thread);
}

void fp_log_writer_abandon(struct fp_log_writer *writer)
{
	struct fp_log_writer *own = writer;

	(void)atomic_compare_exchange_strong(&current, &own, NULL);
	fp_thread_abandon(&writer->thread);
}
