/*
 * Whether the nodes of a program would lend it anything, asked before it starts. Room: tools;
 * speaks the wire protocol.
 */
#ifndef FP_LENDERS_H
#define FP_LENDERS_H

struct fp_settings;

/*
 * Asks each node of the settings for room, in a session of its own. A node that lends nothing (it
 * is drained or full, or the quota is used up) counts the refusal, and a line under label says why
 * and what to do. 0 if any node lends; -ENOSPC; or the error of a node that can't be asked, after a
 * message. Blocks.
 */
int fp_lenders_check(const struct fp_settings *settings, const char *label);

#endif
