/*
 * The workload sort: GNU sort of random lines, in memory. Room: tools/bench; see appload.h.
 *
 * The text and the result are files in memory that belong to this process, so that neither counts
 * against the program. The time is that of the whole program.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "appload.h"
#include "cleanup.h"
#include "rng.h"

#define LINE_BYTES   61   /* with its newline */
#define TEXT_TENTHS  5    /* sort needs about twice the text */
#define CHUNK_LINES  1024 /* written at once */
#define BUFFER_TEXTS 4    /* the buffer that sort may have, in texts */

static uint64_t text_bytes(const struct fp_appload_scene *scene)
{
	return scene->size_bytes / 10 * TEXT_TENTHS / LINE_BYTES / CHUNK_LINES * CHUNK_LINES * LINE_BYTES;
}

static int write_text(const struct fp_appload_scene *scene, int fd)
{
	char chunk[CHUNK_LINES * LINE_BYTES];
	uint64_t rng = scene->seed;

	for (uint64_t left = text_bytes(scene); left; left -= sizeof(chunk)) {
		for (size_t i = 0; i < sizeof(chunk); i++)
			chunk[i] = i % LINE_BYTES == LINE_BYTES - 1
			               ? '\n'
			               : (char)('A' + (fp_rng_next(&rng) >> 32) % 26);
		if (write(fd, chunk, sizeof(chunk)) != (ssize_t)sizeof(chunk))
			return -ENOMEM;
	}
	return 0;
}

static int make_files(struct fp_appload_scene *scene)
{
	if (scene->text_fd >= 0)
		return 0;
	scene->text_fd = memfd_create("farpage-bench-text", MFD_CLOEXEC);
	scene->sorted_fd = memfd_create("farpage-bench-sorted", MFD_CLOEXEC);
	if (scene->text_fd < 0 || scene->sorted_fd < 0)
		return -errno;
	return write_text(scene, scene->text_fd);
}

/* Opens a file anew, so that its position is its beginning. */
static int open_again(int fd)
{
	char path[32];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	return again < 0 ? -errno : again;
}

/* Zeros, whose memory is taken now: a group would have to pay for what is taken later. */
static int clear_result(const struct fp_appload_scene *scene)
{
	if (ftruncate(scene->sorted_fd, 0) < 0 ||
	    fallocate(scene->sorted_fd, 0, 0, (off_t)text_bytes(scene)) < 0)
		return -errno;
	return 0;
}

static int read_checksum(const struct fp_appload_scene *scene, uint64_t *ret_checksum)
{
	uint64_t words[8192], sum = 0;
	ssize_t n;

	for (off_t at = 0; (n = pread(scene->sorted_fd, words, sizeof(words), at)) > 0; at += n) {
		memset((char *)words + n, 0, sizeof(words) - (size_t)n);
		for (size_t i = 0; i < FP_ARRAY_LEN(words); i++)
			sum = sum * FP_RNG_STEP + words[i];
	}
	*ret_checksum = sum;
	return n < 0 ? -errno : 0;
}

static int start_sort(const struct fp_appload_scene *scene, const struct fp_appway *way,
                      struct fp_apprun *ret_run)
{
	fp_autoclose int in_fd = open_again(scene->text_fd), out_fd = open_again(scene->sorted_fd);
	char buffer[32];
	const char *argv[] = {scene->program, "--parallel=1", "-S", buffer, "-T", scene->dir, NULL};

	if (in_fd < 0 || out_fd < 0)
		return FP_MIN(in_fd, out_fd);
	snprintf(buffer, sizeof(buffer), "%" PRIu64 "K", BUFFER_TEXTS * text_bytes(scene) / 1024);
	return fp_apprun_start(way, argv, in_fd, out_fd, ret_run);
}

int fp_appload_measure_sort(struct fp_appload_scene *scene, const struct fp_appload *load,
                            const struct fp_appway *way, struct fp_appload_result *ret_result)
{
	struct fp_apprun run;
	int r = make_files(scene);

	if (r == 0)
		r = clear_result(scene);
	if (r < 0)
		return fp_appload_fail(load, way, "the text and its place", r);
	r = start_sort(scene, way, &run);
	if (r < 0)
		return fp_appload_fail(load, way, scene->program, r);
	r = fp_appload_wait(load, &run, &ret_result->seconds, ret_result);
	if (r < 0 || ret_result->killed)
		return r;
	ret_result->setup_seconds = NAN;
	r = read_checksum(scene, &ret_result->checksum);
	return r < 0 ? fp_appload_fail(load, way, "the result", r) : 0;
}
