"""A farpaged of the test's own and a client that speaks the wire by hand, so that it can also speak
it wrongly.

Environment: FARPAGED is the daemon to test, FARPAGE_TEST_SHARDS how many shards it has. Nothing
here sleeps: it waits for what it expects, with a deadline.
"""
import array
import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import pwd
import select
import signal
import socket
import struct
import subprocess
import tempfile
import unittest

import rdmaclient

DEADLINE_S = 20
# For the user of this test. Without --user, root's check is for the user farpage, if there is one.
CHECK = ["--check"] + (["--user", pwd.getpwuid(0).pw_name] if os.geteuid() == 0 else [])
secrets_dir = tempfile.TemporaryDirectory(prefix="farpaged-test.secrets.")

(ERROR, HELLO, CHALLENGE, AUTH, WELCOME, PING, PONG, BYE, FAREWELL) = range(1, 10)
(LEASE, LEASED, RELEASE, RELEASED, INFO, INFO_REPLY, STATUS, STATUS_REPLY, DRAIN, DRAINED, ATTACH,
 ATTACHED, UNDRAIN, UNDRAINED) = range(0x10, 0x1e)
(READ, DATA, WRITE, WRITTEN, QP, QP_REPLY, ADOPT, ADOPTED) = range(0x20, 0x28)
CONTROL, LINK, RESUME = 1, 2, 3
(MALFORMED, VERSION_GAP, DENIED, FULL, OVER_QUOTA, DRAINING, BUSY, BAD_VALUE, NOT_PERMITTED, BROKEN,
 GONE) = range(1, 12)
MEMFD, KEYS, CM, OPERATOR = 1, 2, 4, 8
VERSION = 2
HEADER = struct.Struct("<IBBHIiQ")
MAGIC = 0x50524146


CAUSES = ["none", "draining", "pools", "host_memory", "quota", "max_leases", "mapped_leases", "unreceived", "locked_memory",
          "max_sessions", "max_connections", "links", "operators", "right", "adopted_leases", "secret", "session",
          "protocol", "version"]
SHARE, FILES = 1, 2


def refusal(payload):
    """cause, limit, used and flags of it; nothing if the ERROR does not say why"""
    if not payload:
        return None
    cause, flags, reserved, limit, used = struct.unpack("<HHIQQ", payload)
    assert reserved == 0
    return CAUSES[cause], limit, used, flags


class Refused(Exception):
    """The node answered ERROR."""

    def __init__(self, status, payload=b""):
        super().__init__(f"status {status}")
        self.status = status
        self.refusal = refusal(payload)


class Farpaged:
    """One daemon; a context manager that ends it."""

    source = None  # the address that this process connects from over TCP
    secret = None  # what its sessions prove, unless they are told another

    def __init__(self, config=None, args=(), preexec=None, prefix=()):
        self.dir = tempfile.TemporaryDirectory(prefix="farpaged-test.")
        self.config_path = os.path.join(self.dir.name, "farpaged.yaml")
        self.socket_path = os.path.join(self.dir.name, "socket")
        self.log_path = os.path.join(self.dir.name, "log")
        if config is not None:
            self.write_config(config)
            args = ["--config", self.config_path, *args]
        ready_r, ready_w = os.pipe()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([*prefix, os.environ["FARPAGED"], *args, "--ready-fd", str(ready_w)],
                                            stderr=log, pass_fds=[ready_w], preexec_fn=preexec)
        os.close(ready_w)
        with os.fdopen(ready_r) as ready:
            select.select([ready], [], [], DEADLINE_S)
            self.urls = ready.readline().split()
        if not self.urls:
            self.wait()

    def write_config(self, config):
        with open(self.config_path, "w", encoding="utf-8") as f:
            f.write(config.replace("SOCKET", self.socket_path))
            if "FARPAGE_TEST_SHARDS" in os.environ and "shards:" not in config:
                f.write(f"\nshards: {os.environ['FARPAGE_TEST_SHARDS']}\n")

    def log(self):
        with open(self.log_path, encoding="utf-8") as f:
            return f.read()

    def await_log(self, text):
        """Waits until the log holds text."""
        for _ in range(DEADLINE_S * 100):
            if text in self.log():
                return
            select.select([], [], [], 0.01)
        raise AssertionError(f"no '{text}' in the log:\n{self.log()}")

    def anonymous_bytes(self):
        """Resident private memory of the daemon."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon"))

    def reserved_bytes(self):
        """Of the memfds that the daemon has open: with anonymous pools, their reserves alone."""
        fds = f"/proc/{self.process.pid}/fd"
        return sum(os.stat(f"{fds}/{fd}").st_blocks * 512 for fd in os.listdir(fds)
                   if os.readlink(f"{fds}/{fd}").startswith("/memfd:farpage"))

    def socket_bytes(self):
        """Memory that the kernel keeps for the daemon's sockets of tcp."""
        fds, pidfd, so_meminfo = f"/proc/{self.process.pid}/fd", os.pidfd_open(self.process.pid), 55
        total = 0
        for fd in os.listdir(fds):
            with contextlib.suppress(OSError, ValueError), socket.socket(fileno=ctypes.CDLL(None).syscall(438, pidfd, int(fd), 0)) as sock:
                if sock.family != socket.AF_UNIX:
                    received, _, _, _, _, queued = struct.unpack_from("<6I", sock.getsockopt(socket.SOL_SOCKET, so_meminfo, 64))
                    total += received + queued
        os.close(pidfd)
        return total

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        return self.process.wait(DEADLINE_S)

    def connect(self, url=None):
        """A byte stream."""
        url = url or self.urls[0]
        if url.startswith("shm:"):
            sock = socket.socket(socket.AF_UNIX)
            path = url[4:]
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", DEADLINE_S, 0))
            sock.connect("\0" + path[1:] if path[0] == "@" else path)  # it waits for its place in the backlog
            sock.settimeout(DEADLINE_S)
        else:
            host, port = url.split("//")[1].rsplit(":", 1)
            sock = socket.create_connection((host.strip("[]"), int(port)), DEADLINE_S, self.source)
        return sock

    def session(self, url=None, **options):
        return Session(self, url or self.urls[0], **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGTERM)
            try:
                assert self.wait() == 0, f"farpaged ended badly:\n{self.log()}"
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        self.dir.cleanup()


