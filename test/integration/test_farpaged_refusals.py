"""What farpaged refuses, and how it says so: to the client, in its status and in its log. Those who
look after the node are not kept out by those who use it."""
import json
import os
import resource
import socket
import struct
import subprocess

from farpaged import (BUSY, BYE, DENIED, DRAIN, DRAINING, FILES, FULL, GONE, LINK, MEMFD, NOT_PERMITTED, OPERATOR, OVER_QUOTA,
                      RESUME, SHARE, STATUS, UNDRAIN, Connection, NodeCase, Refused, main, secret_file)

MIB = 1 << 20
FARPAGE = os.path.join(os.environ["FARPAGE_BUILD"], "tools", "farpage")


def config(pools="[ { name: main, size: 8M } ]", limits="grace: 30s", more=""):
    return f'listen: [ "unix:SOCKET", "tcp://127.0.0.1:0" ]\npools: {pools}\nlimits: {{ {limits} }}\n{more}'


def counts(session):
    return {r["cause"]: r["count"] for r in session.status()["refusals"]}


class Refusals(NodeCase):
    def meets(self, wanted, status, call, *args, **options):
        """The call is refused, and the answer names this cause, limit and use of it."""
        with self.assertRaises(Refused) as refused:
            call(*args, **options)
        got = refused.exception
        self.assertEqual((got.status, (got.refusal or ())[:len(wanted)]), (status, wanted))

    def test_drained(self):
        node = self.start(config())
        session, admin = node.session(node.urls[1]), node.session(node.urls[0])
        self.assertEqual(session.room(), (0, ("none", 0, 0, 0)))
        admin.ask(DRAIN)
        self.meets(("draining", 0, 0), DRAINING, session.lease, MIB)
        self.assertEqual(session.room()[1][0], "draining")
        admin.ask(UNDRAIN)
        self.assertEqual(session.room()[1][0], "none")
        session.lease(MIB)
        self.assertEqual(counts(session), {"draining": 1})
        node.await_log("refused: a lease of 1.0 MiB to test at 127.0.0.1")
        self.assertIn("client loopback: the node is drained", node.log())
        self.assertIn("farpage node undrain", node.log())

    def test_full_pools(self):
        node = self.start(config())
        session = node.session(node.urls[1])
        session.lease(6 * MIB)
        self.meets(("pools", 8 * MIB, 6 * MIB), FULL, session.lease, 4 * MIB)
        self.assertEqual(session.room(), (6 * MIB, ("none", 0, 0, 0)), "a smaller one would be granted")
        session.lease(2 * MIB)
        self.assertEqual(session.room(), (8 * MIB, ("pools", 8 * MIB, 8 * MIB, 0)))
        node.await_log("of the node's pools (8.0 MiB), none has more than 2.0 MiB left")

    def test_pools_that_cannot_be_mapped(self):
        """A client is told nothing of pools that it can't lease from."""
        node = self.start(config("[ { name: shared, size: 2M }, { name: own, size: 8M, backing: anonymous } ]"))
        session = node.session(node.urls[0], features=MEMFD)
        os.close(session.lease(2 * MIB)[2])
        self.meets(("pools", 2 * MIB, 2 * MIB), FULL, session.lease, MIB)
        node.session(node.urls[1]).lease(MIB)

    def test_no_pool_can_be_mapped(self):
        node = self.start(config("[ { name: own, size: 8M, backing: anonymous } ]"))
        session = node.session(node.urls[0], features=MEMFD)
        self.meets(("pools", 0, 0), FULL, session.lease, MIB)
        node.await_log("none of the node's pools can be mapped over shm")
        node.session(node.urls[1]).lease(MIB)

    def test_two_pools(self):
        """A lease comes from one pool."""
        node = self.start(config("[ { name: one, size: 4M }, { name: two, size: 4M } ]"))
        session = node.session(node.urls[1])
        self.meets(("pools", 8 * MIB, 4 * MIB), FULL, session.lease, 6 * MIB)
        node.await_log("of the node's pools (8.0 MiB), none has more than 4.0 MiB left")

    def test_quota(self):
        node = self.start(config(limits="client_quota: 4M"))
        first, second = node.session(node.urls[1]), node.session(node.urls[1])
        first.lease(3 * MIB)
        self.assertEqual(second.room(), (3 * MIB, ("none", 0, 0, 0)))
        self.meets(("quota", 4 * MIB, 3 * MIB, 0), OVER_QUOTA, second.lease, 2 * MIB)
        second.lease(MIB)
        self.assertEqual(second.room(), (4 * MIB, ("quota", 4 * MIB, 4 * MIB, 0)))

    def test_leases(self):
        node = self.start(config(limits="max_leases: 2"))
        session = node.session(node.urls[1])
        for _ in range(2):
            session.lease(MIB)
        self.meets(("max_leases", 2, 2), BUSY, session.lease, MIB)
        self.assertEqual(session.room()[1][:3], ("max_leases", 2, 2))

    def test_sessions_and_connections(self):
        node = self.start(config(limits="max_sessions: 4, max_connections: 8"))
        held = [node.session(node.urls[1]) for _ in range(3)]
        self.meets(("max_sessions", 3, 3, SHARE), BUSY, node.session, node.urls[1])
        held.append(node.session(node.urls[0]))
        self.meets(("max_sessions", 4, 4, 0), BUSY, node.session, node.urls[0])
        links = [held[0].link() for _ in range(3)]
        self.meets(("max_connections", 6, 6, SHARE), BUSY, held[0].link)
        links += [held[3].link()]
        self.assertEqual(counts(held[0]), {"max_sessions": 2, "max_connections": 1})
        node.await_log("refused: a session to test at 127.0.0.1")
        node.await_log("refused: a link to test at 127.0.0.1")

    def test_open_files(self):
        node = self.start(config(), preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        held = [node.session(node.urls[1]) for _ in range(12)]
        self.meets(("max_sessions", 12, 12, SHARE | FILES), BUSY, node.session, node.urls[1])
        node.await_log("three quarters of a quarter of LimitNOFILE=")
        self.assertEqual(counts(held[0]), {"max_sessions": 1})

    def test_rights_secrets_and_sessions(self):
        one, two = "the secret of a program", "the secret of an operator"
        secrets = f"[ {{ name: one, file: {secret_file(one)} }}, {{ name: two, file: {secret_file(two)}, rights: [status] }} ]"
        node = self.start(config(more=f"auth: {{ secrets: {secrets} }}\n"))
        url = node.urls[1]
        session, watcher = node.session(url, secret=one.encode()), node.session(url, secret=two.encode())
        self.meets(("right", 1, 0), NOT_PERMITTED, watcher.lease, MIB)
        self.assertEqual(watcher.room()[1][:2], ("right", 1))
        self.meets(("right", 2, 0), NOT_PERMITTED, session.ask, STATUS)
        self.meets(("right", 4, 0), NOT_PERMITTED, session.ask, DRAIN)
        self.meets(("right", 6, 0), NOT_PERMITTED, node.session, url, secret=one.encode(), features=OPERATOR)
        self.meets(("secret", 0, 0), DENIED, node.session, url)
        self.meets(("secret", 1, 0), DENIED, node.session, url, secret=b"some other secret")
        for purpose, status in (LINK, DENIED), (RESUME, GONE):
            self.meets(("session",), status, Connection, node.connect(url), purpose, 99, bytes(16), one.encode())
        self.assertEqual(counts(watcher), {"right": 4, "secret": 2, "session": 2})
        last = {r["cause"]: r["last_client"] for r in watcher.status()["refusals"]}
        self.assertEqual(last["right"], "one")

    def test_one_line_for_each_cause(self):
        """The first refusal is told at once, the next ones of its cause ten seconds later."""
        node = self.start(config(limits="client_quota: 2M, max_leases: 1"))
        session = node.session(node.urls[1])
        for _ in range(300):
            self.refused(OVER_QUOTA, session.lease, 4 * MIB)
        session.lease(MIB)
        for _ in range(100):
            self.refused(BUSY, session.lease, MIB)
        status = session.status()
        self.assertEqual(counts(session), {"quota": 300, "max_leases": 100})
        self.assertEqual(status["counters"]["leases_refused"], 400)
        self.assertEqual(status["counters"]["refused"], 0, "no connection was")
        lines = [line for line in node.log().splitlines() if "refused: " in line]
        self.assertEqual(len(lines), 2, lines)
        self.assertIn("quota of 2.0 MiB has 2.0 MiB left", lines[0])
        self.assertIn("the session has 1 lease,", lines[1])


class Operators(NodeCase):
    """There may be eight sessions of operators, six of one client, however full the node is."""

    def operator(self, node, url=None, features=OPERATOR):
        return node.session(url or node.urls[1], features=features)

    def test_a_full_node_answers(self):
        node = self.start(config(limits="max_sessions: 2, max_connections: 2"))
        held = [node.session(node.urls[1]) for _ in range(2)]
        self.refused(BUSY, node.session, node.urls[1])
        operator = self.operator(node)
        self.assertEqual(operator.features, OPERATOR)
        status = operator.status()
        self.assertEqual((len(status["sessions"]), status["operators"]), (2, 1), "it does not count itself")
        held.pop().close()
        operator.await_status(lambda s: len(s["sessions"]) == 1)
        node.session(node.urls[1])

    def test_it_may_do_nothing_else(self):
        node = self.start(config())
        operator, session = self.operator(node, node.urls[0]), node.session()
        self.refused(NOT_PERMITTED, operator.lease, MIB)
        self.refused(NOT_PERMITTED, operator.release, 1)
        self.refused(NOT_PERMITTED, operator.attach, 1)
        self.refused(NOT_PERMITTED, operator.adopt, session)
        self.refused(NOT_PERMITTED, operator.link)
        self.refused(NOT_PERMITTED, Connection, node.connect(), RESUME, operator.session_id, operator.token)
        self.assertEqual(struct.unpack_from("<QI", operator.ask(DRAIN)), (0, 1))
        operator.ask(UNDRAIN)
        self.assertEqual(operator.info()[0], 8 * MIB)
        status = operator.status()
        counters, other = status["counters"], counts(operator)
        self.assertEqual((other, counters["leases_refused"] + counters["refused"]), ({"other": 6}, 3))
        self.assertNotIn("refused: ", node.log(), "no limit was met")

    def test_it_leases_nothing_by_any_transport(self):
        node = self.start(config())
        for url in node.urls:
            operator = self.operator(node, url, features=OPERATOR | MEMFD)
            self.assertEqual(operator.features, OPERATOR | (MEMFD if url.startswith("shm:") else 0))
            self.refused(NOT_PERMITTED, operator.lease, MIB)

    def test_they_are_few(self):
        node = self.start(config())
        held = [self.operator(node) for _ in range(6)]
        with self.assertRaises(Refused) as refused:
            self.operator(node)
        self.assertEqual((refused.exception.status, refused.exception.refusal), (BUSY, ("operators", 6, 6, SHARE)))
        held.pop().close()
        held[-1].await_status(lambda s: s["operators"] == 5)
        self.operator(node)

    def test_bye_frees_no_place(self):
        """The connection stays open after it, so the place is taken until the connection is
        closed."""
        node = self.start(config(limits="max_connections: 8, handshake_timeout: 60s"))
        held = []
        for _ in range(6):
            held.append(self.operator(node))
            held[-1].ask(BYE)
        with self.assertRaises(Refused) as refused:
            self.operator(node)
        self.assertEqual(refused.exception.refusal, ("operators", 6, 6, SHARE))
        programs = [node.session(node.urls[1]) for _ in range(6)]  # they have all of their own places
        self.assertEqual(programs[0].status()["operators"], 0)
        held.pop().close()
        programs[0].await_status(lambda s: s["connections"] == 11)
        self.operator(node)

    def test_the_owner_takes_no_place(self):
        node = self.start(config(limits="max_connections: 8"))
        owners = [self.operator(node, node.urls[0]) for _ in range(9)]
        others = [self.operator(node) for _ in range(6)]
        self.assertEqual(owners[0].status()["operators"], len(owners) + len(others))
        for owner in owners[1:]:
            owner.ask(BYE)
        programs = [node.session(node.urls[0]) for _ in range(6)]
        self.assertEqual(len(programs[0].status()["sessions"]), 6)

    def test_the_owner_needs_no_place(self):
        """The owner of the node comes over its UNIX socket, after others have taken all eight
        places."""
        one, two = "the secret of some", "the secret of others"
        secrets = ", ".join(f"{{ name: {name}, file: {secret_file(text)}, rights: [status, admin] }}"
                            for name, text in (("one", one), ("two", two)))
        node = self.start(config(more=f"auth: {{ secrets: [ {secrets} ] }}\n"))
        held = [node.session(node.urls[1], secret=text.encode(), features=OPERATOR) for text in [one] * 6 + [two] * 2]
        with self.assertRaises(Refused) as refused:
            node.session(node.urls[1], secret=two.encode(), features=OPERATOR)
        self.assertEqual(refused.exception.refusal, ("operators", 8, 8, 0))
        owner = node.session(node.urls[0], secret=one.encode(), features=OPERATOR)
        self.assertEqual(owner.status()["operators"], len(held) + 1)
        owner.ask(DRAIN)

    def test_it_is_never_cut_off(self):
        node = self.start(config())
        operator, watcher = self.operator(node), node.session()
        self.assertEqual(operator.grace_ms, 0)
        operator.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        operator.close()
        watcher.await_status(lambda s: s["operators"] == 0)


class Command(NodeCase):
    """The same, as `farpage node` and other commands say it."""

    def farpage(self, *args):
        return subprocess.run([FARPAGE, *args], capture_output=True, text=True, timeout=60, check=False)

    def test_a_full_node_answers(self):
        node = self.start(config(limits="max_sessions: 2, max_connections: 2"))
        _held = [node.session(node.urls[1]) for _ in range(2)]
        shown = self.farpage("node", "status", node.urls[1], "--json")
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertEqual(len(json.loads(shown.stdout)["sessions"]), 2)
        drained = self.farpage("node", "drain", node.urls[0])
        self.assertIn("2 sessions", drained.stdout)
        refused = self.farpage("bench", "link", node.urls[1])
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"{node.urls[1]}: the node has 2 sessions, as many as max_sessions allows: raise limits.max_sessions", refused.stderr)

    def test_a_drained_node_says_so(self):
        node = self.start(config())
        self.farpage("node", "drain", node.urls[0])
        refused = self.farpage("bench", "link", node.urls[1])
        self.assertEqual(refused.returncode, 1)
        self.assertIn("the node is drained", refused.stderr)
        self.assertIn("farpage node undrain", refused.stderr)


if __name__ == "__main__":
    main()
