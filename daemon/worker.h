/*
 * The worker: one thread for work that may take long, such as giving pages to leases and taking
 * them back. So the loop, which serves everybody, never waits for that work. Room: daemon. It knows
 * jobs, but no memory.
 *
 *   line of a memory:  job ◄ job ◄ job          one after another, in the order posted
 *                      │ first of its line
 *                      ▼
 *   client:            line ◄ line ◄ line       in turn: one slice, then the line goes to the end
 *                      │ first of its client
 *                      ▼
 *   somebody waits:    client ◄ client ──┐      in turn: one slice of each kind, then its client
 *   nobody waits:      client ◄ client ──┴►     goes to the end
 *
 * So a short job waits for one slice of each other client that has jobs of its kind, and for as
 * many slices of the other kind. The number of their jobs does not matter. The jobs of its own
 * client come in turn too: one slice of each, when that client's turn comes.
 */
#ifndef FP_WORKER_H
#define FP_WORKER_H

#include <stdbool.h>
#include <sys/queue.h>

struct fp_worker;
struct fp_worker_job;

/*
 * A client's share of the worker's time. Zero-initialised, none of its lines waits. It stays in
 * place until all jobs of its lines are done. Only worker.c uses its members.
 */
struct fp_worker_share {
	struct fp_worker_wait {
		STAILQ_HEAD(, fp_worker_line) lines;
		STAILQ_ENTRY(fp_worker_wait) entry; /* in the worker's queue, while it has lines */
	} waits[2];                                 /* by the kind of their first job, see worker.c */
};

/*
 * A line of jobs that must run in order. Zero-initialised but for its share, it is empty. It stays
 * in place until its jobs are done.
 */
struct fp_worker_line {
	struct fp_worker_share *share;     /* the client that is served when the line is */
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
