"""Who may talk to a farpaged that has a secret."""
import os
import unittest

from farpaged import BOTH, CONTROL, DENIED, DRAIN, LINK, Connection, Farpaged, Refused, main

SECRET = "0123456789abcdef0123456789abcdef"


class Auth(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = Farpaged(BOTH + f"auth: {{ secret: {SECRET} }}\n")
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
        self.node.await_log("does not know the secret")
        self.assertNotIn(SECRET, self.node.log())

    def test_a_link_needs_it_too(self):
        session = self.node.session(secret=SECRET.encode())
        with self.assertRaises(Refused) as refused:
            Connection(self.node.connect(), LINK, session.session_id, session.token)
        self.assertEqual(refused.exception.status, DENIED)
        session.info()

    def test_proof_of_another_handshake(self):
        """A node that takes the same nonces twice would accept a replay: every challenge must be new."""
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
        return frame(HELLO, bytes([1, 1, CONTROL]) + bytes(125))

    def test_client_with_a_secret_learns_that_the_node_has_none(self):
        with Farpaged(BOTH) as open_node:
            session = open_node.session(secret=SECRET.encode())
            self.assertFalse(session.wants_auth)
            self.assertFalse(session.node_is_right)

    def test_secret_file(self):
        with Farpaged() as unused:
            path = os.path.join(unused.dir.name, "secret")
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as f:
                f.write(SECRET + "\n")
            with Farpaged(BOTH + f"auth: {{ secret_file: {path} }}\n") as node:
                node.session(secret=SECRET.encode()).info()


if __name__ == "__main__":
    main()
