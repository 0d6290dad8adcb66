"""Who may talk to a farpaged that has a secret."""
import hashlib
import os
import signal
import struct
import unittest

from farpaged import (BOTH, CONTROL, DENIED, DRAIN, DRAINING, GONE, LINK, NOT_PERMITTED, OVER_QUOTA, RESUME, STATUS, UNDRAIN,
                      Connection, Farpaged, Refused, auth, copies_in_memory, main, secret_file)

SECRET = "0123456789abcdef0123456789abcdef"


class Auth(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = Farpaged(BOTH + auth(SECRET))
        cls.addClassCleanup(cls.node.__exit__)

    def urls(self):
        for url in self.node.urls:
            with self.subTest(url):
                yield url

    def test_right(self):
        for url in self.urls():
            session = self.node.session(url, secret=SECRET.encode())
            self.assertTrue(session.wants_auth)
            self.assertTrue(session.node_is_right)
            session.lease(1 << 20)
            link = session.link()
            self.assertTrue(link.node_is_right)
            self.assertEqual(link.read((1, 4, 0)), bytes(4))
            session.ask(DRAIN) if url == self.node.urls[-1] else None
            session.close()

    def test_wrong(self):
        for url in self.urls():
            for secret in (None, b"wrong", SECRET.encode()[:-1], SECRET.encode() + b"\n"):
                with self.subTest(secret), self.assertRaises(Refused) as refused:
                    self.node.session(url, secret=secret)
                self.assertEqual(refused.exception.status, DENIED)
        self.node.await_log("knows no secret")
        self.assertNotIn(SECRET, self.node.log())

    def test_a_link_needs_it_too(self):
        session = self.node.session(secret=SECRET.encode())
        with self.assertRaises(Refused) as refused:
            Connection(self.node.connect(), LINK, session.session_id, session.token)
        self.assertEqual(refused.exception.status, DENIED)
        session.info()

    def test_proof_of_another_handshake(self):
        """A node that takes the same nonces twice would accept a replay: every challenge must be
        new."""
        challenges = set()
        for _ in range(20):
            with self.node.connect() as sock:
                connection = Connection.__new__(Connection)
                connection.sock = sock
                connection.send(self.hello())
                challenges.add(connection.answer(3)[:32])
        self.assertEqual(len(challenges), 20)

    def hello(self):
        from farpaged import HELLO, frame
        return frame(HELLO, bytes([2, 2, CONTROL]) + bytes(125))

    def test_client_with_a_secret_learns_that_the_node_has_none(self):
        with Farpaged(BOTH) as open_node:
            session = open_node.session(secret=SECRET.encode())
            self.assertFalse(session.wants_auth)
            self.assertFalse(session.node_is_right)


MIB = 1 << 20
ALICE, BOB, EYE, ROOT, CAROL = (name + "-" + hashlib.sha256(name.encode()).hexdigest()
                                for name in ("alice", "bobby", "eyeys", "rooty", "carol"))


def named(*entries):
    return BOTH + "auth:\n  secrets:\n" + "".join(
        f"    - {{ name: {text.split('-')[0]}, file: {secret_file(text)}{more} }}\n" for text, more in entries)


ALL = ((ALICE, ", quota: 8M"), (BOB, ""), (EYE, ", rights: status"), (ROOT, ", rights: [admin, status]"))


class Named(unittest.TestCase):
    """Several secrets, each with rights and a quota, that change while the node runs."""

    def setUp(self):
        self.node = Farpaged(named(*ALL))
        self.addCleanup(self.node.__exit__)

    def open(self, secret, **options):
        return self.node.session(self.node.urls[1], secret=secret.encode(), **options)

    def refused(self, status, call, *args, **options):
        with self.assertRaises(Refused) as refused:
            call(*args, **options)
        self.assertEqual(refused.exception.status, status)

    def reload(self, config, expected="read again"):
        self.node.write_config(config)
        self.node.signal(signal.SIGHUP)
        self.node.await_log(expected)

    def test_a_client_is_the_name_of_its_secret(self):
        alice, shm, eye = self.open(ALICE), self.node.session(secret=ALICE.encode()), self.open(EYE)
        alice.lease(MIB)
        shm.lease(MIB)
        self.assertTrue(alice.node_is_right)
        clients = {c["name"]: c for c in eye.status()["clients"]}
        self.assertEqual(set(clients), {"alice", "eyeys"})
        self.assertEqual([clients["alice"][k] for k in ("sessions", "leased_bytes", "quota_bytes")], [2, 2 * MIB, 8 * MIB])
        self.assertEqual(clients["eyeys"]["quota_bytes"], 0)

    def test_rights(self):
        alice, eye, root = self.open(ALICE), self.open(EYE), self.open(ROOT)
        alice.lease(MIB)
        for session, what in ((alice, STATUS), (alice, DRAIN), (alice, UNDRAIN), (eye, DRAIN), (eye, UNDRAIN)):
            self.refused(NOT_PERMITTED, session.ask, what)
        for session in eye, root:
            session.status()
            self.refused(NOT_PERMITTED, session.lease, 4096)
            self.refused(NOT_PERMITTED, session.adopt, alice)
        self.reload(named(*ALL, (CAROL, ", rights: []")))
        for what in STATUS, DRAIN:
            self.refused(NOT_PERMITTED, self.open(CAROL).ask, what)
        self.refused(NOT_PERMITTED, self.open(CAROL).lease, 4096)
        root.ask(DRAIN)
        self.refused(DRAINING, alice.lease, 4096)
        self.assertEqual(eye.status()["state"], "draining")
        root.ask(UNDRAIN)
        alice.lease(4096)
        self.assertEqual(eye.status()["state"], "serving")

    def test_quotas(self):
        alice, bob = self.open(ALICE), self.open(BOB)
        alice.lease(8 * MIB)
        self.refused(OVER_QUOTA, self.open(ALICE).lease, 4096)
        self.assertEqual((alice.info()[3], bob.info()[3]), (8 * MIB, 0))
        bob.lease(48 * MIB)

    def test_a_token_is_no_use_to_another_client(self):
        alice, bob = self.open(ALICE), self.open(BOB)
        alice.lease(MIB)

        def connect(purpose, secret):
            return Connection(self.node.connect(self.node.urls[1]), purpose, alice.session_id, alice.token, secret.encode())

        self.refused(DENIED, connect, LINK, BOB)
        self.refused(GONE, connect, RESUME, BOB)
        self.refused(GONE, bob.adopt, alice)
        connect(LINK, ALICE).read((1, 4, 0))
        connect(RESUME, ALICE).ask(0x1a, struct.pack("<II", 1, 0))

    def test_change(self):
        alice, bob = self.open(ALICE), self.open(BOB)
        alice.lease(MIB)
        link = alice.link()
        self.reload(named((BOB, ", rights: [lease, status], quota: 1M"), (CAROL, "")))
        new = self.open(CAROL)
        new.lease(2 * MIB)
        bob.lease(MIB)
        self.refused(OVER_QUOTA, bob.lease, 4096)
        self.assertEqual(link.read((1, 4, 0)), bytes(4), "what is leased stays usable")
        self.refused(NOT_PERMITTED, alice.lease, 4096)
        self.refused(DENIED, self.open, ALICE)
        self.refused(DENIED, alice.link)
        alice.close()
        bob.await_status(lambda s: {c["name"]: c["leased_bytes"] for c in s["clients"]} == {"bobby": MIB, "carol": 2 * MIB})

    def test_one_copy_is_in_memory(self):
        pid = self.node.process.pid
        sessions = [self.open(secret) for secret in (ALICE, BOB, ROOT)]
        sessions.append(sessions[0].link())
        self.assertEqual([copies_in_memory(pid, secret) for secret, _ in ALL], [1] * 4)
        self.reload(named((BOB, "")))
        self.assertEqual([copies_in_memory(pid, secret) for secret, _ in ALL], [0, 1, 0, 0])

    def test_a_broken_change_changes_nothing(self):
        self.reload(named((BOB, ", rights: [root]")), "no right is called 'root'")
        self.reload(named((BOB, ""), (BOB, "")), "with the name 'bobby'")
        self.reload(BOTH, "a restart of the node: auth")
        self.open(ALICE).lease(MIB)
        self.refused(DENIED, self.node.session)


if __name__ == "__main__":
    main()
