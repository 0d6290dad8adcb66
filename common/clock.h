/*
 * Time in nanoseconds, as it goes for a process that runs. Room: common.
 *
 * Deadlines are for others who keep us waiting. A process that was itself stopped (SIGSTOP, a
 * debugger, a frozen control group, a guest that was paused) has not waited: what came meanwhile is
 * there, it only has not looked. So a thread that never sleeps for long says when it does and when
 * it will wake; if it is much later, nobody of this process ran, and the clock stood still. Without
 * such a thread the clock is CLOCK_MONOTONIC.
 */
#ifndef FP_CLOCK_H
#define FP_CLOCK_H

#include <poll.h>
#include <stdint.h>
#include <time.h>

#define FP_NSEC_PER_USEC 1000ull
#define FP_NSEC_PER_MSEC 1000000ull
#define FP_NSEC_PER_SEC  1000000000ull

/*
 * Nanoseconds of CLOCK_MONOTONIC, less those for which the process was stopped. Any thread, signal
 * handlers too; never blocks, and suits the fault path.
 */
uint64_t fp_clock_ns(void);

/* What is delay_ns later; never, UINT64_MAX, stays so. */
static inline uint64_t fp_clock_after(uint64_t ns, uint64_t delay_ns)
{
	return ns + delay_ns < ns ? UINT64_MAX : ns + delay_ns;
}

/* CLOCK_MONOTONIC as the kernel has it. Any thread, signal handlers too. */
uint64_t fp_clock_kernel_ns(void);

/*
 * From now on the clock is read by a system call. For a program that forbids one of its threads the
 * time stamp counter (PR_SET_TSC): the usual way would end that thread by SIGSEGV.
 */
void fp_clock_ask_kernel(void);

/*
 * The calling thread sleeps now, until until_ns at the latest, and is awake again. A machine so
 * busy that it does not let the thread wake for a quarter of a second counts as a process that is
 * stopped: deadlines end later then. For one thread of a process; if several do so, some stops are
 * not noticed.
 */
void fp_clock_sleep(uint64_t until_ns);
void fp_clock_wake(void);

/* In the child of a fork, which has no such thread yet. */
void fp_clock_forked(void);

/* When CLOCK_MONOTONIC says ns by fp_clock_ns, if the process is not stopped meanwhile: for waits
 * of libc. */
struct timespec fp_clock_monotonic(uint64_t ns);

/*
 * Waits until fd has one of events, until deadline_ns. 0; -ETIMEDOUT; or another negative errno.
 * Signals do not end it.
 */
int fp_clock_poll(int fd, short events, uint64_t deadline_ns);

#endif
