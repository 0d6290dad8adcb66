/* See far_rig.h. */
#include "far_rig.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <ucontext.h>
#include <unistd.h>

#include "calls.h"
#include "cleanup.h"
#include "log.h"
#include "rawcall.h"

#define DEPTH 16

struct far_rig far_rig;

static struct {
	struct far_page_span {
		unsigned first, n;
		bool write;
	} spans[FAR_RANGES];
	unsigned n;
} pins[DEPTH];

static bool opened[FAR_PAGES]; /* pages that the program has touched */
static char agent_place, space_place;
static int log_fd = -1, stderr_fd = -1;

/* ---- pages ---- */

static void protect(unsigned page)
{
	int prot = opened[page] || far_rig.writable[page] ? PROT_READ | PROT_WRITE
	           : far_rig.pins[page]                   ? PROT_READ
	                                                  : PROT_NONE;

	FP_RAW(SYS_mprotect, far_rig.memory + (size_t)page * FP_PAGE_SIZE, FP_PAGE_SIZE, prot, 0, 0, 0);
}

static void on_touch(int sig, siginfo_t *info, void *context)
{
	size_t offset = (size_t)((char *)info->si_addr - far_rig.memory);

	if (offset >= (size_t)FAR_PAGES * FP_PAGE_SIZE) {
		signal(SIGSEGV, SIG_DFL);
		return;
	}
	far_rig.n_faults++;
	opened[offset / FP_PAGE_SIZE] = true;
	protect((unsigned)(offset / FP_PAGE_SIZE));
}

void far_rig_close(void)
{
	memset(opened, 0, sizeof(opened));
	for (unsigned i = 0; i < FAR_PAGES; i++)
		if (far_rig.pins[i])
			protect(i);
	if (far_rig.n_open == 0)
		FP_RAW(SYS_mprotect, far_rig.memory, (size_t)FAR_PAGES * FP_PAGE_SIZE, PROT_NONE, 0, 0, 0);
	far_rig.n_pins = far_rig.n_faults = far_rig.n_ranges = 0;
	far_rig.n_awaited = far_rig.n_released = far_rig.n_wary = 0;
	far_rig.fs_kind = 0;
}

/* ---- the agent, as far as these rooms use it ---- */

/* The far pages of a range. If n is 0, the range has none. */
static struct far_page_span span_of(const struct fp_pin_range *range)
{
	uintptr_t start = (uintptr_t)range->addr;
	uintptr_t end = range->len_bytes > UINTPTR_MAX - start ? UINTPTR_MAX : start + range->len_bytes;
	uintptr_t from = (uintptr_t)far_rig.memory, to = from + (size_t)FAR_PAGES * FP_PAGE_SIZE;
	struct far_page_span span = {.write = range->write};

	start = FP_MAX(start, from);
	end = FP_MIN(end, to);
	if (start >= end)
		return span;
	span.first = (unsigned)((start - from) / FP_PAGE_SIZE);
	span.n = (unsigned)((end - 1 - from) / FP_PAGE_SIZE) + 1 - span.first;
	return span;
}

int fp_agent_pin(struct fp_agent *agent, const struct fp_pin_range *ranges, unsigned n,
                 struct fp_pin *ret_pin)
{
	unsigned depth = far_rig.n_open, sum = 0;

	assert_true(depth < DEPTH && n <= FAR_RANGES);
	pins[depth].n = n;
	for (unsigned i = 0; i < n; i++) {
		pins[depth].spans[i] = span_of(&ranges[i]);
		sum += pins[depth].spans[i].n;
	}
	if (sum > far_rig.budget_pages)
		return -E2BIG;
	for (unsigned i = 0; i < n; i++) {
		const struct far_page_span *span = &pins[depth].spans[i];

		for (unsigned page = span->first; page < span->first + span->n; page++) {
			far_rig.pins[page]++;
			far_rig.writable[page] |= span->write;
			protect(page);
		}
	}
	far_rig.n_ranges = n;
	memcpy(far_rig.ranges, ranges, n * sizeof(*ranges));
	far_rig.n_open++;
	far_rig.n_pins++;
	*ret_pin = (struct fp_pin){.n = n, .depth = depth};
	return 0;
}

void fp_agent_unpin(struct fp_agent *agent, struct fp_pin *pin)
{
	unsigned depth = --far_rig.n_open;

	assert_int_equal(pin->depth, depth); /* pins end in reverse order */
	for (unsigned i = 0; i < pins[depth].n; i++) {
		const struct far_page_span *span = &pins[depth].spans[i];

		for (unsigned page = span->first; page < span->first + span->n; page++) {
			if (--far_rig.pins[page] == 0)
				far_rig.writable[page] = opened[page] = false;
			protect(page);
		}
	}
}

struct fp_space *fp_agent_space(struct fp_agent *agent)
{
	return agent ? (struct fp_space *)(void *)&space_place : NULL;
}

