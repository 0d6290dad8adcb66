"""What goes wrong on an RDMA fabric, with a verifying program at work: churn, whose every byte has
a shadow.

FARPAGE_TEST_RDMA is the node's address. FARPAGE_TEST_NODE_NETNS and FARPAGE_TEST_PROGRAM_NETNS name
the network namespaces of both ends where a cable can be pulled between them (link eth0);
FARPAGE_TEST_RDMA_DEVICE a device that may be removed, with FARPAGE_TEST_RDMA_NETDEV what it is made
of again.

Or FARPAGE_TEST_NODE is the URL of a node in another guest, of which the folder FARPAGE_VM_RESULTS
is shared: there it writes node.log, and pulls the cable at its end for as many seconds as a file
named `pull` says: see test/vm/node.sh.
"""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from farpaged import Farpaged, auth, secret_file

ADDRESS = os.environ.get("FARPAGE_TEST_RDMA")
NODE_NETNS = os.environ.get("FARPAGE_TEST_NODE_NETNS")
PROGRAM_NETNS = os.environ.get("FARPAGE_TEST_PROGRAM_NETNS")
DEVICE = os.environ.get("FARPAGE_TEST_RDMA_DEVICE")
NETDEV = os.environ.get("FARPAGE_TEST_RDMA_NETDEV")
CHURN = os.environ["CHURN"]
STEALKEY = os.environ["STEALKEY"]
FARPAGE = os.environ["FARPAGE"]
REMOTE = os.environ.get("FARPAGE_TEST_NODE")
SHARED = os.environ.get("FARPAGE_VM_RESULTS")
FETCHES_AT_LEAST = 20_000
CPU_SECONDS = 40
UNDER_WAY = 200  # fetches of a program that is at work
CPU_TURNS = 6
GRACE_S = 12  # test/vm/node.sh has the same
SECRET = os.environ["FARPAGE_TEST_SECRET"] = "open-sesame-open-sesame"
TOUCH = """
memory = bytearray(64 << 20)
print("ready", flush=True)
while True:
    for at in range(0, len(memory), 4096):
        memory[at] = 1
"""
STALL_S = 9  # no operation of churn takes longer; a request may, by one second
CONFIG = f"""
listen: [ "rdma://{ADDRESS}:7461", "unix:SOCKET" ]
pools:
  - name: main
    size: 512M
limits:
  grace: {GRACE_S}s
{auth(SECRET)}"""


def inside(netns, command):
    return ["ip", "netns", "exec", netns, *command] if netns else command


