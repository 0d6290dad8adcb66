"""Leases and sessions of farpaged: what they get, what they must not see, and what happens when
they end."""
import array
import fcntl
import mmap
import os
import random
import resource
import select
import signal
import socket
import struct
import tempfile
import termios
import time

from farpaged import (ATTACH, BOTH, BUSY, BYE, DEADLINE_S, DENIED, DRAIN, DRAINING, FULL, GONE, HEADER, LEASE, LINK,
                      MEMFD, NOT_PERMITTED, OVER_QUOTA, PING, RELEASE, RESUME, Connection, NodeCase, Refused, frame, main)

MIB = 1 << 20
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4


def pool(name, size="64M", **keys):
    return f"{{ name: {name}, size: {size}" + "".join(f", {k}: {v}" for k, v in keys.items()) + " }"


def config(*pools, limits=""):
    return f'listen: [ "unix:SOCKET", "tcp://127.0.0.1:0" ]\npools: [ {", ".join(pools)} ]\nlimits: {{ {limits} }}\n'


class Case(NodeCase):
    def shm_and_tcp(self, node):
        for url in node.urls:
            with self.subTest(url):
                yield node.session(url, features=MEMFD if url.startswith("shm:") else 0)

    def await_anonymous(self, node, condition):
        """Memory is given back behind what clients wait for."""
        end = time.monotonic() + DEADLINE_S
        while not condition(node.anonymous_bytes()):
            self.assertLess(time.monotonic(), end, node.anonymous_bytes())
            time.sleep(0.01)

    def await_free(self, session):
        """Until nothing is leased any more."""
        session.await_status(lambda s: all(p["used_bytes"] == 0 for p in s["pools"]))


class Leases(Case):
    def test_memfd(self):
        node = self.start(BOTH)
        session = node.session(features=MEMFD)
        lease_id, size, fd = session.lease(MIB)
        self.assertEqual((lease_id, size, os.fstat(fd).st_size), (1, MIB, MIB))
        self.assertEqual(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & 7, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW)
        for size in (0, 2 * MIB):
            with self.assertRaises(PermissionError):
                os.ftruncate(fd, size)
        with mmap.mmap(fd, MIB) as memory:
            self.assertEqual(memory[:], bytes(MIB))
            memory[4096:4100] = b"mine"
            reader = node.session(node.urls[1])
            reader.adopt(session)
            self.assertEqual(reader.link().read((lease_id, 6, 4095)), b"\0mine\0", "the node and its client share the memory")

    def test_ids(self):
        session = self.start(BOTH).session()
        self.assertEqual([session.lease(4096)[0] for _ in range(40)], list(range(1, 41)))
        session.release(7)
        self.refused(DENIED, session.release, 7)
        self.refused(DENIED, session.release, 41)
        self.assertEqual(session.lease(4096)[0], 7)
        self.assertEqual(session.status()["sessions"][0]["leases"], 40)

    def test_full(self):
        node = self.start(BOTH)
        for session in self.shm_and_tcp(node):
            other = node.session(session.url)
            self.refused(FULL, session.lease, 64 * MIB + 4096)
            fd = session.lease(48 * MIB)[2]
            self.refused(FULL, other.lease, 16 * MIB + 4096)
            other.lease(16 * MIB)
            self.refused(FULL, session.lease, 4096)
            self.assertEqual(session.info()[:3], (64 * MIB, 0, 48 * MIB))
            session.close()
            if fd is not None:
                os.close(fd)
            other.await_status(lambda s: s["pools"][0]["free_bytes"] == 48 * MIB)
            other.lease(48 * MIB)
            other.close()
            self.await_free(node.session())

    def test_quota(self):
        node = self.start(config(pool("a"), limits="client_quota: 8M, max_leases: 3"))
        session, other = node.session(), node.session()
        self.refused(OVER_QUOTA, session.lease, 9 * MIB)
        first = session.lease(6 * MIB)[0]
        self.refused(OVER_QUOTA, session.lease, 3 * MIB)
        other.lease(2 * MIB)
        self.assertEqual(session.info(), (64 * MIB, 56 * MIB, 6 * MIB, 8 * MIB))
        session.release(first)
        for _ in range(3):
            session.lease(4096)
        self.refused(BUSY, session.lease, 4096)

    def test_max_sessions(self):
        node = self.start(config(pool("a"), limits="max_sessions: 2"))
        first, _ = node.session(), node.session()
        self.refused(BUSY, node.session)
        first.link()
        first.close()
        node.await_log("1: test at")
        node.await_log("ends")
        node.session()

    def test_max_connections(self):
        node = self.start(config(pool("a"), limits="max_connections: 2"))
        session = node.session()
        link = session.link()
        self.refused(BUSY, node.session)
        self.refused(BUSY, session.link)
        node.await_log("max_connections")
        session.info()
        link.close()

    def test_no_descriptors_left(self):
        """A private node has one user, who may have them all."""
        node = self.start(args=["--private", "--listen", f"unix:@farpaged-test-{os.getpid()}", "--pool-size", "64M"],
                          preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)))
        session = node.session()
        others = [session.link()]
        with self.assertRaises(TimeoutError):
            while True:
                others.append(node.connect())
                others[-1].settimeout(1)
                others.append(Connection(others.pop(), LINK, session.session_id, session.token))
        node.await_log("cannot accept a connection: Too many open files")
        session.info()
        for other in others:
            other.close()
        node.session().info()

    def test_leases_of_tcp_clients_take_no_descriptors(self):
        node = self.start(BOTH, preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)))
        session = node.session(node.urls[1])
        for _ in range(50):
            session.lease(4096)

    def test_many_links(self):
        session = self.start(BOTH).session()
        session.lease(MIB)
        links = [session.link() for _ in range(64)]
        self.refused(BUSY, session.link)
        links.pop().close()
        session.await_status(lambda s: s["sessions"][0]["links"] == 63)
        session.link().read((1, 4096, 0))


