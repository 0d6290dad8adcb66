"""The memory of farpaged against clients that mean it harm: it is never more than its pools, and no
touch of it kills the node."""
import contextlib
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import time

from farpaged import (BUSY, FULL, LEASE, MEMFD, NOT_PERMITTED, OPERATOR, PING, RELEASE, STATUS, Farpaged, NodeCase, Refused, frame,
                      main)
from memcgroup import MemoryCgroup, find_parent

MIB = 1 << 20
HUGE = 2 * MIB
HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
MADV_REMOVE, MAP_HUGETLB = 9, 0x40000


def config(size="64M", limits="", **keys):
    more = "".join(f", {key}: {value}" for key, value in keys.items())
    return (f'listen: [ "unix:SOCKET", "tcp://127.0.0.1:0" ]\npools: [ {{ name: main, size: {size}{more} }} ]\n'
            f"limits: {{ {limits} }}\n")


class Case(NodeCase):
    def lease_mapped(self, session, size):
        lease_id, size, fd = session.lease(size)
        memory = mmap.mmap(fd, size)
        os.close(fd)
        return lease_id, memory


class HugePages(Case):
    PAGES = 4

    def setUp(self):
        try:
            lock = open(HUGE_PAGES, "r+", encoding="ascii")  # other tests change it, too
            self.addCleanup(lock.close)
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = int(lock.read())
            self.set_pages(before + self.PAGES)
            self.addCleanup(self.set_pages, before)
            with open(HUGE_PAGES, encoding="ascii") as f:
                if int(f.read()) < before + self.PAGES:
                    self.skipTest("the host has no huge pages to give")
        except OSError as e:
            self.skipTest(f"huge pages can't be set up here: {e}")

    @staticmethod
    def set_pages(n):
        with open(HUGE_PAGES, "w", encoding="ascii") as f:
            f.write(str(n))

    def use_up(self):
        """Takes every huge page that nobody has."""
        taken = []
        try:
            while True:
                page = mmap.mmap(-1, HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
                page[0] = 1
                taken.append(page)
        except OSError:
            return taken

    def test_punched_page(self):
        """A client frees the page of its lease and uses it up; then it asks the node to write and
        to read there."""
        node = self.start(config(f"{self.PAGES * 2}M", backing="hugetlb"))
        session, reader, victim = node.session(features=MEMFD), node.session(node.urls[1]), node.session(node.urls[1])
        lease_id, memory = self.lease_mapped(session, HUGE)
        memory[0] = 1
        reader.adopt(session)
        kept = victim.lease(HUGE)[0]
        memory.madvise(MADV_REMOVE)
        taken = self.use_up()
        self.addCleanup(lambda: [page.close() for page in taken])
        with self.assertRaises((Refused, EOFError, ConnectionError)):
            session.link().write([(lease_id, 4, 0)], b"boom")
        with self.assertRaises((Refused, EOFError, ConnectionError)):
            reader.link().read((lease_id, 4, 0))
        link = victim.link()
        link.write([(kept, 4, 0)], b"safe")
        self.assertEqual(link.read((kept, 4, 0)), b"safe", node.log())

    def test_pages_are_there_when_leased(self):
        """A lease has its huge pages from the start: nothing that others do makes the node fault on
        them."""
        node = self.start(config(f"{self.PAGES * 2}M", backing="hugetlb"))
        session = node.session(node.urls[1])
        session.lease(HUGE)
        with open(f"/proc/{node.process.pid}/status", encoding="ascii") as f:
            self.assertEqual(next(int(line.split()[1]) for line in f if line.startswith("HugetlbPages")), HUGE >> 10)


class Links(Case):
    def test_none_to_what_is_mapped(self):
        """Who maps its leases has no use for a link, and could make the node touch pages that it
        has taken away."""
        session = self.start(config()).session(features=MEMFD)
        self.refused(NOT_PERMITTED, session.link)
        session.info()


class Kept(Case):
    """Who was passed a memfd may keep it for as long as it likes, after RELEASE and after its
    session: the pool has its bytes back when it has let go, and not before."""

    def pool(self, session):
        return session.status()["pools"][0]

    def await_back(self, session):
        session.await_status(lambda s: (s["pools"][0]["used_bytes"], s["pools"][0]["kept_bytes"]) == (0, 0))

    def assert_kept(self, session, kept):
        pool = self.pool(session)
        self.assertEqual((pool["leases"], pool["used_bytes"], pool["kept_bytes"], pool["free_bytes"]),
                         (0, kept, kept, 64 * MIB - kept))

    def test_charged_until_it_is_back(self):
        node = self.start(config())
        session, other = node.session(features=MEMFD), node.session(features=MEMFD)
        lease_id, memory = self.lease_mapped(session, 64 * MIB)
        memory[:4] = b"mine"
        session.release(lease_id)
        self.assert_kept(other, 64 * MIB)
        for watch in other, session:
            self.refused(FULL, watch.lease, MIB)
            self.assertEqual(watch.info()[1], 0)
        self.assertEqual(memory[:4], b"mine", "it is not taken away from who still reads it")
        memory.close()
        self.await_back(other)
        other.lease(64 * MIB)

    def test_who_unmaps_first_has_it_back_at_once(self):
        node = self.start(config())
        session = node.session(features=MEMFD)
        for _ in range(50):
            lease_id, memory = self.lease_mapped(session, 64 * MIB)
            memory[:4] = b"mine"
            memory.close()
            session.release(lease_id)

    def test_who_asks_hears_of_it_at_once(self):
        """A program looks for room in the moment in which another, which ended before, lets go of
        its memory."""
        node = self.start(config())
        session, other = node.session(features=MEMFD), node.session(features=MEMFD)
        for _ in range(20):
            lease_id, memory = self.lease_mapped(session, 64 * MIB)
            session.release(lease_id)
            memory.close()
            time.sleep(0.005)
            self.assertEqual(other.info()[1], 64 * MIB)

    def test_pool_never_grows(self):
        """Leases that are given back and kept, in session after session: no more than the pool is
        ever out."""
        node = self.start(config())
        kept = []
        with self.assertRaises(Refused) as refused:
            for _ in range(20):
                with contextlib.closing(node.session(features=MEMFD)) as session:
                    lease_id, memory = self.lease_mapped(session, 8 * MIB)
                    memory[:] = b"k" * (8 * MIB)
                    kept.append(memory)
                    session.release(lease_id)
        self.assertEqual((refused.exception.status, len(kept)), (FULL, 8))
        while kept:
            self.assert_kept(node.session(), len(kept) * 8 * MIB)
            kept.pop().close()
            node.session().await_status(lambda s: s["pools"][0]["kept_bytes"] == len(kept) * 8 * MIB)

    def test_ways_to_keep(self):
        """A descriptor, one under way, a private mapping, one of a forked child: whatever it is
        that holds the memory."""
        node = self.start(config())
        for how in "descriptor", "copy", "under way", "read-only", "private", "child":
            with self.subTest(how):
                session, watch = node.session(features=MEMFD), node.session()
                if how == "under way":
                    session.send(frame(LEASE, struct.pack("<QII", 64 * MIB, 0, 0)))
                    watch.await_status(lambda s: s["pools"][0]["leases"] == 1)
                    let_go = session.close
                    session.send(frame(RELEASE, struct.pack("<II", 1, 0)))
                    watch.await_status(lambda s: s["pools"][0]["leases"] == 0)
                else:
                    lease_id, _, fd = session.lease(64 * MIB)
                    let_go = self.keep(how, fd)
                    session.release(lease_id)
                self.assert_kept(watch, 64 * MIB)
                let_go()
                self.await_back(watch)

    def keep(self, how, fd):
        if how == "descriptor":
            return lambda: os.close(fd)
        if how == "copy":
            copy = os.dup(fd)
            os.close(fd)
            return lambda: os.close(copy)
        flags = mmap.MAP_PRIVATE if how == "private" else mmap.MAP_SHARED
        memory = mmap.mmap(fd, 64 * MIB, flags, mmap.PROT_READ)
        os.close(fd)
        if how != "child":
            return memory.close
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        memory.close()
        return lambda: (os.kill(child, signal.SIGKILL), os.waitpid(child, 0))

    def test_a_name_for_it_keeps_no_page(self):
        """O_PATH holds a file that nobody has open, so that nobody sees it: its pages go, and do
        not come back."""
        node = self.start(config())
        session, watch = node.session(features=MEMFD), node.session()
        lease_id, size, fd = session.lease(8 * MIB)
        with mmap.mmap(fd, size) as memory:
            memory[:] = b"k" * size
        name = os.open(f"/proc/self/fd/{fd}", os.O_PATH)
        self.assertEqual(os.stat(f"/proc/self/fd/{name}").st_mode & 0o777, 0o600, "nobody else opens it by this name")
        os.close(fd)
        session.release(lease_id)
        self.await_back(watch)
        watch.lease(64 * MIB)  # made after the other was given back
        self.assertEqual(os.stat(f"/proc/self/fd/{name}").st_blocks, 0)
        os.close(name)

    def test_killed_with_threads_and_children(self):
        node = self.start(config())
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                session = node.session(features=MEMFD)
                _, memory = self.lease_mapped(session, 64 * MIB)
                memory[:] = b"k" * (64 * MIB)
                os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(pid, 0)
            self.await_back(node.session())
            with contextlib.closing(node.session(features=MEMFD)) as session:
                os.close(session.lease(64 * MIB)[2])


class Adoption(Case):
    def test_heap_is_bounded(self):
        """Sessions that adopt and adopt the leases of one: each is a table in the node, and
        somewhere is an end."""
        node = self.start(config("4G", limits="max_leases: 4096, max_sessions: 400"))
        parent = node.session(node.urls[1])
        for _ in range(2048):
            parent.lease(4096)
        before, adopters = node.anonymous_bytes(), []
        with self.assertRaises(Refused) as refused:
            for _ in range(300):
                adopters.append(node.session(node.urls[1]))
                adopters[-1].adopt(parent)
        self.assertEqual(refused.exception.status, FULL)
        self.assertLess(node.anonymous_bytes() - before, 40 * MIB)
        adopters[0].close()
        adopters[-1].await_status(lambda s: len(s["sessions"]) == len(adopters))
        self.assertEqual(adopters[-1].adopt(parent), 2048)


class Limited(Case):
    """A node in a cgroup that allows less memory than its pools have: it says so, and is not killed
    for it."""

    def setUp(self):
        if os.geteuid() != 0 or not find_parent():
            self.skipTest("no cgroup with a memory limit can be made here")
        self.cgroup = MemoryCgroup(256 * MIB)
        self.addCleanup(self.cgroup.remove)

    def test_preallocate_more_than_the_limit(self):
        for size in "512M", "256M":  # the node itself takes a little, too
            node = Farpaged(config(size, preallocate="true"), preexec=self.cgroup.enter)
            self.assertEqual(node.process.returncode, 1, node.log())
            self.assertIn("'main': preallocate wants " + size[:-1], node.log())
            self.assertIn(self.cgroup.limit_name + " is 256.0 MiB", node.log())
            node.dir.cleanup()
        self.start(config("128M", preallocate="true"), preexec=self.cgroup.enter).session().lease(128 * MIB)

    def test_promises_what_the_limit_allows(self):
        node = self.start(config("512M"), preexec=self.cgroup.enter)
        node.await_log("pools without preallocate need 512.0 MiB")
        self.assertIn(self.cgroup.limit_name + " is 256.0 MiB", node.log())
        session = node.session(node.urls[1])
        free = session.info()[1]
        self.assertTrue(128 * MIB < free < 256 * MIB, free)
        self.assertLess(session.status()["pools"][0]["free_bytes"], 256 * MIB)
        self.refused(FULL, session.lease, 256 * MIB)
        node.await_log("refused: a lease of 256.0 MiB to test at")
        link = session.link()
        written = []
        with self.assertRaises(Refused) as refused:  # and what it grants, it has
            while True:
                written.append(session.lease(16 * MIB)[0])
                for offset in range(0, 16 * MIB, 1 << 16):
                    link.write([(written[-1], 1 << 16, offset)], b"w" * (1 << 16))
        self.assertEqual(refused.exception.status, FULL)
        self.assertGreater(len(written), 8)
        session.release(written.pop())
        session.lease(8 * MIB)

    def test_leases_that_nobody_has_touched(self):
        """What is granted counts before it is touched. So the node has the memory when clients take
        it, all at once."""
        node = self.start(config("4G"), preexec=self.cgroup.enter)
        for url in node.urls:
            session = node.session(url)
            leases = []
            with self.assertRaises(Refused) as refused:
                while True:
                    leases.append(session.lease(MIB)[0])
                    if len(leases) % 100 == 0:  # an old look at the host does not count
                        time.sleep(0.15)
            self.assertEqual((refused.exception.status, refused.exception.refusal[0]), (FULL, "host_memory"))
            self.assertTrue(128 < len(leases) < 256, len(leases))
            link = session.link()
            for lease_id in leases:
                for offset in range(0, MIB, 1 << 16):
                    link.write([(lease_id, 1 << 16, offset)], b"w" * (1 << 16))
            self.assertIsNone(node.process.poll(), "the node was killed")
            session.close()
            node.session().await_status(lambda status: status["pools"][0]["used_bytes"] == 0)

    def fill(self, node):
        """Leases all that the node grants, and writes to all of it."""
        session = node.session(node.urls[0])
        link = session.link()
        with contextlib.suppress(Refused):
            while True:
                lease_id = session.lease(MIB)[0]
                for offset in range(0, MIB, 1 << 16):
                    link.write([(lease_id, 1 << 16, offset)], b"w" * (1 << 16))
        return session

    def crowd(self, node, url, request):
        """Opens sessions until the node refuses one. Each sends requests, and reads no answer."""
        sessions = []
        with self.assertRaises(Refused) as refused:
            while True:
                sessions.append(node.session(url))
                sessions[-1].sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while request:
                        sessions[-1].sock.send(request)
        self.assertEqual((refused.exception.status, refused.exception.refusal[0]), (BUSY, "host_memory"))
        self.assertGreaterEqual(refused.exception.refusal[2], len(sessions), "a client's share")
        return sessions

    def test_clients_that_come_when_all_is_lent(self):
        """What they make the node keep has been kept back: sessions, their input, and answers that
        they do not read, in the node and in its sockets."""
        for request in frame(PING, bytes(4096)) * 16, frame(STATUS) * 64:
            node = self.start(config("4G", limits="grace: 0s"), preexec=self.cgroup.enter)
            lender = self.fill(node)
            sessions = [self.crowd(node, url, request) for url in node.urls]
            self.assertIsNone(node.process.poll(), "the node was killed")
            self.assertGreater(sum(map(len, sessions)), 128)
            operator = node.session(node.urls[1], features=OPERATOR)
            self.assertLess(operator.status()["pools"][0]["free_bytes"], 64 * MIB)
            for session in sum(sessions, []):
                session.sock.close()
            operator.await_status(lambda status: len(status["sessions"]) == 1)
            lender.info()
            node.session(node.urls[1]).close()
            node.process.kill()
            node.wait()

    def test_what_sockets_keep(self):
        """Of clients that read nothing and send on, in large segments or byte by byte: what is kept
        back for them is enough."""
        node = self.start(config("64M"), preexec=self.cgroup.enter)
        session, requests, sent, most = node.session(node.urls[1]), frame(PING, bytes(4096)) * 64, {}, 0
        for link in (session.link() for _ in range(60)):
            link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.sock.setblocking(False)
            sent[link.sock] = 0
        for turn in range(60):
            for sock in sent:
                with contextlib.suppress(BlockingIOError):
                    for _ in range(256):
                        begin = sent[sock] % len(requests)
                        sent[sock] += sock.send(requests[begin:begin + (1 if turn > 30 else 65536)])
            most = max(most, node.socket_bytes())
        print(f"sockets keep {most >> 10} KiB", flush=True)
        self.assertLess(most, 4 * MIB + (len(sent) * 96 << 10))

    def test_restarted_under_its_clients(self):
        """Whoever still maps what a node before has lent keeps it. This one does not lend it
        again."""
        node = self.start(config("192M"), preexec=self.cgroup.enter)
        ready, holder = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.cgroup.enter()
            _, memory = self.lease_mapped(node.session(features=MEMFD), 160 * MIB)
            for offset in range(0, len(memory), MIB):
                memory[offset:offset + MIB] = b"h" * MIB
            os.write(holder, b"!")
            signal.pause()
        os.close(holder)
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.kill, pid, signal.SIGKILL)
        self.assertEqual(os.read(ready, 1), b"!")
        node.process.kill()
        node.wait()
        again = self.start(config("192M"), preexec=self.cgroup.enter)
        session = again.session(features=MEMFD)
        capacity, free = session.info()[:2]
        self.assertEqual(capacity, 192 * MIB)
        self.assertLess(free, 96 * MIB)
        self.refused(FULL, session.lease, 128 * MIB)
        _, memory = self.lease_mapped(session, 32 * MIB)
        memory[:] = b"n" * (32 * MIB)


