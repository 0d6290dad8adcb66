/*
 * What a fuzz target defines: libFuzzer's entry point, which replay.c calls too. Room: test.
 */
#ifndef FP_FUZZ_H
#define FP_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Handles one input of any content; ends the process if a promise is broken. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#endif
