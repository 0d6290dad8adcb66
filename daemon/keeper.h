/*
 * The keeper: one thread that does what may take long (giving pages to leases and taking them back), so that
 * the loop, which serves everybody, never waits for it. Jobs run one after another in the order posted:
 * memory that was given back before a lease was asked for has been scrubbed and freed before that lease is
 * made. Room: daemon. It knows no memory, only jobs.
 */
#ifndef FP_KEEPER_H
#define FP_KEEPER_H

struct fp_keeper;

/* Embedded in what it works on, which stays in place from post until done is called. */
struct fp_job {
	void (*run)(struct fp_job *job);  /* on the keeper's thread */
	void (*done)(struct fp_job *job); /* on the thread that calls fp_keeper_reap; may free the job */
	struct fp_job *next;
};

int fp_keeper_start(struct fp_keeper **ret_keeper);
/* Waits for all jobs, calls their done, ends the thread. NULL is fine. */
void fp_keeper_stop(struct fp_keeper *keeper);

/* Never blocks long, never fails. The loop's thread. */
void fp_keeper_post(struct fp_keeper *keeper, struct fp_job *job);

/* Calls done of every finished job. The loop's thread, when the event descriptor is readable. */
void fp_keeper_reap(struct fp_keeper *keeper);
/* An eventfd: read 8 bytes of it, then reap. */
int fp_keeper_fd(const struct fp_keeper *keeper);

#endif
