"""Who a client is, and what he may have in all his sessions together."""
import contextlib
import ctypes
import os
import resource
import socket
import struct
import subprocess
import unittest

from farpaged import (AUTH, BOTH, BUSY, CHALLENGE, CONTROL, FULL, HELLO, LEASE, LINK, MEMFD, OVER_QUOTA, READ, RESUME, WELCOME,
                      Connection, NodeCase, Refused, frame, main, secret_file, table)

MIB = 1 << 20
QUOTA = BOTH + "limits: { client_quota: 8M }\n"


def clients(session):
    return {c["name"]: (c["sessions"], c["leased_bytes"]) for c in session.status()["clients"]}


class Identity(NodeCase):
    def test_uid_and_address(self):
        node = self.start(BOTH)
        shm, tcp = node.session(node.urls[0]), node.session(node.urls[1])
        more = node.session(node.urls[1])
        shm.lease(MIB)
        more.lease(2 * MIB)
        user = f"uid {os.geteuid()}"
        self.assertEqual(clients(tcp), {user: (1, MIB), "loopback": (2, 2 * MIB)})
        self.assertEqual({s["id"]: s["client"] for s in tcp.status()["sessions"]},
                         {shm.session_id: user, tcp.session_id: "loopback", more.session_id: "loopback"})
        shm.close()
        tcp.await_status(lambda s: [c["name"] for c in s["clients"]] == ["loopback"])

    def test_loopback_is_one(self):
        node = self.start(BOTH.replace("]", ', "tcp://[::1]:0" ]', 1))
        sessions = [node.session(node.urls[2])]
        for node.source in ("127.0.0.2", 0), ("127.1.2.3", 0), None:
            sessions.append(node.session(node.urls[1]))
        self.assertEqual(clients(sessions[0]), {"loopback": (4, 0)})

    @unittest.skipUnless(os.geteuid() == 0, "only root makes a network of its own")
    def test_loopback_from_other_addresses(self):
        """Whatever address of the machine a program sends from, it is on the machine."""
        net = ["unshare", "--net", "sh", "-c", "ip link set lo up && ip addr add 192.0.2.2/32 dev lo && exec \"$@\"", "sh"]
        if subprocess.run([*net, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
            self.skipTest("no network can be made here")
        node = self.start(BOTH, prefix=net)
        with open(f"/proc/{node.process.pid}/ns/net", "rb") as there, open("/proc/self/ns/net", "rb") as here:
            setns = ctypes.CDLL(None).setns
            back = os.dup(here.fileno())
            self.addCleanup(os.close, back)
            self.addCleanup(setns, back, 0)
            self.assertEqual(setns(there.fileno(), 0), 0)
        node.source = "192.0.2.2", 0
        first = node.session(node.urls[1])
        node.source = None
        second = node.session(node.urls[1])
        self.assertEqual(clients(first), {"loopback": (2, 0)})
        self.assertIn("192.0.2.2:", {s["id"]: s["peer"] for s in second.status()["sessions"]}[first.session_id])


class Overheard(NodeCase):
    def test_a_token_without_the_secret_takes_no_places(self):
        """Who has overheard a session's token says LINK again and again, and never proves the
        secret. The client still gets its links."""
        secret = "a secret of the tests"
        node = self.start(BOTH + f"limits: {{ max_connections: 32, handshake_timeout: 60s }}\n"
                          f"auth: {{ secret_file: {secret_file(secret)} }}\n")
        session = node.session(node.urls[1], secret=secret.encode())
        hello = frame(HELLO, struct.pack("<BBBBIQ16s32s64s", 2, 2, LINK, 0, 0, session.session_id, session.token,
                                         bytes(32), b"eavesdropper"))
        silent = [node.connect(node.urls[1]) for _ in range(40)]
        for sock in silent:
            with contextlib.suppress(ConnectionError):
                sock.send(hello)
        session.await_status(lambda s: s["counters"]["connections"] >= 41 and s["connections"] <= 1 + 2 + 8)
        links = [session.link() for _ in range(20)]
        self.assertEqual(session.status()["sessions"][0]["links"], 20)
        for sock in silent + links:
            sock.close()


class Quota(NodeCase):
    def test_sessions_do_not_multiply_it(self):
        node = self.start(QUOTA)
        mine = [node.session(node.urls[1]) for _ in range(8)]
        for session in mine[:4]:
            session.lease(2 * MIB)
        for session in mine:
            self.refused(OVER_QUOTA, session.lease, 4096)
        other = node.session(node.urls[0])
        other.lease(8 * MIB)
        mine[0].close()
        other.await_status(lambda s: any(c["leased_bytes"] == 6 * MIB for c in s["clients"]))
        mine[7].lease(2 * MIB)

    def test_memory_that_unread_answers_hold_counts(self):
        """A READ that nobody takes the answer of holds its lease's memory; RELEASE does not give
        that back."""
        node = self.start(QUOTA)
        session = node.session(node.urls[1])
        link = session.link()
        lease, _, _ = session.lease(8 * MIB)
        ask = table([(lease, 65536, 0)] * 64)
        for tag in range(8):
            link.send(frame(READ, ask, tag=tag))
        session.await_status(lambda s: s["counters"]["reads"] == 8)
        session.release(lease)
        self.assertEqual(session.status()["pools"][0]["used_bytes"], 8 * MIB)
        self.assertEqual(clients(session), {"loopback": (1, 8 * MIB)})
        self.refused(OVER_QUOTA, session.lease, 4096)
        link.close()
        session.await_status(lambda s: s["clients"][0]["leased_bytes"] == 0)
        session.lease(8 * MIB)

    def test_adopted_memory_counts_once_and_till_the_last_has_left(self):
        node = self.start(QUOTA)
        parent, child = node.session(node.urls[1]), node.session(node.urls[1])
        parent.lease(5 * MIB)
        child.adopt(parent)
        child.lease(3 * MIB)
        self.refused(OVER_QUOTA, child.lease, 4096)
        parent.close()
        child.await_status(lambda s: len(s["sessions"]) == 1)
        self.assertEqual(clients(child), {"loopback": (1, 8 * MIB)})
        child.release(1)
        child.lease(5 * MIB)


class Strangers(NodeCase):
    """Eight may be there at once. A newcomer evicts the oldest of the origin that has most."""

    CONFIG = BOTH + "limits: { max_connections: 32, handshake_timeout: 60s, grace: 30s }\n"

    def setUp(self):
        self.node = self.start(self.CONFIG)
        self.unix, self.tcp = self.node.urls
        self.watcher = self.node.session(self.unix)

    def flood(self, n):
        """Strangers from loopback, whose places are taken when this returns."""
        before = self.watcher.status()["counters"]["connections"]
        flood = [self.node.connect(self.tcp) for _ in range(n)]
        self.watcher.await_status(lambda s: s["counters"]["connections"] == before + n and s["strangers"] == 8)
        return flood

    def is_open(self, sock):
        sock.setblocking(False)
        try:
            with contextlib.suppress(ConnectionError):
                return sock.recv(1) != b""
            return False
        except BlockingIOError:
            return True

    def say_hello(self, url, purpose, session_id=0, token=bytes(16)):
        connection = Connection.__new__(Connection)
        connection.sock = self.node.connect(url)
        connection.send(frame(HELLO, struct.pack("<BBBBIQ16s32s64s", 2, 2, purpose, 0, 0, session_id, token, bytes(32), b"test")))
        connection.answer(CHALLENGE)
        return connection

    def test_a_flood_evicts_its_own(self):
        other = self.node.connect(self.unix)
        flood = self.flood(100)
        self.assertEqual([self.is_open(sock) for sock in flood], [False] * 93 + [True] * 7)
        self.assertTrue(self.is_open(other))
        self.assertEqual(self.watcher.status()["counters"]["evicted"], 93)
        self.node.await_log("stranger: 127.0.0.1")
        other.setblocking(True)
        Connection(other, CONTROL)
        for _ in range(20):
            self.node.session(self.unix).close()
            self.node.session(self.tcp).close()

    def test_their_lines_in_the_log_are_their_own(self):
        client = self.node.session(self.tcp)
        for _ in range(100):
            sock = self.node.connect(self.tcp)
            sock.sendall(bytes(32))
            sock.recv(4096)
        client.send(bytes(32))
        self.node.await_log("peer: 127.0.0.1")
        self.node.await_log("stranger: ")

    def test_a_session_comes_back(self):
        session = self.node.session(self.tcp)
        lease_id, _, _ = session.lease(MIB)
        flood = self.flood(50)
        session.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        session.close()
        again = Connection(self.node.connect(self.tcp), RESUME, session.session_id, session.token)
        link = Connection(self.node.connect(self.tcp), LINK, again.session_id, again.token)
        self.assertEqual(link.read((lease_id, 4096, 0)), bytes(4096))
        del flood

    def test_a_token_makes_no_stranger(self):
        session = self.node.session(self.tcp)
        for purpose in LINK, RESUME:
            known = self.say_hello(self.tcp, purpose, session.session_id, session.token)
            guessed = self.say_hello(self.tcp, purpose, session.session_id, bytes(16))
            unknown = self.say_hello(self.tcp, CONTROL)
            flood = self.flood(50)
            known.send(frame(AUTH, bytes(32)))
            known.answer(WELCOME)
            self.assertFalse(self.is_open(guessed.sock))
            self.assertFalse(self.is_open(unknown.sock))
            del flood


class Shares(NodeCase):
    """No client has more than three quarters of what there is a number of."""

    def take(self, take):
        taken = []
        with contextlib.suppress(Refused):
            while True:
                taken.append(take())
        return taken

    def test_sessions(self):
        node = self.start(BOTH + "limits: { max_sessions: 8 }\n")
        taken = self.take(lambda: node.session(node.urls[1]))
        self.assertEqual(len(taken), 6)
        node.await_log("the client has 6 sessions, as many as one client may have (three quarters of max_sessions)")
        taken += [node.session(node.urls[0]) for _ in range(2)]
        self.refused(BUSY, node.session, node.urls[0])
        self.assertEqual(next(r for r in taken[0].status()["refusals"] if r["cause"] == "max_sessions")["count"], 2)

    def test_connections(self):
        node = self.start(BOTH + "limits: { max_connections: 8 }\n")
        session = node.session(node.urls[1])
        links = self.take(session.link)
        self.assertEqual(len(links), 5)
        node.await_log("the client has 6 connections, as many as one client may have (three quarters of max_connections)")
        others = [node.session(node.urls[0]) for _ in range(2)]
        self.refused(BUSY, others[0].link)
        self.assertEqual(next(r for r in session.status()["refusals"] if r["cause"] == "max_connections")["count"], 2)

    def test_connections_where_descriptors_are_few(self):
        """A quarter of them, whatever max_connections and max_sessions are."""
        for links in False, True:
            with self.subTest(links=links):
                node = self.start(BOTH, preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
                first = node.session(node.urls[1])
                taken = self.take(first.link if links else lambda: node.session(node.urls[1]))  # pylint: disable=cell-var-from-loop
                self.assertEqual(1 + len(taken), 48)
                others = self.take(lambda: node.session(node.urls[0]))  # pylint: disable=cell-var-from-loop
                self.assertEqual(len(others), 16)
                first.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                first.close()
                Connection(node.connect(node.urls[1]), RESUME, first.session_id, first.token)

    SECRETS = ("the secret of one client", "the secret of the other")

    def start_with_64_descriptors(self):
        """Of which 32 may be of memory that clients map, and 16 under way to them."""
        one, other = map(secret_file, self.SECRETS)
        secrets = f"auth: {{ secrets: [ {{ name: one, file: {one} }}, {{ name: other, file: {other} }} ] }}\n"
        node = self.start(BOTH + secrets, preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        return node, lambda i: node.session(secret=self.SECRETS[i].encode(), features=MEMFD)

    def lease(self, session):
        fd = session.lease(MIB)[2]
        self.addCleanup(os.close, fd)

    def test_descriptors_that_are_mapped(self):
        node, session = self.start_with_64_descriptors()
        one, other = session(0), session(1)
        self.assertEqual(len(self.take(lambda: self.lease(one))), 24)
        node.await_log("client one: the client has")
        for _ in range(8):
            self.lease(other)
        self.refused(FULL, other.lease, MIB)

    def test_descriptors_that_are_not_received(self):
        node, session = self.start_with_64_descriptors()
        unread = [session(0) for _ in range(4)]
        for hostile in unread:
            hostile.send(frame(LEASE, struct.pack("<QII", 4096, 0, 0)) * 8)
        node.await_log("client one: the client has")
        self.lease(session(1))


if __name__ == "__main__":
    main()
