#!/usr/bin/python3
"""test/bench/targets.py [--quick] [ROW...]: the targets of doc/performance.md, each met or missed.

Runs the benches one after the other. Each bench lets its contenders take turns, so a ratio is one
of medians of the same run. A row has the work, its target, the figures (median [least greatest] of
the rounds), the ratio, and whether the target is met. A row that cannot be measured here says why,
and what would measure it. ROW is a word of ROWS below; without any, all rows are measured.
FARPAGE_BUILD names the build folder. Ends with 1 if a bench failed or ^C ended the run, and with 0
otherwise, also if targets are missed: the table is there to be read.
"""
import argparse
import collections
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

import firsttouch
import threads

BUILD = os.environ["FARPAGE_BUILD"]
TOOL = os.path.join(BUILD, "tools", "farpage")
MODES = ("thread", "inline")
LIMIT_S = 3600  # of one bench
WIRE_ROUNDS = "15"  # a wake-up across CPUs takes 5 or 50 µs, as the scheduler likes
EMULATOR = "qemu-system-x86_64"
UNUSABLE = 77  # a program ends so if it misses what it needs

Row = collections.namedtuple("Row", "work target seen ratio verdict")
SHOWN = ("verdict", "ratio", "work", "target", "seen")  # the longest last: it may leave the terminal


class NotHere(Exception):
    """A row cannot be measured on this machine: the text says why."""


def judged(work, target, seen, ratio, is_met):
    return Row(work, target, seen, "" if ratio is None else f"{ratio:.3f}", "met" if is_met else "MISSED")


def output(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})})
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {said[-1]}")
    return done.stdout


def bench(*args):
    return json.loads(output([TOOL, "bench", *args, "--json"]))


def shown(figure):
    return f"{figure['median']:.1f} [{figure['min']:.1f} {figure['max']:.1f}]"


def spread(values):
    return shown({"median": statistics.median(values), "min": min(values), "max": max(values)})


class Run:
    """One run of this script: its options, and the documents of its benches so far."""

    def __init__(self, quick, rounds):
        self.quick = quick
        self.rounds = rounds or (1 if quick else 5)  # of real programs
        self.kept = {}
        self.notes = []  # what stands below the table

    def once(self, name, measure):
        """Several rows may need the same bench: it runs once, and fails for each of them."""
        if name not in self.kept:
            try:
                self.kept[name] = measure()
            except (RuntimeError, OSError, subprocess.SubprocessError, ValueError) as error:
                self.kept[name] = error
        if isinstance(self.kept[name], Exception):
            raise self.kept[name]
        return self.kept[name]

    def touch(self):
        size = "64M" if self.quick else "256M"
        return self.once("touch", lambda: bench("touch", "--transport", "floor,shm", "--fault-mode", "both", "--size", size))

    def tcp(self):
        size = "16M" if self.quick else "64M"
        return self.once("tcp", lambda: bench("fault", "--transport", "floor,bare-tcp,tcp", "--link-delay", "3", "--size", size,
                                              "--rounds", WIRE_ROUNDS))

    def passes_over_tcp(self):
        size = "32M" if self.quick else "128M"
        return self.once("passes over tcp", lambda: bench("touch", "--transport", "tcp", "--link-delay", "3", "--fault-mode", "inline",
                                                          "--size", size, "--rounds", WIRE_ROUNDS))


def contender(document, over, mode):
    return next(row for row in document["contenders"] if (row["over"], row["fault_mode"]) == (over, mode))


# ---- the rows: each function takes a Run and gives a list of rows ----


def pass_beside_floor(run, name, limits):
    """A random pass over shm, evictions included, beside a read of the floor."""
    rows = []
    for mode in MODES:
        far, floor = (contender(run.touch(), over, mode) for over in ("shm", "floor"))
        figure, least = far[f"random_{name}_us_per_page"], floor["random_read_us_per_page"]
        faults = next(row for row in run.touch()["faults_in_percent_of_the_pages_touched"]
                      if (row["pass"], row["fault_mode"]) == (f"random {name}", mode))
        ratio = figure["median"] / least["median"]
        rows.append(judged(f"random {name}, {mode}", f"<= {limits[mode]} x floor",
                           f"{shown(figure)} µs a page, {faults[name]:.0f} % fetched; floor {shown(least)}", ratio,
                           ratio <= limits[mode]))
    return rows


