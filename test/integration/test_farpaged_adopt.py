"""Leases that several sessions hold: who may do what with them, how they are counted, and when
their memory goes."""
import mmap
import os
import random
import signal
import struct
import unittest

from farpaged import (ADOPT, ATTACH, BAD_VALUE, BOTH, BUSY, BYE, DATA, DENIED, DRAIN, GONE, MALFORMED, MEMFD,
                      NOT_PERMITTED, OVER_QUOTA, PING, READ, RELEASE, RESUME, Connection, Farpaged, Refused, frame, main,
                      table, auth)

MIB = 1 << 20
READ_ONLY = 4


class Case(unittest.TestCase):
    def start(self, config=BOTH):
        node = Farpaged(config)
        self.addCleanup(node.__exit__)
        return node

    def refused(self, status, call, *args, **options):
        with self.assertRaises(Refused) as refused:
            call(*args, **options)
        self.assertEqual(refused.exception.status, status)

    def family(self, node, n_leases=2, **options):
        """A parent with leases of a MiB, which begin with their number, and a child that has
        adopted them."""
        parent, child = (node.session(node.urls[1], name=name, **options) for name in ("parent", "child"))
        link = parent.link()
        for _ in range(n_leases):
            lease_id, _, _ = parent.lease(MIB)
            link.write([(lease_id, 100, 0)], bytes([lease_id]) * 100)
        link.close()
        self.assertEqual(child.adopt(parent), n_leases)
        return parent, child

    def assert_reads(self, session, *lease_ids):
        link = session.link()
        for lease_id in lease_ids:
            self.assertEqual(link.read((lease_id, 101, 0)), bytes([lease_id]) * 100 + b"\0")
        link.close()


class Rights(Case):
    def test_reads_and_writes(self):
        parent, child = self.family(self.start())
        self.assertEqual(child.attach(1), (MIB, READ_ONLY))
        self.assertEqual(parent.attach(1), (MIB, 0))
        self.assert_reads(child, 1, 2)
        own, _, _ = child.lease(MIB)
        self.assertEqual(own, 3)
        link = child.link()
        link.write([(own, 4, 0)], b"mine")
        for segments in ([(1, 4, 0)], [(own, 4, 0), (2, 4, 0)], [(2, 4, MIB - 4), (own, 4, 0)]):
            self.refused(DENIED, link.write, segments, b"x" * sum(s[1] for s in segments))
        self.assertEqual(link.read((own, 4, 0)), b"mine", "nothing of a request that is refused is done")
        self.assert_reads(parent, 1, 2)
        self.refused(DENIED, parent.link().read, (own, 4, 0))
        parent.link().write([(1, 4, 200)], b"late")
        self.assertEqual(link.read((1, 4, 200)), b"late", "it is the same memory")

    def test_by_whom_and_when(self):
        node = self.start()
        parent, child = self.family(node)
        self.refused(BAD_VALUE, child.adopt, parent)
        self.refused(BAD_VALUE, parent.adopt, parent)
        self.refused(BAD_VALUE, parent.adopt, child)
        other = node.session(node.urls[1])
        self.refused(BAD_VALUE, other.adopt, other)
        lease_id, _, _ = other.lease(4096)
        self.refused(BAD_VALUE, other.adopt, parent)
        other.release(lease_id)
        wrong = bytes([parent.token[0] ^ 1]) + parent.token[1:]
        for session_id, token in ((parent.session_id, wrong), (77, parent.token), (parent.session_id, bytes(16)),
                                  (child.session_id, parent.token)):
            self.refused(GONE, other.adopt, parent, session_id=session_id, token=token)
        self.assertEqual(other.adopt(parent), 2, "who has no lease any more may, and what was refused was nothing")
        childless, empty = node.session(node.urls[1]), node.session(node.urls[1])
        self.assertEqual(childless.adopt(empty), 0)
        self.refused(BAD_VALUE, childless.adopt, parent)

    def test_malformed(self):
        node = self.start()
        parent, child = self.family(node)
        good = struct.pack("<Q16s", parent.session_id, parent.token)
        for payload in (good[:-1], good + b"x", bytes(24), b""):
            session = node.session(node.urls[1])
            self.refused(MALFORMED, session.ask, ADOPT, payload)
            self.assertTrue(session.at_eof())
        link = child.link()
        self.refused(MALFORMED, link.ask, ADOPT, good)
        self.assertTrue(link.at_eof())
        self.assert_reads(child, 1, 2)

    def test_by_its_answer_it_has_them(self):
        """Everything in one go: answers come in order, and the leases are there for what
        follows."""
        node = self.start()
        parent, _ = self.family(node)
        child = node.session(node.urls[1])
        child.send(frame(ADOPT, struct.pack("<Q16s", parent.session_id, parent.token), 1)
                   + b"".join(frame(ATTACH, struct.pack("<II", i, 0), 10 + i) for i in (1, 2, 3))
                   + frame(RELEASE, struct.pack("<II", 1, 0), 20) + frame(PING, b"", 21))
        self.assertEqual(struct.unpack("<II", child.answer(ADOPT + 1, 1)), (2, 0))
        self.assertEqual([len(child.answer(ATTACH + 1, 10 + i)) for i in (1, 2)], [32, 32])
        self.refused(DENIED, child.answer, ATTACH + 1, 13)
        child.answer(RELEASE + 1, 20)
        child.answer(PING + 1, 21)
        self.refused(DENIED, child.link().read, (1, 4, 0))

    def test_token_of_a_resumed_parent(self):
        node = self.start()
        parent, _ = self.family(node)
        again = Connection(node.connect(node.urls[1]), RESUME, parent.session_id, parent.token)
        again.ask(PING)
        child = node.session(node.urls[1])
        self.assertEqual(child.adopt(parent), 2)
        self.assert_reads(child, 1, 2)

    def test_secret(self):
        secret = b"0123456789abcdef0123456789abcdef"
        node = self.start(BOTH + auth(secret.decode()))
        _, child = self.family(node, secret=secret)
        self.assertEqual(child.attach(2), (MIB, READ_ONLY))
        self.assertEqual(child.link().read((2, 4, 0)), b"\2" * 4)


