/*
 * The settings of a program's agent: environment variables and a YAML file. Room: uffd/agent. The
 * preload shim and `farpage run` read the same settings by the same rules.
 *
 * Each key of the file also has a variable, whose name is FARPAGE_ and the key in capitals. If a
 * key is inside another key, the name of its variable contains both. A variable overrides the file.
 * A command puts its options into the environment.
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
	FP_HEAP_LARGE, /* allocations of at least large_bytes are far */
	FP_HEAP_NONE,
};

/* The core dump of a program that crashes. */
enum fp_core_mode {
	FP_CORE_LOCAL, /* has only the pages that are local */
	FP_CORE_FULL,  /* far pages are brought in first */
};

struct fp_settings {
	uint64_t local_bytes; /* the budget; 0: see local_percent */
	unsigned local_percent;
	char **urls; /* the URLs of n_urls nodes; it is no error here if n_urls is 0 */
	unsigned n_urls;
	char *secret; /* NULL: none */
	struct fp_rdma_options rdma;
	char *stats_path; /* a file for the counters; NULL: none */
	char *stats_dir;  /* the folder of the `farpage run` that started this process; NULL: none */
	uint64_t deadline_ns;
	uint64_t patience_ns; /* how long a page waits for a node; 0: the nodes' grace */
	enum fp_on_loss on_loss;
	uint64_t heartbeat_ns;
	struct fp_reconnect_options reconnect;
	uint64_t readahead_pages;
	uint64_t min_mapping_bytes; /* smaller mappings stay local */
	uint64_t large_bytes;       /* of FP_HEAP_LARGE; default: min_mapping_bytes */
	struct fp_rules rules;      /* decide before heap and min_mapping; only the file can set them */
	bool overcommit;
	bool report;         /* true: `farpage run` prints a report at the end */
	uint64_t pool_bytes; /* `farpage run`: its node's pool size; 0: the size of this machine's memory */
	enum fp_fault_mode fault_mode;
	enum fp_capture_mode capture;
	enum fp_affinity_mode affinity;
	enum fp_core_mode core;
	enum fp_heap_mode heap;
	enum fp_log_level log_level;
};

/*
 * Reads environment, file (FARPAGE_CONFIG) and defaults, in this order of precedence. Returns 0 and
 * *ret_settings, -EINVAL if a setting is wrong, or the error of reading a file. error->text names
 * the variable or the place in the file, the mistake, and the allowed values. Release with
 * fp_settings_done. Allocates; no other thread may change the environment meanwhile.
 */
int fp_settings_read(struct fp_settings *ret_settings, struct fp_agent_error *error);
void fp_settings_done(struct fp_settings *settings);

/*
 * Reads only the settings of rdma, for callers that open sessions without an agent. Returns the
 * same errors as fp_settings_read. The caller frees the device's name.
 */
int fp_settings_read_rdma(struct fp_rdma_options *ret_rdma, struct fp_agent_error *error);

/* The secret alone; NULL: none is set. The caller releases it with fp_secret_free. */
int fp_settings_read_secret(char **ret_secret, struct fp_agent_error *error);

/*
 * Looks for misspelt variables in the environment, such as FARPAGE_NODE. Calls found for each, with
 * its name and the name that was probably meant. No other thread may change the environment
 * meanwhile.
 */
void fp_settings_find_typos(void (*found)(const char *name, const char *meant));

/* `farpage run` sets this variable to the folder for the pages of its processes. */
#define FP_SETTINGS_STATS_DIR "FARPAGE_RUN_DIR"

/*
 * The value of secret_file that means no secret, whatever the configuration file says. A private
 * node has none, so its clients must not expect one.
 */
#define FP_SETTINGS_NO_SECRET "none"

/* The agent's options for these settings. They point into settings. */
struct fp_agent_options fp_settings_agent_options(const struct fp_settings *settings);

#endif