def random_read(run):
    return pass_beside_floor(run, "read", {"thread": 1.15, "inline": 1.15})


def random_write(run):
    return pass_beside_floor(run, "write", {"thread": 1.4, "inline": 1.7})


def tail(run):
    rows = []
    for mode in MODES:
        far = contender(run.touch(), "shm", mode)
        middle = far["read_fault_p50_us"]
        for name, key, limit in (("p99", "p99", 2.5), ("p99.9", "p999", 20)):
            figure = far[f"read_fault_{key}_us"]
            ratio = figure["median"] / middle["median"]
            rows.append(judged(f"{name} of a random-read fault, {mode}", f"<= {limit} x p50",
                               f"{shown(figure)} µs, p50 {shown(middle)}", ratio, ratio <= limit))
    return rows


def several_threads(run):
    """In fault mode thread, the worst of all numbers and placements of threads counts."""
    args = argparse.Namespace(program=os.path.join(BUILD, "test", "bench", "threads"),
                              kinds=threads.SHORT_KINDS if run.quick else threads.KINDS,
                              threads="1,2,4" if run.quick else "1,2,3,4,8,16")
    least = argparse.Namespace(program=args.program, kinds="0", threads="1,2,4")
    contenders = {mode: (f"{TOOL} run --fault-mode {mode}", args) for mode in MODES} | {"floor": ("floor 1", least)}
    samples = {name: collections.defaultdict(list) for name in contenders}
    for _ in range(3 if run.quick else 5):
        for name, (way, its_args) in contenders.items():
            for cell, (us, _cpu) in threads.measure(way, its_args).items():
                samples[name][cell].append(us)

    def gain(name, kind, n):
        one, several = (statistics.median(samples[name][kind, count]) for count in (1, n))
        return one / several

    rows = []
    for n in (2, 4):
        figure = samples["inline"]["0", n]
        rows.append(judged(f"{n} threads, inline", ">= 1.6 x the pages/s of 1",
                           f"{spread(figure)} µs a page, 1 thread {spread(samples['inline']['0', 1])}; "
                           f"the floor alone: {gain('floor', '0', n):.2f} x", gain("inline", "0", n),
                           gain("inline", "0", n) >= 1.6))
    worst = min((cell for cell in samples["thread"] if cell[1] > 1), key=lambda cell: gain("thread", *cell))
    one = samples["thread"][worst[0], 1]
    rows.append(judged(f"{args.threads} threads, thread", ">= 0.95 x the pages/s of 1",
                       f"worst: {worst[1]} threads, kind {worst[0]}, {spread(samples['thread'][worst])} µs a page, 1 thread {spread(one)}",
                       gain("thread", *worst), gain("thread", *worst) >= 0.95))
    return rows


def cores(run):
    """What faults on several CPUs share, in ns. To see how threads scale takes more than two
    CPUs."""
    text = output([os.path.join(BUILD, "test", "bench", "sharecost")])
    parts = [line.split() for line in text.splitlines()[1:]]
    most = max(int(part[0]) for part in parts)
    figures = {name: (int(shared), int(own)) for n, name, shared, own in parts if int(n) == most}
    shared, own = figures.pop("all")
    seen = f"{most} threads: {shared} ns a fault, {own} where each has its own; " + ", ".join(
        f"{name} {figure[0]}" for name, figure in figures.items())
    run.notes.append("more cores: needs more than two CPUs: test/bench/threads.py --threads 1,2,4,8,16 there")
    return [judged("more cores: what faults share", "<= 1.3 x its own", seen, shared / max(own, 1), shared <= 1.3 * own)]


