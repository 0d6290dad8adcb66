/*
 * Counts the types of frames under a fuzz target: a corpus that lacks a type is refused. Room:
 * test.
 */
#ifndef FP_FUZZ_FRAMES_H
#define FP_FUZZ_FRAMES_H

#include <stdint.h>

#include "wire.h"

/* A set of statuses. FP_WIRE_OK stands for a frame that did its work. */
#define FRAMES_ENDS(status) (1u << (status))

/* Notes that a frame of this type ended with this status: 0 to 31. */
void frames_note(uint8_t type, unsigned status);

/*
 * Asks for every type that the codec knows which ends a corpus must reach. Names on stderr those
 * that were not noted. Returns how many they are.
 */
unsigned frames_missing(uint32_t (*wanted)(uint8_t type));

#endif
