/*
 * Who owns malloc: the allocator whose names come first among all symbols of the process. Usually
 * it is ours. But a program may export a malloc of its own, and a library may be preloaded before
 * us. The C library then allocates from theirs, and so do all libraries that the agent uses.
 *
 * So nothing of ours goes to the program, and nothing of theirs is given to our free. The agent
 * itself allocates from ours, as its calls are bound inside this library. Room: preload/door.
 */
#ifndef FP_OWNER_H
#define FP_OWNER_H

/*
 * The file of the program's own allocator, or NULL if ours serves the program. Decided at the first
 * call, which may come before any constructor of ours. Any thread; allocates nothing.
 */
const char *fp_owner_file(void);

/*
 * Notes why this process can't fork any more: the C library has put into memory of the program's
 * own allocator what it needs in a child before the child's agent runs. why is a constant. Any
 * thread.
 */
void fp_owner_forbid_forks(const char *why);
/* That reason, or NULL if the process may fork. */
const char *fp_owner_forbids_forks(void);

#endif