def cpu_ns(pid):
    """CPU time of all threads of a process so far."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as f:
            total += int(f.read().split()[0])
    return total


def child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return int(f.read().split()[0])


def ends_within(process, seconds):
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


class RemoteNode:
    """A node that runs in another guest; its log begins here."""

    def __init__(self):
        self.urls = [REMOTE]
        self.log_path = os.path.join(SHARED, "node.log")
        until = time.monotonic() + 60
        while not os.path.exists(self.log_path) and time.monotonic() < until:
            time.sleep(0.1)  # its guest may still be coming up
        self.begin = os.path.getsize(self.log_path)

    def log(self):
        with open(self.log_path, encoding="utf-8") as f:
            f.seek(self.begin)
            return f.read()

    def answers(self):
        """Whether a program can work with it; the first may find the fabric not whole again."""
        for _ in range(4):
            with Churn(self, 6) as churn:
                output, status = churn.end(60)
            if status == 0:
                return True
            print(output)
        return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def start_node(config=CONFIG):
    if REMOTE:
        return RemoteNode()
    node = Farpaged(config, prefix=inside(NODE_NETNS, []))
    if not node.urls:
        raise AssertionError(node.log())
    return node


def text_of(path):
    with open(path, encoding="utf-8") as text:
        return text.read()


class Churn:
    """The verifying program at work; a context manager that ends it."""

    def __init__(self, node, seconds, *args):
        url = next(u for u in node.urls if u.startswith("rdma:"))
        self.runtime = tempfile.TemporaryDirectory(prefix="farpage-rdma.")
        self.process = subprocess.Popen(
            inside(PROGRAM_NETNS, [CHURN, "--node", url, "--seconds", str(seconds), "--size", "16M", "--local-pages",
                                   "256", "--stall", str(STALL_S), *args]),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "FARPAGE_RUNTIME_DIR": self.runtime.name})

    def fetches(self):
        """Reads from the node so far."""
        pages = glob.glob(self.runtime.name + "/*.stats")
        if not pages:
            return 0  # it has not come that far
        shown = subprocess.run([FARPAGE, "hist", "--stats-file", pages[0], "--phase", "fetch", "--format", "json"],
                               check=False, capture_output=True, text=True, timeout=30)
        return json.loads(shown.stdout)["count"] if shown.returncode == 0 else 0

    def end(self, timeout):
        """Its output and status; a hang fails."""
        try:
            output, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGABRT)
            output, _ = self.process.communicate()
            raise AssertionError(f"it hangs:\n{output}") from None
        return output, self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.runtime.cleanup()


@unittest.skipUnless(ADDRESS or REMOTE, "no RDMA device: FARPAGE_TEST_RDMA is not set")
class RdmaFaults(unittest.TestCase):
    @staticmethod
    def get_going(churn):
        """Until pages come and go."""
        until = time.monotonic() + 60
        while churn.fetches() < UNDER_WAY and time.monotonic() < until:
            if churn.process.poll() is not None:
                raise AssertionError(f"it ended before it was under way:\n{churn.end(1)[0]}")
            time.sleep(0.2)

    @staticmethod
    def work_on(churn):
        """Until pages come and go again, or it has ended."""
        before, until = churn.fetches(), time.monotonic() + 30
        while churn.process.poll() is None and churn.fetches() < before + UNDER_WAY and time.monotonic() < until:
            time.sleep(0.2)

    def must_survive(self, churn, node, timeout):
        output, status = churn.end(timeout)
        self.assertEqual(status, 0, f"{output}\n--- node:\n{node.log()}")

    def must_end_by_law_1(self, churn, node, timeout):
        """A poisoned page is an end (by SIGBUS, or EFAULT in a system call); wrong bytes, an abort
        and a hang are not."""
        output, status = churn.end(timeout)
        self.assertNotEqual(status, 0, output)
        self.assertRegex(output, "ended by signal 7|Bad address", f"{output}\n--- node:\n{node.log()}")
        self.assertNotIn("expected", output)

    @unittest.skipUnless(NODE_NETNS or REMOTE, "there is no cable: FARPAGE_TEST_NODE_NETNS is not set")
    def test_cable_pulled_for_two_seconds(self):
        # emulated guests that share busy processors may take long to find each other again
        with start_node() as node, Churn(node, 15, "--stall", str(2 * STALL_S)) as churn:
            self.get_going(churn)
            self.pull_cable(2)
            self.must_survive(churn, node, 90)
            self.assertEqual(node.log().count(" begins"), 1, node.log())  # the same session to the end

    @unittest.skipUnless(NODE_NETNS or REMOTE, "there is no cable: FARPAGE_TEST_NODE_NETNS is not set")
    def test_cable_pulled_again_and_again(self):
        """Soft RoCE then says of READs that were not answered that they were: see
        transport/rdma_link.c."""
        with start_node() as node, Churn(node, 40, "--stall", str(4 * STALL_S)) as churn:
            self.get_going(churn)
            for seconds in (1.1, 1.7, 1.3, 1.9, 1.5, 1.2, 1.8):
                self.pull_cable(seconds)
                self.work_on(churn)
            self.must_survive(churn, node, 120)

    @unittest.skipUnless(NODE_NETNS or REMOTE, "there is no cable: FARPAGE_TEST_NODE_NETNS is not set")
    def test_cable_pulled_for_longer_than_the_grace(self):
        with start_node() as node, Churn(node, 120) as churn:
            self.get_going(churn)
            self.pull_cable(GRACE_S + 12)
            self.must_end_by_law_1(churn, node, 60)
            self.assertTrue(node.answers() if REMOTE else node.process.poll() is None, node.log())

    @unittest.skipUnless(NODE_NETNS or REMOTE, "there is no cable: FARPAGE_TEST_NODE_NETNS is not set")
    def test_retries_are_chosen_and_told(self):
        """With the default its queue pair would wait for longer than these do."""
        with start_node() as node, tempfile.NamedTemporaryFile("w+") as err, tempfile.TemporaryDirectory() as runtime:
            url = next(u for u in node.urls if u.startswith("rdma:"))
            program = subprocess.Popen(
                inside(PROGRAM_NETNS, [FARPAGE, "run", "--local-memory", "16M", "--node", url, "--secret-file", secret_file(SECRET),
                                       "--", sys.executable, "-c", TOUCH]),
                stdout=subprocess.PIPE, stderr=err, text=True, env={
                    **os.environ, "FARPAGE_RUNTIME_DIR": runtime, "FARPAGE_RDMA_RETRY_COUNT": "1",
                    "FARPAGE_RDMA_ACK_TIMEOUT": "30ms"})
            self.addCleanup(program.kill)
            self.assertEqual(program.stdout.readline(), "ready\n")
            self.assertNotIn("verbs: ", text_of(err.name))
            for _ in range(4):  # an outage that ends by the first attempt to reconnect is not told
                self.pull_cable(4)
                said, until = "", time.monotonic() + 30
                while " is back after " not in said and time.monotonic() < until:
                    time.sleep(0.2)
                    said = text_of(err.name)
                if said:
                    break
            self.assertIn("transport retry counter exceeded", said, node.log())
            self.assertIn(" is back after ", said)
            self.assertIsNone(program.poll())

    @staticmethod
    def pull_cable(seconds):
        if REMOTE:
            request = os.path.join(SHARED, "pull")
            with open(request + ".new", "w", encoding="ascii") as f:
                f.write(f"{seconds}\n")
            os.rename(request + ".new", request)
            until = time.monotonic() + seconds + 60
            while os.path.exists(request):  # the node removes it when the cable is back
                if time.monotonic() > until:
                    raise AssertionError("the other guest did not pull its cable")
                time.sleep(0.2)
            return
        subprocess.run(["ip", "-netns", NODE_NETNS, "link", "set", "eth0", "down"], check=True)
        time.sleep(seconds)
        subprocess.run(["ip", "-netns", NODE_NETNS, "link", "set", "eth0", "up"], check=True)

    @unittest.skipIf(REMOTE, "the node is out of reach")
    def test_node_killed(self):
        for moment in (0.0, 0.5, 1.5, 6.0):  # while it connects, writes, reads
            with self.subTest(seconds=moment), start_node() as node, Churn(node, 120) as churn:
                if moment > 2:
                    self.get_going(churn)
                else:
                    time.sleep(moment)
                node.signal(signal.SIGKILL)
                node.wait()
                if moment > 2:
                    self.must_end_by_law_1(churn, node, 60)
                else:  # it may not have begun
                    output, status = churn.end(60)
                    self.assertNotEqual(status, 0, output)
                    self.assertNotIn("expected", output)

    @unittest.skipUnless(DEVICE, "no device may be removed: FARPAGE_TEST_RDMA_DEVICE is not set")
    def test_the_device_removed_under_load(self):  # with the next the last: the device may not come back
        with start_node() as node, Churn(node, 120) as churn:
            self.get_going(churn)
            deletion = self.delete_device()
            self.must_end_by_law_1(churn, node, 60)
            self.must_go(deletion, node)
        with start_node() as node:  # the device is as good as new
            self.must_serve(node)

    @unittest.skipUnless(DEVICE, "no device may be removed: FARPAGE_TEST_RDMA_DEVICE is not set")
    def test_the_device_removed_without_load(self):
        """No connection is left that could be told, none ever was for queue pairs by hand; and the
        node serves it again when it is back."""
        with start_node(CONFIG + f"rdma: {{ device: {DEVICE} }}\n") as node:
            for times in range(1, 3):
                self.must_serve(node)
                self.must_go(self.delete_device(), node)
                self.await_return(node, times)

    def await_return(self, node, times):
        """Until the node has found the device again so many times."""
        until = time.monotonic() + 60
        while node.log().count("its rdma device is back") < times:
            self.assertLess(time.monotonic(), until, node.log())
            time.sleep(0.1)

    @staticmethod
    def delete_device():
        """Ends when everybody has let go of the device, and cannot be interrupted before."""
        return subprocess.Popen(["rdma", "link", "delete", DEVICE], stderr=subprocess.DEVNULL)

    def must_go(self, deletion, node):
        """It ends while the node lives; then the device is made again."""
        if not ends_within(deletion, 60):
            log = node.log()
            node.process.kill()
            if not ends_within(deletion, 30):
                self.fail("the kernel keeps the device, though no process has it any more")
            self.fail(f"the node kept the device\n{log}")
        self.assertEqual(deletion.returncode, 0, node.log())
        self.assertIsNone(node.process.poll(), node.log())
        subprocess.run(["rdma", "link", "add", DEVICE, "type", DEVICE.rstrip("0123456789"), "netdev", NETDEV],
                       check=True, timeout=60)

    def must_serve(self, node):
        """Two sessions that come, read and write, and go, one of them beyond its rights. Returns
        what was said of it."""
        done = subprocess.run(inside(PROGRAM_NETNS, [STEALKEY, node.urls[0]]), capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + node.log())
        return done.stdout

    @unittest.skipIf(REMOTE, "the node is out of reach")
    def test_stolen_key(self):
        with start_node() as node:
            print(self.must_serve(node))
            node.await_log("thief")
            node.await_log("key")

    def cpu_over_faults(self):
        """Fetches, and CPU time of node and program over them in ns. Without read-ahead each fetch
        is a fault's."""
        with start_node() as node, Churn(node, CPU_SECONDS, "--readahead", "0", "--stall", str(4 * STALL_S)) as churn:
            self.get_going(churn)
            program = child_of(churn.process.pid)
            fetches, node_ns, program_ns = churn.fetches(), cpu_ns(node.process.pid), cpu_ns(program)
            time.sleep(CPU_SECONDS - 9)
            node_ns, program_ns = cpu_ns(node.process.pid) - node_ns, cpu_ns(program) - program_ns
            fetches = churn.fetches() - fetches
            output, status = churn.end(90)
        self.assertEqual(status, 0, output)
        return fetches, node_ns, program_ns

    @unittest.skipIf(REMOTE, "the node is out of reach")
    def test_node_uses_no_cpu(self):
        """Law 5: one-sided means one-sided. A busy machine needs more than one turn."""
        fetches = node_ns = program_ns = turns = 0
        while fetches < FETCHES_AT_LEAST and turns < CPU_TURNS:
            more = self.cpu_over_faults()
            fetches, node_ns, program_ns, turns = fetches + more[0], node_ns + more[1], program_ns + more[2], turns + 1
        print(f"CPU over {fetches} remote faults: program {program_ns / 1e6:.1f} ms, node {node_ns / 1e6:.1f} ms")
        self.assertGreaterEqual(fetches, FETCHES_AT_LEAST)
        self.assertLess(node_ns, program_ns / 100)


if __name__ == "__main__":
    unittest.main(verbosity=2)
