/*
 * The function that every fuzz target defines: libFuzzer's entry point. replay.c calls it, too.
 * Room: test/fuzz.
 */
#ifndef FP_FUZZ_H
#define FP_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Handles one input of any content; ends the process if a promise is broken. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/*
 * Counts the things that a corpus must reach and that no input has reached so far. Names them on
 * stderr. replay.c calls this after it has given each file unchanged. A target need not define it.
 */
unsigned fuzz_missing(void);

#endif
