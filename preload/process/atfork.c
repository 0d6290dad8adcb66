/*
 * fork: puts the agent's three parts in the right places among all handlers. Room: preload/process.
 *
 * The C library runs prepare handlers in reverse order of registration, and parent and child
 * handlers in order. Two things must hold:
 *
 *   - An allocating thread takes jemalloc's locks first, then the space's. A fork must take them in
 *     the same order. Therefore jemalloc's prepare must run before ours, and be registered after
 *     ours.
 *   - In the child, the agent must run before any other handler touches far memory. But the agent
 *     needs an allocator. So jemalloc's child handler runs right before ours.
 *
 *     registered:   our prepare | jemalloc's three | our quiet, parent and child | all others
 *
 * jemalloc registers when it is first used, before any constructor of ours. So we interpose the
 * registration itself.
 *
 * When our handler prepare runs, jemalloc is locked. So the agent's part of this handler does not
 * allocate, and waits for no thread that allocates. Our handler quiet waits for such threads, so it
 * runs before jemalloc's prepare.
 */
#include "atfork.h"

#include <errno.h>
#include <jemalloc/jemalloc.h>
#include <link.h>
#include <pty.h>
#include <stdbool.h>
#include <sys/types.h>
#include <unistd.h>

#include "calls.h"
#include "fdutil.h"
#include "local.h"
#include "local_stack.h"
#include "lookup.h"
#include "owner.h"
#include "agent_sigmask.h"
#include "rlimits.h"
#include "shim.h"
#include "sigmask.h"
#include "signals.h"

typedef void handler_fn(void);
typedef int register_fn(handler_fn *prepare, handler_fn *parent, handler_fn *child, void *dso);

extern void *__dso_handle __attribute__((visibility("hidden")));
FP_INTERPOSE int __register_atfork(handler_fn *prepare, handler_fn *parent, handler_fn *child, void *dso);

/*
 * The thread's signal mask before the handler quiet. Signals are blocked from quiet until the fork
 * is over. Otherwise a signal handler that maps memory or forks would wait for the fork that it
 * interrupted.
 */
static __thread uint64_t mask_before __attribute__((tls_model("initial-exec")));

/* Opens a bracket, which forbids cancellation. That is right, as fork is no cancellation point. */
static void quiet(void)
{
	mask_before = fp_agent_sigmask_block(false, fp_sigmask_is_open());
	fp_shim_enter_local();
	if (fp_shim_agent())
		fp_agent_fork_quiet(fp_shim_agent());
	fp_shim_leave_local();
}

static void prepare(void)
{
	fp_shim_enter_local();
	if (fp_shim_agent())
		fp_agent_fork_prepare(fp_shim_agent());
}

static void parent(void)
{
	if (fp_shim_agent())
		fp_agent_fork_parent(fp_shim_agent());
	fp_local_leave_masked(mask_before);
}

static void start_child(struct fp_agent *agent)
{
	fp_fd_forked(); /* before the agent starts, which opens a file */
	fp_agent_fork_child(agent);
	fp_limits_open();
}

static void child(void)
{
	fp_signals_forked();
	if (fp_shim_agent())
		start_child(fp_shim_agent());
	fp_local_leave_masked(mask_before);
}

/* ---- with an allocator of the program's own ---- */

#define MORE_TLS_MAX 14 /* the C library leaves room for so many more in a thread's table */

static size_t n_tls_at_start;

static int count_tls(struct dl_phdr_info *info, size_t size, void *most)
{
	if (info->dlpi_tls_modid > *(size_t *)most)
		*(size_t *)most = info->dlpi_tls_modid;
	return 0;
}

void fp_atfork_open(void)
{
	dl_iterate_phdr(count_tls, &n_tls_at_start);
}

/*
 * Before the child has its agent, it starts threads, and the C library clears records of the
 * parent's threads. Neither may need the program's own allocator, or memory of it that is far.
 */
