/*
 * What the agent of a program is told from outside: environment variables and a YAML file. Room:
 * uffd, on its outer side: the preload shim and `farpage run` read the same settings by the same
 * rules.
 *
 * Each key of the file has a variable, FARPAGE_ and the key in capitals (of one in a mapping: both
 * keys); the variable wins. Options of a
 * command line are put into the environment by whoever has them.
 */
#ifndef FP_SETTINGS_H
#define FP_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "agent.h"
#include "log.h"
#include "rdma_options.h"
#include "rules.h"

enum fp_heap_mode {
	FP_HEAP_ALL,   /* every allocation of the program is far */
	FP_HEAP_LARGE, /* those of at least large_bytes */
	FP_HEAP_NONE,
};

struct fp_settings {
	uint64_t local_bytes; /* 0: local_percent counts */
	unsigned local_percent;
	char **urls; /* n_urls of them; none is no error here */
	unsigned n_urls;
	char *secret; /* NULL: none */
	struct fp_rdma_options rdma;
	char *stats_path; /* NULL: the default place */
	uint64_t deadline_ns;
	uint64_t patience_ns; /* 0: the nodes' grace */
	enum fp_on_loss on_loss;
	uint64_t heartbeat_ns;
	struct fp_reconnect_options reconnect;
	uint64_t readahead_pages;
	uint64_t min_mapping_bytes; /* smaller mappings stay local */
	uint64_t large_bytes;       /* of the heap; min_mapping_bytes unless said */
	struct fp_rules rules;      /* before heap and min_mapping; of the file alone */
	bool overcommit;
	bool report;         /* of `farpage run`, at the end */
	uint64_t pool_bytes; /* of its private node; 0: as much as this machine has memory */
	enum fp_fault_mode fault_mode;
	enum fp_capture_mode capture;
	enum fp_affinity_mode affinity;
	enum fp_heap_mode heap;
	enum fp_log_level log_level;
};

/*
 * Reads environment, file (FARPAGE_CONFIG) and defaults, in this order of precedence. 0 and
 * *ret_settings; -EINVAL, -EOPNOTSUPP (not in this build), or why a file can't be read: error->text
 * names the variable or the place in the file, what is wrong and what is allowed. Release with
 * fp_settings_done. Allocates; not while other threads change the environment.
 */
int fp_settings_read(struct fp_settings *ret_settings, struct fp_agent_error *error);
void fp_settings_done(struct fp_settings *settings);

/* Those of rdma alone, for who opens sessions without an agent. As above; the caller frees the
 * device. */
int fp_settings_read_rdma(struct fp_rdma_options *ret_rdma, struct fp_agent_error *error);

/* What an agent is started with. Points into settings. */
struct fp_agent_options fp_settings_agent_options(const struct fp_settings *settings);

#endif
