"""farpaged and peers that do not keep to the protocol: each loses its own connection, the others
notice nothing."""
import os
import random
import select
import socket
import struct
import unittest

from farpaged import (AUTH, BOTH, CHALLENGE, CONTROL, DATA, DENIED, DRAIN, ERROR, HEADER, HELLO, INFO, LEASE, LINK, MALFORMED,
                      MEMFD, PING, READ, RELEASE, STATUS, VERSION, VERSION_GAP, WRITE, WRITTEN, DEADLINE_S, Connection, Farpaged,
                      Refused, frame, main, table)

SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))


def hello(**changes):
    fields = {"min": 2, "max": 2, "purpose": CONTROL, "reserved": 0, "features": 0, "session": 0, "token": bytes(16),
              "nonce": bytes(32), "name": b"frames", **changes}
    return struct.pack("<BBBBIQ16s32s64s", *fields.values())


class Frames(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"SEED={SEED}", flush=True)
        cls.node = Farpaged(BOTH + "limits: { handshake_timeout: 1s }\n")
        cls.addClassCleanup(cls.node.__exit__)
        cls.good = cls.node.session(cls.node.urls[1])
        cls.good.lease(1 << 20)
        cls.good_link = cls.good.link()
        cls.good_link.write([(1, 4096, 0)], b"g" * 4096)

    def tearDown(self):
        self.assertEqual(self.good_link.read((1, 4096, 0)), b"g" * 4096)
        self.assertIsNone(self.node.process.poll())

    def urls(self):
        for url in self.node.urls:
            with self.subTest(url):
                yield url

    def status_of(self, sock):
        """The status of the ERROR that ends the connection."""
        data = b""
        while len(data) < HEADER.size:
            piece = sock.recv(4096)
            if not piece:
                self.fail(f"closed after {data}")
            data += piece
        _, _, kind, _, _, status, _ = HEADER.unpack_from(data)
        self.assertEqual(kind, ERROR)
        self.assertEqual(sock.recv(1), b"")
        return status

    def test_other_versions(self):
        """The client learns which side is older, if it speaks a version in which an ERROR can say
        it."""
        for url in self.urls():
            for newest, told in ((1, None), (3, ("version", VERSION, 3, 0))):
                with self.subTest(newest), self.assertRaises(Refused) as refused:
                    self.node.session(url, versions=(newest, newest))
                self.assertEqual((refused.exception.status, refused.exception.refusal), (VERSION_GAP, told))
        self.node.await_log("speaks version 2 of the protocol, the client version ")

    def test_before_hello(self):
        for url in self.urls():
            for data, expected in ((b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", MALFORMED), (bytes(24), MALFORMED),
                                   (frame(HELLO, hello(), version=2), VERSION_GAP),
                                   (frame(HELLO, hello(min=3, max=9)), VERSION_GAP),
                                   (frame(HELLO, hello(min=2, max=1)), MALFORMED),
                                   (frame(HELLO, hello(purpose=4)), MALFORMED),
                                   (frame(HELLO, hello(reserved=1)), MALFORMED),
                                   (frame(HELLO, hello(name=b'"')), MALFORMED),
                                   (frame(HELLO, hello(), magic=1), MALFORMED), (frame(HELLO, hello(), flags=1), MALFORMED),
                                   (frame(HELLO, hello(), status=1), MALFORMED),
                                   (frame(HELLO, hello()[1:]), MALFORMED), (frame(HELLO, hello(), length=1 << 31), MALFORMED),
                                   (frame(0x30), MALFORMED), (frame(CHALLENGE, bytes(40)), MALFORMED),
                                   (frame(AUTH, bytes(32)), MALFORMED), (frame(PING), MALFORMED),
                                   (frame(HELLO, hello()) + frame(HELLO, hello()), None)):
                with self.subTest(data[:32]), self.node.connect(url) as sock:
                    sock.sendall(data)
                    if expected is None:
                        sock.recv(64)
                        expected = MALFORMED
                    self.assertEqual(self.status_of(sock), expected)

    def test_after_welcome(self):
        io = table([(1, 4096, 0)])
        for url in self.urls():
            for purpose, data in ((CONTROL, frame(READ, io)), (CONTROL, frame(WRITE, io + bytes(4096))),
                                  (CONTROL, frame(HELLO, hello())), (CONTROL, frame(AUTH, bytes(32))),
                                  (CONTROL, frame(LEASE, struct.pack("<QII", 4097, 0, 0))),
                                  (CONTROL, frame(LEASE, struct.pack("<QII", 0, 0, 0))),
                                  (CONTROL, frame(LEASE, struct.pack("<QII", 1 << 60, 0, 0))),
                                  (CONTROL, frame(LEASE, struct.pack("<QII", 4096, 1, 0))),
                                  (CONTROL, frame(RELEASE, struct.pack("<II", 0, 0))),
                                  (CONTROL, frame(INFO, b"x")), (CONTROL, frame(DATA, b"x")),
                                  (LINK, frame(INFO)), (LINK, frame(STATUS)), (LINK, frame(DRAIN)),
                                  (LINK, frame(LEASE, struct.pack("<QII", 4096, 0, 0))),
                                  (LINK, frame(READ, struct.pack("<II", 0, 0) + bytes(16))),
                                  (LINK, frame(READ, struct.pack("<II", 65, 0) + bytes(16))),
                                  (LINK, frame(READ, table([(1, 65537, 0)]))), (LINK, frame(READ, table([(1, 0, 0)]))),
                                  (LINK, frame(READ, table([(1, 1, (1 << 64) - 1)]))),
                                  (LINK, frame(READ, io + b"x")), (LINK, frame(WRITE, io + bytes(4095))),
                                  (LINK, frame(WRITE, io + bytes(4097))),
                                  (LINK, frame(WRITE, io, length=0xffffffff))):
                with self.subTest(data[:40]):
                    session = self.node.session(url)
                    session.lease(1 << 20)
                    peer = session if purpose == CONTROL else session.link()
                    peer.send(data)
                    self.assertEqual(self.status_of(peer.sock), MALFORMED)
                    peer.close()
                    session.close()

    def test_a_bad_link_leaves_its_session_alone(self):
        session = self.node.session()
        session.lease(1 << 20)
        bad, good = session.link(), session.link()
        bad.send(b"x" * 64)
        self.assertEqual(self.status_of(bad.sock), MALFORMED)
        self.assertEqual(good.read((1, 10, 0)), bytes(10))
        session.close()

    def test_out_of_bounds(self):
        session = self.node.session()
        lease_id, size, _ = session.lease(1 << 20)
        link = session.link()
        for segment in ((lease_id, 1, size), (lease_id, 4096, size - 4095), (lease_id, 2, size - 1), (lease_id + 1, 1, 0),
                        (65535, 1, 0), (lease_id, 65536, 1 << 46)):
            with self.subTest(segment):
                with self.assertRaises(Refused) as refused:
                    link.read((lease_id, 4096, 0), segment)
                self.assertEqual(refused.exception.status, DENIED)
                with self.assertRaises(Refused) as refused:
                    link.write([(lease_id, 4096, 0), segment], b"x" * (4096 + segment[1]))
                self.assertEqual(refused.exception.status, DENIED)
        self.assertEqual(link.read((lease_id, 4096, 0)), bytes(4096), "nothing of a refused request is done")
        session.close()

    def test_a_foreign_lease_does_not_exist(self):
        session = self.node.session()
        link = session.link()
        with self.assertRaises(Refused) as refused:
            link.read((1, 4096, 0))
        self.assertEqual(refused.exception.status, DENIED)
        session.close()

    def test_wrong_token(self):
        for session_id, token in ((self.good.session_id, bytes(16)), (1 << 40, self.good.token)):
            with self.assertRaises(Refused) as refused:
                Connection(self.node.connect(), LINK, session_id, token)
            self.assertEqual(refused.exception.status, DENIED)

    def test_random_bytes(self):
        rng = random.Random(SEED)
        for url in self.urls():
            for _ in range(50):
                with self.node.connect(url) as sock:
                    try:
                        sock.sendall(rng.randbytes(rng.randrange(1, 4096)))
                        sock.shutdown(socket.SHUT_WR)
                        while sock.recv(4096):
                            pass
                    except ConnectionError:
                        pass

    def test_mutated_frames(self):
        rng = random.Random(SEED)
        session = self.node.session()
        lease_id, _, _ = session.lease(1 << 20)
        for _ in range(300):
            link = session.link()
            data = bytearray(frame(READ, table([(lease_id, 64, 0)])) + frame(WRITE, table([(lease_id, 64, 64)]) + bytes(64)))
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            link.send(bytes(data))
            link.sock.shutdown(socket.SHUT_WR)
            try:
                while link.sock.recv(65536):
                    pass
            except ConnectionError:
                pass
            link.close()
        session.close()

    def test_truncated(self):
        session = self.node.session()
        lease_id, _, _ = session.lease(1 << 20)
        whole = frame(WRITE, table([(lease_id, 4096, 0), (lease_id, 100, 8192)]) + b"w" * 4196)
        for n in (1, 23, 24, 31, 32, 55, 56, 64, 65, 4000, len(whole) - 1):
            link = session.link()
            link.send(whole[:n])
            link.sock.shutdown(socket.SHUT_WR)
            self.assertEqual(link.sock.recv(1), b"")
            link.close()
        session.close()

    def test_byte_by_byte(self):
        for url in self.urls():
            session = self.node.session(url)
            lease_id, _, _ = session.lease(1 << 20)
            link = session.link()
            data = b"".join(frame(WRITE, table([(lease_id, 7, 3), (lease_id, 2, 0)]) + b"abcdefgXY", tag=t) +
                            frame(READ, table([(lease_id, 10, 0)]), tag=t + 1) for t in range(1, 9, 2))
            for i in range(len(data)):
                link.send(data[i:i + 1])
            for tag in range(1, 9, 2):
                self.assertEqual(link.answer(WRITTEN, tag), b"")
                self.assertEqual(link.answer(DATA, tag + 1), b"XY\0abcdefg")
            session.close()

    def test_handshake_time_limit(self):
        socks = [self.node.connect() for _ in range(3)]
        for sock, data in zip(socks, (b"", frame(HELLO, hello())[:30], frame(HELLO, hello()))):
            sock.sendall(data)
        for sock in socks:
            while sock.recv(4096):
                pass
            sock.close()

    def test_a_refused_peer_must_go(self):
        with self.node.connect() as sock:
            sock.sendall(bytes(24))
            with self.assertRaises(ConnectionError):
                while True:
                    sock.sendall(bytes(65536))

    def test_pipelined_beyond_the_limit(self):
        session = self.node.session(self.node.urls[1])
        lease_id, _, _ = session.lease(1 << 20)
        link = session.link()
        n = 3 * link.max_outstanding
        for tag in range(n):
            link.send(frame(READ, table([(lease_id, 100, tag)]), tag))
        for tag in range(n):
            self.assertEqual(link.answer(DATA, tag), bytes(100))
        for _ in range(40):
            session.send(frame(STATUS, tag=1))
        for _ in range(40):
            session.answer(STATUS + 1, 1)
        session.close()

    def test_slow_reader(self):
        """It asks for a lot and reads nothing: its requests wait in its own socket, memory stays
        bounded."""
        session = self.node.session(self.node.urls[1])
        lease_id, _, _ = session.lease(4 << 20)
        link = session.link()
        link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        link.sock.setblocking(False)
        request = frame(READ, table([(lease_id, 65536, i << 16) for i in range(64)]))
        sent = 0
        try:
            while sent < 64 << 20:
                sent += link.sock.send((request * 64)[sent % len(request):])
                self.assertEqual(self.good_link.read((1, 4096, 0)), b"g" * 4096)
        except BlockingIOError:
            pass
        self.assertLess(sent, 64 << 20)
        self.assertLess(self.node.anonymous_bytes(), 128 << 20)
        link.sock.setblocking(True)
        for _ in range(sent // len(request)):
            link.receive(HEADER.size + (4 << 20))
        session.close()

    def half_closed_link(self, session, lease_id):
        """It asks for 1 MiB, and sends nothing more. Its receive buffer holds little of that."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(DEADLINE_S)
        host, port = self.node.urls[1].split("//")[1].rsplit(":", 1)
        sock.connect((host, int(port)))
        link = Connection(sock, LINK, session.session_id, session.token)
        link.send(frame(READ, table([(lease_id, 65536, i << 16) for i in range(16)])))
        sock.shutdown(socket.SHUT_WR)
        return link

    def test_half_closed(self):
        """Who sends nothing more still gets all answers."""
        session = self.node.session(self.node.urls[1])
        lease_id, _, _ = session.lease(1 << 20)
        with self.half_closed_link(session, lease_id) as link:
            self.assertEqual(len(link.answer(DATA)), 1 << 20)
            self.assertEqual(link.sock.recv(1), b"")
        session.close()

    def test_half_closed_and_silent(self):
        """Who neither sends nor reads keeps its place for a while only."""
        session = self.node.session(self.node.urls[1])
        lease_id, _, _ = session.lease(1 << 20)
        with self.half_closed_link(session, lease_id) as link:
            poller = select.poll()
            poller.register(link.sock, 0)
            self.assertTrue(poller.poll(DEADLINE_S * 1000), "never reset")
            with self.assertRaises(ConnectionError):
                link.answer(DATA)
        session.close()

    def test_lease_and_what_follows_it(self):
        """Answers of control calls come in the order asked, though a lease takes the node a
        while."""
        session = self.node.session(features=0)
        session.send(b"".join(frame(LEASE, struct.pack("<QII", 1 << 20, 0, 0), tag=t) + frame(INFO, tag=t + 1)
                              for t in range(1, 17, 2)))
        for tag in range(1, 17, 2):
            session.answer(LEASE + 1, tag)
            leased = struct.unpack_from("<QQQQ", session.answer(INFO + 1, tag + 1))[2]
            self.assertEqual(leased, (tag + 1) // 2 << 20)
        session.close()

    def test_unix_client_without_memfd_is_served(self):
        session = self.node.session(self.node.urls[0])
        self.assertEqual(session.features, 0)
        self.assertIsNone(session.lease(1 << 20)[2])
        session.close()
        self.assertEqual(self.node.session(self.node.urls[1], features=MEMFD).features, 0)


class Log(unittest.TestCase):
    """What a peer did wrong is said once, with its address; a storm of it is not."""

    def setUp(self):
        self.node = Farpaged(BOTH + "limits: { handshake_timeout: 100ms }\n")
        self.addCleanup(self.node.__exit__)

    def test_reasons(self):
        url = self.node.urls[1]
        with self.node.connect(url) as sock:
            port = sock.getsockname()[1]
            sock.sendall(bytes(24))
            self.node.await_log(f"127.0.0.1:{port}: it sent a frame that is not of the protocol")
        with self.node.connect(url):
            self.node.await_log("it did not finish the handshake in time")
        with self.node.connect(url) as sock:
            sock.sendall(frame(HELLO, hello())[:50])
        self.node.await_log("it went away in the middle of a frame")

    def test_storm(self):
        for _ in range(200):
            with self.node.connect() as sock:
                sock.sendall(bytes(24))
                sock.recv(100)
        session = self.node.session()
        self.assertEqual(session.status()["counters"]["refused"], 200)
        self.assertLess(self.node.log().count("not of the protocol"), 100)


if __name__ == "__main__":
    main()
