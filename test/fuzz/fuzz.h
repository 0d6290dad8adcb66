/*
 * The function that every fuzz target defines: libFuzzer's entry point. replay.c calls it too.
 * Room: test.
 */
#ifndef FP_FUZZ_H
#define FP_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Handles one input of any content; ends the process if a promise is broken. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/*
 * How much of what a corpus must reach the inputs so far have not, after saying so on stderr.
 * replay.c asks once it has given each file as it is. A target need not define it.
 */
unsigned fuzz_missing(void);

#endif