bool fp_agent_needs_pins(const struct fp_agent *agent)
{
	return !far_rig.needs_no_pins;
}

/* In place of fstatfs, for the shim alone. */
int __real_fstatfs64(int fd, struct statfs *ret);
int __wrap_fstatfs64(int fd, struct statfs *ret);

int __wrap_fstatfs64(int fd, struct statfs *ret)
{
	int r = __real_fstatfs64(fd, ret);

	if (far_rig.fs_kind)
		ret->f_type = far_rig.fs_kind;
	return r;
}

void fp_agent_be_wary(struct fp_agent *agent)
{
	far_rig.n_wary++;
}

bool fp_agent_is_stray(const struct fp_agent *agent)
{
	return far_rig.stray;
}

bool fp_agent_is_own_thread(void)
{
	return false;
}

bool fp_agent_needs_network(const struct fp_agent *agent)
{
	return far_rig.needs_network;
}

void fp_agent_await_sessions(struct fp_agent *agent)
{
	far_rig.n_awaited++;
}

void fp_agent_affinity_release(struct fp_agent *agent, bool anyone)
{
	far_rig.n_released++;
}

void fp_agent_thread_ends(struct fp_agent *agent)
{
}

bool fp_space_overlaps(const struct fp_space *space, const void *addr, size_t len)
{
	const struct fp_pin_range range = {.addr = addr, .len_bytes = len};

	return space && span_of(&range).n;
}

bool fp_space_owns(const struct fp_space *space, const void *addr)
{
	return fp_space_overlaps(space, addr, 1);
}

int fp_space_hold(struct fp_space *space, void *addr, size_t len)
{
	return -ENOTSUP; /* the rig's far memory stays far */
}

struct fp_space_borders fp_space_borders(const struct fp_space *space)
{
	return (struct fp_space_borders){
	    .own_start = far_rig.memory,
	    .own_end = far_rig.memory,
	    .start = far_rig.memory,
	    .end = far_rig.memory + (size_t)FAR_PAGES * FP_PAGE_SIZE,
	};
}

/*
 * Takes the place of the shim's own function, which is written in assembler, as is the syscall(2)
 * around it.
 */
long fp_call_raw_syscall(long number, ...)
{
	long arg[6];
	va_list args;

	va_start(args, number);
	for (unsigned i = 0; i < 6; i++)
		arg[i] = va_arg(args, long);
	va_end(args);
	return fp_shim_return_long(fp_raw(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]));
}

/* ---- the rig ---- */

/*
 * The shim opens its calls only once in a program's life. So this first undoes the earlier opening.
 */
void far_rig_use_agent(bool use)
{
	static fp_call_fn **first;

	if (!first) {
		first = malloc(fp_call_n_rows * sizeof(*first));
		assert_non_null(first);
		memcpy(first, fp_call_entry, fp_call_n_rows * sizeof(*first));
	}
	memcpy(fp_call_entry, first, fp_call_n_rows * sizeof(*first));
	fp_shim_set_agent(use ? (struct fp_agent *)(void *)&agent_place : NULL);
	fp_calls_open();
}

/* cmocka sets its own handler of SIGSEGV for each test, so this sets ours again. */
char *far_rig_at(size_t offset)
{
	struct sigaction action = {.sa_sigaction = on_touch,
	                           .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};

	sigaction(SIGSEGV, &action, NULL);
	return far_rig.memory + offset;
}

int far_rig_begin(void **state)
{
	size_t len = (FAR_PAGES + 2) * (size_t)FP_PAGE_SIZE;
	char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(memory, MAP_FAILED);
	far_rig.memory = memory + FP_PAGE_SIZE;
	fp_log_init("test", FP_LOG_WARNING);
	return 0;
}

int far_rig_setup(void **state)
{
	far_rig.budget_pages = FAR_PAGES;
	far_rig.needs_network = far_rig.needs_no_pins = far_rig.stray = false;
	far_rig_use_agent(true);
	far_rig_close();
	return 0;
}

int far_rig_teardown(void **state)
{
	assert_int_equal(far_rig.n_open, 0);
	far_rig_use_agent(false);
	if (stderr_fd >= 0)
		(void)far_rig_heard();
	return 0;
}

void far_rig_listen(void)
{
	log_fd = memfd_create("log", MFD_CLOEXEC);
	stderr_fd = dup(STDERR_FILENO);
	assert_true(log_fd >= 0 && stderr_fd >= 0);
	dup2(log_fd, STDERR_FILENO);
	fp_log_init("test", FP_LOG_WARNING); /* the log notes which file stderr is now */
}

const char *far_rig_heard(void)
{
	static char text[4096];
	ssize_t n;

	dup2(stderr_fd, STDERR_FILENO);
	fp_log_init("test", FP_LOG_WARNING);
	n = pread(log_fd, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = '\0';
	close(stderr_fd);
	close(log_fd);
	stderr_fd = log_fd = -1;
	return text;
}