class Scrub(Case):
    """What one session wrote, no other sees, whichever way it ended and whatever the pool is made
    of."""

    POOLS = {"memfd": pool("a"), "memfd, preallocated": pool("a", preallocate="true"),
             "anonymous": pool("a", backing="anonymous"),
             "anonymous, preallocated": pool("a", backing="anonymous", preallocate="true")}

    def test_release(self):
        for name, one_pool in self.POOLS.items():
            with self.subTest(name):
                session = self.start(config(one_pool)).session()
                link = session.link()
                for _ in range(3):
                    lease_id, _, _ = session.lease(64 * MIB)
                    for offset in range(0, 64 * MIB, 4 * MIB):
                        segments = [(lease_id, 65536, offset + (i << 16)) for i in range(64)]
                        self.assertEqual(link.read(*segments), bytes(4 * MIB))
                        link.write(segments, b"\xa5" * (4 * MIB))
                    session.release(lease_id)

    def test_killed_client(self):
        for name, one_pool in self.POOLS.items():
            with self.subTest(name):
                node = self.start(config(one_pool))
                for session in self.shm_and_tcp(node):
                    session.close()
                    pid = os.fork()
                    if pid == 0:
                        self.be_killed(node, session.url)
                    os.waitpid(pid, 0)
                    watch = node.session(session.url)
                    self.await_free(watch)
                    lease_id, size, _ = watch.lease(64 * MIB)
                    link = watch.link()
                    for offset in range(0, size, 65536):
                        self.assertEqual(link.read((lease_id, 65536, offset)), bytes(65536))
                    watch.close()
                    self.await_free(node.session(session.url))

    def be_killed(self, node, url):
        session = node.session(url)
        lease_id, size, _ = session.lease(64 * MIB)
        link = session.link()
        for offset in range(0, size, 65536):
            link.write([(lease_id, 65536, offset)], b"secret.." * 8192)
        os.kill(os.getpid(), signal.SIGKILL)

    def test_client_that_keeps_the_memfd(self):
        node = self.start(config(pool("a", "128M")))
        session = node.session(features=MEMFD)
        lease_id, _, fd = session.lease(64 * MIB)
        with mmap.mmap(fd, 64 * MIB) as memory:
            memory[0:6] = b"secret"
            session.release(lease_id)
            other = node.session(features=MEMFD)
            _, _, other_fd = other.lease(64 * MIB)
            with mmap.mmap(other_fd, 64 * MIB) as fresh:
                self.assertEqual(fresh[0:6], bytes(6))
                self.assertEqual(memory[0:6], b"secret", "what it maps is its own")
                memory[0:6] = b"again!"
                self.assertEqual(fresh[0:6], bytes(6))

    def test_memory_returns_to_the_host(self):
        node = self.start(config(pool("a", "256M", backing="anonymous")))
        session = node.session()
        lease_id, _, _ = session.lease(256 * MIB)
        link = session.link()
        before = node.anonymous_bytes()
        for offset in range(0, 128 * MIB, 65536):
            link.write([(lease_id, 65536, offset)], b"x" * 65536)
        self.assertGreaterEqual(node.anonymous_bytes() - before, 128 * MIB)
        session.release(lease_id)
        self.await_anonymous(node, lambda n: n - before < 64 * MIB)

    def test_preallocated_memory_stays(self):
        node = self.start(config(pool("a", "256M", backing="anonymous", preallocate="true")))
        self.assertGreaterEqual(node.reserved_bytes(), 256 * MIB)
        session = node.session()
        for _ in range(2):
            lease_id, _, _ = session.lease(128 * MIB)
            self.await_anonymous(node, lambda n: n + node.reserved_bytes() >= 256 * MIB)
            session.release(lease_id)
            self.await_anonymous(node, lambda _: node.reserved_bytes() >= 256 * MIB)


