/*
 * tickrate: prints the rate of the processor's time stamp counter in kHz. An emulated machine reads
 * the host's counter. If the host is busy while that machine measures the rate, the result can be
 * several times too high or too low, and the machine's clock runs away. Room: test/vm.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

#define TRIES   64
#define SPAN_NS 100000000

struct moment {
	uint64_t ns, ticks;
};

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_RAW, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/*
 * Reads clock and counter at nearly the same moment. Of several tries it returns the shortest,
 * which was interrupted least.
 */
static struct moment look(void)
{
	struct moment best = {0};
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < TRIES; i++) {
		uint64_t before = __rdtsc(), ns = clock_ns(), after = __rdtsc();

		if (after - before >= least)
			continue;
		least = after - before;
		best = (struct moment){.ns = ns, .ticks = before + (after - before) / 2};
	}
	return best;
}

int main(void)
{
	const struct timespec span = {.tv_nsec = SPAN_NS};
	struct moment begin = look(), end;

	nanosleep(&span, NULL);
	end = look();
	printf("%.0f\n", (double)(end.ticks - begin.ticks) * 1e6 / (double)(end.ns - begin.ns));
	return 0;
}
