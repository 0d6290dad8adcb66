/* See churnwatch.h. */
#include "churnwatch.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"

#define PAUSE_NS 500000 /* time between two samples, in which the child can go on */

/*
 * Sums Rss over the mappings whose VmFlags contain "um": those registered for missing pages. False
 * once the process is gone.
 */
static bool sample(pid_t pid, uint64_t *ret_bytes)
{
	char path[64], line[512];
	uint64_t total = 0, rss_kib = 0;
	fp_autofclose FILE *f = NULL;
	bool any = false;

	snprintf(path, sizeof(path), "/proc/%d/smaps", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		any = true;
		if (strncmp(line, "Rss:", 4) == 0)
			rss_kib = strtoull(line + 4, NULL, 10);
		else if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " um"))
			total += rss_kib << 10;
	}
	*ret_bytes = total;
	return any;
}

static void say_where(pid_t pid)
{
	char command[128];

	fflush(stdout);
	snprintf(command, sizeof(command), "grep -H . /proc/%d/task/*/comm /proc/%d/task/*/wchan >&2",
	         (int)pid, (int)pid);
	if (system(command) != 0)
		fprintf(stderr, "churn: its threads can't be listed\n");
}

/*
 * Stops the process, and samples again. Called when a sum seems too large: while the process runs,
 * pages come and go as the kernel sums, so it may count a page twice. False: the process has ended.
 */
static bool sample_stopped(pid_t pid, int *ret_status, uint64_t *ret_bytes)
{
	kill(pid, SIGSTOP);
	if (waitpid(pid, ret_status, WUNTRACED) != pid || !WIFSTOPPED(*ret_status))
		return false;
	sample(pid, ret_bytes);
	kill(pid, SIGCONT);
	return true;
}

int churnwatch_run(pid_t pid, uint64_t limit_bytes, uint64_t timeout_ns, struct churnwatch *ret_watch)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint64_t end_ns = fp_clock_ns() + timeout_ns, bytes;
	int status;

	*ret_watch = (struct churnwatch){0};
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (sample(pid, &bytes))
			ret_watch->samples++;
		if (bytes > limit_bytes && !sample_stopped(pid, &status, &bytes))
			return status;
		ret_watch->peak_bytes = FP_MAX(ret_watch->peak_bytes, bytes);
		if (bytes > limit_bytes) {
			fprintf(stderr,
			        "churn: %" PRIu64 " KiB of far memory are resident, at most %" PRIu64
			        " may be\n",
			        bytes >> 10, limit_bytes >> 10);
			kill(pid, SIGKILL);
		}
		if (fp_clock_ns() > end_ns) {
			fprintf(stderr, "churn: it hangs\n");
			say_where(pid);
			kill(pid, SIGKILL);
			end_ns = UINT64_MAX;
		}
		nanosleep(&pause, NULL);
	}
	return status;
}
