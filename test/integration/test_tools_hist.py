"""farpage hist, ps and top over stats pages with known figures: every format is parsed, and what
the dead leave goes away."""
import csv
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import xml.etree.ElementTree

import terminal
import toolcase

STATSWRITER = os.environ["FARPAGE_STATSWRITER"]
VALUE_ERROR = 0.01
SAMPLES = 1000  # of 1 to 1000 µs, evenly
HISTOGRAMS, HISTOGRAM_BYTES = 9, (4 + 2048) * 8  # at the end of a stats page; each begins with four words
READ = 2  # the histogram of reads


class WithPages(toolcase.ToolCase):
    def setUp(self):
        super().setUp()
        os.makedirs(self.runtime, mode=0o700)

    def writer(self, pattern):
        """A living program with a stats page; returns it and its process number."""
        process = subprocess.Popen([STATSWRITER, pattern], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self._end, process)
        pid = int(self.line(process))
        self.assertEqual(pid, process.pid)
        return process, pid

    def end(self, process):
        process.stdin.close()
        self.assertEqual(process.wait(toolcase.TIMEOUT), 0)

    def near(self, value, expected):
        self.assertLessEqual(abs(value - expected), VALUE_ERROR * expected, f"{value} is not {expected}")


class Hist(WithPages):
    def setUp(self):
        super().setUp()
        self.stats = self.path("some.stats")
        self.end(self.writer(self.stats)[0])

    def hist(self, *args):
        status, out, err = self.farpage("hist", "--stats-file", self.stats, *args)
        self.assertEqual((status, err), (0, ""))
        return out.decode()

    def test_text(self):
        out = self.hist()
        for word in ("fault latency", "1000", "p50", "p99"):
            self.assertIn(word, out)

    def test_json(self):
        shown = json.loads(self.hist("--format", "json"))
        self.assertEqual(shown["count"], SAMPLES)
        self.near(shown["p50"], 500_000)
        self.near(shown["p99"], 990_000)
        self.near(shown["max"], 1_000_000)
        self.assertEqual(sum(count for _, _, count in shown["buckets"]), SAMPLES)

    def test_csv(self):
        rows = list(csv.DictReader(io.StringIO(self.hist("--format", "csv"))))
        self.assertEqual(list(rows[0]), ["low_ns", "high_ns", "count"])
        self.assertEqual(sum(int(row["count"]) for row in rows), SAMPLES)
        self.assertTrue(all(int(row["low_ns"]) <= int(row["high_ns"]) for row in rows))

    def test_hgrm(self):
        rows, summary = [], []
        for line in self.hist("--format", "hgrm").splitlines():
            (summary if line.startswith("#") else rows).append(line)
        self.assertEqual(rows[0].split(), ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"])
        table = [[float(field) for field in row.split()[:3]] for row in rows[1:] if row]
        self.assertEqual(table, sorted(table))
        self.assertEqual(table[-1][1:], [1.0, SAMPLES])
        median = next(value for value, percentile, _ in table if percentile >= 0.5)
        self.near(median, 500)
        self.assertTrue(any("Total count" in line for line in summary))

    def test_svg(self):
        root = xml.etree.ElementTree.fromstring(self.hist("--format", "svg"))
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        curve = root.find(".//{http://www.w3.org/2000/svg}polyline").get("points").split()
        heights = [float(point.split(",")[1]) for point in curve]
        self.assertEqual(heights, sorted(heights, reverse=True))
        self.assertLess(heights[-1], heights[0])

    def json(self, *args):
        return json.loads(self.hist("--format", "json", *args))

    def test_phases(self):
        self.near(self.json("--phase", "fetch")["p50"], 1_000_000)
        self.assertEqual(self.json("--phase", "evict")["count"], 0)
        for form in ("text", "csv", "hgrm", "svg"):
            self.hist("--format", form, "--phase", "writeback")

    def test_kinds(self):
        for kind, count, p50 in (("all", 1000, 500_000), ("read", 600, 300_000), ("zero", 400, 800_000), ("waited", 100, 950_000),
                                 ("write", 0, 0), ("protect", 0, 0)):
            shown = self.json("--kind", kind)
            self.assertEqual(shown["count"], count, kind)
            self.near(shown["p50"], p50)
        self.assertIn("fault latency, reads: 600 counted", self.hist("--kind", "read"))
        self.assertFails(self.farpage("hist", self.stats, "--kind", "read", "--phase", "fetch"), 2, "--kind read", "--phase fetch")
        self.assertFails(self.farpage("hist", self.stats, "--kind", "slow"), 2, "slow", "zero", "waited")

    def test_merged(self):
        other = self.path("other.stats")
        process, _ = self.writer(other)
        self.count(process, other, 500, 7)
        for files in ((self.stats, other), ("--stats-file", self.stats, other), (other, "--format", "json", self.stats)):
            status, out, err = self.farpage("hist", "--format", "json", *files)
            self.assertEqual((status, err), (0, ""))
            self.assertEqual(json.loads(out)["count"], 2 * SAMPLES + 500)
        self.assertFails(self.farpage("hist", self.stats, self.path("absent")), 1, "absent")
        self.assertFails(self.farpage("hist", "--pid", "1", self.stats), 2, "exclude")
        os.symlink(other, self.path("same"))
        self.assertFails(self.farpage("hist", other, self.stats, self.path("same")), 1, self.path("same"), "named twice")
        self.assertFails(self.farpage("hist", "--stats-file", other, "--stats-file", self.stats), 2, "--stats-file twice")

    def count(self, process, stats, n, us):
        """Has a writer count faults, and waits until they are counted."""
        def counted():
            return json.loads(self.farpage("hist", "--format", "json", stats)[1])["count"]
        before = counted()
        process.stdin.write(f"{n} {us}\n".encode())
        process.stdin.flush()
        deadline = time.monotonic() + toolcase.TIMEOUT
        while counted() != before + n:
            self.assertLess(time.monotonic(), deadline)

    def test_since(self):
        path = self.path("running.stats")
        process, pid = self.writer(path)
        before = self.path("before.stats")
        self.assertEqual(self.farpage("hist", path, "--save", before), (0, b"", ""))
        self.count(process, path, 70, 9)
        for kind, n in (("all", 70), ("read", 70), ("zero", 0)):
            shown = json.loads(self.farpage("hist", path, "--since", before, "--kind", kind, "--format", "json")[1])
            self.assertEqual(shown["count"], n)
            if n:
                self.near(shown["p50"], 9000)
                self.near(shown["max"], 9000)
        self.assertEqual(self.farpage("hist", path, "--since", path)[1], b"fault latency: nothing counted\n")
        self.assertEqual(json.loads(self.farpage("hist", before, "--format", "json")[1])["count"], SAMPLES)
        # a file that is no earlier copy
        self.assertFails(self.farpage("hist", before, "--since", path), 1, path, before, "not an earlier copy")
        self.assertFails(self.farpage("hist", path, "--since", self.path("absent")), 1, "absent")
        self.assertFails(self.farpage("hist", path, "--since", self.path("text", "x" * 100)), 1, "text", "not a stats file")
        self.assertEqual(self.farpage("hist", before, path, "--since", before, "--format", "csv")[0], 0)

    def test_since_of_another_program(self):
        _, pid = self.writer(os.path.join(self.runtime, "%p.stats"))
        _, other = self.writer(os.path.join(self.runtime, "%p.stats"))
        before = self.path("before.stats")
        self.assertEqual(self.farpage("hist", "--pid", str(pid), "--save", before), (0, b"", ""))
        self.assertEqual(self.farpage("hist", "--pid", str(pid), "--since", before)[1], b"fault latency: nothing counted\n")
        self.assertFails(self.farpage("hist", "--pid", str(other), "--since", before), 1, before, f"of another program: statswriter ({pid})")
        # files are compared by the counts of all kinds, even if the kind that is shown has none
        longer = self.path("longer.stats")
        process, _ = self.writer(longer)
        self.count(process, longer, 5, 7)
        for kind in ("protect", "all"):
            self.assertFails(self.farpage("hist", self.stats, "--since", longer, "--kind", kind), 1, longer, "not an earlier copy")

    def test_save(self):
        os.makedirs(self.path("folder"))
        path = self.path("running.stats")
        self.writer(path)
        for target, why in ((path, "running program"), (self.path("folder"), "a folder: name a file in it"),
                            (self.path("none/x"), "No such file"), ("/dev/null", "no regular file of this user")):
            self.assertFails(self.farpage("hist", self.stats, "--save", target), 1, target, why)
        for option in (("--live",), ("--since", self.stats), ("--format", "json"), ("--phase", "fetch"), ("--kind", "read")):
            self.assertFails(self.farpage("hist", self.stats, "--save", self.path("x"), *option), 2, "--save", option[0])

    def damaged(self, name, histogram, word, value):
        """A copy of the stats file in which one word of a histogram has another value."""
        path = self.path(name)
        with open(self.stats, "rb") as original, open(path, "wb") as out:
            page = bytearray(original.read())
            at = len(page) - (HISTOGRAMS - histogram) * HISTOGRAM_BYTES + 8 * word
            page[at:at + 8] = struct.pack("<Q", value)
            out.write(page)
        return path

    def test_damaged(self):
        self.assertEqual(self.farpage("hist", self.damaged("sound", READ, 0, 600))[0], 0)
        for histogram in range(1, HISTOGRAMS):  # the first is that of readers' copies
            for word in (0, 1, 3, 4 + 130):  # the count, the sum, the maximum, a bucket
                path = self.damaged("damaged", histogram, word, 9 * 10**18)
                self.assertFails(self.farpage("hist", path), 1, path, "damaged")
        for form in ("text", "json", "csv", "hgrm", "svg"):
            self.assertFails(self.farpage("hist", self.stats, path, "--format", form), 1, path, "damaged")
        self.assertFails(self.farpage("hist", self.stats, "--since", path), 1, path, "damaged")
        self.assertFails(self.farpage("hist", path, "--save", self.path("copy")), 1, path, "damaged")
        self.assertFails(self.farpage("hist", path, "--live"), 1, path, "damaged")

    def test_terminals(self):
        if not shutil.which("tmux"):
            self.skipTest("no tmux to play the terminal")
        for columns, rows in ((60, 15), (80, 24), (200, 50)):
            with terminal.Terminal([toolcase.FARPAGE, "hist", self.stats, "--kind", "waited"], columns, rows) as window:
                window.wait_for_text("ended with 0")
                self.assertFalse(window.wraps(), window.history())
                self.assertTrue(any("max 1.00 ms" in line for line in window.history()))

    def test_live_is_no_picture(self):
        self.assertFails(self.farpage("hist", self.stats, "--live", "--format", "svg"), 2, "--live --format svg")

    def test_live_ends_with_the_program(self):
        process, pid = self.writer(os.path.join(self.runtime, "%p.stats"))
        reader = self.start("hist", "--live", "--pid", str(pid), "--format", "csv", stdout=subprocess.PIPE)
        self.assertEqual(self.line(reader), "low_ns,high_ns,count")
        self.end(process)
        out, _ = reader.communicate(timeout=toolcase.TIMEOUT)
        self.assertEqual(reader.returncode, 0)
        self.assertIn(b"low_ns,high_ns,count", out)  # a last time, with the final figures

    def test_live_ends_by_interrupt(self):
        _, pid = self.writer(os.path.join(self.runtime, "%p.stats"))
        reader = self.start("hist", "--live", "--pid", str(pid), stdout=subprocess.PIPE)
        self.line(reader)
        reader.send_signal(signal.SIGINT)
        reader.communicate(timeout=toolcase.TIMEOUT)
        self.assertEqual(reader.returncode, 0)

    def test_live_of_a_file_that_is_cut_short(self):
        path = os.path.join(self.runtime, "%p.stats")
        for named in (False, True):
            _, pid = self.writer(path)
            stats = path.replace("%p", str(pid))
            of = ("--stats-file", stats) if named else ("--pid", str(pid))
            reader = self.start("hist", "--live", "--format", "csv", *of, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(self.line(reader), "low_ns,high_ns,count")
            os.truncate(stats, 4096)
            _, err = reader.communicate(timeout=toolcase.TIMEOUT)
            self.assertEqual(reader.returncode, 1)
            self.assertIn(f"{stats}: a stats file of Farpage that was cut short", err.decode())
            self.assertFails(self.farpage("hist", "--stats-file", stats), 1, stats, "cut short")

    def test_the_only_program(self):
        self.assertFails(self.farpage("hist"), 1, "no program")
        self.writer(os.path.join(self.runtime, "%p.stats"))
        self.assertEqual(self.farpage("hist")[0], 0)
        self.writer(os.path.join(self.runtime, "%p.stats"))
        self.assertFails(self.farpage("hist"), 1, "--pid")

    def test_few_descriptors(self):
        """The pages of other programs take none."""
        pids = [self.writer(os.path.join(self.runtime, "%p.stats"))[1] for _ in range(20)]
        for pid in min(pids), max(pids):
            done = subprocess.run(["prlimit", "--nofile=16", toolcase.FARPAGE, "hist", "--pid", str(pid)], env=self.env,
                                  capture_output=True, text=True, timeout=toolcase.TIMEOUT)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_bad_input(self):
        self.assertFails(self.farpage("hist", "--pid", "1"), 1, "process 1")
        for pid in ("x", "0", "-5", "99999999999"):
            self.assertFails(self.farpage("hist", "--pid", pid), 2, pid)
        self.assertFails(self.farpage("hist", "--format", "pdf"), 2, "pdf", "svg")
        for phase in ("sleep", "faul", "Fault"):
            self.assertFails(self.farpage("hist", "--phase", phase), 2, phase, "writeback")
        self.assertFails(self.farpage("hist", "--pid", "1", "--stats-file", self.stats), 2, "exclude")
        self.assertFails(self.farpage("hist", "--stats-file", self.path("absent")), 1, "absent")
        self.assertFails(self.farpage("hist", "--stats-file", self.path("text", "x" * 100_000)), 1, "text")
        self.assertFails(self.farpage("hist", "--stats-file", self.dir), 1, self.dir)

    def test_output_that_can_not_be_written(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [toolcase.FARPAGE, "hist", "--stats-file", self.stats], stdout=full, stderr=subprocess.PIPE
            )
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"No space left", done.stderr)


class Live(WithPages):
    """`hist --live` on a terminal."""
    def setUp(self):
        super().setUp()
        if not shutil.which("tmux"):
            self.skipTest("no tmux to play the terminal")
        self.process, self.pid = self.writer(os.path.join(self.runtime, "%p.stats"))

    def live(self, columns, rows, *args):
        screen = terminal.Terminal([toolcase.FARPAGE, "hist", "--live", *args], columns, rows,
                                   {"FARPAGE_RUNTIME_DIR": self.runtime})
        self.addCleanup(screen.close)
        screen.wait_for_text("fault latency")
        return screen

    def count(self, n, us):
        self.process.stdin.write(f"{n} {us}\n".encode())
        self.process.stdin.flush()

    def assertFits(self, screen, columns, rows):
        lines = screen.screen()
        self.assertLessEqual(len(lines), rows)
        self.assertLessEqual(max(map(len, lines)), columns)
        self.assertIn(f"statswriter ({self.pid})", lines[0])
        self.assertTrue(any("p50" in line and "p99" in line for line in lines))
        self.assertTrue(any("#" in line for line in lines))
        self.assertIn("100.000%", "".join(lines))  # the last bar, too
        self.assertEqual(screen.scrolled_away(), 0)

    def test_sizes(self):
        screen = self.live(80, 24)
        self.assertFits(screen, 80, 24)
        for columns, rows in ((60, 15), (200, 50), (80, 24)):
            screen.resize(columns, rows)
            screen.wait_for(lambda lines, columns=columns: any("100.000%" in line and len(line) == columns for line in lines))
            self.assertFits(screen, columns, rows)
        screen.type("q")
        screen.wait_for_text("ended with 0")

    def test_keys_and_the_last_second(self):
        screen = self.live(80, 24)
        screen.type("n", "n")
        screen.wait_for(lambda lines: "reads" in lines[0] and any(line.split()[:3] == [">", "all", "600"] for line in lines))
        again = time.monotonic()

        def shows_last_second(lines):
            """The line stays for a second: it may be missed, and is then made anew."""
            nonlocal again
            if time.monotonic() >= again:
                self.count(40, 30_000)
                again = time.monotonic() + 3
            return any(line.split()[:5] == ["last", "1", "s", "40", "30.0"] for line in lines)

        screen.wait_for(shows_last_second)
        screen.type("i")
        screen.wait_for(lambda lines: any("Nothing counted in the last second" in line for line in lines))
        screen.type("p")
        screen.wait_for(lambda lines: "fetch latency" in lines[0])
        screen.resize(60, 15)
        screen.type("?")
        lines = screen.wait_for_text("next phase")
        self.assertTrue(any("protect, waited" in line for line in lines))
        self.assertLessEqual(max(map(len, lines)), 60)  # no line is cut on a narrow terminal
        screen.type("q")
        screen.wait_for_text("fetch latency")
        screen.type("C-c")
        screen.wait_for_text("ended with 0")

    def test_a_program_that_ends(self):
        screen = self.live(80, 24, "--kind", "zero")
        self.end(self.process)
        screen.wait_for(lambda lines: "ended" in lines[0] and any("400" in line for line in lines))
        screen.type("q")
        screen.wait_for_text("ended with 0")

    def test_a_file_that_is_cut_short(self):
        screen = self.live(80, 24)
        os.truncate(os.path.join(self.runtime, f"{self.pid}.stats"), 4096)
        screen.wait_for_text("ended with 1")
        self.assertIn("cut short", "".join(screen.screen()))


class Ps(WithPages):
    def ps(self):
        status, out, err = self.farpage("ps", "--json")
        self.assertEqual((status, err), (0, ""))
        return json.loads(out)

    def pages(self):
        return sorted(name for _, _, names in os.walk(self.runtime) for name in names)

    def test_nobody(self):
        self.assertEqual(self.ps(), [])
        os.rmdir(self.runtime)
        self.assertEqual(self.ps(), [])
        self.assertEqual(len(self.farpage("ps")[1].splitlines()), 1)

    def test_pages_that_were_never_completed(self):
        dead = subprocess.Popen(["true"])
        pid = dead.pid
        names = [f"{os.getpid()}.stats.aB3dE5", f"{pid}.stats.aB3dE", f"{pid}.stats.aB3dE5.x", f"{pid}.stat.aB3dE5",
                 f"x{pid}.stats.aB3dE5", f"0{pid}.stats.aB3dE5", f"99999999999999999999{pid}.stats.aB3dE5",
                 f"{pid}.stats.kept"]
        for name in (f"{pid}.stats.aB3dE5", f"{pid}.stats.ZZZZZZ", *names):
            self.path(os.path.join(os.path.basename(self.runtime), name), "")
        self.assertIsNone(dead.returncode)  # not waited for: its number is its own
        self.assertEqual(self.ps(), [])
        self.assertIn(f"{pid}.stats.aB3dE5", self.pages())
        dead.wait()
        self.assertEqual(self.ps(), [])
        self.assertEqual(self.pages(), sorted(names))

    def test_living_programs(self):
        pids = sorted(self.writer(os.path.join(self.runtime, "%p.stats"))[1] for _ in range(3))
        shown = self.ps()
        self.assertEqual([program["pid"] for program in shown], pids)
        self.assertEqual(shown[0]["command"], "statswriter")
        self.assertEqual(shown[0]["budget_bytes"], 64 << 20)
        self.assertEqual(shown[0]["faults"]["zero"], 100)
        self.assertEqual(shown[0]["nodes"][0]["url"], 'tcp://far "quoted":1')
        self.assertEqual([node["up"] for node in shown[0]["nodes"]], [True, False, False])
        self.assertEqual([node["state"] for node in shown[0]["nodes"]], ["up", "lost", "cut off"])
        self.assertEqual(shown[0]["nodes"][2]["way"], "tcp://other-way")
        self.assertEqual(shown[0]["nodes"][0]["reconnects"], 3)
        text = self.farpage("ps")[1].decode()
        self.assertIn("statswriter", text)
        self.assertIn("shm:/lost!", text)
        self.assertIn("tcp://other-way?", text)
        self.assertIn(" 3600 ", text)

    def test_pages_of_the_dead_go(self):
        living, pid = self.writer(os.path.join(self.runtime, "%p.stats"))
        dead, _ = self.writer(os.path.join(self.runtime, "%p.stats"))
        dead.kill()
        dead.wait()
        self.assertEqual(len(self.pages()), 2)
        self.assertEqual([program["pid"] for program in self.ps()], [pid])
        self.assertEqual(self.pages(), [f"{pid}.stats"])
        self.end(living)

    def test_other_files_stay(self):
        for name in ("notes.txt", "1.stats"):
            with open(os.path.join(self.runtime, name), "w") as out:
                out.write("not a page")
        self.assertEqual(self.ps(), [])
        self.assertEqual(self.pages(), ["1.stats", "notes.txt"])

    def test_folder_of_a_killed_run(self):
        """It stays as long as a program in it lives."""
        folder = os.path.join(self.runtime, "run-1")
        os.mkdir(folder, 0o700)
        process, pid = self.writer(os.path.join(folder, "%p.stats"))
        self.assertEqual([program["pid"] for program in self.ps()], [pid])
        self.assertEqual(self.farpage("hist", "--pid", str(pid))[0], 0)
        self.end(process)
        self.assertEqual(self.ps(), [])
        self.assertFalse(os.path.exists(folder))

    def test_bad_input(self):
        self.assertFails(self.farpage("ps", "--all"), 2, "--all")
        self.assertFails(self.farpage("ps", "more"), 2, "more")
        self.assertFails(self.farpage("top", "more"), 2, "more")
        self.assertFails(self.farpage("ps", env={"FARPAGE_RUNTIME_DIR": self.path("file", "")}), 1, "folder")

    def test_top_in_a_pipe(self):
        _, pid = self.writer(os.path.join(self.runtime, "%p.stats"))
        top = self.start("top", stdout=subprocess.PIPE)
        lines = [self.line(top) for _ in range(7)]
        os.truncate(os.path.join(self.runtime, f"{pid}.stats"), 4096)
        while self.line(top) != "programs: none":  # with the next look there is one less to show
            pass
        top.send_signal(signal.SIGTERM)
        self.assertEqual(top.wait(toolcase.TIMEOUT), 0)
        self.assertEqual([line.split()[:2] for line in lines if "statswriter" in line], [[str(pid), "statswriter"]] * 2)
        self.assertNotIn("\033", "".join(lines))


class CommandLine(toolcase.ToolCase):
    def test_help(self):
        for tool in ("run", "hist", "ps", "top", "bench", "node"):
            status, out, err = self.farpage(tool, "--help")
            self.assertEqual((status, err), (0, ""))
            self.assertTrue(out.startswith(b"usage: farpage " + tool.encode()))
        for bench in ("fault", "touch"):
            self.assertEqual(self.farpage("bench", bench, "--help")[0], 0)

    def test_version(self):
        self.assertRegex(self.farpage("--version")[1].decode(), r"^farpage \d+\.\d+\.\d+\n$")

    def test_wrong(self):
        self.assertFails(self.farpage("nonsense"), 2, "nonsense")
        self.assertFails(self.farpage("bench", "nonsense"), 2, "nonsense")
        self.assertFails(self.farpage("bench", "fault", "--pages", "0"), 2, "--pages 0")
        self.assertFails(self.farpage("bench", "fault", "--transport", "pigeon"), 2, "pigeon")
        self.assertFails(self.farpage("bench", "touch", "--size", "1"), 2, "--size 1")
        self.assertFails(self.farpage("bench", "fault", "--cpu", "1023"), 2, "--cpu 1023", "no such CPU")
        self.assertFails(self.farpage("node", "status"), 2, "usage")
        self.assertFails(self.farpage("node", "explode", "tcp://x"), 2, "explode")
        self.assertFails(self.farpage("node", "status", "pigeon:x"), 1, "pigeon:x")
        self.assertFails(self.farpage("node", "status", "shm:" + self.path("none")), 1, "none")


if __name__ == "__main__":
    toolcase.main(needs_userfaultfd=False)
