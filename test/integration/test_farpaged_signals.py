"""How farpaged starts, reloads and ends."""
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import unittest

from farpaged import BOTH, HEADER, OVER_QUOTA, READ, WRITE, WRITTEN, NodeCase, Refused, auth, frame, main, table

MIB = 1 << 20


class Start(unittest.TestCase):
    def test_few_descriptors(self):
        """It serves, or says that they are short."""
        for limit in range(5, 13):
            with self.subTest(limit), tempfile.TemporaryDirectory() as folder:
                node = subprocess.Popen(["prlimit", f"--nofile={limit}", os.environ["FARPAGED"], "--private", "--listen", f"unix:{folder}/sock",
                                         "--pool-size", "64M", "--ready-fd", "1"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                if not node.stdout.readline():
                    self.assertRegex(node.communicate()[1], "open files")
                    self.assertEqual(node.returncode, 1)
                    continue
                node.terminate()
                self.assertEqual(node.communicate()[1], "")
                self.assertEqual(node.returncode, 0)


class Term(NodeCase):
    def test_idle(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            node = self.start(BOTH)
            session = node.session()
            session.lease(MIB)
            session.link()
            node.signal(number)
            self.assertEqual(node.wait(), 0)
            self.assertIn("1 session holds 1 lease, 1.0 MiB of 64.0 MiB", node.log())
            self.assertFalse(os.path.exists(node.socket_path))

    def test_requests_under_way(self):
        """They are not answered: what is not said to be written is not lost by its client."""
        for url in range(2):
            node = self.start(BOTH)
            session = node.session(node.urls[url])
            lease_id, _, _ = session.lease(4 * MIB)
            half, waits, unread = session.link(), session.link(), session.link()
            half.send(frame(WRITE, table([(lease_id, 65536, 0)]) + bytes(65536), tag=5)[:1000])
            for tag in range(32):
                unread.send(frame(READ, table([(lease_id, 65536, i << 16) for i in range(64)]), tag))
            unread.receive(HEADER.size)
            node.signal(signal.SIGSTOP)
            waits.send(frame(WRITE, table([(lease_id, 65536, 0)]) + bytes(65536), tag=6))
            node.signal(signal.SIGTERM)
            node.signal(signal.SIGCONT)
            self.assertEqual(node.wait(), 0)
            for link in half, waits:
                with contextlib.suppress(ConnectionError):
                    self.assertIn(link.sock.recv(HEADER.size), (b"", frame(WRITTEN, tag=6)))

class Reload(NodeCase):
    LIMITED = BOTH + "limits: { client_quota: %s, max_sessions: %d }\nlog_level: %s\n"

    def reload(self, node, text, expected):
        node.write_config(text)
        node.signal(signal.SIGHUP)
        node.await_log(expected)

    def test_limits(self):
        node = self.start(self.LIMITED % ("1M", 1, "info"))
        session = node.session()
        session.lease(MIB)
        with self.assertRaises(Refused) as refused:
            session.lease(MIB)
        self.assertEqual(refused.exception.status, OVER_QUOTA)
        with self.assertRaises(Refused):
            node.session()
        self.reload(node, self.LIMITED % ("3M", 2, "info"), "read again")
        session.lease(2 * MIB)
        node.session().close()
        self.reload(node, self.LIMITED % ("4K", 1, "error"), "read again")
        with self.assertRaises(Refused) as refused:
            session.lease(4096)
        self.assertEqual(refused.exception.status, OVER_QUOTA)
        self.assertEqual(session.link().read((1, 4, 0)), bytes(4), "what was granted stays")

    def test_what_cannot_change(self):
        for text, named in ((BOTH.replace("64M", "128M"), "pools"), (BOTH.replace("tcp://127.0.0.1:0", "tcp://127.0.0.2:0"), "listen"),
                            (BOTH + auth("0123456789abcdef"), "auth (on or off)"), (BOTH + "shards: 3\nrdma: {}\n", "rdma, shards")):
            node = self.start(BOTH)
            session = node.session()
            session.lease(MIB)
            self.reload(node, text, f"wait for a restart of the node: {named}\n")
            self.assertEqual(session.info()[0], 64 * MIB)
            node.session(node.urls[1]).info()

    def test_broken_file(self):
        node = self.start(BOTH)
        session = node.session()
        self.reload(node, "pools: 7\n", "goes on with what it had")
        os.unlink(node.config_path)
        node.signal(signal.SIGHUP)
        node.await_log("No such file")
        session.lease(MIB)

    def test_private_node(self):
        node = self.start(args=["--private", "--listen", "unix:@farpaged-test-%d" % os.getpid(), "--pool-size", "64M"])
        node.signal(signal.SIGHUP)
        node.session().lease(MIB)


class Notify(NodeCase):
    def test_states(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, tempfile.TemporaryDirectory() as folder:
            notify.settimeout(20)
            notify.bind(folder + "/notify")
            os.environ["NOTIFY_SOCKET"] = folder + "/notify"
            self.addCleanup(os.environ.pop, "NOTIFY_SOCKET")
            node = self.start(BOTH)
            self.await_state(notify, "READY=1", "STATUS=0 sessions hold 0 leases")
            session = node.session()
            self.await_state(notify, "STATUS=1 session holds 0 leases")
            session.close()
            self.await_state(notify, "STATUS=0 sessions")
            node.signal(signal.SIGHUP)
            self.await_state(notify, "RELOADING=1", "MONOTONIC_USEC=")
            self.await_state(notify, "READY=1")
            node.signal(signal.SIGTERM)
            self.await_state(notify, "STOPPING=1")
            self.assertEqual(node.wait(), 0)

    def await_state(self, notify, *words):
        while True:
            text = notify.recv(4096).decode()
            if all(word in text for word in words):
                return


class Private(NodeCase):
    def private(self, listen, *args):
        return self.start(args=["--private", "--listen", listen, "--pool-size", "1T", *args])

    def test_urls(self):
        name = "@farpaged-test-%d" % os.getpid()
        self.assertEqual(self.private("unix:" + name).urls, ["shm:" + name])
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.private(f"unix:{folder}/s").urls, [f"shm:{folder}/s"])
        url, = self.private("tcp://127.0.0.1:0").urls
        self.assertRegex(url, r"^tcp://127\.0\.0\.1:[1-9][0-9]*$")

    def test_quiet(self):
        node = self.private("tcp://127.0.0.1:0")
        session = node.session()
        lease_id, _, _ = session.lease(1 << 38)
        session.link().write([(lease_id, 3, (1 << 38) - 3)], b"far")
        session.close()
        node.session().info()
        self.assertEqual([line for line in node.log().splitlines() if "larger than this machine's memory" not in line], [])

    def test_dies_with_its_parent(self):
        ready_r, ready_w = os.pipe()
        parent = subprocess.Popen(["sh", "-c", f'"$FARPAGED" --private --listen tcp://127.0.0.1:0 --pool-size 1M '
                                   f'--ready-fd {ready_w} & wait'], pass_fds=[ready_w])
        os.close(ready_w)
        with os.fdopen(ready_r) as ready:
            url = ready.readline().strip()
        host, port = url[6:].split(":")
        with socket.create_connection((host, int(port)), 20) as sock:
            parent.kill()
            parent.wait()
            self.assertEqual(sock.recv(1), b"", "the node has ended")

    def test_parent_that_is_gone_already(self):
        ready_r, ready_w = os.pipe()
        os.close(ready_r)
        done = subprocess.run([os.environ["FARPAGED"], "--private", "--listen", "tcp://127.0.0.1:0", "--pool-size", "1M",
                               "--ready-fd", str(ready_w)], pass_fds=[ready_w], timeout=20, check=False)
        self.assertEqual(done.returncode, 0)
        os.close(ready_w)

    def test_other_users_are_turned_away(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to become another user")
        name = "@farpaged-test-%d" % os.getpid()
        node = self.start(args=["--private", "--listen", "unix:" + name, "--pool-size", "1M"],
                          preexec=lambda: os.setuid(65534))
        node.session().info()
        pid = os.fork()
        if pid == 0:
            os.setuid(65533)
            try:
                node.session()
            except (EOFError, ConnectionError):
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        node.await_log("serves one user only")


if __name__ == "__main__":
    main()
