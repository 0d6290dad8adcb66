"""The loop of farpaged waits for nobody: whoever does not read, or does not write, keeps nobody
else waiting."""
import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

from farpaged import BOTH, BUSY, OPERATOR, NodeCase, main, secret_file

MIB = 1 << 20


class Case(NodeCase):
    def serves_and_ends(self, node, n_sessions):
        for i in range(n_sessions):
            session = node.session(node.urls[i % 2])
            session.lease(MIB)
            session.close()
        node.signal(signal.SIGTERM)
        self.assertEqual(node.wait(), 0)


class Unread(Case):
    def test_notify_socket(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, tempfile.TemporaryDirectory() as folder:
            notify.bind(folder + "/notify")
            notify.setblocking(False)
            os.environ["NOTIFY_SOCKET"] = folder + "/notify"
            self.addCleanup(os.environ.pop, "NOTIFY_SOCKET")
            node = self.start(BOTH)
            self.serves_and_ends(node, 600)
            self.assertIn(b"READY=1", notify.recv(4096))

    def test_notify_socket_that_is_full_at_a_reload(self):
        """The loop does not wait for the reader, and the reader learns of the reload."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, tempfile.TemporaryDirectory() as folder:
            notify.bind(folder + "/notify")
            notify.settimeout(20)
            os.environ["NOTIFY_SOCKET"] = folder + "/notify"
            self.addCleanup(os.environ.pop, "NOTIFY_SOCKET")
            node = self.start(BOTH)
            self.assertIn(b"READY=1", notify.recv(4096))
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
                filler.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        filler.sendto(b"full", folder + "/notify")
            node.signal(signal.SIGHUP)
            node.await_log("read again")
            node.session().info()
            told = b""
            while b"READY=1" not in told:
                told += notify.recv(4096)
            self.assertIn(b"RELOADING=1", told)

    def test_stderr(self):
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        os.write(write_end, bytes(65536))
        node = self.start(BOTH, preexec=lambda: os.dup2(write_end, 2))
        os.close(write_end)
        self.serves_and_ends(node, 300)


class Log(Case):
    def test_what_is_left_out_is_counted(self):
        node = self.start(BOTH)
        for _ in range(200):
            node.session().close()
        node.signal(signal.SIGTERM)
        self.assertEqual(node.wait(), 0)
        lines = [line for line in node.log().splitlines() if "farpaged: session:" in line]
        left_out = sum(int(n) for n in re.findall(r"left out here: ([0-9]+) line", "\n".join(lines)))
        self.assertGreater(left_out, 0)
        self.assertEqual(left_out + sum("left out here" not in line for line in lines), 400, "begins and ends")


class Flood(Case):
    """Beside a client that asks for more than it can get, in many connections, the others get their
    share."""
    TURNS = 4
    GOOD, BAD = "the secret of the client that is measured", "the secret of the client that floods"
    CONFIG = (f"{BOTH}auth:\n  secrets:\n    - {{ name: good, file: {secret_file(GOOD)} }}\n"
              f"    - {{ name: bad, file: {secret_file(BAD)}, rights: [ lease, status ] }}\n")

    def flood(self, node, kind, n):
        flood = subprocess.Popen([sys.executable, sys.modules["farpaged"].__file__.replace("farpaged.py", "flood.py"), kind,
                                  node.urls[kind != "ping"], str(n), self.BAD], stdout=subprocess.PIPE)
        self.addCleanup(flood.stdout.close)
        self.addCleanup(flood.wait)
        self.addCleanup(flood.kill)
        flood.stdout.readline()
        return flood

    def rate(self, link):
        """READs a second."""
        end, n = time.monotonic() + 0.5, 0
        while time.monotonic() < end:
            link.read((1, 4096, 0))
            n += 1
        return n * 2

    def rates(self, kind, n):
        """Alone and beside the flood, the best of several turns."""
        node = self.start(self.CONFIG)
        session = node.session(node.urls[1], secret=self.GOOD.encode())
        session.lease(MIB)
        link = session.link()
        others = [node.session(secret=self.GOOD.encode()) for _ in range(100)]
        alone = beside = 0
        for _ in range(self.TURNS):
            alone = max(alone, self.rate(link))
            flood = self.flood(node, kind, n)
            beside = max(beside, self.rate(link))
            flood.kill()
            flood.wait()
        print(f"{kind}: {alone} READs a second alone, {beside} beside {n} connections that flood", flush=True)
        for other in others:
            other.close()
        return alone, beside

    def test_reads(self):
        alone, beside = self.rates("read", 60)
        self.assertGreater(beside * 40, alone)

    def test_status(self):
        alone, beside = self.rates("status", 16)
        self.assertGreater(beside * 100, alone)

    def test_unread_pings(self):
        """What nobody reads takes little memory."""
        node = self.start(self.CONFIG)
        before = node.anonymous_bytes()
        n, most = 400, 0
        flood = self.flood(node, "ping", n)
        for _ in range(100):
            most = max(most, node.anonymous_bytes() - before)
            self.assertIsNone(flood.poll())
            select.select([], [], [], 0.01)
        print(f"unread PINGs hold {most >> 10} KiB, {most // n >> 10} a link", flush=True)
        self.assertLess(most, 20 * MIB + (n * 20 << 10))
        asker = node.session(secret=self.BAD.encode())
        self.refused(BUSY, asker.status)  # its text would be one more answer that may stay unread
        node.session(secret=self.BAD.encode(), features=OPERATOR).status()
        node.session(secret=self.GOOD.encode()).info()


class Files(Case):
    def test_fifo_as_configuration(self):
        node = self.start(BOTH)
        session = node.session()
        os.unlink(node.config_path)
        os.mkfifo(node.config_path)
        node.signal(signal.SIGHUP)
        session.lease(MIB)
        node.await_log("not a regular file")


if __name__ == "__main__":
    main()
