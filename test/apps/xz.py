#!/usr/bin/python3
"""xz -9 of 24 MiB, or (large) 64: a match finder that jumps about in ten times as much."""
import os
import random

import farapp

INPUT_MIB = 64 if farapp.large else 24
NOISE_MIB = 8
BLOCK_BYTES = 32 << 10


def write_blocks(path):
    """Noise, then copies of blocks from anywhere before: what the match finder finds is far back.
    The same each time."""
    source = random.Random(2)
    blocks = [source.randbytes(BLOCK_BYTES) for _ in range(NOISE_MIB * farapp.MIB // BLOCK_BYTES)]
    while len(blocks) < INPUT_MIB * farapp.MIB // BLOCK_BYTES:
        blocks.append(source.choice(blocks))
    with open(path, "wb") as out:
        out.write(b"".join(blocks))


def test():
    path = os.path.join(farapp.workdir, "blocks")
    write_blocks(path)
    farapp.compare([farapp.need_program("/usr/bin/xz"), "-9", "-T1", "--stdout", path])


farapp.main(test)