def frame(kind, payload=b"", tag=0, magic=MAGIC, version=1, flags=0, length=None, status=0):
    return HEADER.pack(magic, version, kind, flags, len(payload) if length is None else length, status, tag) + payload


def table(segments):
    return struct.pack("<II", len(segments), 0) + b"".join(struct.pack("<IIQ", *s) for s in segments)


class Connection:
    """A byte stream to the node, after its handshake unless told otherwise."""

    def __init__(self, sock, purpose, session_id=0, token=bytes(16), secret=None, features=0, name="test", versions=(VERSION, VERSION)):
        self.sock = sock
        nonce = os.urandom(32)
        hello = struct.pack("<BBBBIQ16s32s64s", *versions, purpose, 0, features, session_id, token, nonce, name.encode())
        self.send(frame(HELLO, hello))
        challenge = self.answer(CHALLENGE)
        self.wants_auth = bool(struct.unpack_from("<I", challenge, 36)[0])
        proof = prove(secret, b"farpage/1 client", hello, challenge)
        self.send(frame(AUTH, proof))
        welcome = self.answer(WELCOME)
        (self.cm_port, self.features, self.session_id, self.token, self.max_payload, self.max_outstanding,
         self.grace_ms, self.idle_ms, node_proof) = struct.unpack("<2xHIQ16sIIII32s", welcome)
        expected = prove(secret, b"farpage/1 server", hello, challenge, welcome[:48] + bytes(32))
        self.node_is_right = node_proof == expected

    def send(self, data):
        self.sock.sendall(data)

    def receive(self, n):
        data = b""
        while len(data) < n:
            piece = self.sock.recv(n - len(data))
            if not piece:
                raise EOFError(f"{len(data)} of {n} bytes")
            data += piece
        return data

    def receive_frame(self):
        magic, version, kind, flags, length, status, tag = HEADER.unpack(self.receive(HEADER.size))
        assert (magic, version, flags) == (MAGIC, 1, 0)
        return kind, status, tag, self.receive(length)

    def answer(self, kind, tag=0):
        got, status, got_tag, payload = self.receive_frame()
        if got == ERROR:
            raise Refused(status, payload)
        assert (got, got_tag) == (kind, tag), (got, got_tag)
        return payload

    def ask(self, kind, payload=b"", tag=7):
        self.send(frame(kind, payload, tag))
        return self.answer(kind + 1, tag)

    def read(self, *segments):
        return self.ask(READ, table(segments))

    def write(self, segments, data):
        return self.ask(WRITE, table(segments) + data)

    def at_eof(self):
        """True if the node has closed (after at most one ERROR)."""
        try:
            data = self.sock.recv(65536)
            return not data or not self.sock.recv(1)
        except ConnectionError:
            return True

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def prove(secret, label, *messages):
    return hmac.digest(secret, label + b"".join(messages), hashlib.sha256) if secret else bytes(32)


