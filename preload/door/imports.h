/*
 * What this library and its jemalloc import. Room: preload/door.
 *
 * The loader binds an import to the first definition of its name in the process. That may be a
 * function of the program's own (usleep, flock), or one that another library replaces for the
 * program (clock_gettime). So we bind our imports anew, each to a library that we were linked to.
 * Functions that the shim interposes are no imports: calls of them are bound inside this library.
 *
 * Other libraries that the agent uses (YAML, cryptography, RDMA) stay as they are: the program may
 * use them, too.
 */
#ifndef FP_IMPORTS_H
#define FP_IMPORTS_H

/*
 * A call of this function makes the loader bind the imports, before any code of ours runs. The call
 * itself does nothing. In a build with a sanitizer they stay as they are.
 */
void fp_imports_open(void);

/*
 * Returns the function of this name in the libraries that we were linked to, or NULL. The agent's
 * own calls belong there, whatever other libraries replace for the program.
 */
void *fp_imports_find(const char *name);

/*
 * The libraries of other allocators define operators of C++, and these call malloc and free by
 * their names, which are ours. This binds such calls inside their library: what its new has
 * allocated, its delete frees. Called once, at the start, when all libraries are relocated.
 */
void fp_imports_keep_allocators(void);

#endif
