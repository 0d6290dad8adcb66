"""Clients that fall silent: their machine has vanished, or they are stopped. Their leases come
back, and nobody reads wrong bytes."""
import ctypes
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
import unittest

from farpaged import PING, PONG, RESUME, STATUS, Connection, Farpaged, Session, auth, frame, main

MIB = 1 << 20
SECRET = b"open-sesame-open-sesame"
WITHIN_S = 60
SLACK_S = 15  # of a busy machine
NEWNET = 0x40000000

# Fills more than stays local, then checks it all for each line of input.
PROGRAM = r"""
import sys
pages = [bytes([i % 251]) * 4096 for i in range(251)]
x = bytearray(48 << 20)
for i in range(len(x) >> 12): x[i << 12:(i + 1) << 12] = pages[i % 251]
print("ready", flush=True)
for line in sys.stdin:
    wrong = sum(x[i << 12:(i + 1) << 12] != pages[i % 251] for i in range(len(x) >> 12))
    print("wrong", wrong, flush=True)
"""


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True)


class Silence(unittest.TestCase):
    def start(self, config, **options):
        node = Farpaged(config, **options)
        self.addCleanup(node.__exit__)
        return node

    def await_given_back(self, node):
        watcher = node.session(node.urls[0], secret=SECRET)
        start = time.monotonic()
        while watcher.status()["pools"][0]["used_bytes"]:
            self.assertLess(time.monotonic() - start, WITHIN_S + SLACK_S)
            time.sleep(0.2)
        return time.monotonic() - start

    def connect_inside(self, netns, host, port):
        """A socket of another network."""
        result = []

        def connect():
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/run/netns/{netns}", encoding="ascii") as there:
                if libc.setns(there.fileno(), NEWNET) == 0:
                    result.append(socket.create_connection((host, port), 20))

        thread = threading.Thread(target=connect)
        thread.start()
        thread.join()
        return result[0]

    def vanish(self, limits, unacknowledged):
        """Seconds until the leases of a client are back whose network went away without a word."""
        names = [f"fp-{end}-{os.getpid()}" for end in ("node", "client")]
        try:
            ip("netns", "add", names[0])
        except (OSError, subprocess.CalledProcessError) as e:
            self.skipTest(f"no network namespace can be made here: {e}")
        self.addCleanup(ip, "netns", "del", names[0])
        ip("netns", "add", names[1])
        self.addCleanup(ip, "netns", "del", names[1])
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for i, name in enumerate(names):
            ip("-n", name, "address", "add", f"10.78.0.{i + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        node = self.start('listen: [ "unix:SOCKET", "tcp://10.78.0.1:7461" ]\npools: [ { name: main, size: 64M } ]\n'
                          f"{auth(SECRET.decode())}limits: {{ {limits} }}\n",
                          prefix=["ip", "netns", "exec", names[0]])
        sock = self.connect_inside(names[1], "10.78.0.1", 7461)
        node.connect = lambda url, connect=node.connect, **options: sock if url.startswith("tcp") else connect(url, **options)
        session = Session(node, node.urls[1], secret=SECRET)
        session.lease(MIB)
        if unacknowledged:
            node.signal(signal.SIGSTOP)
            session.send(frame(STATUS, tag=3))
        ip("-n", names[1], "link", "set", "eth0", "down")
        node.signal(signal.SIGCONT)
        self.addCleanup(session.close)
        return self.await_given_back(node)

    def test_vanished(self):
        self.assertLess(self.vanish("idle_timeout: 3s, grace: 2s", False), 5 + SLACK_S)

    def test_vanished_with_an_answer_under_way(self):
        """The kernel's own limit, without ours: there are no probes while something is
        unacknowledged."""
        self.assertLess(self.vanish("idle_timeout: 0s, grace: 1s", True), WITHIN_S + SLACK_S)

    def test_stopped_node(self):
        """The time in which the node does not run counts for no limit: what its clients sent
        meanwhile waits unread, and so does the RESUME of one that is cut off."""
        node = self.start('listen: [ "tcp://127.0.0.1:0" ]\npools: [ { name: main, size: 64M } ]\n'
                          "limits: { idle_timeout: 1500ms, grace: 1500ms }\n")
        sessions = [node.session() for _ in range(8)]
        cut_off = node.session()
        cut_off.lease(MIB)
        cut_off.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        cut_off.close()
        node.await_log("is cut off")
        node.signal(signal.SIGSTOP)
        time.sleep(2)  # longer than both limits
        for session in sessions:
            session.send(frame(PING))
        node.signal(signal.SIGCONT)
        Connection(node.connect(), RESUME, cut_off.session_id, cut_off.token)
        for session in sessions:
            session.answer(PONG)

    def test_stopped_program(self):
        """Stopped within its time it goes on as if nothing had been; after it, it is told, and
        never reads a wrong byte."""
        node = self.start('listen: [ "unix:SOCKET", "tcp://127.0.0.1:0" ]\npools: [ { name: main, size: 128M } ]\n'
                          "limits: { idle_timeout: 1s, grace: 4s }\n")
        program = subprocess.Popen(
            [os.environ["FARPAGE"], "run", "--local-memory", "16M", "--heap", "all", "--node", node.urls[1], "--",
             "/usr/bin/python3", "-c", PROGRAM],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "ready\n")
        watcher = node.session()
        names = [s["name"] for s in watcher.await_status(lambda s: len(s["sessions"]) > 1)["sessions"]]
        pid = int(next(found.group(1) for name in names if (found := re.search(r"\[(\d+)\]$", name))))
        for stopped_s, lost in ((2.5, False), (0, True)):
            os.kill(pid, signal.SIGSTOP)
            if lost:
                watcher.await_status(lambda s: all(p["used_bytes"] == 0 for p in s["pools"]))
            time.sleep(stopped_s)
            os.kill(pid, signal.SIGCONT)
            program.stdin.write("check\n")
            program.stdin.flush()
            if not lost:
                self.assertEqual(program.stdout.readline(), "wrong 0\n")
        out, err = program.communicate(timeout=120)
        self.assertEqual(out, "")
        self.assertEqual(program.returncode, -signal.SIGBUS, err)
        self.assertIn("lost", err)


if __name__ == "__main__":
    main()