class Session(Connection):
    """A control connection, and links to go with it."""

    def __init__(self, node, url, features=0, secret=None, **options):
        self.node, self.url, self.secret = node, url, secret or node.secret
        self.keys = {}  # over rdma: of each lease, its address and its key
        features |= KEYS | CM if url.startswith("rdma:") else 0
        super().__init__(node.connect(url), CONTROL, secret=self.secret, features=features, **options)

    def link(self, **options):
        if self.url.startswith("rdma:"):
            host = self.url.split("//")[1].rsplit(":", 1)[0]
            return rdmaclient.RdmaLink(host, self.cm_port, rdmaclient.request(self.session_id, self.token), self.keys)
        return Connection(self.node.connect(self.url), LINK, self.session_id, self.token, self.secret, **options)

    def lease(self, size):
        """Returns id, granted size and the memfd (or None)."""
        self.send(frame(LEASE, struct.pack("<QII", size, 0, 0), tag=9))
        fds = array.array("i")
        data, control, _, _ = self.sock.recvmsg(56, socket.CMSG_SPACE(4))
        for level, kind, payload in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(payload)
        data += self.receive(24 - len(data)) if len(data) < 24 else b""
        kind, status = data[5], struct.unpack_from("<i", data, 12)[0]
        if kind == ERROR:
            raise Refused(status, data[24:] + self.receive(24 + struct.unpack_from("<I", data, 8)[0] - len(data)))
        data += self.receive(56 - len(data))
        size, lease_id, flags, *key = struct.unpack_from("<QIIQI", data, 24)
        assert len(fds) == flags & MEMFD
        self.keys[lease_id] = key
        return lease_id, size, fds[0] if fds else None

    def release(self, lease_id):
        self.ask(RELEASE, struct.pack("<II", lease_id, 0))

    def adopt(self, parent, session_id=None, token=None):
        """Takes over the leases of parent (by other words if they are given); returns how many they
        are."""
        n_leases, reserved = struct.unpack("<II", self.ask(
            ADOPT, struct.pack("<Q16s", parent.session_id if session_id is None else session_id, token or parent.token)))
        assert reserved == 0
        return n_leases

    def attach(self, lease_id):
        """Returns size and flags."""
        size, got_id, flags, *key = struct.unpack_from("<QIIQI", self.ask(ATTACH, struct.pack("<II", lease_id, 0)))
        assert got_id == lease_id
        self.keys[lease_id] = key
        return size, flags

    def info(self):
        """capacity, free, leased to this session, quota"""
        return struct.unpack_from("<QQQQ", self.ask(INFO))

    def room(self):
        """bytes that its client has leased, and what would refuse a LEASE now"""
        payload = self.ask(INFO)
        return struct.unpack_from("<Q", payload, 32)[0], refusal(payload[40:])

    def status(self):
        return json.loads(self.ask(STATUS))

    def await_status(self, condition):
        """Asks until condition(status) holds."""
        for _ in range(DEADLINE_S * 100):
            status = self.status()
            if condition(status):
                return status
            select.select([], [], [], 0.01)
        raise AssertionError(f"never became so: {status}")


def secret_file(secret):
    """A file that holds it, as a configuration names it."""
    path = os.path.join(secrets_dir.name, hashlib.sha256(secret.encode()).hexdigest())
    with open(path, "w", encoding="ascii", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
        f.write(secret + "\n")
    return path


def copies_in_memory(pid, text):
    """How often the memory of a process holds text, or the rest of it: free() writes over the first
    bytes."""
    rest = text[len(text) // 2:].encode()
    n = 0
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as mem:
        for line in maps:
            area, access = line.split()[:2]
            begin, end = (int(word, 16) for word in area.split("-"))
            if access.startswith("rw") and access.endswith("p") and end - begin <= 256 << 20:
                n += b"".join(page_of(mem, at) for at in range(begin, end, 4096)).count(rest)
    return n


def page_of(mem, at):
    try:
        return os.pread(mem.fileno(), 4096, at)
    except OSError:
        return bytes(4096)  # a guard page


def auth(secret):
    return f"auth: {{ secret_file: {secret_file(secret)} }}\n"


BOTH = """
listen: [ "unix:SOCKET", "tcp://127.0.0.1:0" ]
pools: [ { name: main, size: 64M } ]
"""


class NodeCase(unittest.TestCase):
    """Of a daemon that the test starts; it ends with the test."""

    def start(self, *args, **options):
        node = Farpaged(*args, **options)
        self.addCleanup(node.__exit__)
        return node

    def refused(self, status, call, *args, **options):
        with self.assertRaises(Refused) as refused:
            call(*args, **options)
        self.assertEqual(refused.exception.status, status)


def main():
    unittest.main(verbosity=2, warnings="ignore")