class Ends(Case):
    def test_the_last_holder(self):
        """Released, ended and killed in every order: the pool gets its bytes back with the last of
        them."""
        for order in ("parent child grandchild", "child grandchild parent", "grandchild parent child"):
            for how in ("release", "bye", "close"):
                with self.subTest(order=order, how=how):
                    node = self.start()
                    watch = node.session()
                    parent, child = self.family(node)
                    grandchild = node.session(node.urls[1], name="grandchild")
                    self.assertEqual(grandchild.adopt(child), 2)
                    family = {"parent": parent, "child": child, "grandchild": grandchild}
                    for name in order.split():
                        self.assertEqual(watch.info()[1], 62 * MIB)
                        for session in family.values():
                            self.assert_reads(session, 1, 2)
                        self.leave(watch, family.pop(name), how)
                    watch.await_status(lambda s: s["pools"][0]["used_bytes"] == 0 and s["pools"][0]["leases"] == 0)
                    node.__exit__()

    def leave(self, watch, session, how):
        if how == "release":
            session.release(1)
            session.release(2)
            self.assertEqual(session.info()[2], 0)
            self.refused(DENIED, session.release, 1)
            self.refused(DENIED, session.link().read, (1, 4, 0))
        elif how == "bye":
            session.ask(BYE)
        else:
            session.close()
            watch.await_status(lambda s: session.session_id not in [t["id"] for t in s["sessions"]])

    def test_freed_when_the_last_goes(self):
        """The node has a memory back when its last holder has left and nobody maps the memfd any
        more."""
        node = self.start()
        parent, child = node.session(features=MEMFD, name="parent"), node.session(features=MEMFD, name="child")
        another, reader = node.session(features=MEMFD), node.session(node.urls[1])
        lease_id, _, fd = parent.lease(MIB)
        with mmap.mmap(fd, MIB) as memory:
            os.close(fd)
            memory[:] = b"s" * MIB
            self.assertEqual((child.adopt(parent), reader.adopt(parent)), (1, 1))
            self.refused(NOT_PERMITTED, child.attach, lease_id)
            self.refused(NOT_PERMITTED, child.link)
            parent.ask(BYE)
            self.assertEqual(node.session().info()[1], 63 * MIB)
            self.assertEqual(memory[:], b"s" * MIB)
            self.assertEqual(reader.link().read((lease_id, 4, MIB - 4)), b"ssss")
            reader.release(lease_id)
            child.release(lease_id)
            child.await_status(lambda s: s["pools"][0]["kept_bytes"] == MIB)
            self.assertEqual(memory[:], b"s" * MIB)
        child.await_status(lambda s: s["pools"][0]["used_bytes"] == 0)
        with mmap.mmap(another.lease(64 * MIB)[2], 64 * MIB) as fresh:  # made after the other was given back
            self.assertEqual(fresh[:MIB], bytes(MIB))

    def test_cut_off_parent(self):
        node = self.start(BOTH + "limits: { grace: 2s }\n")
        parent, early = self.family(node)
        watch, late, too_late = node.session(), node.session(node.urls[1]), node.session(node.urls[1])
        parent.sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER: a reset
        parent.close()
        watch.await_status(lambda s: any(t["state"] == "cut off" for t in s["sessions"]))
        self.assertEqual(late.adopt(parent), 2)
        watch.await_status(lambda s: s["counters"]["sessions_expired"] == 1)
        self.refused(GONE, too_late.adopt, parent)
        for child in (early, late):
            self.assert_reads(child, 1, 2)

    def test_resumed_adopter(self):
        node = self.start()
        parent, child = self.family(node)
        own, _, _ = child.lease(MIB)
        again = Connection(node.connect(node.urls[1]), RESUME, child.session_id, child.token)
        child.token, child.sock = again.token, again.sock
        self.assertEqual([child.attach(i)[1] for i in (1, 2, own)], [READ_ONLY, READ_ONLY, 0])
        parent.ask(BYE)
        self.assert_reads(child, 1, 2)
        link = child.link()
        self.refused(DENIED, link.write, [(1, 4, 0)], b"mine")
        link.write([(own, 4, 0)], b"mine")
        self.refused(BAD_VALUE, child.adopt, child)
        child.release(1)
        self.assertEqual(child.info()[1:3], (62 * MIB, 2 * MIB))

    def test_an_answer_that_nobody_takes(self):
        """It points into the memory, which outlives everybody's release until the answer is out."""
        node = self.start()
        parent, child = self.family(node, 1)
        watch = node.session()
        link = child.link()
        request = frame(READ, table([(1, 65536, 0)] * 15), 5)
        link.send(request * 40)
        watch.await_status(lambda s: s["counters"]["reads"] >= 10)
        parent.release(1)
        child.release(1)
        for _ in range(10):
            self.assertEqual(link.answer(DATA, 5)[:100], b"\1" * 100)
        link.close()
        watch.await_status(lambda s: s["pools"][0]["used_bytes"] == 0)

    def test_stopping(self):
        """SIGTERM with leases that are shared: everything comes to its end."""
        node = self.start()
        family = self.family(node)
        grandchild = node.session(node.urls[1])
        grandchild.adopt(family[1])
        node.signal(signal.SIGTERM)
        self.assertEqual(node.wait(), 0)
        self.assertIn("stopped: 0 sessions hold 0 leases, 0 B of", node.log())

    def test_draining(self):
        """It grants nothing any more; what is leased may still be adopted."""
        node = self.start()
        parent, _ = self.family(node)
        watch, late = node.session(), node.session(node.urls[1])
        leased, sessions = struct.unpack("<QI", watch.ask(DRAIN)[:12])
        self.assertEqual((leased, sessions), (2 * MIB, 4), "a lease that two sessions have is out once")
        self.assertEqual(late.adopt(parent), 2)
        self.assert_reads(late, 1, 2)


