#!/usr/bin/python3
"""What far memory costs a program that does not need it: all of its memory fits in local memory.

Each load runs plain on the C library's allocator, plain on jemalloc, and under
`farpage run --heap all`, in random order, round by round. Its time and its CPU seconds, those of
all its threads, the agent's too, are its own: what it takes to start `farpage run` and its node is
told apart. The ratio is of medians, to the faster of the plain ones; in parentheses what it comes
to in 95 of 100 resamplings of the rounds; then that of the fastest quarters' means, as whatever
else the machine does only adds. A plain one that takes twice as long as the other in the first
round is not run again. On a busy machine believe the CPU seconds. FARPAGE_BUILD names the build
folder; it neither passes nor fails.
"""
import argparse
import ctypes.util
import os
import random
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

FARPAGE = os.path.join(os.environ["FARPAGE_BUILD"], "tools", "farpage")
BOUND = 1.03
PYTHON_LOOP = r"""
import json, time
def records(n):
    return [{"id": i, "name": "name %d" % i, "tags": [str(i % k) for k in (7, 11, 13)]} for i in range(n)]
def fannkuch(n):
    p, count, best = list(range(n)), [0] * n, 0
    r = n
    while True:
        while r != 1: count[r - 1] = r; r -= 1
        q, flips = p[:], 0
        while q[0]:
            k = q[0]; q[:k + 1] = q[k::-1]; flips += 1
        best = max(best, flips)
        while True:
            if r == n: return best
            p.insert(r, p.pop(0)); count[r] -= 1
            if count[r] > 0: break
            r += 1
class Node:
    def __init__(self, key): self.key, self.left, self.right = key, None, None
def tree(keys):
    root = Node(0)
    for key in keys:
        at = root
        while True:
            side = "left" if key < at.key else "right"
            below = getattr(at, side)
            if below is None: setattr(at, side, Node(key)); break
            at = below
    return root
def work():
    for _ in range(ROUNDS):
        text = json.dumps(records(12000))
        back = json.loads(text)
        counts = {}
        for record in back:
            for tag in record["tags"]: counts[tag] = counts.get(tag, 0) + 1
        " ".join(sorted(text[i:i + 8] for i in range(0, len(text), 8)))
        fannkuch(7)
        tree([(i * 7919) % 10007 - 5000 for i in range(4000)])
begin, cpu = time.perf_counter(), time.process_time()
work()
print(time.perf_counter() - begin, time.process_time() - cpu)
"""


def linked_with(path):
    return subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout


def jemalloc():
    """The library that Farpage itself uses."""
    linked = linked_with(os.path.join(os.environ["FARPAGE_BUILD"], "preload/libfarpage-preload.so"))
    found = re.search(r"libjemalloc\S+ => (\S+)", linked)
    return found.group(1) if found else ctypes.util.find_library("jemalloc")


def variants(local):
    return {
        "plain": ([], {}),
        "jemalloc": ([], {"LD_PRELOAD": jemalloc()}),
        "far": ([FARPAGE, "run", "--local-memory", local, "--pool-size", "8G", "--heap", "all", "--"], {}),
    }


def environment(extra):
    return {**{k: v for k, v in os.environ.items() if not k.startswith("FARPAGE_")}, **extra, "LC_ALL": "C"}


