#!/usr/bin/python3
"""What 1 to 16 threads of one program fetch together, in fault mode thread.

threads.c reads random pages of 256 MiB, of which 64 MiB are local, over shm. Contenders alternate,
round by round. A row is a kind (the µs that each thread computes between two reads; "rest": it
sleeps half of the time; "p": pinned) and a contender. Its columns are numbers of threads: the µs a
page, all threads together, median [min max], and the pages a second beside those of one thread of
the same row. FARPAGE_BUILD names the build folder; it neither passes nor fails.
"""
import argparse
import os
import statistics
import subprocess

BUILD = os.environ["FARPAGE_BUILD"]


def measure(contender, args):
    command = [*contender.split(), "--local-memory", "64M", "--", args.program, args.kinds, args.threads]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return {(kind, int(n)): float(us) for kind, n, us in rows}


def cell(values, one):
    middle = statistics.median(values)
    return f"{middle:.1f} [{min(values):.1f} {max(values):.1f}] {one / middle:.2f}"


def main():
    tool = os.path.join(BUILD, "tools", "farpage")
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=os.path.join(BUILD, "test", "bench", "threads"))
    parser.add_argument("--kinds", default="0,0p,20,20p,50,50p,200,200p,rest,restp")
    parser.add_argument("--threads", default="1,2,3,4,8,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("contender", nargs="*", help="the words of a `farpage run` with its options, as one argument")
    args = parser.parse_args()
    contenders = args.contender or [tool + " run", tool + " run --affinity off"]
    results = [[] for _ in contenders]
    for _ in range(args.rounds):
        for i, contender in enumerate(contenders):
            results[i].append(measure(contender, args))
    for i, contender in enumerate(contenders):
        print(f"({i}) {contender}")
    threads = [int(n) for n in args.threads.split(",")]
    print(f"{'kind':6}{'':4}" + "".join(f"{n:<24}" for n in threads))
    for kind in args.kinds.split(","):
        for i, rounds in enumerate(results):
            values = [[one[kind, n] for one in rounds] for n in threads]
            one = statistics.median(values[0])
            print(f"{kind:6}({i}) " + "".join(f"{cell(v, one):<24}" for v in values))


if __name__ == "__main__":
    main()
