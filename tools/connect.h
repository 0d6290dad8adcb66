/*
 * A session of a tool's own at a node, by whichever way its URL allows. Room: tools; speaks the wire
 * protocol.
 */
#ifndef FP_CONNECT_H
#define FP_CONNECT_H

#include <stddef.h>

#include "transport.h"

/*
 * Opens a session at the node that url names: "auto" and several addresses are tried in order, until one
 * answers; an answer that would be the same on every way (a wrong secret) ends the search. 0, *ret_session
 * (release with fp_session_close) and *ret_way, the way that was taken; else the errors of fp_url_parse_set
 * and fp_session_open. Blocks up to options->deadline_ns a way.
 */
int fp_connect_open(const char *url, const struct fp_session_options *options,
                    struct fp_session **ret_session, struct fp_url *ret_way);

#endif
