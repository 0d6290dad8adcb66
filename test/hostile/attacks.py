"""What hostile clients do. Each attack runs in one process or several, says when it has begun, and
goes on until it is killed."""
import contextlib
import ctypes
import itertools
import mmap
import multiprocessing
import os
import random
import select
import signal
import struct
import threading
import time

import memcgroup
import rdmaclient
from farpaged import (ADOPT, ADOPTED, BYE, CONTROL, HELLO, LEASE, LINK, MEMFD, PING, READ, RELEASE, STATUS, WRITE, Refused, frame, secret_file, table)

MIB = 1 << 20
PAGE = 4096
HUGE = 2 * MIB
HUGE_PAGES = 8
HUGE_PAGES_FILE = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
MAX_SEG = 65536
SECRETS = b"the well-behaved client's secret", b"the hostile client's secret"
RDMA_QUOTA_BYTES = 96 * MIB
FULL_READ = frame(READ, table([(1, MAX_SEG, 0)] * 64), tag=1)


def dropped_segments():
    """How many segments the kernel has taken out of receive buffers, of all connections."""
    with open("/proc/net/netstat", encoding="ascii") as f:
        names, values = [line.split() for line in f if line.startswith("TcpExt:")]
    return int(values[names.index("RcvPruned")])


def flood(connections, request, receives=True):
    """Sends request over and over on each connection, as fast as the node takes it; drops what it
    answers, or never reads it."""
    poller = select.poll()
    left = {}
    for connection in connections:
        connection.sock.setblocking(False)
        poller.register(connection.sock, select.POLLOUT | (select.POLLIN if receives else 0))
        left[connection.sock.fileno()] = (connection.sock, b"")
    burst = request * max(1, 65536 // len(request))
    trash = bytearray(MIB)
    while left:
        for fd, events in poller.poll():
            sock, rest = left[fd]
            try:
                if events & select.POLLIN:
                    sock.recv_into(trash)
                if events & select.POLLOUT:
                    rest = rest or burst
                    left[fd] = sock, rest[sock.send(rest):]
            except BlockingIOError:
                pass
            except ConnectionError:
                events = select.POLLERR
            if events & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                poller.unregister(fd)
                del left[fd]


def many(url):
    """Connections of a flood. Over rdma the device that they load is a guest's emulated
    processor."""
    return 8 if url.startswith("rdma:") else 60


def several(count, make):
    """Up to count connections, as many as the node gives; at least one."""
    made = []
    with contextlib.suppress(Refused, OSError, EOFError):
        while len(made) < count:
            made.append(make())
    return made or [make()]


def lease_all(session, size, keep):
    """Leases pieces of size until the node refuses; returns how many."""
    count = 0
    try:
        while True:
            keep.append(session.lease(size))
            count += 1
    except Refused:
        return count


class Attack:
    """Defaults; each attack says what differs. Its counts have no lock: who is killed with one in
    hand keeps it for ever."""

    transports = ("tcp", "shm")
    processes = 1
    resumes = False  # whether the client beside it opens sessions, breaks its connections and comes back
    pool = "{ name: main, size: 64M }"
    limits = ""
    guest_limits = None  # instead of these over rdma: a guest is small and slow
    descriptors = None  # the daemon's limit of open files
    bound_bytes = 32 * MIB  # of private memory that the daemon may take for it
    slack_bytes = 8 * MIB  # what an allocator may keep of it
    bound_fds = None  # descriptors that the daemon may open for it
    cgroup_bytes = None  # of memory, which the daemon may use together with the kernel
    overheard = 0, bytes(16)  # id and token of the session of the client that behaves well
    numbers = itertools.count()
    verdict = None  # called with the node at the end

    def why_not(self):
        """Why it cannot run here; None: it can."""
        return None

    def stage(self):
        """What the machine must have while it runs."""
        return contextlib.nullcontext()

    def secrets(self, url):
        """Of the client that behaves well and of the attackers. Without them loopback is one
        client, and a UNIX socket has one a user."""
        return SECRETS if url.startswith(("tcp", "rdma")) else (None, None)

    def jobs(self, node, url):  # pylint: disable=unused-argument
        """What each process does: an attack, and where."""
        return [(self, url)] * self.processes

    def config(self, transport):
        items = ", ".join(f"{{ name: client{i}, file: {secret_file(secret.decode())}, rights: [ lease, status ] }}"
                          for i, secret in enumerate(self.secrets(transport)) if secret)
        auth = f"auth: {{ secrets: [ {items} ] }}\n" if items else ""
        way, pool, limits = "tcp://127.0.0.1:0", self.pool, ["grace: 2s", "idle_timeout: 5m", self.limits]
        if transport == "rdma":
            way = f"rdma://{os.environ.get('FARPAGE_TEST_RDMA')}:0"
            pool, limits = "{ name: main, size: 128M }", [*limits[:2], self.guest_limits or self.limits]
            limits += [] if "client_quota" in limits[-1] else [f"client_quota: {RDMA_QUOTA_BYTES}"]
        return (f'listen: [ "unix:@hostile-{os.getpid()}-{next(self.numbers)}", "{way}" ]\npools: [ {pool} ]\n'
                f"limits: {{ {', '.join(filter(None, limits))} }}\n{auth}")

    def run(self, node, url, ready):
        raise NotImplementedError

    @staticmethod
    def session(node, url):
        return node.session(url, features=MEMFD if url.startswith("shm:") else 0, name="hostile")


class LeasesUnread(Attack):
    """LEASE and RELEASE in turn on many connections, no answer is ever read."""

    pool = "{ name: main, size: 512M }"  # what is under way to a client is kept: eight leases a connection

    def run(self, node, url, ready):
        sessions = several(min(16, many(url)), lambda: self.session(node, url))
        ready.set()
        flood(sessions, frame(LEASE, struct.pack("<QII", PAGE, 0, 0)) + frame(RELEASE, struct.pack("<II", 1, 0)), receives=False)


class PingsUnread(Attack):
    """The longest PINGs on many connections, no PONG is ever read."""

    def run(self, node, url, ready):
        if url.startswith("rdma:"):
            connections = several(many(url), lambda: node.session(url, name="hostile"))
        else:
            sessions = several(8, lambda: node.session(url, name="hostile"))
            connections = [link for session in sessions for link in several(50, session.link)]
        ready.set()
        flood(connections, frame(PING, bytes(4096)), receives=False)


class StatusFlood(Attack):
    """The dearest question, asked by many sessions without a pause."""

    def run(self, node, url, ready):
        sessions = several(many(url), lambda: self.session(node, url))
        ready.set()
        flood(sessions, frame(STATUS))


class LinkFlood(Attack):
    """The longest READs on many links at once."""

    def run(self, node, url, ready):
        session = node.session(url, name="hostile")
        lease_id, _, _ = session.lease(MIB)
        links = several(many(url), session.link)
        ready.set()
        if url.startswith("rdma:"):
            rdmaclient.flood(links, lease_id)
        else:
            flood(links, FULL_READ)


class ReadsUnread(Attack):
    """READs of 4 MiB on many links by a client that stops."""

    def run(self, node, url, ready):
        session = node.session(url, name="hostile")
        session.lease(MIB)
        links = several(16, session.link)
        for link in links:
            link.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    link.sock.send(FULL_READ)
        ready.set()
        os.kill(os.getpid(), signal.SIGSTOP)


class AdoptFlood(Attack):
    """One session with many leases, adopted by session after session."""

    pool = "{ name: main, size: 4G }"
    limits = "max_leases: 16384, client_quota: 2G"
    guest_limits = "max_leases: 16384"
    bound_bytes = 96 * MIB  # thousands of sessions, as max_sessions allows

    def run(self, node, url, ready):
        parent = node.session(url, name="hostile")
        lease_all_of = []
        with contextlib.suppress(Refused):
            for _ in range(4096):
                lease_all_of.append(parent.lease(PAGE))
        ready.set()
        children = []
        with contextlib.suppress(Refused, ConnectionError, EOFError):
            while True:
                child = node.session(url, name="hostile")
                child.adopt(parent)
                children.append(child)
        signal.pause()


class AdoptChurn(Attack):
    """Sessions that adopt thousands of leases and end, as fast as they can: what they let go of is
    still theirs until it is freed."""

    processes = 2
    pool = "{ name: main, size: 4G }"
    limits = "client_quota: 3G"
    guest_limits = "client_quota: 64M"
    adopted = multiprocessing.RawValue("Q", 0)

    def run(self, node, url, ready):
        parent = node.session(url, name="hostile")
        with contextlib.suppress(Refused):
            for _ in range(1400):
                parent.lease(PAGE)
        ready.set()
        adopt = frame(ADOPT, struct.pack("<Q16s", parent.session_id, parent.token)) + frame(BYE)
        while True:
            with contextlib.suppress(Refused, OSError, EOFError):
                children = several(many(url), lambda: node.session(url, name="hostile"))
                for child in children:
                    child.send(adopt)
                for child in children:
                    with contextlib.suppress(Refused):
                        self.adopted.value += struct.unpack_from("<I", child.answer(ADOPTED))[0]
                    child.close()

    def verdict(self, _):
        print(f"leases adopted: {self.adopted.value}")
        assert self.adopted.value > 100000, "there was no attack"


class SessionFlood(Attack):
    """Thousands of sessions that all ask, all the time. The node must not make the kernel drop what
    they send: their retransmissions would slow others."""

    limits = "max_sessions: 16384"  # those of an earlier turn may be within their grace period
    bound_bytes = 320 * MIB  # of each session 32 KiB of input, and 128 KiB of answers that are not taken yet

    def run(self, node, url, ready):
        sessions = several(2000, lambda: self.session(node, url))
        ready.set()
        flood(sessions, frame(PING, bytes(4096)))

    @contextlib.contextmanager
    def stage(self):
        before = dropped_segments()
        yield
        dropped = dropped_segments() - before
        print(f"segments that full receive buffers dropped: {dropped}")
        assert dropped < 100, "receive buffers drop what clients send"


class SmallLeases(Attack):
    """The smallest leases until the node refuses."""

    processes = 4
    pool = "{ name: main, size: 4G }"
    limits = "max_leases: 65535, client_quota: 3G"
    guest_limits = "max_leases: 65535"
    granted = multiprocessing.RawValue("Q", 0)

    def run(self, node, url, ready):
        session = node.session(url, name="hostile")
        count = lease_all(session, PAGE, [])
        self.granted.value = max(self.granted.value, count)
        ready.set()
        signal.pause()

    def verdict(self, _):
        print(f"leases of one session: {self.granted.value}")
        assert 0 < self.granted.value <= 3072, "leases are smaller than 1 MiB"


class Quota(Attack):
    """Many sessions of one client, each up to its quota."""

    limits = "client_quota: 8M"

    def run(self, node, url, ready):
        sessions = []
        with contextlib.suppress(Refused):
            while len(sessions) < min(16, many(url)):
                sessions.append(self.session(node, url))
                lease_all(sessions[-1], MIB, [])
        ready.set()
        signal.pause()


class KeptMemory(Attack):
    """Leases memory, fills it, gives the lease back and keeps the memory."""

    transports = ("shm",)
    limits = "client_quota: 32M"
    kept = multiprocessing.RawValue("Q", 0)

    def run(self, node, url, ready):
        session = self.session(node, url)
        memories = []
        ready.set()
        with contextlib.suppress(Refused):
            while len(memories) < 512:
                lease_id, _, fd = session.lease(MIB)
                memories.append(mmap.mmap(fd, MIB))
                memories[-1][:] = b"k" * MIB
                os.close(fd)
                session.release(lease_id)
                self.kept.value = max(self.kept.value, len(memories) * MIB)
        signal.pause()

    def verdict(self, _):
        print(f"memory kept after RELEASE: {self.kept.value // MIB} MiB of a pool of 64 MiB")
        assert self.kept.value <= 64 * MIB, "clients hold more memory than the pool has"


class Strangers(Attack):
    """Connections without a secret, as many as the node takes; what it closes is opened again. Over
    TCP they come from the client's own address, on UNIX sockets from another user."""

    resumes = True
    limits = "max_connections: 100, handshake_timeout: 5s"
    named = 1, bytes(16)  # the session that their HELLO names, and its token

    def secrets(self, url):
        return SECRETS[0], None

    def run(self, node, url, ready):
        held = []
        begun = time.monotonic()
        hello = frame(HELLO, struct.pack("<BBBBIQ16s32s64s", 2, 2, LINK, 0, 0, *self.named, bytes(32), b"stranger"))
        while True:
            with contextlib.suppress(OSError):
                held.append(node.connect(url))
                if len(held) % 2:
                    held[-1].send(hello)
            for sock in select.select(held, [], [], 0)[0]:
                with contextlib.suppress(OSError):
                    if sock.recv(4096):
                        continue
                held.remove(sock)  # the node has closed it
                sock.close()
            if time.monotonic() > begun + 0.2:
                ready.set()


class Overheard(Strangers):
    """The same, with the token of another client's session."""

    @property
    def named(self):
        return self.overheard


class ByesKept(Attack):
    """Sessions that end, but keep their connections."""

    limits = "max_sessions: 64, max_connections: 256"

    def run(self, node, url, ready):
        kept = []
        while True:
            with contextlib.suppress(Refused, OSError, EOFError):
                while True:
                    kept.append(self.session(node, url))
                    kept[-1].ask(BYE, tag=0)
            ready.set()


class Untouched(Attack):
    """Leases more than the machine has and touches none of it; then all of it."""

    transports = ("tcp",)
    pool = "{ name: main, size: 4G }"
    cgroup_bytes = 256 * MIB
    bound_bytes = 256 * MIB
    granted = multiprocessing.RawValue("Q", 0)

    def why_not(self):
        return None if memcgroup.find_parent() else "it needs a cgroup with a limit of memory"

    def run(self, node, url, ready):
        session, leases = node.session(url, name="hostile"), []
        lease_all(session, MIB, leases)
        self.granted.value = max(self.granted.value, len(leases) * MIB)
        ready.set()
        link = session.link()
        for lease_id, size, _ in leases:
            for at in range(0, size, MAX_SEG):
                link.write([(lease_id, MAX_SEG, at)], b"u" * MAX_SEG)
        signal.pause()

    def verdict(self, _):
        print(f"leases granted: {self.granted.value // MIB} MiB")
        assert 0 < self.granted.value < self.cgroup_bytes, "the node has lent memory that it does not have"


class Sessions(Attack):
    """As many sessions as the node gives, and as many links."""

    processes = 2
    resumes = True
    limits = "max_sessions: 64, max_connections: 256"

    def run(self, node, url, ready):
        sessions, links = [], []
        while True:
            with contextlib.suppress(Refused, OSError, EOFError):
                while True:
                    sessions.append(node.session(url, name="hostile"))
            with contextlib.suppress(Refused, OSError, EOFError):
                while sessions:
                    links.append(random.choice(sessions).link())
            ready.set()


class Descriptors(Attack):
    """Leases whose descriptors are not received, and others that are kept, as many as the node
    gives."""

    transports = ("shm",)
    descriptors = 512
    pool = "{ name: main, size: 512M }"

    def run(self, node, url, ready):
        unread = several(32, lambda: self.session(node, url))
        for session in unread:
            session.send(frame(LEASE, struct.pack("<QII", PAGE, 0, 0)) * 8)
        session = self.session(node, url)
        while True:
            lease_all(session, PAGE, [])
            ready.set()


class HalfOpen(Attack):
    """Handshakes that never end, their HELLO sent byte by byte."""

    limits = "handshake_timeout: 200ms"
    guest_limits = "handshake_timeout: 500ms"
    ended = multiprocessing.RawValue("Q", 0)  # connections, by the node

    def run(self, node, url, ready):
        hello = frame(HELLO, struct.pack("<BBBBIQ16s32s64s", 2, 2, CONTROL, 0, 0, 0, bytes(16), bytes(32), b"slow"))
        held = []
        for opened in itertools.count():
            if opened == 8:  # over rdma each takes its time
                ready.set()
            with contextlib.suppress(OSError):
                held.append([node.connect(url), 0])
            for entry in list(held):
                sock, sent = entry
                try:
                    sock.send(hello[sent:sent + 1])
                    entry[1] += sent < len(hello) - 2
                except OSError:
                    held.remove(entry)
                    self.ended.value += 1
            time.sleep(0.005)

    def verdict(self, _):
        print(f"handshakes that the node gave up: {self.ended.value}")
        assert self.ended.value > 0, "a handshake may last for ever"


class Garbage(Attack):
    """Frames that are wrong in one place or in many, before the handshake and after."""

    processes = 2

    def run(self, node, url, ready):
        dice = random.Random(os.getpid())
        ready.set()
        while True:
            with contextlib.suppress(OSError, EOFError, Refused):
                if dice.random() < 0.5:
                    sock = node.connect(url)
                else:
                    sock = node.session(url, name="hostile").sock
                wrong = bytearray(frame(dice.randrange(0x30), dice.randbytes(dice.choice((0, 8, 16, 24, 128, 1032, 32768))),
                                        length=dice.choice((None, None, 32768, (1 << 32) - 1))))
                for _ in range(dice.randrange(4)):
                    wrong[dice.randrange(len(wrong))] = dice.randrange(256)
                sock.sendall(bytes(wrong))
                sock.close()


class WrongRequests(Attack):
    """Connection requests that are none, or ask for links of others."""

    transports = ("rdma",)
    processes = 2
    let_in = multiprocessing.RawValue("Q", 0)
    refused = multiprocessing.RawValue("Q", 0)

    def run(self, node, url, ready):
        host, port = url.split("//")[1].rsplit(":", 1)[0], self.session(node, url).cm_port
        for _ in range(4):  # a connection request takes its time
            threading.Thread(target=self.ask, args=(host, port), daemon=True).start()
        ready.set()

    def ask(self, host, port):
        dice = random.Random()
        while True:
            private = dice.choice((
                dice.randbytes(48), b"", rdmaclient.request(dice.randrange(1, 9), dice.randbytes(16))))
            try:
                rdmaclient.RdmaLink(host, port, private, {}).close()
                self.let_in.value += 1
            except ConnectionRefusedError:
                self.refused.value += 1
            except OSError:
                pass

    def verdict(self, _):
        print(f"wrong requests refused: {self.refused.value}, let in: {self.let_in.value}")
        assert self.refused.value and not self.let_in.value


class Churn(Attack):
    """Sessions that come and go as fast as they can, each with a line in the log."""

    processes = 2

    def run(self, node, url, ready):
        ready.set()
        while True:
            with contextlib.suppress(OSError, EOFError, Refused):
                self.session(node, url).close()

    def verdict(self, node):
        lines = node.log().count("\n")
        print(f"lines in the log: {lines}")
        assert lines < 4000, "sessions that come and go fill the log"


class DyingLease(Attack):
    """A client that dies with a large lease, again and again: the node scrubs it for those who come
    after."""

    pool = "{ name: main, size: 2G, preallocate: true }"
    lease_bytes = 1024 * MIB
    bound_bytes = 1056 * MIB  # the lease: what it takes from the reserve, which is not mapped, counts here

    def run(self, node, url, ready):
        ready.set()
        while True:
            with contextlib.suppress(OSError, EOFError, Refused):
                session = self.session(node, url)
                _, _, fd = session.lease(self.lease_bytes)
                if fd is not None:
                    os.close(fd)
                session.close()


class PunchedMemory(Attack):
    """Punches holes into huge pages that it shares with the node, takes the freed pages, and has
    the node write there."""

    transports = ("shm",)
    pool = f"{{ name: main, size: {HUGE_PAGES * HUGE // MIB}M, backing: hugetlb, preallocate: true }}"

    def why_not(self):
        if os.geteuid() != 0 or not os.path.exists(HUGE_PAGES_FILE):
            return "it needs root and huge pages"
        return None

    @contextlib.contextmanager
    def stage(self):
        with open(HUGE_PAGES_FILE, encoding="ascii") as f:
            before = f.read()
        try:
            with open(HUGE_PAGES_FILE, "w", encoding="ascii") as f:
                f.write(str(int(before) + HUGE_PAGES))
            yield
        finally:
            with open(HUGE_PAGES_FILE, "w", encoding="ascii") as f:
                f.write(before)

    def run(self, node, url, ready):
        session = self.session(node, url)
        keep_size, punch_hole = 1, 2
        lease_id, size, fd = session.lease(HUGE)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        libc.fallocate(fd, keep_size | punch_hole, 0, size)
        taken = os.memfd_create("taken", 0x4)  # MFD_HUGETLB
        libc.fallocate(taken, 0, 0, size)
        ready.set()
        with contextlib.suppress(Refused, OSError, EOFError):
            link = session.link()
            link.ask(WRITE, table([(lease_id, PAGE, 0)]) + bytes(PAGE))
            link.ask(READ, table([(lease_id, PAGE, 0)]))


ATTACKS = {
    "adopt-churn": AdoptChurn(),
    "adopt-flood": AdoptFlood(),
    "byes-kept": ByesKept(),
    "churn": Churn(),
    "dying-lease": DyingLease(),
    "descriptors": Descriptors(),
    "garbage": Garbage(),
    "half-open": HalfOpen(),
    "kept-memory": KeptMemory(),
    "leases-unread": LeasesUnread(),
    "link-flood": LinkFlood(),
    "overheard": Overheard(),
    "pings-unread": PingsUnread(),
    "punched-memory": PunchedMemory(),
    "quota": Quota(),
    "reads-unread": ReadsUnread(),
    "session-flood": SessionFlood(),
    "sessions": Sessions(),
    "small-leases": SmallLeases(),
    "status-flood": StatusFlood(),
    "strangers": Strangers(),
    "untouched": Untouched(),
    "wrong-requests": WrongRequests(),
}
