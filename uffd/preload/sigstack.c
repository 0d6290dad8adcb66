/* See sigstack.h. */
#include "sigstack.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "calls.h"
#include "shim.h"
#include "store.h"

#define BASE_BYTES                                                                                           \
	(256u << 10)             /* for us and for handlers that asked for no stack; used memory only counts \
	                          */
#define LOCKED_BYTES (32u << 10) /* of it, from the top: what a fault needs */
#define OWN_FLAGS    (1u << 31)  /* SS_AUTODISARM */

/* At the upper end of its own memory, below which the stack grows. */
struct fp_sigstack {
	char *memory; /* a page that can't be touched, then the stack */
	size_t len;
	stack_t program; /* as the program set it */
	unsigned rounds; /* of the thread's destructors */
};

static atomic_bool is_open;
static pthread_key_t key;
static __thread struct fp_sigstack *own __attribute__((tls_model("initial-exec")));

bool fp_sigstack_is_open(void)
{
	return atomic_load_explicit(&is_open, memory_order_relaxed);
}

/* ---- memory, past all that might make it far ---- */

static struct fp_sigstack *make(size_t bytes)
{
	size_t len = FP_PAGE_SIZE + ((bytes + FP_PAGE_SIZE - 1) & ~(size_t)(FP_PAGE_SIZE - 1)) + FP_PAGE_SIZE;
	char *p = (char *)syscall(SYS_mmap, NULL, len, PROT_READ | PROT_WRITE,
	                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	struct fp_sigstack *s;

	if (p == MAP_FAILED)
		return NULL;
	syscall(SYS_mprotect, p, FP_PAGE_SIZE, PROT_NONE);
	s = (struct fp_sigstack *)(p + len - FP_PAGE_SIZE);
	syscall(SYS_mlock2, (char *)s - LOCKED_BYTES, LOCKED_BYTES + FP_PAGE_SIZE, MLOCK_ONFAULT);
	*s = (struct fp_sigstack){.memory = p, .len = len, .program.ss_flags = SS_DISABLE};
	return s;
}

struct fp_sigstack *fp_sigstack_new(void)
{
	return make(BASE_BYTES);
}

void fp_sigstack_free(struct fp_sigstack *s)
{
	if (s)
		syscall(SYS_munmap, s->memory, s->len);
}

static int tell_kernel(const struct fp_sigstack *s)
{
	const stack_t ss = {.ss_sp = s ? s->memory + FP_PAGE_SIZE : NULL,
	                    .ss_flags = s ? 0 : SS_DISABLE,
	                    .ss_size = s ? (size_t)((char *)s - s->memory) - FP_PAGE_SIZE : 0};

	return syscall(SYS_sigaltstack, &ss, NULL) < 0 ? -errno : 0;
}

/* ---- threads ---- */

void fp_sigstack_adopt(struct fp_sigstack *s)
{
	if (tell_kernel(s) < 0)
		return;
	own = s;
	pthread_setspecific(key, s);
}

/* Other destructors may still touch far memory: this one comes again until the last round. */
static void on_thread_end(void *arg)
{
	struct fp_sigstack *s = arg;

	if (++s->rounds < PTHREAD_DESTRUCTOR_ITERATIONS && pthread_setspecific(key, s) == 0)
		return;
	if (fp_shim_agent())
		fp_agent_thread_ends(fp_shim_agent());
	if (s != own || tell_kernel(NULL) < 0)
		return;
	own = NULL;
	fp_sigstack_free(s);
}

int fp_sigstack_open(void)
{
	struct fp_sigstack *s = fp_sigstack_new();
	int r = s ? -pthread_key_create(&key, on_thread_end) : -ENOMEM;

	if (r < 0) {
		fp_sigstack_free(s);
		return r;
	}
	syscall(SYS_sigaltstack, NULL, &s->program);
	fp_sigstack_adopt(s);
	atomic_store(&is_open, true);
	return 0;
}

/* ---- what the program calls ---- */

static bool is_on(const struct fp_sigstack *s)
{
	const char *here = __builtin_frame_address(0);

	return here >= s->memory && here < (const char *)s;
}

static int check(const stack_t *ss)
{
	unsigned flags = (unsigned)ss->ss_flags & ~OWN_FLAGS;

	if (flags != 0 && flags != SS_ONSTACK && flags != SS_DISABLE)
		return -EINVAL;
	return flags != SS_DISABLE && ss->ss_size < (size_t)sysconf(_SC_MINSIGSTKSZ) ? -ENOMEM : 0;
}

/* Ours must hold what the program's would, and a fault's needs besides. */
static int make_room(size_t wanted)
{
	struct fp_sigstack *s;
	size_t have = own->len - 2 * FP_PAGE_SIZE;

	if (wanted <= have - BASE_BYTES / 2)
		return 0;
	s = make(wanted + BASE_BYTES / 2);
	if (!s)
		return -ENOMEM;
	s->program = own->program;
	s->rounds = own->rounds;
	if (tell_kernel(s) < 0) {
		fp_sigstack_free(s);
		return -EPERM;
	}
	pthread_setspecific(key, s);
	fp_sigstack_free(own);
	own = s;
	return 0;
}

static int set(const stack_t *ss)
{
	stack_t wanted = *ss;
	int r = is_on(own) ? -EPERM : check(&wanted);

	if (r == 0 && !(wanted.ss_flags & SS_DISABLE))
		r = make_room(wanted.ss_size);
	if (r < 0)
		return r;
	if (wanted.ss_flags & SS_DISABLE)
		wanted = (stack_t){.ss_flags = SS_DISABLE};
	wanted.ss_flags &= ~SS_ONSTACK;
	own->program = wanted;
	return 0;
}

FP_INTERPOSE int sigaltstack(const stack_t *ss, stack_t *ret_old)
{
	stack_t old;
	int r = 0;

	if (!own)
		return (int)syscall(SYS_sigaltstack, ss, ret_old);
	old = own->program;
	if (!(old.ss_flags & SS_DISABLE) && is_on(own))
		old.ss_flags |= SS_ONSTACK;
	if (ss)
		r = set(ss);
	if (r == 0 && ret_old)
		*ret_old = old;
	return fp_shim_return(r);
}
