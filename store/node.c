/*
 * Memory nodes. Room: store. Decides which errors open a node's breaker, and in which order its
 * ways are tried. The transport knows how to reach a node.
 */
#include "node.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

unsigned fp_node_n_ways(const struct fp_node *node)
{
	return node->set->n_transports * node->set->n_addresses;
}

const struct fp_url *fp_node_way(const struct fp_node *node, unsigned way)
{
	unsigned n = node->set->n_addresses;

	return &node->set->urls[way / n][(node->address + way % n) % n];
}

bool fp_node_way_is_lesser(const struct fp_node *node, unsigned way)
{
	return way >= node->set->n_addresses;
}

int fp_node_dial(const struct fp_node *node, const struct fp_session_options *options,
                 struct fp_session **ret_session, unsigned *ret_way, int *ret_cause)
{
	int r = -EINVAL, cause = 0;

	for (unsigned way = 0; way < fp_node_n_ways(node); way++) {
		r = fp_session_open(fp_node_way(node, way), options, ret_session);
		if (r == 0) {
			*ret_way = way;
			*ret_cause = cause;
			return 0;
		}
		if (r == -ESTALE) /* the node itself said that the session is gone: no other way helps */
			return r;
		cause = r;
	}
	return r;
}

int fp_node_identify(struct fp_node *node, struct fp_session *session)
{
	int r = fp_session_identity(session, &node->identity);

	if (r == 0)
		atomic_store_explicit(&node->grace_ns, node->identity.grace_ns, memory_order_relaxed);
	return r;
}

bool fp_node_is_fatal(int error)
{
	switch (error) {
	case -EACCES: /* answers that only a living node gives */
	case -EDQUOT:
	case -EINVAL:
	case -ENOSPC:
	case -EPERM:
	case -EREMOTEIO:
	case -EUSERS:
		return false;
	default: /* -ETIMEDOUT too: the request may still be under way, and only a resume ends it */
		return true;
	}
}

bool fp_node_step(struct fp_node *node, enum fp_breaker_event event, uint64_t epoch)
{
	uint64_t word = fp_node_breaker(node), next;

	do {
		next = fp_breaker_step(word, event, epoch);
		if (next == word)
			return false;
	} while (!atomic_compare_exchange_weak(&node->breaker, &word, next));
	return true;
}

void fp_node_set_refusal(struct fp_node *node, const struct fp_refusal *refusal)
{
	atomic_store(&node->refusal[0], (uint64_t)refusal->cause | (uint64_t)refusal->is_share << 32 |
	                                    (uint64_t)refusal->by_files << 33);
	atomic_store(&node->refusal[1], refusal->limit);
	atomic_store(&node->refusal[2], refusal->used);
}

struct fp_refusal fp_node_refusal(const struct fp_node *node)
{
	uint64_t word = atomic_load(&node->refusal[0]);

	return (struct fp_refusal){.cause = (enum fp_refusal_cause)(uint32_t)word,
	                           .is_share = word >> 32 & 1,
	                           .by_files = word >> 33 & 1,
	                           .limit = atomic_load(&node->refusal[1]),
	                           .used = atomic_load(&node->refusal[2])};
}

void fp_node_report(struct fp_node *node, uint64_t epoch, int error, const char *why)
{
	if (node->load_store)
		return;
	if (!fp_node_step(node, node->resumable ? FP_BREAKER_FAIL : FP_BREAKER_GONE, epoch))
		return;
	fp_node_set_refusal(node, &(struct fp_refusal){.cause = FP_REFUSAL_NONE});
	atomic_store(&node->why, why);
	atomic_store(&node->error, error);
	atomic_fetch_add_explicit(&node->failures, 1, memory_order_relaxed);
	if (node->resumable)
		fp_node_wake(node);
}

void fp_node_wake(struct fp_node *node)
{
	if (!atomic_exchange(&node->has_work, 1))
		syscall(SYS_futex, &node->has_work, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void fp_node_count(struct fp_node *node, enum fp_io_op op, uint64_t len_bytes)
{
	_Atomic uint64_t *counter = op == FP_IO_READ ? &node->read_bytes : &node->written_bytes;

	atomic_fetch_add_explicit(counter, len_bytes, memory_order_relaxed);
}
