/*
 * The worker: one thread for work that may take long: giving pages to leases and taking them back.
 * So the loop, which serves everybody, never waits for that work. Room: daemon. It knows jobs, no
 * memory.
 *
 *   line of a memory:  job ◄ job ◄ job      one after another, in the order posted
 *                      │ first of its line
 *                      ▼
 *   clients wait:      line ◄ line ◄ line ──┐ in turn: one slice of each kind, then its line
 *   nobody waits:      line ◄ line ─────────┴► goes to the end
 *
 * So a short job waits for one slice of each long job of its kind, and for as many slices of the
 * other kind.
 */
#ifndef FP_WORKER_H
#define FP_WORKER_H

#include <stdbool.h>
#include <sys/queue.h>

struct fp_worker;
struct fp_worker_job;

/* Jobs that must run in order. Zero-initialised, it is empty. It stays in place until its jobs are
 * done. */
struct fp_worker_line {
	STAILQ_HEAD(, fp_worker_job) jobs; /* the worker's, as is entry */
	STAILQ_ENTRY(fp_worker_line) entry;
};

/* Embedded in the object it works on, which stays in place from post until done is called. */
struct fp_worker_job {
	/* On the worker's thread: a slice of its work, a few milliseconds. True: there is more.
	 * NULL: it only waits for the jobs before it. */
	bool (*run)(struct fp_worker_job *job);
	void (*done)(
	    struct fp_worker_job *job); /* on the thread that calls fp_worker_reap; may free the job */
	bool awaited;                   /* a client waits for it */
	STAILQ_ENTRY(fp_worker_job) entry;
};

int fp_worker_start(struct fp_worker **ret_worker);
/* Waits for all jobs, calls their done, ends the thread. NULL is fine. */
void fp_worker_stop(struct fp_worker *worker);

/* Posts a job behind the others of its line. Never blocks long, never fails. The loop's thread. */
void fp_worker_post(struct fp_worker *worker, struct fp_worker_line *line, struct fp_worker_job *job);

/* Calls done of every finished job. The loop's thread, when the event descriptor is readable. */
void fp_worker_reap(struct fp_worker *worker);
/* Returns an eventfd: read 8 bytes of it, then call fp_worker_reap. */
int fp_worker_fd(const struct fp_worker *worker);

#endif
