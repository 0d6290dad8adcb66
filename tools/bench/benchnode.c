/*
 * The memory nodes of a bench. Room: tools/bench.
 */
#include "benchnode.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"
#include "stats_dir.h"

/* True if `way` is that of a private node. Then sets the node's kind and delay. */
static bool parse(const char *way, struct fp_privnode_options *options)
{
	int end = 0;

	options->kind = strcmp(way, "shm") == 0 ? FP_PRIVNODE_SHM : FP_PRIVNODE_TCP;
	if (options->kind == FP_PRIVNODE_SHM || strcmp(way, "tcp") == 0)
		return true;
	return sscanf(way, "tcp+%uus%n", &options->link_delay_us, &end) == 1 && end && !way[end];
}

static int start(struct fp_benchnode *nodes, struct fp_privnode_options *options, const char *way)
{
	struct fp_benchnode_own *own = &nodes->own[nodes->n_own];
	char error[768];
	int r = nodes->n_own == FP_BENCHNODE_MAX ? -ENOSPC : 0;

	if (r == 0 && !nodes->has_dir)
		r = fp_stats_dir_run_dir_create(nodes->label, nodes->dir, sizeof(nodes->dir),
		                                &nodes->dir_lock_fd);
	if (r < 0)
		return r;
	nodes->has_dir = true;
	options->dir = nodes->dir;
	options->pool_bytes = nodes->pool_bytes;
	r = fp_privnode_start(options, error, sizeof(error), &own->node);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, nodes->label, "%s", error);
		return r;
	}
	snprintf(own->way, sizeof(own->way), "%s", way);
	nodes->n_own++;
	return 0;
}

const char *fp_benchnode_url(struct fp_benchnode *nodes, const char *way, bool *ret_is_own)
{
	struct fp_privnode_options options = {0};
	unsigned i = 0;

	*ret_is_own = parse(way, &options);
	if (!*ret_is_own)
		return way;
	while (i < nodes->n_own && strcmp(way, nodes->own[i].way) != 0)
		i++;
	if (i == nodes->n_own && start(nodes, &options, way) < 0)
		return NULL;
	return nodes->own[i].node->url;
}

void fp_benchnode_close(struct fp_benchnode *nodes)
{
	while (nodes->n_own > 0)
		fp_privnode_stop(nodes->own[--nodes->n_own].node);
	if (!nodes->has_dir)
		return;
	fp_stats_dir_run_dir_remove(nodes->dir);
	close(nodes->dir_lock_fd);
}
