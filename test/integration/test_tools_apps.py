"""farpage bench apps: what it prints, of which contenders; that all come to the same result; and
that nothing is left of its swap devices and control groups, also when it is killed.
"""
import glob
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import jsonpage
import picture
import toolcase

PAGE = sys.argv.pop()
OTHER_SEED = os.environ["FARPAGE_OTHER_SEED"]
APPS = ("bench", "apps")
SMALL = (*APPS, "--size", "2M", "--rounds", "1", "--seed", "7")
LINE = r"seconds (\d+\.\d+) setup_seconds (\d+\.\d+) checksum ([0-9a-f]{16})\n"
OWN = ("quicksort", "kmeans", "graph", "hash", "stream", "columns")
SWAP = ("zram", "loop")
ATTEMPTS = 5
DEADLINE_S = 20
KEPT_BYTES = 16 << 20  # a program with less than this has not made all its data


def swaps():
    with open("/proc/swaps", encoding="ascii") as f:
        return f.read().splitlines()[1:]


def leftovers():
    """Whatever of a bench there is in the kernel and in the file system."""
    groups = glob.glob("/sys/fs/cgroup/**/farpage-bench-*", recursive=True)
    loops = []
    for path in glob.glob("/sys/block/loop*/loop/backing_file"):
        try:
            with open(path, encoding="utf-8") as f:
                loops += [path] if "farpage-bench" in f.read() else []
        except OSError:
            pass
    return groups + loops + glob.glob("/tmp/farpage-bench-*")


def wait_for(what, process=None):
    deadline = time.monotonic() + DEADLINE_S
    while not (found := what()):
        if time.monotonic() > deadline or (process and process.poll() is not None):
            raise AssertionError("it did not happen in time")
        select.select([], [], [], 0.002)
    return found


