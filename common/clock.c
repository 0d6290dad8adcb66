/*
 * See clock.h. One word holds two times. "away" is how long the process was stopped in all; the
 * clock leaves this time out. "due" is when the sleeper will wake. Both change in one atomic step,
 * so no signal handler or forked child finds the word half changed.
 *
 *  63       32 31     0
 * +-----------+--------+
 * | away, ms  | due,ms |   due: a time of the kernel's clock, cut to 32 bits; AWAKE: nobody sleeps
 * +-----------+--------+
 */
#include "clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LATE_MS 250u /* longer than a thread usually waits for a CPU */
#define AWAKE   0u

static _Atomic uint64_t state;

static atomic_bool asks_kernel;

/*
 * Repeats the call, because the stack may be far memory. The kernel can't write there (EFAULT)
 * until this loop has touched the page.
 */
static void ask_kernel(volatile struct timespec *ret)
{
	int saved = errno;
	long r;

	do {
		ret->tv_sec = ret->tv_nsec = 0;
		r = syscall(SYS_clock_gettime, CLOCK_MONOTONIC, ret);
	} while (r < 0 && errno == EFAULT);
	errno = saved;
}

uint64_t fp_clock_kernel_ns(void)
{
	struct timespec ts;

	if (atomic_load_explicit(&asks_kernel, memory_order_relaxed))
		ask_kernel(&ts);
	else
		clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * FP_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static uint64_t away_ns(uint64_t word)
{
	return (word >> 32) * FP_NSEC_PER_MSEC;
}

/*
 * Returns how many milliseconds ago the sleeper became late. It becomes late LATE_MS after the time
 * at which it should wake. If it is not late, the result is 0 or less.
 */
static int32_t late_ms(uint64_t word, uint64_t now)
{
	uint32_t due = (uint32_t)word;

	return due == AWAKE ? 0 : (int32_t)((uint32_t)(now / FP_NSEC_PER_MSEC) - due - LATE_MS);
}

static uint64_t with_due(uint64_t word, uint32_t due)
{
	return (word >> 32) << 32 | (due == AWAKE ? due + 1 : due);
}

/*
 * While the sleeper is late, the clock stands still: it shows the first millisecond in which the
 * sleeper was late. So the clock never goes back. To make it stand still, each call adds the time
 * since the previous call to "away".
 */
static uint64_t stand_still(uint64_t word, uint64_t now, uint64_t *ret_word)
{
	uint64_t more = (uint64_t)late_ms(word, now) - 1;

	*ret_word = with_due(word + (more << 32), (uint32_t)word + (uint32_t)more);
	return (now / FP_NSEC_PER_MSEC - more) * FP_NSEC_PER_MSEC - away_ns(word);
}

/* If the process is stopped between two rounds of this loop, the last round notices it. */
uint64_t fp_clock_ns(void)
{
	uint64_t word = atomic_load(&state), next, ns;

	for (;;) {
		uint64_t now = fp_clock_kernel_ns();

		next = word;
		ns = late_ms(word, now) > 0 ? stand_still(word, now, &next) : now - away_ns(word);
		if (next == word && atomic_load(&state) == word)
			return ns;
		if (next != word && atomic_compare_exchange_strong(&state, &word, next))
			return ns;
		word = atomic_load(&state);
	}
}

void fp_clock_ask_kernel(void)
{
	atomic_store(&asks_kernel, true);
}

void fp_clock_sleep(uint64_t until_ns)
{
	uint64_t now = fp_clock_ns(), due = until_ns > now ? until_ns : now, word = atomic_load(&state);

	while (!atomic_compare_exchange_weak(
	    &state, &word, with_due(word, (uint32_t)((due + away_ns(word)) / FP_NSEC_PER_MSEC))))
		;
}

static void stay_awake(void)
{
	atomic_fetch_and(&state, ~(uint64_t)UINT32_MAX);
}

void fp_clock_wake(void)
{
	(void)fp_clock_ns();
	stay_awake();
}

void fp_clock_forked(void)
{
	stay_awake();
}

struct timespec fp_clock_monotonic(uint64_t ns)
{
	ns += away_ns(atomic_load(&state));
	return (struct timespec){.tv_sec = (time_t)(ns / FP_NSEC_PER_SEC),
	                         .tv_nsec = (long)(ns % FP_NSEC_PER_SEC)};
}

int fp_clock_poll(int fd, short events, uint64_t deadline_ns)
{
	struct pollfd p = {.fd = fd, .events = events};
	int r;

	do {
		uint64_t now = fp_clock_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
		struct timespec ts = {(time_t)(left / FP_NSEC_PER_SEC), (long)(left % FP_NSEC_PER_SEC)};

		r = ppoll(&p, 1, &ts, NULL);
	} while (r < 0 && errno == EINTR);
	return r > 0 ? 0 : r == 0 ? -ETIMEDOUT : -errno;
}
