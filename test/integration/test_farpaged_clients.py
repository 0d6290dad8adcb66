"""Who a client is, and what he may have in all his sessions together."""
import os

from farpaged import BOTH, OVER_QUOTA, READ, NodeCase, frame, main, table

MIB = 1 << 20
QUOTA = BOTH + "limits: { client_quota: 8M }\n"


def clients(session):
    return {c["name"]: (c["sessions"], c["leased_bytes"]) for c in session.status()["clients"]}


class Identity(NodeCase):
    def test_uid_and_address(self):
        node = self.start(BOTH)
        shm, tcp = node.session(node.urls[0]), node.session(node.urls[1])
        more = node.session(node.urls[1])
        shm.lease(MIB)
        more.lease(2 * MIB)
        user = f"uid {os.geteuid()}"
        self.assertEqual(clients(tcp), {user: (1, MIB), "loopback": (2, 2 * MIB)})
        self.assertEqual({s["id"]: s["client"] for s in tcp.status()["sessions"]},
                         {shm.session_id: user, tcp.session_id: "loopback", more.session_id: "loopback"})
        shm.close()
        tcp.await_status(lambda s: [c["name"] for c in s["clients"]] == ["loopback"])

    def test_loopback_is_one(self):
        node = self.start(BOTH.replace("]", ', "tcp://[::1]:0" ]', 1))
        sessions = [node.session(node.urls[2])]
        for node.source in ("127.0.0.2", 0), ("127.1.2.3", 0), None:
            sessions.append(node.session(node.urls[1]))
        self.assertEqual(clients(sessions[0]), {"loopback": (4, 0)})


class Quota(NodeCase):
    def test_sessions_do_not_multiply_it(self):
        node = self.start(QUOTA)
        mine = [node.session(node.urls[1]) for _ in range(8)]
        for session in mine[:4]:
            session.lease(2 * MIB)
        for session in mine:
            self.refused(OVER_QUOTA, session.lease, 4096)
        other = node.session(node.urls[0])
        other.lease(8 * MIB)
        mine[0].close()
        other.await_status(lambda s: any(c["leased_bytes"] == 6 * MIB for c in s["clients"]))
        mine[7].lease(2 * MIB)

    def test_memory_that_unread_answers_hold_counts(self):
        """A READ that nobody takes the answer of holds its lease's memory; RELEASE does not give that back."""
        node = self.start(QUOTA)
        session = node.session(node.urls[1])
        link = session.link()
        lease, _, _ = session.lease(8 * MIB)
        ask = table([(lease, 65536, 0)] * 64)
        for tag in range(8):
            link.send(frame(READ, ask, tag=tag))
        session.await_status(lambda s: s["counters"]["reads"] == 8)
        session.release(lease)
        self.assertEqual(session.status()["pools"][0]["used_bytes"], 8 * MIB)
        self.assertEqual(clients(session), {"loopback": (1, 8 * MIB)})
        self.refused(OVER_QUOTA, session.lease, 4096)
        link.close()
        session.await_status(lambda s: s["clients"][0]["leased_bytes"] == 0)
        session.lease(8 * MIB)

    def test_adopted_memory_counts_once_and_till_the_last_has_left(self):
        node = self.start(QUOTA)
        parent, child = node.session(node.urls[1]), node.session(node.urls[1])
        parent.lease(5 * MIB)
        child.adopt(parent)
        child.lease(3 * MIB)
        self.refused(OVER_QUOTA, child.lease, 4096)
        parent.close()
        child.await_status(lambda s: len(s["sessions"]) == 1)
        self.assertEqual(clients(child), {"loopback": (1, 8 * MIB)})
        child.release(1)
        child.lease(5 * MIB)


if __name__ == "__main__":
    main()