def run(prefix, extra, command):
    """What it printed, and the seconds of CPU that it and all its threads and children took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*prefix, *command], env=environment(extra), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}: {done.stderr}")
    return done.stdout + done.stderr, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def python_loop(prefix, extra, scale):
    text, _ = run(prefix, extra, ["/usr/bin/python3", "-c", PYTHON_LOOP.replace("ROUNDS", str(max(1, round(8 * scale))))])
    took, cpu = text.split()
    return float(took), float(cpu)


def stress_malloc(prefix, extra, scale):
    """Its own measure of the time that its operations took, and of the CPU seconds."""
    ops = round(400000 * scale)
    text, _ = run(prefix, extra, ["stress-ng", "--malloc", "1", "--malloc-ops", str(ops), "--metrics-brief"])
    found = re.search(r"\bmalloc\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)", text)
    done, took, user, system = (float(x) for x in found.groups())
    return took / done * ops, (user + system) / done * ops


def startup(prefix, extra, scale):
    begin = time.monotonic()
    _, cpu = run(prefix, extra, ["/bin/true"])
    return time.monotonic() - begin, cpu


def redis(prefix, extra, scale):
    """A server of its own each time: where its memory happens to lie is worth some hundredths."""
    with tempfile.TemporaryDirectory(prefix="farpage-overhead.") as folder:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = str(unused.getsockname()[1])
        server = subprocess.Popen(
            [*prefix, "redis-server", "--port", port, "--save", "", "--dir", folder, "--daemonize", "no"],
            env=environment(extra), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            for _ in range(400):
                if subprocess.run(["redis-cli", "-p", port, "ping"], capture_output=True).stdout == b"PONG\n":
                    break
                time.sleep(0.025)
            begin, cpu = time.monotonic(), redis_cpu(port)
            subprocess.run(["redis-benchmark", "-p", port, "-t", "set,get", "-n", str(round(300000 * scale)), "-r", "200000",
                            "-d", "128", "-P", "16", "-q"], check=True, capture_output=True)
            return time.monotonic() - begin, redis_cpu(port) - cpu
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)


def redis_cpu(port):
    """Of the server, all its threads."""
    info = subprocess.run(["redis-cli", "-p", port, "info", "cpu"], check=True, capture_output=True, text=True).stdout
    return sum(float(x) for x in re.findall(r"used_cpu_(?:sys|user):([\d.]+)", info))


def measure(name, load, args):
    run_as = variants(args.local)
    if load is redis and "libjemalloc" in linked_with(shutil.which("redis-server")):
        run_as.pop("jemalloc")  # it would be the plain one twice, and the lesser of two is less by chance
    times = {variant: [] for variant in run_as}
    for variant, (prefix, extra) in run_as.items():
        load(prefix, extra, args.scale / 10)  # warms up files
    for _ in range(args.rounds):
        for variant, (prefix, extra) in random.sample(list(run_as.items()), len(run_as)):
            times[variant].append(load(prefix, extra, args.scale))
        fastest = min(values[0][1] for variant, values in times.items() if variant != "far")
        run_as = {variant: how for variant, how in run_as.items() if variant == "far" or times[variant][0][1] <= 2 * fastest}
    report(name, "elapsed", {variant: [wall for wall, _ in values] for variant, values in times.items()})
    report(name, "cpu", {variant: [cpu for _, cpu in values] for variant, values in times.items()})


def ratio_of(times, middle=statistics.median):
    of_variant = {variant: middle(values) for variant, values in times.items()}
    return of_variant.pop("far") / max(min(of_variant.values()), 1e-6)


def fastest_quarter(values):
    return statistics.mean(sorted(values)[: max(1, len(values) // 4)])


def report(name, what, times):
    medians = {variant: statistics.median(values) for variant, values in times.items()}
    ratio = ratio_of(times)
    resampled = sorted(ratio_of({v: random.choices(t, k=len(t)) for v, t in times.items()}) for _ in range(2000))
    shown = "  ".join(f"{variant} {medians[variant]:.3f} [{min(v):.3f} {max(v):.3f}]" for variant, v in times.items())
    verdict = (f"ratio {ratio:.3f} ({resampled[50]:.3f} to {resampled[-50]:.3f}) {'within' if ratio <= BOUND else 'beyond'} "
               f"{BOUND}, fastest quarters {ratio_of(times, fastest_quarter):.3f}")
    if name == "startup":
        verdict = f"far adds {1000 * (medians['far'] - medians['plain']):.0f} ms"
    print(f"{name:14} {what:8} {shown}  {verdict}  load average {os.getloadavg()[0]:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--scale", type=float, default=1, help="how much longer each load runs")
    parser.add_argument("--local", default="4G")
    parser.add_argument("load", nargs="*", help="redis, python, stress-malloc, startup")
    args = parser.parse_args()
    loads = {"redis": redis, "python": python_loop, "stress-malloc": stress_malloc, "startup": startup}
    print(f"seconds, elapsed and of CPU; median [least greatest] of {args.rounds} rounds; load average {os.getloadavg()[0]:.1f}")
    for name, load in loads.items():
        if not args.load or name in args.load:
            measure(name, load, args)


if __name__ == "__main__":
    main()