def first_touch(run):
    args = argparse.Namespace(orders="forward", threads="1")
    ways, samples = firsttouch.contenders(), collections.defaultdict(list)
    for _ in range(5 if run.quick else 11):
        for name, prefix in ways.items():
            samples[name].append(firsttouch.measure(prefix, args)["forward", 1])
    plain = samples.pop("plain")
    rows = []
    for name, figure in samples.items():
        ratio = statistics.median(figure) / statistics.median(plain)
        rows.append(judged(f"first touch, {name}", "<= 1.3 x the kernel's own",
                           f"{spread(figure)} µs a page, the kernel's {spread(plain)}", ratio, ratio <= 1.3))
    return rows


def tcp(run):
    rows = []
    bare = contender(run.tcp(), "bare-tcp", None)["p50_us"]
    for mode in MODES:
        far, floor = (contender(run.tcp(), over, mode)["p50_us"] for over in ("tcp", "floor"))
        ratio = far["median"] / (floor["median"] + 1.2 * bare["median"])
        rows.append(judged(f"fault over tcp, {mode}, p50", "<= floor + 1.2 x bare request",
                           f"{shown(far)} µs, floor {shown(floor)}, bare {shown(bare)}", ratio, ratio <= 1))
    return rows


def slow_link(run):
    far, near = (contender(run.tcp(), over, "inline")["p50_us"] for over in ("tcp+3us", "tcp"))
    added = far["median"] - near["median"]
    run.notes.append("a 3 µs link: what it adds is known to the width of a bucket of the histogram: 0.5 µs from 32 to 64 µs, 1 µs to 128 µs")
    rows = [judged("a 3 µs link, inline, p50", "adds <= 3.5 µs", f"adds {added:.1f} µs: {shown(far)}, without {shown(near)}",
                   None, added <= 3.5)]
    for name in ("sequential", "strided"):
        far, near = (contender(run.passes_over_tcp(), over, "inline")[f"{name}_read_us_per_page"] for over in ("tcp+3us", "tcp"))
        ratio = far["median"] / near["median"]
        rows.append(judged(f"a 3 µs link, {name} read", "unchanged: <= 1.1 x", f"{shown(far)} µs a page, without {shown(near)}",
                           ratio, ratio <= 1.1))
    return rows


def node_cpu(_run):
    """For each number of shards, the worst of all sizes of requests counts."""
    text = output([os.path.join(BUILD, "test", "bench", "tcpfloor"), os.path.join(BUILD, "daemon", "farpaged")])
    worst = {}
    for line in text.splitlines():
        found = re.match(r"  (\S.*?) +\d+ \[.*\] a second, +([\d.]+) (\[.*?\]) us of CPU", line)
        if not found:
            request = line
        elif found[1] == "bare":
            bare = float(found[2]), f"{found[2]} {found[3]}"
        else:
            ratio, shards = float(found[2]) / bare[0], found[1].removeprefix("farpaged, ")
            seen = f"worst: {request}: {found[2]} {found[3]} µs a request, bare {bare[1]}"
            worst[shards] = max(worst.get(shards, (0.0, "")), (ratio, seen))
    if not worst:
        raise RuntimeError("tcpfloor printed no farpaged")
    return [judged(f"farpaged's CPU over tcp, {shards}", "<= 1.3 x a bare server", seen, ratio, ratio <= 1.3)
            for shards, (ratio, seen) in worst.items()]


def far_memory(run):
    sizes = ("8G", "2G") if run.quick else ("64G", "8G")
    command = [os.path.join(BUILD, "test", "bench", "farmemory"), os.path.join(BUILD, "daemon", "farpaged"), *sizes, "--json"]
    rows = []
    for row, size in zip(json.loads(output(command)), sizes):
        figure = row["bytes_a_page"]
        rows.append(judged(f"a far page that was {row['what']}", "<= 16 bytes",
                           f"{figure:.2f} bytes, {size} mapped; the kernel's page tables {row['page_table_bytes_a_page']:.2f} more",
                           None, figure <= 16))
    return rows