static bool may_fork(void)
{
	static atomic_bool said;
	size_t n_tls = 0;

	if (!fp_owner_file() || !fp_shim_agent())
		return true;
	dl_iterate_phdr(count_tls, &n_tls);
	if (n_tls > n_tls_at_start + MORE_TLS_MAX)
		fp_owner_forbid_forks("many libraries with thread-local data were loaded");
	if (!fp_owner_forbids_forks())
		return true;
	fp_shim_say_once(&said,
	                 "fork was refused: %s, and %s brings a malloc of its own, so that memory may be far "
	                 "in the child. Use posix_spawn, or a build of the program without that malloc",
	                 fp_owner_forbids_forks(), fp_owner_file());
	errno = ENOSYS;
	return false;
}

/* ---- on a stack in far memory ---- */

FP_INNER_CALL(fork);
FP_INNER_CALL(daemon);
FP_INNER_CALL(forkpty);

/*
 * Asks before any handler has run: a handler can't make a fork fail. Nobody asks for daemon, whose
 * parent ends.
 */
static bool has_room(void)
{
	uint64_t mask;
	int r;

	if (!fp_shim_agent())
		return true;
	mask = fp_local_enter_masked();
	r = (int)FP_ON_LOCAL_STACK(fp_agent_fork_room, fp_shim_agent(), 0, 0, 0, 0, 0);
	fp_local_leave_masked(mask);
	if (r < 0)
		errno = -r;
	return r == 0;
}

/* Runs on a local stack: until the child has its agent, it has no far memory to run on. */
FP_INTERPOSE pid_t fork(void)
{
	if (!may_fork() || !has_room())
		return -1;
	return (pid_t)FP_ON_LOCAL_STACK(fp_call_fork, 0, 0, 0, 0, 0, 0);
}

/* The C library's other name for it, which no header declares. */
FP_INTERPOSE pid_t __fork(void);

pid_t __fork(void)
{
	return fork();
}

FP_INTERPOSE int daemon(int keeps_dir, int keeps_files)
{
	if (!may_fork())
		return -1;
	return (int)FP_ON_LOCAL_STACK(fp_call_daemon, keeps_dir, keeps_files, 0, 0, 0, 0);
}

FP_INTERPOSE int forkpty(int *ret_fd, char *ret_name, const struct termios *modes, const struct winsize *size)
{
	if (!may_fork() || !has_room())
		return -1;
	return (int)FP_ON_LOCAL_STACK(fp_call_forkpty, ret_fd, ret_name, modes, size, 0, 0);
}

/* ---- the order of handlers ---- */

static unsigned registrations;

/*
 * Makes jemalloc initialise itself, by an allocation. Then jemalloc registers its handlers, unless
 * it is registering them already.
 */
static void wake_allocator(void)
{
	void *p = mallocx(1, 0);

	if (p)
		dallocx(p, 0);
}

/*
 * Handles the very first registration, with the handlers p, q and c. Registers our prepare before
 * them. If they are not jemalloc's, makes jemalloc register before them, too.
 */
static int register_first(register_fn *real, handler_fn *p, handler_fn *q, handler_fn *c, void *dso)
{
	int r = real(prepare, NULL, NULL, &__dso_handle);
	bool is_allocator;

	wake_allocator();
	is_allocator = registrations == 1;
	if (r == 0 && is_allocator)
		r = real(p, q, c, dso);
	if (r == 0)
		r = real(quiet, parent, child, &__dso_handle);
	if (r == 0 && !is_allocator)
		r = real(p, q, c, dso);
	return r;
}

int __register_atfork(handler_fn *p, handler_fn *q, handler_fn *c, void *dso)
{
	register_fn *real = (register_fn *)fp_lookup_next("__register_atfork", NULL);
	uint64_t mask = fp_local_enter_masked();
	int r;

	/* the list of handlers must be local: the child reads it before our handlers have run */
	r = registrations++ ? real(p, q, c, dso) : register_first(real, p, q, c, dso);
	fp_local_leave_masked(mask);
	return r;
}
