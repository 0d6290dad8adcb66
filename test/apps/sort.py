#!/usr/bin/python3
"""sort of a file, in memory, by two threads: 256 MiB, or (large) 1 GiB."""
import os
import random

import farapp

FILE_MIB = 1024 if farapp.large else 128
LINE_BYTES = 1024
LETTERS = bytes(ord("a") + i % 26 for i in range(256))


def write_lines(path):
    """Random lines, the same each time."""
    source = random.Random(1)
    with open(path, "wb") as out:
        for _ in range(FILE_MIB):
            text = source.randbytes(farapp.MIB).translate(LETTERS)
            lines = (text[i : i + LINE_BYTES - 1] for i in range(0, len(text), LINE_BYTES))
            out.write(b"\n".join(lines) + b"\n")


def test():
    path = os.path.join(farapp.workdir, "lines")
    write_lines(path)
    farapp.compare([farapp.need_program("/usr/bin/sort"), "-S", f"{2 * FILE_MIB}M", "-T", farapp.workdir, path])


farapp.main(test)