class Waiting(Case):
    def test_descriptors_behind_unread_answers(self):
        """They are open in the node. However many there are, a connection more finds one."""
        node = self.start(config("2G"), preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)))
        sessions = []
        with self.assertRaises(Refused):  # three quarters of the connections
            while True:
                sessions.append(node.session(features=MEMFD))
                # more than fits into the socket, less than makes the node stop reading
                sessions[-1].send(frame(PING, bytes(4096)) * 56 + frame(LEASE, struct.pack("<QII", 4096, 0, 0)) * 2)
        operator = node.session(node.urls[1])
        operator.await_status(lambda s: any(r["cause"] == "unreceived" for r in s["refusals"]))
        fds = f"/proc/{node.process.pid}/fd"
        memfds = sum(os.readlink(f"{fds}/{fd}").startswith("/memfd:") for fd in os.listdir(fds))
        self.assertLessEqual(memfds, 256 + 32)
        for session in sessions:
            session.close()


class LeastLease(Case):
    def test_small_leases_use_up_no_mappings(self):
        """Each lease is a mapping here, of which the kernel allows so many (vm.max_map_count): FULL
        means that the pool is."""
        node = self.start(config("512M"))
        sessions = [node.session(node.urls[1]) for _ in range(4)]
        self.assertEqual(sessions[0].lease(4096)[1], MIB)
        with self.assertRaises(Refused) as refused:
            while True:
                for session in sessions:
                    session.lease(4096)
        self.assertEqual((refused.exception.status, sessions[0].info()[1]), (FULL, 0))
        with open(f"/proc/{node.process.pid}/maps", encoding="ascii") as maps:
            self.assertLess(len(maps.readlines()), 1000)


if __name__ == "__main__":
    main()
