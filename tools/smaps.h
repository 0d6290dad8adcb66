/*
 * What of a living program's memory is not far, by kind. Room: tools. Read from /proc: nobody is
 * stopped.
 */
#ifndef FP_SMAPS_H
#define FP_SMAPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "statspage.h"

enum fp_smaps_kind {
	FP_SMAPS_CODE,   /* files mapped to be executed */
	FP_SMAPS_FILE,   /* other private mappings of files */
	FP_SMAPS_SHARED, /* MAP_SHARED, System V */
	FP_SMAPS_STACK,  /* the main thread's; those of others are anonymous memory */
	FP_SMAPS_OTHER,  /* anonymous, local by a rule or by its kind */
	FP_SMAPS_KINDS
};

/* Resident bytes by kind, and the mappings that a rule keeps local. */
struct fp_smaps {
	uint64_t bytes[FP_SMAPS_KINDS];
	uint64_t rule_bytes; /* mapped */
};

/* Of the process that writes page. 0, or why /proc/PID/smaps can't be read (-ENOENT: it is
 * gone). */
int fp_smaps_read(const struct fp_statspage *page, struct fp_smaps *ret_kinds);

/* Adds from to sum. */
void fp_smaps_add(struct fp_smaps *sum, const struct fp_smaps *from);

/* "code", "file", ... */
const char *fp_smaps_kind_name(enum fp_smaps_kind kind);

#endif
