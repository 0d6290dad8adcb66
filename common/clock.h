/*
 * Time in nanoseconds, as a running process sees it. Room: common.
 *
 * A deadline limits how long we wait for others. A process may itself be stopped: by SIGSTOP, a
 * debugger, a frozen control group or a paused virtual machine. Then it has not waited: the answer
 * may be there, but the process has not looked. So one thread that never sleeps for long tells the
 * clock when it sleeps and when it will wake. If it wakes much later, the whole process was
 * stopped, and the clock stood still. Without such a thread the clock is CLOCK_MONOTONIC.
 */
#ifndef FP_CLOCK_H
#define FP_CLOCK_H

#include <poll.h>
#include <stdint.h>
#include <time.h>

#define FP_NSEC_PER_USEC 1000ull
#define FP_NSEC_PER_MSEC 1000000ull
#define FP_NSEC_PER_SEC  1000000000ull

/* Nanoseconds of CLOCK_MONOTONIC, less those for which the process was stopped. Any thread, signal
 * handlers too. Never blocks, so the fault path may call it. */
uint64_t fp_clock_ns(void);

/*
 * Returns the time that lies delay_ns after the time ns. UINT64_MAX means never. A delay after
 * "never" gives "never", too.
 */
static inline uint64_t fp_clock_after(uint64_t ns, uint64_t delay_ns)
{
	return ns + delay_ns < ns ? UINT64_MAX : ns + delay_ns;
}

/* CLOCK_MONOTONIC as the kernel has it. Any thread, signal handlers too. */
uint64_t fp_clock_kernel_ns(void);

/*
 * From now on the clock is read by a system call. Called when a program forbids one of its threads
 * the time stamp counter (PR_SET_TSC). Without this, the next read of the clock would end that
 * thread by SIGSEGV.
 */
void fp_clock_ask_kernel(void);

/*
 * fp_clock_sleep: the calling thread now begins a sleep, which ends at until_ns at the latest.
 * fp_clock_wake: the thread is awake again. If the thread wakes more than 250 ms too late, the
 * process counts as stopped, and deadlines end later. A busy machine can cause that, too. Only one
 * thread of a process may call these functions: with several threads, some stops would not be
 * noticed.
 */
void fp_clock_sleep(uint64_t until_ns);
void fp_clock_wake(void);

/* Called in the child of a fork, where no thread calls fp_clock_sleep yet. */
void fp_clock_forked(void);

/*
 * The time of CLOCK_MONOTONIC at which fp_clock_ns will return ns, if the process is not stopped
 * until then. For functions of libc that wait until a time.
 */
struct timespec fp_clock_monotonic(uint64_t ns);

/*
 * Waits until fd has one of the poll events in the parameter events, or until deadline_ns. Returns
 * 0 if fd has such an event, -ETIMEDOUT at the deadline, or another negative errno. Signals do not
 * end the wait.
 */
int fp_clock_poll(int fd, short events, uint64_t deadline_ns);

#endif