def victims(_run):
    """The worst trace beside LRU and beside FIFO."""
    traces = json.loads(output([os.path.join(BUILD, "test", "bench", "victims"), "--json"]))
    rows = []
    for other, limit, target in (("LRU", 1.05, "within 5 % of LRU's"), ("FIFO", 1.0, "never above FIFO's")):
        worst = max(traces, key=lambda row: row["levels"] / row[other])
        above = sum(row["levels"] > limit * row[other] for row in traces)
        ratio = worst["levels"] / worst[other]
        seen = f"worst: {worst['trace']}, {worst['local_percent']} % local; {above} of {len(traces)} beyond"
        rows.append(judged(f"eviction choice, beside {other}", target, seen, ratio, above == 0))
    return rows


def rdma(_run):
    """In a guest that has a soft RDMA device: on its emulated CPUs all takes longer, the ratio
    counts."""
    if not shutil.which(EMULATOR):
        raise NotHere(f"needs a guest, and {EMULATOR} is not installed: scripts/setup.sh vm")
    test = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    guest = [os.path.join(test, "vm", "run.sh"), "--kernel", "6.12", "--setup", "one-namespace", "--append", "idle=poll",
             "--timeout", "900", "--", os.path.join(test, "bench", "rdma_latency.sh"), os.path.abspath(BUILD)]
    done = subprocess.run(guest, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    if done.returncode == UNUSABLE:
        raise NotHere(f"no guest: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")
    rows = []
    for mode in MODES:  # the script ends with 1 if its own bounds are missed
        bound = re.search(rf"(?m)^fault, {mode} / \(ib_read_lat \+ 1.15 x floor = ([\d.]+) µs\)", done.stdout)
        seen = re.search(rf"(?m)^fault over rdma, {mode}, p50 +(([\d.]+) µs.*)$", done.stdout)
        if not bound or not seen:
            raise RuntimeError(f"the guest ended with {done.returncode} and printed no fault over rdma")
        ratio = float(seen[2]) / float(bound[1])
        rows.append(judged(f"fault over rdma (rxe), {mode}, p50", "<= ib_read_lat + 1.15 x floor",
                           f"{' '.join(seen[1].split())}, bound {bound[1]} µs", ratio, ratio <= 1))
    return rows


# ---- real programs beside zram ----

LOADS = ("quicksort", "kmeans", "graph", "hash", "stream", "columns", "python", "sort", "redis")
QUICK_LOADS = ("quicksort", "kmeans", "columns")


def apps_of(run):
    """The results of each workload; each has a bench of its own, so that one that fails ends no
    other."""
    size = "128M" if run.quick else "256M"
    found, failed = {}, []
    for load in QUICK_LOADS if run.quick else LOADS:
        try:
            document = bench("apps", "--workload", load, "--contender", "thread,inline,zram", "--size", size,
                             "--rounds", str(run.rounds), "--local", "50,25")
        except (RuntimeError, subprocess.SubprocessError) as error:
            failed.append(f"{load}: {error}")
            continue
        skipped = {row["what"]: row["reason"] for row in document["skipped"]}
        if "zram" in skipped:
            raise NotHere(f"no zram: {skipped['zram']}")
        if load in skipped:
            run.notes.append(f"real programs: {skipped[load]}")
        else:
            found[load] = document["results"]
    if not found:
        raise RuntimeError("; ".join(failed) or "no workload ran")
    return found, failed


def result(results, contender, percent):
    return next(row for row in results if (row["contender"], row["local_percent"]) == (contender, percent))


def seconds(results, contender, percent):
    """The median; None if it was always killed."""
    figure = result(results, contender, percent)["seconds"]
    return figure and figure["median"]


def zrams_part(results, percent):
    """How much more than the budget zram has: more than 8 MiB where the kernel killed the program.
    And how often it was killed even so."""
    row = result(results, "zram", percent)
    killed = row.get("killed_rounds")
    return f"zram has {row['slack_bytes'] >> 20} MiB more" + (f", killed {killed} times" if killed else "")


def beside_zram(run, found, failed, mode, percent):
    """The row of the slowest workload, and that of the mean at 25 %."""
    work = f"real programs, {mode}, {percent} %"
    killed = [load for load, results in found.items() if not seconds(results, "zram", percent)]
    ratios = {load: seconds(results, mode, percent) / seconds(results, "zram", percent)
              for load, results in found.items() if load not in killed}
    if not ratios:
        run.notes.append(f"{work}: with zram, every program was killed for want of memory")
        return [Row(work, "", "", "", "not run")]
    run.notes.append(f"{work}, seconds to zram's: " + ", ".join(
        f"{load} {ratio:.2f} ({zrams_part(found[load], percent)})" for load, ratio in ratios.items()))
    worst = max(ratios, key=ratios.get)
    rest = f"of {len(ratios)}" + "".join(f"; {load}: zram killed" for load in killed)
    rows = [judged(work, "none slower than zram", f"slowest: {worst}, {rest}", ratios[worst], ratios[worst] <= 1 and not failed)]
    if percent == 25:
        mean = math.exp(-statistics.mean(math.log(ratio) for ratio in ratios.values()))
        rows.append(judged(work, ">= 1.5 x as fast as zram", f"geometric mean {rest}", mean, mean >= 1.5 and not failed))
    return rows


def programs(run):
    found, failed = apps_of(run)
    run.notes += failed
    rows = [row for percent in (50, 25) for mode in MODES for row in beside_zram(run, found, failed, mode, percent)]
    return [*rows, *[Row("real programs, a workload", "", "", "", "FAILED")] * len(failed)]


ROWS = {
    "read": (random_read, "random read"),
    "write": (random_write, "random write"),
    "tail": (tail, "tail of random reads"),
    "threads": (several_threads, "2 and 4 threads"),
    "cores": (cores, "more cores"),
    "first-touch": (first_touch, "first touch"),
    "tcp": (tcp, "fault over tcp"),
    "rdma": (rdma, "fault over rdma"),
    "link": (slow_link, "a 3 µs link"),
    "node": (node_cpu, "farpaged's CPU over tcp"),
    "victims": (victims, "eviction choice"),
    "programs": (programs, "real programs"),
    "memory": (far_memory, "a far page"),
}


def measure(name, run):
    function, work = ROWS[name]
    try:
        return function(run)
    except NotHere as reason:
        verdict, note = "not run", str(reason)
    except Exception as error:  # whatever it is, the other rows go on
        verdict, note = "FAILED", f"{type(error).__name__}: {error}"
    run.notes.append(f"{work}: {note}")
    return [Row(work, "", "", "", verdict)]


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as cpus:
        model = next((line.split(":", 1)[1].strip() for line in cpus if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} CPUs, Linux {platform.release()}, load average {os.getloadavg()[0]:.1f}"


def show(rows):
    table = [[getattr(row, field) for field in SHOWN] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table)]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: about five minutes")
    parser.add_argument("--rounds", type=int, help="of real programs, which take the longest: 5, or 1 with --quick")
    parser.add_argument("row", nargs="*", metavar="ROW", help=", ".join(ROWS))
    args = parser.parse_args()
    for name in args.row:
        if name not in ROWS:
            parser.error(f"{name}: rows are {', '.join(ROWS)}")
    run, rows, begin, interrupted = Run(args.quick, args.rounds), [], time.monotonic(), False
    print(f"{machine()}\n{'short' if args.quick else 'full'} form; median [least greatest] of the rounds of one run", flush=True)
    for name in args.row or ROWS:
        if sys.stderr.isatty():
            print(f"{time.monotonic() - begin:5.0f} s: {name}", file=sys.stderr)
        try:
            rows += measure(name, run)
        except KeyboardInterrupt:  # hours may be behind it
            run.notes.append(f"interrupted: {name} and what follows it were not measured")
            interrupted = True
            break
    show([Row("work", "target", "seen", "ratio", ""), *rows])
    print("".join(f"{note}\n" for note in run.notes), end="")
    count = collections.Counter(row.verdict for row in rows)
    print(", ".join(f"{n} {verdict}" for verdict, n in count.items()) + f"; {time.monotonic() - begin:.0f} s")
    sys.exit(1 if count["FAILED"] or interrupted else 0)


if __name__ == "__main__":
    main()
