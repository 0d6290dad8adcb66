"""farpage hist of real programs: over each transport and in both fault modes, each phase and kind
is recorded, and they agree with each other."""
import json
import os
import re

import farapp
import toolcase

LOCAL = 16 << 20
SERVERS = 16  # each counts its own fetches over shm
# Touches pages, then reads and writes them at random.
PROGRAM = """
import random
memory, pick = bytearray(3 * %d), random.Random(1)
for page in range(0, len(memory), 4096): memory[page] = 1
total = 0
for i in range(6000):
    at = pick.randrange(len(memory))
    if i %% 3: total += memory[at]
    else: memory[at] = 2
""" % LOCAL


class Phases(toolcase.ToolCase):
    def shown(self, *args):
        status, out, err = self.farpage("hist", self.path("run.stats"), "--format", "json", *args)
        self.assertEqual((status, err), (0, ""))
        return json.loads(out)

    def total_ns(self, hist):
        return hist["mean"] * hist["count"]

    def check(self, mode, one_in, *node):
        """one_in: one fetch in so many is timed."""
        status, out, err = self.farpage(
            "run", *node, "--fault-mode", mode, "--local-memory", str(LOCAL), "--report", "--stats-file", self.path("run.stats"), "--",
            "/usr/bin/python3", "-c", PROGRAM)
        self.assertEqual((status, out), (0, b""), err)
        counted = {name: int(n) for name, n in re.findall(r"(\w+) (\d+)", re.search("faults: .*", err.replace(" for ", "_"))[0])}
        kinds = {name: self.shown("--kind", name) for name in ("all", "zero", "read", "write", "protect", "waited")}
        fetch, writeback, evict = (self.shown("--phase", name) for name in ("fetch", "writeback", "evict"))
        for name in ("zero", "read", "write", "protect"):
            self.assertEqual(kinds[name]["count"], counted[name], name)
            self.assertGreater(counted[name], 0, name)
        self.assertEqual(kinds["all"]["count"], sum(counted[name] for name in ("zero", "read", "write", "protect")))
        self.assertEqual(kinds["waited"]["count"], counted["waited_room"])
        self.assertIn(b"fetch latency (over shm: one in 8 timed): ", self.farpage("hist", self.path("run.stats"), "--phase", "fetch")[1])
        # each fetch is a part of a fault
        fetches = counted["read"] + counted["write"]
        if one_in == 1:
            self.assertEqual(fetch["count"], fetches)
            self.assertLess(self.total_ns(fetch), self.total_ns(kinds["read"]) + self.total_ns(kinds["write"]))
        else:
            self.assertGreaterEqual(fetch["count"], fetches // one_in)
            self.assertLessEqual(fetch["count"], fetches // one_in + SERVERS)
        faults = [kinds[name]["p50"] for name in ("read", "write")]
        self.assertGreater(fetch["p50"], 0.1 * min(faults))
        self.assertLess(fetch["p50"], 2 * max(faults))
        # each write-back is a part of an eviction
        self.assertGreater(writeback["count"], 0)
        self.assertLessEqual(writeback["count"], evict["count"])
        self.assertLess(self.total_ns(writeback), self.total_ns(evict))
        return kinds["waited"]["count"]

    def test_shm(self):
        for mode in ("thread", "inline"):
            with self.subTest(mode):
                self.check(mode, 8, "--pool-size", "256M")

    def test_tcp(self):
        node = farapp.Node("256M")
        self.addCleanup(node.stop)
        waited = 0
        for mode in ("thread", "inline"):
            with self.subTest(mode):
                waited += self.check(mode, 1, "--node", node.url)
        self.assertGreater(waited, 0)  # pages are touched faster than they can leave


if __name__ == "__main__":
    toolcase.main()
