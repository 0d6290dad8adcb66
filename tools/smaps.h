/*
 * The memory of a living program that is not far, by kind. Room: tools. It reads /proc and stops no
 * process.
 */
#ifndef FP_SMAPS_H
#define FP_SMAPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "statspage.h"

enum fp_smaps_kind {
	/* Mapped memory that a rule keeps local. All other kinds count resident memory. */
	FP_SMAPS_RULE,
	FP_SMAPS_CODE,   /* files mapped to be executed */
	FP_SMAPS_FILE,   /* other private mappings of files */
	FP_SMAPS_SHARED, /* MAP_SHARED, System V */
	FP_SMAPS_STACK,  /* the main thread's stack; other stacks count as anonymous memory */
	FP_SMAPS_OTHER,  /* anonymous memory that is local by a rule or by its kind */
	FP_SMAPS_KINDS
};

struct fp_smaps {
	uint64_t bytes[FP_SMAPS_KINDS];
};

/*
 * Reads the memory of the process that writes page. 0, or the error of /proc/PID/smaps (-ENOENT:
 * the process is gone).
 */
int fp_smaps_read(const struct fp_statspage *page, struct fp_smaps *ret_kinds);

/* "by_rule", "code", "file", ... */
const char *fp_smaps_kind_name(enum fp_smaps_kind kind);

#endif
