/*
 * The configuration of farpaged: the keys of the YAML file, their defaults, and checks. Room:
 * daemon. Nothing is reserved here: only the start of the daemon shows that a port is in use, or
 * that huge pages are missing.
 */
#ifndef FP_CONFIG_H
#define FP_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "log.h"
#include "rdma_options.h"
#include "secrets.h"
#include "yamlconf.h"

#define FP_POOL_MIN_BYTES (1ull << 20)
#define FP_POOL_MAX_BYTES (1ull << 46) /* the largest lease that the protocol allows */
/* So many pools fit into a STATUS_REPLY, and a LEASE looks at each of them. */
#define FP_MAX_POOLS  64u
#define FP_NUMA_ANY   UINT64_MAX
#define FP_QUOTA_NONE UINT64_MAX

enum fp_backing {
	FP_BACKING_MEMFD,     /* each lease is a sealed memfd, which shm clients can map */
	FP_BACKING_ANONYMOUS, /* private memory of the daemon: for tcp only */
	FP_BACKING_HUGETLB,   /* each lease is a sealed memfd of huge pages */
};

struct fp_pool_config {
	char *name;
	uint64_t size_bytes;
	int backing;        /* enum fp_backing */
	uint64_t numa_node; /* FP_NUMA_ANY: any node that the kernel chooses */
	bool preallocate;
};

/* The limits. They may change at a SIGHUP. */
struct fp_limits {
	uint64_t client_quota_bytes; /* FP_QUOTA_NONE: as much as the pools hold */
	uint64_t max_sessions;
	uint64_t max_leases;      /* of one session */
	uint64_t max_connections; /* limit for all clients together; strangers do not count */
	uint64_t max_requests;    /* outstanding on one connection */
	uint64_t handshake_timeout_ns;
	uint64_t grace_ns;        /* how long the leases of a cut-off session are kept; 0: not at all */
	uint64_t idle_timeout_ns; /* silence allowed on a control connection; 0: no limit */
};

struct fp_auth_config {
	bool given;        /* true: a client must prove a secret; false: anybody is let in */
	char *secret_file; /* set only while the configuration is parsed; the path then moves to secrets */
	struct fp_secrets secrets;
};

struct fp_config {
	struct fp_conf_strings listen;
	struct fp_pool_config *pools;
	unsigned n_pools;
	struct fp_limits limits;
	struct fp_auth_config auth;
	/* The file has an rdma section: clients may also connect queue pairs by QP frames. */
	bool by_hand;
	struct fp_rdma_options rdma;
	uint64_t shards; /* threads that serve links; 1: the main loop does */
	/* Of a private node, for measurements: how long it spins before it answers a READ. */
	uint64_t link_delay_ns;
	int log_level;                /* index into the names; see fp_config_log_level */
	struct fp_conf_places places; /* where these values stand in the file; empty without a file */
};

/*
 * Reads and checks the file at path. Returns 0 and sets *ret_config, which the caller releases with
 * fp_config_free. Otherwise returns an errno of fp_conf_read, or -EINVAL if a check fails. Each
 * time, error->text says what is wrong and how to mend it.
 */
int fp_config_read(const char *path, struct fp_config **ret_config, struct fp_conf_error *error);

/*
 * Returns the configuration used without a file: defaults, no listener, no pool. NULL: no memory.
 */
struct fp_config *fp_config_new(void);
void fp_config_free(struct fp_config *config);

/*
 * fp_config_add_listen appends an address to the listeners. It returns 0, or -ENOMEM.
 * fp_config_add_pool appends a pool with default values and returns it. NULL: no memory.
 */
int fp_config_add_listen(struct fp_config *config, const char *address);
struct fp_pool_config *fp_config_add_pool(struct fp_config *config);

/* Checks the rules that the table of keys cannot express. Returns 0, or -EINVAL with
 * error->text. */
int fp_config_check(const struct fp_config *config, struct fp_conf_error *error);

/* How much memory all leases of a client may have together, or FP_QUOTA_NONE. */
uint64_t fp_config_quota(const struct fp_config *config, const char *client);

/*
 * Copies all that may change without a restart into `running`: limits, log level, secrets. They
 * come from `next`, which gets the old secrets.
 */
void fp_config_reload(struct fp_config *running, struct fp_config *next);

/*
 * Names the sections of the file that differ and that only a restart changes: "pools, listen".
 * Empty if there is none. Returns buf. To be called before fp_config_reload.
 */
const char *fp_config_changes(const struct fp_config *running, const struct fp_config *next, char *buf,
                              size_t len);

enum fp_log_level fp_config_log_level(const struct fp_config *config);
const char *fp_backing_name(int backing);

#endif
