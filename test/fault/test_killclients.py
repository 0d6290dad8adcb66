"""Clients killed under load: a node keeps nothing of theirs. See test_killclients.c.

FARPAGE_TEST_RDMA adds rdma at that address, with the kernel's own count of queue pairs, regions and
the like; FARPAGE_TEST_KILLS says how many clients are killed over each transport,
FARPAGE_TEST_KILLERS by how many at a time.
"""
import os
import re
import subprocess
import time
import unittest

from farpaged import Farpaged, auth

KILLER = os.environ["KILLCLIENTS"]
KILLS = int(os.environ.get("FARPAGE_TEST_KILLS", "300"))
KILLERS = int(os.environ.get("FARPAGE_TEST_KILLERS", "1"))
ADDRESS = os.environ.get("FARPAGE_TEST_RDMA")
GRACE_S = 2
SECRET = "open-sesame-open-sesame"
CONFIG = f"""
listen: LISTEN
pools:
  - name: main
    size: 256M
    backing: memfd
limits:
  grace: {GRACE_S}s
  handshake_timeout: 30s
"""


def resources():
    """What the kernel counts of each kind over all devices, but for sizes: {"qp": 3, ...}."""
    totals = {}
    for kind, n in re.findall(r"(\w+) (\d+)", subprocess.check_output(["rdma", "resource", "show"], text=True)):
        totals[kind] = totals.get(kind, 0) + int(n)
    return totals


class KilledClients(unittest.TestCase):
    def kill_them(self, node, n=KILLS, families=False):
        self.assertTrue(node.urls, node.log())
        secret = {"FARPAGE_TEST_SECRET": SECRET} if node.urls[0].startswith("rdma:") else {}
        until = time.monotonic() + 60 + 3 * n
        killers = [subprocess.Popen([KILLER, node.urls[0], str(-(-n // KILLERS)), "120", *["families"] * families],
                                    env={**os.environ, **secret})
                   for _ in range(KILLERS)]
        try:
            statuses = [killer.wait(until - time.monotonic()) for killer in killers]
        finally:
            for killer in killers:
                killer.kill()
        self.assertEqual(statuses, [0] * KILLERS, node.log())
        self.assertIsNone(node.process.poll(), node.log())

    def test_over_tcp(self):
        with Farpaged(CONFIG.replace("LISTEN", "tcp://127.0.0.1:0")) as node:
            self.kill_them(node)

    def test_over_shm(self):
        with Farpaged(CONFIG.replace("LISTEN", "unix:SOCKET")) as node:
            self.kill_them(node)

    def test_families_over_tcp(self):
        with Farpaged(CONFIG.replace("LISTEN", "tcp://127.0.0.1:0")) as node:
            self.kill_them(node, KILLS // 3, families=True)

    def test_families_over_shm(self):
        with Farpaged(CONFIG.replace("LISTEN", "unix:SOCKET")) as node:
            self.kill_them(node, KILLS // 3, families=True)

    @unittest.skipUnless(ADDRESS, "no RDMA device: FARPAGE_TEST_RDMA is not set")
    def test_over_rdma(self):
        self.over_rdma()

    @unittest.skipUnless(ADDRESS, "no RDMA device: FARPAGE_TEST_RDMA is not set")
    def test_families_over_rdma(self):
        self.over_rdma(families=True)

    def over_rdma(self, families=False):
        with Farpaged(CONFIG.replace("LISTEN", f"rdma://{ADDRESS}:7461") + auth(SECRET)) as node:
            self.kill_them(node, 2)
            before = self.settle({})
            self.kill_them(node, families=families)
            after = self.settle(before)
            print(f"rdma resources before {before}, after {after}")
            self.assertEqual(before, after, node.log())

    @staticmethod
    def settle(wanted):
        """Waits until the counts are as wanted, or for as long as a node may take to notice."""
        until = time.monotonic() + 3 * GRACE_S + 5
        while (seen := resources()) != wanted and time.monotonic() < until:
            time.sleep(0.5)
        return seen


if __name__ == "__main__":
    unittest.main(verbosity=2)
