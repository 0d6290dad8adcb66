#!/usr/bin/python3
"""What 1 to 16 threads of one program fetch together, in both fault modes.

threads.c reads random pages of 256 MiB, of which 64 MiB are local, over shm. Contenders alternate,
round by round. A row is a kind and a contender. A kind is the µs that each thread computes between
two reads, or "rest": it sleeps half of the time. With "p" the threads are pinned by turns to each
CPU, with "s" all to the same. The columns are numbers of threads. A cell is the µs a page, all
threads together; the µs of CPU that all threads of the process spend on a page, also Farpage's; and
the pages a second beside those of one thread, same row and round. Median [min max].
The contender "floor N" serves its own faults inline, without a pager, by N userfaultfds.
FARPAGE_BUILD names the build folder; it neither passes nor fails.
"""
import argparse
import os
import statistics
import subprocess

BUILD = os.environ["FARPAGE_BUILD"]
KINDS = "0,0p,0s,20,20p,50,50p,200,200p,rest,restp"
SHORT_KINDS = "0,0p,50,rest"
WIDTH = 50


def measure(contender, args):
    program = [args.program, args.kinds, args.threads]
    way = contender.split()
    command = [*program, way[1]] if way[0] == "floor" else [*way, "--local-memory", "64M", "--", *program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return {(kind, int(n)): (float(us), float(cpu)) for kind, n, us, cpu in rows}


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f} {max(values):.{digits}f}]"


def read_args():
    tool = os.path.join(BUILD, "tools", "farpage")
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=os.path.join(BUILD, "test", "bench", "threads"))
    parser.add_argument("--kinds")
    parser.add_argument("--threads", help="numbers of threads; the first is that to which others are compared")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--short", action="store_true", help="few kinds, 1, 2 and 4 threads, 3 rounds: a minute")
    parser.add_argument("contender", nargs="*", help="the words of a `farpage run` with its options, as one argument; or floor N")
    args = parser.parse_args()
    args.kinds = args.kinds or (SHORT_KINDS if args.short else KINDS)
    args.threads = args.threads or ("1,2,4" if args.short else "1,2,3,4,8,16")
    args.rounds = args.rounds or (3 if args.short else 7)
    args.contender = args.contender or [f"{tool} run --fault-mode {mode}" for mode in ("thread", "inline")] + ["floor 1"]
    return args


def main():
    args = read_args()
    rounds = [[measure(contender, args) for contender in args.contender] for _ in range(args.rounds)]
    for i, contender in enumerate(args.contender):
        print(f"({i}) {contender}")
    threads = [int(n) for n in args.threads.split(",")]
    print(f"{'kind':6}{'':4}" + "".join(f"{n:<{WIDTH}}" for n in threads))
    for kind in args.kinds.split(","):
        for i in range(len(args.contender)):
            cells = []
            for n in threads:
                us, cpu = zip(*(one[i][kind, n] for one in rounds))
                ratios = [one[i][kind, threads[0]][0] / one[i][kind, n][0] for one in rounds]
                cells.append(f"{spread(us, 2)} cpu {statistics.median(cpu):.1f} x {spread(ratios, 2)}")
            print(f"{kind:6}({i}) " + "".join(f"{cell:<{WIDTH}}" for cell in cells))


if __name__ == "__main__":
    main()
