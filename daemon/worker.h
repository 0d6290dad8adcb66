/*
 * The worker: one thread for work that may take long, such as giving pages to leases and taking
 * them back. So the loop, which serves everybody, never waits for that work. Room: daemon. It knows
 * jobs, but no memory.
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

/*
 * A line of jobs that must run in order. Zero-initialised, it is empty. It stays in place until its
 * jobs are done.
 */
struct fp_worker_line {
	STAILQ_HEAD(, fp_worker_job) jobs; /* only worker.c uses this member and the next one */
	STAILQ_ENTRY(fp_worker_line) entry;
};

/*
 * A job: part of the object it works on. That object stays in place from post until done is called.
 */
struct fp_worker_job {
	/*
	 * Runs on the worker's thread and does a slice of the work, a few milliseconds. True: there
	 * is more. NULL: the job does nothing but wait for the jobs before it.
	 */
	bool (*run)(struct fp_worker_job *job);
	void (*done)(
	    struct fp_worker_job *job); /* called on the thread of fp_worker_reap; may free the job */
	bool awaited;                   /* a client waits for it */
	STAILQ_ENTRY(fp_worker_job) entry;
};

int fp_worker_start(struct fp_worker **ret_worker);
/*
 * Waits for all jobs, and for those that their `done` posts. Calls the `done` of each, and ends the
 * thread. NULL is fine.
 */
void fp_worker_stop(struct fp_worker *worker);

/*
 * Posts a job at the end of its line. Never blocks long, never fails. For the main loop, and for a
 * shard that gives back a lease.
 */
void fp_worker_post(struct fp_worker *worker, struct fp_worker_line *line, struct fp_worker_job *job);

/*
 * Calls the `done` of every finished job. For the loop's thread, when the event descriptor is
 * readable.
 */
void fp_worker_reap(struct fp_worker *worker);
/* Returns an eventfd: read 8 bytes of it, then call fp_worker_reap. */
int fp_worker_fd(const struct fp_worker *worker);

#endif