class Unreceived(Case):
    """Descriptors that a client is sent and does not receive count for the daemon's user, and those
    that it keeps for the daemon. Nobody but that client may notice."""

    LIMIT = 64
    PAIRS = 60

    def start_as_another(self):
        """A node whose user nobody else is, and without root's exemption from that limit."""
        def become():
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.LIMIT, self.LIMIT))
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)

        uid = random.randrange(1 << 29, 1 << 30)
        folder = tempfile.TemporaryDirectory(prefix="farpaged-test.")
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        path = os.path.join(folder.name, "farpaged.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f'listen: [ "unix:@{os.path.basename(folder.name)}" ]\npools: [ {pool("a")} ]\n')
        return self.start(args=["--config", path], preexec=become)

    def flood(self, node):
        """Asks for leases and gives them back, and receives nothing."""
        session = node.session(features=MEMFD)
        session.send((frame(LEASE, struct.pack("<QII", 4096, 0, 0)) + frame(RELEASE, struct.pack("<II", 1, 0))) * self.PAIRS)
        unread = array.array("i", [0])
        for _ in range(DEADLINE_S * 1000):
            fcntl.ioctl(session.sock, termios.FIONREAD, unread)
            if unread[0] >= self.PAIRS * 2 * HEADER.size or self.is_cut(session):
                return session
            time.sleep(0.001)
        self.fail(f"{unread[0]} bytes of answers\n{node.log()}")

    def is_cut(self, session):
        return any(events & select.POLLHUP for _, events in self.poll(session.sock))

    @staticmethod
    def poll(sock):
        poll = select.poll()
        poll.register(sock, 0)
        return poll.poll(0)

    def assert_well(self, victim, memory):
        self.assertEqual(memory[:], b"v" * MIB)
        self.assertEqual(victim.info()[2], MIB, "what it was refused it does not have")
        self.assertEqual(victim.status()["pools"][0]["leases"], 1)

    def test_one_client_harms_no_other(self):
        node = self.start_as_another()
        victim = node.session(features=MEMFD)
        _, _, fd = victim.lease(MIB)
        with mmap.mmap(fd, MIB) as memory:
            os.close(fd)
            memory[:] = b"v" * MIB
            hostile = [self.flood(node) for _ in range(8)]
            node.await_log("refused: a lease of")
            self.lease_and_release(victim)
            self.assert_well(victim, memory)
            self.assertEqual([self.is_cut(session) for session in hostile], [False] * 8, node.log())
            for session in hostile:
                session.close()

            # sessions that have ended: what they have not received counts still, as connections
            self.await_session(node)
            hostile = []
            with self.assertRaises(Refused) as refused:
                while True:
                    self.assertLess(len(hostile), 16)
                    hostile.append(self.flood(node))
                    hostile[-1].sock.shutdown(socket.SHUT_WR)
                    victim.await_status(lambda s: len(s["sessions"]) == 1)
            self.assertEqual(refused.exception.status, BUSY)
            self.assertNotIn("no descriptor can be passed", node.log())
            self.lease_and_release(victim)
            self.assert_well(victim, memory)
            for session in hostile:
                session.close()
            self.await_session(node)

    def lease_and_release(self, session):
        lease_id, _, fd = session.lease(4096)
        os.close(fd)
        session.release(lease_id)

    def await_session(self, node):
        """The kernel collects what a closed socket still held in its own time."""
        for _ in range(DEADLINE_S * 100):
            try:
                self.lease_and_release(session := node.session(features=MEMFD))
                session.close()
                return
            except Refused as refused:
                self.assertIn(refused.status, (FULL, BUSY))
                time.sleep(0.01)
        self.fail("no place comes back")

    def test_who_receives_is_not_limited(self):
        node = self.start_as_another()
        sessions = [node.session(features=MEMFD) for _ in range(12)]
        for _ in range(4):
            for session in sessions:
                lease_id, _, fd = session.lease(4096)
                os.close(fd)
                session.release(lease_id)


class Pools(Case):
    def test_clients_that_map_get_what_can_be_passed(self):
        node = self.start(config(pool("private", "128M", backing="anonymous"), pool("shared")))
        shm, tcp = node.session(node.urls[0], features=MEMFD), node.session(node.urls[1])
        self.assertEqual((shm.info()[0], tcp.info()[0]), (64 * MIB, 192 * MIB))
        shm.lease(64 * MIB)
        self.refused(FULL, shm.lease, 4096)
        tcp.lease(128 * MIB)
        used = {p["name"]: p["used_bytes"] for p in tcp.status()["pools"]}
        self.assertEqual(used, {"private": 128 * MIB, "shared": 64 * MIB})

    def test_only_anonymous(self):
        node = self.start(config(pool("private", backing="anonymous")))
        shm = node.session(features=MEMFD)
        self.refused(FULL, shm.lease, 4096)
        self.assertEqual(shm.info()[:2], (0, 0))

    def test_numa_node(self):
        node = self.start(config(pool("a", numa_node=0), pool("b", backing="anonymous", numa_node=0, preallocate="true")))
        session = node.session()
        for _ in range(2):
            lease_id, _, _ = session.lease(64 * MIB)
            session.link().write([(lease_id, 5, 0)], b"bound")
        with open(f"/proc/{node.process.pid}/numa_maps", encoding="ascii") as maps:
            self.assertIn("bind:0", maps.read())

    def test_huge_pages(self):
        free = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        try:
            with open(free, encoding="ascii") as f:
                before = f.read()
            with open(free, "w", encoding="ascii") as f:
                f.write("32")
            self.addCleanup(lambda: open(free, "w", encoding="ascii").write(before))
            with open(free, encoding="ascii") as f:
                if int(f.read()) < 32:
                    self.skipTest("the host has no 32 huge pages to give")
        except OSError as e:
            self.skipTest(f"huge pages can't be set up here: {e}")
        for preallocate in ("false", "true"):
            with self.subTest(preallocate=preallocate):
                node = self.start(config(pool("huge", backing="hugetlb", preallocate=preallocate)))
                for session in self.shm_and_tcp(node):
                    for _ in range(2):
                        lease_id, size, fd = session.lease(4096)
                        self.assertEqual(size, 2 * MIB, "leases are whole huge pages")
                        self.use(session, lease_id, fd, size)
                        session.release(lease_id)
                    lease_id, size, fd = session.lease(64 * MIB)
                    self.use(session, lease_id, fd, size)
                    session.close()
                    self.await_free(node.session())
                node.__exit__()

    def use(self, session, lease_id, fd, size):
        """Finds zeros and leaves others. A descriptor of huge pages that is kept keeps them from
        everybody else."""
        if fd is None:
            self.assertEqual(session.link().read((lease_id, 65536, size - 65536)), bytes(65536))
            session.link().write([(lease_id, 65536, size - 65536)], b"x" * 65536)
            return
        with mmap.mmap(fd, size) as memory:
            os.close(fd)
            self.assertEqual(memory[-65536:], bytes(65536))
            memory[-65536:] = b"x" * 65536


class Status(Case):
    def test_status(self):
        node = self.start(BOTH)
        session = node.session(node.urls[1], name="a-client")
        lease_id, _, _ = session.lease(MIB)
        link = session.link()
        link.write([(lease_id, 100, 0)], bytes(100))
        link.read((lease_id, 60, 0), (lease_id, 40, 0))
        status = session.status()
        self.assertEqual((status["version"], status["pid"], status["state"]), ("0.1.0", node.process.pid, "serving"))
        self.assertEqual(status["pools"], [{"name": "main", "backing": "memfd", "numa_node": -1, "preallocate": False,
                                            "size_bytes": 64 * MIB, "used_bytes": MIB, "kept_bytes": 0, "free_bytes": 63 * MIB,
                                            "leases": 1}])
        me, = status["sessions"]
        self.assertEqual((me["name"], me["links"], me["leases"], me["leased_bytes"], me["read_bytes"], me["written_bytes"]),
                         ("a-client", 1, 1, MIB, 100, 100))
        self.assertTrue(me["peer"].startswith("127.0.0.1:"))
        self.assertEqual((status["counters"]["reads"], status["counters"]["writes"]), (1, 1))

    def test_more_sessions_than_fit(self):
        node = self.start(BOTH + "limits: { max_sessions: 1000 }\n")
        sessions = [node.session(name="x" * 63) for _ in range(400)]
        status = sessions[0].status()
        self.assertGreater(status["sessions_omitted"], 0)
        self.assertEqual(len(status["sessions"]) + status["sessions_omitted"], 400)
        for session in sessions:
            session.close()

    def test_nobody_stays_after_bye(self):
        """Who closes nothing has to go. Who says that it sends no more and reads nothing keeps no
        session. It keeps its place as long as answers to it are in the kernel: they are the node's
        memory."""
        node = self.start(BOTH + "limits: { handshake_timeout: 200ms }\n")
        idle = node.session(node.urls[1])
        idle.ask(BYE)
        deaf = node.session(node.urls[0])
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        unread, poller = 0, select.poll()
        while unread < 40 * 4120:  # of some 50 that fit
            deaf.send(frame(PING, bytes(4096)))
            while (now := struct.unpack("i", fcntl.ioctl(deaf.sock, termios.FIONREAD, bytes(4)))[0]) < unread + 4120:
                poller.poll(1)
            unread = now
        deaf.send(frame(PING, bytes(4096)) * 15 + frame(BYE))  # more than fits, less than makes the node wait
        deaf.sock.shutdown(socket.SHUT_WR)
        asker = node.session()
        asker.await_status(lambda status: status["connections"] == 2 and len(status["sessions"]) == 1)
        deaf.close()
        asker.await_status(lambda status: status["connections"] == 1)
        idle.close()

    def test_as_many_pools_as_there_may_be(self):
        """With the longest names, and more clients and sessions than fit: the lists share the
        message."""
        pools = ", ".join(f"{{ name: {'p' * 60}{i}, size: 1M }}" for i in range(64))
        node = self.start(f'listen: [ "unix:SOCKET", "tcp://127.0.0.1:0" ]\npools: [ {pools} ]\n'
                          "limits: { max_sessions: 1000 }\n")
        sessions = [node.session(name="x" * 63) for _ in range(200)]
        status = sessions[0].status()
        self.assertEqual(len(status["pools"]), 64)
        self.assertEqual(len(status["clients"]) + status["clients_omitted"], 1)
        self.assertEqual(len(status["sessions"]) + status["sessions_omitted"], 200)
        self.assertGreater(len(status["sessions"]), 0)
        for session in sessions:
            session.close()

    def test_drain(self):
        node = self.start(BOTH)
        local, remote = node.session(node.urls[0]), node.session(node.urls[1])
        lease_id, _, _ = remote.lease(MIB)
        self.refused(NOT_PERMITTED, remote.ask, DRAIN)
        self.assertEqual(local.ask(DRAIN), MIB.to_bytes(8, "little") + (2).to_bytes(4, "little") + bytes(4))
        for session in (local, remote):
            self.refused(DRAINING, session.lease, 4096)
        self.assertEqual(remote.link().read((lease_id, 4, 0)), bytes(4))
        self.assertEqual(local.status()["state"], "draining")


class Resumed(Case):
    """Over tcp, with a look at the node over its UNIX socket."""

    def start_watched(self, limits=""):
        node = self.start(config(pool("main"), limits=limits))
        return node, node.session(), node.session(node.urls[1])

    def reset(self, session):
        session.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        session.close()

    def resume(self, node, session, token=None):
        return Connection(node.connect(node.urls[1]), RESUME, session.session_id, token or session.token)

    def await_state(self, watcher, session, state):
        watcher.await_status(lambda s: any(x["id"] == session.session_id and x["state"] == state for x in s["sessions"]))

    def test_ping_echoes(self):
        for session in self.start_watched()[1:]:
            for payload in (b"", b"x", os.urandom(4095), os.urandom(4096)):
                self.assertEqual(session.ask(PING, payload), payload)

    def test_lost_welcome(self):
        """A session is resumed again until a WELCOME has arrived."""
        node, watcher, session = self.start_watched()
        lease_id, _, _ = session.lease(MIB)
        session.link().write([(lease_id, 4, 0)], b"kept")
        for end in (self.reset, Connection.close, self.reset):
            again = self.resume(node, session)
            self.assertEqual(again.token, session.token)
            end(again)  # it may look like the end of the client, but that has never spoken
            self.await_state(watcher, session, "cut off")
        again = self.resume(node, session)
        again.ask(PING)
        self.refused(GONE, self.resume, node, session, bytes(16))
        size, same_id, flags, address, key = struct.unpack("<QIIQI4x", again.ask(ATTACH, struct.pack("<II", lease_id, 0)))
        self.assertEqual((size, same_id, flags, address, key), (MIB, lease_id, 0, 0, 0))
        self.refused(DENIED, again.ask, ATTACH, struct.pack("<II", lease_id + 1, 0))
        link = Connection(node.connect(node.urls[1]), LINK, again.session_id, again.token)
        self.assertEqual(link.read((lease_id, 4, 0)), b"kept")

    def test_fence(self):
        """The old connections have ended by the time of WELCOME, whatever they were in the middle
        of."""
        node, watcher, session = self.start_watched()
        lease_id, _, _ = session.lease(MIB)
        links = [session.link() for _ in range(3)]
        links[0].send(struct.pack("<IBBHIiQ", 0x50524146, 1, 0x22, 0, 24 + 4096, 0, 1) + struct.pack("<IIIIQ", 1, 0, lease_id, 4096, 0))
        self.resume(node, session)
        for connection in (*links, session):
            self.assertTrue(connection.at_eof())

    def test_ends(self):
        """BYE and an end of file give back at once, a reset after the grace period, or at once if
        there is none."""
        for limits, end, ends in (("", lambda s: s.ask(BYE), True), ("", Connection.close, True), ("", self.reset, False),
                                  ("grace: 0s", self.reset, True), ("grace: 50ms", self.reset, True)):
            with self.subTest(limits):
                node, watcher, session = self.start_watched(limits)
                session.lease(MIB)
                end(session)
                if ends:
                    self.await_free(watcher)
                    self.refused(GONE, self.resume, node, session)
                else:
                    self.await_state(watcher, session, "cut off")
                    self.assertEqual(watcher.status()["pools"][0]["used_bytes"], MIB)

    def test_many_leases_expire_in_turn(self):
        """One tick ends only some of the sessions whose grace is over, so the loop goes on."""
        node = self.start(config(pool("main", size="4G"), limits="grace: 100ms"))
        watcher, sessions = node.session(), [node.session(node.urls[1]) for _ in range(3)]
        for session in sessions:
            for _ in range(1100):
                session.lease(MIB)
        for session in sessions:
            self.reset(session)
        self.await_free(watcher)
        ended = [float(line.split()[1].rpartition(":")[2]) for line in node.log().splitlines() if "did not come back" in line]
        self.assertEqual(len(ended), 3)
        self.assertGreater((ended[2] - ended[0]) % 60, 0.2)

    def test_unix_sockets_do_not_break(self):
        node, watcher, session = self.start_watched()
        self.assertEqual((watcher.grace_ms, watcher.idle_ms, session.grace_ms, session.idle_ms), (0, 0, 30000, 30000))

    def test_idle(self):
        node, watcher, session = self.start_watched("idle_timeout: 1s")
        self.assertEqual(session.idle_ms, 1000)
        session.lease(MIB)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            session.ask(PING)
            time.sleep(0.05)
        self.assertEqual({s["state"] for s in watcher.status()["sessions"]}, {"connected"})
        start = time.monotonic()
        self.await_state(watcher, session, "cut off")
        self.assertGreater(time.monotonic() - start, 0.5)
        self.assertTrue(session.at_eof())
        self.resume(node, session).ask(PING)
        self.assertEqual(watcher.status()["counters"]["sessions_resumed"], 1)

    def test_reload(self):
        node, watcher, session = self.start_watched()
        node.write_config(config(pool("main"), limits="grace: 7s, idle_timeout: 9s"))
        node.signal(signal.SIGHUP)
        node.await_log("limits, secrets and log level read again")
        later = node.session(node.urls[1])
        self.assertEqual((later.grace_ms, later.idle_ms), (7000, 9000))

    def test_reload_keeps_what_was_told(self):
        """A session has the limits of its last WELCOME."""
        node, watcher, session = self.start_watched()
        node.write_config(config(pool("main"), limits="grace: 0s, idle_timeout: 200ms"))
        node.signal(signal.SIGHUP)
        node.await_log("limits, secrets and log level read again")
        later = node.session(node.urls[1])
        self.assertTrue(later.at_eof(), "silent for longer than idle_timeout")
        session.ask(PING)
        self.reset(session)
        self.await_state(watcher, session, "cut off")
        self.assertEqual(self.resume(node, session).idle_ms, 200)

    def test_stopping_does_not_wait(self):
        node, watcher, session = self.start_watched()
        session.lease(MIB)
        self.reset(session)
        self.await_state(watcher, session, "cut off")
        watcher.close()
        start = time.monotonic()
        node.signal(signal.SIGTERM)
        self.assertEqual(node.wait(), 0)
        self.assertLess(time.monotonic() - start, 5)
        self.assertIn("0 sessions hold 0 leases", node.log())


if __name__ == "__main__":
    main()
