"""A farpaged with shards: where links are served, how it ends, and which numbers it accepts."""
import os
import resource
import signal
import subprocess
import tempfile

from farpaged import BOTH, CHECK, DEADLINE_S, WRITE, Farpaged, NodeCase, frame, main, table

MIB = 1 << 20
PAGE = 4096


def config(shards):
    return BOTH + f"shards: {shards}\n"


class Shards(NodeCase):
    def test_links_are_spread(self):
        node = self.start(config(2))
        session = node.session(node.urls[1])
        lease_id = session.lease(MIB)[0]
        links = [session.link() for _ in range(4)]
        for i, link in enumerate(links):
            link.write([(lease_id, PAGE, i * PAGE)], bytes([i + 1]) * PAGE)
        for i, link in enumerate(reversed(links)):
            self.assertEqual(link.read((lease_id, PAGE, i * PAGE)), bytes([i + 1]) * PAGE)
        status = session.status()
        self.assertEqual([shard["links"] for shard in status["shards"]], [2, 2])
        self.assertEqual([shard["reads"] for shard in status["shards"]], [2, 2])
        self.assertEqual((status["counters"]["reads"], status["counters"]["writes"]), (4, 4))
        self.assertEqual(status["sessions"][0]["written_bytes"], 4 * PAGE)
        for link in links:
            link.close()
        session.await_status(lambda s: [shard["links"] for shard in s["shards"]] == [0, 0] and s["connections"] == 1)

    def test_one_shard_has_no_thread(self):
        node = self.start(config(1))
        self.assertEqual(node.session().status()["shards"], [])
        self.assertEqual(len(os.listdir(f"/proc/{node.process.pid}/task")), 2, "the loop and the worker")

    def test_stops_under_writes(self):
        node = self.start(config(3))
        session = node.session(node.urls[1])
        lease_id = session.lease(MIB)[0]
        links = [session.link() for _ in range(6)]
        for i, link in enumerate(links): # each writes to a page of its own: the node does not order WRITEs of two links
            link.send(frame(WRITE, table([(lease_id, PAGE, i * PAGE)]) + bytes(PAGE)) * 20)
        node.signal(signal.SIGTERM)
        self.assertEqual(node.process.wait(DEADLINE_S), 0)
        self.assertIn("stopped", node.log())

    def test_too_few_descriptors(self):
        """The threads that run already end, whichever descriptor is missing."""
        for files in range(12, 42, 3):
            with self.subTest(files):
                node = Farpaged(config(16), preexec=lambda n=files: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)))
                self.assertEqual((node.urls, node.process.returncode), ([], 1))
                self.assertIn("limit of open files", node.log())

    def test_numbers(self):
        for shards, valid in ((1, True), (16, True), (0, False), (17, False), ("two", False)):
            with self.subTest(shards), tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
                f.write(config(shards).replace("SOCKET", "/tmp/no.socket"))
                f.flush()
                check = subprocess.run([os.environ["FARPAGED"], "--config", f.name, *CHECK], capture_output=True, check=False)
                self.assertEqual(check.returncode == 0, valid, check.stderr)
                self.assertEqual(b"shards" in check.stderr, not valid)


if __name__ == "__main__":
    main()
