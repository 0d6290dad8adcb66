"""The client that an attack must not harm: it verifies every byte that it reads and measures how
long each call takes.

It runs in a process of its own, so that what the attackers do in theirs costs it nothing but the
node's time.
"""
import mmap
import multiprocessing
import os
import random
import socket
import struct
import time

from farpaged import INFO, MEMFD, PING, RESUME, Connection, Refused, Session

PAGE = 4096
LEASE_PAGES = 512
SMALL_LEASE = 16 * PAGE
PACE_S = 0.001  # between calls: a stall of the node then costs as many samples as it lasts
CALL_DEADLINE_S = 30
RETRY_S = 0.01


def content(page, version):
    return struct.pack("<QQ", page, version) * (PAGE // 16)


class WellBehaved:
    """One session and its link. Over shm and rdma it reaches its pages without the node, which it
    asks only control calls."""

    def __init__(self, node, url, secret, seed):
        self.node, self.url, self.secret = node, url, secret
        self.random = random.Random(seed)
        self.shm, self.rdma = url.startswith("shm:"), url.startswith("rdma:")
        self.session = Session(node, url, secret=secret, features=MEMFD if self.shm else 0)
        self.session.sock.settimeout(CALL_DEADLINE_S)
        self.lease_id, _, fd = self.session.lease(LEASE_PAGES * PAGE)
        self.versions = [0] * LEASE_PAGES
        self.evicted = self.full = 0
        if self.shm:
            self.memory = mmap.mmap(fd, LEASE_PAGES * PAGE)
            os.close(fd)
        self.open_link()
        for page in range(LEASE_PAGES):
            self.write(page)

    def open_link(self):
        if not self.shm:
            self.link = self.session.link()
            if not self.rdma:
                self.link.sock.settimeout(CALL_DEADLINE_S)

    def write(self, page):
        self.versions[page] += 1
        data = content(page, self.versions[page])
        if self.shm:
            self.memory[page * PAGE:(page + 1) * PAGE] = data
        else:
            self.link.write([(self.lease_id, PAGE, page * PAGE)], data)

    def read(self, page):
        if self.shm:
            self.session.ask(PING, b"p" * 64)
            return self.memory[page * PAGE:(page + 1) * PAGE]
        return self.link.read((self.lease_id, PAGE, page * PAGE))

    def verify(self, page):
        if self.read(page) != content(page, self.versions[page]):
            raise AssertionError(f"page {page} has other bytes than were written")

    def lease_and_release(self):
        try:
            lease_id, _, fd = self.session.lease(SMALL_LEASE)
        except Refused as refused:
            if refused.refusal[0] != "host_memory":  # nobody has a right to that
                raise
            self.full += 1
            return
        if fd is not None:
            os.close(fd)
        self.session.release(lease_id)

    def resume(self):
        """Breaks its connections as a network does, and comes back within the grace period."""
        until = time.monotonic() + self.session.grace_ms / 1000
        for broken in (self.link, self.session):
            if not self.rdma:
                broken.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            broken.close()
        while not self.try_resume(time.monotonic() > until):
            time.sleep(RETRY_S)

    def try_resume(self, is_last):
        session = Session.__new__(Session)
        session.node, session.url, session.secret, session.keys = self.node, self.url, self.secret, {}
        try:
            Connection.__init__(session, self.node.connect(self.url), RESUME, self.session.session_id,
                                self.session.token, self.secret, self.session.features)
            session.sock.settimeout(CALL_DEADLINE_S)
            self.session = session
            session.attach(self.lease_id)
            self.open_link()
        except (ConnectionError, EOFError):
            if is_last:
                raise
            return False
        return True

    def visit(self):
        """Opens a session more, as another program of the same client does."""
        until = time.monotonic() + CALL_DEADLINE_S
        while True:
            try:
                Session(self.node, self.url, secret=self.secret).close()
                return
            except (ConnectionError, EOFError):
                self.evicted += 1
                if time.monotonic() > until:
                    raise

    def run(self, seconds, resumes):
        """Latencies in seconds by kind of call."""
        took = {"page": [], "ping": [], "lease": [], "visit": [], "resume": []}
        end = time.monotonic() + seconds
        count = 0
        while time.monotonic() < end:
            count += 1
            page = self.random.randrange(LEASE_PAGES)
            kind, call = ("page", lambda: self.write(page)) if count % 8 == 0 else ("page", lambda: self.verify(page))
            if self.rdma and count % 4 == 1:  # it asks the node for nothing else as often
                kind, call = "ping", lambda: self.session.ask(PING, b"p" * 64)
            if count % 16 == 0 or self.rdma and count % 8 == 3:
                kind, call = "lease", self.lease_and_release
            if resumes and count % 32 == 0:
                kind, call = ("visit", self.visit) if self.shm or count % 64 else ("resume", self.resume)
            start = time.monotonic()
            call()
            took[kind].append(time.monotonic() - start)
            time.sleep(PACE_S)
        if self.evicted:
            print(f"{self.evicted} times its handshake was cut short", flush=True)
        if self.full:
            print(f"{self.full} times the host had no memory left for its lease", flush=True)
        return took

    def tell_token(self):
        """Its session's id and token."""
        return self.session.session_id, self.session.token

    def verify_all(self):
        for page in range(LEASE_PAGES):
            self.verify(page)
        self.session.ask(INFO)


class WellBehavedProcess:
    """The same in a child process. Whatever it meets there is raised here."""

    def __init__(self, *args):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=self.serve, args=(theirs, args), daemon=True)
        self.process.start()
        theirs.close()
        self.answer()

    @staticmethod
    def serve(pipe, args):
        try:
            client = WellBehaved(*args)
            pipe.send(None)
            while (call := pipe.recv()) is not None:
                pipe.send(getattr(client, call[0])(*call[1:]))
        except Exception as error:  # pylint: disable=broad-except
            pipe.send(error)

    def answer(self):
        result = self.pipe.recv()
        if isinstance(result, Exception):
            raise AssertionError(f"the well-behaved client: {result!r}") from result
        return result

    def call(self, *call):
        self.pipe.send(call)
        return self.answer()

    def end(self):
        self.pipe.send(None)
        self.process.join()