class Counts(Case):
    def test_quota(self):
        node = self.start(BOTH + "limits: { client_quota: 3M, max_leases: 3 }\n")
        parent, child = self.family(node, 3)
        self.assertEqual(child.info(), (64 * MIB, 61 * MIB, 3 * MIB, 3 * MIB))
        self.refused(OVER_QUOTA, child.lease, 4096)
        child.release(1)
        self.refused(OVER_QUOTA, child.lease, 4096)
        parent.release(1)
        child.lease(MIB)
        self.refused(OVER_QUOTA, parent.lease, 4096)
        parent.release(2)
        self.assertEqual(child.info()[:3], (64 * MIB, 61 * MIB, 3 * MIB))
        self.assert_reads(child, 2, 3)
        node = self.start(BOTH + "limits: { max_leases: 2 }\n")
        _, child = self.family(node, 2)
        self.refused(BUSY, child.lease, 4096)

    def test_status(self):
        node = self.start()
        parent, child = self.family(node, 2)
        child.lease(MIB)
        status = child.status()
        pool, = status["pools"]
        self.assertEqual((pool["used_bytes"], pool["leases"]), (3 * MIB, 3))
        by_name = {s["name"]: s for s in status["sessions"]}
        self.assertEqual([by_name["parent"][k] for k in ("leases", "adopted_leases", "leased_bytes", "parent")],
                         [2, 0, 2 * MIB, 0])
        self.assertEqual([by_name["child"][k] for k in ("leases", "adopted_leases", "leased_bytes", "parent")],
                         [3, 2, 3 * MIB, parent.session_id])
        node.await_log(f"adopts the 2 leases of {parent.session_id}")

    def test_many(self):
        """As many children as a busy server has, of a parent with hundreds of leases."""
        node = self.start(BOTH.replace("64M", "512M") + "limits: { max_leases: 1000, max_sessions: 100 }\n")
        parent = node.session(node.urls[1])
        for _ in range(500):
            parent.lease(4096)
        children = [node.session(node.urls[1]) for _ in range(40)]
        for child in children:
            self.assertEqual(child.adopt(parent), 500)
        self.assertEqual(children[0].info()[1], 12 * MIB)
        parent.ask(BYE)
        for child in children[1:]:
            child.close()
        watch = node.session()
        watch.await_status(lambda s: len(s["sessions"]) == 2)
        self.assertEqual(watch.info()[1], 12 * MIB)
        children[0].ask(BYE)
        self.assertEqual(watch.info()[1], 512 * MIB)


