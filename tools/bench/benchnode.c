/*
 * The memory nodes of a bench. Room: tools/bench.
 */
#include "benchnode.h"

#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"
#include "stats_dir.h"

static int start(struct fp_benchnode *nodes, enum fp_privnode_kind kind)
{
	const struct fp_privnode_options options = {
	    .kind = kind, .dir = nodes->dir, .pool_bytes = nodes->pool_bytes};
	char error[768];
	int r = 0;

	if (!nodes->has_dir)
		r = fp_stats_dir_run_dir_create(nodes->label, nodes->dir, sizeof(nodes->dir),
		                                &nodes->dir_lock_fd);
	if (r < 0)
		return r;
	nodes->has_dir = true;
	r = fp_privnode_start(&options, error, sizeof(error), &nodes->own[kind]);
	if (r < 0)
		fp_log(FP_LOG_ERROR, nodes->label, "%s", error);
	return r;
}

const char *fp_benchnode_url(struct fp_benchnode *nodes, const char *way, bool *ret_is_own)
{
	static const char *const names[] = {[FP_PRIVNODE_SHM] = "shm", [FP_PRIVNODE_TCP] = "tcp"};
	unsigned kind = 0;

	while (kind < FP_ARRAY_LEN(names) && strcmp(way, names[kind]) != 0)
		kind++;
	*ret_is_own = kind < FP_ARRAY_LEN(names);
	if (!*ret_is_own)
		return way;
	if (!nodes->own[kind] && start(nodes, kind) < 0)
		return NULL;
	return nodes->own[kind]->url;
}

void fp_benchnode_close(struct fp_benchnode *nodes)
{
	for (unsigned kind = 0; kind < FP_ARRAY_LEN(nodes->own); kind++)
		fp_privnode_stop(nodes->own[kind]);
	if (!nodes->has_dir)
		return;
	fp_stats_dir_run_dir_remove(nodes->dir);
	close(nodes->dir_lock_fd);
}
