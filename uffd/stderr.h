/*
 * Speaking on the program's stderr from the agent's threads that may block a little, but not for ever.
 * Room: uffd, inside.
 */
#ifndef FP_STDERR_H
#define FP_STDERR_H

#include <stdbool.h>

/*
 * Whether a line can be written now: a full pipe that nobody reads must keep neither the program from its
 * SIGBUS nor a node from being resumed. Waits for it at most 100 ms.
 */
bool fp_stderr_takes_text(void);

#endif