def is_dead(pid):
    """Nobody may have waited for it yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


class Apps(toolcase.ToolCase):
    def bench(self, *args, env=None):
        status, out, err = self.farpage(*args, env=env)
        self.assertEqual((status, err), (0, ""))
        return out.decode()

    def skip_unless_it_swaps(self, shown):
        """Nothing but the machine may be the reason why a contender is left out."""
        skipped = {row["what"]: row["reason"] for row in shown["skipped"]}
        if os.geteuid() != 0:
            self.assertEqual(set(skipped), set(SWAP))
        if set(SWAP) <= set(skipped):
            self.skipTest(f"no swap here: {skipped}")
        return [name for name in SWAP if name not in skipped]

    def test_document(self):
        shown = json.loads(self.bench(*SMALL, "--json", "--contender", "thread,inline", "--workload", "quicksort,hash",
                                      "--local", "50,12.5", "--svg", self.path("apps.svg")))
        self.assertEqual((shown["seed"], shown["rounds"], shown["size_bytes"], shown["over"]), (7, 1, 2 << 20, "shm"))
        self.assertEqual((shown["means"], shown["skipped"]), ([], []))
        peaks = {row["workload"]: row["peak_bytes"] for row in shown["workloads"]}
        self.assertEqual(list(peaks), ["quicksort", "hash"])
        for workload, peak in peaks.items():
            self.assertGreater(peak, 2 << 20)
            rows = [row for row in shown["results"] if row["workload"] == workload]
            self.assertEqual([(row["local_percent"], row["contender"]) for row in rows],
                             [(None, "plain"), (50, "thread"), (50, "inline"), (12.5, "thread"), (12.5, "inline")])
            for row in rows:
                self.assertEqual(row["killed_rounds"], 0)
                spread = row["seconds"]
                self.assertTrue(0 < spread["min"] <= spread["median"] <= spread["max"])
                self.assertAlmostEqual(row["slowdown"], spread["median"] / rows[0]["seconds"]["median"], delta=row["slowdown"] / 100)
                if row["local_percent"]:
                    self.assertAlmostEqual(row["local_bytes"], peak * row["local_percent"] / 100, delta=8192)
        wanted = {path: kind for path, kind in jsonpage.documented(PAGE)["FARPAGE BENCH APPS"].items()
                  if not path.startswith(("means[]", "skipped[]"))}
        jsonpage.check(self, shown, wanted)
        panels = picture.panels(self.path("apps.svg"))
        self.assertEqual([panel.title for panel in panels], ["quicksort", "hash"])
        for panel in panels:
            self.assertEqual((panel.legend, [len(curve) for curve in panel.curves]), (["thread", "inline"], [2, 2]))
            for (half, _), (eighth, _) in panel.curves:
                self.assertLess(half, eighth)  # the less is local, the further to the right

    def test_parts(self):
        """All parts that the tables of the documents have."""
        shown = json.loads(self.bench(*SMALL, "--json", "--contender", "thread", "--workload", "stream", "--local", "100,75,50,25,12.5"))
        self.assertEqual([row["local_percent"] for row in shown["results"]], [None, 100, 75, 50, 25, 12.5])

    def test_programs_of_others(self):
        """Each is run, or the reason is named. sort has no set-up that is timed."""
        shown = json.loads(self.bench(*APPS, "--size", "1M", "--rounds", "1", "--json", "--contender", "thread", "--local", "50",
                                      "--transport", "tcp", "--workload", "python,sort,redis"))
        ran = {row["workload"] for row in shown["results"] if row["contender"] == "thread"}
        self.assertEqual(shown["over"], "tcp")
        self.assertEqual(ran | {row["what"] for row in shown["skipped"]}, {"python", "sort", "redis"})
        for row in shown["skipped"]:
            self.assertRegex(row["reason"], r"^(python3|sort|redis-server) is not installed$")
        for row in shown["results"]:
            self.assertEqual(row["setup_seconds"] is None, row["workload"] == "sort")

    def test_text(self):
        out = self.bench(*SMALL, "--contender", "plain", "--workload", "stream")
        self.assertRegex(out, r"(?m)^  workload +local percent +contender +seconds +slowdown +setup seconds")
        self.assertRegex(out, r"(?m)^  stream +- +plain +([0-9.]+) \[\1 \1\] +1 ")
        self.assertRegex(out, "(?m)^means: none\nskipped: none$")

    def test_run(self):
        """A workload in the process itself: size and seed alone decide what it computes."""
        for name in OWN:
            with self.subTest(name):
                lines = [self.bench(*APPS, "--run", name, "--size", "1M", "--seed", seed) for seed in ("1", "1", "2")]
                sums = [re.fullmatch(LINE, line)[3] for line in lines]
                self.assertEqual(sums[0], sums[1])
                self.assertNotEqual(sums[0], sums[2])

    def test_wrong_result(self):
        """A contender that computes something else is noticed."""
        outcome = self.farpage(*SMALL, "--contender", "thread", "--workload", "stream", "--local", "50", env={"FARPAGE_PRELOAD": OTHER_SEED})
        self.assertFails(outcome, 1, "stream, thread: WRONG RESULT", "seed 7")

    def test_contender_that_cannot_start(self):
        shown = self.farpage(*SMALL, "--json", "--contender", "thread", "--workload", "stream", env={"FARPAGE_PRELOAD": "/nothing"})
        self.assertIn("FARPAGE_PRELOAD", shown[2])
        self.assertEqual(json.loads(shown[1])["skipped"],
                         [{"what": "thread", "reason": "farpage run cannot start a program: see its message"}])

    def test_node_that_does_not_answer(self):
        shown = self.farpage(*SMALL, "--json", "--contender", "thread", "--workload", "stream", "--node", "tcp://127.0.0.1:1")
        self.assertIn("nothing listens there", shown[2])
        self.assertEqual((shown[0], json.loads(shown[1])["over"]), (0, "tcp://127.0.0.1:1"))

    def test_wrong_input(self):
        for args, words in (
            (("--contender", "plane"), ("--contender plane", "allowed are plain, thread, inline, zram, loop")),
            (("--contender", "plain,"), ("--contender", "allowed are")),
            (("--workload", "redis,none"), ("--workload none", "allowed are quicksort, kmeans, graph")),
            (("--local", "0"), ("--local 0", "percent")),
            (("--local", "101"), ("--local 101", "percent")),
            (("--local", "50,half"), ("--local half", "percent")),
            (("--local", "1,2,3,4,5,6,7,8,9"), ("--local", "at most 8")),
            (("--rounds", "0"), ("--rounds 0", "1 to 100")),
            (("--rounds", "101"), ("--rounds 101", "1 to 100")),
            (("--size", "512K"), ("--size 512K", "1.0 MiB to 64.0 GiB")),
            (("--size", "much"), ("--size much",)),
            (("--seed", "-1"), ("--seed -1", "not a number")),
            (("--transport", "floor"), ("--transport floor", "allowed are shm, tcp")),
            (("--transport", "tcp", "--node", "tcp://x"), ("--transport", "--node")),
            (("--node", ""), ("--node", "empty")),
            (("--node", "tcp://x") * 9, ("--node", "at most 8")),
            (("--secret-file", "secret"), ("--secret-file", "--node")),
            (("--run", "redis"), ("--run redis", "allowed are quicksort, kmeans, graph, hash, stream, columns")),
            (("more",), ("more", "unexpected argument")),
        ):
            with self.subTest(args):
                self.assertFails(self.farpage(*APPS, *args), 2, *words)

    # ---- swap ----

    def test_swap(self):
        shown = json.loads(self.bench(*SMALL, "--json", "--contender", "thread,zram,loop", "--workload", "hash,stream", "--local", "12.5"))
        swapping = self.skip_unless_it_swaps(shown)
        self.assertEqual([row["contender"] for row in shown["results"]], ["plain", "thread", *swapping] * 2)
        if "zram" in swapping:
            self.assertEqual({row["contender"]: row["workloads"] for row in shown["means"]}, dict.fromkeys(["thread", *swapping], 2))
            self.assertAlmostEqual(next(row["speedup_to_zram"] for row in shown["means"] if row["contender"] == "zram"), 1)
            ratio = 1.0
            for workload in ("hash", "stream"):
                seconds = {row["contender"]: row["seconds"]["median"] for row in shown["results"] if row["workload"] == workload}
                ratio *= (seconds["zram"] / seconds["thread"]) ** 0.5
            self.assertAlmostEqual(shown["means"][0]["speedup_to_zram"], ratio, delta=ratio / 100)
        self.assertEqual((swaps(), leftovers()), ([], []))

    def start_swapping(self, size="32M"):
        """A bench whose program swaps to zram, stopped in the middle. Gives both and the group."""
        for _ in range(ATTEMPTS):
            bench = self.start(*APPS, "--size", size, "--rounds", "1", "--contender", "zram", "--workload", "stream", "--local", "10",
                               "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
            pid, group = wait_for(lambda: self.program_of(bench), bench)
            os.kill(pid, signal.SIGSTOP)
            if self.used_bytes(group) < KEPT_BYTES:
                return bench, pid, group
            bench.kill()
            wait_for(lambda: not leftovers())
        raise AssertionError("the program was always faster")

    @staticmethod
    def program_of(bench):
        """The program in the bench's group, with the group's folder. None: it does not run yet."""
        for group in glob.glob("/sys/fs/cgroup/**/farpage-bench-*", recursive=True):
            try:
                with open(f"{group}/cgroup.procs", encoding="ascii") as f:
                    for pid in map(int, f.read().split()):
                        with open(f"/proc/{pid}/stat", encoding="ascii") as stat, open(f"/proc/{pid}/cmdline", "rb") as line:
                            if int(stat.read().rsplit(")", 1)[1].split()[1]) == bench.pid and b"--run" in line.read():
                                return pid, group
            except OSError:
                pass
        return None

    @staticmethod
    def used_bytes(group):
        """Its memory and its swap."""
        names = ["memory.current", "memory.swap.current"] if os.path.exists(f"{group}/memory.max") else ["memory.memsw.usage_in_bytes"]
        total = 0
        for name in names:
            with open(f"{group}/{name}", encoding="ascii") as f:
                total += int(f.read())
        return total

    def need_zram(self):
        shown = json.loads(self.bench(*APPS, "--size", "1M", "--rounds", "1", "--json", "--contender", "zram", "--workload", "stream"))
        if shown["skipped"]:
            self.skipTest(f"no zram here: {shown['skipped']}")

    def test_killed_bench(self):
        """Nothing is left of it, and nothing of a bench that came in between."""
        self.need_zram()
        bench, pid, _ = self.start_swapping()
        self.assertRegex(swaps()[0], "^/dev/zram")
        other = json.loads(self.bench(*SMALL, "--json", "--contender", "zram,loop", "--workload", "stream"))
        self.assertEqual([row["what"] for row in other["skipped"]], ["zram", "loop"])
        for row in other["skipped"]:
            self.assertIn("already swaps to /dev/zram", row["reason"])
        self.assertEqual([row["contender"] for row in other["results"]], ["plain"])
        self.assertEqual(len(swaps()), 1)
        os.killpg(bench.pid, signal.SIGKILL)
        wait_for(lambda: not swaps() and not leftovers())
        self.assertTrue(is_dead(pid))

    def test_program_that_dies(self):
        """That is no result, but an end of the bench, which removes what it made."""
        self.need_zram()
        bench, pid, _ = self.start_swapping()
        os.kill(pid, signal.SIGKILL)
        out, err = bench.communicate(timeout=toolcase.TIMEOUT)
        self.assertEqual((bench.returncode, out), (1, b""))
        self.assertEqual(err, b"farpage: bench apps: stream, zram: the program ended with signal 9\n")
        self.assertEqual((swaps(), leftovers()), ([], []))

    @staticmethod
    def starve(group):
        """No more memory for the group than it has now."""
        if os.path.exists(f"{group}/memory.max"):
            limits = {"memory.swap.max": 0}
        else:
            with open(f"{group}/memory.limit_in_bytes", encoding="ascii") as f:
                limits = {"memory.memsw.limit_in_bytes": max(int(f.read()), Apps.used_bytes(group))}
        for name, value in limits.items():
            with open(f"{group}/{name}", "w", encoding="ascii") as f:
                f.write(str(value))

    def test_killed_program(self):
        """Killed by the kernel for want of memory, a program runs again, with more of it."""
        self.need_zram()
        bench, pid, group = self.start_swapping()
        self.starve(group)
        os.kill(pid, signal.SIGCONT)
        out, err = bench.communicate(timeout=toolcase.TIMEOUT)
        self.assertEqual((bench.returncode, err), (0, b""))
        shown = json.loads(out)
        row = shown["results"][1]
        self.assertEqual((row["contender"], row["killed_rounds"], row["slack_bytes"]), ("zram", 0, 2 * shown["swap_slack_bytes"]))
        self.assertGreater(row["seconds"]["median"], 0)
        self.assertEqual((swaps(), leftovers()), ([], []))

    def test_program_killed_each_time(self):
        """That is its result, after the greatest slack."""
        self.need_zram()
        bench, pid, group = self.start_swapping("96M")  # more than all slack
        for attempt in range(3):
            if attempt:
                pid, group = wait_for(lambda: self.program_of(bench), bench)
                os.kill(pid, signal.SIGSTOP)
            self.starve(group)
            os.kill(pid, signal.SIGCONT)
            wait_for(lambda pid=pid: is_dead(pid), bench)
        out, err = bench.communicate(timeout=toolcase.TIMEOUT)
        self.assertEqual((bench.returncode, err), (0, b""))
        shown = json.loads(out)
        row = shown["results"][1]
        self.assertEqual((row["contender"], row["killed_rounds"], row["seconds"], row["slowdown"]), ("zram", 1, None, None))
        self.assertEqual((row["slack_bytes"], [(mean["workloads"], mean["speedup_to_zram"]) for mean in shown["means"]]), (32 << 20, [(0, None)]))
        self.assertEqual((swaps(), leftovers()), ([], []))


if __name__ == "__main__":
    toolcase.main()
