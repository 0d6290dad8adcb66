/*
 * The start and the end of the shim. Room: preload/process.
 *
 * The agent starts in our constructor. Before that all memory is local, so no interposed call has
 * to start threads and sessions from inside malloc.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "atfork.h"
#include "calls.h"
#include "cleanup.h"
#include "clock.h"
#include "end.h"
#include "fdutil.h"
#include "heap.h"
#include "imports.h"
#include "libc_memory.h"
#include "local.h"
#include "local_stack.h"
#include "log.h"
#include "local_rules.h"
#include "lookup.h"
#include "owner.h"
#include "rawcall.h"
#include "rlimits.h"
#include "settings.h"
#include "shim.h"
#include "signals.h"
#include "sigmask.h"
#include "sigstack.h"
#include "units.h"
#include "versions.h"

#define PATIENCE_NS (30 * FP_NSEC_PER_SEC) /* as the nodes' default grace */
#define RETRY_NS    (100 * FP_NSEC_PER_MSEC)

static bool on_bus(siginfo_t *info, void *context)
{
	return fp_agent_signal(info, context);
}

/*
 * Ends the process with a message if it touched far memory without an agent. A child that a bare
 * system call has made is such a process: it does not inherit the range.
 */
static bool on_segv(siginfo_t *info, void *context)
{
	struct fp_agent *agent = fp_shim_agent();

	if (info->si_code > 0 && fp_space_owns(fp_agent_space(agent), info->si_addr))
		fp_agent_stop_stray(agent);
	return false;
}

static void fill_core(void)
{
	FP_ON_LOCAL_STACK(fp_agent_core_fill, fp_shim_agent(), 0, 0, 0, 0, 0);
}

/* Prepares threads to serve their own faults. Must come before any code that can fault. */
static int open_inline(void)
{
	const struct fp_signal_hook hook = {.first = on_bus, .always = true};
	int r = fp_signals_take(SIGBUS, &hook);

	if (r == 0)
		fp_sigmask_open();
	return r;
}

/* Prepares signals for hosts where the kernel can't write a signal's frame to far memory. */
static int open_signals(enum fp_fault_mode mode, struct fp_agent_error *error)
{
	int r = fp_sigstack_open();

	if (r == -ENOTSUP) {
		snprintf(error->text, sizeof(error->text),
		         "where only user-mode faults are permitted, far memory needs an x86-64 processor as "
		         "yet: allow this user all faults, by access to /dev/userfaultfd");
		return r;
	}
	if (r == 0 && mode == FP_FAULT_MODE_INLINE)
		r = open_inline();
	if (r < 0)
		snprintf(error->text, sizeof(error->text),
		         "the signals of a program without kernel faults: %s", strerror(-r));
	return r;
}

/*
 * Keeps a pipe open, also through exec. While it is open, a private node knows that a process may
 * still need it.
 */
static void keep_inherited(void)
{
	const char *number = getenv("FARPAGE_KEPT_FD");
	int fd = number ? atoi(number) : -1;
	struct stat st;

	if (fd > STDERR_FILENO && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode))
		fp_fd_keep(fd);
}

static bool may_use_rdma(const struct fp_settings *settings)
{
	for (unsigned i = 0; i < settings->n_urls; i++)
		if (strncmp(settings->urls[i], "rdma", 4) == 0 || strncmp(settings->urls[i], "auto", 4) == 0)
			return true;
	return false;
}

/*
 * The C library and RDMA's libraries allocate from the program's own allocator, if it has one. That
 * memory may be far. It must not be needed to serve a fault, nor reach the kernel where the kernel
 * can't wait for far memory.
 */
static int check_owner(const struct fp_settings *settings, const struct fp_agent *agent,
                       struct fp_agent_error *error)
{
	const char *file = fp_owner_file(), *why = NULL;

	if (file && !agent && may_use_rdma(settings))
		why = "the libraries of RDMA would allocate from it while they serve its faults. Name the "
		      "nodes by tcp:// or shm:";
	else if (file && agent && fp_agent_needs_pins(agent))
		why = "the kernel does not fetch what the C library hands to it from there. Use fault mode "
		      "thread, and permit this user all faults by access to /dev/userfaultfd";
	if (!why)
		return 0;
	snprintf(error->text, sizeof(error->text), "%s brings a malloc of its own, which may be far: %s",
	         file, why);
	return -ENOTSUP;
}

/*
 * Sanitizers give each byte of memory a shadow at a place of their own, and take over the calls
 * that we take over. Neither can be shared.
 */
static int check_sanitizers(struct fp_agent_error *error)
{
	static const char *const names[][2] = {{"__asan_init", "AddressSanitizer"},
	                                       {"__tsan_init", "ThreadSanitizer"},
	                                       {"__msan_init", "MemorySanitizer"},
	                                       {"__hwasan_init", "HWAddressSanitizer"},
	                                       {"__lsan_init", "LeakSanitizer"}};

	for (size_t i = 0; i < FP_ARRAY_LEN(names); i++) {
		if (!fp_lookup_dlsym()(RTLD_DEFAULT, names[i][0]))
			continue;
		snprintf(error->text, sizeof(error->text),
		         "the program is built with %s, which can't share its memory with Farpage: use a "
		         "build without it",
		         names[i][1]);
		return -ENOTSUP;
	}
	return 0;
}

