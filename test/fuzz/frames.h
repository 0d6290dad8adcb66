/*
 * Counts the types of frames that a fuzz target has seen. A corpus that lacks a type is refused.
 * Room: test/fuzz.
 */
#ifndef FP_FUZZ_FRAMES_H
#define FP_FUZZ_FRAMES_H

#include <stdint.h>

#include "wire.h"

/* The bit of a status in a set of statuses. FP_WIRE_OK stands for a frame that succeeded. */
#define FRAMES_ENDS(status) (1u << (status))

/* Notes that a frame of this type ended with this status, which is 0 to 31. */
void frames_note(uint8_t type, unsigned status);

/*
 * Calls the function `wanted` for every type that the codec knows. That function returns the set of
 * statuses that a corpus must reach for the type. Names the missing ones on stderr, and returns
 * their number.
 */
unsigned frames_missing(uint32_t (*wanted)(uint8_t type));

#endif
