/*
 * Loads libibverbs and librdmacm. Room: transport. They are not linked: a program that uses tcp or
 * shm loads neither, and a machine without them still runs everything else.
 */
#include "verbs_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "verbs_internal.h"

#define LIBRDMACM "librdmacm.so.1"

const struct fp_verbs_api *fp_verbs_api;

static struct fp_verbs_api loaded;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the next three variables */
static void *rdma_library;                                    /* NULL: not loaded */
static pid_t loader;
static int load_status; /* negative: loading failed, and is not tried again */

/*
 * siw sends to the peer within the posting call, through a kernel socket. If the peer is gone, the
 * calling thread gets SIGPIPE, which can end the program. So SIGPIPE is blocked during the call,
 * and a SIGPIPE that the call raised is removed after it. Agent threads always block SIGPIPE.
 */
static int post_to_socket(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **ret_bad)
{
	const struct timespec now = {0, 0};
	sigset_t pipe, before, pending;
	int r;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, &before);
	sigpending(&pending);
	r = ibv_post_send(qp, wr, ret_bad);
	if (!sigismember(&before, SIGPIPE)) {
		if (!sigismember(&pending, SIGPIPE))
			sigtimedwait(&pipe, NULL, &now);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	return r;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **ret_bad)
{
	if (qp->context->device->transport_type == IBV_TRANSPORT_IWARP)
		return post_to_socket(qp, wr, ret_bad);
	return ibv_post_send(qp, wr, ret_bad);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **ret_bad)
{
	return ibv_post_recv(qp, wr, ret_bad);
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *ret_wc)
{
	return ibv_poll_cq(cq, n, ret_wc);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return ibv_req_notify_cq(cq, solicited_only);
}

/*
 * Finds a symbol. Returns 1, or 0 if the symbol is missing. Function and data pointers are alike on
 * all our systems.
 */
static int find(void *library, const char *symbol, void *ret_function)
{
	void *found = library ? dlsym(library, symbol) : NULL;

	*(void **)ret_function = found;
	return found != NULL;
}

static int load(void)
{
	/*
	 * libibverbs gets global symbols, because providers need them. Only a forked child ever
	 * unloads librdmacm, which keeps the parent's state.
	 */
	void *ibv = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
	void *rdma = dlopen(LIBRDMACM, RTLD_NOW | RTLD_LOCAL);
	int found = ibv && rdma;

#define FIND_IBV(type, name, args)  found = found && find(ibv, "ibv_" #name, &loaded.ibv.name);
#define FIND_RDMA(type, name, args) found = found && find(rdma, "rdma_" #name, &loaded.rdma.name);
	FP_VERBS_API_IBV(FIND_IBV)
	FP_VERBS_API_RDMA(FIND_RDMA)
	found = found && find(ibv, "_ibv_query_gid_ex", &loaded.ibv.query_gid_ex);
	loaded.ibv.post_send = post_send;
	loaded.ibv.post_recv = post_recv;
	loaded.ibv.poll_cq = poll_cq;
	loaded.ibv.req_notify_cq = req_notify_cq;
	if (!found)
		return -ELIBACC; /* not logged: auto URLs then use tcp */
	rdma_library = rdma;
	loader = getpid();
	fp_verbs_api = &loaded;
	return 0;
}

static void tell_of_fork(void)
{
	static atomic_bool told;

	if (!atomic_exchange(&told, true))
		fp_log(FP_LOG_ERROR, "verbs",
		       "no rdma after fork: " LIBRDMACM
		       " is in use by the program itself, and knows its parent's devices");
}

int fp_verbs_load(void)
{
	int r;

	if (fp_verbs_api)
		return 0;
	pthread_mutex_lock(&load_lock);
	if (load_status == 0 && !fp_verbs_api)
		load_status = load();
	r = load_status;
	pthread_mutex_unlock(&load_lock);
	if (r == -EOPNOTSUPP)
		tell_of_fork();
	return r;
}

bool fp_verbs_inherited(void)
{
	return rdma_library && loader != getpid();
}

/*
 * librdmacm opens each device once, gives the same context to every caller, and has no call to
 * begin anew. But all its state is in the library's own memory, so unloading it drops that state.
 * libibverbs can stay loaded: it only keeps a list of devices.
 */
void fp_verbs_unload(void)
{
	void *held;

	pthread_mutex_init(&load_lock, NULL); /* a thread of the parent may hold it */
	fp_verbs_api = NULL;
	dlclose(rdma_library);
	rdma_library = NULL;
	held = dlopen(LIBRDMACM, RTLD_NOW | RTLD_NOLOAD);
	if (!held)
		return;
	dlclose(held);
	load_status = -EOPNOTSUPP; /* told when this process wants rdma: most children only exec */
}
