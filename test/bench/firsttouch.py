#!/usr/bin/python3
"""What the first touch of a fresh page costs, beside the kernel's own.

firsttouch.c touches each page of fresh mappings: plain, and in far memory over shm in both fault
modes. "ample": twice as much may be local. "tight": an eighth more than the mapping may be local.
Contenders alternate, round by round. A cell is the µs a page, all threads together, median [min
max], and the ratio to the plain program of the same round, median [min max]. FARPAGE_BUILD names
the build folder; it neither passes nor fails.
"""
import argparse
import os
import statistics
import subprocess

BUILD = os.environ["FARPAGE_BUILD"]
MIB = 32


def contenders():
    tool = os.path.join(BUILD, "tools", "farpage")
    rows = {"plain": []}
    for local, mib in (("ample", 2 * MIB), ("tight", MIB + MIB // 8)):
        for mode in ("thread", "inline"):
            rows[f"{mode}, {local}"] = [tool, "run", "--fault-mode", mode, "--local-memory", f"{mib}M", "--"]
    return rows


def measure(prefix, args):
    program = os.path.join(BUILD, "test", "bench", "firsttouch")
    command = [*prefix, program, str(MIB), args.orders, args.threads]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {(kind, int(n)): float(us) for kind, n, us in (line.split() for line in done.stdout.splitlines())}


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f} {max(values):.{digits}f}]"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--orders", default="forward,mixed")
    parser.add_argument("--threads", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows = contenders()
    rounds = [{name: measure(prefix, args) for name, prefix in rows.items()} for _ in range(args.rounds)]
    columns = [(kind, int(n)) for kind in args.orders.split(",") for n in args.threads.split(",")]
    print(f"{'':16}" + "".join(f"{f'{kind} {n}':<44}" for kind, n in columns))
    for name in rows:
        cells = []
        for column in columns:
            us = [one[name][column] for one in rounds]
            ratios = [one[name][column] / one["plain"][column] for one in rounds]
            cells.append(f"{spread(us, 2)}  x {spread(ratios, 2)}")
        print(f"{name:16}" + "".join(f"{cell:<44}" for cell in cells))


if __name__ == "__main__":
    main()
