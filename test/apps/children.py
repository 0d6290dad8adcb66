#!/usr/bin/python3
"""Programs that start others: a forked child sees its parent's bytes; posix_spawn, vfork and exec,
and pipelines of the shell just work. argv: the helper program `children`."""
import sys

import farapp

PIPELINE = "seq 1 200000 | sort -r | head -n 3; (exit 3) | cat; echo $?; false"


def test():
    helper = sys.argv[1]
    farapp.compare([helper, "fork"], local_bytes=farapp.BUDGET_FLOOR)
    for way in ("spawn", "vfork", "exec"):
        farapp.compare([helper, way], local_bytes=farapp.BUDGET_FLOOR, must_fetch=False)
    farapp.compare(["/bin/sh", "-c", PIPELINE], local_bytes=farapp.BUDGET_FLOOR, must_fetch=False)


farapp.main(test)
