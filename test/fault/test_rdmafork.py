"""A program over RDMA that has a forked child, and dies before it: the node gets back what was the
parent's, and the child goes on with a session of its own.

FARPAGE_TEST_RDMA is the node's address, FARPAGE_TEST_RDMA_SCHEME (rdma) the way there.
"""
import json
import os
import select
import signal
import subprocess
import time
import unittest

from farpaged import DEADLINE_S, Farpaged, auth

ADDRESS = os.environ.get("FARPAGE_TEST_RDMA")
GRACE_S = 2
SECRET = "open-sesame-open-sesame"
CONFIG = f"""
listen: [ "rdma://{ADDRESS}:7461", "tcp://{ADDRESS}:7460" ]
pools:
  - name: main
    size: 512M
limits:
  grace: {GRACE_S}s
{auth(SECRET)}"""
KINDS = ("qp", "cq", "mr", "pd", "cm_id", "ctx")


def resources(pid):
    """What devices hold for a process: its number by kind. The parent's may live on in descriptors
    of a child. A child's are said to be of the thread that made them."""
    found = {}
    threads = {pid}
    if os.path.isdir(f"/proc/{pid}/task"):
        threads.update(int(t) for t in os.listdir(f"/proc/{pid}/task"))
    for kind in KINDS:
        done = subprocess.run(["rdma", "-j", "resource", "show", kind], capture_output=True, text=True, check=True)
        n = sum(r.get("pid") in threads for r in json.loads(done.stdout or "[]"))
        if n:
            found[kind] = n
    return found


def await_true(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        select.select([], [], [], 0.1)
    return True


class Orphan:
    """The program, its child's pid, and what is heard of both; a context manager that ends both."""

    def __init__(self, node, url):
        secret_file = os.path.join(node.dir.name, "secret")
        with open(secret_file, "w", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write(SECRET)
        env = {**os.environ, "LD_PRELOAD": os.environ["PRELOAD"], "FARPAGE_NODES": url, "FARPAGE_LOCAL_MEMORY": "16M",
               "FARPAGE_SECRET_FILE": secret_file}
        self.process = subprocess.Popen([os.environ["ORPHAN"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, env=env)
        self.child = None

    def await_child(self, seconds):
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise AssertionError("the child is not heard of")
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("parent "):
                self.child = int(line.split()[3])
                return
        raise AssertionError(f"no child:\n{said}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        if self.child:
            try:
                os.kill(self.child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.stdout.close()


@unittest.skipUnless(ADDRESS, "no RDMA device: FARPAGE_TEST_RDMA is not set")
class RdmaFork(unittest.TestCase):
    def parent_dies_first(self, scheme):
        with Farpaged(CONFIG + ("rdma: {}\n" if scheme == "rdma+tcp" else "")) as node:
            self.assertTrue(node.urls, node.log())
            port = 7461 if scheme == "rdma" else 7460
            with Orphan(node, f"{scheme}://{ADDRESS}:{port}") as orphan:
                parent = orphan.process.pid
                orphan.await_child(90)
                self.assertIn("qp", resources(parent))
                # the child adopts its parent's leases behind the program's back
                has_own = await_true(lambda: "qp" in resources(orphan.child), DEADLINE_S)
                self.assertTrue(has_own, "the child has no queue pair of its own")
                self.assertEqual(node.log().count(" begins"), 2, node.log())
                orphan.process.kill()
                orphan.process.wait()
                gone = await_true(lambda: not resources(parent), DEADLINE_S)
                self.assertTrue(gone, f"of the parent is left: {resources(parent)}")
                ended = await_true(lambda: node.log().count(" ends: it gives back") == 1, GRACE_S + DEADLINE_S)
                self.assertTrue(ended, node.log())
                orphan.process.stdin.write("\n")
                orphan.process.stdin.close()
                self.assertIn("child: as it should be", orphan.process.stdout.read())

    def test_rdma(self):
        self.parent_dies_first("rdma")

    def test_queue_pairs_by_hand(self):
        if ADDRESS.startswith("10.77.1.") or os.environ.get("FARPAGE_TEST_RDMA_IWARP"):
            self.skipTest("iWARP has no queue pairs that are connected by hand")
        self.parent_dies_first("rdma+tcp")


if __name__ == "__main__":
    unittest.main(verbosity=2)