/* What is opened later by dlopen is not looked at: there the loader has no place for a check. */
static int check_versions(struct fp_agent_error *error)
{
	struct fp_version_use use;

	if (!fp_versions_find_old(&use))
		return 0;
	snprintf(error->text, sizeof(error->text),
	         "%s was linked to the old function %s@%s, and would get today's, which is another one: "
	         "link it anew, or run it without far memory",
	         use.file[0] ? use.file : "the program", use.symbol, use.version);
	return -ENOTSUP;
}

/* ---- the agent ---- */

/* True if a node may only be cut off, or about to start again. */
static bool may_pass(int error)
{
	return error == -ETIMEDOUT || error == -ECONNREFUSED || error == -ECONNRESET || error == -EPIPE ||
	       error == -EHOSTUNREACH || error == -ENETUNREACH;
}

static uint64_t patience_of(const struct fp_agent_options *options)
{
	if (options->on_loss == FP_ON_LOSS_WAIT)
		return UINT64_MAX;
	return options->patience_ns ? options->patience_ns : PATIENCE_NS;
}

static void say_waiting(const struct fp_agent_options *options, const struct fp_agent_error *error)
{
	uint64_t patience_ns = patience_of(options);
	char time[24];

	fp_log(FP_LOG_WARNING, "preload", "%s; the start of this program waits %s%s", error->text,
	       patience_ns == UINT64_MAX ? "until it is back" : "up to ",
	       patience_ns == UINT64_MAX ? "" : fp_time_format(patience_ns, time, sizeof(time)));
}

/*
 * A program with far memory may execute another while a node is cut off. So the start of the new
 * one waits for the node, as long as a page would.
 */
static int agent_start(struct fp_agent_options *options, struct fp_agent **ret_agent,
                       struct fp_agent_error *error)
{
	const struct timespec pause = {.tv_nsec = RETRY_NS};
	uint64_t now_ns = fp_clock_ns(), until_ns = fp_clock_after(now_ns, patience_of(options));

	for (bool said = false;; said = true) {
		int r;

		options->connect_ns = FP_MIN(until_ns - now_ns, options->deadline_ns);
		r = fp_agent_start(options, ret_agent, error);
		now_ns = fp_clock_ns();
		if (!may_pass(r) || now_ns + RETRY_NS >= until_ns)
			return r;
		if (!said)
			say_waiting(options, error);
		FP_RAW(SYS_nanosleep, &pause, NULL, 0, 0, 0, 0);
		now_ns = fp_clock_ns();
	}
}

static int take_signals(enum fp_core_mode core)
{
	int r = fp_signals_take(SIGSEGV, &(struct fp_signal_hook){.first = on_segv});

	if (r < 0)
		return r;
	if (fp_sigstack_is_open()) {
		fp_signals_take_internal(FP_SIGSETXID);
		return fp_signals_take_rest(FP_SIGNALS_ALL);
	}
	return core == FP_CORE_FULL ? fp_signals_take_rest(FP_SIGNALS_CORE) : 0;
}

static int start(struct fp_agent_error *error)
{
	struct fp_agent_options options;
	struct fp_settings settings;
	struct fp_agent *agent;
	enum fp_core_mode core;
	int r = fp_settings_read(&settings, error);

	if (r < 0)
		return r;
	fp_log_init("farpage", settings.log_level);
	keep_inherited();
	fp_shim_set_min_mapping(settings.min_mapping_bytes);
	if (settings.n_urls == 0) {
		snprintf(error->text, sizeof(error->text),
		         "no memory node: set FARPAGE_NODES, or start the program by `farpage run`");
		return -EINVAL;
	}
	r = check_owner(&settings, NULL, error);
	if (r < 0)
		return r;
	core = settings.core;
	options = fp_settings_agent_options(&settings);
	options.enter_local = fp_shim_enter_local;
	options.leave_local = fp_shim_leave_local;
	options.on_signal_stack = fp_sigstack_in_use;
	options.pins = options.own_handler = options.low = true;
	options.foreign_malloc = fp_owner_file();
	r = agent_start(&options, &agent, error);
	if (r == 0)
		r = check_owner(&settings, agent, error);
	if (core == FP_CORE_FULL)
		fp_signals_before_core(fill_core);
	if (r == 0 && fp_agent_needs_pins(agent))
		r = open_signals(options.fault_mode, error);
	fp_libc_memory_open();
	fp_local_rules_open(&settings.rules);
	if (r == 0)
		r = fp_heap_open(fp_agent_space(agent), &settings, error);
	fp_settings_done(&settings);
	if (r == 0) {
		fp_shim_set_agent(agent);
		fp_calls_open();
		fp_limits_open();
		fp_atfork_open();
	}
	return r < 0 ? r : take_signals(core);
}

/*
 * A program that was started for far memory and can't get it ends here: it may need more memory
 * than this machine has.
 */
__attribute__((constructor)) static void begin(void)
{
	struct fp_agent_error error = {.text = ""};
	int saved = errno, r;

	fp_imports_open();
	fp_imports_keep_allocators();
	fp_shim_enter_local();
	r = check_sanitizers(&error);
	if (r == 0)
		r = check_versions(&error);
	if (r == 0)
		r = start(&error);
	fp_shim_leave_local();
	if (r < 0)
		fp_end_refused("preload", "%s", error.text);
	errno = saved;
}

/* The agent keeps running: code that runs later at exit may still touch far memory. */
__attribute__((destructor)) static void end(void)
{
	fp_shim_enter_local();
	if (fp_shim_agent())
		fp_agent_exiting(fp_shim_agent());
	fp_shim_leave_local();
}
