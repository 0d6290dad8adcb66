"""The loop of farpaged waits for nobody: whoever does not read, or does not write, keeps nobody else waiting."""
import os
import signal
import socket
import tempfile
import unittest

from farpaged import BOTH, Farpaged, main

MIB = 1 << 20


class Case(unittest.TestCase):
    def start(self, *args, **options):
        node = Farpaged(*args, **options)
        self.addCleanup(node.__exit__)
        return node

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
        left_out = sum(int(line.split()[2]) for line in lines if "were left out" in line)
        self.assertGreater(left_out, 0)
        self.assertEqual(left_out + sum("were left out" not in line for line in lines), 400, "begins and ends")


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
