/*
 * Shared by churner.c (runs the threads, checks what they read) and churnops.c (the operations).
 * Room: test/integration.
 */
#ifndef FP_CHURNER_PRIV_H
#define FP_CHURNER_PRIV_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "agent_priv.h"
#include "churner.h"

#define PIECES_MAX   48u
#define PIECE_PAGES  256u /* a new mapping has at most so many pages */
#define RANGE_PAGES  40u  /* most operations choose a range of at most so many pages */
#define SHARED_PAGES 64u
#define NOISE_BYTES  (RANGE_PAGES * FP_PAGE_SIZE)
#define PAGE_WORDS   (FP_PAGE_SIZE / sizeof(uint64_t))
#define COUNTER_WORD (PAGE_WORDS - 1)
#define RW           (PROT_READ | PROT_WRITE)

struct piece {
	char *far;
	size_t len;
	int prot;
};

/*
 * What all threads share. The shadow lies at a fixed distance from far memory: see churn_shadow_of.
 */
struct churn {
	const struct churn_options *options;
	struct fp_far *far;
	struct fp_space *space;
	char *mirror;
	char *shared;
	uint64_t end_ns;
};

struct churner {
	struct churn *churn;
	unsigned id;
	uint64_t rng;
	pthread_t thread;
	struct piece pieces[PIECES_MAX];
	unsigned n_pieces;
	size_t mapped, limit;
	uint64_t adds[SHARED_PAGES];
	int memfd;
	int pipe[2];
	char *noise;
	const char *op;
	struct churn_result result;
};

struct churn_op {
	const char *name;
	void (*run)(struct churner *c);
	unsigned weight;
};

/* ---- churner.c: checking bytes ---- */

/* Prints the failure, its place and the seed, and ends the process. */
_Noreturn void churn_die(const struct churner *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
char *churn_shadow_of(const struct churner *c, const void *far);
/*
 * Both compare with the shadow. churn_check_read compares bytes that were read from far memory, and
 * churn_check compares far memory itself. A wrong byte ends the process.
 */
void churn_check_read(const struct churner *c, const char *far, const char *found, size_t len);
void churn_check(const struct churner *c, const char *far, size_t len);

/* ---- churnops.c ---- */

const struct churn_op *churn_pick_op(struct churner *c);

#endif
