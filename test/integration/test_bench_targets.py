"""test/bench/targets.py, over benches that are played: which targets it calls met, and that a bench
that fails ends no other row.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = sys.argv.pop()
FARPAGE = '''#!/usr/bin/python3
import json, sys
def result(contender, percent, seconds):
    return {"contender": contender, "local_percent": percent, "seconds": seconds and {"median": seconds},
            "slack_bytes": 16 << 20 if contender == "zram" else None}
if sys.argv[2] == "apps" and "graph" not in sys.argv:
    load = sys.argv[sys.argv.index("--workload") + 1]
    slower = load == "sort"
    print(json.dumps({"skipped": [{"what": "redis", "reason": "redis-server is not installed"}] if load == "redis" else [],
        "results": [row for percent in (50, 25) for row in (
            result("thread", percent, 1), result("inline", percent, 3 if slower else 1),
            result("zram", percent, None if load == "hash" else 2))]}))
    sys.exit(0)
if sys.argv[2] != "touch":
    sys.exit("farpage: it is broken")
def figure(value):
    return {"median": value, "min": value - 1, "max": value + 1}
def contender(over, mode, read, write):
    return {"over": over, "fault_mode": mode, "random_read_us_per_page": figure(read), "random_write_us_per_page": figure(write),
            "read_fault_p50_us": figure(10), "read_fault_p99_us": figure(25), "read_fault_p999_us": figure(201)}
print(json.dumps({
    "contenders": [contender("floor", "thread", 10, 0), contender("shm", "thread", 11.5, 14.1),
                   contender("floor", "inline", 10, 0), contender("shm", "inline", 11.6, 17)],
    "faults_in_percent_of_the_pages_touched": [
        {"pass": f"random {name}", "fault_mode": mode, "read": 95, "write": 95} for name in ("read", "write") for mode in ("thread", "inline")]}))
'''
VICTIMS = '''#!/bin/sh
echo '[{"trace": "a", "local_percent": 50, "LRU": 100, "FIFO": 130, "levels": 105},'
echo ' {"trace": "b", "local_percent": 25, "LRU": 100, "FIFO": 101, "levels": 102}]'
'''
TCPFLOOR = '''#!/bin/sh
/bin/cat <<END
1 x 4 KiB, 8 READs under way on each of 4 links
  bare               1234567 [1 2] a second,    1.00 [0.90 1.10] us of CPU,    1.00 [1.00 1.00] x bare
  farpaged, 2 shards 1234567 [1 2] a second,    1.25 [1.20 1.30] us of CPU,    1.25 [1.10 1.40] x bare
END
'''


class Targets(unittest.TestCase):
    def setUp(self):
        self.build = tempfile.TemporaryDirectory(prefix="farpage-targets.")
        self.addCleanup(self.build.cleanup)

    def program(self, path, text):
        path = os.path.join(self.build.name, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(path, 0o700)

    def rows(self, status, *names):
        """Gives verdict and ratio of each row by its work, and all that was printed."""
        done = subprocess.run([sys.executable, SCRIPT, *names], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, "FARPAGE_BUILD": self.build.name, "PATH": self.build.name})
        self.assertEqual((done.returncode, done.stderr), (status, ""), done.stdout)
        lines = [re.split("  +", line) for line in done.stdout.splitlines()]
        return {cells[2]: cells[:2] for cells in lines if len(cells) > 2}, done.stdout

    def test_met_and_missed(self):
        self.program("tools/farpage", FARPAGE)
        self.program("test/bench/victims", VICTIMS)
        self.program("test/bench/tcpfloor", TCPFLOOR)
        rows, text = self.rows(0, "read", "write", "tail", "victims", "node")
        self.assertRegex(text, r"met +1\.250 .*farpaged's CPU over tcp, 2 shards .*worst: 1 x 4 KiB, 8 READs .*: 1\.25 \[1\.20 1\.30\] µs .*, bare 1\.00 \[0\.90 1\.10\]")
        self.assertEqual(rows["random read, thread"], ["met", "1.150"])
        self.assertEqual(rows["random read, inline"], ["MISSED", "1.160"])
        self.assertEqual(rows["random write, thread"], ["MISSED", "1.410"])
        self.assertEqual(rows["random write, inline"], ["met", "1.700"])
        self.assertEqual(rows["p99 of a random-read fault, thread"], ["met", "2.500"])
        self.assertEqual(rows["p99.9 of a random-read fault, inline"], ["MISSED", "20.100"])
        self.assertIn("11.5 [10.5 12.5] µs a page, 95 % fetched; floor 10.0 [9.0 11.0]", text)
        self.assertRegex(text, r"(?m)^met +1\.050 +eviction choice, beside LRU ")
        self.assertRegex(text, r"(?m)^MISSED +1\.010 +eviction choice, beside FIFO .*worst: b, 25 % local; 1 of 2 beyond$")
        self.assertRegex(text, r"(?m)^6 met, 5 MISSED; ")

    def test_failures_end_no_row(self):
        self.program("tools/farpage", FARPAGE)
        rows, text = self.rows(1, "victims", "tcp", "rdma", "tail")
        self.assertRegex(text, r"(?m)^FAILED +eviction choice$")
        self.assertRegex(text, r"(?m)^eviction choice: FileNotFoundError: .*victims")
        self.assertRegex(text, r"(?m)^fault over tcp: RuntimeError: .*: farpage: it is broken$")
        self.assertRegex(text, r"(?m)^fault over rdma: needs a guest, and qemu-system-\w+ is not installed: scripts/setup\.sh vm$")
        self.assertEqual(rows["p99 of a random-read fault, inline"], ["met", "2.500"])

    def test_nothing_measured(self):
        self.program("test/bench/tcpfloor", "#!/bin/sh\necho no farpaged")
        self.program("test/bench/victims", "#!/bin/sh\necho '[]'")
        text = self.rows(1, "node", "victims")[1]
        self.assertRegex(text, r"(?m)^FAILED +farpaged's CPU over tcp$")
        self.assertRegex(text, r"(?m)^FAILED +eviction choice$")

    def test_killed_with_little_memory(self):
        """Where zram finishes nothing, the rows of other shares of local memory remain."""
        self.program("tools/farpage", FARPAGE.replace('load == "hash" else 2', 'percent == 25 else 2'))
        text = self.rows(1, "programs")[1]
        self.assertRegex(text, r"(?m)^(met|MISSED) .* real programs, thread, 50 % ")
        self.assertRegex(text, r"(?m)^not run +real programs, thread, 25 %$")
        self.assertRegex(text, r"(?m)^real programs, thread, 25 %: with zram, every program was killed")

    def test_programs(self):
        """A workload that fails, one that is not installed, and one that zram can't finish."""
        self.program("tools/farpage", FARPAGE)
        text = self.rows(1, "programs")[1]
        self.assertRegex(text, r"(?m)^MISSED +2\.000 +real programs, thread, 25 % +>= 1.5 x .*geometric mean of 6; hash: zram killed$")
        self.assertRegex(text, r"(?m)^MISSED +1\.500 +real programs, inline, 50 % +none slower .*slowest: sort, of 6")
        self.assertRegex(text, r"(?m)^FAILED +real programs, a workload$")
        self.assertRegex(text, r"(?m)^graph: .*it is broken$")
        self.assertRegex(text, r"(?m)^real programs: redis-server is not installed$")
        self.assertRegex(text, r"(?m)^real programs, inline, 25 %, seconds to zram's: quicksort 0\.50 \(zram has 16 MiB more\), .*sort 1\.50 \(zram has 16 MiB more\)$")

    def test_unknown_row(self):
        done = subprocess.run([sys.executable, SCRIPT, "speed"], capture_output=True, text=True,
                              env={**os.environ, "FARPAGE_BUILD": self.build.name})
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("speed: rows are read, write", done.stderr)


if __name__ == "__main__":
    unittest.main()