class Member:
    """A session of a crowd, and what it must have: by lease id a memory, and whether it may write
    it."""

    def __init__(self, session):
        self.session, self.leases, self.adopted, self.cut_off = session, {}, False, False


class Crowd(Case):
    """Random sessions that lease, adopt, write, release, break, come back and end, against a model
    of who has what."""
    SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))
    STEPS = int(os.environ.get("STEPS", 800))
    SIZE, MAX_MEMBERS = MIB, 8

    def setUp(self):
        print(f"SEED={self.SEED}", flush=True)
        self.rng = random.Random(self.SEED)
        self.node = self.start(BOTH.replace("64M", "256M") + "limits: { max_leases: 16 }\n")
        self.watch = self.node.session()
        self.members, self.bytes = [], {}  # of a memory: what it is filled with

    def url(self):
        return self.node.urls[1]

    def open(self):
        if len(self.members) < self.MAX_MEMBERS:
            self.members.append(Member(self.node.session(self.url())))

    def lease(self, member):
        own = min(set(range(1, 18)) - set(member.leases))
        if len(member.leases) >= 16:
            self.refused(BUSY, member.session.lease, self.SIZE)
            return
        self.assertEqual(member.session.lease(self.SIZE)[:2], (own, self.SIZE))
        memory = object()
        member.leases[own], self.bytes[memory] = (memory, True), 0

    def adopt(self, member):
        parent = self.rng.choice(self.members)
        if member is parent or member.adopted or member.leases:
            self.refused(BAD_VALUE, member.session.adopt, parent.session)
            return
        self.assertEqual(member.session.adopt(parent.session), len(parent.leases))
        member.adopted = True
        member.leases = {i: (memory, False) for i, (memory, _) in parent.leases.items()}

    def move(self, member):
        link, value = member.session.link(), self.rng.randrange(256)
        for lease_id in (self.rng.randrange(1, 18), *list(member.leases)[:1]):
            memory, writes = member.leases.get(lease_id, (None, False))
            segments = [(lease_id, 10, 0), (lease_id, 10, self.SIZE - 10)]
            if writes:
                link.write(segments, bytes([value]) * 20)
                self.bytes[memory] = value
            else:
                self.refused(DENIED, link.write, segments, bytes(20))
            if memory:
                self.assertEqual(link.read(*segments), bytes([self.bytes[memory]]) * 20)
                self.assertEqual(member.session.attach(lease_id), (self.SIZE, 0 if writes else READ_ONLY))
            else:
                self.refused(DENIED, link.read, *segments)
        link.close()

    def release(self, member):
        lease_id = self.rng.randrange(1, 18)
        if lease_id in member.leases:
            member.session.release(lease_id)
            del member.leases[lease_id]
        else:
            self.refused(DENIED, member.session.release, lease_id)

    def cut(self, member):
        member.session.sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER: a reset
        member.session.close()
        member.cut_off = True
        self.watch.await_status(lambda s: sum(t["state"] == "cut off" for t in s["sessions"])
                                == sum(m.cut_off for m in self.members))

    def resume(self, member):
        again = Connection(self.node.connect(self.url()), RESUME, member.session.session_id, member.session.token)
        again.ask(PING)
        member.session.sock.close()
        member.session.sock, member.session.token, member.cut_off = again.sock, again.token, False

    def end(self, member):
        if self.rng.randrange(2):
            member.session.ask(BYE)
        else:
            member.session.close()
            self.watch.await_status(lambda s: member.session.session_id not in [t["id"] for t in s["sessions"]])
        self.members.remove(member)

    def check(self):
        held = {memory for m in self.members for memory, _ in m.leases.values()}
        pool, = self.watch.status()["pools"]
        self.assertEqual((pool["used_bytes"], pool["leases"]), (len(held) * self.SIZE, len(held)))

    def step(self):
        member = self.rng.choice(self.members)
        if member.cut_off:
            self.resume(member)
            return
        self.rng.choices([self.lease, self.adopt, self.move, self.release, self.cut, self.resume, self.end],
                         [6, 4, 6, 3, 1, 1, 1])[0](member)

    def test_random(self):
        for step in range(self.STEPS):
            if not self.members or not self.rng.randrange(4):
                self.open()
            self.step()
            if step % 10 == 0:
                self.check()
        self.check()
        self.assertEqual(self.watch.status()["counters"]["sessions_expired"], 0)


if __name__ == "__main__":
    main()
